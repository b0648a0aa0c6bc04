"""AW-QMIX (DMCAF, section III A): one worker and four environments that it acts on as they become ready.

With `--single-process` the worker learns too and acts on no environment meanwhile, as in the paper; the environments
have processes of their own.
"""

from pathlib import Path

from orchestra import load_experiment, variant

experiment = variant(load_experiment(Path(__file__).with_name("qmix.py")), envs_per_worker=4, asynchronous=True)
