"""Two runs of one seed side by side: the first delivery where they part, and what differs in it, field by field."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from orchestra.actors.ref import Ref
from orchestra.trace.analysis.values import value_text
from orchestra.trace.format.layout import digest_of
from orchestra.trace.format.records import Delivery, Digest, Incarnation, Kind
from orchestra.trace.reading.run_trace import RunTrace


@dataclass(frozen=True, slots=True)
class Difference:
    """What is not the same in two deliveries."""

    what: str
    """A field, or what else is known of a message."""
    left: str
    right: str


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two lives of one actor begin to differ. A delivery is None where its run has no more."""

    actor: str
    incarnation: int
    n: int
    left: Delivery | None
    right: Delivery | None
    differences: tuple[Difference, ...]

    @property
    def clock(self) -> int:
        """When, by the Lamport clock of the first run that has it."""
        told = self.left or self.right
        return 0 if told is None else told.clock


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of comparing two runs."""

    compared: int
    """Deliveries that are the same in both."""
    partings: tuple[Parting, ...]
    """For each actor that differs, where; the earliest first."""
    only_left: tuple[str, ...]
    """Actors that only the first run has."""
    only_right: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ignored:
    """What is not compared: patterns for `field`, `Type.field`, or `Type`, whose messages are left out altogether."""

    patterns: Sequence[str] = ()

    def message(self, told: Delivery) -> bool:
        """Whether messages of this type are left out."""
        return self._fits(told.type.name)

    def field(self, told: Delivery, name: str) -> bool:
        """Whether this field of a message is not compared."""
        return self._fits(name) or self._fits(f"{told.type.name}.{name}")

    def _fits(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)


def compare(left: RunTrace, right: RunTrace, *, actor: str = "*", ignored: Ignored | None = None) -> Comparison:
    """Compare what the actors of two runs were told: types, senders and fields, not times.

    Args:
        left: one run.
        right: the other.
        actor: a pattern for the addresses of those that are compared.
        ignored: what is left aside, as the time that a computation took, which no two runs have in common.
    """
    ignored = ignored or Ignored()
    lives: tuple[dict[tuple[str, int], Incarnation], dict[tuple[str, int], Incarnation]] = ({}, {})
    for trace, found in zip((left, right), lives, strict=True):
        counts: dict[str, int] = {}
        for life in trace.incarnations():
            if fnmatchcase(life.birth.actor, actor):
                number = counts[life.birth.actor] = counts.get(life.birth.actor, -1) + 1
                found[life.birth.actor, number] = life
    partings = []
    compared = 0
    for key in sorted(lives[0].keys() & lives[1].keys()):
        same, parting = _compare(left, lives[0][key], right, lives[1][key], ignored)
        compared += same
        if parting is not None:
            partings.append(parting)
    actors = [{actor for actor, _ in found} for found in lives]
    return Comparison(
        compared,
        tuple(sorted(partings, key=lambda parting: (parting.clock, parting.actor))),
        tuple(sorted(actors[0] - actors[1])),
        tuple(sorted(actors[1] - actors[0])),
    )


def differences(left: Delivery, right: Delivery, ignored: Ignored | None = None) -> list[Difference]:
    """Return what is not the same in two deliveries, times and sizes left aside."""
    ignored = ignored or Ignored()
    known = [("type", left.type.name, right.type.name), ("sender", left.id.sender, right.id.sender)]
    if not ignored.patterns:  # what is left out was counted by its sender
        known.append(("number", str(left.id.serial), str(right.id.serial)))
    found = [Difference(what, one, other) for what, one, other in known if one != other]
    if left.type.name == right.type.name:
        fields = fields_differences(left.fields or {}, right.fields or {})
        found += [each for each in fields if not ignored.field(left, each.what)]
    return found


def fields_differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the fields that are not the same, with both values; of an array the first element that differs."""
    for name in [*left, *(name for name in right if name not in left)]:
        if name not in left or name not in right:
            yield Difference(
                name,
                value_text(left[name]) if name in left else "(no such field)",
                value_text(right[name]) if name in right else "(no such field)",
            )
        elif not _same(left[name], right[name]):
            yield Difference(name, *_texts(left[name], right[name]))


def _compare(
    left: RunTrace, one: Incarnation, right: RunTrace, other: Incarnation, ignored: Ignored
) -> tuple[int, Parting | None]:
    same = 0
    pairs = [_deliveries(left, one, ignored), _deliveries(right, other, ignored)]
    while True:
        mine, theirs = (next(pair, None) for pair in pairs)
        if mine is None and theirs is None:
            return same, None
        told = mine or theirs
        assert told is not None
        if mine is None or theirs is None:
            where = Difference("end", *("goes on" if each else "has ended" for each in (mine, theirs)))
            return same, Parting(told.actor, told.incarnation, told.n, mine, theirs, (where,))
        if found := differences(mine, theirs, ignored):
            return same, Parting(told.actor, told.incarnation, told.n, mine, theirs, tuple(found))
        same += 1


def _deliveries(trace: RunTrace, life: Incarnation, ignored: Ignored) -> Iterator[Delivery]:
    for record in trace.recording(life).records_of(life.birth.actor, Kind.DELIVERY):
        assert isinstance(record, Delivery)
        if record.incarnation == life.birth.incarnation and not ignored.message(record):
            yield record


def _same(left: Any, right: Any) -> bool:
    match left, right:
        case (np.ndarray() | Digest(), np.ndarray() | Digest()):
            return _array_key(left) == _array_key(right)
        case Ref(), Ref():
            return left == right
        case Mapping(), Mapping():
            return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
        case list() | tuple(), list() | tuple():
            return len(left) == len(right) and all(map(_same, left, right))
        case float(), float():
            return left == right or (left != left and right != right)
    return type(left) is type(right) and bool(left == right)


def _array_key(array: Any) -> tuple[Any, ...]:
    digest = array.digest if isinstance(array, Digest) else digest_of(np.ascontiguousarray(array))
    return (array.dtype, tuple(array.shape), digest)


def _texts(left: Any, right: Any) -> tuple[str, str]:
    arrays = isinstance(left, np.ndarray) and isinstance(right, np.ndarray)
    if not arrays or left.shape != right.shape or left.dtype != right.dtype or left.size == 0:
        return value_text(left), value_text(right)
    unequal = ~((left == right) | ((left != left) & (right != right)))
    if not unequal.any():
        return f"{value_text(left)} (equal numbers, other bits)", value_text(right)
    place = tuple(int(axis[0]) for axis in np.nonzero(unequal))
    where = f"[{', '.join(map(str, place))}]"
    many = f"{int(unequal.sum()):,} of {left.size:,} elements differ, first at {where}: "
    return many + repr(left[place].item()), repr(right[place].item())
