"""Stories: the deliveries in which one thing was seen, in causal order, with the time spent at each stop.

The order is that of the Lamport clocks: a cause comes before its effect, whatever the wall clocks of the nodes say. A
`StoryKey` finds the deliveries of a thing; packages provide their keys as entry points.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from orchestra.trace.format.effects import Asked, MessageId, Sent, TimerSet
from orchestra.trace.format.records import Delivery, Handled, Kind
from orchestra.trace.reading.query import DeliveryRow, find_message
from orchestra.trace.reading.run_trace import RunTrace

ENTRY_POINT_GROUP = "orchestra.stories"
"""Entry points of story keys: the option `--NAME VALUE` of `orchestra trace story`, and the function behind it."""
MAX_STOPS = 200


class StoryKey(Protocol):
    """Finds the deliveries in which a thing was seen.

    The first line of the docstring is the help text of the option: the form of the value and the thing that it names.

    Raises:
        UsageError: the value has the wrong form.
        TraceError: the trace does not contain the thing.
    """

    __doc__: str | None

    def __call__(self, trace: RunTrace, value: str) -> Iterable[DeliveryRow]: ...


@dataclass(frozen=True, slots=True)
class StoryStop:
    """One delivery of a story."""

    row: DeliveryRow
    delivery: Delivery
    handled: Handled | None
    sent: tuple[Sent | Asked, ...]
    """The messages sent from here that are stops of the story too."""


def story_keys() -> dict[str, StoryKey]:
    """Return the keys of the installed packages, by name."""
    from importlib.metadata import entry_points  # takes longer to import than the rest of this package

    points = sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name)
    return {point.name: point.load() for point in points}


def story(rows: Iterable[DeliveryRow]) -> list[StoryStop]:
    """Return the given deliveries in causal order, each once, with the end of its activation."""
    unique = {(each.index.file.path, each.row): each for each in rows}
    ordered = sorted(unique.values(), key=lambda each: (each.clock, each.header.node))
    messages = {each.delivery.id for each in ordered}
    stops = []
    for each in ordered:
        handled = each.handled()
        sent = tuple(
            effect
            for effect in (() if handled is None else handled.effects)
            if isinstance(effect, Sent | Asked) and MessageId(each.delivery.actor, effect.number) in messages
        )
        stops.append(StoryStop(each, each.delivery, handled, sent))
    return stops


def around(trace: RunTrace, start: DeliveryRow, *, depth: int) -> list[DeliveryRow]:
    """Return `start`, its chain of causes, and its consequences up to `depth` steps; `MAX_STOPS` at most."""
    found = [start]
    while len(found) < MAX_STOPS and (cause := cause_of(trace, found[-1])) is not None:
        found.append(cause)
    front = [start]
    for _ in range(depth):
        front = [each for before in front for each in consequences_of(trace, before)]
        found += front[: MAX_STOPS - len(found)]
        if len(found) >= MAX_STOPS:
            break
    return found


def cause_of(trace: RunTrace, row: DeliveryRow) -> DeliveryRow | None:
    """Return the delivery whose handler sent this message, or None where that was not recorded."""
    message = row.delivery.id
    for recording, index in trace.indexes():
        for n, incarnation in index.sent_in(message.sender, message.number):
            rows = index.rows(Kind.DELIVERY, actor=message.sender, incarnation=incarnation, since=n, until=n + 1)
            return DeliveryRow(recording, index, int(rows[0])) if len(rows) else None
    return None


def consequences_of(trace: RunTrace, row: DeliveryRow) -> list[DeliveryRow]:
    """Return the deliveries of the messages that were sent while this one was handled."""
    handled = row.handled()
    found: list[DeliveryRow] = []
    for effect in () if handled is None else handled.effects:
        if isinstance(effect, Sent | Asked | TimerSet):
            found += find_message(trace, MessageId(row.delivery.actor, effect.number))
    return found
