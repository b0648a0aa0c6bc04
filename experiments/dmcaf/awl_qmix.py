"""AWL-QMIX (DMCAF, section III B): four workers with three environments each, decoupled from the learner."""

from pathlib import Path

from orchestra import load_experiment, variant

experiment = variant(
    load_experiment(Path(__file__).with_name("qmix.py")), workers=4, envs_per_worker=3, asynchronous=True
)
