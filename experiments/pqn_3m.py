"""PQN with VDN mixing (Gallici et al. 2024) on 3m of SMAC. `train` with other defaults, and all its flags."""

from pathlib import Path

from orchestra import load_experiment, variant

experiment = variant(
    load_experiment(Path(__file__).with_name("train.py")),
    algorithm="pqn-vdn",
    env="skirmish",
    scenario="3m",
    steps=500_000,
    workers=1,
    envs_per_worker=32,
)
