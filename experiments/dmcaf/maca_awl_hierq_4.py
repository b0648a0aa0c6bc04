"""AWL-hierq-4 (DMCAF, Fig. 9): two workers with two environments each, decoupled from the learner."""

from pathlib import Path

from orchestra import load_experiment, variant

experiment = variant(
    load_experiment(Path(__file__).with_name("maca_hierq.py")), workers=2, envs_per_worker=2, asynchronous=True
)
