"""What the trace files of several processes hold."""

from pathlib import Path
from typing import Any

from orchestra.trace.format.records import Delivery, Kind
from orchestra.trace.reading.reader import TraceFile
from orchestra.trace.reading.run_trace import RunTrace


def arrays_of(path: Path, field: str) -> list[Any]:
    """Return the array in a field of each delivery in a file or folder."""
    with RunTrace(path) as trace:
        files = [file for recording in trace.recordings for file in recording.files]
        told = [record for file in files for _, record in file.records() if isinstance(record, Delivery)]
        return [trace.resolved(record.fields[field]) for record in told if record.fields is not None]


def kinds_of(path: Path) -> list[Kind]:
    """Return the kinds of a file's records, in order."""
    with TraceFile(path) as file:
        return [place.kind for place in file.locations()]
