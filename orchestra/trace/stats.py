"""Figures of a trace: how many, how large, how long they waited, how long handling took, how far a counter lags."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestra.errors import ValuesMissing
from orchestra.trace.index import TraceIndex
from orchestra.trace.query import Query
from orchestra.trace.records import Digest, Kind
from orchestra.trace.run_trace import RunTrace

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


def tallies(trace: RunTrace, query: Query) -> list[Tally]:
    """Return the figures of what matches `query`, the condition on fields left aside; most bytes first."""
    groups: dict[tuple[str, str], list[tuple[TraceIndex, NDArray[np.int64]]]] = {}
    first, last = np.inf, -np.inf
    for recording in trace.recordings:
        for index in recording.indexes:
            rows = query.rows(trace, index)
            if not len(rows):
                continue
            entries = index.entries[rows]
            shift = index.file.header.wall - index.file.header.monotonic
            first, last = min(first, entries["time"][0] + shift), max(last, entries["time"][-1] + shift)
            keys = entries["actor"].astype(np.uint64) << np.uint64(32) | entries["type"]
            for key in np.unique(keys):
                actor = index.addresses[int(key) >> 32]
                name = index.file.types[int(key) & 0xFFFFFFFF].name
                groups.setdefault((actor, name), []).append((index, rows[keys == key]))
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


def _tally(actor: str, name: str, parts: list[tuple[TraceIndex, NDArray[np.int64]]], seconds: float) -> Tally:
    waited = np.concatenate([index.entries["seconds"][rows] for index, rows in parts])
    nbytes = sum(int(index.entries["nbytes"][rows].sum()) for index, rows in parts)
    endings = list(_endings(parts))
    handling = np.concatenate([ending["seconds"] for ending in endings])
    return Tally(
        actor=actor,
        type=name,
        count=len(waited),
        per_second=len(waited) / seconds,
        nbytes=nbytes,
        waited=_percentiles(waited),
        handling=_percentiles(handling),
        failed=sum(int(ending["flag"].sum()) for ending in endings),
    )


def _endings(parts: list[tuple[TraceIndex, NDArray[np.int64]]]) -> Iterator[NDArray[Any]]:
    """The entries of HANDLED that belong to the deliveries in `parts`."""
    for index, rows in parts:
        entries = index.entries
        handled = entries[entries["kind"] == Kind.HANDLED]
        yield handled[np.isin(_activation(handled), _activation(entries[rows]))]


def _activation(entries: NDArray[Any]) -> NDArray[np.uint64]:
    actor = entries["actor"].astype(np.uint64) << np.uint64(48)
    incarnation = entries["incarnation"].astype(np.uint64) << np.uint64(32)
    made: NDArray[np.uint64] = actor | incarnation | entries["n"]
    return made


def _percentiles(values: NDArray[Any]) -> tuple[float, ...]:
    return tuple(float(value) for value in np.percentile(values, PERCENTILES)) if len(values) else ()


def _lag(key: tuple[str, str, str, str], values: list[tuple[float, float]]) -> Lag:
    behind = [lag for lag, _ in values]
    sender, kind, actor, field = key
    return Lag(
        *(sender, kind, actor, field, len(values)), float(np.median(behind)), max(behind), behind[-1], values[-1][1]
    )
