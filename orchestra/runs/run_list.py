"""The runs of a folder: which of them is running, how the others ended, and their removal."""

import contextlib
import itertools
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestra.clock import Clock
from orchestra.errors import UsageError
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.run_lock import holder_of, locked

RUNNING = "running"
KILLED = "killed"
"""State of a run that neither runs nor has written how it ended."""
_TAIL_NBYTES = 1 << 16
"""Bytes at the end of a file of records in which the last record is looked for."""


@dataclass(frozen=True, slots=True)
class ListedRun:
    """One run as `orchestra ls` shows it."""

    run: RunDirectory
    state: str
    """`running`, `killed`, or as the run ended: `done`, `interrupted`, `stopped` or `failed`."""
    last_record: dict[str, Any]
    """The last record of `metrics.jsonl`; empty if there is none."""
    age_s: float
    """Seconds since the run was started or resumed."""
    nbytes: int
    """Bytes of all its files."""

    @property
    def experiment(self) -> str:
        """The name of the experiment."""
        return self.run.path.parent.name


def is_running(run: RunDirectory) -> bool:
    """Return whether a process runs in the directory. Processes of other hosts are taken to be alive."""
    holder = holder_of(run)
    return holder is not None and not holder.dead


def runs_in(runs_dir: Path) -> list[RunDirectory]:
    """Return all runs in a folder, the one that was started or resumed last first."""
    configs = [(_mtime_s(path), path) for path in runs_dir.glob("*/*/config.json")]
    return [RunDirectory(path.parent) for _, path in sorted(configs, reverse=True)]


def newest_running(runs_dir: Path) -> RunDirectory:
    """Return the run that was started or resumed last of those that are running, or of all if none is.

    Raises:
        UsageError: there is no run.
    """
    running = (run for run in runs_in(runs_dir) if is_running(run))
    return next(running, None) or RunDirectory.newest(runs_dir)


def listed(run: RunDirectory, clock: Clock) -> ListedRun:
    """Return how a run stands."""
    state = RUNNING if is_running(run) else str(run.ending().get("state", KILLED))
    age_s = max(clock.now().timestamp() - _mtime_s(run.config_path), 0.0)
    return ListedRun(run, state, last_record(run), age_s, _nbytes(run.path))


def prunable(runs: list[ListedRun], *, keep: int, older_than_s: float) -> list[ListedRun]:
    """Return the runs that are not running, not among the `keep` newest of their experiment, and old enough.

    Args:
        runs: the newest first.
        keep: runs of each experiment that stay; running ones are not counted.
        older_than_s: the least age, in seconds.
    """
    kept: dict[str, int] = {}
    found = []
    for run in runs:
        if run.state == RUNNING:
            continue
        kept[run.experiment] = kept.get(run.experiment, 0) + 1
        if kept[run.experiment] > keep and run.age_s >= older_than_s:
            found.append(run)
    return found


def remove(run: RunDirectory) -> None:
    """Remove the directory of a run, and the folder of its experiment if it is then empty.

    Raises:
        UsageError: the run is running; it may have been resumed since it was listed.
        CannotWrite: its lock file cannot be written.
        OSError: a file cannot be removed.
    """
    with locked(run):
        shutil.rmtree(run.path)
    with contextlib.suppress(OSError):  # other runs are in it
        run.path.parent.rmdir()


def set_aside(run: RunDirectory) -> Path | None:
    """Rename the directory of a run that has saved nothing, for another run of that name; return where it is now.

    Raises:
        UsageError: the run is running.
        CannotWrite: its lock file cannot be written.
        OSError: it cannot be renamed.
    """
    if not run.path.exists():
        return None
    with locked(run):
        names = (run.path.with_name(f"{run.path.name}-{number}") for number in itertools.count(1))
        aside = next(path for path in names if not path.exists())
        run.lock.unlink()
        run.path.rename(aside)
    return aside


def last_record(run: RunDirectory) -> dict[str, Any]:
    """Return the last record of a run's metrics; empty if there is none."""
    try:
        with run.metrics.open("rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _TAIL_NBYTES, 0))
            lines = file.read().split(b"\n")[:-1]
        record = json.loads(lines[-1]) if lines else {}
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _nbytes(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # a running run replaces its files
                total += os.lstat(os.path.join(parent, name)).st_size
    return total


def _mtime_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # the run was removed meanwhile
        return 0.0


def duration_s(text: str) -> float:
    """Return the seconds of a text such as `90m`, `12h`, `30d` or `2w`.

    Raises:
        UsageError: it is no such text.
    """
    units = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
    number, unit = text[:-1], text[-1:]
    if unit not in units or not number.isascii() or not number.isdecimal():
        raise UsageError(f"{text!r} is no age; write a number and m, h, d or w, as in 12h or 30d")
    return int(number) * units[unit]
