"""PPO (Schulman et al. 2017) on CartPole-v1, as CleanRL has it. `train` with other defaults, and all its flags."""

from pathlib import Path

from orchestra import load_experiment, variant

experiment = variant(
    load_experiment(Path(__file__).with_name("train.py")),
    algorithm="ppo",
    env="gymnasium:CartPole-v1",
    steps=500_000,
    workers=1,
    envs_per_worker=4,
)
