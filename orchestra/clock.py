"""Clocks: the source of time of actors and of the runtime. Tests and replays supply their own."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol


class TimerHandle(Protocol):
    """A scheduled call, which `cancel` cancels."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """A source of time, and of timers."""

    def monotonic(self) -> float:
        """Return seconds since a fixed moment. They never decrease."""

    def now(self) -> datetime:
        """Return the wall-clock time, in UTC."""

    def call_later(self, delay: float, call: Callable[[], None]) -> TimerHandle:
        """Call `call` on the event loop after `delay` seconds."""


class RealClock:
    """The machine's clock and the running event loop's timers."""

    monotonic = staticmethod(time.monotonic)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def call_later(self, delay: float, call: Callable[[], None]) -> TimerHandle:
        return asyncio.get_running_loop().call_later(delay, call)
