"""A run that was killed goes on from the last moment that it saved."""

import signal
from pathlib import Path
from typing import Any

import pytest

from orchestra import RunDirectory

pytestmark = pytest.mark.slow

QMIX_8M = Path(__file__).resolve().parents[2] / "experiments" / "qmix_8m.py"


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


FILLED = """
import errno, os, sys
from pathlib import Path

from orchestra.cli.main import main

def full(call):
    def checked(descriptor, *args):
        if Path("filled").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return call(descriptor, *args)

    return checked


os.write, os.fsync = full(os.write), full(os.fsync)
sys.exit(main(sys.argv[1:]))
"""


def test_on_a_full_disk_a_run_fails_with_74_and_its_last_complete_checkpoint_can_be_resumed(launch: Any) -> None:
    endless = ("--steps", "1000000000", "--checkpoint-interval", "600", "--single-process")
    filled = launch.python(FILLED, "run", QMIX_8M, *launch.quick, *endless)
    filled.until(lambda: [path for path in filled.folder.glob("runs/*/*/state/*") if path.suffix != ".unfinished"])
    (filled.folder / "filled").touch()
    assert filled.ends() == 74, filled.story("did not fail with 74")
    last = RunDirectory(filled.run).newest_state()
    assert "failed: cannot save: No space left on device; the last complete checkpoint is " in filled.err
    assert f"{last.name}; traceback in" in filled.err
    assert [path.name for path in last.parent.iterdir()] == [last.name]

    resumed = launch.command("run", "--resume", str(filled.run), "--steps", "1")
    assert resumed.ends() == 0, resumed.story("cannot be resumed")
