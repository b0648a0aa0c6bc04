"""The writer of trace files: whole records only, whatever the disk does."""

import io
import os
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Self

import msgpack
import xxhash

from orchestra import log
from orchestra.actors.axes import AnyArray
from orchestra.clock import Clock
from orchestra.trace.format.array_digests import ArrayDigests
from orchestra.trace.format.array_records import ArrayPlace, array_record, composed_record, reference_record
from orchestra.trace.format.dedup import DedupIndex
from orchestra.trace.format.encoding import PendingRecord, RecordEncoder, separated
from orchestra.trace.format.free_space import RESERVE_BYTES, FreeSpace
from orchestra.trace.format.index_tables import MARK, IndexTables
from orchestra.trace.format.layout import (
    INLINE_BELOW,
    MAX_BODY,
    Entry,
    body_of,
    framed,
    header_body,
    preamble,
    type_body,
)
from orchestra.trace.format.records import INPUTS, Digest, Header, Kind
from orchestra.trace.format.shared_arrays import SHARE_FROM, SharedArrays

SEGMENT_BYTES = 1 << 30
SEGMENT_RECORDS = 1 << 20
"""Records of actors in one file. Their index takes about 100 MB of memory while the file is written."""
KNOWN_ARRAYS = 1 << 16
"""Digests of arrays in the current file that are remembered, so that a repeated array is not written again."""
JOIN = 256 << 10
"""Bytes of one write."""
WINDOW = 8 << 20
"""Written bytes after which their pages are released."""
BEHIND = 4
"""Earlier windows whose pages are released again: the disk had not written all of them the first time."""


class TraceOutput(io.FileIO):
    """A new unbuffered file whose written pages are released from memory.

    A trace grows by a gigabyte in a few seconds and is seldom read at once. By default the system would fill all free
    memory with it, page by page, which takes longer than writing, and then flush seconds of data at a time. Here each
    full window is sent to the disk, and its pages are reused once they are written. No call waits for that. Where the
    system does not support the advice, this is a plain file.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(path, "xb")
        self._end = 0
        self._advised = 0

    def write(self, data: Any, /) -> int:
        """Write `data`; return how many bytes the disk accepted."""
        wrote = super().write(data) or 0
        self._end += wrote
        if self._end - self._advised >= WINDOW:
            self._release()
        return wrote

    def truncate(self, size: int | None = None, /) -> int:
        """Cut the file to `size` bytes, where writing continues."""
        cut = super().truncate(size)
        self._end = cut
        self._advised = min(self._advised, cut)
        return cut

    def _release(self) -> None:
        if hasattr(os, "posix_fadvise"):
            begin = max(0, self._advised - BEHIND * WINDOW)
            # Starts to write the pages that are not on the disk, and frees the others.
            os.posix_fadvise(self.fileno(), begin, self._end - begin, os.POSIX_FADV_DONTNEED)
        self._advised = self._end


@dataclass(slots=True)
class LostRecords:
    """Records that are missing from a trace, for its next GAP record."""

    reason: str = ""
    actors: Counter[str] = field(default_factory=Counter)
    """Number of lost records by actor."""
    nbytes: int = 0
    first_clock: int = 0
    last_clock: int = 0

    @property
    def count(self) -> int:
        """Number of lost records."""
        return sum(self.actors.values())

    def add(self, actor: str, nbytes: int, clock: int) -> None:
        """Count one record."""
        self.actors[actor] += 1
        self.nbytes += nbytes
        self.first_clock = self.first_clock or clock
        self.last_clock = clock

    def merge(self, later: Self) -> None:
        """Add records that were lost later; their reason replaces the earlier one."""
        self.reason = later.reason
        self.actors.update(later.actors)
        self.nbytes += later.nbytes
        self.first_clock = self.first_clock or later.first_clock
        self.last_clock = later.last_clock


class TraceWriter:
    """Writes the records of one node process to `FOLDER/STEM.000.trace`, then `.001.` when that is full, and so on.

    A record that cannot be written is dropped whole and counted; a GAP record states the loss as soon as writing works
    again. A file therefore holds half a record only at its end. Not thread-safe: one thread writes.

    Args:
        folder: the folder of the files.
        stem: the begin of their names.
        header: the header of every file, except for segment, wall and monotonic time, which are set for each file.
        encoder: encodes pending records; holds the message types by number.
        clock: gives the time at which a file is opened.
        values: whether input arrays are written, beside their digests.
        shared: the arrays that processes of this host have written into the folder; None if each file stands alone.
    """

    def __init__(
        self,
        folder: Path,
        stem: str,
        header: Header,
        encoder: RecordEncoder,
        *,
        clock: Clock,
        values: bool,
        shared: SharedArrays | None = None,
    ) -> None:
        self.paths: list[Path] = []
        """The files so far, oldest first."""
        self.nbytes = 0
        """Bytes in all files."""
        self.dropped = 0
        """Records that were not written so far."""
        self._folder = folder
        self._stem = stem
        self._header = header
        self._encoder = encoder
        self._reported: set[str] = set()  # actors with a record that could not be encoded
        self._log = log.get(actor="trace")
        self._clock = clock
        self._values = values
        self._shared = shared
        self._space = FreeSpace(folder, clock)
        self._file: TraceOutput | None = None
        self._size = 0
        self._index = IndexTables()
        self._mark = b""
        self._records = 0
        self._written_types: set[int] = set()
        self._arrays: OrderedDict[bytes, None] = OrderedDict()
        self._tiles = DedupIndex()
        self._digests = ArrayDigests()
        self._lost = LostRecords()
        self._told_of_disk = False
        self._logical = 0

    def record(self, pending: Iterable[PendingRecord]) -> None:
        """Encode and write records, in order. One that cannot be encoded is dropped, with a warning once per actor."""
        entries = []
        for each in chain.from_iterable(map(separated, pending)):
            try:
                entries.append(self._encoder.entry(each))
            except (TypeError, ValueError, OverflowError) as error:
                kind, actor, clock, nbytes, *_ = each
                self._lose("it cannot be encoded", actor, nbytes, clock)
                if actor not in self._reported:
                    self._reported.add(actor)
                    self._log.warning("cannot be recorded", of=actor, record=kind.name, reason=str(error))
        self.write(entries)

    def write(self, entries: Iterable[Entry]) -> None:
        """Write entries, in order. Disk errors raise nothing: the records are dropped and counted."""
        if self._space.is_short:
            for entry in entries:
                self._lose_to_disk(f"less than {RESERVE_BYTES >> 20} MiB were left on the disk", entry)
            return
        batch = _Batch()
        for entry in entries:
            if self._is_full(batch.nbytes):
                batch = self._flush(batch)
                try:
                    self._next_file()
                except OSError as error:
                    self._lose_to_disk(f"{error.strerror or error}", entry)
                    continue
            if not batch.nbytes:
                self._begin(batch)
            self._append(entry, batch)
            if batch.nbytes >= JOIN:
                batch = self._flush(batch)
        self._flush(batch)

    def lose(self, lost: LostRecords) -> None:
        """Count records that were dropped before they reached the writer."""
        self.dropped += lost.count
        self._lost.merge(lost)

    def close(self) -> None:
        """Write the CLOSE record and the index, and close the file."""
        if self._file is not None:
            self._close_file()
        if self._shared is not None:
            self._shared.close()

    # Inside

    def _close_file(self) -> None:
        try:
            batch = _Batch()
            self._begin(batch)
            batch.add(_plain(Kind.CLOSE, [self._logical, self._clock.monotonic(), self._records, self.dropped]))
            self._write_batch(batch)
            self._index.closed = True
        except OSError:
            self.dropped += 1  # a file without CLOSE reads as not closed
        self._shut()
        self._index.scanned = self._size
        self._index.types = {number: self._encoder.types[number] for number in sorted(self._written_types)}
        self._index.save(self.paths[-1], self._mark)

    def _lose(self, reason: str, actor: str, nbytes: int, clock: int) -> None:
        self.dropped += 1
        self._lost.reason = reason
        self._lost.add(actor, nbytes, clock)

    def _lose_to_disk(self, reason: str, entry: Entry) -> None:
        """Count a record that the disk has no room for, with a warning for the first one."""
        if not self._told_of_disk:
            self._told_of_disk = True
            self._log.warning("the trace has stopped; what comes is dropped and counted", reason=reason)
        self._lose(reason, *_cost(entry))

    def _is_full(self, pending: int) -> bool:
        """Return whether a new file is needed after `pending` more bytes."""
        full = self._size + pending >= SEGMENT_BYTES or self._records >= SEGMENT_RECORDS
        return full or self._file is None

    def _next_file(self) -> None:
        if self._file is not None:
            self._close_file()
        path = self._folder / f"{self._stem}.{len(self.paths):03d}.trace"
        now, monotonic = self._clock.now().timestamp(), self._clock.monotonic()
        header = replace(self._header, segment=len(self.paths), wall=now, monotonic=monotonic)
        self._file, self._size, self._records = TraceOutput(path), 0, 0
        self._forget()
        begin = preamble() + framed(Kind.HEADER, header_body(header))
        try:
            self._write_all([begin])
        except OSError:
            self._shut()
            path.unlink(missing_ok=True)
            raise
        self.paths.append(path)
        self._index, self._mark = IndexTables(), begin[slice(*MARK)]

    def _append(self, entry: Entry, batch: "_Batch") -> None:
        """Add the record of `entry` to `batch`, after the types and arrays that it needs."""
        for number in entry.types:
            if number not in self._written_types:
                self._written_types.add(number)
                batch.add(framed(Kind.TYPE, type_body(number, self._encoder.types[number])))
        keep = self._values and entry.kind in INPUTS
        digests: list[bytes | None] = []
        for array in entry.arrays:
            if isinstance(array, Digest) or array.nbytes < INLINE_BELOW:
                digests.append(None)
                continue
            digest = self._digests.of(array)
            digests.append(digest)
            if keep:
                self._append_array(array, digest, batch, entry.pieces.get(id(array)))
        body = body_of(entry, digests)
        batch.records.append((batch.nbytes, entry, len(body)))
        batch.add(framed(entry.kind, body))
        self._logical = entry.clock
        self._records += 1

    def _append_array(self, array: AnyArray, digest: bytes, batch: "_Batch", pieces: AnyArray | None = None) -> None:
        if digest in self._arrays:
            self._arrays.move_to_end(digest)
            return
        if array.nbytes > MAX_BODY // 2:
            return  # too large for a record: its digest is all that is kept
        self._arrays[digest] = None
        if len(self._arrays) > KNOWN_ARRAYS:
            self._arrays.popitem(last=False)
        shared = self._shared if array.nbytes >= SHARE_FROM else None
        if shared is not None and (place := shared.find(digest)) is not None:
            if pieces is not None:
                self._tiles.note(array, pieces, self._size + batch.nbytes)
            batch.add_array(digest, reference_record(digest, place))
            return
        data, plan = array.reshape(-1).view("u1").data, self._tiles.plan(array, pieces)
        if plan is None or sum(map(len, plan.new)) == len(data):
            record: Sequence[bytes | memoryview] = array_record(digest, data)
            if plan is not None:
                self._tiles.settle(plan, [self._size + batch.nbytes])
        else:
            records = []
            for part in plan.new:
                records.append(self._size + batch.nbytes)
                part_digest = xxhash.xxh3_128_digest(part)
                batch.add_array(part_digest, *array_record(part_digest, part))
            record = (composed_record(digest, self._tiles.settle(plan, records)),)
        if shared is not None:
            batch.shared.append((batch.nbytes, digest))
        batch.add_array(digest, *record)

    def _flush(self, batch: "_Batch") -> "_Batch":
        """Write `batch`, or drop and count its records; return an empty one."""
        if batch.pieces:
            begin, index = self._size, self._index
            try:
                self._write_batch(batch)
                for offset, digest in batch.arrays:
                    index.add_blob(begin + offset, digest)
                for offset, entry, length in batch.records:
                    index.add(begin + offset, entry.kind, length, entry.row)
                if self._shared is not None:  # the records are in the file, whatever becomes of this process
                    for offset, digest in batch.shared:
                        self._shared.note(digest, ArrayPlace(self.paths[-1].name, begin + offset))
            except OSError as error:
                self._forget()  # later records must repeat the types and arrays that were dropped
                self._records -= len(batch.records)
                for _, entry, _ in batch.records:
                    self._lose_to_disk(f"{error.strerror or error}", entry)
        return _Batch()

    def _forget(self) -> None:
        """Forget the types and arrays that the file holds."""
        self._written_types.clear()
        self._arrays.clear()
        self._tiles.clear()

    def _begin(self, batch: "_Batch") -> None:
        """Begin `batch` with a GAP record if records were lost. No record is lost until the batch is written."""
        lost = self._lost
        if lost.actors:
            row = [lost.reason, lost.count, lost.nbytes, lost.first_clock, lost.last_clock, dict(lost.actors)]
            batch.add(_plain(Kind.GAP, row))

    def _write_batch(self, batch: "_Batch") -> None:
        """Write `batch`, all of it or nothing."""
        begin = self._size
        self._write_all(batch.pieces)
        if self._lost.actors:
            self._index.gaps.append(begin)
            self._lost = LostRecords()

    def _write_all(self, pieces: list[bytes | memoryview]) -> None:
        """Write all of `pieces` or nothing."""
        assert self._file is not None
        start = self._size
        try:
            for piece in _joined(pieces):
                left = memoryview(piece)
                while left:
                    wrote = self._file.write(left) or 0
                    left = left[wrote:]
                    self._size += wrote
        except OSError:
            self._size = start
            self._file.truncate(start)
            self._file.seek(start)
            raise
        self.nbytes += self._size - start

    def _shut(self) -> None:
        assert self._file is not None
        file, self._file = self._file, None
        try:
            file.close()
        except OSError:
            self.dropped += 1  # the system lost accepted data; a reader will find the damage


@dataclass(slots=True)
class _Batch:
    """Records to be written together."""

    pieces: list[bytes | memoryview] = field(default_factory=list)
    nbytes: int = 0
    arrays: list[tuple[int, bytes]] = field(default_factory=list)
    """Offset and digest of each array record."""
    shared: list[tuple[int, bytes]] = field(default_factory=list)
    """Of those the ones to which other processes may refer."""
    records: list[tuple[int, Entry, int]] = field(default_factory=list)
    """Offset, entry and body length of each record of an actor."""

    def add(self, piece: bytes | memoryview) -> None:
        self.pieces.append(piece)
        self.nbytes += len(piece)

    def add_array(self, digest: bytes, *pieces: bytes | memoryview) -> None:
        """Add an array record by its pieces."""
        self.arrays.append((self.nbytes, digest))
        for piece in pieces:
            self.add(piece)


def _cost(entry: Entry) -> tuple[str, int, int]:
    """Return what a lost entry adds to the counts of losses: actor, bytes and clock."""
    return entry.actor, entry.nbytes, entry.clock


def _plain(kind: Kind, row: list[Any]) -> bytes:
    """A record without arrays."""
    return framed(kind, body_of(Entry(kind, msgpack.packb(row), (), (), 0, "", 0), ()))


def _joined(pieces: list[bytes | memoryview]) -> Iterable[bytes | memoryview]:
    """The same bytes: small pieces joined, large ones (arrays) as they are."""
    for large, group in groupby(pieces, lambda piece: len(piece) >= JOIN // 4):
        if large:
            yield from group
        else:
            yield b"".join(group)
