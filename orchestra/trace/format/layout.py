"""Records to bytes and back, no I/O. `docs/traces.md` has every byte.

A file begins with a preamble of 16 bytes; then records follow, each a prefix of 20 bytes and a body. A body is a
msgpack header, as the codec makes it, and a table that says of each array in it where its numbers are: in the table
(small ones), in a BLOB or MOSAIC record of the same file (by digest), or nowhere.
"""

import math
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any, NamedTuple, cast

import msgpack
import numpy as np
import xxhash

from orchestra.actors.codec import ARRAY, DTYPES, REF
from orchestra.actors.message import AnyArray
from orchestra.actors.ref import Ref
from orchestra.errors import TraceError
from orchestra.trace.format.dedup import Laid, Run
from orchestra.trace.format.effects import (
    EFFECTS,
    AnswerGiven,
    AnswerRefused,
    Asked,
    Effect,
    MessageId,
    MessageType,
    Sent,
    TimerSet,
    Withdrawn,
)
from orchestra.trace.format.records import (
    INPUTS,
    PHASES,
    ActorSnapshot,
    Answer,
    Birth,
    Close,
    Delivery,
    Digest,
    End,
    Experiment,
    Failure,
    Gap,
    Handled,
    Header,
    Kind,
    Late,
    Record,
)

MAGIC = b"ORTRACE\n"
VERSION = 2
READABLE = (1, 2)
"""The versions that are read: 1 has no MOSAIC."""
PREAMBLE = struct.Struct("<8sHHI")
"""Magic, version, zero, CRC-32 of what stands before it."""
SYNC = b"\xf1OR\x1e"
PREFIX = struct.Struct("<4sBBHIII")
"""Sync mark, kind, zero, zero, length of the body, CRC-32 of the body, CRC-32 of what stands before it."""
DIGEST_BYTES = 16
INLINE_BELOW = 2048
"""Arrays of fewer bytes stand in their record."""
INLINE, BY_DIGEST = 0, 1
MAX_BODY = (1 << 32) - 1
ARRAYS = frozenset({Kind.BLOB, Kind.MOSAIC})
"""The records that hold arrays."""

_LENGTH = struct.Struct("<I")
_RUN = struct.Struct("<QI")
"""A run of a MOSAIC: its offset in the file, its length."""


class Entry(NamedTuple):
    """A record on its way to the file: its header is encoded, its arrays are not touched yet."""

    kind: Kind
    header: bytes
    arrays: Sequence[AnyArray]
    types: Sequence[int]
    """The numbers of the message types that it names."""
    nbytes: int
    """What it weighs: the header and the arrays."""
    actor: str
    clock: int
    row: Sequence[Any] = ()
    """What the header says."""


def preamble() -> bytes:
    """Return the first 16 bytes of a file."""
    begins = PREAMBLE.pack(MAGIC, VERSION, 0, 0)[:-4]
    return begins + _LENGTH.pack(zlib.crc32(begins))


def prefix(kind: Kind, length: int, crc: int) -> bytes:
    """Return the 20 bytes before a body."""
    begins = PREFIX.pack(SYNC, kind, 0, 0, length, crc, 0)[:-4]
    return begins + _LENGTH.pack(zlib.crc32(begins))


def digest_of(array: AnyArray) -> bytes:
    """Return the XXH3-128 of a C-contiguous array's bytes."""
    return xxhash.xxh3_128_digest(array.reshape(-1).view(np.uint8).data)


def body_of(entry: Entry, digests: Sequence[bytes | None]) -> bytes:
    """Return the body of a record.

    Args:
        entry: the record.
        digests: for each of its arrays the digest, or None for those that stand inline.
    """
    pieces = [_LENGTH.pack(len(entry.header)), entry.header]
    for array, digest in zip(entry.arrays, digests, strict=True):
        if digest is None:
            pieces.append(bytes((INLINE,)) + array.tobytes())
        else:
            pieces.append(bytes((BY_DIGEST,)) + digest)
    return b"".join(pieces)


def framed(kind: Kind, body: bytes) -> bytes:
    """Return a whole record."""
    return prefix(kind, len(body), zlib.crc32(body)) + body


def blob_prefix(digest: bytes, nbytes: int) -> bytes:
    """Return what comes before an array's bytes in a BLOB. Its CRC is the digest's, which vouches for the rest."""
    return prefix(Kind.BLOB, DIGEST_BYTES + nbytes, zlib.crc32(digest)) + digest


def mosaic(digest: bytes, laid: Laid) -> tuple[bytes, bytes]:
    """Return what comes before the new bytes of a MOSAIC, and after them. Its CRC is that of all but those bytes."""
    table = b"".join([*(_RUN.pack(*run) for run in laid.runs), _LENGTH.pack(len(laid.runs))])
    length = DIGEST_BYTES + sum(map(len, laid.new)) + len(table)
    return prefix(Kind.MOSAIC, length, zlib.crc32(table, zlib.crc32(digest))) + digest, table


def array_sound(kind: Kind, body: memoryview, crc: int) -> bool:
    """Whether a BLOB or MOSAIC is what its prefix says; its array itself is vouched for by the digest."""
    checked = zlib.crc32(body[:DIGEST_BYTES])
    if kind is Kind.MOSAIC:
        begin = _table_of(body)
        if begin is None:
            return False
        checked = zlib.crc32(body[begin:], checked)
    return checked == crc


def runs_of(body: memoryview) -> list[Run]:
    """Return how the array of a sound MOSAIC is put together."""
    return list(map(Run._make, _RUN.iter_unpack(body[_table_of(body) : -_LENGTH.size])))


def _table_of(body: memoryview) -> int | None:
    """Return where the runs of a MOSAIC begin, or None if there is no room for so many."""
    least = DIGEST_BYTES + _LENGTH.size
    if len(body) < least:
        return None
    begin = len(body) - _LENGTH.size - _RUN.size * _LENGTH.unpack_from(body, len(body) - _LENGTH.size)[0]
    return begin if begin >= DIGEST_BYTES else None


def type_body(number: int, kind: MessageType) -> bytes:
    """Return the body of a TYPE record."""
    return cast("bytes", msgpack.packb([number, kind.tag, kind.fingerprint, list(kind.fields), kind.request]))


def header_body(header: Header) -> bytes:
    """Return the body of a HEADER record."""
    experiment = header.experiment
    told = {field.name: getattr(header, field.name) for field in fields(Header)}
    told["experiment"] = None if experiment is None else [experiment.file, experiment.sha256, list(experiment.flags)]
    return cast("bytes", msgpack.packb(told))


def header_of(body: bytes) -> Header:
    """Return what a HEADER record says."""
    told = msgpack.unpackb(body)
    file = told["experiment"]
    told["experiment"] = None if file is None else Experiment(file[0], file[1], tuple(file[2]))
    return Header(**told)


def type_of(body: bytes) -> tuple[int, MessageType]:
    """Return what a TYPE record says."""
    number, tag, fingerprint, names, request = msgpack.unpackb(body)
    return number, MessageType(tag, fingerprint, tuple(names), request)


class Decoder:
    """Turns bodies into records.

    Args:
        types: the message types of the file, by number; may grow.
        blob: returns the bytes of a digest, or None where the file has none.
    """

    def __init__(self, types: dict[int, MessageType], blob: Callable[[bytes], AnyArray | None]) -> None:
        self.types = types
        self._blob = blob

    def record(self, kind: Kind, body: bytes, *, resolve: bool = True) -> Record:
        """Return the record of a body; without `resolve`, every large array in it is a `Digest`.

        Raises:
            TraceError: the body is not what its kind says.
        """
        try:
            return _BUILDERS[kind](self, self.unpacked(body, resolve=resolve and kind in INPUTS))
        except (KeyError, ValueError, TypeError, IndexError, struct.error, msgpack.UnpackException) as error:
            raise TraceError(f"a {kind.name} record cannot be understood: {error!r}") from error

    def unpacked(self, body: bytes, *, values: bool = True, resolve: bool = False) -> list[Any]:
        """Return the header of a body, its arrays filled in.

        Args:
            body: of a record.
            values: whether arrays are wanted at all; else each is None.
            resolve: whether an array told by digest is looked for in the file; else it is a `Digest`.
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
            dtype, shape = DTYPES[data[0]], struct.unpack_from(f"<{rank}Q", data, 1)
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
            raise ValueError("its header is no list")
        return header

    def type(self, number: int) -> MessageType:
        """Return the type of a number; a nameless one where its record is lost."""
        found = self.types.get(number)
        if found is None:
            found = self.types[number] = MessageType(f"type_{number}", b"", (), request=False)
        return found

    def fields(self, kind: MessageType, values: list[Any] | None) -> dict[str, Any] | None:
        """Return a message's fields by name."""
        if values is None:
            return None
        names = kind.fields if len(kind.fields) == len(values) else [f"field_{i}" for i in range(len(values))]
        return dict(zip(names, values, strict=True))

    def effects(self, rows: list[list[Any]]) -> tuple[Effect, ...]:
        """Return the effects of a HANDLED or LATE record."""
        return tuple(self._effects(rows))

    def _effects(self, rows: list[list[Any]]) -> Iterator[Effect]:
        for code, at, *rest in rows:
            made = EFFECTS[code]
            if made is Sent:
                number, recipient, type_number, values, nowait = rest
                kind = self.type(type_number)
                yield Sent(at, number, recipient, kind, self.fields(kind, values), nowait)
            elif made is Asked:
                number, recipient, type_number, values = rest
                kind = self.type(type_number)
                yield Asked(at, number, recipient, kind, self.fields(kind, values))
            elif made is TimerSet:
                number, delay, type_number, values = rest
                kind = self.type(type_number)
                yield TimerSet(at, number, delay, kind, self.fields(kind, values))
            elif made is AnswerGiven:
                yield AnswerGiven(at, MessageId(rest[0], rest[1]), *rest[2:])
            elif made is AnswerRefused:
                yield AnswerRefused(at, MessageId(rest[0], rest[1]), *rest[2:])
            elif made is Withdrawn:
                yield Withdrawn(at, MessageId(rest[0], rest[1]), rest[2])
            else:
                yield made(at, *rest)


def _birth(decoder: Decoder, row: list[Any]) -> Birth:
    actor, incarnation, clock, time, kind, source, origin, sent, parent, parent_incarnation, parent_n, args, kwargs = (
        row
    )
    return Birth(
        actor=actor,
        incarnation=incarnation,
        clock=clock,
        time=time,
        kind=kind,
        source=source,
        origin=origin,
        sent=sent,
        parent=parent,
        parent_incarnation=parent_incarnation,
        parent_n=parent_n,
        args=None if args is None else tuple(args),
        kwargs=kwargs,
    )


def _delivery(decoder: Decoder, row: list[Any]) -> Delivery:
    actor, incarnation, n, clock, time, waited, sender, number, type_number, correlation, nbytes, timer, values = row
    kind = decoder.type(type_number)
    values = decoder.fields(kind, values)
    message = MessageId(sender, number)
    return Delivery(actor, incarnation, n, clock, time, waited, message, kind, correlation, nbytes, timer, values)


def _answer(decoder: Decoder, row: list[Any]) -> Answer:
    actor, incarnation, n, clock, time, number, type_number, value = row
    return Answer(actor, incarnation, n, clock, time, number, decoder.type(type_number), value)


def _handled(decoder: Decoder, row: list[Any]) -> Handled:
    actor, incarnation, n, phase, clock, time, seconds, effects, failure = row
    failed = None if failure is None else Failure(*failure)
    return Handled(actor, incarnation, n, PHASES[phase], clock, time, seconds, decoder.effects(effects), failed)


def _late(decoder: Decoder, row: list[Any]) -> Late:
    actor, incarnation, n, clock, time, effects = row
    return Late(actor, incarnation, n, clock, time, decoder.effects(effects))


_BUILDERS: dict[Kind, Callable[[Decoder, list[Any]], Record]] = {
    Kind.BIRTH: _birth,
    Kind.DELIVERY: _delivery,
    Kind.ANSWER: _answer,
    Kind.HANDLED: _handled,
    Kind.LATE: _late,
    Kind.END: lambda _, row: End(*row),
    Kind.SNAPSHOT: lambda _, row: ActorSnapshot(*row),
    Kind.GAP: lambda _, row: Gap(*row),
    Kind.CLOSE: lambda _, row: Close(*row),
}
