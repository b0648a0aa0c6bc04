"""Following a trace that is still being written."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from orchestra.trace.reading.query import Query, Seen
from orchestra.trace.reading.run_trace import RunTrace, trace_files

LOOK_S = 0.2


def follow(path: Path, query: Query, pause: Callable[[float], None] = time.sleep) -> Iterator[tuple[RunTrace, Seen]]:
    """Yield what matches `query`, first what is there, then what is added, until every process has closed its files.

    What nodes write between two looks is put into causal order; between looks it is as it comes.

    Args:
        path: of the run.
        query: what is asked for.
        pause: waits between two looks.
    """
    trace = RunTrace(path)
    seen_rows: dict[Path, int] = {}
    try:
        while True:
            for seen in query.deliveries(trace, after=seen_rows):
                yield trace, seen
            for recording in trace.recordings:
                for index in recording.indexes:
                    seen_rows[index.file.path] = len(index.entries)
            if all(recording.closed for recording in trace.recordings):
                return
            pause(LOOK_S)
            known = {file.path for recording in trace.recordings for file in recording.files}
            if path.is_dir() and set(trace_files(path)) - known:
                trace.close()
                trace = RunTrace(path)
                continue
            for recording in trace.recordings:
                for index in recording.indexes:
                    if index.file.refresh():
                        index.refresh()
    finally:
        trace.close()
