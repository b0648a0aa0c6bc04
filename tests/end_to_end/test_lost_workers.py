"""A run that loses more workers than it may saves, fails, and says what became of them."""

import signal
from pathlib import Path
from typing import Any

import pytest

from orchestra import RunDirectory
from orchestra.cli.main import main

pytestmark = pytest.mark.slow

EXPERIMENT = '''
"""QMIX with workers of which the second cannot start again."""

from pathlib import Path

from components import Worker
from orchestra import Escalate, Topology, extends, load_experiment


class Mortal(Worker):
    supervision = Escalate()

    async def started(self) -> None:
        if (self.run_directory / "doomed").exists():
            print("the disk of the game is gone", flush=True)
            raise RuntimeError("no game to play")
        await super().started()


@extends(load_experiment(Path("STANDARD")))
def experiment(topology: Topology) -> Topology:
    topology.group("workers").each(lambda index, node: node.replace("worker", Mortal if index else Worker))
    return topology
'''


@pytest.fixture
def file(launch: Any, tmp_path: Path) -> Path:
    file = tmp_path / "mortal.py"
    file.write_text(EXPERIMENT.replace("STANDARD", str(launch.experiment)))
    return file


def test_a_run_with_too_few_workers_left_saves_fails_and_tells_their_last_words(launch: Any, file: Path) -> None:
    launched = launch(
        *("--workers", "2", "--min-workers", "2", "--steps", "1000000000", "--checkpoint-interval", "1000000000"),
        experiment=file,
    )
    launched.until(lambda: any(record["workers"] == 2 and record["updates"] for record in launched.records()))
    (launched.run / "doomed").touch()
    for process in launched.look_for_children():
        if process.pid == launched.pid("worker-0-1"):
            process.kill()
    assert launched.ends() == 1, launched.story("ended in another way")

    assert (
        "orchestra: the run failed: 1 of 2 actors are left (worker-0-0/worker, worker-0-1/worker), and at least 2 "
        "required; worker-0-1 was given up: its process exited with code 1, 4 times; traceback in "
    ) in launched.err
    assert "last error of worker-0-1: worker-0-1/worker failed: RuntimeError: no game to play" in launched.err
    words = launched.err[launched.err.index("last output of worker-0-1:") :].splitlines()
    assert "    the disk of the game is gone" in words[1:]
    summary = launched.json("summary.json")
    assert (summary["state"], summary["reached_goal"]) == ("failed", False)
    assert summary["reason"].startswith("1 of 2 actors are left")
    assert summary["reason"].endswith("worker-0-1/worker failed: RuntimeError: no game to play")
    assert f"continue with: {summary['resume']}" in launched.out.splitlines()
    state = RunDirectory(launched.run).newest_state()
    assert (state / "learner.trajectories.npz").exists()  # with all experience, although workers cannot save
    assert (launched.run / "checkpoints" / f"{state.name}.pt").exists()

    (launched.run / "doomed").unlink()
    recorded = len(launched.records())
    resumed = launch.command("run", "--resume", launched.run)
    resumed.until_workers(2, after=recorded)
    resumed.process.send_signal(signal.SIGINT)
    assert resumed.ends() == 130, resumed.story("failed")
    goal = str(launched.json("summary.json")["env_steps"] + 300)
    finished = launch.command("run", "--resume", launched.run, "--steps", goal)
    assert finished.ends() == 0, finished.story("failed")


def test_more_workers_required_than_there_are_is_a_usage_error(
    launch: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = ["--runs-dir", str(tmp_path / "runs")]
    assert main(["run", str(launch.experiment), "--workers", "2", "--min-workers", "3", *runs]) == 2
    assert "--min-workers: 3 is more than the 2 workers of the run" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
