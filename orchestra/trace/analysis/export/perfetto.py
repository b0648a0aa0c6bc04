"""Chrome's trace format, as ui.perfetto.dev opens it: a process for each node, a thread for each actor, arrows."""

import json
from collections.abc import Iterator
from typing import Any, TextIO

from orchestra.trace.analysis.timeline import Timeline
from orchestra.trace.analysis.values import as_json
from orchestra.trace.format.effects import AnswerGiven, AnswerReceived, Asked, MessageId, Sent, TimerSet
from orchestra.trace.format.records import Delivery, Handled, Kind
from orchestra.trace.reading.query import Query
from orchestra.trace.reading.run_trace import Recording, RunTrace

INSTANT_US = 1.0
"""What an activation takes at least, so that an arrow finds it."""


def export(trace: RunTrace, query: Query, out: TextIO) -> int:
    """Write the activations of what matches `query`, and the arrows between them; return how many activations."""
    count = 0
    out.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
    for number, event in enumerate(_events(trace, query)):
        out.write((",\n" if number else "") + json.dumps(event))
        count += event["ph"] == "X"
    out.write("\n]}\n")
    return count


def _events(trace: RunTrace, query: Query) -> Iterator[dict[str, Any]]:
    timeline = Timeline(trace)
    chosen = {
        (id(index), int(index.entries["offset"][row]))
        for recording in trace.recordings
        for index in recording.indexes
        for row in query.rows(trace, index)
    }
    if query.where is not None:
        chosen = {(id(s.index), int(s.index.entries["offset"][s.row])) for s in query.deliveries(trace)}
    for number, recording in enumerate(trace.recordings, 1):
        header = recording.header
        yield _named("process_name", number, 0, header.node)
        threads: dict[str, int] = {}
        for delivery, handled in _pairs(recording, chosen):
            address = handled.actor
            if address not in threads:
                threads[address] = len(threads) + 1
                yield _named("thread_name", number, threads[address], address.partition("/")[2])
            place = {"pid": number, "tid": threads[address]}
            begin = 1e6 * timeline.seconds(header, handled.time)
            length = max(1e6 * handled.seconds, INSTANT_US)
            name = handled.phase if delivery is None else delivery.type.name
            piece = {"ph": "X", "name": name, "cat": "handler", "ts": begin, "dur": length}
            yield {**piece, **place, "args": _args(delivery, handled)}
            if delivery is not None and delivery.id.number:
                yield {**_end(_arrow(delivery.id)), "ts": begin, **place}
            for effect in handled.effects:
                moment = {"ts": begin + min(max(1e6 * effect.at, 0.0), length), **place}
                if isinstance(effect, Sent | Asked | TimerSet):
                    yield {**_start(_arrow(MessageId(address, effect.number))), **moment}
                elif isinstance(effect, AnswerGiven):
                    yield {**_start(f"answer to {_arrow(effect.request)}"), **moment}
                elif isinstance(effect, AnswerReceived):
                    yield {**_end(f"answer to {_arrow(MessageId(address, effect.number))}"), **moment}


def _pairs(recording: Recording, chosen: set[tuple[int, int]]) -> Iterator[tuple[Delivery | None, Handled]]:
    """Each activation that has ended: what was delivered, and what came of it."""
    for index in recording.indexes:
        deliveries: dict[tuple[int, int, int], int] = {}
        entries = index.entries
        for row in range(len(entries)):
            entry = entries[row]
            key = (int(entry["actor"]), int(entry["incarnation"]), int(entry["n"]))
            if entry["kind"] == Kind.DELIVERY and (id(index), int(entry["offset"])) in chosen:
                deliveries[key] = row
            elif entry["kind"] == Kind.HANDLED:
                before = deliveries.pop(key, None)
                handled = index.record(row)
                assert isinstance(handled, Handled)
                if before is None:
                    if handled.phase != "message":
                        yield None, handled
                    continue
                delivery = index.record(before, resolve=False)
                assert isinstance(delivery, Delivery)
                yield delivery, handled


def _args(delivery: Delivery | None, handled: Handled) -> dict[str, Any]:
    told: dict[str, Any] = {"n": handled.n, "clock": handled.clock}
    if delivery is not None:
        told |= {"from": str(delivery.id), "waited_s": delivery.waited, "bytes": delivery.nbytes}
        told["fields"] = as_json(delivery.fields, arrays=16)
    if handled.failure is not None:
        told["failure"] = f"{handled.failure.type}: {handled.failure.text}"
    return told


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _start(arrow: str) -> dict[str, Any]:
    return {"ph": "s", "name": "message", "cat": "message", "id": arrow}


def _end(arrow: str) -> dict[str, Any]:
    return {"ph": "f", "bp": "e", "name": "message", "cat": "message", "id": arrow}


def _arrow(message: MessageId) -> str:
    return f"{message.sender}#{message.number}"
