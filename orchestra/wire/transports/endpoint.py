"""What all connections share: bytes in, frames to a receiver that may come later, and the end told once."""

from collections import deque

from orchestra.errors import WireError
from orchestra.wire.frames import UNPROVEN, Frame, FrameReader, Limits
from orchestra.wire.transports.base import Receiver


class Endpoint:
    """The receiving half of a `Connection`; whoever brings the bytes is derived from it."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.local = False
        self._reader = FrameReader(UNPROVEN)
        self._receiver: Receiver | None = None
        self._waiting: deque[Frame] = deque()
        self._lost = False
        self._loss: list[Exception | None] = []
        self._deaf = False
        """Whether this side has given up: no frame is handed on any more."""

    @property
    def limits(self) -> Limits:
        return self._reader.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._reader.limits = limits

    def attach(self, receiver: Receiver) -> None:
        self._receiver = receiver
        try:
            while self._waiting and not self._deaf:
                receiver.frame_received(self._waiting.popleft())
        except WireError as error:
            self.abort(error)
        if self._loss:
            receiver.connection_lost(self._loss.pop())

    def abort(self, error: Exception | None = None) -> None:
        raise NotImplementedError

    def buffer_updated(self, nbytes: int) -> None:
        """Hand on the frames that are complete with so many bytes more; what breaks the protocol ends it all."""
        receiver = self._receiver
        try:
            if receiver is not None and (sole := self._reader.sole(nbytes)) is not None:
                if not (self._deaf or self._lost):
                    receiver.frame_received(sole)
                return
            for frame in self._reader.received(nbytes):
                if self._deaf or self._lost:
                    return
                if self._receiver is None:
                    self._waiting.append(frame)
                else:
                    self._receiver.frame_received(frame)
        except WireError as error:
            self.abort(error)

    def _lose(self, error: Exception | None) -> None:
        """Tell the receiver, now or when there is one, that it is over."""
        if self._lost:
            return
        self._lost = True
        receiver, self._receiver = self._receiver, None  # which else would keep each other, and the memory of both
        if receiver is None:
            self._loss.append(error)
        else:
            receiver.connection_lost(error)
