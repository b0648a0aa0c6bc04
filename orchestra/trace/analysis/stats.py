"""Statistics of a trace: counts, sizes, waiting and handling times, and the lag of a counter."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestra.errors import ValuesMissing
from orchestra.trace.format.records import Digest
from orchestra.trace.reading.query import Query
from orchestra.trace.reading.run_trace import RunTrace

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class DeliveryStats:
    """Statistics of the deliveries of one type to one actor."""

    actor: str
    type: str
    count: int
    per_second: float
    """Over the time between the first and the last delivery that match the query."""
    nbytes: int
    waited: tuple[float, ...]
    """Seconds in the mailbox: the percentiles 50, 90, 99."""
    handling: tuple[float, ...]
    """Seconds of handling, including waiting for others: the same percentiles. Empty where no activation ended."""
    failed: int
    """Activations that raised."""


@dataclass(frozen=True, slots=True)
class Lag:
    """Distance of a counter, in the messages of one type from one sender to one actor, to the highest value so far."""

    sender: str
    type: str
    actor: str
    field: str
    count: int
    median: float
    worst: float
    last: float
    value: float
    """The last value of the counter."""


_Part = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]
"""Of one group in one file: seconds waited and sizes of its deliveries, seconds and failure flags of their ends."""


def delivery_stats(trace: RunTrace, query: Query) -> list[DeliveryStats]:
    """Return the statistics of the deliveries that match `query`, without its condition on fields; most bytes first."""
    groups: dict[tuple[str, str], list[_Part]] = {}
    first, last = np.inf, -np.inf
    for _, index in trace.indexes():
        rows = query.rows(trace, index)
        if not len(rows):
            continue
        entries = index.entries
        times = entries["time"][rows[[0, -1]]] + trace.elapsed(index.file.header, 0.0)
        first, last = min(first, times[0]), max(last, times[1])
        keys = entries["actor"][rows].astype(np.uint64) << np.uint64(32) | entries["type"][rows]
        endings = index.ends(rows)
        for key in np.unique(keys):
            chosen = keys == key
            own, ended = rows[chosen], endings[chosen]
            ended = ended[ended >= 0]
            part = (entries["seconds"][own], entries["nbytes"][own], entries["seconds"][ended], entries["flag"][ended])
            name = index.file.types[int(key) & 0xFFFFFFFF].name
            groups.setdefault((index.addresses[int(key) >> 32], name), []).append(part)
    seconds = max(last - first, 1e-9)
    made = [_joined(*key, parts, seconds) for key, parts in groups.items()]
    return sorted(made, key=lambda each: (-each.nbytes, each.actor, each.type))


def lags(trace: RunTrace, query: Query, fields: Sequence[str]) -> list[Lag]:
    """Return how far a counter lags in the messages that match `query`, in causal order.

    Every value is compared with the highest value so far of any sender. The value of an array is its lowest element.

    Args:
        trace: the trace to search.
        query: selects the messages.
        fields: the names of the counter; messages may name it differently.

    Raises:
        ValuesMissing: a field is an array that was recorded by digest only.
    """
    highest = -np.inf
    found: dict[tuple[str, str, str, str], list[tuple[float, float]]] = {}
    for row in query.deliveries(trace):
        delivery, values = row.delivery, row.values()
        for field in fields:
            value = values.get(field)
            if isinstance(value, Digest):
                raise ValuesMissing(f"{field} of {delivery.type.name}: only the digest of the array was recorded")
            if value is None or isinstance(value, bool | str) or not np.size(value):
                continue
            numbers = np.asarray(value)
            if not np.issubdtype(numbers.dtype, np.number):
                continue
            low, high = float(numbers.min()), float(numbers.max())
            highest = max(highest, high)
            key = (delivery.id.sender, delivery.type.name, delivery.actor, field)
            found.setdefault(key, []).append((highest - low, low))
    return [_lag(key, values) for key, values in sorted(found.items())]


def _joined(actor: str, name: str, parts: list[_Part], seconds: float) -> DeliveryStats:
    waited, sizes, handling, flags = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    rates = (len(waited), len(waited) / seconds, int(sizes.sum()))
    return DeliveryStats(actor, name, *rates, _percentiles(waited), _percentiles(handling), int(flags.sum()))


def _percentiles(values: NDArray[Any]) -> tuple[float, ...]:
    return tuple(float(value) for value in np.percentile(values, PERCENTILES)) if len(values) else ()


def _lag(key: tuple[str, str, str, str], values: list[tuple[float, float]]) -> Lag:
    behind = [lag for lag, _ in values]
    return Lag(*key, len(values), float(np.median(behind)), max(behind), behind[-1], values[-1][1])
