"""Cycles of asks that wait for each other, found by probes."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from orchestra.actors.addresses import node_of
from orchestra.actors.system_messages import DeadlockProbeMsg
from orchestra.clock import Clock, TimerHandle
from orchestra.errors import AskCycle

PATIENCE_S = 1.0
"""Seconds between two sweeps over the waiting asks. An ask seen in the previous one sends a probe."""


@dataclass(slots=True, eq=False)
class WaitingAsk:
    """One ask that waits for its answer."""

    future: asyncio.Future[Any]
    check: Callable[[Any], Any] | None
    """Validates and returns an answer from another node."""
    asker: str
    recipient: str
    task: asyncio.Task[Any] | None
    """The task that waits: the actor's own, which handles no message meanwhile, or one it started."""
    seen: bool = False
    """True if it was waiting at the last sweep."""


class Replies(Protocol):
    """The requests a local actor has to answer."""

    def answering_task(self, asker: str, correlation: int) -> asyncio.Task[Any] | None:
        """Return the task that will answer a request of the node `asker`."""


class Answering(Protocol):
    """A local actor."""

    @property
    def replies(self) -> Replies: ...


@dataclass(eq=False, repr=False)
class CycleProbes:
    """Finds cycles of asks that did not grow out of one another, as when two actors ask each other at the same time.

    An ask that waits for long sends a probe after its request. The task that has to answer the request passes the
    probe on if it waits for an ask itself. An ask reached by its own probe waits for itself. Of all asks in the cycle,
    that of the actor with the smallest address fails with `AskCycle`. A probe ends where nothing is left to follow:
    its request must be unanswered when the probe arrives, so everything it has passed still waits.
    """

    node: str
    """The name of this node."""
    waiting: Mapping[int, WaitingAsk]
    """Its waiting asks, by correlation."""
    cells: Mapping[str, Answering]
    """Its actors, by address."""
    clock: Clock
    """The runtime's."""
    send: Callable[[str, DeadlockProbeMsg], None]
    """Sends a probe to another node, if there is a connection."""
    is_unanswered: Callable[[str, int], bool]
    """Returns whether this node owes a peer the answer with a correlation."""
    _sweep: TimerHandle | None = field(default=None, init=False)

    def begin(self) -> None:
        """Begin to sweep, if that has not begun."""
        if self._sweep is None:
            self._sweep = self.clock.call_later(PATIENCE_S, self._look_through)

    def close(self) -> None:
        """Stop sweeping."""
        if self._sweep is not None:
            self._sweep.cancel()

    def follow(self, probe: DeadlockProbeMsg) -> None:
        """Take a probe that follows an ask of a local actor: pass it on, fail a cycle, or drop it."""
        cell = self.cells.get(probe.recipient)
        asker, correlation = node_of(probe.askers[-1]), probe.asks[-1]
        if cell is None or not self._waits_for_answer(asker, correlation):
            return
        task, address = cell.replies.answering_task(asker, correlation), probe.recipient
        held = [number for number, ask in self.waiting.items() if ask.task is task and ask.asker == address]
        if not held:
            return  # the actor is not blocked
        here = (address, held[0])
        passed = list(zip(probe.askers, probe.asks, strict=True))
        if here == passed[0]:
            future = self.waiting[held[0]].future
            if here == min(passed) and not future.done():
                cycle = " → ".join([*probe.askers, address])
                future.set_exception(AskCycle(f"{cycle}: each waits for an answer of the next"))
        elif here not in passed:
            askers, asks = zip(*passed, here, strict=True)
            self._send(DeadlockProbeMsg(askers=askers, asks=asks, recipient=self.waiting[held[0]].recipient))

    def _look_through(self) -> None:
        self._sweep = None
        ours = [(number, ask) for number, ask in self.waiting.items() if ask.asker in self.cells]
        for number, ask in ours:
            if ask.seen:
                self._send(DeadlockProbeMsg(askers=(ask.asker,), asks=(number,), recipient=ask.recipient))
            ask.seen = True
        if ours:
            self.begin()

    def _send(self, probe: DeadlockProbeMsg) -> None:
        peer = node_of(probe.recipient)
        if peer == self.node:
            self.follow(probe)
        else:
            self.send(peer, probe)

    def _waits_for_answer(self, asker: str, correlation: int) -> bool:
        if asker == self.node:
            ask = self.waiting.get(correlation)
            return ask is not None and not ask.future.done()
        return self.is_unanswered(asker, correlation)
