"""Queries: the deliveries that match patterns, times, sizes and a condition on their fields."""

import heapq
import time
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestra.actors.axes import AnyArray
from orchestra.actors.ref import Ref
from orchestra.actors.sparse_array import opened
from orchestra.trace.format.effects import MessageId
from orchestra.trace.format.records import Delivery, Digest, Handled, Header, Kind
from orchestra.trace.reading.index import TraceIndex
from orchestra.trace.reading.run_trace import Recording, RunTrace, trace_files
from orchestra.trace.reading.where import PROPERTIES, Where

POLL_S = 0.2
"""Seconds between two looks at a growing trace."""
CHUNK = 1024
"""Rows that are searched at once for the end of an activation."""


@dataclass(eq=False)
class DeliveryRow:
    """A delivery that a query found. Its record is read from the file when it is needed."""

    recording: Recording
    index: TraceIndex
    row: int

    @property
    def header(self) -> Header:
        """The header of its recording."""
        return self.recording.header

    @property
    def clock(self) -> int:
        """Its Lamport clock."""
        return int(self.index.entries["clock"][self.row])

    @cached_property
    def delivery(self) -> Delivery:
        """The record, with a `Digest` for each large array."""
        return self.with_arrays(resolve=False)

    def with_arrays(self, *, resolve: bool = True) -> Delivery:
        """Return the record with the arrays that were recorded by value; without `resolve`, as `delivery`.

        Sparse arrays are arrays as all others then.
        """
        record = self.index.record(self.row, resolve=resolve)
        assert isinstance(record, Delivery)
        return replace(record, fields=opened(record.fields)) if resolve else record

    def handled(self) -> Handled | None:
        """Return the end of the activation, or None where it was not recorded."""
        entries = self.index.entries
        actor = entries["actor"][self.row]
        for begin in range(self.row + 1, len(entries), CHUNK):
            chunk = entries[begin : begin + CHUNK]
            kinds = chunk["kind"]
            turns = (kinds == Kind.HANDLED) | (kinds == Kind.DELIVERY) | (kinds == Kind.BIRTH)
            found = np.flatnonzero(turns & (chunk["actor"] == actor))
            if len(found):
                record = self.index.record(begin + int(found[0]), resolve=False)
                return record if isinstance(record, Handled) and record.n == self.delivery.n else None
        return None

    def values(self) -> "ConditionValues":
        """Return the values that a condition can use."""
        return condition_values(self.delivery, self.index.file.blob)


class ConditionValues(UserDict[str, Any]):
    """Values of a delivery by name. An array is read when it is used."""

    def __init__(self, values: dict[str, Any], blob: Callable[[bytes], AnyArray | None]) -> None:
        super().__init__(values)
        self._blob = blob

    def __getitem__(self, name: str) -> Any:
        value = self.data[name]
        if isinstance(value, Digest) and (found := self._blob(value.digest)) is not None:
            value = self.data[name] = found.view(value.dtype).reshape(value.shape)
        return value.address if isinstance(value, Ref) else value


def condition_values(delivery: Delivery, blob: Callable[[bytes], AnyArray | None]) -> ConditionValues:
    """Return the values that a condition can use: a message's fields, and the properties of its delivery.

    Args:
        delivery: the record.
        blob: returns the bytes of an array by digest, or None.
    """
    known = {name: value_of(delivery) for name, value_of in PROPERTIES.items()}
    return ConditionValues({**known, **(delivery.fields or {})}, blob)


@dataclass(frozen=True, slots=True)
class Query:
    """Selects deliveries. Patterns have `*` and `?`; a type matches by its class name or its full name."""

    actor: str = "*"
    """The recipient."""
    sender: str = "*"
    type: str = "*"
    since: float | None = None
    """Seconds since the run began."""
    until: float | None = None
    min_bytes: int = 0
    max_bytes: int | None = None
    where: Where | None = None

    def deliveries(
        self, trace: RunTrace, *, newest_first: bool = False, after: Mapping[Path, int] | None = None
    ) -> Iterator[DeliveryRow]:
        """Yield the deliveries that match, in causal order: a cause comes before its effect.

        Args:
            trace: the trace to search.
            newest_first: reverse the order.
            after: for each file the row to begin with.

        Raises:
            ValuesMissing: the condition uses an array that was recorded by digest only.
        """
        streams = [
            self._found(trace, recording, index, newest_first, after or {}) for recording, index in trace.indexes()
        ]
        sign = -1 if newest_first else 1
        for found in heapq.merge(*streams, key=lambda each: (sign * each.clock, each.header.node)):
            if self.where is None or self.where(found.values()):
                yield found

    def rows(self, trace: RunTrace, index: TraceIndex) -> NDArray[np.int64]:
        """Return the rows of `index` that match, without the condition on fields."""
        entries = index.entries
        chosen = entries["kind"] == Kind.DELIVERY
        if self.actor != "*":
            chosen &= np.isin(entries["actor"], _matching(index.addresses, self.actor))
        if self.sender != "*":
            chosen &= np.isin(entries["sender"], _matching(index.addresses, self.sender))
        if self.type != "*":
            types = [
                number
                for number, kind in index.file.types.items()
                if fnmatchcase(kind.name, self.type) or fnmatchcase(kind.tag, self.type)
            ]
            chosen &= np.isin(entries["type"], types)
        if self.since is not None or self.until is not None:
            elapsed = entries["time"] + trace.elapsed(index.file.header, 0.0)
            if self.since is not None:
                chosen &= elapsed >= self.since
            if self.until is not None:
                chosen &= elapsed <= self.until
        if self.min_bytes:
            chosen &= entries["nbytes"] >= self.min_bytes
        if self.max_bytes is not None:
            chosen &= entries["nbytes"] <= self.max_bytes
        return np.flatnonzero(chosen)

    def _found(
        self, trace: RunTrace, recording: Recording, index: TraceIndex, newest_first: bool, after: Mapping[Path, int]
    ) -> Iterator[DeliveryRow]:
        rows = self.rows(trace, index)
        rows = rows[rows >= after.get(index.file.path, 0)]
        if self.where is not None:
            # The fields of a type whose record is lost are unknown: its messages are all read.
            known = [(number, kind.fields) for number, kind in index.file.types.items() if kind.fingerprint]
            excluded = [number for number, fields in known if not self.where.may_hold(fields)]
            rows = rows[~np.isin(index.entries["type"][rows], excluded)]
        for row in reversed(rows) if newest_first else rows:
            yield DeliveryRow(recording, index, int(row))


def follow(
    path: Path, query: Query, pause: Callable[[float], None] = time.sleep
) -> Iterator[tuple[RunTrace, DeliveryRow]]:
    """Yield the deliveries that match `query`, then those that are added, until every process has closed its files.

    Deliveries that are added between two looks are in causal order; the order of the looks is that of recording.

    Args:
        path: the run.
        query: selects the deliveries.
        pause: waits between two looks.
    """
    trace = RunTrace(path)
    next_rows: dict[Path, int] = {}
    try:
        while True:
            for found in query.deliveries(trace, after=next_rows):
                yield trace, found
            for _, index in trace.indexes():
                next_rows[index.file.path] = len(index.entries)
            if all(recording.closed for recording in trace.recordings):
                return
            pause(POLL_S)
            known = {file.path for recording in trace.recordings for file in recording.files}
            if path.is_dir() and set(trace_files(path)) - known:
                trace.close()
                trace = RunTrace(path)
                continue
            for _, index in trace.indexes():
                if index.file.refresh():
                    index.refresh()
    finally:
        trace.close()


def find_message(trace: RunTrace, message: MessageId) -> list[DeliveryRow]:
    """Return the deliveries of one message."""
    return _by_number(trace, message.sender, lambda numbers: numbers == message.number)


def find_serial(trace: RunTrace, sender: str, serial: int) -> list[DeliveryRow]:
    """Return the deliveries of a sender's message number `serial`, in every process of its node."""
    low = np.uint64((1 << 32) - 1)
    return _by_number(trace, sender, lambda numbers: (numbers & low) == serial)


def _by_number(trace: RunTrace, sender: str, fits: Callable[[NDArray[Any]], NDArray[np.bool_]]) -> list[DeliveryRow]:
    found = []
    for recording, index in trace.indexes():
        if sender in index.numbers:
            entries = index.entries
            sent = (entries["kind"] == Kind.DELIVERY) & (entries["sender"] == index.numbers[sender])
            found += [DeliveryRow(recording, index, int(row)) for row in np.flatnonzero(sent & fits(entries["number"]))]
    return sorted(found, key=lambda each: each.clock)


def _matching(addresses: list[str], pattern: str) -> list[int]:
    return [number for number, address in enumerate(addresses) if fnmatchcase(address, pattern)]
