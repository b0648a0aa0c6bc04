"""Starting is quick: what takes long to import waits until it is needed."""

import subprocess
import sys

import pytest

HELP = "from orchestra.cli.main import main; main(['--help'])"
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
        pytest.param(HELP, {"torch", "numba", "matplotlib"}, id="the overview of the commands"),
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
