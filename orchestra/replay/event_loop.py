"""An event loop with nothing behind it: no sockets, no threads, no time but what it is told."""

import asyncio
import contextvars
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple

Ts = TypeVarTuple("Ts")
T = TypeVar("T")


class QuietLoop(asyncio.AbstractEventLoop):
    """Runs what is ready until nothing is; then somebody says what happens next.

    Coroutines find on it what asyncio itself needs: tasks, futures, `sleep`, `timeout`, `gather`. Its time stands still
    while anything runs, and moves when `fire_timer` or `advance_to` says so.
    """

    def __init__(self) -> None:
        self.unhandled: list[dict[str, Any]] = []
        """What nobody caught, as asyncio reports it."""
        self._now = 0.0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()

    def run_ready(self) -> None:
        """Run until nothing is ready."""
        # Whoever calls may be in a coroutine of a loop of his own, as in a notebook.
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            while self._ready:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            asyncio._set_running_loop(outer)

    @property
    def next_timer(self) -> float | None:
        """When the next timer is due; None if there is none."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def fire_timer(self) -> None:
        """Let time pass until the next timer is due, and make that ready."""
        due, _, handle = heapq.heappop(self._timers)
        self.advance_to(due)
        self._ready.append(handle)

    def advance_to(self, when: float) -> None:
        """Let time pass; it never goes back."""
        self._now = max(self._now, when)

    # What asyncio asks of a loop

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Any,
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        work: Coroutine[Any, Any, Any] = coro
        return asyncio.Task(work, loop=self, name=name, context=context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays in the heap until its time comes."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.unhandled.append(context)

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        raise NotImplementedError("an actor that is replayed has no threads but those of `self.offload`")
