"""QMIX on 2s3z: two stalkers and three zealots against the same. `qmix_8m` with other defaults, and all its flags."""

from pathlib import Path

from orchestra import load_experiment, variant

experiment = variant(load_experiment(Path(__file__).with_name("qmix_8m.py")), scenario="2s3z")
