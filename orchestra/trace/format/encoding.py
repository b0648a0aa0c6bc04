"""From what a recorder keeps to what is written. Nothing is encoded on the loop: whoever writes does it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from operator import itemgetter
from typing import Any

from orchestra.actors.codec import Encoder, values_of
from orchestra.actors.message import Message, Request
from orchestra.trace.format.effects import AnswerGiven, Asked, MessageType, Sent, TimerSet
from orchestra.trace.format.layout import Entry
from orchestra.trace.format.records import Kind

PendingRecord = tuple[Any, ...]
"""A record as it is kept in memory: its kind, whose it is, the Lamport clock, what it weighs in bytes, then its row.

The row is that of the record in the file (`docs/traces.md`), but for messages: each stands in it whole, in the place of
its type's number, and its values are not there yet; so do the classes of requests in the place of theirs. And but for
times: each is that of the node's clock. For a `LATE`, the time when its activation began is there too, last. All that
is in it must never change again.

What is recorded most often has one object as its draft, and does not repeat itself, so that little has to be made for a
message and little is there for the garbage collector to look at: a `HANDLED` is followed by incarnation, n, phase, when
it began, when it ended, effects and failure; and then, if its delivery was kept until then, by that one's clock, since
when it waited (0 for not known), sender, number, message, correlation, bytes, whether it is a timer.
"""

_DELIVERY_AT = 11
_clock = itemgetter(2)
_TELLS = frozenset({Sent.code, Asked.code, TimerSet.code})


def in_order(drafts: Iterable[PendingRecord]) -> list[PendingRecord]:
    """Return drafts in the order in which they were made, each delivery one by itself."""
    return sorted((each for draft in drafts for each in parts(draft)), key=_clock)


def parts(draft: PendingRecord) -> tuple[PendingRecord, ...]:
    """Return each record of a draft by itself, a delivery first."""
    if draft[0] is not Kind.HANDLED or len(draft) == _DELIVERY_AT:
        return (draft,)
    _, actor, _, _, incarnation, n, _, began, *_ = draft
    clock, queued, *told = draft[_DELIVERY_AT:]
    delivery = (Kind.DELIVERY, actor, clock, 0, actor, incarnation, n, clock, began, queued, *told)
    return delivery, draft[:_DELIVERY_AT]


@dataclass(frozen=True, slots=True)
class Filters:
    """Patterns with `*` and `?`. One with a slash names actors by address, any other names message types.

    An actor that is left out is not recorded at all. A type that is left out is recorded without its fields, so that
    counts, times and journeys stay whole.
    """

    include: Sequence[str] = ()
    """Where this names actors, only these are recorded; where it names types, only these keep their fields."""
    exclude: Sequence[str] = ()
    """What is left out in any case."""

    def records(self, actor: str) -> bool:
        """Whether the actor at this address is recorded."""
        return _passes(actor, _actors(self.include), _actors(self.exclude))

    def keeps(self, type_name: str) -> bool:
        """Whether the fields of this message type are recorded."""
        return _passes(type_name, _types(self.include), _types(self.exclude))


class RecordEncoder:
    """Turns drafts into entries, for one series of files. Used by one thread at a time.

    Args:
        filters: says of which types the fields are left out.
        types: message types that have a number already.
    """

    def __init__(self, filters: Filters | None = None, types: Mapping[int, MessageType] | None = None) -> None:
        self.types: dict[int, MessageType] = dict(types or {})
        """The message types met so far, by number."""
        self._filters = filters or Filters()
        self._encoder = Encoder()
        self._numbers: dict[type[Message], tuple[int, bool]] = {}

    def entry(self, draft: PendingRecord) -> Entry:
        """Return the entry of `draft`.

        Raises:
            TypeError, ValueError, OverflowError: something in it cannot be written down.
        """
        kind, actor, clock, _, *row = draft
        types: list[int] = []
        if kind is Kind.HANDLED:
            row = [actor, *row[:3], clock, *row[3:]]
        complete = _COMPLETIONS.get(kind)
        if complete is not None:
            complete(self, row, types)
        header, arrays = self._encoder.encode(row)
        nbytes = len(header)
        for array in arrays:
            nbytes += array.nbytes
        return Entry(kind, header, arrays, types, nbytes, actor, clock, row)

    # Inside

    def _type(self, kind: type[Message], types: list[int]) -> tuple[int, bool]:
        """Return the number of a message type, and whether its fields are recorded."""
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
        code, now, *told = effect
        if code in _TELLS:
            message = told[2]
            number, keep = self._type(type(message), types)
            told[2:3] = [number, values_of(message) if keep else None]
        elif code == AnswerGiven.code and not self._filters.keeps(told.pop().__name__):
            told[-1] = None
        return (code, now - began, *told)


_COMPLETIONS: dict[Kind, Callable[[RecordEncoder, list[Any], list[int]], None]] = {
    Kind.DELIVERY: RecordEncoder._complete_delivery,
    Kind.ANSWER: RecordEncoder._complete_answer,
    Kind.HANDLED: RecordEncoder._complete_handled,
    Kind.LATE: RecordEncoder._complete_late,
}


def _actors(patterns: Sequence[str]) -> list[str]:
    return [pattern for pattern in patterns if "/" in pattern]


def _types(patterns: Sequence[str]) -> list[str]:
    return [pattern for pattern in patterns if "/" not in pattern]


def _passes(name: str, include: list[str], exclude: list[str]) -> bool:
    if include and not any(fnmatchcase(name, pattern) for pattern in include):
        return False
    return not any(fnmatchcase(name, pattern) for pattern in exclude)
