"""A run of `orchestra run` in its steady state: its rates, processes and their use of resources; for other benchmarks.

Start-up, compiling and the end of a run are left out. The run has no goal that it could reach; it is stopped after
the measurement.
"""

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil

EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"
NEVER = 10**9
ENDLESS = [f"--{flag}={NEVER}" for flag in ("steps", "eval-interval", "checkpoint-interval")]
POLL_S = 0.5
STARTING_S = 300.0
"""Seconds within which a run must reach its steady state."""
ENDING_S = 60.0

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Steady:
    """A run between two of its records."""

    first: Record
    last: Record

    @property
    def seconds(self) -> float:
        return float(self.last["elapsed_s"] - self.first["elapsed_s"])

    def rate(self, name: str) -> float:
        """Return the growth of a figure of the records per second."""
        return float(self.last[name] - self.first[name]) / self.seconds


def steady(records: list[Record], begins: Callable[[Record], bool]) -> Steady | None:
    """Return the part of a run from the first record for which `begins` holds to the last; None if there is none."""
    moving = [record for record in records if begins(record)]
    return Steady(moving[0], moving[-1]) if len(moving) > 1 else None


def trains(record: Record) -> bool:
    """Return whether the learner has begun."""
    return bool(record["updates"]) and record["state"] in ("training", "collecting")


def collects(record: Record) -> bool:
    """Return whether there are environment steps."""
    return bool(record["env_steps"]) and record["state"] in ("training", "collecting")


class Running:
    """A run that is under way."""

    def __init__(self, process: "subprocess.Popen[bytes]", folder: Path, output: Path) -> None:
        self._process, self._folder, self._output = process, folder, output

    def records(self) -> list[Record]:
        """Return the records of its metrics so far, without a line that is still being written."""
        lines = [line for file in self._folder.glob("*/*/metrics.jsonl") for line in file.read_text().split("\n")[:-1]]
        return [json.loads(line) for line in lines]

    def measured(self, begins: Callable[[Record], bool], seconds: float) -> Steady:
        """Wait until `seconds` have been recorded since `begins`; return that part of the run.

        Raises:
            SystemExit: the run has ended, or has not recorded as much in time.
        """
        until = monotonic() + STARTING_S + seconds
        while (found := steady(self.records(), begins)) is None or found.seconds < seconds:
            if self._process.poll() is not None:
                sys.exit(f"orchestra run ended with {self._process.returncode}:\n{self._output.read_text()[-2000:]}")
            if monotonic() > until:
                sys.exit(f"orchestra run has not recorded {seconds:g} s:\n{self._output.read_text()[-2000:]}")
            sleep(POLL_S)
        return found

    def processes(self) -> dict[str, psutil.Process]:
        """Return the process of each node, by its name, as the run itself reports them."""
        (run,) = self._folder.glob("*/*")
        command = [sys.executable, "-m", "orchestra", "ps", "--json", str(run)]
        said = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        return {node["node"]: psutil.Process(node["pid"]) for node in said["nodes"] if node["answered"]}

    def stop(self) -> None:
        """End the run and all its processes."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def running(experiment: Path, *flags: str) -> Iterator[Running]:
    """Start a run without an end; stop it when the block ends."""
    with tempfile.TemporaryDirectory() as name:
        folder, output = Path(name) / "runs", Path(name) / "output.txt"
        words = [str(experiment), *ENDLESS, "--runs-dir", str(folder), *flags]
        with output.open("wb") as stream:
            command = [sys.executable, "-m", "orchestra", "run", *words]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT)
        run = Running(process, folder, output)
        try:
            yield run
        finally:
            run.stop()


def rates(experiment: Path, *flags: str, begins: Callable[[Record], bool] = trains, seconds: float = 20.0) -> Steady:
    """Start a run, measure it for `seconds`, and stop it."""
    with running(experiment, *flags) as run:
        return run.measured(begins, seconds)
