"""A link: the conversation of two nodes, in one session, over one connection after the other.

`handshake` makes the connections, `session` remembers what the peer may lack, `sender` makes frames of messages and
`receiver` messages of frames.
"""

import asyncio
import struct
from typing import TYPE_CHECKING, Any

import msgpack

from orchestra import errors
from orchestra.actors.codec import Buffer
from orchestra.actors.message import REGISTRY, Message
from orchestra.actors.system_messages import LinkStatistics
from orchestra.errors import FrameError, HandshakeError, Unreachable, WireError
from orchestra.wire.busy_poll import BusyPoll
from orchestra.wire.flow_control import ReceiveWindow
from orchestra.wire.frames import PREFIX, Frame, Kind, frame_bytes
from orchestra.wire.handshake import REFUSAL, Hello
from orchestra.wire.receiver import Inbound
from orchestra.wire.sender import Outbound
from orchestra.wire.session import Session
from orchestra.wire.shared_memory import SharedMemoryChannel
from orchestra.wire.transports.base import Connection

if TYPE_CHECKING:
    from orchestra.nodes.node import Node
    from orchestra.nodes.peers import Peers

COUNT = struct.Struct("<Q")
"""What an acknowledgement holds: how many frames of the session came."""

# What the frames of each kind hold.
_FAILURE = (int, int, str, str)
"""Correlation, clock, error, text."""
_CANCEL = (int,)
"""Correlation of the request that nobody waits for any longer."""
_CREDIT = (str, int, int)
"""Recipient, messages, bytes."""
_OFFER = (int, int, bytes, int)
"""Of memory: process, descriptor, name, bytes."""
_TAKEN = (str,)
"""Why not; empty if it was."""
_FREED = (list,)
"""Where the blocks begin that nobody looks at any more."""

_NUMBERED = (
    *(Kind.MESSAGE, Kind.RUNS, Kind.ANSWER, Kind.FAILURE, Kind.CANCEL, Kind.CREDIT, Kind.GOODBYE),
    *(Kind.SHM_OFFER, Kind.SHM_ACCEPT, Kind.SHM_DATA, Kind.SHM_RELEASE),
)
"""The frames that a session counts and keeps; the others concern one connection only."""
_IS_NUMBERED = [kind in _NUMBERED for kind in range(max(Kind) + 1)]
# By names of this module: to look one up at its enumeration, or in a set of them, takes longer than the comparison.
_PREFIX_BYTES = PREFIX.size
_MESSAGE, _ANSWER = Kind.MESSAGE, Kind.ANSWER

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


class _LastWord:
    """Who waits until a connection that this side has closed is gone."""

    def __init__(self, gone: asyncio.Future[None]) -> None:
        self._gone = gone

    def frame_received(self, frame: Frame) -> None:
        """It comes too late."""

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone."""
        self._gone.set_result(None)


class Link:
    """One side of a conversation with another process.

    Args:
        session: its name, chosen by who dialled.
        address: where the peer listens, for who dialled; empty for who was dialled.
        seeks: the name of the node that is dialled, if that is known.
    """

    def __init__(self, node: "Node", peers: "Peers", session: bytes, address: str = "", seeks: str = "") -> None:
        self.peer = ""
        """The other node's name, once it has said hello."""
        self.peer_listening = ""
        self.peer_incarnation = b""
        self._pinged_at: float | None = None
        self._round_trip_s: float | None = None
        self.address = address
        self.seeks = seeks
        self.session = session
        self.account = Session()
        self.attempt = 0
        """The number of the newest connection that the dialer tried."""
        self.missed_beats = 0
        """Heartbeats of this node since the peer was heard, or since the connection broke."""
        self.ended = False
        self.finished: asyncio.Future[None] = node.loop.create_future()
        """Done once it has ended."""
        self.left: asyncio.Future[None] = node.loop.create_future()
        """Done once its last connection is gone, too: over TLS that takes the peer a moment."""
        self.said_goodbye = False
        """Whether the peer did."""
        self._node = node
        self._peers = peers
        self._connection: Connection | None = None
        self._closing = False
        limits = node.limits
        self.sharing = SharedMemoryChannel(self, node)
        # What is told by itself leaves by itself where runs are to be alike: else whatever leaves at once, an ask of
        # how a node is doing say, would take along what was told just before, which would arrive a turn earlier.
        self.outbound = Outbound(self, node.loop, limits.header, limits.payload, together=not node.deterministic)
        self._room = ReceiveWindow(self._give_credit)
        self.inbound = Inbound(self, node, self._room)
        self.busy_poll = BusyPoll(node.loop)

    def __repr__(self) -> str:
        return f"<Link to {self.peer or self.address}>"

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None

    @property
    def local(self) -> bool:
        """Whether there is a connection, and the peer may be on this host."""
        return self._connection is not None and self._connection.local

    @property
    def closing(self) -> bool:
        """Whether this side has said goodbye."""
        return self._closing

    # Its life

    def hello(self, *, known: bool) -> Hello:
        """Return what this side says on a new connection; its types only where the other side has not `known` them."""
        return Hello(
            node=self._node.name,
            listening=self._node.listening,
            incarnation=self._node.incarnation,
            session=self.session,
            attempt=self.attempt,
            resumes=bool(self.peer),
            received=self.account.received,
            after=self._peers.last_ended(self.peer or self.seeks),
            types=[] if known else [[tag, REGISTRY[tag].wire.fingerprint] for tag in self.outbound.tags],
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
            self.inbound.types = table
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
        self.outbound.unstall()

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
        self.send(Kind.GOODBYE, b"")

    def end(self, error: Exception | None) -> None:
        """End the session at once; `error` says why if it was not a goodbye. What depended on it fails."""
        if self.ended:
            return
        self.ended = True
        connection, self._connection = self._connection, None
        if connection is None:
            self.left.set_result(None)
        else:
            connection.attach(_LastWord(self.left))
            if error is not None and not self.said_goodbye:
                connection.send([frame_bytes(Kind.GOODBYE, str(error)[:REFUSAL].encode())])
            connection.close()
        gone = Unreachable(f"the connection to {self.peer or self.address} is lost: {error or 'closed by this side'}")
        self.outbound.end(gone)
        for envelope in self.inbound.end():
            self._node.arrivals.withdraw(envelope)
        self.account.end()
        self.sharing.end()
        self.finished.set_result(None)
        self._peers.link_lost(self, error)

    # Sending

    def is_asked(self, correlation: int) -> bool:
        """Whether a request that came by this link is not answered yet."""
        return correlation in self.inbound.asked

    def cancel(self, correlation: int) -> None:
        """Send that nobody waits any longer for the answer to a request that went by this link."""
        self.send(Kind.CANCEL, msgpack.packb([correlation]))

    def answer(self, correlation: int, value: Any) -> None:
        """Send the answer to a request that came by this link."""
        asked = self.inbound.asked
        alone = len(asked) == 1 and correlation in asked
        recorder = self._node.recorder
        self.outbound.answer(correlation, 0 if recorder is None else recorder.logical, value, at_once=alone)
        asked.pop(correlation, None)

    def fail(self, correlation: int, error: Exception) -> None:
        """Send that a request that came by this link has no answer."""
        self.inbound.asked.pop(correlation, None)
        kind = type(error).__name__ if type(error).__name__ in _FAILURES else "AskFailed"
        self.send(Kind.FAILURE, msgpack.packb([correlation, self._node.logical, kind, str(error)[:4000]]))

    def consumed(self, recipient: str, nbytes: int, count: int = 1) -> None:
        """Credit the peer for messages that left the mailbox of `recipient`."""
        if not self.ended:
            self._room.give_back(recipient, nbytes, count)

    def ping(self) -> None:
        """Ask for a sign of life."""
        if self._pinged_at is None:
            self._pinged_at = self._node.clock.monotonic()
        if self.account.owes:
            self._acknowledge()
        self._send_unsequenced(Kind.PING, b"")

    def statistics(self) -> LinkStatistics:
        """Return what went by it so far, and what is on its way."""
        windows, outbound, inbound = self.outbound.windows, self.outbound, self.inbound
        return LinkStatistics(
            peer=self.peer,
            state="open" if self.connected else "broken",
            unacknowledged=self.account.kept,
            round_trip_s=self._round_trip_s,
            sent=outbound.count,
            sent_bytes=outbound.nbytes,
            received=inbound.count,
            received_bytes=inbound.nbytes,
            in_flight=sum(window.count for window in windows),
            in_flight_bytes=sum(window.nbytes for window in windows),
            credit_used=max((window.used for window in windows), default=0.0),
            waiting=sum(len(window.waiting) for window in windows),
            memory=self.sharing.state,
            memory_sent_bytes=self.sharing.sent_bytes,
            memory_held_bytes=self.sharing.held_bytes,
        )

    # Receiving

    def frame_received(self, frame: Frame) -> None:
        """Handle one frame. One that breaks the protocol ends the session, and the peer is told why."""
        self.missed_beats = 0
        kind, header, payload = frame
        try:
            nbytes = _PREFIX_BYTES + len(header) + (0 if payload is None else payload.nbytes)
            if _IS_NUMBERED[kind] and self.account.receive(nbytes):
                self._acknowledge()
            self._handle(frame, nbytes)
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

    def _handle(self, frame: Frame, nbytes: int) -> None:
        kind, header, payload = frame
        if kind is _MESSAGE:
            self.inbound.message(header, payload, nbytes)
            return
        if kind is _ANSWER:
            self.inbound.answer(header, payload, nbytes)
            return
        match kind:
            case Kind.RUNS:
                self.inbound.runs(header, payload)
            case Kind.FAILURE:
                correlation, clock, error, text = self.inbound.unpack(frame, _FAILURE)
                self._node.witness(clock)
                self._node.asks.reject(correlation, _FAILURES.get(error, errors.AskFailed)(text))
            case Kind.CANCEL:
                (correlation,) = self.inbound.unpack(frame, _CANCEL)
                if (asked := self.inbound.asked.pop(correlation, None)) is not None:
                    self._node.arrivals.withdraw(asked)
            case Kind.CREDIT:
                self.outbound.credited(*self.inbound.unpack(frame, _CREDIT))
            case Kind.ACKNOWLEDGE:
                self._acknowledged(frame)
            case Kind.PING:
                if self.account.owes:
                    self._acknowledge()
                self._send_unsequenced(Kind.PONG, b"")
            case Kind.PONG:
                if self._pinged_at is not None:
                    self._round_trip_s = self._node.clock.monotonic() - self._pinged_at
                    self._pinged_at = None
            case Kind.SHM_DATA:
                found = self.sharing.found(header, payload)
                self._handle(found, found.nbytes)
            case Kind.SHM_RELEASE:
                self.sharing.freed(*self.inbound.unpack(frame, _FREED))
            case Kind.SHM_OFFER:
                self.sharing.offered(*self.inbound.unpack(frame, _OFFER))
            case Kind.SHM_ACCEPT:
                self.sharing.taken(*self.inbound.unpack(frame, _TAKEN))
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
        self.send(Kind.CREDIT, msgpack.packb([recipient, count, nbytes]))

    def send(self, kind: Kind, header: bytes) -> None:
        """Send a frame that the session counts, behind all that was told so far."""
        frame = frame_bytes(kind, header)
        if self.outbound.due:
            self.outbound.seal()
        self.put([frame], len(frame))

    def put(self, pieces: list[Buffer], nbytes: int, *, at_once: bool = False) -> None:
        """Send a frame if there is a connection, and keep it until the peer has it."""
        if self.ended:
            return
        if self._connection is not None:
            self._connection.send(pieces, at_once=at_once)
        self.account.send(pieces, nbytes)  # afterwards: where it left at once, the peer works on it meanwhile

    def _send_unsequenced(self, kind: Kind, header: bytes) -> None:
        """Send a frame that matters to this connection only."""
        if self._connection is not None:
            self._connection.send([frame_bytes(kind, header)])

    def _acknowledge(self) -> None:
        self._send_unsequenced(Kind.ACKNOWLEDGE, COUNT.pack(self.account.acknowledge()))

    def _acknowledged(self, frame: Frame) -> None:
        if len(frame.header) != COUNT.size:
            raise FrameError(f"{self.peer} sent an acknowledgement of {len(frame.header)} bytes")
        self.account.forget(*COUNT.unpack(frame.header))
        if self._closing and not self.account.kept:
            self.end(None)
        else:
            self.outbound.unstall()


_NOBODY = _Nobody()
