"""The newest lines of all logs of a run."""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from orchestra import log
from orchestra.runs.appended_lines import AppendedLines
from orchestra.runs.run_directory import RunDirectory

MOST = 1 << 17
"""Bytes of each file that one look reads."""
LINES = 300
"""Lines that one look returns, at most."""


class LogLines:
    """The lines of the nodes' logs, for one reader."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._files: dict[Path, AppendedLines] = {}

    def new(self) -> list[dict[str, str]]:
        """Return the newest lines since the last look, in the order of their times, with their levels."""
        for path in self._run.logs.glob("*.jsonl"):
            self._files.setdefault(path, AppendedLines(path, most=MOST))
        entries = [entry for lines in self._files.values() for entry in _entries(lines.new())]
        return [entry for _, entry in sorted(entries, key=lambda pair: pair[0])][-LINES:]


def _entries(lines: list[str]) -> Iterator[tuple[datetime, dict[str, str]]]:
    for line in lines:
        try:
            record: dict[str, Any] = json.loads(line)
            at, text, level = datetime.fromisoformat(record["timestamp"]), log.short(record), str(record["level"])
        except (ValueError, TypeError, KeyError):
            continue  # a damaged line
        yield at, {"text": text, "level": level}
