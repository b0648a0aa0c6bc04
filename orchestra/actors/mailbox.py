"""Mailbox: bounded in messages and bytes, system messages first, newest wins for the types that say so."""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

from orchestra.actors.message import Lane, Message
from orchestra.actors.statistics import MailboxStatistics
from orchestra.actors.system_messages import WithdrawnMsg
from orchestra.actors.waiters import Waiters
from orchestra.actors.weights import FLAT
from orchestra.errors import ActorStopped, MailboxFull

CAPACITY = 4096
CAPACITY_BYTES = 256 << 20


class Origin(Protocol):
    """The connection a remote message arrived by. It holds credit for the message and takes its answer."""

    def consumed(self, recipient: str, nbytes: int) -> None: ...
    def answer(self, correlation: int, value: Any) -> None: ...
    def fail(self, correlation: int, error: Exception) -> None: ...


@dataclass(slots=True)
class Envelope:
    """A message that came from another node, or a request: one with an answer or with credit to return."""

    recipient: str
    sender: str
    message: Message
    nbytes: int = FLAT
    correlation: int = 0
    """Identifies the ask at the asker's node; 0 if no answer is expected."""
    chain: tuple[str, ...] = ()
    """The actors that wait for the answer, outermost first."""
    origin: Origin | None = None
    """None for a request of the same node."""
    number: int = 0
    """The sender's count of its sent messages, this one included; 0 if the sender is not recorded."""
    clock: int = 0
    """The sender's Lamport clock at the time of sending."""
    withdrawn: bool = False
    """True if the asker withdrew the request before it was read."""


Queued = tuple[str, Message, int, int, float, Envelope | None]
"""A message in a mailbox: sender, message, bytes, number as in `Envelope`, time of arrival (seconds, monotonic; 0.0 if
nothing is recorded) and the envelope, if it has one. Every message is queued as such a tuple. An instance of a class
would cost a fifth of a tell to create."""

_Place = tuple[str, type[Message]]
"""The place of a latest-wins message in the queue: its sender and type. The message itself is in `_latest`."""


class Mailbox:
    """The queue of one actor: one reader, any number of writers, all on the node's loop.

    Writers without room are admitted in the order of their arrival. Messages from connections are always admitted,
    because their senders hold credit. A message larger than the whole mailbox is admitted once the mailbox is empty.
    Messages an actor sends itself never wait, because only this actor makes room: they may exceed the bounds up to
    twice, whatever others have queued, and are refused beyond.

    Args:
        address: the actor that reads it.
        capacity: messages.
        capacity_bytes: bytes of these messages.
    """

    def __init__(self, address: str, capacity: int = CAPACITY, capacity_bytes: int = CAPACITY_BYTES) -> None:
        if capacity < 1 or capacity_bytes < 1:
            raise ValueError(f"a mailbox holds at least one message, got capacity {capacity}, {capacity_bytes} bytes")
        self._address = address
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._system: deque[Queued] = deque()
        self._ordered: deque[Any] = deque()  # of Queued and _Place, told apart by their length
        self._latest: dict[_Place, Queued] = {}
        self._nbytes = 0
        self._writers: Waiters[Queued] = Waiters()
        self._reader: asyncio.Future[None] | None = None
        self.closed = False
        """True once it admits system messages only."""

    def __len__(self) -> int:
        return len(self._system) + len(self._ordered)

    def statistics(self) -> MailboxStatistics:
        """Return its current fill."""
        return MailboxStatistics(
            depth=len(self), nbytes=self._nbytes, capacity=self._capacity, waiting=len(self._writers)
        )

    # Writing

    def append(self, item: Queued) -> bool:
        """Queue a message of this node in the ordered lane; return false if `put` has to decide about it.

        This is the fast path of `put`, for nearly all messages.
        """
        total = self._nbytes + item[2]
        if len(self._ordered) >= self._capacity or total > self._capacity_bytes or self._writers or self.closed:
            return False
        self._ordered.append(item)
        self._nbytes = total
        if self._reader is not None:
            self._wake()
        return True

    def put(self, item: Queued, *, forced: bool = False) -> bool:
        """Queue a message and return true, or return false if there is no room.

        `forced` admits it beyond the bounds, as for a message with credit.

        Raises:
            ActorStopped: the mailbox is closed.
            MailboxFull: an actor exceeded the room for messages to itself.
        """
        sender, message, nbytes, _, _, envelope = item
        lane = message.lane
        forced = forced or lane is Lane.SOLICITED or (envelope is not None and envelope.origin is not None)
        if lane is Lane.SYSTEM:
            self._system.append(item)
        elif self.closed:
            raise ActorStopped(f"{self._address} has stopped")
        elif forced or self._replaces(item) or self._admits(sender, message, nbytes):
            self._enqueue(item)
        else:
            return False
        self._wake()
        return True

    def put_batch(self, items: list[Queued], nbytes: int) -> None:
        """Queue messages of the ordered lane that came over a connection and take `nbytes` together.

        Their sender holds credit for them, which the envelopes among them return.
        """
        self._ordered.extend(items)
        self._nbytes += nbytes
        if self._reader is not None:
            self._wake()

    async def wait_for_room(self, item: Queued) -> None:
        """Wait until a message that `put` found no room for is queued. A cancelled wait leaves nothing behind.

        Raises:
            ActorStopped: the mailbox was closed first.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writers[turn] = item
        try:
            await self._writers.wait(turn)  # `_admit` queues the message, so that no later writer overtakes
        except asyncio.CancelledError:
            self._admit()  # this writer may have blocked later writers for which there is room
            raise

    # Reading

    def take(self) -> Queued | None:
        """Take the next message, or None. A withdrawn request comes as a `WithdrawnMsg`."""
        if self._system:
            first = self._system.popleft()
            return first if first[5] is None else _opened(first, first[5])
        if not self._ordered:
            return None
        entry = self._ordered.popleft()
        item: Queued = self._latest.pop(entry) if self._latest and len(entry) == 2 else entry
        self._nbytes -= item[2]
        if self._writers:
            self._admit()
        envelope = item[5]
        if envelope is None:
            return item
        if envelope.origin is not None:
            envelope.origin.consumed(self._address, item[2])
        return _opened(item, envelope)

    def drain(self) -> list[Queued]:
        """Take everything that is left, system messages first."""
        return list(iter(self.take, None))

    def news(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Return a future that is done once there is a message. For the reader, after `take` returned None."""
        reader = self._reader = loop.create_future()
        return reader

    def fail_reader(self, error: BaseException) -> None:
        """Raise `error` in the waiting reader."""
        reader, self._reader = self._reader, None
        assert reader is not None
        reader.set_exception(error)

    @property
    def idle(self) -> bool:
        """True if it is empty and its reader waits."""
        reader = self._reader
        return reader is not None and not (self._ordered or self._system or reader.done())

    def close(self) -> None:
        """Admit nothing but system messages from now on. Queued messages stay; waiting writers get `ActorStopped`."""
        self.closed = True
        writers, self._writers = self._writers, Waiters()
        for turn in writers:
            if not turn.done():
                turn.set_exception(ActorStopped(f"{self._address} stopped while its mailbox was full"))

    # Inside

    def _wake(self) -> None:
        reader = self._reader
        if reader is not None:
            self._reader = None
            if not reader.done():
                reader.set_result(None)

    def _admits(self, sender: str, message: Message, nbytes: int) -> bool:
        if not self._writers and self._has_room(nbytes):
            return True
        if sender != self._address:
            return False
        waiting = (self._latest[entry] if len(entry) == 2 else entry for entry in self._ordered)
        sizes = [item[2] for item in waiting if item[0] == sender]
        if len(sizes) < 2 * self._capacity and sum(sizes) + nbytes <= 2 * self._capacity_bytes:
            return True
        raise MailboxFull(
            f"{sender} cannot send itself a {type(message).__name__}: {len(sizes)} of its own messages "
            f"({sum(sizes):,} bytes) are queued, and waiting for room would deadlock"
        )

    def _replaces(self, item: Queued) -> bool:
        return item[1].lane is Lane.LATEST and (item[0], type(item[1])) in self._latest

    def _has_room(self, nbytes: int) -> bool:
        if len(self._ordered) >= self._capacity:
            return False
        return self._nbytes + nbytes <= self._capacity_bytes or not self._ordered

    def _admit(self) -> None:
        while self._writers:
            turn, item = next(iter(self._writers.items()))
            if turn.done():  # its sender was cancelled
                del self._writers[turn]
                continue
            if not self._has_room(item[2]):
                return
            del self._writers[turn]
            self._enqueue(item)
            turn.set_result(None)

    def _enqueue(self, item: Queued) -> None:
        self._nbytes += item[2]
        if item[1].lane is not Lane.LATEST:
            self._ordered.append(item)
            return
        place = (item[0], type(item[1]))
        old = self._latest.get(place)
        self._latest[place] = item
        if old is None:
            self._ordered.append(place)
            return
        self._nbytes -= old[2]
        if old[5] is not None and old[5].origin is not None:
            old[5].origin.consumed(self._address, old[2])


def _opened(item: Queued, envelope: Envelope) -> Queued:
    return (item[0], WithdrawnMsg(), item[2], item[3], item[4], None) if envelope.withdrawn else item
