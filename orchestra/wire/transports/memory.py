"""memory:// connects nodes of one process. It passes frames of bytes too: a message means what it does on a socket."""

import asyncio

from orchestra.actors.codec import Buffer
from orchestra.errors import NobodyListens, UsageError
from orchestra.wire.transports.base import Accept, Listener
from orchestra.wire.transports.endpoint import Endpoint

_listening: dict[str, "_MemoryListener"] = {}


class _MemoryListener:
    def __init__(self, address: str, accept: Accept) -> None:
        self.address = address
        self.accept = accept

    async def close(self) -> None:
        _listening.pop(self.address, None)


class MemoryTransport:
    """Connections within this process, by name: `memory://learner`."""

    def check(self, address: str) -> None:
        """Any name will do."""

    async def listen(self, address: str, accept: Accept) -> Listener:
        if address in _listening:
            raise UsageError(f"{address} is taken by another node of this process")
        listener = _listening[address] = _MemoryListener(address, accept)
        return listener

    async def clear(self, address: str) -> None:
        """Nothing outlives this process."""

    async def dial(self, address: str) -> "MemoryConnection":
        listener = _listening.get(address)
        if listener is None:
            raise NobodyListens(f"nobody listens at {address}")
        here, there = MemoryConnection(address), MemoryConnection("memory://")
        here._other, there._other = there, here
        listener.accept(there)
        return here


class MemoryConnection(Endpoint):
    """One end of a pair. Bytes sent in one turn of the loop arrive in the next."""

    _other: "MemoryConnection"

    def send(self, pieces: list[Buffer], *, at_once: bool = False) -> None:
        if self._lost or self._other._lost:
            return
        # Each on its own turn: were frames to share one, a heartbeat sent just before would make what follows it
        # arrive earlier than what was told before that to another node, and no two runs would be alike.
        asyncio.get_running_loop().call_soon(self._other._arrive, pieces)

    def close(self) -> None:
        self._end(None)
        # What was sent before arrives before the end does.
        asyncio.get_running_loop().call_soon(self._other._lose, ConnectionResetError("closed by the other side"))

    def abort(self, error: Exception | None = None) -> None:
        self._end(error)
        self._other._lose(ConnectionResetError("closed by the other side"))

    def _arrive(self, pieces: list[Buffer]) -> None:
        for piece in pieces:
            rest = memoryview(piece).cast("B")
            while len(rest) and not self._lost:
                buffer = self._reader.get_buffer()
                count = min(len(buffer), len(rest))
                buffer[:count] = rest[:count]
                rest = rest[count:]
                self.buffer_updated(count)

    def _end(self, error: Exception | None) -> None:
        self._deaf = True
        self._lose(error)
