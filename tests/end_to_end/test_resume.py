"""A run that was killed goes on from the last moment that it saved."""

import signal
from pathlib import Path
from typing import Any

import pytest

from orchestra import RunDirectory

pytestmark = pytest.mark.slow


def both(state: Path) -> bool:
    """Whether it is whole, and both workers are in it: the first moment may come before one of them."""
    return state.suffix != ".unfinished" and len(list(state.glob("worker-0-?.worker.npz"))) == 2


def test_a_run_that_was_killed_goes_on_and_reaches_its_goal(launch: Any) -> None:
    killed = launch("--steps", "1000000000", "--workers", "2", "--checkpoint-interval", "600")
    killed.until_playing()
    killed.until(lambda: [path for path in killed.run.glob("state/*") if both(path)])
    killed.process.send_signal(signal.SIGKILL)
    assert killed.left_over(30) == []
    state = RunDirectory(killed.run).newest_state()
    saved = int(state.name.removeprefix("steps-"))

    resumed = launch.command("run", "--resume", str(killed.run), "--steps", str(saved + 1500))
    assert resumed.ends() == 0, resumed.story("failed")
    summary = resumed.json("summary.json")
    assert summary["reached_goal"]
    assert summary["env_steps"] >= saved + 1500
    steps = [record["env_steps"] for record in resumed.records()]
    assert steps == sorted(steps)
    assert resumed.json("config.json")["flags"]["steps"] == saved + 1500
    assert summary["episodes"] > summary["updates"] > 0
