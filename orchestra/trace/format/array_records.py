"""The records that hold an array: whole, packed, composed of parts of others, or in another file of the folder.

A packed array is one block of LZ4. Where that saves little, as for parameters, the array is stored as it is.
"""

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import lz4.block

from orchestra.errors import TraceError
from orchestra.trace.format.dedup import Extent
from orchestra.trace.format.layout import DIGEST_BYTES, prefix
from orchestra.trace.format.records import Kind

ARRAY_KINDS = frozenset({Kind.BLOB, Kind.DEDUP, Kind.PACKED, Kind.COMPOSED, Kind.REFERENCE})
"""The records that hold the bytes of an array, or say where these are."""
PACK_BELOW = 0.9
"""An array is packed if it then takes less than this share of its bytes."""
_LENGTH = struct.Struct("<I")
_EXTENT = struct.Struct("<QII")
"""Offset of an array record, first byte of its array, length."""
_OLD_EXTENT = struct.Struct("<QI")
"""An extent of a DEDUP record: offset in the file, length."""
_OFFSET = struct.Struct("<Q")
_HEAD = DIGEST_BYTES + _LENGTH.size
"""Bytes of a PACKED record before its block."""


class ArrayPlace(NamedTuple):
    """The place of an array record in a trace file."""

    file: str
    """Name of the file."""
    offset: int


def array_record(digest: bytes, data: memoryview) -> tuple[bytes, bytes | memoryview]:
    """Return the two parts of a PACKED or BLOB record of an array's bytes, of which there are some, below 2 GiB."""
    packed = lz4.block.compress(data, store_size=False)
    if len(packed) > PACK_BELOW * len(data):
        return prefix(Kind.BLOB, DIGEST_BYTES + len(data), zlib.crc32(digest)) + digest, data
    head = digest + _LENGTH.pack(len(data))
    return prefix(Kind.PACKED, len(head) + len(packed), zlib.crc32(head)) + head, packed


def composed_record(digest: bytes, extents: Sequence[Extent]) -> bytes:
    """Return a COMPOSED record: an array that consists of parts of the arrays in earlier records of the file."""
    body = b"".join([digest, *(_EXTENT.pack(*extent) for extent in extents)])
    return prefix(Kind.COMPOSED, len(body), zlib.crc32(body)) + body


def reference_record(digest: bytes, place: ArrayPlace) -> bytes:
    """Return a REFERENCE record: an array that another file of the folder holds."""
    body = digest + _OFFSET.pack(place.offset) + place.file.encode()
    return prefix(Kind.REFERENCE, len(body), zlib.crc32(body)) + body


def is_sound_array(kind: Kind, body: memoryview, crc: int) -> bool:
    """Return whether the CRC of an array record is right. It covers all but the array's bytes, as its digest does."""
    match kind:
        case Kind.BLOB:
            return zlib.crc32(body[:DIGEST_BYTES]) == crc
        case Kind.PACKED:
            return len(body) >= _HEAD and zlib.crc32(body[:_HEAD]) == crc
        case Kind.DEDUP:
            begin = _table_begin(body)
            return begin is not None and zlib.crc32(body[begin:], zlib.crc32(body[:DIGEST_BYTES])) == crc
        case _:
            return zlib.crc32(body) == crc


def unpacked(body: memoryview) -> bytes:
    """Return the bytes of the array in a sound PACKED record.

    Raises:
        TraceError: its block is damaged.
    """
    (length,) = _LENGTH.unpack_from(body, DIGEST_BYTES)
    try:
        array: bytes = lz4.block.decompress(body[_HEAD:], uncompressed_size=length)
    except (lz4.block.LZ4BlockError, MemoryError, OverflowError) as error:
        raise TraceError(f"a packed array of {length:,} bytes is damaged: {error}") from error
    return array


def extents_of(body: memoryview) -> list[Extent]:
    """Return the extents of the array in a sound COMPOSED record, in order."""
    return list(map(Extent._make, _EXTENT.iter_unpack(body[DIGEST_BYTES:])))


def reference_of(body: memoryview) -> ArrayPlace:
    """Return the place that a sound REFERENCE record names."""
    (offset,) = _OFFSET.unpack_from(body, DIGEST_BYTES)
    return ArrayPlace(bytes(body[DIGEST_BYTES + _OFFSET.size :]).decode(), offset)


def ranges_of(body: memoryview) -> list[tuple[int, int]]:
    """Return the ranges of the file that hold the array in a sound DEDUP record, as offsets and lengths in order."""
    return list(_OLD_EXTENT.iter_unpack(body[_table_begin(body) : -_LENGTH.size]))


def _table_begin(body: memoryview) -> int | None:
    """Return where the extents of a DEDUP record begin, or None where the body is too short for their number."""
    if len(body) < DIGEST_BYTES + _LENGTH.size:
        return None
    n_extents = _LENGTH.unpack_from(body, len(body) - _LENGTH.size)[0]
    begin = len(body) - _LENGTH.size - _OLD_EXTENT.size * int(n_extents)
    return begin if begin >= DIGEST_BYTES else None
