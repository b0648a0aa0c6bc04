"""Frames to bytes and back. No I/O.

A frame is a prefix of 16 bytes, a header, and a payload:

    2  magic b"OR"
    1  protocol version
    1  kind
    4  header length, little-endian
    8  payload length, little-endian

Lengths are checked against the limits before memory is allocated. A payload is received straight into the memory that
its arrays are views of.
"""

import enum
import struct
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from orchestra.actors import lazy_numpy as np
from orchestra.actors.axes import AnyArray
from orchestra.actors.codec import SMALL, Buffer
from orchestra.errors import FrameError, VersionMismatch, WireError

MAGIC = b"OR"
VERSION = 4
PREFIX = struct.Struct("<2sBBIQ")
CHUNK = 256 << 10
PEEK = 1 << 10
"""Bytes that are read first where a large payload is expected."""
FIRST_CHUNK = 4 << 10
"""The buffer of a reader before larger frames are allowed: an unproven peer gets no more memory."""


class Kind(enum.IntEnum):
    """The kind of a frame."""

    HANDSHAKE = 1
    HELLO = 2
    MESSAGE = 3
    ANSWER = 4
    FAILURE = 5
    CREDIT = 6
    PING = 7
    PONG = 8
    GOODBYE = 9
    ACKNOWLEDGE = 10
    REFUSAL = 11
    CANCEL = 12
    BATCH = 13
    SHM_OFFER = 14
    SHM_ACCEPT = 15
    SHM_DATA = 16
    SHM_RELEASE = 17
    SHM_RETIRE = 18
    TAKEN = 19


CONTENTS: dict[Kind, tuple[type, ...]] = {
    Kind.FAILURE: (int, int, str, str),  # correlation, clock, error, text
    Kind.CANCEL: (int,),  # correlation of a request whose asker no longer waits
    Kind.CREDIT: (str, int, int),  # recipient, messages, bytes
    Kind.TAKEN: (str, str, str),  # recipient, sender and type of a latest-wins message that the recipient has taken
    Kind.SHM_OFFER: (int, int, int, bytes, int),  # number, process, descriptor, name, bytes of an arena
    Kind.SHM_ACCEPT: (int, str),  # number of the arena; the reason of a refusal, empty if it is mapped
    Kind.SHM_RELEASE: (list,),  # for each block: number of the arena, place, uses, whether it may be viewed for ever
    Kind.SHM_RETIRE: (int,),  # number of an arena that is not named again
}
"""The types of what the header of a frame holds."""

_BEGIN = struct.Struct("<4sIQ")
_KINDS = {PREFIX.pack(MAGIC, VERSION, kind, 0, 0)[:4]: kind for kind in Kind}
"""The kinds by the first four bytes of a frame: one look-up checks magic, version and kind."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest frame that a peer may send."""

    header: int = 16 << 20
    """Bytes of a header: the statistics of the root of a run over a thousand hosts have six million."""
    payload: int = 1 << 30
    """Bytes of a payload."""


UNPROVEN = Limits(header=256, payload=0)
"""The limits before a peer has proved that it belongs to the run."""


class Frame(NamedTuple):
    """A received frame. The payload, if any, is a read-only array of uint8."""

    kind: Kind
    header: bytes
    payload: AnyArray | None

    @property
    def nbytes(self) -> int:
        """Bytes on the wire, prefix included."""
        return PREFIX.size + len(self.header) + (0 if self.payload is None else self.payload.nbytes)


_new_frame = partial(tuple.__new__, Frame)  # takes a third of the time of `Frame(…)`, for every message that arrives
_pack_prefix = PREFIX.pack
_unpack_begin = _BEGIN.unpack_from


def frame_prefix(kind: Kind, header_length: int, payload_length: int) -> bytes:
    """Return the 16 bytes that precede a header."""
    return _pack_prefix(MAGIC, VERSION, kind, header_length, payload_length)


def frame_bytes(kind: Kind, header: bytes) -> bytes:
    """Return a whole frame without payload."""
    return frame_prefix(kind, len(header), 0) + header


class PayloadPool:
    """Lends memory to payloads, and lends it again once its lease is over. Safe in any number of threads.

    The system has to clear the pages that it hands out, which takes longer than to fill them. The kept memory is
    bounded, and only that of payloads is kept whose size repeats: memory fits no other size. A lease is the life of one
    array that every view of the memory refers to, so it is over when the last view is gone. Reference counts play no
    part: they are not exact in all of Python's builds.
    """

    LEAST = 128 << 10
    """Bytes of the smallest payload whose memory is kept."""
    MOST = 64
    """Payloads whose memory is kept, and sizes of others that are remembered."""
    MOST_BYTES = 64 << 20
    """Their bytes together."""

    def __init__(self) -> None:
        self._kept: deque[_Lease] = deque()
        self.nbytes = 0
        """Bytes of the kept memory."""
        self._sizes: deque[int] = deque(maxlen=self.MOST)
        """The last sizes for which no memory was kept."""
        self._lock = threading.Lock()

    def lend(self, nbytes: int) -> AnyArray:
        """Return an array of `nbytes` of uint8 with undefined contents, whose memory nothing else refers to."""
        if not self.LEAST <= nbytes <= self.MOST_BYTES:
            return np.empty(nbytes, np.uint8)
        with self._lock:
            for lease in self._kept:
                if lease.memory.nbytes == nbytes and lease.array() is None:
                    return lease.begin()
            if nbytes not in self._sizes:
                self._sizes.append(nbytes)
                return np.empty(nbytes, np.uint8)
            lease = _Lease(np.empty(nbytes, np.uint8))
            self._kept.append(lease)
            self.nbytes += nbytes
            while len(self._kept) > self.MOST or self.nbytes > self.MOST_BYTES:
                self.nbytes -= self._kept.popleft().memory.nbytes
            return lease.begin()


class _Lease:
    """Memory, and the array that it is lent as."""

    __slots__ = ("array", "memory")

    def __init__(self, memory: AnyArray) -> None:
        self.memory = memory
        self.array: weakref.ref[AnyArray]
        """Refers to nothing once the lease is over."""

    def begin(self) -> AnyArray:
        # Of a buffer: NumPy would let the views of an array's view refer to the first array, and skip this one.
        array = np.frombuffer(self.memory.data, np.uint8)
        self.array = weakref.ref(array)
        return array


_payloads = PayloadPool()

Lend = Callable[[int], AnyArray | None]
"""Returns an array of uint8 with this many bytes, which owns its memory, or None."""


def no_memory(nbytes: int) -> AnyArray | None:
    """Return None."""
    return None


class FrameReader:
    """Splits a byte stream into frames: fill a part of `get_buffer()`, then pass its length to `received`.

    After a `FrameError` the reader cannot continue, since the next frame could begin anywhere.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.lend: Lend = no_memory
        """Lends the memory for a payload. Where it lends none, the pool of this process does."""
        self._memory = bytearray(FIRST_CHUNK)
        self._view = memoryview(self._memory)
        self._start = 0
        self._end = 0
        self._payload: AnyArray | None = None
        self._payload_filled = 0
        self._head: tuple[Kind, bytes] | None = None
        self._ahead = CHUNK
        """Bytes that are read at once between payloads."""

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        """Return the memory for the next bytes, whatever the hint; never empty."""
        if self._payload is not None:
            return self._payload.data[self._payload_filled :]
        if self._start == self._end:
            self._start = self._end = 0
            if self._ahead < CHUNK:
                # A large payload came last, so another may follow. The part of it that is read with its header has to
                # be copied.
                ahead, self._ahead = self._ahead, CHUNK
                return self._view[:ahead]
            if len(self._memory) < CHUNK and self.limits.header > FIRST_CHUNK:
                self._memory = bytearray(CHUNK)
                self._view = memoryview(self._memory)
            return self._view
        if self._end == len(self._memory):
            self._make_room()
        return self._view[self._end :]

    def sole(self, count: int) -> Frame | None:
        """Return the frame if the `count` bytes just written are exactly one without payload.

        Otherwise, also for one that breaks the protocol, return None without effect: call `received`.
        """
        if self._end or self._payload is not None or count < PREFIX.size:
            return None
        begins, header_length, payload_length = _unpack_begin(self._memory)
        if payload_length or header_length != count - PREFIX.size or header_length > self.limits.header:
            return None
        kind = _KINDS.get(begins)
        return None if kind is None else _new_frame((kind, bytes(self._view[PREFIX.size : count]), None))

    def received(self, count: int) -> Iterator[Frame]:
        """Account for `count` bytes written to the buffer; yield the frames that are complete now.

        The limits apply from one frame to the next: the handler of a frame may change them.

        Raises:
            FrameError: wrong magic or kind, or a length over the limits.
            VersionMismatch: another version of the protocol.
        """
        if self._payload is not None:
            self._payload_filled += count
            yield from self._finished_payload()
            return
        self._end += count
        while self._payload is None and self._end - self._start >= PREFIX.size:
            begins, header_length, payload_length = _BEGIN.unpack_from(self._memory, self._start)
            kind = _KINDS.get(begins)
            if kind is None or header_length > self.limits.header or payload_length > self.limits.payload:
                raise self._refusal(*PREFIX.unpack_from(self._memory, self._start))
            begin = self._start + PREFIX.size
            if self._end - begin < header_length:
                break
            self._start = end = begin + header_length
            header = bytes(self._view[begin:end])
            if not payload_length:
                yield _new_frame((kind, header, None))
                continue
            if payload_length <= SMALL and self._end - end >= payload_length:
                self._start = end + payload_length
                payload = np.frombuffer(bytes(self._view[end : self._start]), np.uint8)
                yield _new_frame((kind, header, payload))
                continue
            self._head = (kind, header)
            lent = self.lend(payload_length)
            self._payload = _payloads.lend(payload_length) if lent is None else lent
            self._ahead = PEEK if payload_length >= CHUNK else CHUNK
            here = min(payload_length, self._end - self._start)
            self._payload[:here] = np.frombuffer(self._memory, np.uint8, here, self._start)
            self._start += here
            self._payload_filled = here
            yield from self._finished_payload()

    def _finished_payload(self) -> Iterator[Frame]:
        assert self._payload is not None
        assert self._head is not None
        if self._payload_filled == self._payload.nbytes:
            frame = Frame(*self._head, np.frombuffer(self._payload.data.toreadonly(), np.uint8))
            self._payload = self._head = None
            yield frame

    def _refusal(self, magic: bytes, version: int, number: int, header_length: int, payload_length: int) -> WireError:
        if magic != MAGIC:
            return FrameError(f"expected a frame to begin with {MAGIC!r}, got {magic!r}")
        if version != VERSION:
            return VersionMismatch(f"the peer speaks protocol version {version}, this node speaks {VERSION}")
        if number not in _KINDS.values():
            return FrameError(f"unknown kind of frame {number}")
        if header_length > self.limits.header:
            return FrameError(f"a header of {header_length:,} bytes; at most {self.limits.header:,} are allowed")
        return FrameError(f"a payload of {payload_length:,} bytes; at most {self.limits.payload:,} are allowed")

    def _make_room(self) -> None:
        """Move the unread bytes to the front; grow if a single header fills the buffer. Old views stay valid."""
        unread = bytes(self._view[self._start : self._end])
        if len(unread) * 2 > len(self._memory):
            self._memory = bytearray(2 * len(self._memory))
            self._view = memoryview(self._memory)
        self._view[: len(unread)] = unread
        self._start, self._end = 0, len(unread)


class Outbox:
    """Pieces to be written: all pieces of one turn of the loop leave in one write, or in a few large ones."""

    JOIN = 64 << 10
    """Bytes from which a piece is large, and a write is worth its system call."""

    def __init__(self) -> None:
        self._pieces: list[Buffer] = []
        self.nbytes = 0
        """Bytes that are queued. No piece is empty."""

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def extend(self, pieces: list[Buffer]) -> None:
        """Queue `pieces`, in order."""
        if len(pieces) == 1:
            self._pieces.append(pieces[0])
            self.nbytes += len(pieces[0])
        else:
            self._pieces.extend(pieces)
            self.nbytes += sum(map(len, pieces))

    @property
    def due(self) -> bool:
        """True if the queue is large enough to leave now, so that the peer works on it meanwhile."""
        return self.nbytes >= self.JOIN

    def take(self) -> list[Buffer]:
        """Return and clear the queue: small pieces joined, large ones (arrays) without a copy."""
        pieces, self._pieces = self._pieces, []
        self.nbytes = 0
        out: list[Buffer] = []
        small: list[Buffer] = []
        for piece in pieces:
            if len(piece) < self.JOIN:
                small.append(piece)
                continue
            if small:
                out.append(b"".join(small))
                small = []
            out.append(piece)
        if small:
            out.append(b"".join(small))
        return out
