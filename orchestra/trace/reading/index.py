"""The index of a trace file: where each record lies and what it is about, so that no question reads the file whole.

It is written beside the file (`NAME.trace.index`) when that is closed; of a file that was not closed it is built at the
first question, and extended when the file has grown. It holds nothing that the file does not say, and may be deleted.
"""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from orchestra.trace.format.records import Kind, Record
from orchestra.trace.format.tables import MARK, IndexTables, halves
from orchestra.trace.reading.reader import TraceFile

KEEP = 8
"""An index is kept again when its file has grown by this part: whoever follows a run would write it all the time."""


class TraceIndex:
    """The index of one file. `TraceIndex.of` finds or builds it."""

    def __init__(self, file: TraceFile) -> None:
        self.file = file
        self._tables = IndexTables()
        self._kept = 0

    @classmethod
    def of(cls, file: TraceFile) -> Self:
        """Return the index of `file`, from beside it if it is there, and up to date with it."""
        index = cls(file)
        found = IndexTables.load(file.path, file.bytes_at(*MARK), file.nbytes)
        if found is not None:
            index._tables, index._kept = found, found.scanned
            file.adopt(dict(found.types), list(found.damages), closed=found.closed)
        file.find_blob = index._find_blob
        index.refresh()
        return index

    @property
    def addresses(self) -> list[str]:
        """Actors, senders and recipients; the tables name them by their place in this list."""
        return self._tables.addresses

    @property
    def entries(self) -> NDArray[Any]:
        """The records of actors (`tables.ENTRY`)."""
        return self._tables.table("entries")

    @property
    def sends(self) -> NDArray[Any]:
        """What was sent (`tables.SEND`)."""
        return self._tables.table("sends")

    @property
    def gaps(self) -> list[int]:
        """Where records say that others were not written."""
        return self._tables.gaps

    def refresh(self) -> bool:
        """Take in what was added to the file since; return whether there was something."""
        file, tables = self.file, self._tables
        before = tables.scanned
        if file.nbytes <= before:
            return False
        for place in file.locations(before):
            tables.scanned = place.end
            match place.kind:
                case Kind.GAP:
                    tables.gaps.append(place.offset)
                case Kind.HEADER | Kind.TYPE | Kind.CLOSE:
                    continue
                case Kind.BLOB | Kind.MOSAIC:
                    tables.add_blob(place.offset, file.digest_at(place))
                case _:
                    tables.add(place.offset, place.kind, place.length, file.header_at(place))
        file.forget_blobs()
        if tables.scanned > before:
            tables.types, tables.damages, tables.closed = file.types, file.damages, file.closed
            if tables.closed or KEEP * (tables.scanned - self._kept) > tables.scanned:
                tables.save(file.path, file.bytes_at(*MARK))
                self._kept = tables.scanned
        return tables.scanned > before

    def address(self, text: str) -> int | None:
        """Return the number of an address, or None if it does not occur."""
        return self._tables.numbers.get(text)

    def rows(self, kind: Kind, actor: str | None = None) -> NDArray[np.int64]:
        """Return the rows of the entries of a kind, of all actors or of one, in order."""
        if actor is not None:
            return self.rows_of(actor, kind)
        return np.flatnonzero(self._tables.column("kind") == kind)

    def rows_of(self, actor: str, *kinds: Kind) -> NDArray[np.int64]:
        """Return the rows of the entries of an actor, of one of `kinds` or of any, in order."""
        number = self.address(actor)
        if number is None:
            return np.empty(0, np.int64)
        rows = np.flatnonzero(self._tables.column("actor") == number)
        return rows[np.isin(self._tables.column("kind")[rows], list(map(int, kinds)))] if kinds else rows

    def actors(self) -> set[str]:
        """Return the addresses of all actors that it tells of."""
        return {self.addresses[number] for number in np.flatnonzero(np.bincount(self._tables.column("actor")))}

    def record(self, row: int, *, resolve: bool = True) -> Record:
        """Return the record of a row; without `resolve`, every large array in it is a `Digest`."""
        return self.file.record_at(self.file.location_at(int(self.entries["offset"][row])), resolve=resolve)

    def sent_in(self, sender: str, number: int) -> list[tuple[int, int]]:
        """Return the activations in which an actor sent a message: their numbers, and those of the incarnations."""
        address = self.address(sender)
        if address is None:
            return []
        sends = self.sends
        rows = sends["row"][(sends["number"] == number) & (sends["actor"] == address)]
        return [(int(self.entries["n"][row]), int(self.entries["incarnation"][row])) for row in rows]

    def _find_blob(self, digest: bytes) -> int | None:
        blobs = self._tables.table("blobs")
        high, low = halves(digest)
        row = int(np.searchsorted(blobs["high"], np.uint64(high)))
        while row < len(blobs) and int(blobs["high"][row]) == high:
            if int(blobs["low"][row]) == low:
                return int(blobs["offset"][row])
            row += 1
        return None
