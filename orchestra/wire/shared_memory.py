"""What two nodes on one host do so that large arrays need not go through the system: they share memory.

Each side of a link owns an arena for what it sends. With the first large payload it offers it (OFFER); the peer opens
it, or says why it cannot (TAKEN). From then on a large payload is copied into a block of the arena, and the frame that
travels in its place (PLACED) says where that is, and goes on with the header as it would have been. The peer's arrays
are views of the block. When the last of them is gone, the block goes back (FREED).

All four are frames of the session, so a connection that breaks changes nothing: a frame that is sent again names a
block that the peer has never seen, and that is therefore still held. Nothing ever waits for a block: a payload for
which there is none goes by the stream, like those before the offer was taken, and like all where it was not.
"""

import os
import struct
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

import msgpack

from orchestra.actors.codec import Buffer
from orchestra.actors.message import AnyArray
from orchestra.errors import FrameError
from orchestra.wire.arena import NAME_BYTES, PAGE, Arena, ArenaView, NotShared
from orchestra.wire.frames import PREFIX, Frame, Kind, frame_bytes

if TYPE_CHECKING:
    from orchestra.nodes.node import Node
    from orchestra.wire.link import Link

LEAST = 64 << 10
"""Bytes of a frame whose payload is worth a block: below, what is said about the block takes longer than to send it."""
TURN = 4 << 20
"""Bytes that are copied before the loop has a turn, in which it hears which blocks are free: to use these again, while
they are in the processor's cache, is twice as fast as to go on to others."""
REFUSAL = 200
"""Characters that a peer may give as its reason."""
NEVER = 1 << 62
"""No frame is that large."""
PLACE = struct.Struct("<BQQ")
"""What a frame whose payload is in a block says before its header: its kind, where the payload begins, its bytes."""


class SharedMemoryChannel:
    """What one link shares with its peer, in both directions."""

    def __init__(self, link: "Link", node: "Node") -> None:
        self.least = LEAST if node.shared_memory else NEVER
        """Bytes of a frame that `place` is to be asked about."""
        self.state = "" if node.shared_memory else "switched off"
        """How large payloads go to the peer: empty as long as there was none, `offered`, `shared`, or why not."""
        self.sent_bytes = 0
        """Bytes that went by memory."""
        self._in_turn = 0
        """Bytes that were copied since the last turn."""
        self._link = link
        self._node = node
        self._arena: Arena | None = None
        self._view: ArenaView | None = None
        """What the peer shares."""
        self._was_offered = False
        self._looked_at: dict[int, weakref.ref[AnyArray]] = {}
        """The blocks of the peer that somebody here looks at, by where they begin."""
        self._gone: deque[int] = deque()
        """Those whose last view is gone, which the peer has not been told yet. Views end in any thread."""
        self._telling = False
        self._thread = threading.get_ident()

    @property
    def held_bytes(self) -> int:
        """Bytes of this side's arena that the peer has not given back."""
        return 0 if self._arena is None else self._arena.blocks.used

    # Sending

    def place(self, frame: list[Buffer], nbytes: int) -> bytes | None:
        """Put the payload of `frame`, of so many bytes, into a block; return what is sent instead, or None."""
        start = frame[0]
        size = nbytes - len(start)
        if len(frame) == 1 or size < self.least:
            return None
        if self.state != "shared":
            if not self.state and self._link.local:
                self._offer()
            return None
        header = len(start) - PREFIX.size + PLACE.size
        assert self._arena is not None
        if header > self._node.limits.header or (begin := self._arena.write(frame[1:], size)) is None:
            return None
        self.sent_bytes += nbytes
        self._in_turn += size
        kind = start[3]
        return frame_bytes(Kind.SHM_DATA, PLACE.pack(kind, begin, size) + start[PREFIX.size :])

    def turn(self) -> Awaitable[None] | None:
        """Return what to await so that the loop has a turn, if it is time for one."""
        if self._in_turn < TURN:
            return None
        self._in_turn = 0
        return _TURN

    def taken(self, refusal: str) -> None:
        """Take note of what the peer made of the offer.

        Raises:
            FrameError: there is none to answer.
        """
        if self.state != "offered":
            raise FrameError(f"{self._link.peer} answers an offer of memory that was not made")
        if refusal:
            self._do_without(refusal[:REFUSAL])
        else:
            self.state = "shared"

    def freed(self, blocks: list[Any]) -> None:
        """Take back blocks that the peer no longer looks at.

        Raises:
            FrameError: it has no such blocks.
        """
        for begin in blocks:
            if self._arena is None or type(begin) is not int or not self._arena.blocks.give_back(begin):
                raise FrameError(f"{self._link.peer} gives back a block at {begin!r:.40} that it does not have")

    # Receiving

    def offered(self, process: int, descriptor: int, name: bytes, capacity: int) -> None:
        """Open the peer's memory, or tell it why not.

        Raises:
            FrameError: it has offered some before, or this cannot be any.
        """
        if self._was_offered or process < 1 or descriptor < 0 or len(name) != NAME_BYTES or capacity < 1:
            raise FrameError(f"{self._link.peer} offers memory a second time, or none: {process, descriptor, capacity}")
        self._was_offered = True
        refusal = ""
        try:
            if not self._node.shared_memory:
                raise NotShared(f"switched off at {self._node.name}")
            if not self._link.local:
                raise NotShared("the connection does not show that both are on one host")
            self._view = ArenaView(process, descriptor, name, capacity)
        except NotShared as error:
            refusal = str(error)
        self._link.send(Kind.SHM_ACCEPT, msgpack.packb([refusal]))

    def found(self, header: bytes, payload: AnyArray | None) -> Frame:
        """Return the frame that another one stands for, its payload being a view of the peer's memory.

        Raises:
            FrameError: there is no such block, or somebody looks at it already.
        """
        view = self._view
        if view is None or payload is not None or len(header) < PLACE.size:
            raise FrameError(f"{self._link.peer} places a payload in memory that it does not share, or none")
        kind, begin, nbytes = PLACE.unpack_from(header)
        if kind not in (Kind.MESSAGE, Kind.ANSWER):
            raise FrameError(f"{self._link.peer} places the payload of a frame of kind {kind}")
        if (
            begin % PAGE
            or not 0 < nbytes <= min(view.capacity - begin, self._node.limits.payload)
            or begin in self._looked_at
        ):
            raise FrameError(
                f"{self._link.peer} places {nbytes:,} bytes at {begin:,}, which is held already or not within "
                f"its {view.capacity:,}"
            )
        array = view.at(begin, nbytes)
        self._looked_at[begin] = weakref.ref(array, partial(self._unseen, begin))
        return Frame(Kind(kind), header[PLACE.size :], array)

    def end(self) -> None:
        """Share nothing any more. What somebody looks at stays as long as that."""
        self.least = NEVER
        self._looked_at.clear()
        self._view = None
        if self._arena is not None:
            self._arena.close()
            self._arena = None

    # Inside

    def _offer(self) -> None:
        try:
            self._arena = Arena(self._node.shared_memory, self._node.entropy(NAME_BYTES))
        except NotShared as error:
            self._do_without(str(error))
            return
        self.state = "offered"
        arena = self._arena
        offer = [os.getpid(), arena.descriptor, arena.name, arena.blocks.capacity]
        self._link.send(Kind.SHM_OFFER, msgpack.packb(offer))

    def _do_without(self, reason: str) -> None:
        self.state, self.least = reason, NEVER
        if self._arena is not None:
            self._arena.close()
            self._arena = None
        self._node.log.debug("no shared memory", peer=self._link.peer, reason=reason)

    def _unseen(self, begin: int, _: object) -> None:
        """Take note, in any thread and in the middle of anything, that nobody looks at a block any longer."""
        self._gone.append(begin)
        if self._telling:
            return
        self._telling = True
        loop = self._node.loop
        try:
            if threading.get_ident() == self._thread:
                loop.call_soon(self._tell)
            else:
                loop.call_soon_threadsafe(self._tell)
        except RuntimeError:
            if not loop.is_closed():
                raise
            self._gone.clear()  # nobody is there to be told

    def _tell(self) -> None:
        """Give back what nobody looked at when this turn of the loop came."""
        self._telling = False
        blocks = []
        while self._gone:
            begin = self._gone.popleft()
            self._looked_at.pop(begin, None)
            blocks.append(begin)
        if blocks and not self._link.ended and not self._link.closing:
            self._link.send(Kind.SHM_RELEASE, msgpack.packb([blocks]))


class _Turn(Awaitable[None]):
    """What lets everything else on the loop go first, once."""

    def __await__(self) -> Generator[None]:
        yield


_TURN = _Turn()
