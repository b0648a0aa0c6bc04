"""The blocks of shared memory that a node refers to: its own, and those that its peers on this host lend to it.

A node writes a payload once, to however many peers it is sent: it recognises the payload by the memory of its frozen
arrays. A payload that a peer lends is sent on by naming the block of that peer. So a block may be viewed by any number
of processes. It is written again once all of them have returned it. A large payload that arrives by the network is
received straight into a block, once the node has an arena, and is sent on to the peers of this host without a copy.

The blocks of a link that ends without returning them may still be viewed, by its peer or by a process that the peer has
sent them on to. Their arena is *retired*: it is never written again, its users forget it, and the system takes its
memory back with the last view. A view therefore never changes, even if a process dies.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from orchestra.actors import lazy_numpy as np
from orchestra.actors.axes import AnyArray
from orchestra.actors.codec import Buffer
from orchestra.wire.arena import NAME_BYTES, Arena, ArenaView, checked

LEAST = 64 << 10
"""Bytes above which a payload goes into a block. Below, describing the block costs more than sending."""
CAPACITY = 128 << 20
"""Default bytes of an arena: twice the credit for one mailbox. The system provides the memory as it is used."""


@dataclass(slots=True, eq=False)
class LentArena:
    """A peer's arena: how the peer describes it, and the view of it."""

    process: int
    descriptor: int
    name: bytes
    capacity: int
    view: ArenaView | None
    """None once the arena is retired. Views of blocks keep their memory."""
    retired: bool = False


@dataclass(slots=True, eq=False)
class OwnBlock:
    """A payload that this node has written."""

    arena: Arena
    begin: int
    nbytes: int
    sources: "Sources"
    """The memory that the payload was copied from. While it is alive, it is equal to the payload."""
    key: int
    """Identity of the first array of the sources, or of the array that a payload was received into."""
    holders: int = 0
    """Links whose peers have not returned it."""


@dataclass(slots=True, eq=False)
class ReceivedBlock(OwnBlock):
    """A payload that arrives in an arena, or that an actor of this node writes there. The node holds it, too."""

    array: "weakref.ref[AnyArray]" = field(init=False)
    """The array that all views of it refer to."""


@dataclass(slots=True, eq=False)
class LentBlock:
    """A payload that a peer has written and lends to this node."""

    arena: LentArena
    number: int
    """The peer's number of the arena."""
    begin: int
    nbytes: int
    uses: int = 0
    """Times the peer has sent it since it was viewed last."""
    lost: bool = False
    """True if a process to which it was sent on may view it for ever."""
    array: "weakref.ref[AnyArray]" = field(init=False)
    """The array that all views of it refer to."""
    key: int = 0
    """Identity of that array."""


Block = OwnBlock | LentBlock
Sources = tuple[tuple["weakref.ref[AnyArray]", int, int], ...]
"""Frozen memory: the arrays that it belongs to, and its addresses and bytes."""


class ArenaUser(Protocol):
    """One link's use of arenas."""

    def withdraw(self, arena: Arena | LentArena) -> None:
        """Forget a retired arena, if it was offered to the peer."""


class SharedBlocks:
    """The arenas of a node and the blocks in them.

    Args:
        capacity: bytes of an arena, a multiple of `arena.PAGE`; 0 for no shared memory. There are as many arenas as
            needed, at most as many as peers that they are offered to.
        entropy: returns that many random bytes.

    Raises:
        UsageError: `capacity` is not possible.
    """

    def __init__(self, capacity: int, entropy: Callable[[int], bytes]) -> None:
        self.capacity = checked(capacity)
        self._entropy = entropy
        self._arenas: dict[Arena, set[ArenaUser]] = {}
        """The arenas that are written to, and their users."""
        self._users: dict[ArenaUser, None] = {}
        self._written: dict[int, OwnBlock] = {}
        """Blocks by the identity of their first source."""
        self._lent: dict[int, LentBlock] = {}
        """Lent blocks by the identity of their arrays."""
        self._received: dict[int, ReceivedBlock] = {}
        """Received blocks by the identity of their arrays."""
        self._unviewed: deque[ReceivedBlock] = deque()
        """Received blocks without views that this node still holds. Views end in any thread."""
        self._lock = threading.RLock()
        """Held while blocks are taken and given back: `lend_memory` is for any thread."""

    # Users

    def join(self, user: ArenaUser) -> None:
        """Add a user, which is told when an arena is retired."""
        self._users[user] = None

    def leave(self, user: ArenaUser) -> None:
        """Remove a user; close the arenas of this node that have no other user."""
        self._users.pop(user, None)
        for arena in list(self._arenas):
            self.decline(arena, user)

    def decline(self, arena: Arena | LentArena, user: ArenaUser) -> None:
        """Remove a user of an arena; close an arena of this node that has no other user."""
        users = self._arenas.get(arena) if isinstance(arena, Arena) else None
        if users is not None and user in users:
            users.remove(user)
            if not users:
                self.retire(arena)

    def arena_to_offer(self, offered: Container[Arena | LentArena]) -> Arena | None:
        """Return an arena that is not yet `offered` to a peer, for payloads without room in the offered ones.

        Raises:
            NotShared: the system provides no memory.
        """
        arena = next((each for each in self._arenas if each not in offered), None)
        if arena is None:
            if len(self._arenas) >= len(self._users):
                return None
            arena = Arena(self.capacity, self._entropy(NAME_BYTES))
            with self._lock:
                self._arenas[arena] = set()
        return arena

    def use(self, arena: Arena, user: ArenaUser) -> None:
        """Add a user of an arena that is not retired."""
        self._arenas[arena].add(user)

    def retire(self, arena: Arena | LentArena) -> None:
        """Never write to an arena again, and have all users forget it."""
        if arena.retired:
            return
        with self._lock:
            arena.retired = True
            if isinstance(arena, Arena):
                self._arenas.pop(arena, None)
                self._drop_unviewed()
                self._received = {key: block for key, block in self._received.items() if block.arena is not arena}
                arena.close()
            else:
                arena.view = None
        for user in list(self._users):
            user.withdraw(arena)

    def end_period(self) -> None:
        """End a period of all arenas, so that memory is returned that was needed for their first blocks alone."""
        with self._lock:
            for arena in self._arenas:
                arena.end_period()

    # Blocks

    def find(self, pieces: list[Buffer], nbytes: int) -> Block | None:
        """Return the block that holds the payload of these `pieces`, of `nbytes` together, or None."""
        first = _array_of(pieces[0])
        if first is None:
            return None
        lent = self._lent.get(id(first))
        if lent is not None and lent.array() is first and _is_all_of(first, pieces, nbytes):
            return lent
        memory = getattr(first.base, "obj", None)
        received = self._received.get(id(memory))
        if received is not None and received.array() is memory and _is_all_of(first, pieces, nbytes):
            return received
        own = self._written.get(id(first))
        if own is not None and own.nbytes == nbytes and _are_sources(own.sources, pieces):
            return own
        return None

    def write(self, arena: Arena, pieces: list[Buffer], nbytes: int) -> OwnBlock | None:
        """Copy `pieces`, of `nbytes` together, into a block; return None if `arena` has no room."""
        with self._lock:
            self._drop_unviewed()
            begin = arena.write(pieces, nbytes)
        if begin is None:
            return None
        block = OwnBlock(arena, begin, nbytes, _sources(pieces), id(_array_of(pieces[0])))
        if block.sources:
            self._written[block.key] = block
        return block

    def lend_memory(self, nbytes: int) -> AnyArray | None:
        """Return an array of `nbytes` for a payload, in an arena that peers map; None for none. For any thread.

        The payload arrives, or is written by an actor. Half of the arena is left for what else this node sends.
        """
        if nbytes < LEAST:
            return None
        with self._lock:
            self._drop_unviewed()
            arena = next(iter(self._arenas), None)
            if arena is None or 2 * (arena.blocks.used + nbytes) > arena.capacity:
                return None
            begin = arena.take(nbytes)
            if begin is None:
                return None
            array = arena.at(begin, nbytes)
            block = self._received[id(array)] = ReceivedBlock(arena, begin, nbytes, (), id(array), holders=1)
            block.array = weakref.ref(array, partial(self._view_ended, block))
            return array

    def drop(self, block: Block, *, lost: bool) -> None:
        """Account for a holder that has returned a block, or `lost` it: then a process may view it for ever."""
        if lost:
            self.lose(block)
        if isinstance(block, LentBlock):
            return
        with self._lock:
            block.holders -= 1
            if block.holders:
                return
            block.arena.blocks.give_back(block.begin)
        if self._written.get(block.key) is block:
            del self._written[block.key]

    def _view_ended(self, block: ReceivedBlock, _: object) -> None:
        """Note that this node holds a block no longer. Called in any thread, between any two instructions."""
        if not block.arena.retired:
            self._unviewed.append(block)

    def _drop_unviewed(self) -> None:
        while self._unviewed:
            block = self._unviewed.popleft()
            if self._received.get(block.key) is block:
                del self._received[block.key]
            self.drop(block, lost=False)

    def lose(self, block: Block) -> None:
        """Account for a process that may view a block for ever, though its holder has not returned it."""
        if isinstance(block, LentBlock):
            block.lost = True
        else:
            self.retire(block.arena)

    def lend(self, block: LentBlock, array: AnyArray) -> None:
        """Add a block of a peer, viewed by `array`."""
        block.key = id(array)
        self._lent[block.key] = block

    def unlend(self, block: LentBlock) -> None:
        """Remove a block of a peer, whose views have ended."""
        if self._lent.get(block.key) is block:
            del self._lent[block.key]


def _array_of(piece: Buffer) -> AnyArray | None:
    """Return the array whose memory a piece is; None for padding."""
    array = getattr(piece.obj, "base", None) if isinstance(piece, memoryview) else None
    return array if isinstance(array, np.ndarray) else None


def _address(piece: memoryview | AnyArray) -> int:
    """Return the address of an array, or of all its memory."""
    array: Any = piece.obj if isinstance(piece, memoryview) else piece
    if array.nbytes != piece.nbytes:  # a part of it
        array = np.frombuffer(piece, np.uint8)
    address: int = array.__array_interface__["data"][0]
    return address


def _sources(pieces: list[Buffer]) -> Sources:
    """Return the memory of `pieces` without padding; nothing if a part of it belongs to no array."""
    found = []
    for piece in pieces:
        if isinstance(piece, memoryview):
            array = _array_of(piece)
            if array is None:
                return ()
            found.append((weakref.ref(array), _address(piece), len(piece)))
    return tuple(found)


def _are_sources(sources: Sources, pieces: list[Buffer]) -> bool:
    """Return whether `pieces` are the memory that was copied from these sources, all of which are alive."""
    arrays = [piece for piece in pieces if isinstance(piece, memoryview)]
    return len(arrays) == len(sources) and all(
        ref() is _array_of(piece) and (address, nbytes) == (_address(piece), len(piece))
        for (ref, address, nbytes), piece in zip(sources, arrays, strict=True)
    )


def _is_all_of(array: AnyArray, pieces: list[Buffer], nbytes: int) -> bool:
    """Return whether `pieces` are the whole memory of an array of uint8, in order. Bytes between them are padding."""
    if array.nbytes != nbytes:
        return False
    end = begin = _address(array)
    for piece in pieces:
        if isinstance(piece, memoryview) and (_array_of(piece) is not array or _address(piece) != end):
            return False
        end += len(piece)
    return end - begin == nbytes
