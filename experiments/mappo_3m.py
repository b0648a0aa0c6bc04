"""MAPPO (Yu et al. 2022) on 3m of SMAC; `--algorithm ippo` for IPPO. `train` with other defaults, and all its flags."""

from pathlib import Path

from orchestra import load_experiment, variant

experiment = variant(
    load_experiment(Path(__file__).with_name("train.py")), algorithm="mappo", env="skirmish", scenario="3m", workers=1
)
