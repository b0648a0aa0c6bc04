"""PQN (Gallici et al. 2024) on CartPole-v1 of Gymnasium. `train` with other defaults, and all its flags."""

from pathlib import Path

from orchestra import load_experiment, variant

experiment = variant(
    load_experiment(Path(__file__).with_name("train.py")),
    algorithm="pqn",
    env="gymnasium:CartPole-v1",
    steps=500_000,
    workers=1,
    envs_per_worker=32,
    epsilon_steps=100_000,
    anneal=244,  # updates, of 2,048 steps each
)
