"""The contract of a transport: guarantees that do not depend on the medium."""

from collections.abc import Callable
from typing import Protocol

from orchestra.actors.codec import Buffer
from orchestra.wire.frames import Frame, Lend, Limits


class FrameHandler(Protocol):
    """Handles the frames of a connection."""

    def frame_received(self, frame: Frame) -> None:
        """Handle one frame. A `WireError` raised here closes the connection."""

    def connection_lost(self, error: Exception | None) -> None:
        """Handle the end. Called exactly once; `error` is None after a close by this side."""


class Connection(Protocol):
    """Two directions of frames between two nodes.

    Frames arrive whole, in order, once; or the connection is lost. One owner; all calls from the node's loop.
    """

    peer: str
    """The other end, for error messages."""
    source: str
    """The host at the other end, as far as it is known. Connections of one source share a quota until they have proved
    themselves."""
    limits: Limits
    lend: Lend
    """Lends the memory of large payloads that arrive."""
    local: bool
    """True if the other end may be on this host, in a process whose memory can be shared."""

    def attach(self, handler: FrameHandler) -> None:
        """Set the handler of the frames. Frames that arrive before wait for it."""

    def send(self, pieces: list[Buffer], *, at_once: bool = False) -> None:
        """Queue the pieces of a frame. Never blocks; does nothing once the connection is lost.

        The queue leaves at the end of this turn of the loop, or now if `at_once` is given.
        """

    def close(self) -> None:
        """Send the queue, then close."""

    def abort(self, error: Exception | None = None) -> None:
        """Close at once; `error` is passed to `connection_lost`."""


class Listener(Protocol):
    """Accepts connections at an address."""

    address: str
    """The address to dial, with the actual port if 0 was asked for."""

    async def close(self) -> None:
        """Accept no more connections. Existing ones stay open."""


Accept = Callable[[Connection], None]


class Transport(Protocol):
    """A way of connecting nodes, selected by the scheme of an address."""

    def check(self, address: str) -> None:
        """Check an address before anything is opened or created.

        Raises:
            UsageError: the address is malformed.
        """

    async def listen(self, address: str, accept: Accept) -> Listener:
        """Accept connections at `address`, and pass each to `accept`.

        Raises:
            UsageError: the address is malformed or taken.
        """

    async def clear(self, address: str) -> None:
        """Remove the files of a process that died while it listened at `address`.

        Raises:
            UsageError: a process listens there.
        """

    async def dial(self, address: str) -> Connection:
        """Connect to a listener.

        Raises:
            NobodyListens: no process listens there, for certain.
            Unreachable: the attempt failed; a process may listen there nevertheless.
        """
