"""memory:// connects nodes of one process. Messages are encoded into frames, as on a socket."""

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
        """Accept any name."""

    async def listen(self, address: str, accept: Accept) -> Listener:
        if address in _listening:
            raise UsageError(f"cannot listen at {address}: another node of this process does")
        listener = _listening[address] = _MemoryListener(address, accept)
        return listener

    async def clear(self, address: str) -> None:
        """Do nothing: no name outlives its process."""

    async def dial(self, address: str) -> "MemoryConnection":
        listener = _listening.get(address)
        if listener is None:
            raise NobodyListens(f"no process listens at {address}")
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
        # One turn for each frame. If frames shared a turn, a heartbeat would let the next frame overtake an earlier one
        # to another node, and runs would not repeat.
        asyncio.get_running_loop().call_soon(self._other._arrive, pieces)

    def close(self) -> None:
        self._end(None)
        # Frames that were sent before arrive before the end does.
        asyncio.get_running_loop().call_soon(self._other._lose, ConnectionResetError("closed by the other side"))

    def abort(self, error: Exception | None = None) -> None:
        self._end(error)
        self._other._lose(ConnectionResetError("closed by the other side"))

    def _arrive(self, pieces: list[Buffer]) -> None:
        for piece in pieces:
            self._feed(piece)

    def _end(self, error: Exception | None) -> None:
        self._deaf = True
        self._lose(error)
