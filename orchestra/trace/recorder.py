"""The recorder of a node: it counts, keeps the Lamport clock, encodes, and hands entries on. It writes nothing."""

from collections.abc import Sequence
from typing import Any, Protocol

from orchestra.clock import Clock
from orchestra.codec import Encoder
from orchestra.log import get as get_log
from orchestra.message import Message, Request
from orchestra.trace.filters import Filters
from orchestra.trace.layout import Entry
from orchestra.trace.naming import GENERATION_SHIFT, MessageType
from orchestra.trace.records import Kind


class Sink(Protocol):
    """Where entries go: `Backlog` or `FlightRing`."""

    def put(self, entry: Entry) -> None: ...
    def failed(self, reason: str) -> None: ...
    def dump(self, reason: str) -> None: ...
    def close(self) -> None: ...


class Recorder:
    """What the cells of one node record with. Used by the node's loop alone.

    Args:
        sink: takes the entries.
        types: is told the message types met, by number; whoever writes reads it.
        generation: tells the processes apart that are this node, one after the other.
        clock: the node's.
        planned: the addresses of the actors that the experiment plans.
        filters: what is left out.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        types: dict[int, MessageType],
        generation: int,
        clock: Clock,
        planned: frozenset[str] = frozenset(),
        filters: Filters | None = None,
    ) -> None:
        self._types = types
        self.base = generation << GENERATION_SHIFT
        """What a message's number is counted from."""
        self.clock = clock
        self.planned = planned
        self.logical = 0
        """The Lamport clock."""
        self._sink = sink
        self._filters = filters or Filters()
        self._encoder = Encoder()
        self._numbers: dict[type[Message], tuple[int, bool]] = {}
        self._left_out: set[str] = set()
        self._log = get_log(actor="trace")

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

    def type_of(self, kind: type[Message]) -> tuple[int, bool]:
        """Return the number of a message type, and whether its fields are recorded."""
        found = self._numbers.get(kind)
        if found is None:
            number = len(self._numbers) + 1
            wire = kind.wire
            self._types[number] = MessageType(wire.tag, wire.fingerprint, wire.fields, issubclass(kind, Request))
            found = self._numbers[kind] = (number, self._filters.keeps(kind.__name__))
        return found

    def put(self, kind: Kind, actor: str, clock: int, row: list[Any], types: Sequence[int] = ()) -> None:
        """Record `row`. What cannot be encoded is left out, and said once for each actor."""
        try:
            header, arrays = self._encoder.encode(row)
        except (TypeError, ValueError, OverflowError) as error:
            if actor not in self._left_out:
                self._left_out.add(actor)
                self._log.warning("cannot be recorded", of=actor, record=kind.name, reason=str(error))
            return
        nbytes = len(header)
        for array in arrays:
            nbytes += array.nbytes
        self._sink.put(Entry(kind, header, arrays, types, nbytes, actor, clock))

    def encodes(self, value: Any) -> bool:
        """Whether `value` can be written down."""
        try:
            self._encoder.encode(value)
        except (TypeError, ValueError, OverflowError):
            return False
        return True

    def failed(self, reason: str) -> None:
        """An actor failed."""
        self._sink.failed(reason)

    def dump(self, reason: str) -> None:
        """Write what is known, now."""
        self._sink.dump(reason)

    def close(self) -> None:
        """Write what is left. Waits for the disk, within limits."""
        self._sink.close()
