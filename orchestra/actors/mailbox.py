"""A mailbox: bounded by count and bytes, system messages first, newest wins where a message says so."""

import asyncio
from collections import deque

from orchestra.actors.envelope import Envelope, Origin
from orchestra.actors.message import Lane, Message
from orchestra.actors.system_messages import MailboxStatistics
from orchestra.errors import ActorStopped, MailboxFull

Told = tuple[str, Message, int] | tuple[str, Message, int, int, float]
"""A message while it waits, with its sender and its bytes; where it is recorded also its number, and since when it
waits. Most need no more, and an envelope costs more to make."""

CAPACITY = 4096
CAPACITY_BYTES = 256 << 20


class _Slot:
    """Where a latest-wins message waits, so that a newer one can take its place."""

    __slots__ = ("envelope",)

    def __init__(self, envelope: Envelope) -> None:
        self.envelope = envelope


class Mailbox:
    """What waits for one actor. One reader; any number of writers, all on the node's loop.

    Writers that found no room are let in in the order they came. An envelope that came over a connection is always
    let in, because its sender holds credit for it; so is a message larger than the whole mailbox, once it is empty.
    What an actor tells itself never waits, since nobody but the one who would wait makes room: it is let in beyond the
    bounds, up to twice of them whatever others told, and beyond that refused.
    """

    __slots__ = (
        "_capacity",
        "_capacity_bytes",
        "_closed",
        "_latest",
        "_nbytes",
        "_ordered",
        "_reader",
        "_system",
        "_writers",
    )

    def __init__(self, capacity: int = CAPACITY, capacity_bytes: int = CAPACITY_BYTES) -> None:
        if capacity < 1 or capacity_bytes < 1:
            raise ValueError(f"a mailbox holds at least one message, got capacity {capacity}, {capacity_bytes} bytes")
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._system: deque[Envelope] = deque()
        self._ordered: deque[Told | Envelope | _Slot] = deque()
        self._latest: dict[tuple[type, str], _Slot] = {}
        self._nbytes = 0
        self._writers: deque[tuple[asyncio.Future[None], Envelope]] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._system) + len(self._ordered)

    def statistics(self) -> MailboxStatistics:
        """Return how full it is."""
        return MailboxStatistics(
            depth=len(self), nbytes=self._nbytes, capacity=self._capacity, waiting=len(self._writers)
        )

    def put_nowait(self, envelope: Envelope) -> bool:
        """Queue `envelope` and return true, or return false if there is no room.

        Raises:
            ActorStopped: the mailbox is closed.
            MailboxFull: an actor told itself more than there is room for.
        """
        lane = envelope.message.lane
        if lane is Lane.SYSTEM:
            self._system.append(envelope)
        elif self._closed:
            raise ActorStopped(f"{envelope.recipient} has stopped")
        elif lane is Lane.LATEST:
            if not self._replace(envelope):
                if envelope.origin is None and not self._lets_in(envelope):
                    return False
                self._append_latest(envelope)
        elif lane is Lane.ORDERED and envelope.origin is None and not self._lets_in(envelope):
            return False
        else:
            self._ordered.append(envelope)
            self._nbytes += envelope.nbytes
        self._wake()
        return True

    def put_told(self, told: Told) -> bool:
        """Queue a message of this node in the ordered lane; return false if that takes more than there being room.

        This is the way of most messages, and does the least.
        """
        total = self._nbytes + told[2]
        if len(self._ordered) >= self._capacity or total > self._capacity_bytes or self._writers or self._closed:
            return False
        self._ordered.append(told)
        self._nbytes = total
        if self._reader is not None:
            self._wake()
        return True

    def put_run(self, recipient: str, run: list[Told], credit: Origin) -> None:
        """Queue messages of the ordered lane that came over a connection, each of as many bytes.

        `credit` hears when the last of them leaves.
        """
        told = run[-1]
        last = Envelope(recipient, told[0], told[1], told[2], 0, (), credit)
        if len(told) == 5:
            last.number, last.queued = told[3], told[4]
        self._ordered.extend(run[:-1])
        self._ordered.append(last)
        self._nbytes += told[2] * len(run)
        if self._reader is not None:
            self._wake()

    async def put(self, envelope: Envelope) -> None:
        """Queue `envelope`, waiting for room.

        Raises:
            ActorStopped: the mailbox was closed before there was room.
        """
        if not self.put_nowait(envelope):
            await self.wait_for_room(envelope)

    async def wait_for_room(self, envelope: Envelope) -> None:
        """Wait until there is room for `envelope`, which `put_nowait` found none for, and it is queued."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writers.append((turn, envelope))
        await turn  # whoever frees the room queues the envelope, so that nobody overtakes; see _admit

    def take(self) -> Envelope | Told | None:
        """Take the next message, or None."""
        if self._system:
            return self._system.popleft()
        if not self._ordered:
            return None
        item = self._ordered.popleft()
        if type(item) is tuple:
            self._nbytes -= item[2]
            if self._writers:
                self._admit()
            return item
        if isinstance(item, _Slot):
            item = item.envelope
            del self._latest[type(item.message), item.sender]
        assert isinstance(item, Envelope)
        self._nbytes -= item.nbytes
        if self._writers:
            self._admit()
        if item.origin is not None:
            item.origin.consumed(item.recipient, item.nbytes)
        return item

    def news(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Return what its reader, who has found it empty, waits for: that there is something to take."""
        reader = self._reader = loop.create_future()
        return reader

    def fail_reader(self, error: BaseException) -> None:
        """Have its reader, who waits, raise `error`."""
        reader, self._reader = self._reader, None
        assert reader is not None
        reader.set_exception(error)

    @property
    def idle(self) -> bool:
        """Whether its reader waits and there is nothing to take."""
        reader = self._reader
        return reader is not None and not (self._ordered or self._system or reader.done())

    @property
    def closed(self) -> bool:
        """Whether it lets nothing more in."""
        return self._closed

    def close(self) -> None:
        """Let nothing more in but system messages; writers that wait get `ActorStopped`. What is queued stays."""
        self._closed = True
        writers, self._writers = self._writers, deque()
        for turn, envelope in writers:
            if not turn.done():
                turn.set_exception(ActorStopped(f"{envelope.recipient} stopped while its mailbox was full"))

    def drain(self) -> list[Envelope | Told]:
        """Take everything that is left, system messages first."""
        left = []
        while (item := self.take()) is not None:
            left.append(item)
        return left

    def _wake(self) -> None:
        reader = self._reader
        if reader is not None:
            self._reader = None
            if not reader.done():
                reader.set_result(None)

    def _lets_in(self, envelope: Envelope) -> bool:
        if not self._writers and self._has_room(envelope):
            return True
        if envelope.sender != envelope.recipient:
            return False
        sizes = [nbytes for sender, nbytes in map(_sender_and_size, self._ordered) if sender == envelope.sender]
        if len(sizes) < 2 * self._capacity and sum(sizes) + envelope.nbytes <= 2 * self._capacity_bytes:
            return True
        raise MailboxFull(
            f"{envelope.recipient} tells itself a {type(envelope.message).__name__} while its mailbox holds "
            f"{len(sizes)} messages ({sum(sizes):,} bytes) from itself already; it would wait for itself"
        )

    def _has_room(self, envelope: Envelope) -> bool:
        if len(self._ordered) >= self._capacity:
            return False
        return self._nbytes + envelope.nbytes <= self._capacity_bytes or not self._ordered

    def _admit(self) -> None:
        while self._writers:
            turn, envelope = self._writers[0]
            if turn.done():  # its sender gave up
                self._writers.popleft()
                continue
            if not self._has_room(envelope):
                return
            self._writers.popleft()
            if envelope.message.lane is Lane.LATEST:
                if not self._replace(envelope):
                    self._append_latest(envelope)
            else:
                self._ordered.append(envelope)
                self._nbytes += envelope.nbytes
            turn.set_result(None)

    def _append_latest(self, envelope: Envelope) -> None:
        slot = _Slot(envelope)
        self._latest[type(envelope.message), envelope.sender] = slot
        self._ordered.append(slot)
        self._nbytes += envelope.nbytes

    def _replace(self, envelope: Envelope) -> bool:
        slot = self._latest.get((type(envelope.message), envelope.sender))
        if slot is None:
            return False
        old, slot.envelope = slot.envelope, envelope
        self._nbytes += envelope.nbytes - old.nbytes
        if old.origin is not None:
            old.origin.consumed(old.recipient, old.nbytes)
        return True


def _sender_and_size(item: Told | Envelope | _Slot) -> tuple[str, int]:
    if isinstance(item, tuple):
        return item[0], item[2]
    envelope = item.envelope if isinstance(item, _Slot) else item
    return envelope.sender, envelope.nbytes
