"""Reads one file of a trace, whole or cut off or damaged: what is readable is read, and the rest is told."""

import mmap
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgpack
import numpy as np

from orchestra.actors.message import AnyArray
from orchestra.errors import NotATrace, TraceError, TraceVersion
from orchestra.trace.format.dedup import Run
from orchestra.trace.format.effects import MessageType
from orchestra.trace.format.layout import (
    ARRAYS,
    DIGEST_BYTES,
    MAGIC,
    PREAMBLE,
    PREFIX,
    READABLE,
    SYNC,
    Decoder,
    array_sound,
    digest_of,
    header_of,
    runs_of,
    type_of,
)
from orchestra.trace.format.records import Damage, Header, Kind, Record

AHEAD = 256 << 10
"""Bytes that are read at once where records are read one after the other."""
_KINDS = {int(kind): kind for kind in Kind}
_NAME = re.compile(r"(?P<node>.+)\.(?P<generation>\d+)(?P<flight>\.flight-\d+)?\.(?P<segment>\d+)\.trace")


class RecordLocation(NamedTuple):
    """Where a record lies."""

    offset: int
    kind: Kind
    length: int
    """Of its body, in bytes."""

    @property
    def end(self) -> int:
        """Where the next one begins."""
        return self.offset + PREFIX.size + self.length


class TraceFile:
    """One file, opened for reading. It may still be growing: `refresh` takes in what has been added.

    Raises:
        NotATrace: there is no such file, or it is none of ours.
        TraceVersion: it is of another version of the format.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.types: dict[int, MessageType] = {}
        self.closed = False
        """Whether the end that was seen is a proper one."""
        self.find_blob: Callable[[bytes], int | None] = lambda digest: None
        """Says where the record of an array begins that was not scanned; an index knows."""
        self._damages: dict[int, Damage] = {}
        self._blobs: dict[bytes, int] = {}
        self._memory: mmap.mmap | bytes = b""
        self._decoder = Decoder(self.types, self._blob)
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<TraceFile {self.path}>"

    @property
    def damages(self) -> list[Damage]:
        """What was found unreadable so far, by offset."""
        return [self._damages[offset] for offset in sorted(self._damages)]

    @property
    def nbytes(self) -> int:
        """Its size, as of the last `refresh`."""
        return len(self._memory)

    def close(self) -> None:
        """Close the file."""
        memory, self._memory = self._memory, b""
        if isinstance(memory, mmap.mmap):
            memory.close()
        self._file.close()

    def refresh(self) -> bool:
        """Look at the file anew; return whether it has grown."""
        size = self.path.stat().st_size
        if size == len(self._memory):
            return False
        if isinstance(self._memory, mmap.mmap):
            self._memory.close()
        self._memory = mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_READ)
        if hasattr(mmap, "MADV_RANDOM"):
            # Records are looked up here and there: the system would read megabytes of arrays around each.
            self._memory.madvise(mmap.MADV_RANDOM)
        return True

    def locations(self, start: int = 0) -> Iterator[RecordLocation]:
        """Yield where records lie, from the offset `start` on, and learn types and blobs on the way.

        Bodies are checked, but for those of blobs. What is no record is skipped and noted in `damages`; bytes at the
        end that may yet become a record are noted as well, until they are one.
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
                self._note(Damage(offset, end - offset, what))
                offset = end
                continue
            if location.end > len(memory):
                # Cut off; unless the length itself is wrong, which its CRC rules out.
                self._note(Damage(offset, len(memory) - offset, f"cut off within a {location.kind.name} record"))
                return
            if not self._sound(location):
                self._note(Damage(offset, location.end - offset, f"a damaged {location.kind.name} record"))
            else:
                self._learn(location)
                yield location
            offset = location.end

    def records(self, start: int = 0) -> Iterator[tuple[int, Record]]:
        """Yield every record of an actor or of the file's end, with its offset, from the offset `start` on."""
        for location in self.locations(start):
            if location.kind not in ARRAYS and location.kind not in (Kind.HEADER, Kind.TYPE):
                yield location.offset, self.record_at(location)

    def record_at(self, location: RecordLocation, *, resolve: bool = True) -> Record:
        """Return the record at `location`, its arrays filled in where the file has them, unless `resolve` is false.

        Raises:
            TraceError: it cannot be understood.
        """
        return self._decoder.record(location.kind, self._body(location), resolve=resolve)

    def bytes_at(self, begin: int, end: int) -> bytes:
        """Return bytes of the file as they are."""
        return self._memory[begin:end]

    def digest_at(self, location: RecordLocation) -> bytes:
        """Return the digest of the array whose record is at `location`."""
        begin = location.offset + PREFIX.size
        return self._memory[begin : begin + DIGEST_BYTES]

    def adopt(self, types: dict[int, MessageType], damages: list[Damage], *, closed: bool) -> None:
        """Take over what an earlier scan had learned."""
        self.types.update(types)
        self._damages.update({damage.offset: damage for damage in damages})
        self.closed = closed

    def forget_blobs(self) -> None:
        """Let go of where arrays lie; `find_blob` knows."""
        self._blobs.clear()

    def header_at(self, location: RecordLocation) -> list[Any]:
        """Return the bare header of the record at `location`, its arrays left out."""
        return self._decoder.unpacked(self._body(location), values=False)

    def location_at(self, offset: int) -> RecordLocation:
        """Return the location of the record that begins at `offset`.

        Raises:
            TraceError: none does.
        """
        location = self._location(offset)
        if location is None or location.end > len(self._memory) or not self._sound(location):
            raise TraceError(f"{self.path}: there is no readable record at byte {offset:,}")
        return location

    def blob(self, digest: bytes) -> AnyArray | None:
        """Return the bytes of an array (uint8, read-only), or None where the file has none, or damaged ones."""
        return self._blob(digest)

    # Inside

    def _check_preamble(self) -> None:
        begins = self._file.read(PREAMBLE.size)
        if len(begins) < PREAMBLE.size:
            if MAGIC.startswith(begins[: len(MAGIC)]):
                raise NotATrace(f"{self.path}: cut off before anything was recorded ({len(begins)} bytes)")
            raise NotATrace(f"{self.path} is no trace")
        magic, version, _, crc = PREAMBLE.unpack(begins)
        if magic != MAGIC:
            raise NotATrace(f"{self.path} is no trace: it begins with {begins[:8]!r}")
        if crc != zlib.crc32(begins[:-4]):
            self._note(Damage(0, PREAMBLE.size, "a damaged preamble"))
        elif version not in READABLE:
            known = " and ".join(map(str, READABLE))
            raise TraceVersion(f"{self.path} is a trace of format version {version}; this program reads {known}")

    def _header(self) -> Header:
        for location in self.locations():
            if location.kind is Kind.HEADER:
                return header_of(self._body(location))
            break
        named = _NAME.fullmatch(self.path.name)
        return Header(
            node=named["node"] if named else self.path.stem,
            generation=int(named["generation"]) if named else 0,
            segment=int(named["segment"]) if named else 0,
            mode="flight" if named and named["flight"] else "digest",
            wall=0.0,
            monotonic=0.0,
            seed=0,
            deterministic=False,
            pid=0,
            host="",
            versions={},
            experiment=None,
            reason="its header is lost",
        )

    def _read_ahead(self, offset: int) -> int:
        """Have the system read what follows `offset`; return how far."""
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

    def _next_sync(self, offset: int) -> int | None:
        while (offset := self._memory.find(SYNC, offset)) >= 0:
            if self._location(offset) is not None:
                return offset
            offset += 1
        return None

    def _sound(self, location: RecordLocation) -> bool:
        begin = location.offset + PREFIX.size
        crc: int = PREFIX.unpack_from(self._memory, location.offset)[5]
        with memoryview(self._memory)[begin : location.end] as body:
            return array_sound(location.kind, body, crc) if location.kind in ARRAYS else zlib.crc32(body) == crc

    def _learn(self, location: RecordLocation) -> None:
        self.closed = location.kind is Kind.CLOSE
        if location.kind in ARRAYS:
            self._blobs[self.digest_at(location)] = location.offset
        elif location.kind is Kind.TYPE:
            try:
                number, kind = type_of(self._body(location))
            except (ValueError, TypeError, msgpack.UnpackException) as error:
                self._note(Damage(location.offset, location.end - location.offset, f"a TYPE record: {error}"))
                return
            self.types[number] = kind

    def _body(self, location: RecordLocation) -> bytes:
        return self._memory[location.offset + PREFIX.size : location.end]

    def _note(self, damage: Damage) -> None:
        self._damages[damage.offset] = damage

    def _blob(self, digest: bytes) -> AnyArray | None:
        offset = self._blobs.get(digest)
        if offset is None:
            offset = self.find_blob(digest)
        location = None if offset is None else self._location(offset)
        if (
            location is None
            or location.end > len(self._memory)
            or location.kind not in ARRAYS
            or not self._sound(location)
        ):
            return None
        array = self._array(location)
        if digest_of(array) != digest:
            self._note(Damage(location.offset, location.end - location.offset, "a damaged array"))
            return None
        return array

    def _array(self, location: RecordLocation) -> AnyArray:
        """Return the bytes of the array at `location`: a copy, aligned, and free of the file."""
        begin = location.offset + PREFIX.size
        runs = [Run(begin + DIGEST_BYTES, location.length - DIGEST_BYTES)]
        if location.kind is Kind.MOSAIC:
            with memoryview(self._memory)[begin : location.end] as body:
                runs = runs_of(body)
        read = []
        for run in runs:
            self._file.seek(run.where)
            read.append(self._file.read(run.length))  # beyond the end of the file less comes, which the digest tells
        return np.frombuffer(b"".join(read), np.uint8)
