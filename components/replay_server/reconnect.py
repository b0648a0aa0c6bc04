"""Looking for a server, and looking again when it is lost."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from components.replay_buffers.invalid import UnknownClient
from components.replay_server.loop_thread import Background, first_of
from orchestra import Node, Unreachable
from orchestra.errors import HandshakeError

RETRY_S = 0.25
"""How often whoever has lost a server looks whether there is one again."""


class Disconnected(ConnectionError):
    """There is no server, or none any more; what was asked of it may or may not have happened."""


class Search:
    """Connects to a server again and again.

    Args:
        address: where it listens.
        timeout: seconds to find it within, at first.
        patience: seconds to look for it, once it is lost.
    """

    def __init__(self, address: str, timeout: float, patience: float) -> None:
        self.address = address
        self.connections = 0
        """How often it was found."""
        self.why = "it has not connected yet"
        """Why there is no connection, if there is none."""
        self._timeout, self._patience = timeout, patience

    async def run(self, background: Background, visit: Callable[[float], Awaitable[None]]) -> None:
        """Call `visit` until it is closed. It is to return when the server is lost, having counted `connections`.

        Args:
            background: whose closing ends this.
            visit: connects, and stays; given how many seconds it may take to connect.

        Raises:
            Disconnected: no server was found for too long, or it does not let us in.
        """
        until = time.monotonic() + self._timeout
        while True:
            before = self.connections
            try:
                await visit(until - time.monotonic())
            except (Unreachable, TimeoutError, UnknownClient) as error:
                self.why = str(error) or "it does not answer"
            except HandshakeError as error:
                raise Disconnected(f"the server at {self.address} does not let us in: {error}") from error
            if background.closing.is_set():
                return
            if self.connections > before:
                until = time.monotonic() + self._patience
            if time.monotonic() >= until:
                within = self._patience if self.connections else self._timeout
                raise Disconnected(f"no server was found at {self.address} within {within:g} s: {self.why}")
            await first_of(background.closing.wait(), asyncio.sleep(RETRY_S))


async def root_lost(node: Node) -> str:
    """Return why the server is gone, once it is."""
    return await asyncio.shield(node.stop_requested)


def door_beside(address: str) -> str | None:
    """Where a process on the same machine as `address` can look whether this one lives; None if it is another's."""
    scheme, _, place = address.partition("://")
    here = scheme == "unix" or (scheme == "tcp" and place.rpartition(":")[0] in ("127.0.0.1", "localhost", "[::1]"))
    return "tcp://127.0.0.1:0" if here else None
