"""Flat QMIX over all actions, on the workers of AWL-hierq-12: the baseline of hierarchical QMIX."""

from pathlib import Path

from orchestra import load_experiment, variant

experiment = variant(load_experiment(Path(__file__).with_name("maca_awl_hierq_12.py")), algorithm="qmix")
