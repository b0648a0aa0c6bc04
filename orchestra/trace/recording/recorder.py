"""The recorder of a node: it keeps the Lamport clock, and hands drafts of records on. It encodes and writes nothing."""

from collections.abc import Iterable
from typing import Protocol

from orchestra.clock import Clock
from orchestra.trace.format.effects import GENERATION_SHIFT
from orchestra.trace.format.encoding import Filters, PendingRecord


class Sink(Protocol):
    """Where drafts go: `Backlog` or `FlightRing`."""

    at_once: bool
    """Whether it wants a delivery before it is handled; else the actor keeps that in hand until it is."""
    total: int
    """Bytes that it was handed, so far."""
    snapshot_every: float
    """Bytes after which it wants to know the state of an actor again."""

    def put(self, draft: PendingRecord) -> None: ...
    def put_snapshot(self, draft: PendingRecord) -> None: ...
    def failed(self, reason: str, in_hand: Iterable[PendingRecord] = ()) -> None: ...
    def dump(self, reason: str, in_hand: Iterable[PendingRecord] = ()) -> None: ...
    def close(self, in_hand: Iterable[PendingRecord] = ()) -> None: ...


class InHand(Protocol):
    """Whoever may have a draft in hand."""

    def in_hand(self) -> list[PendingRecord]: ...


class Recorder:
    """What the cells of one node record with. Used by the node's loop alone.

    Args:
        sink: takes the drafts.
        generation: tells the processes apart that are this node, one after the other.
        clock: the node's.
        planned: the addresses of the actors that the experiment plans.
        filters: what is left out.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        generation: int,
        clock: Clock,
        planned: frozenset[str] = frozenset(),
        filters: Filters | None = None,
    ) -> None:
        self.base = generation << GENERATION_SHIFT
        """What a message's number is counted from."""
        self.clock = clock
        self.planned = planned
        self.logical = 0
        """The Lamport clock."""
        self.sink = sink
        self.cells: set[InHand] = set()
        """The recorders of actors that live."""
        self._filters = filters or Filters()

    def records(self, actor: str) -> bool:
        """Whether the actor at this address is recorded."""
        return self._filters.records(actor)

    def tick(self) -> int:
        """Something happens: return its time by the Lamport clock."""
        self.logical += 1
        return self.logical

    def witness(self, clock: int) -> None:
        """Something came from another node, which sent it at `clock`."""
        if clock > self.logical:
            self.logical = clock

    def failed(self, reason: str) -> None:
        """An actor failed."""
        self.sink.failed(reason, self._in_hand())

    def dump(self, reason: str) -> None:
        """Write what is known, now."""
        self.sink.dump(reason, self._in_hand())

    def close(self) -> None:
        """Write what is left. Waits for the disk, within limits."""
        self.sink.close(self._in_hand())

    def _in_hand(self) -> list[PendingRecord]:
        return [draft for cell in self.cells for draft in cell.in_hand()]
