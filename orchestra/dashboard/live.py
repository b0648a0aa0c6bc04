"""The current state of a running run: its actors, the messages between them, its hosts."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from orchestra.errors import OrchestraError, UsageError
from orchestra.monitoring import view
from orchestra.monitoring.hosts_view import host_rows, hosts_as_json
from orchestra.monitoring.observer import ClusterStatus, connected
from orchestra.runs import join_file
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.scaling import LAUNCHER

_RUNTIME = ("system", "directory", LAUNCHER)

Flows = Mapping[tuple[str, str, str], int]
"""Messages handled so far, by sender, type and recipient."""


async def statuses(run: RunDirectory, every_s: float) -> AsyncGenerator[dict[str, Any]]:
    """Yield the status of a run every `every_s` seconds until it is over; at last, why there is no status."""
    try:
        async with connected(join_file.find(run)) as observer:
            before: ClusterStatus | None = None
            while not observer.left.done():
                now = await observer.status()
                yield described(before, now)
                before = now
                await asyncio.wait([observer.left], timeout=every_s)
    except UsageError as error:
        yield {"over": str(error)}
    except OrchestraError as error:
        yield {"over": f"the run cannot be reached: {error}"}
    else:
        yield {"over": "the run is over"}


def described(before: ClusterStatus | None, now: ClusterStatus) -> dict[str, Any]:
    """Return nodes with their actors, the flows of messages between actors, and hosts, with rates since `before`."""
    rows = view.rows(before, now)
    root = next(iter(now.answered.values()), None)
    return {
        "nodes": [
            {
                "name": row.name,
                "silent": row.silent,
                "cpu": row.cpu,
                "rss": None if row.now is None else row.now.rss,
                "lag_s": None if row.now is None else row.now.lag_s,
                "restarts": 0 if row.process is None else row.process.restarts,
                "given_up": row.process is not None and row.process.given_up,
                "actors": [
                    {
                        "address": actor.now.address,
                        "kind": actor.now.kind,
                        "waiting": actor.now.mailbox.depth,
                        "bytes": actor.now.mailbox.nbytes,
                        "per_s": actor.per_s,
                        "busy": actor.busy,
                        "state": actor.now.state,
                        "restarts": actor.now.restarts,
                        "does": actor.now.message,
                    }
                    for actor in row.actors
                    if actor.name not in _RUNTIME
                ],
            }
            for row in rows
        ],
        "flows": flows(before, now),
        "hosts": [] if root is None else hosts_as_json(host_rows(root)),
        "hosts_left_out": now.hosts_left_out,
    }


def flows(before: ClusterStatus | None, now: ClusterStatus) -> list[dict[str, Any]]:
    """Return the messages between actors: sender, recipient, type, number, and number per second."""
    then = {} if before is None else _counts(before)
    spans = {} if before is None else _spans(before, now)
    found = []
    for (sender, kind, recipient), count in _counts(now).items():
        if _of_runtime(sender) or _of_runtime(recipient):
            continue
        span = spans.get(recipient.partition("/")[0])
        earlier = then.get((sender, kind, recipient), 0)
        rate = None if span is None or earlier > count else (count - earlier) / span
        found.append({"from": sender, "to": recipient, "type": kind, "count": count, "per_s": rate})
    return found


def _of_runtime(address: str) -> bool:
    return not address or address.partition("/")[2] in ("", *_RUNTIME)


def _counts(status: ClusterStatus) -> Flows:
    return {
        (flow.sender, flow.type, flow.recipient): flow.count
        for node in status.answered.values()
        for flow in node.message_counts
    }


def _spans(before: ClusterStatus, now: ClusterStatus) -> dict[str, float]:
    """Return the seconds between two looks at each node whose process is still the same."""
    then = before.answered
    return {
        name: max(node.at_s - then[name].at_s, 1e-9)
        for name, node in now.answered.items()
        if name in then and then[name].pid == node.pid
    }
