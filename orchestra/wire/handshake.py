"""The first frames of a connection: both sides prove themselves, and agree on the session that continues over it.

Before a peer has proved that it knows the run's secret, it may send three small frames of fixed layout and nothing
else; no message is decoded. Dialer D and listener L prove themselves to each other:

    D → L   nonce of D (32 bytes)
    L → D   nonce of L, HMAC-SHA256(secret, "listener" ‖ nonce of D ‖ nonce of L)
    D → L   HMAC-SHA256(secret, "dialer" ‖ nonce of D ‖ nonce of L)

Then D sends its hello, and L sends its own or a refusal. A hello names the process, the schemas of its message types,
the session (chosen by D) and how many of its frames have arrived so far; a new session begins with none.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Callable
from typing import Annotated, Protocol

import msgpack
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from orchestra.actors import codec
from orchestra.actors.addresses import check_name, is_observer
from orchestra.actors.message import REGISTRY
from orchestra.errors import (
    AuthenticationFailed,
    DecodeError,
    HandshakeError,
    OrchestraError,
    Unreachable,
    UsageError,
    VersionMismatch,
    WireError,
)
from orchestra.wire.frames import Frame, Kind, frame_bytes
from orchestra.wire.settings import LinkSettings
from orchestra.wire.transports.base import Connection

NONCE = 32
PROOF_SECONDS = 2.0
"""Seconds that an accepted connection has to prove itself and to send its hello."""
ANSWER_SECONDS = 3.0
"""Seconds that a dialer waits for the listener's hello."""
LONGEST_NODE = 128
"""Characters that the name of a node may have, since its peers store it."""
LONGEST_ID = 64
"""Bytes that an incarnation or a session's name may have."""
REFUSAL = 500
"""Characters of a refusal."""
REASONS = (HandshakeError, VersionMismatch, AuthenticationFailed)
"""The kinds of refusals, by the first byte of the frame. The rest is text."""
RUNTIME = "orchestra."
"""Prefix of the tags of the runtime's own messages."""


_Id = Annotated[bytes, Field(max_length=LONGEST_ID)]


def check_node_name(name: str) -> str:
    """Return the name of a node.

    Raises:
        UsageError: it is not allowed.
    """
    if len(name) > LONGEST_NODE:
        raise UsageError(f"the name of a node has {len(name)} characters; at most {LONGEST_NODE} are allowed")
    return check_name(name, "a node")


class Hello(BaseModel):
    """A process's introduction, and the session that it begins or resumes."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    node: Annotated[str, Field(min_length=1, max_length=LONGEST_NODE)]
    listening: str
    """The address where it accepts connections; empty if it accepts none."""
    host: Annotated[str, Field(max_length=LONGEST_NODE)]
    """The join point at which it has joined, or itself if it is one; empty while it joins at the listener."""
    root: Annotated[str, Field(max_length=LONGEST_NODE)]
    """The name of the run's root, as far as it knows."""
    joins: bool
    """True if the dialer joins the run at the listener."""
    incarnation: _Id
    """Random bytes that tell this process from an earlier one of the same name."""
    session: Annotated[_Id, Field(min_length=1)]
    attempt: NonNegativeInt
    """Counts the dialer's connections for this session: an older one does not replace a newer one."""
    resumes: bool
    """True if the listener has answered in this session before."""
    received: NonNegativeInt
    """Frames of the session that have arrived so far."""
    after: _Id
    """The last session with the listener that ended, as far as the dialer knows; empty if there was none."""
    types: list[Annotated[tuple[str, bytes], Field(strict=False)]]
    """Tag and fingerprint of each type that it names by its number in this list; sent once in a session."""

    def pack(self) -> bytes:
        """Encode it as a header."""
        packed: bytes = msgpack.packb(self.model_dump())
        return packed

    @classmethod
    def unpack(cls, header: bytes) -> "Hello":
        """Decode a header.

        Raises:
            DecodeError: it is no hello.
        """
        try:
            return cls.model_validate(codec.decode(header, None))
        except ValidationError as error:
            if all(wrong["type"].endswith("_too_long") for wrong in error.errors()):
                raise DecodeError("its names are too long") from None
            raise DecodeError("its fields are not those of a hello") from None

    def check_types(self, here: str) -> None:
        """Compare the fields of the peer's types with those of the node `here`, as far as it knows the types.

        An observer exchanges the runtime's own messages only, and only these are compared with it: its process may
        have loaded another experiment of the same name, or an older version of this one.

        Raises:
            VersionMismatch: the fields of a type differ between the peer and this node.
        """
        observed = is_observer(self.node) or is_observer(here)
        for tag, fingerprint in self.types:
            if observed and not tag.startswith(RUNTIME):
                continue
            if tag in REGISTRY and REGISTRY[tag].wire.fingerprint != fingerprint:
                raise VersionMismatch(
                    f"{self.node} and {here} disagree about the fields of {tag}: "
                    "they run different versions of the code"
                )


class Greeter(Protocol):
    """A link, as the handshake of a new connection sees it."""

    peer: str
    """Name of the other node; empty before its hello."""

    def hello(self, *, known: bool) -> Hello:
        """Return this side's hello; without its types if the peer has `known` them before."""

    def begin(self, connection: Connection, hello: Hello) -> None:
        """Continue over `connection` after the peer's hello.

        Raises:
            HandshakeError: the hello does not fit the session.
        """


Admit = Callable[[Hello], Greeter | asyncio.Future[None]]
"""Returns the link that a dialer's hello is for, or a future to await before asking again. Raises `HandshakeError` to
refuse with a reason, `Unreachable` to drop the connection without one."""


class Handshake:
    """The frame handler of a connection until a link takes it over.

    Args:
        link: the link that the dialer begins or resumes; None for the listener.
        admit: finds the link for a dialer's hello; None for the dialer.
        claim: asked by the dialer once the listener has proved itself; False to drop the connection, because another
            one was faster.
        over: called once: with None when a link has the connection, else with the error.
        progress: called at each sign that the dialer belongs to the run, for the listener.
    """

    def __init__(
        self,
        settings: LinkSettings,
        connection: Connection,
        *,
        link: Greeter | None = None,
        admit: Admit | None = None,
        claim: Callable[[], bool] = lambda: True,
        over: Callable[["Handshake", Exception | None], None],
        progress: Callable[["Handshake"], None] = lambda _: None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self._loop.create_future()
        """Done once a link has the connection; or fails."""
        self._settings = settings
        self._connection = connection
        self.peer, self.source = connection.peer, connection.source
        """The other end, for error messages, and its host."""
        self._link = link
        self._admit = admit
        self._claim = claim
        self._over = over
        self._progress = progress
        self.proven = False
        """True once the peer has proved that it belongs to the run."""
        self._held = False
        self._nonce = settings.entropy(NONCE)
        self._peer_nonce = b""
        self._deadline: asyncio.TimerHandle | None = None
        self._limit_s = PROOF_SECONDS if link is None else ANSWER_SECONDS
        self._due = 0.0
        if not settings.deterministic:
            self._set_deadline()
        connection.attach(self)
        if link is not None:
            self._send(Kind.HANDSHAKE, self._nonce)

    @property
    def greeted(self) -> bool:
        """True once this side, as the dialer, has sent its hello: the listener may have accepted it already."""
        return self._link is not None and self.proven

    def abort(self, error: Exception) -> None:
        """Give up, and drop the connection."""
        self._connection.abort(error)

    # FrameHandler

    def frame_received(self, frame: Frame) -> None:
        """Handle one frame of the handshake; raise `WireError` for one that is out of place."""
        if self.done.done():
            return  # refused before
        if not self.proven:
            self._prove(frame)
        elif self._held:
            raise HandshakeError(f"{self._connection.peer} sent a frame before its hello was answered")
        elif self._link is None:
            self._answer(frame)
        else:
            self._greet(self._link, frame)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the handshake."""
        if isinstance(error, VersionMismatch) and not self.proven:
            error = VersionMismatch(f"{self._connection.peer}: {error}")
        elif isinstance(error, WireError) and not isinstance(error, HandshakeError):
            # A peer that sends bytes which are no frame does not belong to the run either.
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
            self.done.exception()  # retrieved: a listener does not await it
        self._over(self, error)

    def _prove(self, frame: Frame) -> None:
        if frame.kind is Kind.REFUSAL and self._link is None and self._peer_nonce:
            raise AuthenticationFailed(f"{self._connection.peer} knows the secret of another run")
        if frame.kind is not Kind.HANDSHAKE:
            raise HandshakeError(f"{self._connection.peer} sent a {frame.kind.name} frame before it proved itself")
        if self._link is not None:
            self._expect(frame, NONCE + 32)
            self._peer_nonce = frame.header[:NONCE]
            try:
                self._verify(frame.header[NONCE:], b"listener")
            except AuthenticationFailed as error:
                self._send(Kind.REFUSAL, b"")  # else the listener would take this for a broken connection
                self._finish(error)
                self._connection.close()
                return
            if not self._claim():
                self.abort(Unreachable(f"another address than {self._connection.peer} was faster"))
                return
            self._send(Kind.HANDSHAKE, self._mac(b"dialer"))
            # A peer that has answered before knows the types; another one may have missed them.
            self._send(Kind.HELLO, self._link.hello(known=bool(self._link.peer)).pack())
        elif not self._peer_nonce:
            self._expect(frame, NONCE)
            self._peer_nonce = frame.header
            self._send(Kind.HANDSHAKE, self._nonce + self._mac(b"listener"))
            self._progress(self)
            return
        else:
            self._expect(frame, 32)
            self._verify(frame.header, b"dialer")
        self.proven = True
        self._connection.limits = self._settings.limits
        self._connection.lend = self._settings.shared_memory.lend_memory
        self._progress(self)

    def _expect(self, frame: Frame, length: int) -> None:
        if len(frame.header) != length:
            raise HandshakeError(
                f"{self._connection.peer} sent a proof of {len(frame.header)} bytes instead of {length}"
            )

    def _mac(self, role: bytes) -> bytes:
        mine, theirs = self._nonce, self._peer_nonce
        nonces = mine + theirs if self._link is not None else theirs + mine
        return hmac.new(self._settings.secret, role + nonces, hashlib.sha256).digest()

    def _verify(self, proof: bytes, role: bytes) -> None:
        if not hmac.compare_digest(proof, self._mac(role)):
            raise AuthenticationFailed(f"{self._connection.peer} does not know this run's secret")

    def _hello(self, frame: Frame) -> Hello:
        try:
            if frame.kind is not Kind.HELLO or frame.payload is not None:
                raise DecodeError(f"this is a {frame.kind.name} frame")
            hello = Hello.unpack(frame.header)
        except DecodeError as error:
            raise HandshakeError(f"{self._connection.peer} sent no valid hello: {error}") from error
        if hello.node == self._settings.name:
            raise HandshakeError(f"{self._connection.peer} calls itself {hello.node!r}, as this node does")
        return hello

    def _answer(self, frame: Frame) -> None:
        """Answer as the listener: send a hello or a refusal."""
        assert self._admit is not None
        try:
            hello = self._hello(frame)
            hello.check_types(self._settings.name)
            link = self._admit(hello)
        except HandshakeError as error:
            kind = REASONS.index(type(error)) if type(error) in REASONS else 0
            self._send(Kind.REFUSAL, bytes([kind]) + str(error)[:REFUSAL].encode())
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
                self._deadline.cancel()  # the delay is this side's
            link.add_done_callback(lambda _: self._answer_held(frame))
            return
        self._send(Kind.HELLO, link.hello(known=hello.resumes).pack())
        link.begin(self._connection, hello)
        self._finish(None)

    def _answer_held(self, frame: Frame) -> None:
        """Answer a hello that was held."""
        self._held = False
        if self.done.done():
            return  # the dialer has gone
        try:
            self._answer(frame)
        except WireError as error:
            self._connection.abort(error)

    def _greet(self, link: Greeter, frame: Frame) -> None:
        """Take the listener's answer as the dialer."""
        if frame.kind is Kind.REFUSAL:
            kind = frame.header[0] if frame.header else 0
            reason = frame.header[1:].decode(errors="replace")
            raise REASONS[kind if kind < len(REASONS) else 0](f"refused by {self._connection.peer}: {reason}")
        hello = self._hello(frame)
        hello.check_types(self._settings.name)
        link.begin(self._connection, hello)
        self._finish(None)

    def _set_deadline(self) -> None:
        self._due = self._loop.time() + self._limit_s
        self._deadline = self._loop.call_at(self._due, self._expire)

    def _expire(self) -> None:
        if self._loop.time() - self._due > self._limit_s / 2:
            self._set_deadline()  # this node itself stood still; frames that arrived meanwhile are still unread
            return
        text = f"{self._connection.peer} did not prove itself within {self._limit_s:g} s"
        # A silent dialer may be an attacker; a silent listener may just be slow.
        self.abort(HandshakeError(text) if self._link is None else Unreachable(text))


class Dial:
    """The attempts to begin one session with a peer.

    Args:
        over: done when the session has begun, or the attempts have ended without one.
    """

    def __init__(self, over: asyncio.Future[None]) -> None:
        self.over = over
        self.handshakes: list[Handshake] = []
        """One for each attempt; the last one may be under way."""

    @property
    def greeted(self) -> bool:
        """True if the peer may have begun the session already: a hello was sent, even if no answer came."""
        return any(handshake.greeted for handshake in self.handshakes)

    def give_up(self, error: Unreachable) -> None:
        """End the attempt that is under way."""
        for handshake in self.handshakes:
            handshake.abort(error)
