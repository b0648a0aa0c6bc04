"""AWL-hierq-12 (DMCAF, Fig. 9): three workers with four environments each, decoupled from the learner."""

from pathlib import Path

from orchestra import load_experiment, variant

experiment = variant(
    load_experiment(Path(__file__).with_name("maca_hierq.py")), workers=3, envs_per_worker=4, asynchronous=True
)
