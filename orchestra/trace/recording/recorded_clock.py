"""The clock and the timers of an actor that is recorded."""

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from orchestra.clock import Clock, Handle


class Listener(Protocol):
    """Who hears what was read."""

    def monotonic_read(self, value: float) -> None: ...
    def now_read(self, value: datetime) -> None: ...


class RecordedClock:
    """The node's clock, as an actor that is recorded sees it."""

    def __init__(self, recorder: Listener, clock: Clock) -> None:
        self._recorder = recorder
        self._clock = clock

    def monotonic(self) -> float:
        value = self._clock.monotonic()
        self._recorder.monotonic_read(value)
        return value

    def now(self) -> datetime:
        value = self._clock.now()
        self._recorder.now_read(value)
        return value

    def call_later(self, delay: float, call: Callable[[], None]) -> Handle:
        return self._clock.call_later(delay, call)


class RecordedTimer:
    """A timer; that it is taken back is told."""

    def __init__(self, handle: Handle, told: Callable[[], None]) -> None:
        self._handle = handle
        self._told = told

    def cancel(self) -> None:
        self._told()
        self._handle.cancel()
