"""Runs of the tests of engines: their flags, their processes, and what their directories show of them."""

import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = ROOT / "experiments"
PATIENCE_S = 240.0
PAUSE_S = 0.1
QUICK: Sequence[str] = (
    *("--scenario", "3m", "--steps", "600", "--workers", "1", "--envs-per-worker", "4", "--learning-starts", "8"),
    *("--batch-size", "4", "--updates-per-episode", "0.05", "--hidden-size", "8", "--eval-interval", "1000000"),
    *("--final-eval-episodes", "4", "--epsilon-steps", "1000", "--target-update-interval", "10", "--code", "installed"),
)
ENDLESS: Sequence[str] = ("--steps", "100000000")
SHARED: Sequence[str] = ("--game-speed", "--steps", "12000")
"""A run that no host ends alone before all play: a step takes 10 ms, and 4 environments 30 s for all steps."""


class WatchedRun:
    """A run as its directory shows it while it goes on."""

    @property
    def run(self) -> Path:
        """The directory of the run."""
        raise NotImplementedError

    def story(self) -> str:
        """What is known of the run, for the message of a test that fails."""
        names = ("logs/learner.jsonl", "hosts.json")
        found = [path for name in names for path in self.run.glob(name)]
        return "".join(f"\n--- {path}\n{path.read_text()[-3000:]}" for path in found)

    def look(self) -> None:
        """Do what is to be done again and again while a test waits."""

    def until(self, condition: Callable[[], Any], seconds: float = PATIENCE_S) -> None:
        """Wait until a condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            self.look()
            assert time.monotonic() < deadline, f"it took too long\n{self.story()}"
            time.sleep(PAUSE_S)

    def until_playing(self, *slots: int) -> None:
        """Wait until the orchestrator has experience of all these hosts, or of any if none is named."""
        self.until(lambda: self.playing() >= set(slots) if slots else any(self.steps()))

    def hosts(self) -> list[dict[str, Any]]:
        """What the run says of each host with an agent."""
        path = self.run / "hosts.json"
        found: list[dict[str, Any]] = json.loads(path.read_text())["hosts"] if path.exists() else []
        return found

    def playing(self) -> set[int]:
        """The slots of the hosts with an agent that have played."""
        return {host["slot"] for host in self.hosts() if host.get("env_steps")}

    def log(self, event: str) -> list[dict[str, Any]]:
        """The lines of the learner's log about an event."""
        return [each for each in _records(self.run / "logs" / "learner.jsonl") if each["event"] == event]

    def steps(self) -> list[int]:
        """The environment steps of each record of the metrics."""
        return [each["env_steps"] for each in _records(self.run / "metrics.jsonl")]

    def saved(self) -> list[Path]:
        """The states from which the run can go on."""
        return list((self.run / "state").glob("steps-*"))

    def senders(self) -> set[str]:
        """The nodes from which the orchestrator had experience."""
        return {
            row["sender"].partition("/")[0]
            for row in json.loads((self.run / "message_counts.json").read_text())
            if (row["type"], row["recipient"]) == ("InsertTransitionMsg", "learner/orchestrator")
        }


class Command(WatchedRun):
    """A command of a user, in a folder where runs are.

    Args:
        folder: the working folder.
        words: the command.
        environment: all of its variables.
    """

    def __init__(self, folder: Path, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._out = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by `close`)
        self.process = psutil.Popen(
            list(words),
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def out(self) -> str:
        """What the command has printed."""
        self._out.seek(0)
        return self._out.read()

    @property
    def run(self) -> Path:
        """The directory of the only run of the folder, once it has begun."""
        self.until(lambda: list(self.folder.glob("runs/*/*/config.json")))
        (found,) = self.folder.glob("runs/*/*/config.json")
        return found.parent

    def ends(self) -> int:
        """Wait for the end of the command; return its exit code."""
        try:
            return int(self.process.wait(PATIENCE_S))
        except psutil.TimeoutExpired:
            pytest.fail(self.story())

    def story(self) -> str:
        found = [path for name in ("*.log", "*/logs/learner.jsonl", "*/hosts.json")
                 for path in self.folder.glob(f"runs/*/{name}")]  # fmt: skip
        logs = "".join(f"\n--- {path}\n{path.read_text()[-3000:]}" for path in found)
        return f"{self.process.args}\n{self.out}{logs}"

    def close(self) -> None:
        """End the command."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.process.kill()
        self.process.wait(10)
        self._out.close()


def _records(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of JSON, a line that is being written left out."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []
