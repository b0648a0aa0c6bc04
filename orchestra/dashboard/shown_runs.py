"""The runs that a dashboard shows."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestra.errors import UsageError
from orchestra.runs.recorded_command import recorded_command
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.run_list import KILLED, RUNNING, is_running, last_record, runs_in

NEWEST = 40
"""Runs of a folder that are shown: those that were started or resumed last."""


@dataclass(frozen=True, slots=True)
class ShownRuns:
    """Either the runs that were named, or those of a folder, with new ones as they come."""

    runs_dir: Path
    named: Sequence[RunDirectory] = ()

    def by_id(self) -> dict[str, RunDirectory]:
        """Return the runs by their names in links, which are of letters and digits alone, the newest first."""
        runs = self.named or runs_in(self.runs_dir)[:NEWEST]
        return {hashlib.sha256(str(run.path.absolute()).encode()).hexdigest()[:12]: run for run in runs}

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each run in the list of runs."""
        return [{"id": name, **row(run)} for name, run in self.by_id().items()]


def row(run: RunDirectory) -> dict[str, Any]:
    """Return how a run stands: its state, its place, its last figures."""
    ending = run.ending()
    state = RUNNING if is_running(run) else str(ending.get("state", KILLED))
    config = _config(run)
    record = last_record(run)
    return {
        "experiment": run.path.parent.name,
        "name": run.path.name,
        "path": str(run.path),
        "state": state,
        "phase": record.get("state"),
        "reason": ending.get("reason"),
        "seed": config.get("seed"),
        "configuration": _configuration(config),
        "steps": record.get("env_steps"),
        "goal": record.get("goal_steps"),
        "elapsed_s": record.get("elapsed_s"),
        "result": next((record[n] for n in ("test_win_rate", "test_return") if record.get(n) is not None), None),
        "is_share": record.get("test_win_rate") is not None,
    }


def details(run: RunDirectory) -> dict[str, Any]:
    """Return the resolved configuration of a run, the command that begins such a run, and how it ended."""
    config = _config(run)
    try:
        words, remarks = recorded_command(run)
    except UsageError as error:
        words, remarks = [], [str(error)]
    return {
        "flags": config.get("flags", {}),
        "options": config.get("options", {}),
        "machine": {name: config[name] for name in ("host", "platform", "cpus", "versions", "git") if name in config},
        "command": words,
        "remarks": remarks,
        "messages": _messages(run),
        "resume": None if is_running(run) else run.resume_command,
    }


def _messages(run: RunDirectory) -> list[dict[str, Any]]:
    """Return the messages between actors of a run that is over: sender, type, recipient, number."""
    try:
        counts = json.loads(run.message_counts.read_bytes())
    except (OSError, ValueError):
        return []
    return sorted(counts, key=lambda flow: -flow["count"])


def _config(run: RunDirectory) -> dict[str, Any]:
    try:
        return run.config()
    except UsageError:
        return {}


def _configuration(config: dict[str, Any]) -> str:
    """Return a name for all settings but the seed: runs with the same one are seeds of one configuration."""
    flags = {name: value for name, value in config.get("flags", {}).items() if name != "seed"}
    text = json.dumps([config.get("experiment"), flags], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
