"""The bytes of records, without I/O. `docs/traces.md` describes every byte.

A file is a preamble of 16 bytes and a sequence of records, each a prefix of 20 bytes and a body. A body is a msgpack
header, encoded by the codec, and a table of its arrays. The bytes of an array are in that table (small arrays), in the
place that an array record of the same file with the same digest tells (`array_records`), or not in the trace.
"""

import math
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, fields
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast

import msgpack
import xxhash

from orchestra.actors import lazy_numpy as np
from orchestra.actors.axes import AnyArray
from orchestra.actors.codec import ARRAY, DTYPES, REF
from orchestra.actors.ref import Ref
from orchestra.errors import TraceError
from orchestra.trace.format.effects import EFFECTS, Effect, MessageId, MessageType
from orchestra.trace.format.records import INPUTS, PHASES, RECORDS, Digest, Experiment, Failure, Header, Kind, Record

MAGIC = b"ORTRACE\n"
VERSION = 6
"""Version of the trace format."""
READABLE = (4, 5, 6)
"""Versions that are read; files of every other version are refused."""
PREAMBLE = struct.Struct("<8sHHI")
"""Magic, version, zero, CRC-32 of the twelve bytes before."""
SYNC = b"\xf1OR\x1e"
PREFIX = struct.Struct("<4sBBHIII")
"""Sync mark, kind, zero, zero, length of the body, CRC-32 of the body, CRC-32 of the sixteen bytes before."""
DIGEST_BYTES = 16
INLINE_BELOW = 2048
"""Arrays of fewer bytes are stored in their record."""
INLINE, BY_DIGEST = 0, 1
MAX_BODY = (1 << 32) - 1

T = TypeVar("T", bound=Record | Effect)
_LENGTH = struct.Struct("<I")


class Entry(NamedTuple):
    """A record to be written: its header is encoded, its arrays are not."""

    kind: Kind
    header: bytes
    arrays: Sequence[AnyArray | Digest]
    types: Sequence[int]
    """Numbers of the message types that it mentions."""
    nbytes: int
    """Size of the header and the arrays."""
    actor: str
    clock: int
    row: Sequence[Any] = ()
    """The fields in the header."""
    pieces: Mapping[int, AnyArray] = MappingProxyType({})
    """The number of rows of each piece of an array, by the array's identity; see `Message.array_pieces`."""


def preamble() -> bytes:
    """Return the first 16 bytes of a file."""
    begin = PREAMBLE.pack(MAGIC, VERSION, 0, 0)[:-4]
    return begin + _LENGTH.pack(zlib.crc32(begin))


def prefix(kind: Kind, length: int, crc: int) -> bytes:
    """Return the 20 bytes before a body of `length` bytes."""
    begin = PREFIX.pack(SYNC, kind, 0, 0, length, crc, 0)[:-4]
    return begin + _LENGTH.pack(zlib.crc32(begin))


def digest_of(array: AnyArray) -> bytes:
    """Return the XXH3-128 digest of a C-contiguous array's bytes."""
    return xxhash.xxh3_128_digest(array.reshape(-1).view(np.uint8).data)


def body_of(entry: Entry, digests: Sequence[bytes | None]) -> bytes:
    """Return the body of a record.

    Args:
        entry: the record.
        digests: the digest of each of its arrays, or None to store the array in the body.
    """
    pieces = [_LENGTH.pack(len(entry.header)), entry.header]
    for array, digest in zip(entry.arrays, digests, strict=True):
        if isinstance(array, Digest):
            pieces.append(bytes((BY_DIGEST,)) + array.digest)
        elif digest is None:
            pieces.append(bytes((INLINE,)) + array.tobytes())
        else:
            pieces.append(bytes((BY_DIGEST,)) + digest)
    return b"".join(pieces)


def framed(kind: Kind, body: bytes) -> bytes:
    """Return a record: prefix and body."""
    return prefix(kind, len(body), zlib.crc32(body)) + body


def type_body(number: int, kind: MessageType) -> bytes:
    """Return the body of a TYPE record."""
    return cast("bytes", msgpack.packb([number, *astuple(kind)]))


def type_of(body: bytes) -> tuple[int, MessageType]:
    """Return the number and the message type in a TYPE record."""
    number, tag, fingerprint, names, request = msgpack.unpackb(body)
    return number, MessageType(tag, fingerprint, tuple(names), request)


def header_body(header: Header) -> bytes:
    """Return the body of a HEADER record: the fields in order, so that their names are no part of the format."""
    return cast("bytes", msgpack.packb(astuple(header)))


def header_of(body: bytes) -> Header:
    """Return the header in a HEADER record."""
    row = msgpack.unpackb(body)
    if row[_EXPERIMENT] is not None:
        file, sha256, flags, hosts, code = row[_EXPERIMENT]
        row[_EXPERIMENT] = Experiment(file, sha256, tuple(flags), tuple(map(tuple, hosts)), code)
    return Header(*row)


_EXPERIMENT = [field.name for field in fields(Header)].index("experiment")


class Decoder:
    """Turns bodies into records.

    Args:
        types: the message types of the file by number; may grow.
        blob: returns the bytes of the array with a digest, or None where the file does not hold them.
    """

    def __init__(self, types: dict[int, MessageType], blob: Callable[[bytes], AnyArray | None]) -> None:
        self.types = types
        self._blob = blob

    def record(self, kind: Kind, body: bytes, *, resolve: bool = True) -> Record:
        """Return the record of a body; without `resolve`, every large array in it is a `Digest`.

        Raises:
            TraceError: the body does not match its kind.
        """
        try:
            return self._built(RECORDS[kind], self.unpacked(body, resolve=resolve and kind in INPUTS))
        except (KeyError, ValueError, TypeError, IndexError, struct.error, msgpack.UnpackException) as error:
            raise TraceError(f"cannot decode a {kind.name} record: {error!r}") from error

    def unpacked(self, body: bytes, *, values: bool = True, resolve: bool = False) -> list[Any]:
        """Return the header of a body with its arrays.

        Args:
            body: the body of a record.
            values: False to put None in the place of every array.
            resolve: whether to look up arrays stored by digest; such an array is a `Digest` otherwise.
        """
        (length,) = _LENGTH.unpack_from(body)
        begin = _LENGTH.size
        position = begin + length

        def extension(code: int, data: bytes) -> Any:
            nonlocal position
            if code == REF:
                return Ref(data.decode())
            if code != ARRAY:
                raise ValueError(f"unknown msgpack extension {code}")
            if not values:
                return None
            rank = (len(data) - 1) // 8
            dtype, shape = np.dtype(DTYPES[data[0]]), struct.unpack_from(f"<{rank}Q", data, 1)
            stored = body[position]
            position += 1
            if stored == INLINE:
                nbytes = math.prod(shape) * dtype.itemsize
                array = np.frombuffer(body, np.uint8, nbytes, position).view(dtype).reshape(shape)
                position += nbytes
                return array
            digest = body[position : position + DIGEST_BYTES]
            position += DIGEST_BYTES
            blob = self._blob(digest) if resolve else None
            return Digest(dtype, shape, digest) if blob is None else blob.view(dtype).reshape(shape)

        header = msgpack.unpackb(
            memoryview(body)[begin : begin + length], ext_hook=extension, raw=False, strict_map_key=False
        )
        if not isinstance(header, list):
            raise ValueError(f"its header is a {type(header).__name__}, not a list")
        return header

    def _type(self, number: int) -> MessageType:
        """Return the message type of a number; a placeholder where its record is lost."""
        found = self.types.get(number)
        if found is None:
            found = self.types[number] = MessageType(f"type_{number}", b"", (), request=False)
        return found

    def _fields(self, kind: MessageType, values: list[Any] | None) -> dict[str, Any] | None:
        """Return a message's fields by name."""
        if values is None:
            return None
        names = kind.fields if len(kind.fields) == len(values) else [f"field_{i}" for i in range(len(values))]
        return dict(zip(names, values, strict=True))

    def _built(self, kind: type[T], row: list[Any]) -> T:
        """Return a record or an effect from its fields as a file holds them."""
        places = _PLACES[kind]
        for name, at in places.items():
            value = row[at]
            match name:
                case "id" | "request":
                    row[at : at + 2] = [MessageId(value, row[at + 1])]
                case "type":
                    row[at] = self._type(value)
                case "fields":
                    row[at] = self._fields(self._type(row[places["type"]]), value)
                case "phase":
                    row[at] = PHASES[value]
                case "effects":
                    row[at] = tuple(self._built(EFFECTS[code], rest) for code, *rest in value)
                case "failure":
                    row[at] = value and Failure(*value)
                case "args":
                    row[at] = None if value is None else tuple(value)
        return kind(*row)


def _places(kind: type[Any]) -> dict[str, int]:
    """The places of the fields whose values differ from those in the file, from the last to the first."""
    names = [name for each in fields(kind) for name in [each.name] * (2 if each.name in _IDS else 1)]
    return {name: names.index(name) for name in reversed(names) if name in _CONVERTED}


_IDS = ("id", "request")
"""Fields that stand as two entries in the file."""
_CONVERTED = (*_IDS, "type", "fields", "phase", "effects", "failure", "args")
_PLACES = {kind: _places(kind) for kind in (*RECORDS.values(), *EFFECTS.values())}
