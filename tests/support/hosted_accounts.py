"""The accounts of a run over hosts: what its hosts have sent, what arrived, and what was counted."""

import json
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from orchestra.trace.reading.query import DeliveryRow, Query
from orchestra.trace.reading.run_trace import RunTrace

EXPERIENCE = "InsertTransitionMsg"
ORCHESTRATOR, STORE = "learner/orchestrator", "learner/trajectories"


def check_message_counts(run: Path, *, restarted: Collection[str] = ()) -> None:
    """Check that each message of experience that a proxy had was received once, and stored once.

    Args:
        run: the directory of a run that has ended in order.
        restarted: nodes of proxies of which an earlier process has died, with its counts.
    """
    rows = json.loads((run / "message_counts.json").read_text())
    experience = [row for row in rows if row["type"] == EXPERIENCE]
    had = Counter[str]()
    for row in experience:
        had[row["recipient"]] += row["count"]
    passed_on = {row["sender"]: row["count"] for row in experience if row["recipient"] == ORCHESTRATOR}
    assert passed_on, "nothing has arrived at the head"
    assert had[STORE] == had[ORCHESTRATOR], f"{had[ORCHESTRATOR]} messages arrived, {had[STORE]} were stored"
    for proxy, count in passed_on.items():
        if proxy.partition("/")[0] not in restarted:
            assert had[proxy] == count, f"{proxy} had {had[proxy]} messages of its workers, and {count} arrived"


@dataclass
class Accounts:
    """What `check_trace` has found."""

    arrived: Counter[str] = field(default_factory=Counter)
    """Messages of experience at the Orchestrator, by the node that sent them."""
    processes: Counter[str] = field(default_factory=Counter)
    """Processes of each proxy whose messages have arrived."""
    compared: int = 0
    """Processes of proxies whose own trace is whole."""


def check_trace(run: Path, *, resumed_steps: int = 0, resumed_episodes: int = 0) -> Accounts:
    """Check the counts of a run against its full trace: nothing is lost, doubled or reordered.

    Args:
        run: the directory of a run that has ended in order.
        resumed_steps: environment steps before the part of the run that the trace shows.
        resumed_episodes: episodes before it.
    """
    summary = json.loads((run / "summary.json").read_text())
    accounts = Accounts()
    with RunTrace(run) as trace:
        arrived = _experience(trace, ORCHESTRATOR)
        _check_order(arrived)
        _check_order(_experience(trace, STORE))
        for actor in (ORCHESTRATOR, STORE):
            lengths = [_lengths(row) for row in _experience(trace, actor)]
            steps, episodes = sum(int(each.sum()) for each in lengths), sum(len(each) for each in lengths)
            assert steps + resumed_steps == summary["env_steps"], f"{actor}: {steps} + {resumed_steps} steps"
            assert episodes + resumed_episodes == summary["episodes"], f"{actor}: {episodes} + {resumed_episodes}"
        by_process = Counter((row.delivery.id.sender, row.delivery.id.generation) for row in arrived)
        for (proxy, _), count in by_process.items():
            accounts.arrived[proxy.partition("/")[0]] += count
            accounts.processes[proxy] += 1
        for proxy in accounts.processes:
            had = _experience(trace, proxy)
            _check_order(had)
            for recording in trace.recordings:
                key = proxy, recording.header.generation
                if recording.header.node == proxy.partition("/")[0] and recording.closed and not recording.notes():
                    count = sum(row.recording is recording for row in had)
                    assert count == by_process[key], f"{proxy} had {count} messages, and {by_process[key]} arrived"
                    accounts.compared += 1
    return accounts


def _experience(trace: RunTrace, actor: str) -> list[DeliveryRow]:
    return list(Query(type=EXPERIENCE, actor=actor).deliveries(trace))


def _check_order(rows: list[DeliveryRow]) -> None:
    """Check that the messages of each sender have arrived once, in the order in which they were sent."""
    last: dict[tuple[Any, str], int] = {}
    for row in rows:
        recipient, sent = (row.recording.header.generation, row.delivery.actor), row.delivery.id
        before = last.get((recipient, sent.sender), 0)
        assert sent.number > before, f"{sent} arrived at {row.delivery.actor} after message {before}"
        last[recipient, sent.sender] = sent.number


def _lengths(row: DeliveryRow) -> np.ndarray[Any, np.dtype[Any]]:
    assert row.delivery.fields is not None
    return np.asarray(row.delivery.fields["lengths"])
