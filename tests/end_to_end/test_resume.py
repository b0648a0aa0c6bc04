"""A run that was killed goes on from the last moment that it saved."""

import signal
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_a_run_that_was_killed_goes_on_and_reaches_its_goal(launch: Any) -> None:
    killed = launch("--steps", "1000000000", "--workers", "2", "--checkpoint-interval", "600")
    killed.until_playing()
    killed.until(lambda: [path for path in killed.run.glob("state/*") if path.suffix != ".unfinished"])
    killed.process.send_signal(signal.SIGKILL)
    assert killed.left_over(10) == []
    (state,) = [path for path in (killed.run / "state").iterdir() if path.suffix != ".unfinished"]
    saved = int(state.name.removeprefix("steps-"))
    assert {path.name for path in state.iterdir()} >= {"worker-0-0.worker.npz", "worker-0-1.worker.npz"}

    resumed = launch.command("run", "--resume", str(killed.run), "--steps", str(saved + 1500))
    assert resumed.ends() == 0, resumed.story("failed")
    summary = resumed.json("summary.json")
    assert summary["reached_goal"]
    assert summary["env_steps"] >= saved + 1500
    steps = [record["env_steps"] for record in resumed.records()]
    assert steps == sorted(steps)
    assert resumed.json("config.json")["flags"]["steps"] == saved + 1500
    assert summary["episodes"] > summary["updates"] > 0


def test_what_cannot_be_resumed_is_told_in_one_line(launch: Any, tmp_path: Path) -> None:
    file = str(launch.experiment)
    for words, said in (
        (["--resume", str(tmp_path / "no")], f"there is no run directory '{tmp_path / 'no'}'"),
        (["--resume", str(tmp_path)], f"'{tmp_path}' is not a run directory: it has no config.json"),
    ):
        refused = launch.command("run", *words)
        assert refused.ends() == 2
        assert refused.err == f"orchestra: error: {said}\n"
    done = launch()
    assert done.ends() == 0, done.story("failed")
    run = str(done.run)
    for words, said in (
        (["--resume", run, file], "FILE is what the run that is resumed had, and cannot be given"),
        (["--resume", run, "--seed", "3"], "--seed is what the run that is resumed had, and cannot be given"),
        (["--resume", run, "--step", "3"], "unknown flag --step (did you mean --steps?)"),
    ):
        refused = launch.command("run", *words)
        assert refused.ends() == 2
        assert said in refused.err
    other = launch.command("run", "--resume", run, "--hidden-size", "16", "--steps", "9999", "--single-process")
    assert other.ends() == 1
    assert "belongs to another policy" in other.err.splitlines()[-1]
    assert "Traceback" not in other.err
