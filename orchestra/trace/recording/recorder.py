"""The recorder of a node: it keeps the Lamport clock and passes records to a sink. It encodes and writes nothing."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from orchestra.clock import Clock
from orchestra.trace.format.effects import GENERATION_SHIFT
from orchestra.trace.format.encoding import Filters, PendingRecord

FLIGHT_BYTES = 16 << 20
"""Bytes that the flight recorder of a run's root keeps, by default."""
SMALL_FLIGHT_BYTES = 4 << 20
"""Bytes that those of other nodes keep. A host may have many, and what they keep occupies memory of the senders."""
SNAPSHOTS_PER_RING = 3
"""Snapshots of an actor while the ring of a flight recorder is filled once."""


class Sink(Protocol):
    """The destination of records: `Backlog` or `FlightRing`."""

    at_once: bool
    """True if a delivery is put before it is handled; otherwise the actor holds it until then."""
    digests_sent: bool
    """True if an array that is sent to another node is replaced by its digest at once: a trace holds only the digest.
    Otherwise the sink computes the digest soon."""
    total: int
    """Bytes put so far."""
    snapshot_every: float
    """Bytes between two snapshots of an actor."""

    def put(self, pending: PendingRecord) -> None: ...
    def put_snapshot(self, pending: PendingRecord) -> None: ...
    def dump(self, reason: str, in_hand: Iterable[PendingRecord] = (), *, failure: bool = False) -> None: ...
    def close(self, in_hand: Iterable[PendingRecord] = ()) -> None: ...


class NodeRecorder:
    """Shared by the recorders of one node's actors. Only the node's loop uses it.

    Args:
        sink: takes the records.
        generation: distinguishes successive processes of this node.
        clock: the node's clock.
        planned: addresses of the actors that the experiment plans on this node.
        filters: the actors and fields that are left out.
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
        """Start of the message numbers."""
        self.clock = clock
        self.planned = planned
        self.logical = 0
        """The Lamport clock."""
        self.sink = sink
        self.in_hand: set[Callable[[], Sequence[PendingRecord]]] = set()
        """Return the records that the recorder of a running actor holds and has not put."""
        self.filters = filters or Filters()

    def tick(self) -> int:
        """Advance the Lamport clock by one event; return its time."""
        self.logical += 1
        return self.logical

    def witness(self, clock: int) -> None:
        """Advance the Lamport clock to that of a message from another node."""
        if clock > self.logical:
            self.logical = clock

    def failed(self, reason: str) -> None:
        """Report the failure of an actor."""
        self.sink.dump(reason, self._in_hand(), failure=True)

    def dump(self, reason: str) -> None:
        """Write all records now."""
        self.sink.dump(reason, self._in_hand())

    def close(self) -> None:
        """Write the remaining records. Waits for the disk, up to a deadline."""
        self.sink.close(self._in_hand())

    def _in_hand(self) -> list[PendingRecord]:
        return [pending for held in self.in_hand for pending in held()]
