"""The tries to begin one session with a peer."""

import asyncio

from orchestra.errors import Unreachable
from orchestra.wire.handshake import Handshake


class Dial:
    """The tries to begin one session with a peer.

    Args:
        over: done when it has begun, or is given up.
    """

    def __init__(self, over: asyncio.Future[None]) -> None:
        self.over = over
        self.handshakes: list[Handshake] = []
        """That of each try, the last one may be under way."""

    @property
    def greeted(self) -> bool:
        """Whether the peer may have begun the session already: it was said hello, even if no answer came."""
        return any(handshake.greeted for handshake in self.handshakes)

    def give_up(self, error: Unreachable) -> None:
        """End the try that is under way."""
        for handshake in self.handshakes:
            handshake.abort(error)
