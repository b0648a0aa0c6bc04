"""QMIX on 5m_vs_6m: five marines against six. `qmix_8m` with other defaults, and all its flags."""

from pathlib import Path

from orchestra import load_experiment, variant

experiment = variant(load_experiment(Path(__file__).with_name("qmix_8m.py")), scenario="5m_vs_6m")
