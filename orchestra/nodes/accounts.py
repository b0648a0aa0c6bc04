"""The accounts of a node: message counts and dead letters of all its actors, and the statistics of its process."""

import asyncio
import functools
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import psutil

from orchestra.actors.addresses import is_observer
from orchestra.actors.cell import Cell
from orchestra.actors.message import Message
from orchestra.actors.statistics import (
    OTHERS,
    Flow,
    HostStatistics,
    MessageCounts,
    NodeStatistics,
    ProcessStatistics,
    others_like,
)
from orchestra.nodes.peers import Peers
from orchestra.nodes.rejections import DeadLetters

PAST_COUNTS = 10_000
"""Flows to ended actors that are counted separately."""


class AccountedNode(Protocol):
    """A node, as its accounts use it."""

    name: str
    cells: dict[str, Cell]
    peers: Peers
    loop: asyncio.AbstractEventLoop
    unencrypted: bool
    processes: Callable[[], tuple[ProcessStatistics, ...]]


class Accounts:
    """Counts the messages of a node, those of ended actors included."""

    def __init__(self, node: AccountedNode) -> None:
        self.dead_letters = DeadLetters()
        self.hosts: Callable[[], tuple[HostStatistics, ...]] = tuple
        """Returns the hosts of the run, if this node is the root of one over several."""
        self._node = node
        self._past: MessageCounts[tuple[str, str, str]] = MessageCounts(PAST_COUNTS)

    def add(self, address: str, counts: Counter[tuple[str, type[Message]]]) -> None:
        """Keep the counts of an actor that has ended, by sender and type."""
        for (sender, kind), count in counts.items():
            others = (others_like(sender), kind.__name__, OTHERS)
            self._past.add((sender, kind.__name__, address), count, others)

    def statistics(self) -> NodeStatistics:
        """Return the statistics of the node, its actors and its links."""
        node = self._node
        counts = self._past.counted()
        for cell in node.cells.values():
            for (sender, kind), count in cell.delivered.message_counts().items():
                counts[sender, kind.__name__, cell.address] += count
        flows = ((*flow, count) for flow, count in sorted(counts.items()) if not is_observer(flow[0]))
        return NodeStatistics(
            node=node.name,
            cells=tuple(cell.statistics() for cell in node.cells.values()),
            message_counts=tuple(Flow(sender=s, type=t, recipient=r, count=n) for s, t, r, n in flows),
            dead_letters=self.dead_letters.total,
            peers=node.peers.names,
            links=node.peers.statistics(),
            pid=os.getpid(),
            at_s=time.monotonic(),
            cpu_s=time.process_time(),
            rss=_process(os.getpid()).memory_info().rss,
            lag_s=node.peers.failures.lag_s,
            tasks=len(asyncio.all_tasks(node.loop)),
            processes=node.processes(),
            unencrypted=node.unencrypted,
            hosts=self.hosts(),
        )


@functools.cache
def _process(pid: int) -> psutil.Process:
    """Return this process. To create the object takes longer than to query it."""
    return psutil.Process(pid)
