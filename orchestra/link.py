"""A link: the conversation of two nodes over one connection, from the handshake to the last frame.

Before a peer has proved that it knows the run's secret, it may send three small frames of fixed layout and nothing
else; no message is decoded. Dialer D and listener L prove themselves to each other:

    D → L   nonce of D (32 bytes)
    L → D   nonce of L, HMAC-SHA256(secret, "listener" ‖ nonce of D ‖ nonce of L)
    D → L   HMAC-SHA256(secret, "dialer" ‖ nonce of D ‖ nonce of L)

Then each says hello: its name, where it listens, and the schemas of its message types.

Flow control is per recipient. A sender may have `WINDOW` messages and about `WINDOW_BYTES` bytes on their way to one
mailbox; what leaves that mailbox is credited back. A full mailbox so never holds up another one, nor the heartbeat.
"""

import asyncio
import hashlib
import hmac
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import msgpack

from orchestra import codec, errors
from orchestra.codec import Buffer
from orchestra.envelope import Envelope
from orchestra.errors import (
    DecodeError,
    FrameError,
    HandshakeError,
    MailboxFull,
    OrchestraError,
    Unreachable,
    WireError,
)
from orchestra.message import REGISTRY, Lane, Message
from orchestra.system import LinkStatistics
from orchestra.transport.base import Connection
from orchestra.transport.frames import Frame, Kind, frame_bytes, frame_prefix

if TYPE_CHECKING:
    from orchestra.node import Node
    from orchestra.peers import Peers

WINDOW = 4096
WINDOW_BYTES = 64 << 20
NONCE = 32
PROOF_SECONDS = 5.0

# What the frames of each kind hold.
_MESSAGE = (str, str, int, list, int, int, object, object)
"""Recipient, sender, correlation, chain of asks, number, clock, type, fields."""
_ANSWER = (int, int, object)
"""Correlation, clock, value."""
_FAILURE = (int, int, str, str)
"""Correlation, clock, error, text."""
_CREDIT = (str, int, int)
"""Recipient, messages, bytes."""

_FAILURES = {
    kind.__name__: kind
    for kind in (errors.ActorStopped, errors.AskCycle, errors.AskFailed, errors.NotUnderstood, errors.Unreachable)
}


class _Window:
    """What one sender still may send to one recipient."""

    __slots__ = ("count", "nbytes", "waiting")

    def __init__(self) -> None:
        self.count = 0
        self.nbytes = 0
        self.waiting: deque[tuple[asyncio.Future[None], list[Buffer], int]] = deque()

    @property
    def used(self) -> float:
        """The share of the credit that is in use."""
        return min(max(self.count / WINDOW, self.nbytes / WINDOW_BYTES), 1.0)

    def take(self, nbytes: int) -> bool:
        """Use credit for one message. The last one may overshoot the bytes, so that no message is too large."""
        if self.count >= WINDOW or self.nbytes >= WINDOW_BYTES:
            return False
        self.count += 1
        self.nbytes += nbytes
        return True


class Link:
    """One side of a conversation with another node."""

    def __init__(self, node: "Node", peers: "Peers", connection: Connection, *, dialing: bool) -> None:
        self.peer = ""
        """The other node's name, once it has said hello."""
        self.peer_listening = ""
        self.peer_incarnation = b""
        self.opened: asyncio.Future[None] = node.loop.create_future()
        self.silent_beats = 0
        """Heartbeats of this node since the peer was heard."""
        self.lost = False
        self._sent = self._sent_bytes = self._received = self._received_bytes = 0
        self._pinged_at: float | None = None
        self._round_trip_s: float | None = None
        self.said_goodbye = False
        self._node = node
        self._peers = peers
        self._connection = connection
        self._dialing = dialing
        self._proven = False
        self._nonce = node.entropy(NONCE)
        self._peer_nonce = b""
        self._encoder = codec.Encoder()
        self._my_tags = sorted(REGISTRY)
        self._my_numbers = {tag: number for number, tag in enumerate(self._my_tags)}
        self._peer_types: list[type[Message] | str] = []
        self._windows: dict[str, _Window] = {}
        self._owed: dict[str, list[int]] = {}
        self._deadline = None if node.inline else node.loop.call_later(PROOF_SECONDS, self._too_slow)
        connection.attach(self)
        if dialing:
            self._send(Kind.HANDSHAKE, self._nonce)

    def __repr__(self) -> str:
        return f"<Link to {self.peer or self._connection.peer}>"

    # Sending

    def post(
        self,
        sender: str,
        recipient: str,
        message: Message,
        correlation: int = 0,
        chain: tuple[str, ...] = (),
        number: int = 0,
        clock: int = 0,
    ) -> Awaitable[None] | None:
        """Send `message`, or return what to await until the recipient has room.

        The other arguments are what `Envelope` says of them.

        Raises:
            Unreachable: the link is lost.
        """
        pieces, nbytes = self._encode(sender, recipient, message, correlation, chain, number, clock)
        if message.lane is not Lane.SYSTEM:
            window = self._window(recipient)
            if window.waiting or not window.take(nbytes):
                turn: asyncio.Future[None] = self._node.loop.create_future()
                window.waiting.append((turn, pieces, nbytes))
                return turn
        self._count_sent(nbytes)
        self._connection.send(pieces)
        return None

    def post_nowait(self, sender: str, recipient: str, message: Message, number: int = 0, clock: int = 0) -> None:
        """Send `message` at once.

        Raises:
            MailboxFull: the recipient has no room.
        """
        window = self._window(recipient)
        full = window.waiting or window.count >= WINDOW or window.nbytes >= WINDOW_BYTES
        if full and message.lane is not Lane.SYSTEM:
            raise MailboxFull(f"{recipient} has {window.count} messages ({window.nbytes:,} bytes) on their way already")
        self.post(sender, recipient, message, number=number, clock=clock)

    def answer(self, correlation: int, value: Any) -> None:
        """Send the answer to a request that came by this link."""
        header, arrays = self._encoder.encode([correlation, self._node.logical, value])
        size = codec.payload_size(arrays)
        limits = self._node.limits
        if len(header) > limits.header or size > limits.payload:
            raise self._too_large("an answer", len(header), size)
        self._count_sent(len(header) + size)
        self._connection.send([frame_prefix(Kind.ANSWER, len(header), size) + header, *codec.payload_buffers(arrays)])

    def fail(self, correlation: int, error: Exception) -> None:
        """Send that a request that came by this link has no answer."""
        kind = type(error).__name__ if type(error).__name__ in _FAILURES else "AskFailed"
        self._send(Kind.FAILURE, msgpack.packb([correlation, self._node.logical, kind, str(error)[:4000]]))

    def consumed(self, recipient: str, nbytes: int) -> None:
        """Credit the peer for a message that left the mailbox of `recipient`."""
        owed = self._owed.get(recipient)
        if owed is None:
            owed = self._owed[recipient] = [0, 0]
        owed[0] += 1
        owed[1] += nbytes
        if owed[0] >= WINDOW // 4 or owed[1] >= WINDOW_BYTES // 4:
            del self._owed[recipient]
            self._send(Kind.CREDIT, msgpack.packb([recipient, *owed]))

    def ping(self) -> None:
        """Ask for a sign of life."""
        if self._pinged_at is None:
            self._pinged_at = self._node.clock.monotonic()
        self._send(Kind.PING, b"")

    def close(self) -> None:
        """Send what is queued, say goodbye, and close."""
        if self._proven:
            self._send(Kind.GOODBYE, b"")
        self._connection.close()

    def abort(self, error: Exception) -> None:
        """Close at once."""
        self._connection.abort(error)

    # Receiving

    def frame_received(self, frame: Frame) -> None:
        """Handle one frame; raises `WireError` for one that breaks the protocol."""
        self.silent_beats = 0
        if not self._proven:
            self._prove(frame)
            return
        if not self.peer:
            self._greet(frame)
            return
        match frame.kind:
            case Kind.MESSAGE:
                self._count_received(frame.nbytes)
                self._message(frame)
            case Kind.ANSWER:
                self._count_received(frame.nbytes)
                correlation, clock, value = self._unpack(frame, _ANSWER)
                self._node.witness(clock)
                self._node.resolve(correlation, value)
            case Kind.FAILURE:
                correlation, clock, kind, text = self._unpack(frame, _FAILURE)
                self._node.witness(clock)
                self._node.reject(correlation, _FAILURES.get(kind, errors.AskFailed)(text))
            case Kind.CREDIT:
                self._credit(*self._unpack(frame, _CREDIT))
            case Kind.PING:
                self._send(Kind.PONG, b"")
            case Kind.PONG:
                if self._pinged_at is not None:
                    self._round_trip_s = self._node.clock.monotonic() - self._pinged_at
                    self._pinged_at = None
            case Kind.GOODBYE:
                self.said_goodbye = True
            case _:
                raise FrameError(f"{frame.kind.name} is out of place here")

    def connection_lost(self, error: Exception | None) -> None:
        """Fail all that depended on the connection."""
        self.lost = True
        if self._deadline is not None:
            self._deadline.cancel()
        if isinstance(error, WireError) and not isinstance(error, HandshakeError) and not self.peer:
            # Whoever sends bytes that are no frame does not belong to the run either.
            error = HandshakeError(f"{self._connection.peer} does not prove itself: {error}")
        reason = str(error) if error is not None else "closed by this side"
        gone = Unreachable(f"the connection to {self.peer or self._connection.peer} is lost: {reason}")
        if not self.opened.done():
            refused = isinstance(error, OrchestraError)
            self.opened.set_exception(error if refused and error is not None else gone)
            self.opened.exception()  # a listener does not await it
        for window in self._windows.values():
            for turn, _, _ in window.waiting:
                if not turn.done():
                    turn.set_exception(gone)
        self._peers.link_lost(self, error)

    def statistics(self) -> LinkStatistics:
        """Return what went by it so far, and what is on its way."""
        windows = self._windows.values()
        return LinkStatistics(
            peer=self.peer,
            state="lost" if self.lost else "open",
            round_trip_s=self._round_trip_s,
            sent=self._sent,
            sent_bytes=self._sent_bytes,
            received=self._received,
            received_bytes=self._received_bytes,
            in_flight=sum(window.count for window in windows),
            in_flight_bytes=sum(window.nbytes for window in windows),
            credit_used=max((window.used for window in windows), default=0.0),
            waiting=sum(len(window.waiting) for window in windows),
        )

    # Inside

    def _count_sent(self, nbytes: int) -> None:
        self._sent += 1
        self._sent_bytes += nbytes

    def _count_received(self, nbytes: int) -> None:
        self._received += 1
        self._received_bytes += nbytes

    def _send(self, kind: Kind, header: bytes) -> None:
        self._connection.send([frame_bytes(kind, header)])

    def _window(self, recipient: str) -> _Window:
        if self.lost:
            raise Unreachable(f"the connection to {self.peer} is lost")
        window = self._windows.get(recipient)
        if window is None:
            window = self._windows[recipient] = _Window()
        return window

    def _encode(
        self,
        sender: str,
        recipient: str,
        message: Message,
        correlation: int,
        chain: tuple[str, ...],
        number: int,
        clock: int,
    ) -> tuple[list[Buffer], int]:
        kind = self._my_numbers.get(message.wire.tag)
        tag: Any = [message.wire.tag, message.wire.fingerprint] if kind is None else kind
        values = [recipient, sender, correlation, chain, number, clock, tag, codec.values_of(message)]
        header, arrays = self._encoder.encode(values)
        size = codec.payload_size(arrays) if arrays else 0
        limits = self._node.limits
        if len(header) > limits.header or size > limits.payload:
            raise self._too_large(f"{message.wire.tag} to {recipient}", len(header), size)
        frame = frame_prefix(Kind.MESSAGE, len(header), size) + header
        if not arrays:
            return [frame], len(frame)
        return [frame, *codec.payload_buffers(arrays)], len(frame) + size

    def _too_large(self, what: str, header: int, payload: int) -> FrameError:
        limits = self._node.limits
        return FrameError(
            f"{what} takes {header:,} + {payload:,} bytes; at most {limits.header:,} + {limits.payload:,} may travel"
        )

    def _message(self, frame: Frame) -> None:
        recipient, sender, correlation, chain, number, clock, tag, fields = self._unpack(frame, _MESSAGE)
        if chain and not all(isinstance(address, str) for address in chain):
            raise DecodeError(f"{self.peer} sent a message with a malformed chain of asks")
        if number < 0 or clock < 0:
            raise DecodeError(f"{self.peer} sent a message with the number {number} and the clock {clock}")
        kind = self._type(tag)
        message = codec.build(kind, fields)
        self._node.deliver(
            Envelope(recipient, sender, message, frame.nbytes, correlation, tuple(chain), self, number, clock),
        )

    def _type(self, tag: Any) -> type[Message]:
        if isinstance(tag, int) and 0 <= tag < len(self._peer_types):
            kind = self._peer_types[tag]
            if isinstance(kind, str):
                # It may have been imported here since the handshake.
                kind = self._peer_types[tag] = self._named(kind, None)
            return kind
        match tag:
            case [str(name), bytes(fingerprint)]:
                return self._named(name, fingerprint)
        raise DecodeError(f"{self.peer} sent a message of the unknown type {tag!r}")

    def _named(self, tag: str, fingerprint: bytes | None) -> type[Message]:
        kind = REGISTRY.get(tag)
        if kind is None:
            raise DecodeError(f"{self.peer} sent a {tag}, a type that this node does not know")
        if fingerprint is not None and kind.wire.fingerprint != fingerprint:
            raise DecodeError(f"{self.peer} has other fields in {tag} than this node")
        return kind

    def _unpack(self, frame: Frame, kinds: tuple[type, ...]) -> list[Any]:
        value = codec.decode(frame.header, frame.payload)
        if not isinstance(value, list) or len(value) != len(kinds) or not all(map(isinstance, value, kinds)):
            wanted = ", ".join("any" if kind is object else kind.__name__ for kind in kinds)
            raise DecodeError(f"{self.peer} sent a {frame.kind.name} frame that does not hold {wanted}")
        return value

    def _credit(self, recipient: str, count: int, nbytes: int) -> None:
        window = self._windows.get(recipient)
        if window is None or not 0 <= count <= window.count or not 0 <= nbytes <= window.nbytes:
            raise FrameError(f"{self.peer} credits {count} messages ({nbytes} bytes) of {recipient} that it never got")
        window.count -= count
        window.nbytes -= nbytes
        while window.waiting:
            turn, pieces, size = window.waiting[0]
            if turn.done():  # its sender gave up
                window.waiting.popleft()
                continue
            if not window.take(size):
                return
            window.waiting.popleft()
            self._count_sent(size)
            self._connection.send(pieces)
            turn.set_result(None)

    def _mac(self, role: bytes) -> bytes:
        mine, theirs = (self._nonce, self._peer_nonce) if self._dialing else (self._peer_nonce, self._nonce)
        return hmac.new(self._node.secret, role + mine + theirs, hashlib.sha256).digest()

    def _prove(self, frame: Frame) -> None:
        if frame.kind is not Kind.HANDSHAKE:
            raise HandshakeError(f"{self._connection.peer} sent a {frame.kind.name} frame before it proved itself")
        if self._dialing:
            self._expect(frame, NONCE + 32)
            self._peer_nonce = frame.header[:NONCE]
            self._verify(frame.header[NONCE:], b"listener")
            self._send(Kind.HANDSHAKE, self._mac(b"dialer"))
        elif not self._peer_nonce:
            self._expect(frame, NONCE)
            self._peer_nonce = frame.header
            self._send(Kind.HANDSHAKE, self._nonce + self._mac(b"listener"))
            return
        else:
            self._expect(frame, 32)
            self._verify(frame.header, b"dialer")
        self._proven = True
        self._connection.limits = self._node.limits
        hello = {
            "node": self._node.name,
            "listening": self._node.listening,
            "incarnation": self._node.incarnation,
            "types": [[tag, REGISTRY[tag].wire.fingerprint] for tag in self._my_tags],
        }
        self._send(Kind.HELLO, msgpack.packb(hello))

    def _expect(self, frame: Frame, length: int) -> None:
        if len(frame.header) != length:
            raise HandshakeError(
                f"{self._connection.peer} sent a proof of {len(frame.header)} bytes instead of {length}"
            )

    def _verify(self, proof: bytes, role: bytes) -> None:
        if not hmac.compare_digest(proof, self._mac(role)):
            raise HandshakeError(f"{self._connection.peer} does not know this run's secret")

    def _greet(self, frame: Frame) -> None:
        hello = codec.decode(frame.header, frame.payload) if frame.kind is Kind.HELLO else None
        match hello:
            case {
                "node": str(name),
                "listening": str(listening),
                "incarnation": bytes(incarnation),
                "types": list(types),
            } if name:
                pass
            case _:
                raise HandshakeError(f"{self._connection.peer} did not say hello")
        if name == self._node.name:
            raise HandshakeError(f"{self._connection.peer} calls itself {name!r}, as this node does")
        for entry in types:
            match entry:
                case [str(tag), bytes(fingerprint)]:
                    mine = REGISTRY.get(tag)
                    if mine is not None and mine.wire.fingerprint != fingerprint:
                        raise HandshakeError(
                            f"{name} and {self._node.name} disagree about the fields of {tag}: "
                            "they run different versions of the code"
                        )
                    self._peer_types.append(tag if mine is None else mine)
                case _:
                    raise HandshakeError(f"{name} sent a malformed table of types")
        self.peer, self.peer_listening, self.peer_incarnation = name, listening, incarnation
        if self._deadline is not None:
            self._deadline.cancel()
        self._peers.link_opened(self)
        if not self.opened.done():
            self.opened.set_result(None)

    def _too_slow(self) -> None:
        self.abort(HandshakeError(f"{self._connection.peer} did not prove itself within {PROOF_SECONDS:g} s"))
