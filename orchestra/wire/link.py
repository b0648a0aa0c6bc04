"""A link: the conversation of two nodes, in one session, over successive connections.

`handshake` opens the connections, `session` keeps the frames that the peer may lack, `sender` turns messages into
frames and `receiver` frames into messages.
"""

import asyncio
import struct
from functools import partial
from typing import Any, Protocol

import msgpack

from orchestra import errors
from orchestra.actors.codec import Buffer
from orchestra.actors.message import REGISTRY
from orchestra.actors.statistics import LinkStatistics
from orchestra.errors import FrameError, HandshakeError, Unreachable, WireError
from orchestra.wire.busy_poll import BusyPoll
from orchestra.wire.flow_control import ReceiveWindow
from orchestra.wire.frames import PREFIX, Frame, Kind, frame_bytes
from orchestra.wire.handshake import REFUSAL, Hello
from orchestra.wire.receiver import LinkReceiver, Receiver
from orchestra.wire.sender import LinkSender
from orchestra.wire.session import Session
from orchestra.wire.settings import LinkSettings
from orchestra.wire.shared_memory import SharedMemoryChannel
from orchestra.wire.transports.base import Connection

COUNT = struct.Struct("<Q")
"""The contents of an acknowledgement: how many frames of the session arrived."""

_UNNUMBERED = (Kind.HANDSHAKE, Kind.HELLO, Kind.REFUSAL, Kind.ACKNOWLEDGE, Kind.PING, Kind.PONG)
"""The frames that concern one connection only; a session counts and keeps the others."""
_IS_NUMBERED = [kind not in _UNNUMBERED for kind in range(max(Kind) + 1)]
# Names of this module: a look-up in the enumeration, or in a set of its members, takes longer than the comparison.
_PREFIX_BYTES = PREFIX.size
_MESSAGE, _ANSWER = Kind.MESSAGE, Kind.ANSWER

_FAILURES = {
    kind.__name__: kind
    for kind in (errors.ActorStopped, errors.AskCycle, errors.AskFailed, errors.NotUnderstood, errors.Unreachable)
}


class LinkOwner(Protocol):
    """The owner of a node's links: decides what happens when they open, break and end."""

    listening: str
    """The address where the node accepts connections; empty if it accepts none."""
    host: str
    """The join point of the node, or the node itself if it is one; empty before it has joined."""
    root: str
    """The name of the run's root; empty until it is known."""

    def last_ended(self, peer: str) -> bytes:
        """Return the name of the last session with `peer` that ended; empty if there was none."""

    def opened(self, link: "Link") -> None:
        """Handle a session that has begun."""

    def broken(self, link: "Link", error: Exception) -> None:
        """Handle a link whose connection is lost; its session goes on."""

    def resumed(self, link: "Link") -> None:
        """Handle a link that has a connection again."""

    def lost(self, link: "Link", error: Exception | None) -> None:
        """Handle a session that has ended; `error` is None if this side said goodbye."""


class _Discard:
    """Handles the frames of a connection that was replaced or closed, by dropping them.

    Args:
        gone: resolved once the connection is gone.
    """

    def __init__(self, gone: asyncio.Future[None] | None = None) -> None:
        self._gone = gone

    def frame_received(self, frame: Frame) -> None:
        """Drop it."""

    def connection_lost(self, error: Exception | None) -> None:
        if self._gone is not None:
            self._gone.set_result(None)


class Link:
    """One side of a conversation with another process.

    Args:
        owner: decides what happens when the link opens, breaks and ends.
        receiver: takes the messages that arrive.
        session_id: the session's name, chosen by the dialer.
        address: where the peer listens, for the dialer; empty for the listener.
        expected_peer: the name of the node that is dialled, if it is known.
        joins: True if this node joins the run at the peer.
    """

    def __init__(
        self,
        settings: LinkSettings,
        owner: LinkOwner,
        receiver: Receiver,
        session_id: bytes,
        address: str = "",
        expected_peer: str = "",
        *,
        joins: bool = False,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.peer = ""
        """Name of the other node, once it has said hello."""
        self.peer_listening = self.peer_host = self.peer_root = ""
        self.peer_incarnation = b""
        self.peer_joined = False
        """True if the peer has joined the run at this node."""
        self.address = address
        self.reached = ""
        """The candidate of `address` at which the peer was reached last."""
        self.expected_peer = expected_peer
        self.session_id = session_id
        self.session = Session()
        self.attempt = 0
        """The number of the dialer's newest connection."""
        self.missed_beats = 0
        """Heartbeats of this node since the last frame of the peer, or since the connection broke."""
        self.heard_at = settings.clock.monotonic()
        """The last heartbeat before which a frame had come, on the node's monotonic clock in seconds."""
        self.ended = False
        self.finished: asyncio.Future[None] = loop.create_future()
        """Done once the session has ended."""
        self.disconnected: asyncio.Future[None] = loop.create_future()
        """Done once its last connection is gone as well, which takes the peer a moment over TLS."""
        self.said_goodbye = False
        """True once the peer has said goodbye."""
        self._busy_poll = BusyPoll(loop)
        self._settings, self._owner, self._node, self._joins = settings, owner, receiver, joins
        self._connection: Connection | None = None
        self.closing = False
        """True once this side has said goodbye."""
        self._pinged_at: float | None = None
        self._round_trip_s: float | None = None
        self.shared_memory = SharedMemoryChannel(settings, self, self.send)
        # A deterministic node sends each message by itself. In a batch it would leave with whatever is sent at once,
        # such as an ask for statistics, and then arrive one turn earlier.
        batching = not settings.deterministic
        self.sender = LinkSender(self, self.session, self.shared_memory, self._put, settings.limits, batching=batching)
        self.post = self.sender.post
        """Send a message to an actor of the peer: see `LinkSender.post`."""
        self._receive_window = ReceiveWindow(partial(self.send, Kind.CREDIT))
        self.receiver = LinkReceiver(self, receiver, self._receive_window)

    def __repr__(self) -> str:
        return f"<Link to {self.peer or self.address}>"

    @property
    def connected(self) -> bool:
        """True while there is a connection."""
        return self._connection is not None

    @property
    def local(self) -> bool:
        """True while connected to a peer that may be on this host."""
        return self._connection is not None and self._connection.local

    @property
    def busy_poll(self) -> BusyPoll | None:
        """The poll for a single answer, if the peer may be on this host."""
        return self._busy_poll if self.local else None

    # Lifecycle

    def hello(self, *, known: bool) -> Hello:
        """Return this side's hello for a new connection; without its types if the peer has `known` them before."""
        return Hello(
            node=self._settings.name,
            listening=self._owner.listening,
            host=self._owner.host,
            root=self._owner.root,
            joins=self._joins,
            incarnation=self._settings.incarnation,
            session=self.session_id,
            attempt=self.attempt,
            resumes=bool(self.peer),
            received=self.session.received,
            after=self._owner.last_ended(self.peer or self.expected_peer),
            types=[] if known else [(tag, REGISTRY[tag].wire.fingerprint) for tag in self.sender.tags],
        )

    def begin(self, connection: Connection, hello: Hello) -> None:
        """Continue over `connection` after the peer's hello.

        Raises:
            HandshakeError: the peer is another process than before, or miscounts the frames of the session.
        """
        if self.ended:
            raise HandshakeError("the session has ended")
        fresh = not self.peer
        if fresh:
            self.peer, self.peer_listening, self.peer_incarnation = hello.node, hello.listening, hello.incarnation
            self.peer_host, self.peer_root, self.peer_joined = hello.host, hello.root, hello.joins
            self.receiver.types = hello.types
        elif (self.peer, self.peer_incarnation, self.session_id) != (hello.node, hello.incarnation, hello.session):
            raise HandshakeError(f"another process took the place of {self.peer}")
        try:
            unseen = self.session.resume(hello.received)
        except FrameError as error:
            raise HandshakeError(f"{hello.node} cannot go on with the session: {error}") from error
        self.drop_connection()
        self._connection = connection
        self.missed_beats = 0
        self.heard_at = self._settings.clock.monotonic()
        self._pinged_at = None  # the answer to a ping by the old connection may be lost
        connection.attach(self)
        for frame in unseen:
            connection.send(frame)
        if fresh:
            self._owner.opened(self)
        else:
            self._owner.resumed(self)
        self.sender.resume_stalled()

    def drop_connection(self) -> None:
        """Abandon the current connection, if any, because another one takes its place."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.attach(_DISCARD)
            connection.abort()

    def interrupt(self, error: Exception) -> None:
        """Break the current connection, if any. The session goes on."""
        if self._connection is not None:
            self._connection.abort(error)

    def close(self) -> None:
        """Say goodbye. The session ends when the peer has acknowledged every frame."""
        if self.ended or self.closing:
            return
        self.closing = True
        self.send(Kind.GOODBYE)

    def end(self, error: Exception | None) -> None:
        """End the session at once, and fail what depends on it; `error` is None after a goodbye of this side."""
        if self.ended:
            return
        self.ended = True
        connection, self._connection = self._connection, None
        if connection is None:
            self.disconnected.set_result(None)
        else:
            connection.attach(_Discard(self.disconnected))
            if error is not None and not self.said_goodbye:
                connection.send([frame_bytes(Kind.GOODBYE, str(error)[:REFUSAL].encode())])
            connection.close()
        gone = Unreachable(f"the connection to {self.peer or self.address} is lost: {error or 'closed by this side'}")
        self.sender.end(gone)
        for envelope in self.receiver.end():
            self._node.withdraw(envelope)
        self.session.end()
        self.shared_memory.end()
        self.finished.set_result(None)
        self._owner.lost(self, error)

    # Sending

    def is_unanswered(self, correlation: int) -> bool:
        """Return whether a request of the peer still waits for its answer."""
        return correlation in self.receiver.unanswered

    def cancel(self, correlation: int) -> None:
        """Withdraw a request that was sent by this link."""
        self.send(Kind.CANCEL, correlation)

    def answer(self, correlation: int, value: Any) -> None:
        """Send the answer to a request of the peer."""
        unanswered = self.receiver.unanswered
        alone = len(unanswered) == 1 and correlation in unanswered
        self.sender.answer(correlation, self._node.logical, value, at_once=alone)
        unanswered.pop(correlation, None)

    def fail(self, correlation: int, error: Exception) -> None:
        """Send an error instead of the answer to a request of the peer."""
        self.receiver.unanswered.pop(correlation, None)
        kind = type(error).__name__ if type(error).__name__ in _FAILURES else "AskFailed"
        self.send(Kind.FAILURE, correlation, self._node.logical, kind, str(error)[:4000])

    def consumed(self, recipient: str, nbytes: int, count: int = 1) -> None:
        """Credit the peer for `count` messages that left the mailbox of `recipient`."""
        if not self.ended:
            self._receive_window.give_back(recipient, nbytes, count)

    def taken(self, recipient: str, sender: str, tag: str) -> None:
        """Tell the peer that `recipient` has taken a latest-wins message, so that it sends a newer one."""
        self.send(Kind.TAKEN, recipient, sender, tag)

    def ping(self) -> None:
        """Ask the peer for a sign of life."""
        if self._pinged_at is None:
            self._pinged_at = self._settings.clock.monotonic()
        if self.session.owes:
            self._acknowledge()
        self._send_unsequenced(Kind.PING)

    def send(self, kind: Kind, *contents: Any) -> None:
        """Send a frame that the session counts, behind all messages so far."""
        self.sender.flush()
        frame = frame_bytes(kind, msgpack.packb(contents) if contents else b"")
        self._put([frame], len(frame))

    def statistics(self) -> LinkStatistics:
        """Return the traffic so far, and what is in flight."""
        windows, sender, receiver, shared_memory = self.sender.windows, self.sender, self.receiver, self.shared_memory
        return LinkStatistics(
            peer=self.peer,
            state="open" if self.connected else "broken",
            unacknowledged=self.session.kept,
            round_trip_s=self._round_trip_s,
            sent=sender.count,
            sent_bytes=sender.nbytes,
            received=receiver.count,
            received_bytes=receiver.nbytes,
            in_flight=sum(window.count for window in windows),
            in_flight_bytes=sum(window.nbytes for window in windows),
            credit_used=max((window.used for window in windows), default=0.0),
            waiting=sum(len(window.waiting) for window in windows),
            memory=shared_memory.state,
            memory_sent_bytes=shared_memory.sent_bytes,
            memory_copied_bytes=shared_memory.copied_bytes,
            memory_held_bytes=shared_memory.held_bytes,
        )

    # FrameHandler

    def frame_received(self, frame: Frame) -> None:
        """Handle one frame. One that breaks the protocol ends the session, and the peer receives the reason."""
        self.missed_beats = 0
        kind, header, payload = frame
        try:
            nbytes = _PREFIX_BYTES + len(header) + (0 if payload is None else payload.nbytes)
            if _IS_NUMBERED[kind] and self.session.receive(nbytes):
                self._acknowledge()
            self._handle(frame, nbytes)
        except WireError as error:
            self.end(error)

    def connection_lost(self, error: Exception | None) -> None:
        """Leave the repair to the owner; end the session if the peer's bytes were no frames."""
        self._connection = None
        if isinstance(error, WireError):
            self.end(error)
            return
        self.missed_beats = 0
        self._owner.broken(self, error or ConnectionAbortedError("closed by this side"))

    # Inside

    def _handle(self, frame: Frame, nbytes: int) -> None:
        kind, header, payload = frame
        receiver = self.receiver
        if kind is _MESSAGE:
            receiver.message(header, payload, nbytes)
            return
        if kind is _ANSWER:
            receiver.answer(header, payload, nbytes)
            return
        match kind:
            case Kind.BATCH:
                receiver.batches(header, payload)
            case Kind.FAILURE:
                correlation, clock, error, text = receiver.unpack(frame)
                self._node.reject(correlation, clock, _FAILURES.get(error, errors.AskFailed)(text))
            case Kind.CANCEL:
                (correlation,) = receiver.unpack(frame)
                if (request := receiver.unanswered.pop(correlation, None)) is not None:
                    self._node.withdraw(request)
            case Kind.CREDIT:
                self.sender.credit(*receiver.unpack(frame))
            case Kind.TAKEN:
                self.sender.taken(*receiver.unpack(frame))
            case Kind.ACKNOWLEDGE:
                self._acknowledged(frame)
            case Kind.PING:
                if self.session.owes:
                    self._acknowledge()
                self._send_unsequenced(Kind.PONG)
            case Kind.PONG:
                if self._pinged_at is not None:
                    self._round_trip_s = self._settings.clock.monotonic() - self._pinged_at
                    self._pinged_at = None
            case Kind.SHM_DATA:
                placed = self.shared_memory.placed(header, payload)
                self._handle(placed, placed.nbytes)
            case Kind.SHM_RELEASE:
                self.shared_memory.released(*receiver.unpack(frame))
            case Kind.SHM_OFFER:
                self.shared_memory.offered(*receiver.unpack(frame))
            case Kind.SHM_ACCEPT:
                self.shared_memory.accepted(*receiver.unpack(frame))
            case Kind.SHM_RETIRE:
                self.shared_memory.retired(*receiver.unpack(frame))
            case Kind.GOODBYE:
                self._goodbye(header)
            case _:
                raise FrameError(f"{kind.name} is out of place here")

    def _goodbye(self, reason: bytes) -> None:
        if reason:
            self.end(Unreachable(f"{self.peer} ended the session: {reason.decode(errors='replace')}"))
            return
        self.said_goodbye = True
        self._acknowledge()
        self.end(Unreachable("it said goodbye"))

    def _put(self, pieces: list[Buffer], nbytes: int, at_once: bool = False) -> None:
        """Send a frame by the current connection, if any, and keep it until the peer acknowledges it."""
        if self.ended:
            return
        if self._connection is not None:
            self._connection.send(pieces, at_once=at_once)
        self.session.send(pieces, nbytes)  # afterwards: the peer works meanwhile on a frame that left at once

    def _send_unsequenced(self, kind: Kind, header: bytes = b"") -> None:
        """Send a frame that concerns the current connection only."""
        if self._connection is not None:
            self._connection.send([frame_bytes(kind, header)])

    def _acknowledge(self) -> None:
        self._send_unsequenced(Kind.ACKNOWLEDGE, COUNT.pack(self.session.acknowledge()))

    def _acknowledged(self, frame: Frame) -> None:
        if len(frame.header) != COUNT.size:
            raise FrameError(f"{self.peer} sent an acknowledgement of {len(frame.header)} bytes")
        self.session.forget(*COUNT.unpack(frame.header))
        if self.closing and not self.session.kept:
            self.end(None)
        else:
            self.sender.resume_stalled()


_DISCARD = _Discard()
