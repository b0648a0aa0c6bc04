"""The contract of a transport: what a node may rely on, whatever carries its bytes."""

from collections.abc import Callable
from typing import Protocol

from orchestra.actors.codec import Buffer
from orchestra.wire.frames import Frame, Limits


class Receiver(Protocol):
    """Whoever listens at the end of a connection."""

    def frame_received(self, frame: Frame) -> None:
        """Take one frame. A `WireError` raised here closes the connection."""

    def connection_lost(self, error: Exception | None) -> None:
        """Take note that nothing more comes. Called exactly once; `error` is None after a close by this side."""


class Connection(Protocol):
    """Two directions of frames between two nodes.

    Frames arrive whole, in order, once; or the connection is lost. One owner; all calls from the node's loop.
    """

    peer: str
    """Who is at the other end, for error messages."""
    limits: Limits
    local: bool
    """Whether the other end may be on this host, in a process whose memory can be shared."""

    def attach(self, receiver: Receiver) -> None:
        """Say who takes the frames. Frames that came before wait for it."""

    def send(self, pieces: list[Buffer], *, at_once: bool = False) -> None:
        """Queue the pieces of a frame. Never blocks; does nothing once the connection is lost.

        What is queued leaves at the end of this turn of the loop; `at_once` says that there is nothing to wait for.
        """

    def close(self) -> None:
        """Send what is queued, then close."""

    def abort(self, error: Exception | None = None) -> None:
        """Close at once; `error` is what `connection_lost` hears."""


class Listener(Protocol):
    """An open door."""

    address: str
    """Where others dial: the port is filled in if 0 was asked for."""

    async def close(self) -> None:
        """Accept no more. Connections that exist stay."""


Accept = Callable[[Connection], None]


class Transport(Protocol):
    """One way of connecting nodes, known by the scheme of its addresses."""

    def check(self, address: str) -> None:
        """Do nothing, or say what is wrong with an address, before anything is opened or made.

        Raises:
            UsageError: the address is malformed.
        """

    async def listen(self, address: str, accept: Accept) -> Listener:
        """Open a door at `address`; `accept` gets each connection.

        Raises:
            UsageError: the address is malformed, or taken.
        """

    async def clear(self, address: str) -> None:
        """Remove what a process that died while it listened at `address` left behind.

        Raises:
            UsageError: somebody listens there.
        """

    async def dial(self, address: str) -> Connection:
        """Connect to a listener.

        Raises:
            NobodyListens: nobody does, for certain.
            Unreachable: it did not work; somebody may listen there all the same.
        """
