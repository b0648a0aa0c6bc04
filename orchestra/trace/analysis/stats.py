"""Figures of a trace: how many, how large, how long they waited, how long handling took, how far a counter lags."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestra.errors import ValuesMissing
from orchestra.trace.format.records import Digest, Kind
from orchestra.trace.reading.index import TraceIndex
from orchestra.trace.reading.query import Query
from orchestra.trace.reading.run_trace import RunTrace

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Tally:
    """The deliveries of one type to one actor."""

    actor: str
    type: str
    count: int
    per_second: float
    """Over the time from the first to the last of the whole trace."""
    nbytes: int
    waited: tuple[float, ...]
    """Seconds in the mailbox: the percentiles 50, 90, 99."""
    handling: tuple[float, ...]
    """Seconds of handling, likewise; waiting for others included. Empty where none has ended."""
    failed: int


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a counter in the messages of one type from one sender is behind the highest that anybody had told."""

    sender: str
    type: str
    actor: str
    field: str
    count: int
    median: float
    worst: float
    last: float
    value: float
    """The last value told."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What one file has of a tally."""

    waited: NDArray[np.float64]
    nbytes: int
    handling: NDArray[np.float64]
    failed: int


def tallies(trace: RunTrace, query: Query) -> list[Tally]:
    """Return the figures of what matches `query`, the condition on fields left aside; most bytes first."""
    groups: dict[tuple[str, str], list[_Part]] = {}
    first, last = np.inf, -np.inf
    for recording in trace.recordings:
        for index in recording.indexes:
            rows = query.rows(trace, index)
            if not len(rows):
                continue
            entries = index.entries
            shift = index.file.header.wall - index.file.header.monotonic
            times = entries["time"]
            first, last = min(first, times[rows[0]] + shift), max(last, times[rows[-1]] + shift)
            keys = entries["actor"][rows].astype(np.uint64) << np.uint64(32) | entries["type"][rows]
            endings = _endings(index, rows)
            for key in np.unique(keys):
                chosen = keys == key
                own, ended = rows[chosen], endings[chosen]
                ended = ended[ended >= 0]
                part = _Part(
                    waited=entries["seconds"][own],
                    nbytes=int(entries["nbytes"][own].sum()),
                    handling=entries["seconds"][ended],
                    failed=int(entries["flag"][ended].sum()),
                )
                name = index.file.types[int(key) & 0xFFFFFFFF].name
                groups.setdefault((index.addresses[int(key) >> 32], name), []).append(part)
    seconds = max(last - first, 1e-9)
    made = [_tally(actor, name, parts, seconds) for (actor, name), parts in groups.items()]
    return sorted(made, key=lambda tally: (-tally.nbytes, tally.actor, tally.type))


def lags(trace: RunTrace, query: Query, fields: Sequence[str]) -> list[Lag]:
    """Follow a counter through the messages, in causal order, by the names that it has in them.

    The highest value told so far, by anybody, is what the others are compared with. Of an array counts its lowest.

    Raises:
        ValuesMissing: a field is an array of which only the digest was recorded.
    """
    highest = -np.inf
    found: dict[tuple[str, str, str, str], list[tuple[float, float]]] = {}
    for seen in query.deliveries(trace):
        told, values = seen.delivery, seen.values()
        for field in fields:
            value = values.get(field)
            if isinstance(value, Digest):
                raise ValuesMissing(f"{field} of {told.type.name}: its values were not recorded, its digest alone")
            if value is None or isinstance(value, bool | str) or not np.size(value):
                continue
            numbers = np.asarray(value)
            if not np.issubdtype(numbers.dtype, np.number):
                continue
            low, high = float(numbers.min()), float(numbers.max())
            highest = max(highest, high)
            key = (told.id.sender, told.type.name, told.actor, field)
            found.setdefault(key, []).append((highest - low, low))
    return [_lag(key, values) for key, values in sorted(found.items())]


def _tally(actor: str, name: str, parts: list[_Part], seconds: float) -> Tally:
    waited = np.concatenate([part.waited for part in parts])
    return Tally(
        actor=actor,
        type=name,
        count=len(waited),
        per_second=len(waited) / seconds,
        nbytes=sum(part.nbytes for part in parts),
        waited=_percentiles(waited),
        handling=_percentiles(np.concatenate([part.handling for part in parts])),
        failed=sum(part.failed for part in parts),
    )


def _endings(index: TraceIndex, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The row of the HANDLED that belongs to each of these deliveries, or -1 where its file has none."""
    handled = index.rows(Kind.HANDLED)
    if not len(handled):
        return np.full(len(rows), -1)
    entries = index.entries
    ended, begun = _activation(entries, handled), _activation(entries, rows)
    order = np.argsort(ended, kind="stable")
    places = order[np.minimum(np.searchsorted(ended, begun, sorter=order), len(order) - 1)]
    found: NDArray[np.int64] = np.where(ended[places] == begun, handled[places], -1)
    return found


def _activation(entries: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    actor = entries["actor"][rows].astype(np.uint64) << np.uint64(48)
    incarnation = entries["incarnation"][rows].astype(np.uint64) << np.uint64(32)
    made: NDArray[np.uint64] = actor | incarnation | entries["n"][rows]
    return made


def _percentiles(values: NDArray[Any]) -> tuple[float, ...]:
    return tuple(float(value) for value in np.percentile(values, PERCENTILES)) if len(values) else ()


def _lag(key: tuple[str, str, str, str], values: list[tuple[float, float]]) -> Lag:
    behind = [lag for lag, _ in values]
    sender, kind, actor, field = key
    return Lag(
        *(sender, kind, actor, field, len(values)), float(np.median(behind)), max(behind), behind[-1], values[-1][1]
    )
