"""QMIX, the serial baseline of DMCAF (Table III): one worker, one environment. `qmix_8m` with other defaults.

With `--single-process` playing and learning take turns in one process, as in PyMARL. The other experiments of this
folder vary this one, so that their learner is the same.
"""

from pathlib import Path

from orchestra import load_experiment, variant

experiment = variant(
    load_experiment(Path(__file__).parents[1] / "qmix_8m.py"), workers=1, envs_per_worker=1, scenario="3m"
)
