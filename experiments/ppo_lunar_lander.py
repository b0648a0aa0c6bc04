"""PPO (Schulman et al. 2017) on LunarLander-v3, with the settings of the RL Zoo.

`train` with other defaults, and all its flags. It needs `pip install 'orchestra-rl[box2d]'`.
"""

from pathlib import Path

from orchestra import load_experiment, variant

experiment = variant(
    load_experiment(Path(__file__).with_name("train.py")),
    algorithm="ppo",
    env="gymnasium:LunarLander-v3",
    steps=1_000_000,
    workers=2,
    envs_per_worker=8,
    rollout_length=1_024,
    minibatches=256,
    epochs=4,
    learning_rate=3e-4,
    gamma=0.999,
    gae_lambda=0.98,
    entropy=0.01,
    value_clip=False,
    eval_interval=50_000,
)
