"""The reader of one trace file. It reads every intact record and reports the damage of a cut or corrupted file."""

import mmap
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgpack
import numpy as np

from orchestra.actors.axes import AnyArray
from orchestra.errors import NotATrace, TraceError, TraceVersion
from orchestra.trace.format.array_records import (
    ARRAY_KINDS,
    extents_of,
    is_sound_array,
    ranges_of,
    reference_of,
    unpacked,
)
from orchestra.trace.format.effects import MessageType
from orchestra.trace.format.layout import (
    DIGEST_BYTES,
    MAGIC,
    PREAMBLE,
    PREFIX,
    READABLE,
    SYNC,
    Decoder,
    digest_of,
    header_of,
    type_of,
)
from orchestra.trace.format.records import Damage, Header, Kind, Mode, Record

AHEAD = 256 << 10
"""Bytes read ahead in a sequential scan."""
_NO_HEADER = "its header is lost"
PARTS_BYTES = 128 << 20
"""Bytes of the arrays that a file keeps in memory because others have parts of them. Batches repeat episodes."""
_KINDS = {int(kind): kind for kind in Kind}
_PARTS = frozenset({Kind.BLOB, Kind.PACKED, Kind.REFERENCE})
"""The records whose arrays a composed array has parts of."""
_NAME = re.compile(r"(?P<node>.+)\.(?P<generation>\d+)(?P<flight>\.flight-\d+)?\.(?P<segment>\d+)\.trace")


class RecordLocation(NamedTuple):
    """Position of a record in its file."""

    offset: int
    kind: Kind
    length: int
    """Bytes of its body."""

    @property
    def body(self) -> int:
        """Offset of its body."""
        return self.offset + PREFIX.size

    @property
    def end(self) -> int:
        """Offset of the next record."""
        return self.body + self.length


class TraceFile:
    """A trace file opened for reading. It may still be growing: `refresh` makes the new part visible.

    Raises:
        NotATrace: the file does not exist, or it is not a trace.
        TraceVersion: the file has another format version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.types: dict[int, MessageType] = {}
        """The message types read so far, by number."""
        self.closed = False
        """True if the last record read is a CLOSE."""
        self.find_blob: Callable[[bytes], int | None] = lambda digest: None
        """Returns the offset of the array record with a digest; set by the index of the file."""
        self.others = TraceFolder(path.parent)
        """Holds the arrays to which this file refers; may be shared by the files of a folder."""
        self._damages: dict[int, Damage] = {}
        self._parts: dict[int, bytes] = {}
        self._parts_bytes = 0
        self._blobs: dict[bytes, int] = {}
        self._memory: mmap.mmap | bytes = b""
        self._decoder = Decoder(self.types, self.blob)
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise NotATrace(f"cannot open {str(path)!r}: {error.strerror}") from error
        try:
            self._check_preamble()
            self.refresh()
            self.header = self._header()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<TraceFile {self.path}>"

    @property
    def damages(self) -> list[Damage]:
        """The unreadable parts found so far, by offset."""
        return [self._damages[offset] for offset in sorted(self._damages)]

    @property
    def nbytes(self) -> int:
        """Size of the file at the last `refresh`."""
        return len(self._memory)

    def close(self) -> None:
        """Close the file."""
        memory, self._memory = self._memory, b""
        if isinstance(memory, mmap.mmap):
            memory.close()
        self._parts, self._parts_bytes = {}, 0
        self._file.close()
        self.others.close()

    def refresh(self) -> bool:
        """Map the file again if it has grown; return whether it has."""
        size = self.path.stat().st_size
        if size == len(self._memory):
            return False
        if isinstance(self._memory, mmap.mmap):
            self._memory.close()
        self._memory = mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_READ)
        if hasattr(mmap, "MADV_RANDOM"):
            # Records are read in random order: by default the system would read megabytes around each.
            self._memory.madvise(mmap.MADV_RANDOM)
        return True

    def locations(self, start: int = 0) -> Iterator[RecordLocation]:
        """Yield the locations of the records from offset `start` on, and read their types and array offsets.

        All bodies are checked, except for the bytes of arrays. Unreadable parts are skipped and added to `damages`. An
        incomplete record at the end is added too, until the file has grown and the record is complete.
        """
        offset = max(start, PREAMBLE.size)
        self._damages = {at: damage for at, damage in self._damages.items() if at < offset}
        memory = self._memory
        ahead = 0
        while offset < len(memory):
            if offset >= ahead:
                ahead = self._read_ahead(offset)
            location = self._location(offset)
            if location is None:
                found = self._next_sync(offset + 1)
                end = len(memory) if found is None else found
                what = "cut off within a record" if found is None else "damaged: no record begins here"
                self._note(offset, end, what)
                offset = end
                continue
            if location.end > len(memory):
                # The record is cut off: its length is covered by the CRC of the prefix.
                self._note(offset, len(memory), f"cut off within a {location.kind.name} record")
                return
            if not self._sound(location):
                self._note(offset, location.end, f"a damaged {location.kind.name} record")
            else:
                self._learn(location)
                yield location
            offset = location.end

    def records(self, start: int = 0) -> Iterator[tuple[int, Record]]:
        """Yield the offset and the record of everything but headers, types and arrays, from offset `start` on."""
        for location in self.locations(start):
            if location.kind not in ARRAY_KINDS and location.kind not in (Kind.HEADER, Kind.TYPE):
                yield location.offset, self.record_at(location)

    def record_at(self, location: RecordLocation, *, resolve: bool = True) -> Record:
        """Return the record at `location`; without `resolve`, every large array in it is a `Digest`.

        Raises:
            TraceError: the record cannot be decoded.
        """
        return self._decoder.record(location.kind, self._body(location), resolve=resolve)

    def bytes_at(self, begin: int, end: int) -> bytes:
        """Return a range of bytes of the file."""
        return self._memory[begin:end]

    def digest_at(self, location: RecordLocation) -> bytes:
        """Return the digest in the array record at `location`."""
        return self._memory[location.body : location.body + DIGEST_BYTES]

    def adopt(self, types: Mapping[int, MessageType], damages: Iterable[Damage], *, closed: bool) -> None:
        """Take over the results of an earlier scan."""
        self.types.update(types)
        self._damages.update({damage.offset: damage for damage in damages})
        self.closed = closed

    def forget_blobs(self) -> None:
        """Release the array offsets read so far; `find_blob` knows them."""
        self._blobs.clear()

    def header_at(self, location: RecordLocation) -> list[Any]:
        """Return the fields of the record at `location`, with None for each array."""
        return self._decoder.unpacked(self._body(location), values=False)

    def location_at(self, offset: int) -> RecordLocation:
        """Return the location of the record that begins at `offset`.

        Raises:
            TraceError: no intact record begins there.
        """
        location = self._readable(offset)
        if location is None:
            raise TraceError(f"{self.path}: no readable record begins at byte {offset:,}")
        return location

    def blob(self, digest: bytes) -> AnyArray | None:
        """Return the bytes of an array (uint8, read-only), or None where they are not there or not intact."""
        location = self._place_of(digest)
        if location is None:
            return None
        try:
            array = np.frombuffer(self._array(location), np.uint8)
        except TraceError as error:
            self._note(location.offset, location.end, str(error))
            return None
        if digest_of(array) != digest:
            self._note(location.offset, location.end, "a damaged array")
            return None
        return array

    def reference(self, digest: bytes) -> str:
        """Return the name of the file to which this one refers for an array, or an empty text."""
        location = self._place_of(digest)
        if location is None or location.kind is not Kind.REFERENCE:
            return ""
        with memoryview(self._memory)[location.body : location.end] as body:
            return reference_of(body).file

    # Inside

    def _check_preamble(self) -> None:
        begin = self._file.read(PREAMBLE.size)
        if len(begin) < PREAMBLE.size:
            if MAGIC.startswith(begin[: len(MAGIC)]):
                raise NotATrace(f"{self.path}: cut off before the first record ({len(begin)} bytes)")
            raise NotATrace(f"{self.path} is no trace")
        magic, version, _, crc = PREAMBLE.unpack(begin)
        if magic != MAGIC:
            raise NotATrace(f"{self.path} is no trace: it begins with {begin[:8]!r}")
        if crc != zlib.crc32(begin[:-4]):
            self._note(0, PREAMBLE.size, "a damaged preamble")
        elif version not in READABLE:
            known = ", ".join(map(str, READABLE[:-1])) + f" and {READABLE[-1]}"
            raise TraceVersion(
                f"{self.path} has trace format version {version}; this version of orchestra reads only {known}"
            )

    def _header(self) -> Header:
        first = next(self.locations(), None)
        if first is not None and first.kind is Kind.HEADER:
            return header_of(self._body(first))
        named = _NAME.fullmatch(self.path.name)
        if named is None:
            return Header(self.path.stem, 0, "digest", reason=_NO_HEADER)
        mode: Mode = "flight" if named["flight"] else "digest"
        return Header(named["node"], int(named["generation"]), mode, int(named["segment"]), reason=_NO_HEADER)

    def _read_ahead(self, offset: int) -> int:
        """Let the system read the bytes after `offset`; return the end of that range."""
        begin = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        if isinstance(self._memory, mmap.mmap) and hasattr(mmap, "MADV_WILLNEED"):
            self._memory.madvise(mmap.MADV_WILLNEED, begin, AHEAD)
        return begin + AHEAD

    def _location(self, offset: int) -> RecordLocation | None:
        memory = self._memory
        if offset + PREFIX.size > len(memory):
            return None
        sync, kind, _, _, length, _, own = PREFIX.unpack_from(memory, offset)
        if sync != SYNC or kind not in _KINDS:
            return None
        if own != zlib.crc32(memory[offset : offset + PREFIX.size - 4]):
            return None
        return RecordLocation(offset, _KINDS[kind], length)

    def _readable(self, offset: int) -> RecordLocation | None:
        location = self._location(offset)
        whole = location is not None and location.end <= len(self._memory) and self._sound(location)
        return location if whole else None

    def _next_sync(self, offset: int) -> int | None:
        while (offset := self._memory.find(SYNC, offset)) >= 0:
            if self._location(offset) is not None:
                return offset
            offset += 1
        return None

    def _sound(self, location: RecordLocation) -> bool:
        crc: int = PREFIX.unpack_from(self._memory, location.offset)[5]
        with memoryview(self._memory)[location.body : location.end] as body:
            if location.kind in ARRAY_KINDS:
                return is_sound_array(location.kind, body, crc)
            return zlib.crc32(body) == crc

    def _learn(self, location: RecordLocation) -> None:
        self.closed = location.kind is Kind.CLOSE
        if location.kind in ARRAY_KINDS:
            self._blobs[self.digest_at(location)] = location.offset
        elif location.kind is Kind.TYPE:
            try:
                number, kind = type_of(self._body(location))
            except (ValueError, TypeError, msgpack.UnpackException) as error:
                self._note(location.offset, location.end, f"a TYPE record: {error}")
                return
            self.types[number] = kind

    def _body(self, location: RecordLocation) -> bytes:
        return self._memory[location.body : location.end]

    def _note(self, begin: int, end: int, what: str) -> None:
        self._damages[begin] = Damage(begin, end - begin, what)

    def _place_of(self, digest: bytes) -> RecordLocation | None:
        offset = self._blobs.get(digest)
        if offset is None:
            offset = self.find_blob(digest)
        location = None if offset is None else self._readable(offset)
        return location if location is not None and location.kind in ARRAY_KINDS else None

    def _array(self, location: RecordLocation) -> bytes:
        """Return the bytes of the array at `location`.

        Raises:
            TraceError: another record or file that they lie in is missing or damaged.
        """
        if location.kind is Kind.BLOB or location.kind is Kind.PACKED:
            return self._stored(location)
        with memoryview(self._memory)[location.body : location.end] as body:
            if location.kind is Kind.COMPOSED:
                extents = extents_of(body)
                parts = {record: self._part(record) for record in dict.fromkeys(extent.record for extent in extents)}
                return b"".join(parts[record][begin : begin + length] for record, begin, length in extents)
            if location.kind is Kind.DEDUP:
                return b"".join(self._read(offset, length) for offset, length in ranges_of(body))
            name, offset = reference_of(body)
        return self.others.array(name, offset)

    def _stored(self, location: RecordLocation) -> bytes:
        """Return the array of a BLOB or PACKED record."""
        if location.kind is Kind.BLOB:
            return self._read(location.body + DIGEST_BYTES, location.length - DIGEST_BYTES)
        return unpacked(memoryview(self._read(location.body, location.length)))

    def _part(self, offset: int) -> bytes:
        """Return the array of the record at `offset`, of which another one has parts; the last ones are kept.

        Raises:
            TraceError: it is damaged, or another file in which it lies is missing.
        """
        found = self._parts.pop(offset, None)
        if found is None:
            location = self._readable(offset)
            if location is None or location.kind not in _PARTS:
                raise TraceError(f"a part of an array, at byte {offset:,}, is damaged")
            found = self._array(location)
            self._parts_bytes += len(found)
        self._parts[offset] = found  # as the newest
        while self._parts_bytes > PARTS_BYTES:
            self._parts_bytes -= len(self._parts.pop(next(iter(self._parts))))
        return found

    def _read(self, offset: int, length: int) -> bytes:
        """Return bytes of the file; fewer beyond its end, so that the digest will differ."""
        self._file.seek(offset)
        return self._file.read(length)


class TraceFolder:
    """The trace files of a folder to which others refer, opened when they are needed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[str, TraceFile] = {}
        self._reading: set[tuple[str, int]] = set()

    def array(self, name: str, offset: int) -> bytes:
        """Return the bytes of the array whose record begins at `offset` in the file `name`.

        Raises:
            TraceError: there is no such file, or no such record in it, or the array consists of itself.
        """
        if Path(name).name != name:
            raise TraceError(f"expected the name of a trace file in {self._path}, got {name!r}")
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = TraceFile(self._path / name)
            file.others = self
        if offset >= file.nbytes:
            file.refresh()
        location = file.location_at(offset)
        if location.kind not in ARRAY_KINDS or location.kind is Kind.REFERENCE:
            raise TraceError(f"{file.path}: expected an array at byte {offset:,}, got a {location.kind.name}")
        if (name, offset) in self._reading:
            raise TraceError(f"{file.path}: the array at byte {offset:,} consists of itself")
        self._reading.add((name, offset))
        try:
            return file._array(location)
        finally:
            self._reading.discard((name, offset))

    def close(self) -> None:
        """Close the files."""
        files, self._files = self._files, {}
        for file in files.values():
            file.close()
