"""Codec: messages to bytes and back, as a msgpack header and raw array buffers. No I/O.

A header has two msgpack extensions: an array (its dtype and shape; the contents follow the header in the order of these
markers, each padded to 16 bytes) and a ref (its address). Nothing is ever unpickled.
"""

import enum
import math
import struct
import sys
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import repeat
from pathlib import PurePath
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import msgpack
from pydantic import TypeAdapter, ValidationError

from orchestra.actors import lazy_numpy as np
from orchestra.actors.arrays import isolated, size_of
from orchestra.actors.axes import AnyArray, Arrays, frozen_copy, is_frozen
from orchestra.actors.message import Message
from orchestra.actors.ref import Ref
from orchestra.actors.sparse_array import SparseArray
from orchestra.errors import DecodeError

M = TypeVar("M", bound=Message)

ARRAY = 1
REF = 2
ALIGNMENT = 16
MAX_ARRAYS = 1024
MAX_RANK = 8
SHAPES = 4096
"""Array markers that are cached, by dtype and shape: most messages repeat those of the one before."""
SMALL = 8 << 10
"""Payloads up to this many bytes are copied into and out of frames: for these a copy is faster than a reference."""
DTYPES = ("bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
"""The dtypes of arrays that can travel, by the number that stands for them."""
_PADDING = bytes(ALIGNMENT)

# Initial buffers of msgpack's packers and unpackers. The defaults are 0.25 and 1 MiB.
_PACK_BYTES = 8 << 10
_UNPACK_BYTES = 4 << 10

_LIST_HEADER = {0xDC: 3, 0xDD: 5}
"""Bytes of the header of a list, by its first byte; 1 for short lists."""

Buffer = bytes | memoryview


class Encoder:
    """Packs values. Arrays are set aside: frozen ones as they are, others as copies.

    Args:
        stand_in: a class whose objects stand for arrays. They have a `dtype` and a `shape`, and are set aside, too.
    """

    def __init__(self, stand_in: type[Any] | None = None) -> None:
        self._aside = _Aside(stand_in)
        self._packer = msgpack.Packer(
            default=self._aside.default, autoreset=True, use_bin_type=True, buf_size=_PACK_BYTES
        )

    def encode(self, value: Any) -> tuple[bytes, list[AnyArray]]:
        """Return the header of `value`, and the arrays that follow it, in a list that stays as it is.

        Raises:
            TypeError: something in it cannot travel.
        """
        try:
            header: bytes = self._packer.pack(value)
        except Exception:
            self._packer.reset()
            self._aside.arrays = []
            raise
        arrays, self._aside.arrays = self._aside.arrays, []
        return header, arrays


class _Aside:
    """Converter for types unknown to msgpack: sets arrays aside, replaces other values."""

    __slots__ = ("arrays", "stand_in")

    def __init__(self, stand_in: type[Any] | None) -> None:
        self.arrays: list[Any] = []
        self.stand_in = stand_in

    def default(self, value: Any) -> Any:
        if "numpy" in sys.modules and isinstance(value, np.ndarray):
            return self._set_aside(value)
        match value:
            case Arrays():
                return value.plain()
            case SparseArray():
                return value.record()
            case Message():
                return fields_of(value)
            case Ref():
                return msgpack.ExtType(REF, value.address.encode())
            case enum.Enum():
                return value.value
            case PurePath():
                return str(value)
            case set() | frozenset():
                return sorted(value)
            case np.generic():
                return value.item()
        if self.stand_in is not None and isinstance(value, self.stand_in):
            self.arrays.append(value)
            return _marker(value.dtype, value.shape)
        raise TypeError(f"a {type(value).__name__} cannot travel in a message: {value!r:.80}")

    def _set_aside(self, array: AnyArray) -> msgpack.ExtType:
        marker = _marker(array.dtype, array.shape)
        if not (array.flags.c_contiguous and is_frozen(array)):
            array = frozen_copy(array)
        self.arrays.append(array)
        return marker


@cache
def _numbers() -> "dict[np.dtype[Any], int]":
    return {np.dtype(name): number for number, name in enumerate(DTYPES)}


@lru_cache(SHAPES)
def _marker(dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> msgpack.ExtType:
    """Return the marker of an array in a header."""
    number = _numbers().get(dtype)
    if number is None:
        raise TypeError(f"an array of dtype {dtype} cannot travel in a message")
    return msgpack.ExtType(ARRAY, struct.pack(f"<B{len(shape)}Q", number, *shape))


def fields_of(message: Message) -> dict[str, Any]:
    """Return a message's fields by name, unconverted."""
    return dict(zip(message.wire.fields, values_of(message), strict=True))


def values_of(message: Message) -> list[Any]:
    """Return the values of a message's fields, in order. Both sides know the type, so names do not travel."""
    fields = message.wire.fields
    values = message.__dict__
    return list(values.values()) if len(values) == len(fields) else [values[name] for name in fields]


def payload_size(arrays: Sequence[AnyArray]) -> int:
    """Return the bytes of `arrays` after a header, padding included."""
    return sum([padded(array.nbytes) for array in arrays])


def payload_buffers(arrays: Sequence[AnyArray]) -> list[Buffer]:
    """Return the contents of `arrays` and their padding as buffers, without copying."""
    buffers: list[Buffer] = []
    for array in arrays:
        if array.nbytes:
            buffers.append(array.reshape(-1).view(np.uint8).data)
        if gap := padded(array.nbytes) - array.nbytes:
            buffers.append(_PADDING[:gap])
    return buffers


def payload_bytes(arrays: Sequence[AnyArray]) -> bytes:
    """Return a copy of the contents of `arrays` and their padding."""
    pieces: list[bytes] = []
    for array in arrays:
        data = array.tobytes()
        pieces.append(data)
        if gap := -len(data) % ALIGNMENT:
            pieces.append(_PADDING[:gap])
    return b"".join(pieces)


class Decoder:
    """Unpacks headers. Arrays become read-only views of the payload.

    Args:
        home: the default sender of refs in the headers.
    """

    def __init__(self, home: Any = None) -> None:
        self._views = _Views(home)
        self._read = 0
        self._begin()

    def decode(self, header: bytes, payload: AnyArray | None) -> Any:
        """Return the value of a header, its arrays being read-only views of `payload` (uint8).

        Raises:
            DecodeError: the header is no msgpack, an array does not fit the payload, or bytes are left over.
        """
        views = self._views
        views.payload, views.offset, views.count = payload, 0, 0
        try:
            self._unpacker.feed(header)
            value = self._unpacker.unpack()
            self._read += len(header)
            if self._unpacker.tell() != self._read:
                raise ValueError("there are bytes behind its end")
        except DecodeError:
            self._begin()
            raise
        except (ValueError, TypeError, UnicodeDecodeError, msgpack.UnpackException) as error:
            self._begin()
            raise DecodeError(f"the header is no valid msgpack: {error or 'it is cut off'}") from error
        if payload is not None:
            views.payload = None
            if views.offset != payload.nbytes:
                raise DecodeError(
                    f"{payload.nbytes} bytes came with the message, its arrays account for {views.offset}"
                )
        return value

    def batches(self, header: bytes) -> list[tuple[Any, Any, int]]:
        """Return the message batches of a header: route, rows, and bytes of the rows of each.

        Raises:
            DecodeError: the header is no msgpack, or bytes are left over.
        """
        self._views.payload = None
        self._views.offset = self._views.count = 0
        unpacker = self._unpacker
        base = self._read
        batches = []
        try:
            unpacker.feed(header)
            for _ in range(unpacker.read_array_header() // 2):
                route = unpacker.unpack()
                begin = unpacker.tell()
                rows = unpacker.unpack()
                begin += _LIST_HEADER.get(header[begin - base], 1)
                batches.append((route, rows, unpacker.tell() - begin))
            self._read = base + len(header)
            if unpacker.tell() != self._read:
                raise ValueError("there are bytes behind its end")
        except DecodeError:
            self._begin()
            raise
        except (ValueError, TypeError, UnicodeDecodeError, msgpack.UnpackException) as error:
            self._begin()
            raise DecodeError(f"the header is no valid msgpack: {error or 'it is cut off'}") from error
        return batches

    def _begin(self) -> None:
        # One that goes on from header to header takes two thirds of the time of `unpackb`.
        self._unpacker = msgpack.Unpacker(
            ext_hook=self._views.extension,
            raw=False,
            strict_map_key=False,
            read_size=_UNPACK_BYTES,
            max_buffer_size=0,
        )
        self._read = 0


class _Views:
    """Converter of the msgpack extensions: refs, and arrays as views of a payload."""

    __slots__ = ("count", "home", "offset", "payload")

    def __init__(self, home: Any) -> None:
        self.home = home
        self.payload: AnyArray | None = None
        self.offset = 0
        self.count = 0

    def extension(self, code: int, data: bytes) -> Any:
        if code == REF:
            return Ref(data.decode(), self.home)
        if code != ARRAY:
            raise DecodeError(f"unknown msgpack extension {code}")
        self.count += 1
        if self.count > MAX_ARRAYS:
            raise DecodeError(f"more than {MAX_ARRAYS} arrays in one message")
        dtype, shape, nbytes = _array_marker(data)
        payload, offset = self.payload, self.offset
        end = offset + nbytes
        if end > (0 if payload is None else payload.nbytes):
            raise DecodeError(f"an array {dtype}{list(shape)} reaches beyond the {offset}+ bytes that came with it")
        if payload is None:
            array: AnyArray = np.empty(shape, dtype)
            array.flags.writeable = False
        else:
            array = np.ndarray(shape, dtype, payload, offset)
        self.offset = offset + padded(nbytes)
        return array


def decode(header: bytes, payload: AnyArray | None, home: Any = None) -> Any:
    """Return the value of a header, as a new `Decoder` does."""
    return Decoder(home).decode(header, payload)


def builder(kind: type[M]) -> Callable[[Any], M]:
    """Return a function that makes messages of one type, as `build` does but faster."""
    names = kind.wire.fields
    width = len(names)
    validate = kind.__pydantic_validator__.validate_python

    def make(fields: Any) -> M:
        if type(fields) is list:
            if len(fields) != width:
                raise DecodeError(f"{kind.__name__}: {len(fields)} values came for its {width} fields")
            fields = dict(zip(names, fields))  # noqa: B905 (they are as many, and this runs for every message)
        try:
            return validate(fields)  # type: ignore[no-any-return]  # pydantic says Any; it is a `kind`
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "the message"
            raise DecodeError(f"{kind.__name__}: {where}: {first['msg']}") from error

    return make


def build(kind: type[M], fields: Any) -> M:
    """Return the validated message with these fields: all values in order, or a dict by name.

    Raises:
        DecodeError: a field is missing, unknown or of the wrong type; the text names it.
    """
    return builder(kind)(fields)


def build_all(kind: type[Message], rows: Any) -> list[Message]:
    """Return the validated messages of `rows`, one list of values each.

    Raises:
        DecodeError: as in `build`, or `rows` is not a list of lists.
    """
    names = kind.wire.fields
    if type(rows) is not list or set(map(type, rows)) != {list}:
        raise DecodeError(f"{kind.__name__}: what came is no list of rows")
    if set(map(len, rows)) != {len(names)}:
        lengths = sorted({len(row) for row in rows} - {len(names)})
        raise DecodeError(f"{kind.__name__}: {lengths[0]} values came for its {len(names)} fields")
    validator = _ROWS.get(kind)
    if validator is None:
        validator = _ROWS[kind] = TypeAdapter(list[kind]).validator  # type: ignore[valid-type]  # a type at run time
    try:
        messages: list[Message] = validator.validate_python(list(map(dict, map(zip, repeat(names), rows))))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"][1:])) or "the message"
        raise DecodeError(f"{kind.__name__}: {where}: {first['msg']}") from error
    return messages


_ROWS: WeakKeyDictionary[type[Message], Any] = WeakKeyDictionary()
"""Validators of many messages of a type at once, which is faster than one by one."""


def copied(message: Message) -> Message:
    """Return an encoded and decoded copy: the same message, sharing nothing mutable."""
    return weighed_copy(message)[0]


def weighed_copy(message: Message) -> tuple[Message, int]:
    """Return `copied(message)` and its bytes on the wire."""
    header, arrays = Encoder().encode(values_of(message))
    return build(type(message), decode(header, payload_array(arrays))), len(header) + payload_size(arrays)


def isolate(message: Message) -> tuple[Message, int]:
    """Return `message` sharing nothing mutable with its sender, and its bytes in a mailbox."""
    if not message.wire.immutable:
        return weighed_copy(message)
    if message.wire.array_fields:
        message = isolated(message)
    return message, size_of(message)


def payload_array(arrays: Sequence[AnyArray]) -> AnyArray | None:
    """Return the payload a peer would receive, as a copy (uint8)."""
    return np.frombuffer(payload_bytes(arrays), np.uint8) if arrays else None


@lru_cache(SHAPES)
def _array_marker(data: bytes) -> "tuple[np.dtype[Any], tuple[int, ...], int]":
    """Return the dtype, the shape and the bytes of an array."""
    rank, odd = divmod(len(data) - 1, 8)
    if odd or rank < 0 or rank > MAX_RANK or data[0] >= len(DTYPES):
        raise DecodeError(f"a malformed array marker of {len(data)} bytes")
    dtype = np.dtype(DTYPES[data[0]])
    shape = struct.unpack_from(f"<{rank}Q", data, 1)
    return dtype, shape, math.prod(shape) * dtype.itemsize


def padded(nbytes: int) -> int:
    """Return the bytes that an array takes in a payload."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
