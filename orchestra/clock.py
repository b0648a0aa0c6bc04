"""Time, as actors see it: a thing that is handed in, so that a test or a replay can hand in another."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol


class TimerHandle(Protocol):
    """A call that is due; `cancel` takes it back."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """What an actor may know of time."""

    def monotonic(self) -> float:
        """Return seconds since some fixed moment; never goes backwards."""

    def now(self) -> datetime:
        """Return the wall clock's time, in UTC."""

    def call_later(self, delay: float, call: Callable[[], None]) -> TimerHandle:
        """Arrange that `call` runs on the event loop after `delay` seconds."""


class RealClock:
    """The machine's clock and the running event loop's timers."""

    monotonic = staticmethod(time.monotonic)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def call_later(self, delay: float, call: Callable[[], None]) -> TimerHandle:
        return asyncio.get_running_loop().call_later(delay, call)
