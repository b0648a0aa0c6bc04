"""A session: the reliable sequence of frames between two processes, over successive connections. No I/O.

Both sides count the frames of a session in the order in which they are sent; the numbers never travel, since a
connection keeps the order. The sender keeps every frame until the receiver acknowledges it. When a connection is
replaced, each side reports how many frames it has, and the other sends the rest again. So every frame arrives once and
in order.
"""

from collections import deque

from orchestra.actors.codec import Buffer
from orchestra.errors import FrameError

KEEP = 32_768
"""Frames that are kept for the peer before senders have to wait. Answers and credits are kept beyond that."""
KEEP_BYTES = 128 << 20
"""Bytes of those frames."""
ACKNOWLEDGE = 256
"""Frames after which the receiver acknowledges."""
ACKNOWLEDGE_BYTES = 1 << 20
"""Bytes after which the receiver acknowledges."""


class Session:
    """One side of a session: the frames sent and received, and the frames that the peer may lack.

    A frame is a list of buffers. It is kept without a copy, so its buffers must not change.
    """

    __slots__ = ("_kept", "_owed", "_owed_bytes", "acknowledged", "full", "kept_bytes", "received")

    def __init__(self) -> None:
        self.received = 0
        """Frames received so far, which is the number of the next one."""
        self.acknowledged = 0
        """Frames that the peer is known to have."""
        self.kept_bytes = 0
        self.full = False
        """True while senders have to wait, because too much is kept."""
        self._kept: deque[tuple[list[Buffer], int]] = deque()
        self._owed = 0
        self._owed_bytes = 0

    @property
    def kept(self) -> int:
        """Frames that the peer may lack."""
        return len(self._kept)

    @property
    def sent(self) -> int:
        """Frames sent so far."""
        return self.acknowledged + len(self._kept)

    @property
    def owes(self) -> bool:
        """True if frames arrived that are not acknowledged yet."""
        return self._owed > 0

    def send(self, frame: list[Buffer], nbytes: int) -> None:
        """Keep `frame`, of `nbytes`, which is sent now."""
        self._kept.append((frame, nbytes))
        self.kept_bytes += nbytes
        self.full = len(self._kept) >= KEEP or self.kept_bytes >= KEEP_BYTES

    def receive(self, nbytes: int) -> bool:
        """Count a received frame; return True if an acknowledgement is due."""
        self.received += 1
        self._owed += 1
        self._owed_bytes += nbytes
        return self._owed >= ACKNOWLEDGE or self._owed_bytes >= ACKNOWLEDGE_BYTES

    def acknowledge(self) -> int:
        """Return the number of received frames, to send to the peer."""
        self._owed = self._owed_bytes = 0
        return self.received

    def forget(self, count: int) -> None:
        """Drop the first `count` frames of the session, which the peer has.

        Raises:
            FrameError: the peer was sent fewer, or has acknowledged more before.
        """
        fresh = count - self.acknowledged
        if not 0 <= fresh <= len(self._kept):
            raise FrameError(
                f"the peer claims {count} frames; it was sent {self.sent} and has acknowledged {self.acknowledged}"
            )
        kept = self._kept
        for _ in range(fresh):
            self.kept_bytes -= kept.popleft()[1]
        self.acknowledged = count
        self.full = len(kept) >= KEEP or self.kept_bytes >= KEEP_BYTES

    def resume(self, count: int) -> list[list[Buffer]]:
        """Return the frames to send again to a peer that has the first `count` of the session.

        Raises:
            FrameError: see `forget`.
        """
        self.forget(count)
        self._owed = self._owed_bytes = 0  # the handshake told the peer
        return [frame for frame, _ in self._kept]

    def end(self) -> None:
        """Drop all frames."""
        self._kept.clear()
        self.kept_bytes = 0
        self.full = False
