"""The story of a thing: the deliveries in which it was seen, in causal order, with the time it took at each stop.

The order is that of the Lamport clocks: whatever could have caused a delivery comes before it, whatever the clocks on
the walls of the nodes say. What a thing is, a word says (`Word`): packages above provide them as entry points.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol

import numpy as np

from orchestra.errors import TraceError, UsageError
from orchestra.trace.format.effects import Asked, MessageId, Sent, TimerSet
from orchestra.trace.format.records import Delivery, Handled, Kind
from orchestra.trace.reading.index import TraceIndex
from orchestra.trace.reading.query import Seen, find_message
from orchestra.trace.reading.run_trace import Recording, RunTrace

WORDS = "orchestra.stories"
"""The entry points that add words: `--NAME VALUE` of `orchestra trace story`, and what finds the thing."""
MOST = 200


class Word(Protocol):
    """Finds where a thing was seen; its docstring's first line says what it is, and how a value is written.

    Raises:
        UsageError: the value cannot be understood.
        TraceError: there is no such thing in the trace.
    """

    __doc__: str | None

    def __call__(self, trace: RunTrace, value: str) -> Iterable[Seen]: ...


@dataclass(frozen=True, slots=True)
class Stop:
    """One stop of a journey."""

    seen: Seen
    delivery: Delivery
    handled: Handled | None
    sent: tuple[Sent | Asked, ...]
    """What of the journey's next stops was sent from here."""


def words() -> dict[str, Word]:
    """Return the words that the installed packages provide, by name."""
    return {point.name: point.load() for point in sorted(entry_points(group=WORDS), key=lambda point: point.name)}


def story(seen: Iterable[Seen]) -> list[Stop]:
    """Put the deliveries in `seen` into causal order, each once, with what came of them."""
    unique = {(each.index.file.path, each.row): each for each in seen}
    ordered = sorted(unique.values(), key=lambda each: (each.clock, each.header.node))
    on_the_way = {each.delivery.id for each in ordered}
    stops = []
    for each in ordered:
        handled = each.handled()
        effects = () if handled is None else handled.effects
        sent = tuple(
            effect
            for effect in effects
            if isinstance(effect, Sent | Asked) and MessageId(each.delivery.actor, effect.number) in on_the_way
        )
        stops.append(Stop(each, each.delivery, handled, sent))
    return stops


def around(trace: RunTrace, start: Seen, *, depth: int) -> list[Seen]:
    """Return `start`, all that led to it, and what followed from it in at most `depth` steps; `MOST` at most."""
    found = [start]
    cause = cause_of(trace, start)
    while cause is not None and len(found) < MOST:
        found.append(cause)
        cause = cause_of(trace, cause)
    front = [start]
    for _ in range(depth):
        front = [each for before in front for each in consequences_of(trace, before)]
        found += front[: MOST - len(found)]
        if len(found) >= MOST:
            break
    return found


def cause_of(trace: RunTrace, seen: Seen) -> Seen | None:
    """Return the delivery in whose handling this message was sent, if that was recorded."""
    message = seen.delivery.id
    for recording, index in _indexes(trace):
        sender = index.address(message.sender)
        if sender is None:
            continue
        sends = index.sends
        for place in np.flatnonzero((sends["number"] == message.number) & (sends["actor"] == sender)):
            return _delivery_before(recording, index, int(sends["row"][place]))
    return None


def consequences_of(trace: RunTrace, seen: Seen) -> list[Seen]:
    """Return the deliveries of what was sent while this one was handled."""
    handled = seen.handled()
    found: list[Seen] = []
    for effect in () if handled is None else handled.effects:
        if isinstance(effect, Sent | Asked | TimerSet):
            found += find_message(trace, MessageId(seen.delivery.actor, effect.number))
    return found


def refused_word(value: str, form: str) -> UsageError:
    """Return the error of a word whose value cannot be understood."""
    return UsageError(f"{value!r} cannot be understood; it is written {form}")


def nothing_found(trace: RunTrace, what: str) -> TraceError:
    """Return the error of a thing that is not in the trace."""
    return TraceError(f"{trace.path}: nothing was recorded of {what}")


def _indexes(trace: RunTrace) -> Iterator[tuple[Recording, TraceIndex]]:
    for recording in trace.recordings:
        for index in recording.indexes:
            yield recording, index


def _delivery_before(recording: Recording, index: TraceIndex, row: int) -> Seen | None:
    """The delivery that the HANDLED or LATE record at `row` belongs to."""
    entries = index.entries
    mine = entries[row]
    same = (entries["actor"] == mine["actor"]) & (entries["n"] == mine["n"]) & (entries["kind"] == Kind.DELIVERY)
    rows = np.flatnonzero(same & (entries["incarnation"] == mine["incarnation"]))
    return Seen(recording, index, int(rows[0])) if len(rows) else None
