"""COMA, with which Fig. 8 of DMCAF compares, on the workers of AWL-QMIX."""

from pathlib import Path

from orchestra import load_experiment, variant

experiment = variant(load_experiment(Path(__file__).with_name("awl_qmix.py")), algorithm="coma")
