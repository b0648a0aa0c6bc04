"""A link: the conversation of two nodes, in one session, over one connection after the other.

`orchestra.handshake` makes the connections, `orchestra.session` remembers what the peer may lack; here messages become
frames and frames messages. How much of them may be on its way is the matter of
`orchestra.credit`.
"""

import asyncio
import struct
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import msgpack

from orchestra import codec, errors
from orchestra.codec import Buffer
from orchestra.credit import Room, Window
from orchestra.envelope import Envelope
from orchestra.errors import DecodeError, FrameError, HandshakeError, MailboxFull, Unreachable, WireError
from orchestra.handshake import REFUSAL, Hello
from orchestra.message import REGISTRY, AnyArray, Lane, Message
from orchestra.session import Session
from orchestra.system import LinkStatistics
from orchestra.transport.base import Connection
from orchestra.transport.frames import PREFIX, Frame, Kind, frame_bytes, frame_prefix

if TYPE_CHECKING:
    from orchestra.node import Node
    from orchestra.peers import Peers

COUNT = struct.Struct("<Q")
"""What an acknowledgement holds: how many frames of the session came."""

# What the frames of each kind hold.
_MESSAGE = (str, str, int, list, int, int, object, object)
"""Recipient, sender, correlation, chain of asks, number, clock, type, fields."""
_ANSWER = (int, int, object)
"""Correlation, clock, value."""
_FAILURE = (int, int, str, str)
"""Correlation, clock, error, text."""
_CANCEL = (int,)
"""Correlation of the request that nobody waits for any longer."""
_CREDIT = (str, int, int)
"""Recipient, messages, bytes."""

_NUMBERED = frozenset({Kind.MESSAGE, Kind.ANSWER, Kind.FAILURE, Kind.CANCEL, Kind.CREDIT, Kind.GOODBYE})
"""The frames that a session counts and keeps; the others concern one connection only."""

_MESSAGE_KIND = Kind.MESSAGE
"""By a name of this module: looking it up at the enumeration takes as long as all the rest of a comparison."""

_FAILURES = {
    kind.__name__: kind
    for kind in (errors.ActorStopped, errors.AskCycle, errors.AskFailed, errors.NotUnderstood, errors.Unreachable)
}


class _Nobody:
    """Who takes what still comes by a connection that is of no use any more."""

    def frame_received(self, frame: Frame) -> None:
        """It comes too late."""

    def connection_lost(self, error: Exception | None) -> None:
        """Nobody minds."""


class Link:
    """One side of a conversation with another process.

    Args:
        session: its name, chosen by who dialled.
        address: where the peer listens, for who dialled; empty for who was dialled.
    """

    def __init__(self, node: "Node", peers: "Peers", session: bytes, address: str = "") -> None:
        self.peer = ""
        """The other node's name, once it has said hello."""
        self.peer_listening = ""
        self.peer_incarnation = b""
        self._sent = self._sent_bytes = self._received = self._received_bytes = 0
        self._pinged_at: float | None = None
        self._round_trip_s: float | None = None
        self.address = address
        self.session = session
        self.account = Session()
        self.attempt = 0
        """The number of the newest connection that the dialer tried."""
        self.missed_beats = 0
        """Heartbeats of this node since the peer was heard, or since the connection broke."""
        self.ended = False
        self.finished: asyncio.Future[None] = node.loop.create_future()
        """Done once it has ended."""
        self.said_goodbye = False
        """Whether the peer did."""
        self._node = node
        self._peers = peers
        self._connection: Connection | None = None
        self._closing = False
        self._encoder = codec.Encoder()
        self._decoder = codec.Decoder()
        self._my_tags = sorted(REGISTRY)
        self._my_numbers = {tag: number for number, tag in enumerate(self._my_tags)}
        self._peer_types: list[type[Message] | str] = []
        self._windows: dict[str, Window] = {}
        self._stalled: dict[str, Window] = {}
        """Those that have credit, and wait until the session keeps less."""
        self._room = Room(self._give_credit)
        self._asked: dict[int, Envelope] = {}
        """The peer's requests that are not answered yet, by correlation."""

    def __repr__(self) -> str:
        return f"<Link to {self.peer or self.address}>"

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None

    # Its life

    def hello(self) -> Hello:
        """Return what this side says on a new connection."""
        return Hello(
            node=self._node.name,
            listening=self._node.listening,
            incarnation=self._node.incarnation,
            session=self.session,
            attempt=self.attempt,
            resumes=bool(self.peer),
            received=self.account.received,
            types=[[tag, REGISTRY[tag].wire.fingerprint] for tag in self._my_tags],
        )

    def begin(self, connection: Connection, hello: Hello, table: list[type[Message] | str]) -> None:
        """Go on over `connection`, after the peer's hello.

        Raises:
            HandshakeError: it is another process than before, or its account of the session is impossible.
        """
        if self.ended:
            raise HandshakeError("the session has ended")
        fresh = not self.peer
        if fresh:
            self.peer, self.peer_listening, self.peer_incarnation = hello.node, hello.listening, hello.incarnation
            self._peer_types = table
        elif (self.peer, self.peer_incarnation, self.session) != (hello.node, hello.incarnation, hello.session):
            raise HandshakeError(f"another process took the place of {self.peer}")
        try:
            again = self.account.resume(hello.received)
        except FrameError as error:
            raise HandshakeError(f"{hello.node} cannot go on with the session: {error}") from error
        self.drop_connection()
        self._connection = connection
        self.missed_beats = 0
        self._pinged_at = None  # what was asked by another connection may never be answered
        connection.attach(self)
        for frame in again:
            connection.send(frame)
        if fresh:
            self._peers.link_opened(self)
        else:
            self._peers.link_resumed(self)
        self._unstall()

    def drop_connection(self) -> None:
        """Have nothing more to do with the connection that there is, if any: another one takes its place."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.attach(_NOBODY)
            connection.abort()

    def interrupt(self, error: Exception) -> None:
        """Break the connection that there is, if any. The session goes on."""
        if self._connection is not None:
            self._connection.abort(error)

    def close(self) -> None:
        """Say goodbye. It ends when the peer has all that it was sent."""
        if self.ended or self._closing:
            return
        self._closing = True
        self._send(Kind.GOODBYE, b"")

    def end(self, error: Exception | None) -> None:
        """End the session at once; `error` says why if it was not a goodbye. What depended on it fails."""
        if self.ended:
            return
        self.ended = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.attach(_NOBODY)
            if error is not None and not self.said_goodbye:
                connection.send([frame_bytes(Kind.GOODBYE, str(error)[:REFUSAL].encode())])
            connection.close()
        gone = Unreachable(f"the connection to {self.peer or self.address} is lost: {error or 'closed by this side'}")
        for window in self._windows.values():
            for turn, _, _ in window.waiting:
                if not turn.done():
                    turn.set_exception(gone)
                    turn.exception()  # seen, also if its sender has given up
        asked, self._asked = self._asked, {}
        for envelope in asked.values():
            self._node.withdraw(envelope)
        self.account.end()
        self._stalled.clear()
        self._room = Room(_nothing)
        self.finished.set_result(None)
        self._peers.link_lost(self, error)

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
            Unreachable: the session has ended.
        """
        pieces, nbytes = self._encode(sender, recipient, message, correlation, chain, number, clock)
        if message.lane is not Lane.SYSTEM:
            window = self._window(recipient)
            full = self.account.full
            bounded = message.lane is Lane.BOUNDED
            if full or (window.waiting and not bounded) or not window.take(nbytes, bounded=bounded):
                turn: asyncio.Future[None] = self._node.loop.create_future()
                window.waiting.append((turn, pieces, nbytes))
                if full:
                    self._stalled[recipient] = window
                return turn
        self._count_sent(nbytes)
        self._transmit(pieces, nbytes)
        return None

    def post_nowait(self, sender: str, recipient: str, message: Message, number: int = 0, clock: int = 0) -> None:
        """Send `message` at once.

        Raises:
            MailboxFull: the recipient has no room.
        """
        window = self._window(recipient)
        if message.lane is not Lane.SYSTEM:
            if self.account.full:
                raise MailboxFull(
                    f"{self.peer} has yet to acknowledge {self.account.kept} frames ({self.account.kept_bytes:,} bytes)"
                )
            spent = window.waiting or window.full
            if spent and message.lane is not Lane.BOUNDED:
                raise MailboxFull(
                    f"{recipient} has {window.count} messages ({window.nbytes:,} bytes) on their way already"
                )
        self.post(sender, recipient, message, number=number, clock=clock)

    def is_asked(self, correlation: int) -> bool:
        """Whether a request that came by this link is not answered yet."""
        return correlation in self._asked

    def cancel(self, correlation: int) -> None:
        """Send that nobody waits any longer for the answer to a request that went by this link."""
        self._send(Kind.CANCEL, msgpack.packb([correlation]))

    def answer(self, correlation: int, value: Any) -> None:
        """Send the answer to a request that came by this link."""
        header, arrays = self._encoder.encode([correlation, self._node.logical, value])
        size = codec.payload_size(arrays)
        limits = self._node.limits
        if len(header) > limits.header or size > limits.payload:
            raise self._too_large("an answer", len(header), size)
        self._asked.pop(correlation, None)
        frame = frame_prefix(Kind.ANSWER, len(header), size) + header
        self._count_sent(len(frame) + size)
        self._transmit([frame, *codec.payload_buffers(arrays)], len(frame) + size)

    def fail(self, correlation: int, error: Exception) -> None:
        """Send that a request that came by this link has no answer."""
        self._asked.pop(correlation, None)
        kind = type(error).__name__ if type(error).__name__ in _FAILURES else "AskFailed"
        self._send(Kind.FAILURE, msgpack.packb([correlation, self._node.logical, kind, str(error)[:4000]]))

    def consumed(self, recipient: str, nbytes: int) -> None:
        """Credit the peer for a message that left the mailbox of `recipient`."""
        if not self.ended:
            self._room.give_back(recipient, nbytes)

    def ping(self) -> None:
        """Ask for a sign of life."""
        if self._pinged_at is None:
            self._pinged_at = self._node.clock.monotonic()
        if self.account.owes:
            self._acknowledge()
        self._mention(Kind.PING, b"")

    def statistics(self) -> LinkStatistics:
        """Return what went by it so far, and what is on its way."""
        windows = self._windows.values()
        return LinkStatistics(
            peer=self.peer,
            state="open" if self.connected else "broken",
            unacknowledged=self.account.kept,
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

    # Receiving

    def frame_received(self, frame: Frame) -> None:
        """Handle one frame. One that breaks the protocol ends the session, and the peer is told why."""
        self.missed_beats = 0
        kind, header, payload = frame
        try:
            if kind in _NUMBERED:
                nbytes = PREFIX.size + len(header) + (0 if payload is None else payload.nbytes)
                if self.account.receive(nbytes):
                    self._acknowledge()
                if kind is _MESSAGE_KIND:
                    self._message(header, payload, nbytes)
                    return
            self._handle(frame)
        except WireError as error:
            self.end(error)

    def connection_lost(self, error: Exception | None) -> None:
        """Wait for another connection, or try to make one."""
        self._connection = None
        if isinstance(error, WireError):
            self.end(error)  # the bytes were no frames
            return
        self.missed_beats = 0
        self._peers.link_broken(self, error or ConnectionAbortedError("closed by this side"))

    # Inside

    def _handle(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.MESSAGE:
                self._message(frame.header, frame.payload, frame.nbytes)
            case Kind.ANSWER:
                self._count_received(frame.nbytes)
                correlation, clock, value = self._unpack(frame, _ANSWER)
                self._node.witness(clock)
                self._node.asks.resolve(correlation, value)
            case Kind.FAILURE:
                correlation, clock, kind, text = self._unpack(frame, _FAILURE)
                self._node.witness(clock)
                self._node.asks.reject(correlation, _FAILURES.get(kind, errors.AskFailed)(text))
            case Kind.CANCEL:
                (correlation,) = self._unpack(frame, _CANCEL)
                if (asked := self._asked.pop(correlation, None)) is not None:
                    self._node.withdraw(asked)
            case Kind.CREDIT:
                self._credit(*self._unpack(frame, _CREDIT))
            case Kind.ACKNOWLEDGE:
                self._acknowledged(frame)
            case Kind.PING:
                if self.account.owes:
                    self._acknowledge()
                self._mention(Kind.PONG, b"")
            case Kind.PONG:
                if self._pinged_at is not None:
                    self._round_trip_s = self._node.clock.monotonic() - self._pinged_at
                    self._pinged_at = None
            case Kind.GOODBYE:
                self._goodbye(frame.header)
            case _:
                raise FrameError(f"{frame.kind.name} is out of place here")

    def _goodbye(self, reason: bytes) -> None:
        if reason:
            self.end(Unreachable(f"{self.peer} broke it off: {reason.decode(errors='replace')}"))
            return
        self.said_goodbye = True
        self._acknowledge()
        self.end(Unreachable("it said goodbye"))

    def _give_credit(self, recipient: str, count: int, nbytes: int) -> None:
        self._send(Kind.CREDIT, msgpack.packb([recipient, count, nbytes]))

    def _count_sent(self, nbytes: int) -> None:
        self._sent += 1
        self._sent_bytes += nbytes

    def _count_received(self, nbytes: int) -> None:
        self._received += 1
        self._received_bytes += nbytes

    def _send(self, kind: Kind, header: bytes) -> None:
        frame = frame_bytes(kind, header)
        self._transmit([frame], len(frame))

    def _transmit(self, pieces: list[Buffer], nbytes: int) -> None:
        """Send a frame that must arrive."""
        if self.ended:
            return
        self.account.send(pieces, nbytes)
        if self._connection is not None:
            self._connection.send(pieces)

    def _mention(self, kind: Kind, header: bytes) -> None:
        """Send a frame that matters to this connection only."""
        if self._connection is not None:
            self._connection.send([frame_bytes(kind, header)])

    def _acknowledge(self) -> None:
        self._mention(Kind.ACKNOWLEDGE, COUNT.pack(self.account.acknowledge()))

    def _acknowledged(self, frame: Frame) -> None:
        if len(frame.header) != COUNT.size:
            raise FrameError(f"{self.peer} sent an acknowledgement of {len(frame.header)} bytes")
        self.account.forget(*COUNT.unpack(frame.header))
        if self._closing and not self.account.kept:
            self.end(None)
        else:
            self._unstall()

    def _unstall(self) -> None:
        if self._stalled and not self.account.full:
            stalled, self._stalled = self._stalled, {}
            for recipient, window in stalled.items():
                self._let_go(recipient, window)

    def _window(self, recipient: str) -> Window:
        if self.ended:
            raise Unreachable(f"the connection to {self.peer} is lost")
        window = self._windows.get(recipient)
        if window is None:
            window = self._windows[recipient] = Window()
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
        frame = frame_prefix(_MESSAGE_KIND, len(header), size) + header
        if not arrays:
            return [frame], len(frame)
        return [frame, *codec.payload_buffers(arrays)], len(frame) + size

    def _too_large(self, what: str, header: int, payload: int) -> FrameError:
        limits = self._node.limits
        return FrameError(
            f"{what} takes {header:,} + {payload:,} bytes; at most {limits.header:,} + {limits.payload:,} may travel"
        )

    def _message(self, header: bytes, payload: AnyArray | None, nbytes: int) -> None:
        self._count_received(nbytes)
        content = self._decoder.decode(header, payload)
        try:
            recipient, sender, correlation, chain, number, clock, tag, fields = content
            sound = (
                type(recipient) is type(sender) is str
                and type(correlation) is type(number) is type(clock) is int
                and type(chain) is list
            )
        except (TypeError, ValueError):
            sound = False
        if not sound or type(content) is not list:
            raise self._malformed(Kind.MESSAGE, _MESSAGE)
        if chain and not all(isinstance(address, str) for address in chain):
            raise DecodeError(f"{self.peer} sent a message with a malformed chain of asks")
        if number < 0 or clock < 0:
            raise DecodeError(f"{self.peer} sent a message with the number {number} and the clock {clock}")
        kind = self._type(tag)
        if kind.lane is not Lane.SYSTEM:
            self._room.take(recipient, nbytes, bounded=kind.lane is Lane.BOUNDED)
        message = codec.build(kind, fields)
        envelope = Envelope(recipient, sender, message, nbytes, correlation, tuple(chain), self, number, clock)
        if correlation:
            self._asked[correlation] = envelope
        self._node.deliver(envelope)

    def _type(self, tag: Any) -> type[Message]:
        if type(tag) is int and 0 <= tag < len(self._peer_types):
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
        value = self._decoder.decode(frame.header, frame.payload)
        if not isinstance(value, list) or len(value) != len(kinds) or not all(map(isinstance, value, kinds)):
            raise self._malformed(frame.kind, kinds)
        return value

    def _malformed(self, kind: Kind, kinds: tuple[type, ...]) -> DecodeError:
        wanted = ", ".join("any" if kind is object else kind.__name__ for kind in kinds)
        return DecodeError(f"{self.peer} sent a {kind.name} frame that does not hold {wanted}")

    def _credit(self, recipient: str, count: int, nbytes: int) -> None:
        window = self._windows.get(recipient)
        if window is None or not 0 <= count <= window.count or not 0 <= nbytes <= window.nbytes:
            raise FrameError(f"{self.peer} credits {count} messages ({nbytes} bytes) of {recipient} that it never got")
        window.count -= count
        window.nbytes -= nbytes
        self._let_go(recipient, window)

    def _let_go(self, recipient: str, window: Window) -> None:
        """Send what waits, as far as there is room."""
        while window.waiting:
            turn, pieces, size = window.waiting[0]
            if turn.done():  # its sender gave up
                window.waiting.popleft()
                continue
            if self.account.full:
                self._stalled[recipient] = window
                return
            if not window.take(size):
                return
            window.waiting.popleft()
            self._count_sent(size)
            self._transmit(pieces, size)
            turn.set_result(None)


def _nothing(recipient: str, count: int, nbytes: int) -> None:
    """Give no credit: the peer is gone."""


_NOBODY = _Nobody()
