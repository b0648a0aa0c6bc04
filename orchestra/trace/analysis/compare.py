"""Two runs side by side: for each actor the first delivery that differs, field by field."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from orchestra.actors.axes import AnyArray
from orchestra.trace.analysis.values import ValueDifference, value_difference
from orchestra.trace.format.records import Delivery, Digest, Incarnation, Kind
from orchestra.trace.reading.run_trace import RunTrace


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first delivery in which two recordings of one incarnation differ."""

    actor: str
    incarnation: int
    n: int
    """The activation of the first run, or of the second where the first has no more deliveries."""
    left: Delivery | None
    """None where the first run has no more deliveries."""
    right: Delivery | None
    differences: tuple[ValueDifference, ...]

    @property
    def delivery(self) -> Delivery:
        """The delivery of the first run that has one."""
        found = self.left or self.right
        assert found is not None
        return found


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing two runs."""

    equal: int
    """Deliveries before the first differences."""
    first_differences: tuple[FirstDifference, ...]
    """One for each incarnation that differs, earliest first by the Lamport clock."""
    only_left: tuple[str, ...]
    """Actors that only the first run has."""
    only_right: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ignored:
    """Patterns of what is not compared: `field`, `Type.field`, or `Type` for all messages of that type."""

    patterns: Sequence[str] = ()

    def message(self, delivery: Delivery) -> bool:
        """Return whether all messages of this type are ignored."""
        return self._fits(delivery.type.name)

    def field(self, delivery: Delivery, name: str) -> bool:
        """Return whether a field of this message is ignored."""
        return self._fits(name) or self._fits(f"{delivery.type.name}.{name}")

    def _fits(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)


def compare(left: RunTrace, right: RunTrace, *, actor: str = "*", ignored: Ignored | None = None) -> Comparison:
    """Compare the deliveries of two runs in order: types, senders and fields; neither times nor sizes.

    Args:
        left: one run.
        right: the other.
        actor: a pattern for the addresses of the actors to compare.
        ignored: messages and fields to leave out, such as measured durations.
    """
    ignored = ignored or Ignored()
    found = [_incarnations(trace, actor) for trace in (left, right)]
    equal = 0
    first_differences = []
    for key in sorted(found[0].keys() & found[1].keys()):
        count, first = _first_difference((left, right), (found[0][key], found[1][key]), ignored)
        equal += count
        if first is not None:
            first_differences.append(first)
    actors = [{address for address, _ in each} for each in found]
    return Comparison(
        equal,
        tuple(sorted(first_differences, key=lambda each: (each.delivery.clock, each.actor))),
        tuple(sorted(actors[0] - actors[1])),
        tuple(sorted(actors[1] - actors[0])),
    )


def _incarnations(trace: RunTrace, pattern: str) -> dict[tuple[str, int], Incarnation]:
    """The incarnations of matching actors, by address and by their count over all processes."""
    found: dict[tuple[str, int], Incarnation] = {}
    counts: dict[str, int] = {}
    for each in trace.incarnations():
        address = each.birth.actor
        if fnmatchcase(address, pattern):
            counts[address] = counts.get(address, -1) + 1
            found[address, counts[address]] = each
    return found


def _first_difference(
    traces: tuple[RunTrace, RunTrace], pair: tuple[Incarnation, Incarnation], ignored: Ignored
) -> tuple[int, FirstDifference | None]:
    """The number of equal deliveries, and the first one that differs."""
    equal = 0
    streams = [_deliveries(trace, each, ignored) for trace, each in zip(traces, pair, strict=True)]
    while True:
        left, right = (next(stream, None) for stream in streams)
        either = left or right
        if either is None:
            return equal, None
        if left is None or right is None:
            ends = ("has ended" if each is None else "goes on" for each in (left, right))
            differences = [ValueDifference("end", *ends)]
        else:
            differences = list(_differences(traces, left, right, ignored))
        if differences:
            actor = (either.actor, either.incarnation, either.n)
            return equal, FirstDifference(*actor, left, right, tuple(differences))
        equal += 1


def _deliveries(trace: RunTrace, incarnation: Incarnation, ignored: Ignored) -> Iterator[Delivery]:
    for delivery in trace.records_of(incarnation, Kind.DELIVERY, resolve=False):
        assert isinstance(delivery, Delivery)
        if not ignored.message(delivery):
            yield delivery


def _differences(
    traces: tuple[RunTrace, RunTrace], left: Delivery, right: Delivery, ignored: Ignored
) -> Iterator[ValueDifference]:
    """The differences of two deliveries: one for each field."""
    known = [("type", left.type.name, right.type.name), ("sender", left.id.sender, right.id.sender)]
    if not ignored.patterns:  # an ignored message has a number too, which shifts the later ones
        known.append(("number", str(left.id.serial), str(right.id.serial)))
    yield from (ValueDifference(what, one, other) for what, one, other in known if one != other)
    if left.type.name != right.type.name:
        return

    def find_array(digest: Digest) -> AnyArray | None:
        return next((array for trace in traces if (array := trace.array(digest.digest)) is not None), None)

    both = (left.fields or {}, right.fields or {})
    for name in {**both[0], **both[1]}:
        if not ignored.field(left, name):
            one, other = ({name: fields[name]} if name in fields else {} for fields in both)
            difference = value_difference(one, other, find_array=find_array)
            if difference is not None:
                yield difference
