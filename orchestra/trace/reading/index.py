"""The index of a trace file: the location and the main fields of every record, so that no query reads the whole file.

It is written beside the file (`NAME.trace.index`) when the file is closed. For a file that was not closed it is built
by the first query, and extended when the file has grown. It may be deleted: it is rebuilt from the file.
"""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from orchestra.trace.format.array_records import ARRAY_KINDS
from orchestra.trace.format.index_tables import MARK, IndexTables, halves
from orchestra.trace.format.records import Kind, Record
from orchestra.trace.reading.reader import TraceFile

SAVE_AGAIN = 8
"""The index of a growing file is saved again once the saved one lacks more than 1/`SAVE_AGAIN` of the file."""


class TraceIndex(IndexTables):
    """The index of one file. `TraceIndex.of` loads or builds it."""

    file: TraceFile
    _saved = 0

    @classmethod
    def of(cls, file: TraceFile) -> Self:
        """Return the up-to-date index of `file`."""
        index = cls.load(file.path, file.bytes_at(*MARK), file.nbytes) or cls()
        index.file, index._saved = file, index.scanned
        file.adopt(index.types, index.damages, closed=index.closed)
        file.find_blob = index._find_blob
        index.refresh()
        return index

    @property
    def entries(self) -> NDArray[Any]:
        """The records of actors (`index_tables.ENTRY`)."""
        return self.table("entries")

    @property
    def sends(self) -> NDArray[Any]:
        """The messages that actors sent (`index_tables.SEND`)."""
        return self.table("sends")

    def refresh(self) -> bool:
        """Index the records that were added to the file; return whether there are any."""
        file, before = self.file, self.scanned
        if file.nbytes <= before:
            return False
        for location in file.locations(before):
            self.scanned = location.end
            match location.kind:
                case Kind.GAP:
                    self.gaps.append(location.offset)
                case Kind.HEADER | Kind.TYPE | Kind.CLOSE:
                    continue
                case kind if kind in ARRAY_KINDS:
                    self.add_blob(location.offset, file.digest_at(location))
                case _:
                    self.add(location.offset, location.kind, location.length, file.header_at(location))
        file.forget_blobs()
        if self.scanned > before:
            self.types, self.damages, self.closed = file.types, file.damages, file.closed
            if self.closed or SAVE_AGAIN * (self.scanned - self._saved) > self.scanned:
                self.save(file.path, file.bytes_at(*MARK))
                self._saved = self.scanned
        return self.scanned > before

    def rows(
        self,
        *kinds: Kind,
        actor: str | None = None,
        incarnation: int | None = None,
        since: int = 0,
        until: int | None = None,
    ) -> NDArray[np.int64]:
        """Return the rows of the entries of these kinds, in order.

        Args:
            kinds: at least one.
            actor: the address of an actor; None for all actors.
            incarnation: one of its incarnations; None for all of them.
            since: of that incarnation, the first activation.
            until: of that incarnation, the activation before which to stop.
        """
        chosen = np.isin(self.column("kind"), kinds)
        if actor is not None:
            chosen &= self.column("actor") == self.numbers.get(actor, len(self.numbers))
        rows: NDArray[np.int64] = np.flatnonzero(chosen)
        if incarnation is not None:
            numbers = self.entries["n"][rows]
            chosen = (self.entries["incarnation"][rows] == incarnation) & (numbers >= since)
            rows = rows[chosen if until is None else chosen & (numbers < until)]
        return rows

    def ends(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return for each row of a delivery the row of its HANDLED, or -1 where the file has none."""
        handled = self.rows(Kind.HANDLED)
        if not len(handled):
            return np.full(len(rows), -1)
        ended, begun = self._activations(handled), self._activations(rows)
        order = np.argsort(ended, kind="stable")
        at = order[np.minimum(np.searchsorted(ended, begun, sorter=order), len(order) - 1)]
        found: NDArray[np.int64] = np.where(ended[at] == begun, handled[at], -1)
        return found

    def actors(self) -> set[str]:
        """Return the addresses of the recorded actors."""
        return {self.addresses[number] for number in np.flatnonzero(np.bincount(self.column("actor")))}

    def record(self, row: int, *, resolve: bool = True) -> Record:
        """Return the record of a row; without `resolve`, every large array in it is a `Digest`."""
        return self.file.record_at(self.file.location_at(int(self.entries["offset"][row])), resolve=resolve)

    def sent_in(self, sender: str, number: int) -> list[tuple[int, int]]:
        """Return the activations in which an actor sent a message, as pairs of activation and incarnation."""
        sends, entries = self.sends, self.entries
        rows = sends["row"][
            (sends["number"] == number) & (sends["actor"] == self.numbers.get(sender, len(self.numbers)))
        ]
        return [(int(entries["n"][row]), int(entries["incarnation"][row])) for row in rows]

    def _activations(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Actor, incarnation and activation of each row as one number."""
        entries = self.entries
        actor = entries["actor"][rows].astype(np.uint64) << np.uint64(48)
        incarnation = entries["incarnation"][rows].astype(np.uint64) << np.uint64(32)
        made: NDArray[np.uint64] = actor | incarnation | entries["n"][rows]
        return made

    def _find_blob(self, digest: bytes) -> int | None:
        blobs = self.table("blobs")
        high, low = halves(digest)
        row = int(np.searchsorted(blobs["high"], np.uint64(high)))
        while row < len(blobs) and int(blobs["high"][row]) == high:
            if int(blobs["low"][row]) == low:
                return int(blobs["offset"][row])
            row += 1
        return None
