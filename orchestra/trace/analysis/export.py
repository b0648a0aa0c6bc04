"""Traces in other formats: Chrome's trace format for ui.perfetto.dev, MCAP for Foxglove, Mermaid, JSON lines."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, BinaryIO, TextIO

import numpy as np

from orchestra.errors import UsageError
from orchestra.trace.analysis.timeline import Timeline
from orchestra.trace.analysis.values import as_json, fields_text, shortened
from orchestra.trace.format.effects import AnswerGiven, AnswerReceived, Asked, MessageId, Sent, TimerSet
from orchestra.trace.format.records import Delivery, Handled, Kind
from orchestra.trace.reading.index import TraceIndex
from orchestra.trace.reading.query import Query
from orchestra.trace.reading.run_trace import Recording, RunTrace

INSTANT_US = 1.0
"""Least duration of an activation in Perfetto, so that arrows attach to it."""
MCAP_ARRAYS = 4096
"""Elements up to which MCAP holds an array's values."""
MAX_ARROWS = 300
"""Messages of a Mermaid diagram; more are unreadable."""
ARROW_TEXT = 60
"""Characters of a message's fields in a Mermaid diagram."""
_ENTITIES = {"#": "#35;", ";": "#59;", "<": "#lt;", ">": "#gt;", "\n": " "}


# JSON lines


def to_jsonl(trace: RunTrace, query: Query, out: TextIO) -> int:
    """Write every delivery that matches `query`, with its effects, in causal order; return the number of lines."""
    timeline = Timeline(trace)
    count = 0
    for row in query.deliveries(trace):
        delivery, handled = row.with_arrays(), row.handled()
        content = {
            "node": row.header.node,
            "generation": row.header.generation,
            "elapsed": round(timeline.seconds(row.header, delivery.time), 6),
            **as_json(delivery),
            "handled_s": None if handled is None else handled.seconds,
            "effects": [] if handled is None else as_json(handled.effects),
            "failure": None if handled is None else as_json(handled.failure),
        }
        out.write(json.dumps(content) + "\n")
        count += 1
    return count


# MCAP


def to_mcap(trace: RunTrace, query: Query, out: BinaryIO) -> int:
    """Write the deliveries that match `query`: a topic for each actor and type, JSON messages; return their number.

    Raises:
        UsageError: the package `mcap` is not installed.
    """
    try:
        from mcap.writer import Writer
    except ImportError as error:
        raise UsageError("MCAP export needs the package mcap: pip install 'orchestra-rl[mcap]'") from error
    timeline = Timeline(trace)
    began = int(trace.began * 1e9)
    writer = Writer(out)
    writer.start(profile="", library="orchestra")
    channels: dict[str, int] = {}
    count = 0
    for row in query.deliveries(trace):
        delivery = row.with_arrays()
        topic = f"/{delivery.actor}/{delivery.type.name}"
        if topic not in channels:
            schema = writer.register_schema(
                name=delivery.type.tag, encoding="jsonschema", data=json.dumps({"type": "object"}).encode()
            )
            channels[topic] = writer.register_channel(topic=topic, message_encoding="json", schema_id=schema)
        content = {
            "sender": delivery.id.sender,
            "number": delivery.id.serial,
            "n": delivery.n,
            "clock": delivery.clock,
            "waited": delivery.waited,
            **as_json(dict(delivery.fields or {}), arrays=MCAP_ARRAYS),
        }
        moment = began + int(1e9 * timeline.seconds(row.header, delivery.time))
        writer.add_message(
            channel_id=channels[topic],
            log_time=moment,
            publish_time=moment - int(1e9 * delivery.waited),
            data=json.dumps(content).encode(),
            sequence=delivery.n,
        )
        count += 1
    writer.finish()  # type: ignore[no-untyped-call]  # the one of its methods that is not annotated
    return count


# Mermaid


def to_mermaid(trace: RunTrace, query: Query, out: TextIO) -> int:
    """Write a sequence diagram of the first `MAX_ARROWS` deliveries that match `query`; return their number."""
    arrows: list[str] = []
    participants: dict[str, None] = {}
    rows = list(islice(query.deliveries(trace), MAX_ARROWS + 1))
    for row in rows[:MAX_ARROWS]:
        delivery = row.delivery
        participants |= {delivery.id.sender: None, delivery.actor: None}
        line = "-->>" if delivery.timer else "->>"
        text = _escaped(f"{delivery.type.name} {shortened(fields_text(delivery.fields), ARROW_TEXT)}".strip())
        arrows.append(f"    {_identifier(delivery.id.sender)}{line}{_identifier(delivery.actor)}: {text}")
    out.write(f"# {trace.path.name}\n\n```mermaid\nsequenceDiagram\n")
    out.writelines(f"    participant {_identifier(address)} as {_escaped(address)}\n" for address in participants)
    out.write("\n".join(arrows) + "\n```\n")
    if len(rows) > MAX_ARROWS:
        out.write(f"\nThe first {MAX_ARROWS} messages; select others with --actor, --since or --where.\n")
    return len(arrows)


def _identifier(address: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in address)


def _escaped(text: str) -> str:
    """`text` without characters that end a line of the diagram, or begin a comment or an entity."""
    return "".join(_ENTITIES.get(letter, letter) for letter in text)


# Perfetto


def to_perfetto(trace: RunTrace, query: Query, out: TextIO) -> int:
    """Write the activations of the deliveries that match `query`, and arrows between them; return their number.

    A node is a process, an actor is a thread.
    """
    count = 0
    out.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
    for number, event in enumerate(_events(trace, query)):
        out.write((",\n" if number else "") + json.dumps(event))
        count += event["ph"] == "X"
    out.write("\n]}\n")
    return count


def _events(trace: RunTrace, query: Query) -> Iterator[dict[str, Any]]:
    timeline = Timeline(trace)
    chosen: dict[TraceIndex, list[int]] = defaultdict(list)
    for row in query.deliveries(trace):
        chosen[row.index].append(row.row)
    for number, recording in enumerate(trace.recordings, 1):
        header = recording.header
        yield _named("process_name", number, 0, header.node)
        threads: dict[str, int] = {}
        for delivery, handled in _activations(recording, chosen):
            address = handled.actor
            if address not in threads:
                threads[address] = len(threads) + 1
                yield _named("thread_name", number, threads[address], address.partition("/")[2])
            thread = {"pid": number, "tid": threads[address]}
            begin = 1e6 * timeline.seconds(header, handled.time)
            length = max(1e6 * handled.seconds, INSTANT_US)
            name = handled.phase if delivery is None else delivery.type.name
            slice_ = {"ph": "X", "name": name, "cat": "handler", "ts": begin, "dur": length}
            yield {**slice_, **thread, "args": _arguments(delivery, handled)}
            if delivery is not None and delivery.id.number:
                yield _arrow("f", _key(delivery.id), ts=begin, **thread)
            for effect in handled.effects:
                moment = {"ts": begin + min(max(1e6 * effect.at, 0.0), length), **thread}
                if isinstance(effect, Sent | Asked | TimerSet):
                    yield _arrow("s", _key(MessageId(address, effect.number)), **moment)
                elif isinstance(effect, AnswerGiven):
                    yield _arrow("s", f"answer to {_key(effect.request)}", **moment)
                elif isinstance(effect, AnswerReceived):
                    yield _arrow("f", f"answer to {_key(MessageId(address, effect.number))}", **moment)


def _activations(
    recording: Recording, chosen: Mapping[TraceIndex, list[int]]
) -> Iterator[tuple[Delivery | None, Handled]]:
    """The activations that have ended: of the chosen deliveries, and the starts and stops of all actors."""
    for index in recording.indexes:
        rows = np.array(chosen.get(index, ()), np.int64)
        deliveries = dict(zip(index.ends(rows), rows, strict=True))
        for row in index.rows(Kind.HANDLED):
            handled = index.record(row)
            assert isinstance(handled, Handled)
            if row in deliveries:
                delivery = index.record(deliveries[row], resolve=False)
                assert isinstance(delivery, Delivery)
                yield delivery, handled
            elif handled.phase != "message":
                yield None, handled


def _arguments(delivery: Delivery | None, handled: Handled) -> dict[str, Any]:
    arguments: dict[str, Any] = {"n": handled.n, "clock": handled.clock}
    if delivery is not None:
        arguments |= {"from": str(delivery.id), "waited_s": delivery.waited, "bytes": delivery.nbytes}
        arguments["fields"] = as_json(delivery.fields, arrays=16)
    if handled.failure is not None:
        arguments["failure"] = str(handled.failure)
    return arguments


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _arrow(end: str, key: str, **moment: Any) -> dict[str, Any]:
    """The start (`s`) or the finish (`f`) of an arrow; the finish binds to the slice that encloses it."""
    return {"ph": end, **({"bp": "e"} if end == "f" else {}), "name": "message", "cat": "message", "id": key, **moment}


def _key(message: MessageId) -> str:
    return f"{message.sender}#{message.number}"
