"""The first frames of a connection: who is there, and which session goes on over it.

Before a peer has proved that it knows the run's secret, it may send three small frames of fixed layout and nothing
else; no message is decoded. Dialer D and listener L prove themselves to each other:

    D → L   nonce of D (32 bytes)
    L → D   nonce of L, HMAC-SHA256(secret, "listener" ‖ nonce of D ‖ nonce of L)
    D → L   HMAC-SHA256(secret, "dialer" ‖ nonce of D ‖ nonce of L)

Then D says hello, and L says hello or why not. A hello names the process, the schemas of its message types, the session
(chosen by D) and how many frames of it have come so far; a new one begins with none.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgpack

from orchestra.actors import codec
from orchestra.actors.message import REGISTRY, Message
from orchestra.errors import DecodeError, HandshakeError, OrchestraError, Unreachable, WireError
from orchestra.wire.frames import Frame, Kind, frame_bytes
from orchestra.wire.transports.base import Connection

if TYPE_CHECKING:
    from orchestra.nodes.node import Node
    from orchestra.wire.link import Link

NONCE = 32
PROOF_SECONDS = 5.0
LONGEST_NODE = 128
"""Characters of the name of a node: others remember it."""
LONGEST_ID = 64
"""Bytes of an incarnation, or of the name of a session."""
REFUSAL = 500
"""Characters of a refusal."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a process says of itself, and of the session that it wants to begin or to go on with."""

    node: str
    listening: str
    """Where it lets others in; empty if nowhere."""
    incarnation: bytes
    """What tells this process from others of the same name."""
    session: bytes
    attempt: int
    """Counts the connections that the dialer tried for this session: an older one does not replace a newer one."""
    resumes: bool
    """Whether the dialer has heard from the listener in this session before."""
    received: int
    """Frames of the session that have come so far."""
    after: bytes
    """The last session with the listener that has ended, for all that the dialer knows; empty if there was none."""
    types: list[list[Any]]
    """Tag and fingerprint of each type that it may name by its number in this list; said once in a session."""

    def pack(self) -> bytes:
        """Return it as a header."""
        packed: bytes = msgpack.packb({name: getattr(self, name) for name in self.__slots__})
        return packed

    @classmethod
    def unpack(cls, header: bytes) -> "Hello":
        """Return what a header says.

        Raises:
            DecodeError: it is no hello.
        """
        said = codec.decode(header, None)
        match said:
            case {
                "node": str(node),
                "listening": str(),
                "incarnation": bytes(incarnation),
                "session": bytes(session),
                "attempt": int(attempt),
                "resumes": bool(),
                "received": int(received),
                "after": bytes(after),
                "types": list(),
            } if node and session and attempt >= 0 and received >= 0 and len(said) == len(cls.__slots__):
                if len(node) > LONGEST_NODE or max(map(len, (incarnation, session, after))) > LONGEST_ID:
                    raise DecodeError("its names are too long")
                return cls(**said)
        raise DecodeError("this is no hello")

    def table(self, here: str) -> list[type[Message] | str]:
        """Return the types that the peer may name by number; for those unknown here, their names.

        Raises:
            HandshakeError: both know a type, but not with the same fields.
        """
        table: list[type[Message] | str] = []
        for entry in self.types:
            match entry:
                case [str(tag), bytes(fingerprint)]:
                    mine = REGISTRY.get(tag)
                    if mine is not None and mine.wire.fingerprint != fingerprint:
                        raise HandshakeError(
                            f"{self.node} and {here} disagree about the fields of {tag}: "
                            "they run different versions of the code"
                        )
                    table.append(tag if mine is None else mine)
                case _:
                    raise HandshakeError(f"{self.node} sent a malformed table of types")
        return table


class Handshake:
    """The receiver of a connection until a link goes on with it.

    Args:
        link: what the dialer wants to begin, or to go on with; None for the listener.
        admit: says which link it is that a dialer's hello means, or what has to be over before that is known; raises
            `HandshakeError` to refuse it with a reason, and `Unreachable` to let it go without a word.
        over: called once, when a link has the connection, or with what went wrong.
    """

    def __init__(
        self,
        node: "Node",
        connection: Connection,
        *,
        link: "Link | None" = None,
        admit: "Callable[[Hello], Link | asyncio.Future[None]] | None" = None,
        over: Callable[["Handshake", Exception | None], None],
    ) -> None:
        self.done: asyncio.Future[None] = node.loop.create_future()
        """Done once a link has the connection; or fails."""
        self._node = node
        self._connection = connection
        self._link = link
        self._admit = admit
        self._over = over
        self._proven = False
        self._held = False
        self._nonce = node.entropy(NONCE)
        self._peer_nonce = b""
        self._deadline: asyncio.TimerHandle | None = None
        self._due = 0.0
        if not node.deterministic:
            self._set_deadline()
        connection.attach(self)
        if link is not None:
            self._send(Kind.HANDSHAKE, self._nonce)

    @property
    def greeted(self) -> bool:
        """Whether a dialer has said hello: the other side may have let it in, known here or not."""
        return self._link is not None and self._proven

    def abort(self, error: Exception) -> None:
        """Give it up."""
        self._connection.abort(error)

    # Receiver

    def frame_received(self, frame: Frame) -> None:
        """Take one frame of the handshake; raises `WireError` for one that is out of place."""
        if self.done.done():
            return  # it was refused
        if not self._proven:
            self._prove(frame)
        elif self._held:
            raise HandshakeError(f"{self._connection.peer} said something before it was welcome")
        elif self._link is None:
            self._answer(frame)
        else:
            self._greet(self._link, frame)

    def connection_lost(self, error: Exception | None) -> None:
        """It came to nothing."""
        if isinstance(error, WireError) and not isinstance(error, HandshakeError):
            # Whoever sends bytes that are no frame does not belong to the run either.
            error = HandshakeError(f"{self._connection.peer} does not prove itself: {error}")
        if not isinstance(error, OrchestraError):
            error = Unreachable(f"the connection to {self._connection.peer} is lost: {error or 'closed by this side'}")
        self._finish(error)

    # Inside

    def _send(self, kind: Kind, header: bytes) -> None:
        self._connection.send([frame_bytes(kind, header)])

    def _finish(self, error: Exception | None) -> None:
        if self.done.done():
            return
        if self._deadline is not None:
            self._deadline.cancel()
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)
            self.done.exception()  # a listener does not await it
        self._over(self, error)

    def _prove(self, frame: Frame) -> None:
        if frame.kind is not Kind.HANDSHAKE:
            raise HandshakeError(f"{self._connection.peer} sent a {frame.kind.name} frame before it proved itself")
        if self._link is not None:
            self._expect(frame, NONCE + 32)
            self._peer_nonce = frame.header[:NONCE]
            self._verify(frame.header[NONCE:], b"listener")
            self._send(Kind.HANDSHAKE, self._mac(b"dialer"))
            # Whoever has answered knows the types; who has not may never have heard them.
            self._send(Kind.HELLO, self._link.hello(known=bool(self._link.peer)).pack())
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

    def _expect(self, frame: Frame, length: int) -> None:
        if len(frame.header) != length:
            raise HandshakeError(
                f"{self._connection.peer} sent a proof of {len(frame.header)} bytes instead of {length}"
            )

    def _mac(self, role: bytes) -> bytes:
        mine, theirs = self._nonce, self._peer_nonce
        nonces = mine + theirs if self._link is not None else theirs + mine
        return hmac.new(self._node.secret, role + nonces, hashlib.sha256).digest()

    def _verify(self, proof: bytes, role: bytes) -> None:
        if not hmac.compare_digest(proof, self._mac(role)):
            raise HandshakeError(f"{self._connection.peer} does not know this run's secret")

    def _hello(self, frame: Frame) -> Hello:
        try:
            if frame.kind is not Kind.HELLO or frame.payload is not None:
                raise DecodeError(f"this is a {frame.kind.name} frame")
            hello = Hello.unpack(frame.header)
        except DecodeError as error:
            raise HandshakeError(f"{self._connection.peer} did not say hello: {error}") from error
        if hello.node == self._node.name:
            raise HandshakeError(f"{self._connection.peer} calls itself {hello.node!r}, as this node does")
        return hello

    def _answer(self, frame: Frame) -> None:
        """The listener's part: say hello, or why not."""
        assert self._admit is not None
        try:
            hello = self._hello(frame)
            table = hello.table(self._node.name)
            link = self._admit(hello)
        except HandshakeError as error:
            self._send(Kind.REFUSAL, str(error)[:REFUSAL].encode())
            # Closed, not aborted, so that the reason arrives.
            self._finish(error)
            self._connection.close()
            return
        except Unreachable as error:
            self._connection.abort(error)
            return
        if isinstance(link, asyncio.Future):
            self._held = True
            if self._deadline is not None:
                self._deadline.cancel()  # it is not the dialer who is slow
            link.add_done_callback(lambda _: self._answer_at_last(frame))
            return
        self._send(Kind.HELLO, link.hello(known=hello.resumes).pack())
        link.begin(self._connection, hello, table)
        self._finish(None)

    def _answer_at_last(self, frame: Frame) -> None:
        """Answer a hello that was held."""
        self._held = False
        if self.done.done():
            return  # who said it has gone
        try:
            self._answer(frame)
        except WireError as error:
            self._connection.abort(error)

    def _greet(self, link: "Link", frame: Frame) -> None:
        """The dialer's part."""
        if frame.kind is Kind.REFUSAL:
            raise HandshakeError(f"refused by {self._connection.peer}: {frame.header.decode(errors='replace')}")
        hello = self._hello(frame)
        link.begin(self._connection, hello, hello.table(self._node.name))
        self._finish(None)

    def _set_deadline(self) -> None:
        self._due = self._node.loop.time() + PROOF_SECONDS
        self._deadline = self._node.loop.call_at(self._due, self._too_slow)

    def _too_slow(self) -> None:
        if self._node.loop.time() - self._due > PROOF_SECONDS / 2:
            self._set_deadline()  # it was this node that stood still; what the other side sent meanwhile waits
            return
        text = f"{self._connection.peer} did not prove itself within {PROOF_SECONDS:g} s"
        # Whom this node dials may just be slow; whoever dials this node and says nothing is up to no good.
        self.abort(HandshakeError(text) if self._link is None else Unreachable(text))
