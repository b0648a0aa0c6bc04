"""Shared memory between two nodes on one host: large arrays need not pass through the system.

A node owns arenas for what it sends. It offers one with the first large payload to a peer (SHM_OFFER); the peer maps
it, or says why it cannot (SHM_ACCEPT). From then on a large payload is copied into a block of the arena, and an
SHM_DATA frame travels in place of the original frame: it holds the place of the block, then the original header. The
peer's arrays are views of the block. When the last view is gone, the peer returns the block (SHM_RELEASE).

A payload is written once, also for many peers, and a payload that a peer has written is not written again where it is
sent on: `blocks` finds the block, and the arena of that block is offered as an own one is. An arena that is no longer
written to is withdrawn (SHM_RETIRE).

All five are frames of the session, so a broken connection changes nothing: a frame that is sent again names a block
that the peer has never seen, and that is therefore still held. Nothing ever waits for a block: a payload for which
there is none travels by the stream, as all payloads do before the offer is accepted, or if it is refused.
"""

import struct
import threading
import weakref
from asyncio import get_running_loop
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

from orchestra import log
from orchestra.actors.axes import AnyArray
from orchestra.actors.codec import Buffer
from orchestra.actors.system_messages import SYSTEM
from orchestra.errors import FrameError
from orchestra.wire.arena import NAME_BYTES, PAGE, Arena, ArenaView, NotShared
from orchestra.wire.blocks import LEAST, Block, LentArena, LentBlock, OwnBlock
from orchestra.wire.frames import PREFIX, Frame, Kind, frame_bytes
from orchestra.wire.settings import LinkSettings, LinkState

TURN = 4 << 20
"""Bytes that are copied before the loop runs once and learns which blocks were released: blocks that are still in the
processor's cache are filled twice as fast as others."""
REFUSAL = 200
"""Characters of a peer's reason that are kept."""
NEVER = 1 << 62
"""More bytes than any frame has."""
ARENAS = 4096
"""Arenas of one peer that are mapped at a time: its own, and those of the peers for which it sends on."""
PLACE = struct.Struct("<BQQQ")
"""Begins the header of an SHM_DATA frame: kind of the original frame, number of the arena, place of the payload in it,
bytes of the payload."""


@dataclass(slots=True, eq=False)
class _Offer:
    """An arena that was offered to the peer."""

    number: int
    answered: bool = False
    accepted: bool = False


@dataclass(slots=True, eq=False)
class _Held:
    """A block that the peer has not returned."""

    block: Block
    array: AnyArray | None
    """The view of a lent block, which is not returned before the peer returns it."""
    uses: int = 0
    """Frames that named it."""


class SharedMemoryChannel:
    """The shared memory of one link, in both directions.

    Args:
        link: state of the link.
        send: sends a frame of the session by the link: its kind and its contents.
    """

    def __init__(self, settings: LinkSettings, link: LinkState, send: Callable[..., None]) -> None:
        self._blocks = settings.shared_memory
        self.least = LEAST if self._blocks.capacity else NEVER
        """Bytes of a frame above which `place` applies."""
        self.state = "" if self._blocks.capacity else "switched off"
        """State of the sending direction: empty before the first large payload, `offered`, `shared`, or why not."""
        self.sent_bytes = 0
        """Bytes sent by shared memory."""
        self.copied_bytes = 0
        """Bytes that were copied into shared memory for it; the others were there already."""
        self.held_bytes = 0
        """Bytes of blocks that the peer has not returned."""
        self.was_copied = False
        """True if the last payload was copied. One that was there already leaves at once: others may wait for it."""
        self._in_turn = 0
        """Bytes copied since the loop ran last."""
        self._settings = settings
        self._link = link
        self._send = send
        self._loop = get_running_loop()
        self._offers: dict[Arena | LentArena, _Offer] = {}
        self._offered = 0
        """Offers so far."""
        self._unanswered: dict[int, _Offer] = {}
        self._held: dict[tuple[int, int], _Held] = {}
        """Blocks that the peer has not returned, by the number of the arena and the place."""
        self._lent: dict[int, LentArena] = {}
        """The peer's arenas, by its numbers."""
        self._lent_so_far = 0
        self._viewed: dict[tuple[int, int], LentBlock] = {}
        """The peer's blocks that are viewed here, by the number of the arena and the place."""
        self._unviewed: deque[LentBlock] = deque()
        """Blocks without views that are still to be returned. Views end in any thread."""
        self._release_scheduled = False
        self._thread = threading.get_ident()

    # Sending

    def place(self, frame: list[Buffer], nbytes: int) -> bytes | None:
        """Put the payload of `frame`, of `nbytes`, into a block; return the frame to send instead, or None."""
        start, pieces = frame[0], frame[1:]
        size = nbytes - len(start)
        if not pieces or size < self.least or len(start) - PREFIX.size + PLACE.size > self._settings.limits.header:
            return None
        block = self._blocks.find(pieces, size)
        if block is not None and not self._may_name(block):
            block = None
        self.was_copied = block is None
        if block is None:
            block = self._write(pieces, size)
            if block is None:
                return None
            self.copied_bytes += nbytes
            self._in_turn += size
        self.sent_bytes += nbytes
        number = self._offers[block.arena].number
        held = self._held.get((number, block.begin))
        if held is None:
            array = block.array() if isinstance(block, LentBlock) else None
            held = self._held[number, block.begin] = _Held(block, array)
            self.held_bytes += _rounded(size)
            if isinstance(block, OwnBlock):
                block.holders += 1
        held.uses += 1
        return frame_bytes(Kind.SHM_DATA, PLACE.pack(start[3], number, block.begin, size) + start[PREFIX.size :])

    def turn(self) -> Awaitable[None] | None:
        """Return an awaitable that lets the loop run once, if that is due."""
        if self._in_turn < TURN:
            return None
        self._in_turn = 0
        return _TURN

    def accepted(self, number: int, refusal: str) -> None:
        """Handle the peer's reply to an offer; `refusal` is empty if it accepted.

        Raises:
            FrameError: there was no offer.
        """
        offer = self._unanswered.pop(number, None)
        if offer is None:
            raise FrameError(f"{self._link.peer} answers an offer of memory that was not made")
        offer.answered, offer.accepted = True, not refusal
        arena = next((arena for arena, each in self._offers.items() if each is offer), None)
        if arena is None:
            return  # it was retired since
        if not refusal:
            self.state = "shared"
        elif isinstance(arena, Arena):
            self._blocks.decline(arena, self)
            self._disable(refusal[:REFUSAL])

    def released(self, blocks: list[Any]) -> None:
        """Account for blocks that the peer returned: arena, place, uses, and whether a process may view it for ever.

        Raises:
            FrameError: the peer does not hold them.
        """
        for entry in blocks:
            match entry:
                case [int(number), int(begin), int(uses), bool(lost)] if (
                    held := self._held.get((number, begin))
                ) is not None and 0 < uses <= held.uses:
                    held.uses -= uses
                    if not held.uses:
                        self.held_bytes -= _rounded(held.block.nbytes)
                        del self._held[number, begin]
                        self._blocks.drop(held.block, lost=lost)
                    elif lost:
                        self._blocks.lose(held.block)
                case _:
                    raise FrameError(f"{self._link.peer} gives back a block {entry!r:.40} that it does not have")

    def withdraw(self, arena: Arena | LentArena) -> None:
        """Forget a retired arena, if it was offered to the peer."""
        offer = self._offers.pop(arena, None)
        if offer is not None and (offer.accepted or not offer.answered):
            self._send_if_open(Kind.SHM_RETIRE, offer.number)

    # Receiving

    def offered(self, number: int, process: int, descriptor: int, name: bytes, capacity: int) -> None:
        """Map an arena that the peer offers, or reply why that is not possible.

        Raises:
            FrameError: the offer is malformed, or one too many.
        """
        self._lent_so_far += 1
        sound = process > 0 and descriptor >= 0 and len(name) == NAME_BYTES and capacity > 0
        if number != self._lent_so_far or not sound or len(self._lent) >= ARENAS:
            offer = number, process, descriptor, capacity
            raise FrameError(f"{self._link.peer} offers memory out of turn, or none: {offer}")
        refusal = ""
        try:
            if not self._blocks.capacity:
                raise NotShared(f"switched off at {self._settings.name}")
            if not self._link.local:
                raise NotShared("the connection does not show that both are on one host")
            view = ArenaView(process, descriptor, name, capacity)
            self._lent[number] = LentArena(process, descriptor, name, capacity, view)
        except NotShared as error:
            refusal = str(error)
        self._send(Kind.SHM_ACCEPT, number, refusal)

    def placed(self, header: bytes, payload: AnyArray | None) -> Frame:
        """Return the original frame of an SHM_DATA frame, its payload being a view of an arena.

        Raises:
            FrameError: there is no such block.
        """
        if payload is not None or len(header) < PLACE.size:
            raise FrameError(f"{self._link.peer} places a payload in memory that it does not share, or none")
        kind, number, begin, nbytes = PLACE.unpack_from(header)
        arena = self._lent.get(number)
        if kind not in (Kind.MESSAGE, Kind.ANSWER):
            raise FrameError(f"{self._link.peer} places the payload of a frame of kind {kind}")
        if arena is None or arena.view is None:
            raise FrameError(f"{self._link.peer} places a payload in memory that it does not share, or none")
        block = self._viewed.get((number, begin))
        array = None if block is None else block.array()
        most = min(arena.capacity - begin, self._settings.limits.payload)
        if begin % PAGE or not 0 < nbytes <= most or (array is not None and array.nbytes != nbytes):
            raise FrameError(
                f"{self._link.peer} places {nbytes:,} bytes at {begin:,}, which is held already or not within "
                f"its {arena.capacity:,}"
            )
        if block is None or array is None:
            array = arena.view.at(begin, nbytes)
            block = self._viewed[number, begin] = LentBlock(arena, number, begin, nbytes)
            block.array = weakref.ref(array, partial(self._view_ended, block))
            self._blocks.lend(block, array)
        block.uses += 1
        return Frame(Kind(kind), header[PLACE.size :], array)

    def retired(self, number: int) -> None:
        """Unmap an arena that the peer has withdrawn, as soon as its last view ends.

        Raises:
            FrameError: the peer has never offered it.
        """
        if not 0 < number <= self._lent_so_far:
            raise FrameError(f"{self._link.peer} withdraws the memory {number}, which it has not offered")
        arena = self._lent.pop(number, None)  # it is not there where the offer was refused
        if arena is not None:
            self._blocks.retire(arena)

    def end(self) -> None:
        """Stop sharing. Existing views keep their memory, which is not written again."""
        self.least = NEVER
        held, self._held = self._held, {}
        self._offers.clear()
        self.held_bytes = 0
        for each in held.values():
            self._blocks.drop(each.block, lost=True)
        self._blocks.leave(self)
        for arena in self._lent.values():
            self._blocks.retire(arena)
        for block in self._viewed.values():
            self._blocks.unlend(block)
        self._lent.clear()
        self._viewed.clear()

    # Inside

    def _may_name(self, block: Block) -> bool:
        """Return whether the peer has mapped the arena of a block in shared memory; if not offered yet, offer it."""
        arena = block.arena
        offer = self._offers.get(arena)
        if offer is None and not arena.retired and self._link.local:
            self._offer(arena)
        return offer is not None and offer.accepted

    def _write(self, pieces: list[Buffer], size: int) -> OwnBlock | None:
        """Copy a payload into an arena that the peer has mapped; offer it a further one if there is no room."""
        waits = False
        for arena, offer in self._offers.items():
            if isinstance(arena, Arena):
                if offer.accepted and (block := self._blocks.write(arena, pieces, size)) is not None:
                    return block
                waits = waits or not offer.answered
        if waits or not self._link.local:
            return None
        try:
            self._blocks.join(self)
            further = self._blocks.arena_to_offer(self._offers)
        except NotShared as error:
            if self.state != "shared":
                self._disable(str(error))
            return None
        if further is not None:
            self._offer(further)
        return None

    def _offer(self, arena: Arena | LentArena) -> None:
        self._offered += 1
        self._blocks.join(self)
        if isinstance(arena, Arena):
            self._blocks.use(arena, self)
        self._offers[arena] = self._unanswered[self._offered] = _Offer(self._offered)
        self.state = self.state or "offered"
        described = (arena.process, arena.descriptor, arena.name, arena.capacity)
        self._send(Kind.SHM_OFFER, self._offered, *described)

    def _disable(self, reason: str) -> None:
        self.state, self.least = reason, NEVER
        logger = log.get(actor=f"{self._settings.name}/{SYSTEM}")
        logger.debug("no shared memory", peer=self._link.peer, reason=reason)

    def _view_ended(self, block: LentBlock, _: object) -> None:
        """Schedule the return of a block. Called in any thread, between any two instructions."""
        self._unviewed.append(block)
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
            block = self._unviewed.popleft()
            self._blocks.unlend(block)
            key = (block.number, block.begin)
            if self._viewed.get(key) is block:
                del self._viewed[key]
            blocks.append((*key, block.uses, block.lost))
        if blocks:
            self._send_if_open(Kind.SHM_RELEASE, blocks)

    def _send_if_open(self, kind: Kind, *contents: Any) -> None:
        if not self._link.ended and not self._link.closing:
            self._send(kind, *contents)


class _Turn(Awaitable[None]):
    """Suspends a task once, so that everything else on the loop runs first."""

    def __await__(self) -> Generator[None]:
        yield


_TURN = _Turn()


def _rounded(nbytes: int) -> int:
    """Return the bytes of the block that holds a payload."""
    return -(-nbytes // PAGE) * PAGE
