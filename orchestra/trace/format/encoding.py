"""Encoding of recorded data. It runs in the thread that writes, never on the event loop."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from operator import itemgetter
from typing import Any

from orchestra.actors.codec import Encoder, values_of
from orchestra.actors.message import Message, Request
from orchestra.trace.format.effects import MESSAGE_EFFECTS, AnswerGiven, MessageType
from orchestra.trace.format.layout import Entry
from orchestra.trace.format.records import Digest, Kind

PendingRecord = tuple[Any, ...]
"""A record in memory: kind, actor, Lamport clock, bytes, and its row. Nothing in it may change later.

The row has the fields of the record in the file (`docs/traces.md`), with three differences. A message stands as an
object in the place of its type's number, without its values; the class of a request stands in the place of that
number. A message that was sent may have a `Digest` in the place of an array. A time is a time of the node's clock. A
`LATE` row ends with the time at which its activation began.

The commonest records share one object without repeated fields, which keeps allocation and garbage collection small. A
`HANDLED` has: incarnation, n, phase, begin, end, effects, failure. The delivery follows where it was not recorded
before: its clock, the time at which it was queued (0 for unknown), sender, number, message, correlation, bytes, and
whether a timer sent it.
"""

_DELIVERY_AT = 11
_clock = itemgetter(2)
_MESSAGE_CODES = frozenset(kind.code for kind in MESSAGE_EFFECTS)


def in_order(pending: Iterable[PendingRecord]) -> list[PendingRecord]:
    """Return pending records in the order of their clocks, each delivery separate."""
    return sorted((each for record in pending for each in separated(record)), key=_clock)


def count_of(pending: PendingRecord) -> int:
    """Return the number of records in a pending record: 2 where it includes a delivery."""
    return 1 if pending[0] is not Kind.HANDLED or len(pending) == _DELIVERY_AT else 2


def separated(pending: PendingRecord) -> tuple[PendingRecord, ...]:
    """Return the records in a pending record: a delivery, if it has one, and itself without that."""
    if count_of(pending) == 1:
        return (pending,)
    _, actor, _, _, incarnation, n, _, began, *_ = pending
    clock, queued, *message = pending[_DELIVERY_AT:]
    delivery = (Kind.DELIVERY, actor, clock, 0, actor, incarnation, n, clock, began, queued, *message)
    return delivery, pending[:_DELIVERY_AT]


@dataclass(frozen=True, slots=True)
class Filters:
    """Patterns with `*` and `?` that select what is recorded.

    A pattern with a slash is matched with actor addresses, any other with message types. An excluded actor is not
    recorded at all. An excluded type is recorded without its fields, so that counts, times and stories stay complete.
    """

    include: Sequence[str] = ()
    """If any pattern is for actors, only matching actors are recorded; if any is for types, only these keep fields."""
    exclude: Sequence[str] = ()
    """Overrides `include`."""

    def records(self, actor: str) -> bool:
        """Return whether the actor at this address is recorded."""
        return self._passes(actor, actors=True)

    def keeps(self, type_name: str) -> bool:
        """Return whether the fields of this message type are recorded."""
        return self._passes(type_name, actors=False)

    def _passes(self, name: str, *, actors: bool) -> bool:
        include, exclude = (
            [pattern for pattern in patterns if ("/" in pattern) is actors] for patterns in (self.include, self.exclude)
        )
        included = not include or any(fnmatchcase(name, pattern) for pattern in include)
        return included and not any(fnmatchcase(name, pattern) for pattern in exclude)


class RecordEncoder:
    """Turns pending records into entries for one series of files. One thread uses it at a time.

    Args:
        filters: the types whose fields are left out.
        types: message types that have a number already.
    """

    def __init__(self, filters: Filters | None = None, types: Mapping[int, MessageType] | None = None) -> None:
        self.types: dict[int, MessageType] = dict(types or {})
        """The message types so far, by number."""
        self._filters = filters or Filters()
        self._encoder = Encoder(Digest)
        self._numbers: dict[type[Message], tuple[int, bool]] = {}

    def entry(self, pending: PendingRecord) -> Entry:
        """Return the entry of a pending record.

        Raises:
            TypeError, ValueError, OverflowError: a value in it cannot be encoded.
        """
        kind, actor, clock, _, *row = pending
        types: list[int] = []
        pieces = row[8].array_pieces() if kind is Kind.DELIVERY else ()
        if kind is Kind.HANDLED:
            row = [actor, *row[:3], clock, *row[3:]]
        complete = _COMPLETIONS.get(kind)
        if complete is not None:
            complete(self, row, types)
        header, arrays = self._encoder.encode(row)
        nbytes = len(header)
        for array in arrays:
            nbytes += array.nbytes
        counts = {id(array): rows for array, rows in pieces}
        return Entry(kind, header, arrays, types, nbytes, actor, clock, row, counts)

    # Inside

    def _type(self, kind: type[Message], types: list[int]) -> tuple[int, bool]:
        """Return the number of a message type, noted in `types`, and whether its fields are recorded."""
        found = self._numbers.get(kind)
        if found is None:
            number = len(self.types) + 1
            wire = kind.wire
            self.types[number] = MessageType(wire.tag, wire.fingerprint, wire.fields, issubclass(kind, Request))
            found = self._numbers[kind] = (number, self._filters.keeps(kind.__name__))
        types.append(found[0])
        return found

    def _complete_delivery(self, row: list[Any], types: list[int]) -> None:
        message = row[8]
        row[5] = row[4] - row[5] if row[5] else 0.0
        row[8], keep = self._type(type(message), types)
        row.append(values_of(message) if keep else None)

    def _complete_answer(self, row: list[Any], types: list[int]) -> None:
        row[6], keep = self._type(row[6], types)
        if not keep:
            row[7] = None

    def _complete_handled(self, row: list[Any], types: list[int]) -> None:
        began = row[5]
        row[6] -= began
        row[7] = [self._effect(effect, began, types) for effect in row[7]]

    def _complete_late(self, row: list[Any], types: list[int]) -> None:
        began = row.pop()
        row[5] = [self._effect(effect, began, types) for effect in row[5]]

    def _effect(self, effect: tuple[Any, ...], began: float, types: list[int]) -> tuple[Any, ...]:
        code, now, *fields = effect
        if code in _MESSAGE_CODES:
            message = fields[2]
            number, keep = self._type(type(message), types)
            fields[2:3] = [number, values_of(message) if keep else None]
        elif code == AnswerGiven.code and not self._filters.keeps(fields.pop().__name__):
            fields[-1] = None
        return (code, now - began, *fields)


_COMPLETIONS: dict[Kind, Callable[[RecordEncoder, list[Any], list[int]], None]] = {
    Kind.DELIVERY: RecordEncoder._complete_delivery,
    Kind.ANSWER: RecordEncoder._complete_answer,
    Kind.HANDLED: RecordEncoder._complete_handled,
    Kind.LATE: RecordEncoder._complete_late,
}
