"""Connecting to a replay server, and reconnecting after a loss."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from components.replay_buffers.invalid import UnknownClient
from components.replay_server.loop_thread import LoopThread, first_of
from orchestra import HandshakeError, Node, Unreachable

RETRY_S = 0.25
"""Delay between two attempts to connect."""


class Disconnected(ConnectionError):
    """There is no connection to the server. A request that was under way may or may not have been carried out."""


class Reconnector:
    """Connects to a server, and reconnects after every loss.

    Args:
        address: address of the server.
        timeout: seconds for the first connection.
        patience: seconds for each later connection.
    """

    def __init__(self, address: str, timeout: float, patience: float) -> None:
        self.address = address
        self.connections = 0
        """Number of connections so far."""
        self.why = "it has not connected yet"
        """Reason for which there is no connection now."""
        self._timeout, self._patience = timeout, patience

    async def run(self, connect: Callable[[LoopThread, float], Awaitable[None]], thread: LoopThread) -> None:
        """Call `connect` until the thread closes.

        Args:
            connect: connects within the given seconds, and then waits in `stay`.
            thread: the thread in which this runs.

        Raises:
            Disconnected: no server was found in time, or it refuses the handshake.
        """
        until = time.monotonic() + self._timeout
        while True:
            before = self.connections
            try:
                await connect(thread, until - time.monotonic())
            except (Unreachable, TimeoutError, UnknownClient) as error:
                self.why = str(error) or "it does not answer"
            except HandshakeError as error:
                raise Disconnected(f"the server at {self.address} refuses the connection: {error}") from error
            if thread.closing.is_set():
                return
            if self.connections > before:
                until = time.monotonic() + self._patience
            if time.monotonic() >= until:
                within = self._patience if self.connections else self._timeout
                raise Disconnected(f"no server was found at {self.address} within {within:g} s: {self.why}")
            await first_of(thread.closing.wait(), asyncio.sleep(RETRY_S))

    async def stay(self, node: Node, closing: asyncio.Event, *work: Coroutine[Any, Any, None]) -> None:
        """Count a connection, and do `work` until the server of `node` is lost, `closing` is set, or work fails."""
        self.connections += 1
        await first_of(closing.wait(), asyncio.wait([node.stop_requested]), *work)
        if not closing.is_set():
            self.why = node.stop_requested.result()


def listen_beside(address: str) -> str | None:
    """Return an address at which a server at `address` can probe this process; None if it is on another machine."""
    scheme, _, place = address.partition("://")
    local = scheme == "unix" or (scheme == "tcp" and place.rpartition(":")[0] in ("127.0.0.1", "localhost", "[::1]"))
    return "tcp://127.0.0.1:0" if local else None
