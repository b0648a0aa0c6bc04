"""Bytes that are published by topic, and a queue of them for each who has subscribed. It belongs to one event loop."""

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
from numpy.typing import NDArray

from components.replay_buffers.invalid import InvalidExperience
from components.replay_server.bounded_queue import Full, HighWater, Policy
from orchestra import OrchestraError, log

Data = NDArray[np.uint8]
Deliver = Callable[[str, Data], Awaitable[None]]
"""Hands one publication, topic and bytes, to a subscriber; done when there it has found room."""


class _Subscriber:
    """What waits to be delivered to one subscriber, the oldest first, one at a time."""

    def __init__(self, name: str, deliver: Deliver, mark: int, policy: Policy, moved: Callable[[], None]) -> None:
        self.topics: set[str] = set()
        self.queue: HighWater[tuple[str, Data]] = HighWater(f"publications for {name}", mark, policy)
        self._deliver, self._moved = deliver, moved
        self._wake = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._run())

    def put(self, topic: str, data: Data) -> None:
        """Queue what room was made for."""
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
            except OrchestraError as error:  # it is gone; whoever watches it says so
                log.get(actor="replay").info("a publication was not delivered", reason=str(error))
            finally:
                self.queue.free(weight)
                self._moved()


def check_topic(topic: str) -> str:
    """Return a topic if it is one.

    Raises:
        InvalidExperience: it is empty, or too long.
    """
    if not 1 <= len(topic) <= 255:
        raise InvalidExperience(f"topic: expected 1 to 255 characters, got {len(topic)}")
    return topic


class Publications:
    """Topics, and who has subscribed to them.

    Whoever subscribes gets what was last published on the topic, and all from then on.

    Args:
        mark: publications that may wait for one subscriber.
        policy: what happens to one more.
    """

    def __init__(self, mark: int, policy: Policy) -> None:
        HighWater("publications", mark, policy)  # says so if they make no sense
        self._mark, self._policy = mark, policy
        self._newest: dict[str, Data] = {}
        self._subscribers: dict[str, _Subscriber] = {}
        self._changed = asyncio.Event()
        self.published = 0
        """Publications so far."""
        self._dropped = self._refused = 0  # of those who have gone

    @property
    def dropped(self) -> int:
        """Publications that had to make room, counted for each subscriber."""
        return self._dropped + sum(it.queue.dropped for it in self._subscribers.values())

    @property
    def refused(self) -> int:
        """Publications that were refused, counted for each subscriber without room."""
        return self._refused + sum(it.queue.refused for it in self._subscribers.values())

    @property
    def topics(self) -> set[str]:
        """Those that somebody has subscribed to."""
        return set().union(*(it.topics for it in self._subscribers.values()))

    def subscribe(self, name: str, topic: str, deliver: Deliver) -> None:
        """Have `deliver` called with what is published on `topic`, for a subscriber of that name."""
        check_topic(topic)
        subscriber = self._subscribers.get(name)
        if subscriber is None:
            subscriber = _Subscriber(name, deliver, self._mark, self._policy, self._move)
            self._subscribers[name] = subscriber
        if topic in subscriber.topics:
            return
        subscriber.topics.add(topic)
        if topic in self._newest and subscriber.queue.has_room() and subscriber.queue.make_room():
            subscriber.put(topic, self._newest[topic])

    async def unsubscribe(self, name: str, topic: str | None = None) -> None:
        """Deliver nothing of that topic any more, or of any."""
        subscriber = self._subscribers.get(name)
        if subscriber is None:
            return
        subscriber.topics -= subscriber.topics if topic is None else {topic}
        if not subscriber.topics:
            await self._end(name)

    def forget(self, topic: str) -> None:
        """Let go of what was last published on a topic: whoever subscribes to it has to wait for something new."""
        self._newest.pop(topic, None)

    async def publish(self, topic: str, data: Data) -> None:
        """Queue bytes for all who have subscribed to a topic; with the policy to block, once each has room.

        Raises:
            Full: the policy is to refuse, and a subscriber has no room. Nobody gets it then.
        """
        check_topic(topic)
        if self._policy == "refuse":
            full = [name for name, it in self._subscribers.items() if topic in it.topics and not it.queue.has_room()]
            for name in full:
                self._subscribers[name].queue.refused += 1
            if full:
                raise Full(f"publish: expected fewer than {self._mark} publications to wait for each, not for {full}")
        self.published += 1
        self._newest[topic] = data
        for name in list(self._subscribers):
            while (it := self._subscribers.get(name)) is not None and topic in it.topics:
                if it.queue.make_room():
                    it.put(topic, data)
                    break
                await self._changed.wait()

    async def _end(self, name: str) -> None:
        gone = self._subscribers.pop(name)
        self._dropped += gone.queue.dropped
        self._refused += gone.queue.refused
        self._move()
        gone.task.cancel()
        await asyncio.gather(gone.task, return_exceptions=True)

    def _move(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def close(self) -> None:
        """Deliver nothing any more."""
        for name in list(self._subscribers):
            await self._end(name)
