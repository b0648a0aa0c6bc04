"""Which deliveries are meant: by actor, sender, type, time, size, and a condition on the fields."""

import heapq
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestra.actors.message import AnyArray
from orchestra.actors.ref import Ref
from orchestra.trace.format.effects import MessageId
from orchestra.trace.format.records import Delivery, Digest, Handled, Header, Kind
from orchestra.trace.reading.index import TraceIndex
from orchestra.trace.reading.run_trace import Recording, RunTrace, trace_files
from orchestra.trace.reading.where import Where

LOOK_S = 0.2
LOOK = 1024
"""Rows that are looked at together for the end of an activation."""


class Seen:
    """A delivery that a query found. What the index knows of it costs no look into the file."""

    __slots__ = ("_delivery", "index", "recording", "row")

    def __init__(self, recording: Recording, index: TraceIndex, row: int) -> None:
        self.recording = recording
        self.index = index
        self.row = row
        self._delivery: Delivery | None = None

    @property
    def header(self) -> Header:
        """Of the recording that it is in."""
        return self.recording.header

    @property
    def clock(self) -> int:
        """Its time by the Lamport clock."""
        return int(self.index.entries["clock"][self.row])

    @property
    def delivery(self) -> Delivery:
        """The record; its large arrays are `Digest`s."""
        if self._delivery is None:
            record = self.index.record(self.row, resolve=False)
            assert isinstance(record, Delivery)
            self._delivery = record
        return self._delivery

    def whole(self) -> Delivery:
        """Return the record with the arrays that were recorded by value."""
        record = self.index.record(self.row)
        assert isinstance(record, Delivery)
        return record

    def handled(self) -> Handled | None:
        """What came of it, if that was recorded."""
        entries = self.index.entries
        actor = entries["actor"][self.row]
        for begin in range(self.row + 1, len(entries), LOOK):
            chunk = entries[begin : begin + LOOK]
            kinds = chunk["kind"]
            turns = (kinds == Kind.HANDLED) | (kinds == Kind.DELIVERY) | (kinds == Kind.BIRTH)
            found = np.flatnonzero(turns & (chunk["actor"] == actor))
            if len(found):
                record = self.index.record(begin + int(found[0]), resolve=False)
                return record if isinstance(record, Handled) and record.n == self.delivery.n else None
        return None

    def values(self) -> "Values":
        """What a condition may speak of: the fields, and what is known of the delivery."""
        return values_of(self.delivery, self.index.file.blob)


class Values(Mapping[str, Any]):
    """Fields by name. An array is fetched when it is asked for."""

    def __init__(self, values: dict[str, Any], blob: Callable[[bytes], AnyArray | None]) -> None:
        self._values = values
        self._blob = blob

    def __getitem__(self, name: str) -> Any:
        value = self._values[name]
        if isinstance(value, Digest) and (found := self._blob(value.digest)) is not None:
            value = self._values[name] = found.view(value.dtype).reshape(value.shape)
        return value.address if isinstance(value, Ref) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def values_of(delivery: Delivery, blob: Callable[[bytes], AnyArray | None]) -> Values:
    """Return what a condition may speak of: the fields, and what is known of the delivery.

    Args:
        delivery: the record.
        blob: finds the bytes of an array by its digest.
    """
    known = {
        "actor": delivery.actor,
        "sender": delivery.id.sender,
        "type": delivery.type.name,
        "n": delivery.n,
        "bytes": delivery.nbytes,
        "waited": delivery.waited,
        "incarnation": delivery.incarnation,
    }
    return Values({**known, **(delivery.fields or {})}, blob)


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked for. Patterns have `*` and `?`; a type may be named by its class alone."""

    actor: str = "*"
    sender: str = "*"
    type: str = "*"
    since: float | None = None
    """Seconds from the start of the run."""
    until: float | None = None
    min_bytes: int = 0
    max_bytes: int | None = None
    where: Where | None = None

    def deliveries(
        self, trace: RunTrace, *, newest_first: bool = False, after: Mapping[Path, int] | None = None
    ) -> Iterator[Seen]:
        """Yield what matches, in causal order: whatever could have caused a delivery comes before it.

        Args:
            trace: where to look.
            newest_first: whether the order is turned round.
            after: the rows of each file from which on to look.

        Raises:
            ValuesMissing: the condition looks into arrays of which only digests were recorded.
        """
        streams = [
            self._found(trace, each, index, newest_first, after or {})
            for each in trace.recordings
            for index in each.indexes
        ]
        sign = -1 if newest_first else 1
        for seen in heapq.merge(*streams, key=lambda seen: (sign * seen.clock, seen.header.node)):
            if self.where is None or self.where(seen.values()):
                yield seen

    def count(self, trace: RunTrace) -> int:
        """Return how many match, the condition on fields left aside."""
        return sum(len(self.rows(trace, index)) for each in trace.recordings for index in each.indexes)

    def rows(self, trace: RunTrace, index: TraceIndex) -> NDArray[np.int64]:
        """Return the rows of `index` that match, the condition on fields left aside."""
        entries = index.entries
        chosen = entries["kind"] == Kind.DELIVERY
        if self.actor != "*":
            chosen &= np.isin(entries["actor"], _matching(index.addresses, self.actor))
        if self.sender != "*":
            chosen &= np.isin(entries["sender"], _matching(index.addresses, self.sender))
        if self.type != "*":
            types = [n for n, kind in index.file.types.items() if self._names(kind.name) or self._names(kind.tag)]
            chosen &= np.isin(entries["type"], types)
        if self.since is not None or self.until is not None:
            header = index.file.header
            elapsed = entries["time"] + (header.wall - header.monotonic - trace.began)
            if self.since is not None:
                chosen &= elapsed >= self.since
            if self.until is not None:
                chosen &= elapsed <= self.until
        if self.min_bytes:
            chosen &= entries["nbytes"] >= self.min_bytes
        if self.max_bytes is not None:
            chosen &= entries["nbytes"] <= self.max_bytes
        return np.flatnonzero(chosen)

    def _names(self, name: str) -> bool:
        return fnmatchcase(name, self.type)

    def _found(
        self, trace: RunTrace, recording: Recording, index: TraceIndex, newest_first: bool, after: Mapping[Path, int]
    ) -> Iterator[Seen]:
        rows = self.rows(trace, index)
        rows = rows[rows >= after.get(index.file.path, 0)]
        if self.where is not None:
            # What a type is called whose record is lost, and its fields, nobody knows.
            known = [(n, kind.fields) for n, kind in index.file.types.items() if kind.fingerprint]
            others = [n for n, fields in known if not self.where.may_hold(fields)]
            rows = rows[~np.isin(index.entries["type"][rows], others)]
        for row in reversed(rows) if newest_first else rows:
            yield Seen(recording, index, int(row))


def follow(path: Path, query: Query, pause: Callable[[float], None] = time.sleep) -> Iterator[tuple[RunTrace, Seen]]:
    """Yield what matches `query`, first what is there, then what is added, until every process has closed its files.

    What nodes write between two looks is put into causal order; between looks it is as it comes.

    Args:
        path: of the run.
        query: what is asked for.
        pause: waits between two looks.
    """
    trace = RunTrace(path)
    seen_rows: dict[Path, int] = {}
    try:
        while True:
            for seen in query.deliveries(trace, after=seen_rows):
                yield trace, seen
            for recording in trace.recordings:
                for index in recording.indexes:
                    seen_rows[index.file.path] = len(index.entries)
            if all(recording.closed for recording in trace.recordings):
                return
            pause(LOOK_S)
            known = {file.path for recording in trace.recordings for file in recording.files}
            if path.is_dir() and set(trace_files(path)) - known:
                trace.close()
                trace = RunTrace(path)
                continue
            for recording in trace.recordings:
                for index in recording.indexes:
                    if index.file.refresh():
                        index.refresh()
    finally:
        trace.close()


def find_message(trace: RunTrace, message: MessageId) -> list[Seen]:
    """Return the deliveries of one message: one, or several if it was sent on under a name of its own elsewhere."""
    return _by_number(trace, message.sender, lambda numbers: numbers == message.number)


def find_serial(trace: RunTrace, sender: str, serial: int) -> list[Seen]:
    """Return the deliveries of the `serial`-th message of a sender, of every process that was its node."""
    low = np.uint64((1 << 32) - 1)
    return _by_number(trace, sender, lambda numbers: (numbers & low) == serial)


def _by_number(trace: RunTrace, sender: str, fits: Callable[[NDArray[Any]], NDArray[np.bool_]]) -> list[Seen]:
    found = []
    for recording in trace.recordings:
        for index in recording.indexes:
            number = index.address(sender)
            if number is None:
                continue
            entries = index.entries
            chosen = (entries["kind"] == Kind.DELIVERY) & (entries["sender"] == number) & fits(entries["number"])
            found += [Seen(recording, index, int(row)) for row in np.flatnonzero(chosen)]
    return sorted(found, key=lambda seen: seen.clock)


def _matching(addresses: list[str], pattern: str) -> list[int]:
    return [number for number, address in enumerate(addresses) if fnmatchcase(address, pattern)]
