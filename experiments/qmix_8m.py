"""QMIX (Rashid et al. 2018) on 8m: eight marines against eight. `train` with other defaults, and all its flags."""

from pathlib import Path

from orchestra import load_experiment, variant

experiment = variant(
    load_experiment(Path(__file__).with_name("train.py")), algorithm="qmix", env="skirmish", scenario="8m"
)
