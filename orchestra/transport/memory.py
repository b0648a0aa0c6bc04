"""memory:// connects nodes of one process. It passes frames of bytes too: a message means what it does on a socket."""

import asyncio
from collections import deque

from orchestra.codec import Buffer
from orchestra.errors import Unreachable, UsageError, WireError
from orchestra.transport.base import Accept, Listener, Receiver
from orchestra.transport.frames import UNPROVEN, Frame, FrameReader, Limits

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
            raise Unreachable(f"nobody listens at {address}")
        here, there = MemoryConnection(address), MemoryConnection("memory://")
        here._other, there._other = there, here
        listener.accept(there)
        return here


class MemoryConnection:
    """One end of a pair. Bytes sent in one turn of the loop arrive in the next."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self._reader = FrameReader(UNPROVEN)
        self._receiver: Receiver | None = None
        self._waiting: deque[Frame] = deque()
        self._other: MemoryConnection
        self._lost = False
        self._loss: list[Exception | None] = []

    @property
    def limits(self) -> Limits:
        return self._reader.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._reader.limits = limits

    def attach(self, receiver: Receiver) -> None:
        self._receiver = receiver
        try:
            while self._waiting and not self._lost:
                receiver.frame_received(self._waiting.popleft())
        except WireError as error:
            self.abort(error)
        if self._loss:
            receiver.connection_lost(self._loss.pop())

    def send(self, pieces: list[Buffer]) -> None:
        if self._lost or self._other._lost:
            return
        # Each on its own turn: were frames to share one, a heartbeat sent just before would make what follows it
        # arrive earlier than what was told before that to another node, and no two runs would be alike.
        asyncio.get_running_loop().call_soon(self._other._arrive, pieces)

    def close(self) -> None:
        other = self._other
        self._end(None)
        # What was sent before arrives before the end does.
        asyncio.get_running_loop().call_soon(other._end, ConnectionResetError("closed by the other side"))

    def abort(self, error: Exception | None = None) -> None:
        self._end(error)
        self._other._end(ConnectionResetError("closed by the other side"))

    def _arrive(self, pieces: list[Buffer]) -> None:
        try:
            for piece in pieces:
                rest = memoryview(piece).cast("B")
                while len(rest) and not self._lost:
                    buffer = self._reader.get_buffer()
                    count = min(len(buffer), len(rest))
                    buffer[:count] = rest[:count]
                    rest = rest[count:]
                    for frame in self._reader.received(count):
                        self._deliver(frame)
        except WireError as error:
            self.abort(error)

    def _deliver(self, frame: Frame) -> None:
        if self._receiver is None:
            self._waiting.append(frame)
        elif not self._lost:
            self._receiver.frame_received(frame)

    def _end(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = True
        if self._receiver is None:
            self._loss.append(error)
        else:
            self._receiver.connection_lost(error)
