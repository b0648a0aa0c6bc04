"""The receiving half of every connection: bytes in, frames out to a handler, one report of the end."""

from collections import deque

from orchestra.actors.codec import Buffer
from orchestra.errors import WireError
from orchestra.wire.frames import UNPROVEN, Frame, FrameReader, Lend, Limits
from orchestra.wire.transports.base import FrameHandler


class Endpoint:
    """The receiving half of a `Connection`. A subclass supplies the bytes and sends."""

    def __init__(self, peer: str) -> None:
        self.peer = self.source = peer
        self.local = False
        self._reader = FrameReader(UNPROVEN)
        self._handler: FrameHandler | None = None
        self._waiting: deque[Frame] = deque()
        self._lost = False
        self._loss: list[Exception | None] = []
        self._deaf = False
        """True once this side has abandoned the connection; later frames are dropped."""

    @property
    def limits(self) -> Limits:
        return self._reader.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._reader.limits = limits

    @property
    def lend(self) -> Lend:
        return self._reader.lend

    @lend.setter
    def lend(self, lend: Lend) -> None:
        self._reader.lend = lend

    def attach(self, handler: FrameHandler) -> None:
        self._handler = handler
        try:
            while self._waiting and not self._deaf:
                handler.frame_received(self._waiting.popleft())
        except WireError as error:
            self.abort(error)
        if self._loss:
            handler.connection_lost(self._loss.pop())

    def abort(self, error: Exception | None = None) -> None:
        raise NotImplementedError

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the frames that `nbytes` more bytes complete; abort if they break the protocol."""
        handler = self._handler
        try:
            if handler is not None and (sole := self._reader.sole(nbytes)) is not None:
                if not (self._deaf or self._lost):
                    handler.frame_received(sole)
                return
            for frame in self._reader.received(nbytes):
                if self._deaf or self._lost:
                    return
                if self._handler is None:
                    self._waiting.append(frame)
                else:
                    self._handler.frame_received(frame)
        except WireError as error:
            self.abort(error)

    def _feed(self, data: Buffer) -> None:
        """Handle the frames that `data`, bytes of the peer, completes."""
        rest = memoryview(data)
        while rest and not (self._deaf or self._lost):
            buffer = self._reader.get_buffer()
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            rest = rest[count:]
            self.buffer_updated(count)

    def _lose(self, error: Exception | None) -> None:
        """Report the end to the handler, now or when there is one."""
        if self._lost:
            return
        self._lost = True
        handler, self._handler = self._handler, None  # ends the reference cycle, which would keep the memory of both
        if handler is None:
            self._loss.append(error)
        else:
            handler.connection_lost(error)
