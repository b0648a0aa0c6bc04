"""JSON lines: every delivery whole, with what came of it, in causal order; for programs that need no more."""

import json
from typing import TextIO

from orchestra.trace.analysis.timeline import Timeline
from orchestra.trace.analysis.values import as_json
from orchestra.trace.reading.query import Query
from orchestra.trace.reading.run_trace import RunTrace


def export(trace: RunTrace, query: Query, out: TextIO) -> int:
    """Write what matches `query`; return how many lines."""
    timeline = Timeline(trace)
    count = 0
    for seen in query.deliveries(trace):
        delivery, handled = seen.whole(), seen.handled()
        told = {
            "node": seen.header.node,
            "generation": seen.header.generation,
            "elapsed": round(timeline.seconds(seen.header, delivery.time), 6),
            **as_json(delivery),
            "handled_s": None if handled is None else handled.seconds,
            "effects": [] if handled is None else as_json(handled.effects),
            "failure": None if handled is None else as_json(handled.failure),
        }
        out.write(json.dumps(told) + "\n")
        count += 1
    return count
