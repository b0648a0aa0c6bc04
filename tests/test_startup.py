"""Starting is quick: heavy libraries are imported when they are used."""

import subprocess
import sys
from pathlib import Path

import pytest

EXPERIMENT = Path(__file__).resolve().parents[1] / "experiments" / "qmix_8m.py"
HEAVY = {"torch", "numba", "matplotlib", "tensorboardX"}

QUICK = """
import contextlib
from orchestra.cli.main import main

with contextlib.suppress(SystemExit):
    main({arguments!r})
"""
ACTING = """
import numpy as np
from components import Monitor, Orchestrator, Trainer, TrajectoryManager, Worker, WorkerProxy
from components.envs import Skirmish
from components.policies import Qmix
from components.rollout import play

env = Skirmish("3m", 1)
play(env, Qmix(env.spec, seed=0), 1, np.random.default_rng(0))
"""


@pytest.mark.parametrize(
    ("program", "waits"),
    [
        pytest.param(QUICK.format(arguments=["--help"]), HEAVY | {"numpy"}, id="the overview of the commands"),
        pytest.param(QUICK.format(arguments=["ps", "--help"]), HEAVY, id="help on ps"),
        pytest.param(QUICK.format(arguments=["ls"]), HEAVY, id="the list of runs"),
        pytest.param(QUICK.format(arguments=["prune", "--help"]), HEAVY, id="help on prune"),
        pytest.param(QUICK.format(arguments=["trace", "--help"]), HEAVY, id="help on traces"),
        pytest.param(
            QUICK.format(arguments=["run", str(EXPERIMENT), "--help"]), HEAVY, id="the flags of an experiment"
        ),
        pytest.param(ACTING, {"torch._dynamo", "matplotlib", "tensorboardX"}, id="a worker that acts"),
    ],
)
def test_what_is_not_needed_is_not_imported(program: str, waits: set[str]) -> None:
    listed = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys\nprint(*sys.modules, file=sys.stderr)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not waits & set(listed.stderr.split())
