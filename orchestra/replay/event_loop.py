"""An event loop without sockets, threads and a clock: the replay decides when its time advances."""

import asyncio
import contextvars
import heapq
import itertools
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar, TypeVarTuple

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

_RUNTIME = frozenset({"orchestra", "asyncio"})
"""The packages of the runtime."""


class QuietLoop(asyncio.BaseEventLoop):
    """Runs ready callbacks until none is left; the caller then decides what happens next.

    It supports what asyncio needs for tasks, futures, `sleep`, `timeout` and `gather`. Its time stands still while
    callbacks run; `fire_timer` and `advance_to` advance it. A set of its tasks and futures is iterated in the order of
    their creation, whatever their addresses are, or in the reverse order.
    """

    reverse: ClassVar[bool] = False
    """True if new tasks and futures have the reverse order in sets."""
    _ready: deque[asyncio.Handle]

    def __init__(self) -> None:
        super().__init__()
        self._created = itertools.count(1)
        self.set_task_factory(lambda loop, coroutine, **options: _Task(self._hash(), coroutine, loop=loop, **options))
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()

    def run_ready(self) -> None:
        """Run callbacks until none is ready."""
        # The caller may be a coroutine of another loop, as in a notebook.
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
        """The time of the next timer; None without timers."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def fire_timer(self) -> None:
        """Advance to the next timer, and make its callback ready."""
        due, _, handle = heapq.heappop(self._timers)
        self.advance_to(due)
        self._ready.append(handle)

    def advance_to(self, when: float) -> None:
        """Advance the time to `when`; an earlier `when` changes nothing."""
        self._now = max(self._now, when)

    def _hash(self) -> int:
        number = next(self._created)
        return (1 << 32) - number if self.reverse else number

    # The interface of asyncio

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(self._hash(), loop=self)

    def time(self) -> float:
        return self._now

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        # Timers of one moment fire in the order in which they were set.
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Do nothing: asyncio reported the exceptions that no code caught in the run already."""

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        raise NotImplementedError("a replayed actor has no threads; use `self.offload` instead of `run_in_executor`")

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer stays in the heap until it is due."""

    def _write_to_self(self) -> None:
        """Nothing waits that `call_soon_threadsafe` would have to wake."""

    def __del__(self) -> None:
        """Do nothing: the loop holds no resources, and the base class would warn of a loop that was not closed."""


class _Future(asyncio.Future[Any]):
    """A future with a given hash, which decides its place in a set."""

    __slots__ = ("_hash",)

    def __init__(self, hash_: int, **options: Any) -> None:
        self._hash = hash_
        super().__init__(**options)

    def __hash__(self) -> int:
        return self._hash


class _Task(asyncio.Task[Any]):
    """A task with a given hash, which decides its place in a set."""

    __slots__ = ("_hash",)

    def __init__(self, hash_: int, coroutine: Any, **options: Any) -> None:
        self._hash = hash_
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._hash


def current_line() -> str:
    """Return the innermost line that runs outside of the runtime: `components/trainer.py:74 in train`.

    Frames of the runtime are recognised by the name of their module, so that the code of an actor that lies in a folder
    of the runtime, or beside it, is found. Empty in a task that was begun elsewhere.
    """
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__", "").partition(".")[0] in _RUNTIME:
        if frame.f_code is QuietLoop.run_ready.__code__ or frame.f_back is None:
            return ""
        frame = frame.f_back
    file = Path(frame.f_code.co_filename)
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return f"{shown}:{frame.f_lineno} in {frame.f_code.co_name}"
