"""Bytes published by topic: a bounded queue for every subscriber, and the received publications of a client."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import numpy as np
from numpy.typing import NDArray

from components.replay_buffers.invalid import InvalidExperience
from components.replay_server.bounded_queue import BoundedQueue, Full, OverflowPolicy
from components.replay_server.loop_thread import Signal
from orchestra import OrchestraError, freeze, log

Data = NDArray[np.uint8]
Deliver = Callable[[str, Data], Awaitable[None]]
"""A function that delivers one publication (topic, bytes) to a subscriber; it returns once the subscriber has room."""


class _Subscriber:
    """Queue of one subscriber; delivers one publication at a time, the oldest first."""

    def __init__(
        self, name: str, deliver: Deliver, mark: int, policy: OverflowPolicy, on_room: Callable[[], None]
    ) -> None:
        self.topics: set[str] = set()
        self.queue: BoundedQueue[tuple[str, Data]] = BoundedQueue(f"publications for {name}", mark, policy)
        self._deliver, self._on_room = deliver, on_room
        self._wake = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._run())

    def put(self, topic: str, data: Data) -> None:
        """Queue a publication for which room was made."""
        self.queue.append((topic, data))
        self._wake.set()

    async def _run(self) -> None:
        while True:
            taken = self.queue.take()
            if taken is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            (topic, data), weight = taken
            try:
                if topic in self.topics:
                    await self._deliver(topic, data)
            except OrchestraError as error:  # the subscriber is gone; its termination unsubscribes it
                log.get(actor="replay").info("a publication was not delivered", reason=str(error))
            finally:
                self.queue.free(weight)
                self._on_room()


def _check_topic(topic: str) -> None:
    if not 1 <= len(topic) <= 255:
        raise InvalidExperience(f"topic: expected 1 to 255 characters, got {len(topic)}")


class Publications:
    """Topics and their subscribers. A new subscriber gets the newest publication of the topic, and all later ones.

    It belongs to one event loop.

    Args:
        mark: publications that may wait for one subscriber.
        policy: policy for one more.

    Raises:
        ValueError: `mark` is below 1, or `policy` is unknown.
    """

    def __init__(self, mark: int, policy: OverflowPolicy) -> None:
        BoundedQueue("publications", mark, policy)  # checks both
        self._mark, self._policy = mark, policy
        self._newest: dict[str, Data] = {}
        self._subscribers: dict[str, _Subscriber] = {}
        self._room = Signal()
        self.published = 0
        """Publications so far."""
        self._dropped = self._refused = 0  # counts of subscribers that have unsubscribed

    @property
    def dropped(self) -> int:
        """Dropped publications, counted for each subscriber."""
        return self._dropped + sum(it.queue.dropped for it in self._subscribers.values())

    @property
    def refused(self) -> int:
        """Refused publications, counted for each subscriber without room."""
        return self._refused + sum(it.queue.refused for it in self._subscribers.values())

    @property
    def topics(self) -> set[str]:
        """Topics that have subscribers."""
        return set().union(*(it.topics for it in self._subscribers.values()))

    def subscribe(self, name: str, topic: str, deliver: Deliver) -> None:
        """Call `deliver` with every publication on `topic`, for the subscriber of that name.

        Raises:
            InvalidExperience: the topic is empty or has more than 255 characters.
        """
        _check_topic(topic)
        subscriber = self._subscribers.get(name)
        if subscriber is None:
            subscriber = _Subscriber(name, deliver, self._mark, self._policy, self._room.notify)
            self._subscribers[name] = subscriber
        if topic in subscriber.topics:
            return
        subscriber.topics.add(topic)
        if topic in self._newest and subscriber.queue.has_room() and subscriber.queue.make_room():
            subscriber.put(topic, self._newest[topic])

    async def unsubscribe(self, name: str, topic: str | None = None) -> None:
        """Stop delivering a topic, or all topics, to a subscriber."""
        subscriber = self._subscribers.get(name)
        if subscriber is None:
            return
        subscriber.topics -= subscriber.topics if topic is None else {topic}
        if not subscriber.topics:
            await self._end(name)

    def forget(self, topic: str) -> None:
        """Drop the newest publication of a topic; its next subscriber waits for a later one."""
        self._newest.pop(topic, None)

    async def publish(self, topic: str, data: Data, within: float | None = None) -> None:
        """Queue bytes for all subscribers of a topic; with policy `block`, wait until each has room.

        Raises:
            InvalidExperience: the topic is empty or has more than 255 characters.
            Full: the policy is to refuse, and a subscriber has no room. No subscriber gets the publication.
            TimeoutError: a subscriber had no room within `within` seconds. Those before it got the publication.
        """
        _check_topic(topic)
        if self._policy == "refuse":
            full = [name for name, it in self._subscribers.items() if topic in it.topics and not it.queue.has_room()]
            for name in full:
                self._subscribers[name].queue.refused += 1
            if full:
                raise Full(f"publish: expected fewer than {self._mark} publications to wait for each, not for {full}")
        self.published += 1
        self._newest[topic] = data = freeze(data)
        try:
            async with asyncio.timeout(within):
                for name in list(self._subscribers):
                    while (it := self._subscribers.get(name)) is not None and topic in it.topics:
                        if it.queue.make_room():
                            it.put(topic, data)
                            break
                        await self._room.wait()
        except TimeoutError:
            raise TimeoutError(f"a subscriber had no room within {within} s") from None

    async def _end(self, name: str) -> None:
        gone = self._subscribers.pop(name)
        self._dropped += gone.queue.dropped
        self._refused += gone.queue.refused
        self._room.notify()
        gone.task.cancel()
        await asyncio.gather(gone.task, return_exceptions=True)

    async def close(self) -> None:
        """Unsubscribe all subscribers, and drop the newest publications; the counts stay."""
        self._newest.clear()
        for name in list(self._subscribers):
            await self._end(name)


class Subscription:
    """Publications on one topic that a client has received, the oldest first. Any thread may read; each is read once.

    Args:
        topic: the topic.
        mark: publications that may wait to be read.
        policy: policy for one more: the oldest is dropped (`drop_oldest`), the new one is dropped (`refuse`), or the
            server keeps it in its queue for this client (`block`), which has a mark of its own.
        check_open: raises the exception of `receive` once the client is closed.
    """

    def __init__(self, topic: str, mark: int, policy: OverflowPolicy, check_open: Callable[[], None]) -> None:
        self.topic = topic
        self._queue: BoundedQueue[Data] = BoundedQueue(f"subscription to {topic}", mark, policy)
        self._check_open = check_open
        self._changed = threading.Condition()
        self._room = Signal()
        self._loop: asyncio.AbstractEventLoop | None = None  # loop of a `put` that waits for room

    @property
    def dropped(self) -> int:
        """Publications that were never read: dropped for newer ones, or refused."""
        return self._queue.dropped + self._queue.refused

    def receive(self, timeout: float | None = None) -> bytes:
        """Return the oldest unread publication; wait for one if there is none.

        Raises:
            TimeoutError: there was none within `timeout` seconds.
            Closed: the client is closed or has failed.
        """
        with self._changed:
            taken = self._changed.wait_for(lambda: self._queue.take() or self._check_open(), timeout)
            if taken is None:
                raise TimeoutError(f"nothing was published on {self.topic!r} within {timeout} s")
            data, weight = taken
            self._queue.free(weight)
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(self._room.notify)
        return data.tobytes()

    def poll(self) -> bytes | None:
        """Return the oldest unread publication, or None.

        Raises:
            Closed: the client is closed or has failed, and everything has been read.
        """
        try:
            return self.receive(0.0)
        except TimeoutError:
            return None

    def wake(self) -> None:
        """Make waiting readers call `check_open` again."""
        with self._changed:
            self._changed.notify_all()

    async def put(self, data: Data) -> None:
        """Add a publication, on the client's loop; with policy `block`, once there is room."""
        while True:
            with self._changed:
                try:
                    if self._queue.make_room():
                        self._queue.append(data)
                        self._changed.notify()
                        return
                except Full:
                    return  # the queue counts it
                self._loop = asyncio.get_running_loop()
            await self._room.wait()
