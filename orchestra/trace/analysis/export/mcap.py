"""MCAP, as Foxglove opens it: a topic for each actor and message type, JSON messages with the run's time."""

import json
from typing import BinaryIO

from orchestra.errors import UsageError
from orchestra.trace.analysis.timeline import Timeline
from orchestra.trace.analysis.values import as_json
from orchestra.trace.reading.query import Query
from orchestra.trace.reading.run_trace import RunTrace

ARRAYS = 4096
"""Elements up to which an array is written out."""


def export(trace: RunTrace, query: Query, out: BinaryIO) -> int:
    """Write what matches `query`; return how many messages.

    Raises:
        UsageError: the package `mcap` is not installed.
    """
    try:
        from mcap.writer import Writer
    except ImportError as error:
        raise UsageError("MCAP needs the package mcap: pip install 'orchestra-rl[mcap]'") from error
    timeline = Timeline(trace)
    began = int(trace.began * 1e9)
    writer = Writer(out)
    writer.start(profile="", library="orchestra")
    channels: dict[str, int] = {}
    count = 0
    for seen in query.deliveries(trace):
        delivery = seen.whole()
        topic = f"/{delivery.actor}/{delivery.type.name}"
        if topic not in channels:
            schema = writer.register_schema(
                name=delivery.type.tag, encoding="jsonschema", data=json.dumps({"type": "object"}).encode()
            )
            channels[topic] = writer.register_channel(topic=topic, message_encoding="json", schema_id=schema)
        told = {
            "sender": delivery.id.sender,
            "number": delivery.id.serial,
            "n": delivery.n,
            "clock": delivery.clock,
            "waited": delivery.waited,
            **as_json(dict(delivery.fields or {}), arrays=ARRAYS),
        }
        moment = began + int(1e9 * timeline.seconds(seen.header, delivery.time))
        writer.add_message(
            channel_id=channels[topic],
            log_time=moment,
            publish_time=moment - int(1e9 * delivery.waited),
            data=json.dumps(told).encode(),
            sequence=delivery.n,
        )
        count += 1
    writer.finish()  # type: ignore[no-untyped-call]  # the one of its methods that is not annotated
    return count
