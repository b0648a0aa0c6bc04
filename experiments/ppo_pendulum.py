"""PPO (Schulman et al. 2017) on Pendulum-v1, with continuous actions. `train` with other defaults, and all its flags.

Settings are near those of RL Baselines3 Zoo. The learning rate falls to 0 over the 37 updates of the run.
"""

from pathlib import Path

from orchestra import load_experiment, variant

experiment = variant(
    load_experiment(Path(__file__).with_name("train.py")),
    algorithm="ppo",
    env="gymnasium:Pendulum-v1",
    steps=150_000,
    workers=1,
    envs_per_worker=4,
    rollout_length=1_024,
    minibatches=64,
    epochs=10,
    gamma=0.9,
    entropy=0.0,
    learning_rate=1e-3,
    anneal=37,
    value_clip=False,
    eval_episodes=100,
    eval_interval=50_000,
    final_eval_episodes=100,
)
