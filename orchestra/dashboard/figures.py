"""Figures of a run for charts: columns in place of records, and no more points than a chart can show."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from orchestra.runs.appended_lines import AppendedLines
from orchestra.runs.run_directory import RunDirectory

POINTS = 2_000
"""Records of a run that the first look returns, at most; the last one is among them."""


class Figures:
    """The metrics of one run, for one reader.

    A record's numbers are figures, its texts are not. Infinities and NaN become None, because JSON has neither.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._lines = AppendedLines(run.metrics)
        self._first = True
        self.anew = False
        """True if the last look began at the first record again: a resumed run drops records after its checkpoint."""

    def new(self) -> dict[str, list[float | None]]:
        """Return a column for each figure of the records that were appended, all of one length; empty if none were."""
        lines = self._lines.new()
        self.anew = self._lines.replaced
        records = [record for line in lines if (record := _record(line)) is not None]
        if self._first and len(records) > POINTS:
            every = math.ceil(len(records) / POINTS)
            records = [*records[-1::-every]][::-1]
        self._first = self._first and not records
        return columns(records)


def columns(records: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """Return a column for each name that has a number in some record."""
    names = dict.fromkeys(name for record in records for name, value in record.items() if _number(value) is not None)
    return {name: [_number(record.get(name)) for record in records] for name in names}


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None  # a damaged line: the other ones are worth showing
    return record if isinstance(record, dict) else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value
