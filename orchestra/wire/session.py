"""A session: what two processes have said to each other, whatever happens to the connections in between. No I/O.

Frames that matter are numbered on both sides, in the order in which they are sent; the numbers themselves never
travel, since a connection keeps the order. The sender keeps every frame until the receiver says how many it has; when
a connection is replaced, each side says how many it has, and the other sends the rest again. So a frame arrives once,
and in order, over however many connections.
"""

from collections import deque

from orchestra.actors.codec import Buffer
from orchestra.errors import FrameError

KEEP = 32_768
"""Frames that may be kept for the peer; a sender then waits. The answers and credits that it owes are kept besides."""
KEEP_BYTES = 128 << 20
"""Bytes of the same."""
ACKNOWLEDGE = 256
"""Frames after which the receiver says how many it has."""
ACKNOWLEDGE_BYTES = 1 << 20
"""Bytes after which it does."""


class Session:
    """One side's account of a session: how many frames it sent and received, and what the peer may lack.

    A frame is a list of buffers, which nobody may change any more; it is kept, not copied.
    """

    __slots__ = ("_kept", "_owed", "_owed_bytes", "acknowledged", "full", "kept_bytes", "received")

    def __init__(self) -> None:
        self.received = 0
        """Frames received so far: the number of the next one."""
        self.acknowledged = 0
        """Frames that the peer is known to have."""
        self.kept_bytes = 0
        self.full = False
        """Whether so much is kept that whoever can wait has to."""
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
        """Whether frames came of which the peer does not know yet that they did."""
        return self._owed > 0

    def send(self, frame: list[Buffer], nbytes: int) -> None:
        """Take note that `frame`, of so many bytes, is sent; keep it."""
        self._kept.append((frame, nbytes))
        self.kept_bytes += nbytes
        self.full = len(self._kept) >= KEEP or self.kept_bytes >= KEEP_BYTES

    def receive(self, nbytes: int) -> bool:
        """Take note of a frame that came; return whether it is time to acknowledge."""
        self.received += 1
        self._owed += 1
        self._owed_bytes += nbytes
        return self._owed >= ACKNOWLEDGE or self._owed_bytes >= ACKNOWLEDGE_BYTES

    def acknowledge(self) -> int:
        """Return how many frames were received, for the peer to be told."""
        self._owed = self._owed_bytes = 0
        return self.received

    def forget(self, count: int) -> None:
        """Drop what the peer has, which are the first `count` frames of the session.

        Raises:
            FrameError: it cannot have so many, or has said before that it has more.
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
        """Return what has to be sent again to a peer that has `count` frames of the session.

        Raises:
            FrameError: see `forget`.
        """
        self.forget(count)
        self._owed = self._owed_bytes = 0  # the peer was told as well, when the connection was made
        return [frame for frame, _ in self._kept]

    def end(self) -> None:
        """Keep nothing any more."""
        self._kept.clear()
        self.kept_bytes = 0
        self.full = False
