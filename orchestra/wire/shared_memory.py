"""Shared memory between two nodes on one host: large arrays need not pass through the system.

Each side of a link owns an arena for what it sends. It offers the arena with the first large payload (SHM_OFFER); the
peer maps it, or says why it cannot (SHM_ACCEPT). From then on a large payload is copied into a block of the arena, and
an SHM_DATA frame travels in place of the original frame: it holds the place of the block, then the original header. The
peer's arrays are views of the block. When the last view is gone, the peer returns the block (SHM_RELEASE).

All four are frames of the session, so a broken connection changes nothing: a frame that is sent again names a block
that the peer has never seen, and that is therefore still held. Nothing ever waits for a block: a payload for which
there is none travels by the stream, as all payloads do before the offer is accepted, or if it is refused.
"""

import os
import struct
import threading
import weakref
from asyncio import get_running_loop
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any

from orchestra import log
from orchestra.actors.axes import AnyArray
from orchestra.actors.codec import Buffer
from orchestra.actors.system_messages import SYSTEM
from orchestra.errors import FrameError
from orchestra.wire.arena import NAME_BYTES, PAGE, Arena, ArenaView, NotShared
from orchestra.wire.frames import PREFIX, Frame, Kind, frame_bytes
from orchestra.wire.settings import LinkSettings, LinkState

LEAST = 64 << 10
"""Bytes of a frame above which its payload goes into a block. Below, describing the block costs more than sending."""
TURN = 4 << 20
"""Bytes that are copied before the loop runs once and learns which blocks were released: blocks that are still in the
processor's cache are filled twice as fast as others."""
REFUSAL = 200
"""Characters of a peer's reason that are kept."""
NEVER = 1 << 62
"""More bytes than any frame has."""
PLACE = struct.Struct("<BQQ")
"""Begins the header of an SHM_DATA frame: kind of the original frame, place of the payload, bytes of the payload."""


class SharedMemoryChannel:
    """The shared memory of one link, in both directions.

    Args:
        link: state of the link.
        send: sends a frame of the session by the link: its kind and its contents.
    """

    def __init__(self, settings: LinkSettings, link: LinkState, send: Callable[..., None]) -> None:
        self.least = LEAST if settings.shared_memory else NEVER
        """Bytes of a frame above which `place` applies."""
        self.state = "" if settings.shared_memory else "switched off"
        """State of the sending direction: empty before the first large payload, `offered`, `shared`, or why not."""
        self.sent_bytes = 0
        """Bytes sent by shared memory."""
        self._in_turn = 0
        """Bytes copied since the loop ran last."""
        self._settings = settings
        self._link = link
        self._send = send
        self._loop = get_running_loop()
        self._arena: Arena | None = None
        self._view: ArenaView | None = None
        """The peer's arena."""
        self._was_offered = False
        self._viewed: dict[int, weakref.ref[AnyArray]] = {}
        """The peer's blocks that are viewed here, by the place where they begin."""
        self._unviewed: deque[int] = deque()
        """Blocks without views that are still to be returned. Views end in any thread."""
        self._release_scheduled = False
        self._thread = threading.get_ident()

    @property
    def held_bytes(self) -> int:
        """Bytes of this side's arena that the peer has not returned."""
        return 0 if self._arena is None else self._arena.blocks.used

    # Sending

    def place(self, frame: list[Buffer], nbytes: int) -> bytes | None:
        """Copy the payload of `frame`, of `nbytes`, into a block; return the frame to send instead, or None."""
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
        if header > self._settings.limits.header or (begin := self._arena.write(frame[1:], size)) is None:
            return None
        self.sent_bytes += nbytes
        self._in_turn += size
        kind = start[3]
        return frame_bytes(Kind.SHM_DATA, PLACE.pack(kind, begin, size) + start[PREFIX.size :])

    def turn(self) -> Awaitable[None] | None:
        """Return an awaitable that lets the loop run once, if that is due."""
        if self._in_turn < TURN:
            return None
        self._in_turn = 0
        return _TURN

    def accepted(self, refusal: str) -> None:
        """Handle the peer's reply to the offer; `refusal` is empty if it accepted.

        Raises:
            FrameError: there was no offer.
        """
        if self.state != "offered":
            raise FrameError(f"{self._link.peer} answers an offer of memory that was not made")
        if refusal:
            self._disable(refusal[:REFUSAL])
        else:
            self.state = "shared"

    def released(self, blocks: list[Any]) -> None:
        """Free blocks that the peer returned.

        Raises:
            FrameError: the peer does not hold them.
        """
        for begin in blocks:
            if self._arena is None or type(begin) is not int or not self._arena.blocks.give_back(begin):
                raise FrameError(f"{self._link.peer} gives back a block at {begin!r:.40} that it does not have")

    # Receiving

    def offered(self, process: int, descriptor: int, name: bytes, capacity: int) -> None:
        """Map the peer's arena, or reply why that is not possible.

        Raises:
            FrameError: it is the second offer, or a malformed one.
        """
        if self._was_offered or process < 1 or descriptor < 0 or len(name) != NAME_BYTES or capacity < 1:
            raise FrameError(f"{self._link.peer} offers memory a second time, or none: {process, descriptor, capacity}")
        self._was_offered = True
        refusal = ""
        try:
            if not self._settings.shared_memory:
                raise NotShared(f"switched off at {self._settings.name}")
            if not self._link.local:
                raise NotShared("the connection does not show that both are on one host")
            self._view = ArenaView(process, descriptor, name, capacity)
        except NotShared as error:
            refusal = str(error)
        self._send(Kind.SHM_ACCEPT, refusal)

    def placed(self, header: bytes, payload: AnyArray | None) -> Frame:
        """Return the original frame of an SHM_DATA frame, its payload being a view of the peer's arena.

        Raises:
            FrameError: there is no such block, or it is viewed already.
        """
        view = self._view
        if view is None or payload is not None or len(header) < PLACE.size:
            raise FrameError(f"{self._link.peer} places a payload in memory that it does not share, or none")
        kind, begin, nbytes = PLACE.unpack_from(header)
        if kind not in (Kind.MESSAGE, Kind.ANSWER):
            raise FrameError(f"{self._link.peer} places the payload of a frame of kind {kind}")
        most = min(view.capacity - begin, self._settings.limits.payload)
        if begin % PAGE or not 0 < nbytes <= most or begin in self._viewed:
            raise FrameError(
                f"{self._link.peer} places {nbytes:,} bytes at {begin:,}, which is held already or not within "
                f"its {view.capacity:,}"
            )
        array = view.at(begin, nbytes)
        self._viewed[begin] = weakref.ref(array, partial(self._view_ended, begin))
        return Frame(Kind(kind), header[PLACE.size :], array)

    def end(self) -> None:
        """Stop sharing. Existing views keep their memory."""
        self.least = NEVER
        self._viewed.clear()
        self._view = None
        self._close_arena()

    # Inside

    def _offer(self) -> None:
        try:
            arena = self._arena = Arena(self._settings.shared_memory, self._settings.entropy(NAME_BYTES))
        except NotShared as error:
            self._disable(str(error))
            return
        self.state = "offered"
        self._send(Kind.SHM_OFFER, os.getpid(), arena.descriptor, arena.name, arena.blocks.capacity)

    def _disable(self, reason: str) -> None:
        self.state, self.least = reason, NEVER
        self._close_arena()
        logger = log.get(actor=f"{self._settings.name}/{SYSTEM}")
        logger.debug("no shared memory", peer=self._link.peer, reason=reason)

    def _close_arena(self) -> None:
        if self._arena is not None:
            self._arena.close()
            self._arena = None

    def _view_ended(self, begin: int, _: object) -> None:
        """Schedule the return of a block. Called in any thread, between any two instructions."""
        self._unviewed.append(begin)
        if self._release_scheduled:
            return
        self._release_scheduled = True
        try:
            if threading.get_ident() == self._thread:
                self._loop.call_soon(self._release)
            else:
                self._loop.call_soon_threadsafe(self._release)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            self._unviewed.clear()  # the links have ended with the loop

    def _release(self) -> None:
        """Return the blocks whose views have ended by now."""
        self._release_scheduled = False
        blocks = []
        while self._unviewed:
            begin = self._unviewed.popleft()
            self._viewed.pop(begin, None)
            blocks.append(begin)
        if blocks and not self._link.ended and not self._link.closing:
            self._send(Kind.SHM_RELEASE, blocks)


class _Turn(Awaitable[None]):
    """Suspends a task once, so that everything else on the loop runs first."""

    def __await__(self) -> Generator[None]:
        yield


_TURN = _Turn()
