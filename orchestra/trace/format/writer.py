"""Writes a trace: entries become records in files, one after the other, that stay readable whatever happens to them."""

import shutil
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import msgpack

from orchestra import log
from orchestra.actors.message import AnyArray
from orchestra.clock import Clock
from orchestra.trace.format.dedup import Tiles
from orchestra.trace.format.encoding import PendingRecord, RecordEncoder, parts
from orchestra.trace.format.layout import (
    DIGEST_BYTES,
    INLINE_BELOW,
    MAX_BODY,
    PREFIX,
    Entry,
    blob_prefix,
    body_of,
    digest_of,
    framed,
    header_body,
    mosaic,
    preamble,
    type_body,
)
from orchestra.trace.format.output import TraceOutput
from orchestra.trace.format.records import INPUTS, Close, Gap, Header, Kind
from orchestra.trace.format.tables import MARK, IndexTables

SEGMENT_BYTES = 1 << 30
SEGMENT_RECORDS = 1 << 20
"""Records of actors in one file: its index, which is gathered in memory, takes some 100 MB then."""
RESERVE_BYTES = 512 << 20
"""So much of the disk a trace leaves to the rest of the run: a checkpoint that cannot be saved is worse."""
KNOWN_BLOBS = 1 << 16
"""Arrays of a file that are remembered, so that one that comes again is not written again."""
JOIN = 256 << 10
"""Bytes that leave in one write."""


class TraceSink(Protocol):
    """Where bytes go: a raw file, or what a test puts in its place."""

    def write(self, data: bytes | memoryview, /) -> int | None: ...
    def truncate(self, size: int, /) -> int: ...
    def seek(self, offset: int, /) -> int: ...
    def close(self) -> None: ...


def open_new(path: Path) -> TraceSink:
    """Open a file that must not be there yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return TraceOutput(path)


class TraceWriter:
    """Writes the entries of one node process to `FOLDER/STEM.000.trace`, then `.001.` when that is full, and so on.

    What cannot be written is dropped as whole records, counted, and told in a GAP record as soon as something can be
    written again; a file so never holds half a record but at its end. Not thread-safe: one thread writes.

    Args:
        folder: where the files go.
        stem: how their names begin.
        header: what they say of the run; its segment, wall and monotonic are set for each file.
        encoder: makes entries of drafts, and knows the message types by number.
        clock: tells the time at which a file is opened.
        values: whether the arrays that came in are written, beside their digests.
        segment_bytes: the size at which the next file begins.
        open_file: opens a new file for writing.
        free: says how many bytes are left on the disk that a folder is on.
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
        segment_bytes: int = SEGMENT_BYTES,
        open_file: Callable[[Path], TraceSink] = open_new,
        free: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
    ) -> None:
        self.paths: list[Path] = []
        """The files so far, oldest first."""
        self.nbytes = 0
        """Bytes in all of them."""
        self.dropped = 0
        """Records that were not written, so far."""
        self._folder = folder
        self._stem = stem
        self._header = header
        self._encoder = encoder
        self._left_out: set[str] = set()
        self._log = log.get(actor="trace")
        self._clock = clock
        self._values = values
        self._segment_bytes = segment_bytes
        self._open_file = open_file
        self._free = free
        self._file: TraceSink | None = None
        self._size = 0
        self._index = IndexTables()
        self._mark = b""
        self._records = 0
        self._told_types: set[int] = set()
        self._blobs: OrderedDict[bytes, None] = OrderedDict()
        self._tiles = Tiles()
        self._gap = _Missed()
        self._logical = 0

    def record(self, drafts: Iterable[PendingRecord]) -> None:
        """Encode and write `drafts`, in order. What cannot be encoded is left out, counted, and said once per actor."""
        entries = []
        for draft in chain.from_iterable(map(parts, drafts)):
            try:
                entries.append(self._encoder.entry(draft))
            except (TypeError, ValueError, OverflowError) as error:
                kind, actor, clock, nbytes, *_ = draft
                self.missed("it cannot be written down", {actor: 1}, nbytes, clock, clock)
                if actor not in self._left_out:
                    self._left_out.add(actor)
                    self._log.warning("cannot be recorded", of=actor, record=kind.name, reason=str(error))
        self.write(entries)

    def write(self, entries: Iterable[Entry]) -> None:
        """Write `entries`, in order. Never raises for what the disk does: it drops and counts."""
        if self._is_short():
            for entry in entries:
                self.miss(entry, f"less than {RESERVE_BYTES >> 20} MiB were left on the disk")
            return
        known: dict[int, bytes] = {}
        pending: list[Entry] = []
        pieces = _Pieces()
        held = list(entries)  # arrays are known by their identity while they are held here
        for entry in held:
            try:
                if self._is_full(pieces.nbytes):
                    self._flush(pieces, pending)
                    pieces, pending = _Pieces(), []
                    self._next_file()
            except OSError as error:
                self.miss(entry, f"{error.strerror or error}")
                continue
            if not pieces.nbytes:
                self._begin(pieces)
            self._append(entry, pieces, known)
            pending.append(entry)
            if pieces.nbytes >= JOIN:
                self._flush(pieces, pending)
                pieces, pending = _Pieces(), []
        self._flush(pieces, pending)

    def miss(self, entry: Entry, reason: str) -> None:
        """Take note that `entry` will not be written."""
        self.dropped += 1
        self._gap.add(entry, reason)

    def missed(self, reason: str, actors: Mapping[str, int], nbytes: int, first_clock: int, last_clock: int) -> None:
        """Take note of records that were dropped before they came here."""
        self.dropped += sum(actors.values())
        self._gap.add_many(reason, actors, nbytes, first_clock, last_clock)

    def close(self) -> None:
        """Say that the trace is complete, and close the file."""
        if self._file is None:
            return
        try:
            closing = Close(self._logical, self._clock.monotonic(), self._records, self.dropped)
            pieces = _Pieces()
            self._begin(pieces)
            pieces.add(_plain(Kind.CLOSE, [closing.clock, closing.time, closing.records, closing.dropped]))
            self._write_pieces(pieces)
            self._index.closed = True
        except OSError:
            self.dropped += 1  # a file without its CLOSE says that it was not closed properly
        self._shut()
        self._index.scanned = self._size
        self._index.types = {number: self._encoder.types[number] for number in sorted(self._told_types)}
        self._index.save(self.paths[-1], self._mark)

    # Inside

    def _is_short(self) -> bool:
        try:
            return self._free(self._folder) < RESERVE_BYTES
        except OSError:
            return False  # writing will say what is wrong

    def _is_full(self, pending: int) -> bool:
        """Whether there is no file yet, or none that takes more than so many bytes that are to be written."""
        if self._file is None:
            return True
        return self._size + pending >= self._segment_bytes or self._records >= SEGMENT_RECORDS

    def _next_file(self) -> None:
        if self._file is not None:
            self.close()
        path = self._folder / f"{self._stem}.{len(self.paths):03d}.trace"
        now, monotonic = self._clock.now().timestamp(), self._clock.monotonic()
        header = replace(self._header, segment=len(self.paths), wall=now, monotonic=monotonic)
        file = self._open_file(path)
        self._file, self._size, self._records = file, 0, 0
        self._told_types, self._blobs = set(), OrderedDict()
        self._tiles.clear()
        try:
            begins = preamble() + framed(Kind.HEADER, header_body(header))
            self._write_all([begins])
        except OSError:
            self._shut()
            path.unlink(missing_ok=True)
            raise
        self.paths.append(path)
        self._index, self._mark = IndexTables(), begins[slice(*MARK)]

    def _append(self, entry: Entry, pieces: "_Pieces", known: dict[int, bytes]) -> None:
        """Add to `pieces` the record of `entry`, and before it the records that it needs."""
        for number in entry.types:
            if number not in self._told_types:
                self._told_types.add(number)
                pieces.add(framed(Kind.TYPE, type_body(number, self._encoder.types[number])))
        keep = self._values and entry.kind in INPUTS
        digests: list[bytes | None] = []
        for array in entry.arrays:
            if array.nbytes < INLINE_BELOW:
                digests.append(None)
                continue
            digest = known.get(id(array))
            if digest is None:
                digest = known[id(array)] = digest_of(array)
            digests.append(digest)
            if keep:
                self._blob(array, digest, pieces)
        body = body_of(entry, digests)
        pieces.records.append((pieces.nbytes, entry, len(body)))
        pieces.add(framed(entry.kind, body))
        self._logical = entry.clock
        self._records += 1

    def _blob(self, array: AnyArray, digest: bytes, pieces: "_Pieces") -> None:
        if digest in self._blobs:
            self._blobs.move_to_end(digest)
            return
        if array.nbytes > MAX_BODY // 2:
            return  # its digest must do
        self._blobs[digest] = None
        if len(self._blobs) > KNOWN_BLOBS:
            self._blobs.popitem(last=False)
        pieces.blobs.append((pieces.nbytes, digest))
        laid = self._tiles.lay(array, self._size + pieces.nbytes + PREFIX.size + DIGEST_BYTES)
        if laid is None or sum(map(len, laid.new)) == array.nbytes:
            pieces.add(blob_prefix(digest, array.nbytes))
            pieces.add(array.reshape(-1).view("u1").data)
            return
        begins, ends = mosaic(digest, laid)
        pieces.add(begins)
        for new in laid.new:
            pieces.add(new)
        pieces.add(ends)

    def _flush(self, pieces: "_Pieces", pending: list[Entry]) -> None:
        if not pieces.all:
            return
        begin, index = self._size, self._index
        try:
            self._write_pieces(pieces)
            for offset, digest in pieces.blobs:
                index.add_blob(begin + offset, digest)
            for offset, entry, length in pieces.records:
                index.add(begin + offset, entry.kind, length, entry.row)
        except OSError as error:
            # Unlearn what the records would have told the file: what it tells must come again.
            self._told_types.clear()
            self._blobs.clear()
            self._tiles.clear()
            self._records -= len(pending)
            for entry in pending:
                self.miss(entry, f"{error.strerror or error}")

    def _write_all(self, pieces: list[bytes | memoryview]) -> None:
        """Write all of `pieces` or nothing of them."""
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

    def _begin(self, pieces: "_Pieces") -> None:
        """Begin `pieces` with what there is to say of what was dropped: nothing more is until they are written."""
        if self._gap.count:
            pieces.add(self._gap_record())
            pieces.tells_gap = True

    def _write_pieces(self, pieces: "_Pieces") -> None:
        """Write `pieces`, all or nothing of them."""
        begin = self._size
        self._write_all(pieces.all)
        if pieces.tells_gap:
            self._index.gaps.append(begin)
            self._gap = _Missed()

    def _gap_record(self) -> bytes:
        gap = self._gap
        told = Gap(gap.reason, gap.count, gap.nbytes, gap.first_clock, gap.last_clock, gap.actors)
        row = [told.reason, told.count, told.nbytes, told.first_clock, told.last_clock, dict(told.actors)]
        return _plain(Kind.GAP, row)

    def _shut(self) -> None:
        assert self._file is not None
        file, self._file = self._file, None
        try:
            file.close()
        except OSError:
            self.dropped += 1  # what the system had taken and could not keep; the reader will say so


class _Pieces:
    """What is to be written next."""

    __slots__ = ("all", "blobs", "nbytes", "records", "tells_gap")

    def __init__(self) -> None:
        self.all: list[bytes | memoryview] = []
        self.nbytes = 0
        self.tells_gap = False
        """Whether a GAP stands first."""
        self.blobs: list[tuple[int, bytes]] = []
        """Of each array among them: where its record begins, and its digest."""
        self.records: list[tuple[int, Entry, int]] = []
        """Of each record of an actor: where it begins, the entry, and the length of its body."""

    def add(self, piece: bytes | memoryview) -> None:
        self.all.append(piece)
        self.nbytes += len(piece)


class _Missed:
    """What a GAP record will tell."""

    def __init__(self) -> None:
        self.reason = ""
        self.count = 0
        self.nbytes = 0
        self.first_clock = 0
        self.last_clock = 0
        self.actors: Counter[str] = Counter()

    def add(self, entry: Entry, reason: str) -> None:
        self.add_many(reason, {entry.actor: 1}, entry.nbytes, entry.clock, entry.clock)

    def add_many(self, reason: str, actors: Mapping[str, int], nbytes: int, first_clock: int, last_clock: int) -> None:
        if not self.count:
            self.first_clock = first_clock
        self.reason = reason
        self.count += sum(actors.values())
        self.nbytes += nbytes
        self.last_clock = last_clock
        self.actors.update(actors)


def _plain(kind: Kind, row: list[Any]) -> bytes:
    """A record without arrays."""
    header = msgpack.packb(row)
    return framed(kind, body_of(Entry(kind, header, (), (), 0, "", 0), ()))


def _joined(pieces: list[bytes | memoryview]) -> Iterable[bytes | memoryview]:
    """The same bytes: small pieces joined, large ones (arrays) as they are."""
    small: list[bytes | memoryview] = []
    for piece in pieces:
        if len(piece) < JOIN // 4:
            small.append(piece)
            continue
        if small:
            yield b"".join(small)
            small = []
        yield piece
    if small:
        yield b"".join(small)
