"""DQN (Mnih et al. 2015) on CartPole-v1 of Gymnasium. `train` with other defaults, and all its flags."""

from pathlib import Path

from orchestra import load_experiment, variant

experiment = variant(
    load_experiment(Path(__file__).with_name("train.py")),
    algorithm="dqn",
    env="gymnasium:CartPole-v1",
    steps=80_000,
    workers=1,
    envs_per_worker=8,
    segment_length=1,  # an "episode" of the flags is then one step
    batch_size=64,
    buffer_size=80_000,
    learning_starts=1_000,
    updates_per_episode=0.5,
    epsilon_end=0.04,
    epsilon_steps=8_000,
    eval_interval=5_000,
    eval_episodes=20,
    final_eval_episodes=100,
)
