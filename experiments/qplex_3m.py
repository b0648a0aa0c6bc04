"""QPLEX (Wang et al. 2021) on 3m: three marines against three. `train` with other defaults, and all its flags."""

from pathlib import Path

from orchestra import load_experiment, variant

experiment = variant(
    load_experiment(Path(__file__).with_name("train.py")), algorithm="qplex", env="skirmish", scenario="3m"
)
