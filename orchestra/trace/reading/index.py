"""The index of a trace file: the location and the main fields of every record, so that no query reads the whole file.

It is written beside the file (`NAME.trace.index`) when the file is closed. For a file that was not closed it is built
by the first query, and extended when the file has grown. It may be deleted: it is rebuilt from the file.
"""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from orchestra.trace.format.index_tables import MARK, IndexTables, halves
from orchestra.trace.format.records import Kind, Record
from orchestra.trace.reading.reader import TraceFile

SAVE_AGAIN = 8
"""The index of a growing file is saved again when the file has grown by one part in so many."""


class TraceIndex:
    """The index of one file. `TraceIndex.of` loads or builds it."""

    def __init__(self, file: TraceFile) -> None:
        self.file = file
        self._tables = IndexTables()
        self._saved = 0

    @classmethod
    def of(cls, file: TraceFile) -> Self:
        """Return the up-to-date index of `file`."""
        index = cls(file)
        found = IndexTables.load(file.path, file.bytes_at(*MARK), file.nbytes)
        if found is not None:
            index._tables, index._saved = found, found.scanned
            file.adopt(dict(found.types), list(found.damages), closed=found.closed)
        file.find_blob = index._find_blob
        index.refresh()
        return index

    @property
    def addresses(self) -> list[str]:
        """Actors, senders and recipients; the tables hold positions in this list."""
        return self._tables.addresses

    @property
    def entries(self) -> NDArray[Any]:
        """The records of actors (`index_tables.ENTRY`)."""
        return self._tables.table("entries")

    @property
    def sends(self) -> NDArray[Any]:
        """The messages that actors sent (`index_tables.SEND`)."""
        return self._tables.table("sends")

    @property
    def gaps(self) -> list[int]:
        """Offsets of the GAP records."""
        return self._tables.gaps

    def refresh(self) -> bool:
        """Index the records that were added to the file; return whether there are any."""
        file, tables = self.file, self._tables
        before = tables.scanned
        if file.nbytes <= before:
            return False
        for location in file.locations(before):
            tables.scanned = location.end
            match location.kind:
                case Kind.GAP:
                    tables.gaps.append(location.offset)
                case Kind.HEADER | Kind.TYPE | Kind.CLOSE:
                    continue
                case Kind.BLOB | Kind.DEDUP:
                    tables.add_blob(location.offset, file.digest_at(location))
                case _:
                    tables.add(location.offset, location.kind, location.length, file.header_at(location))
        file.forget_blobs()
        if tables.scanned > before:
            tables.types, tables.damages, tables.closed = file.types, file.damages, file.closed
            if tables.closed or SAVE_AGAIN * (tables.scanned - self._saved) > tables.scanned:
                tables.save(file.path, file.bytes_at(*MARK))
                self._saved = tables.scanned
        return tables.scanned > before

    def address(self, text: str) -> int | None:
        """Return the position of an address, or None if it does not occur."""
        return self._tables.numbers.get(text)

    def rows(self, *kinds: Kind, actor: str | None = None) -> NDArray[np.int64]:
        """Return the rows of the entries of these kinds, of all actors or of one, in order."""
        chosen = np.isin(self._tables.column("kind"), kinds)
        if actor is not None:
            number = self.address(actor)
            if number is None:
                return np.empty(0, np.int64)
            chosen &= self._tables.column("actor") == number
        return np.flatnonzero(chosen)

    def actors(self) -> set[str]:
        """Return the addresses of the recorded actors."""
        return {self.addresses[number] for number in np.flatnonzero(np.bincount(self._tables.column("actor")))}

    def record(self, row: int, *, resolve: bool = True) -> Record:
        """Return the record of a row; without `resolve`, every large array in it is a `Digest`."""
        return self.file.record_at(self.file.location_at(int(self.entries["offset"][row])), resolve=resolve)

    def sent_in(self, sender: str, number: int) -> list[tuple[int, int]]:
        """Return the activations in which an actor sent a message, as pairs of activation and incarnation."""
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
