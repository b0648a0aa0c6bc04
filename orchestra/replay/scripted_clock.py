"""The clock and the timers of an actor that is replayed."""

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from orchestra.clock import Handle


class Teller(Protocol):
    """Who knows what was read then."""

    def read_monotonic(self) -> float: ...
    def read_now(self) -> datetime: ...
    def call_later(self, delay: float, call: Callable[[], None]) -> Handle: ...
    def timer_cancelled(self) -> None: ...


class ScriptedClock:
    """Tells the time that was told then."""

    def __init__(self, stage: Teller) -> None:
        self._stage = stage

    def monotonic(self) -> float:
        return self._stage.read_monotonic()

    def now(self) -> datetime:
        return self._stage.read_now()

    def call_later(self, delay: float, call: Callable[[], None]) -> Handle:
        return self._stage.call_later(delay, call)


class ScriptedTimer:
    """A timer that goes off when the record says so."""

    def __init__(self, stage: Teller) -> None:
        self._stage = stage

    def cancel(self) -> None:
        self._stage.timer_cancelled()
