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
PLANNED = f"""
from pathlib import Path
from orchestra import Flags, build, load_experiment

function = load_experiment(Path({str(EXPERIMENT)!r}))
topology = build(function, Flags.of(function).parse(["--scenario", "3m", "--envs-per-worker", "4"]))
"""
ACTING = f"""
{PLANNED}
import numpy as np
from components.playing import play_once
from components.rollout import Rollout

planned = topology.nodes["worker-0-0"].actors[0].factory.keywords
env, policy = planned["env"](4, seed=0), planned["policy"](planned["env"](1, seed=0).spec, seed=0)
rollout = Rollout(env, policy, np.random.default_rng(0))
assert rollout.collect(130, 0.5) is not None
rollout.restore(rollout.state())
play_once(planned["env"], 4, 0, planned["policy"], policy.params(), 4, np.random.default_rng(0))
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
        pytest.param(PLANNED, HEAVY, id="the plan of a run"),
        pytest.param("import orchestra.cli.host", HEAVY | {"components", "uvloop", "numpy"}, id="the agent of a host"),
        pytest.param(ACTING, HEAVY - {"numba"}, id="a worker that acts"),
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
