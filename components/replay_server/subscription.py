"""What a client has heard on a topic and not read yet."""

import asyncio
import threading
import time
from collections.abc import Callable

from components.replay_server.bounded_queue import Full, HighWater, Policy
from components.replay_server.publications import Data


class Subscription:
    """Publications on one topic, the oldest first. Any thread may read them; each is read once.

    Args:
        topic: the topic.
        mark: publications that may wait to be read.
        policy: what happens to one more: the oldest goes, it goes itself (`refuse`), or the server is kept waiting,
            which has a mark of its own.
        check_open: raises what `receive` is to raise when nothing will come any more.
    """

    def __init__(self, topic: str, mark: int, policy: Policy, check_open: Callable[[], None]) -> None:
        self.topic = topic
        self._queue: HighWater[Data] = HighWater(f"subscription to {topic}", mark, policy)
        self._check_open = check_open
        self._there = threading.Condition()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    @property
    def dropped(self) -> int:
        """Publications that nobody read: they made room for newer ones, or found none."""
        return self._queue.dropped + self._queue.refused

    def receive(self, timeout: float | None = None) -> bytes:
        """Return the oldest publication that has not been read, waiting for one if there is none.

        Raises:
            TimeoutError: there was none within `timeout` seconds.
            Closed: the client is closed, or has given its server up.
        """
        until = None if timeout is None else time.monotonic() + timeout
        with self._there:
            while (taken := self._queue.take()) is None:
                self._check_open()
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"nothing was published on {self.topic!r} within {timeout} s")
                self._there.wait(left)
            data, weight = taken
            self._queue.free(weight)
            waiting, self._waiting = self._waiting, []
        for loop, turn in waiting:
            loop.call_soon_threadsafe(_done, turn)
        return data.tobytes()

    def poll(self) -> bytes | None:
        """Return the oldest publication that has not been read, or None if there is none now.

        Raises:
            Closed: the client is closed, or has given its server up, and all has been read.
        """
        try:
            return self.receive(0.0)
        except TimeoutError:
            return None

    def wake(self) -> None:
        """Have all who wait look again whether anything will come."""
        with self._there:
            self._there.notify_all()

    async def put(self, data: Data) -> None:
        """Take what was published, on the client's loop; with the policy to block, once there is room."""
        loop = asyncio.get_running_loop()
        while True:
            with self._there:
                try:
                    if self._queue.make_room():
                        self._queue.append(data)
                        self._there.notify()
                        return
                except Full:
                    return  # it is counted
                turn: asyncio.Future[None] = loop.create_future()
                self._waiting.append((loop, turn))
            await turn


def _done(turn: "asyncio.Future[None]") -> None:
    if not turn.done():
        turn.set_result(None)
