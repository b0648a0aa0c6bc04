"""Busy polling: the loop stays awake for a moment while a process of this host is about to answer."""

import asyncio
import os
from time import perf_counter

LIMIT_S = 200e-6
"""Seconds that the loop stays awake for an answer. Waking a sleeping processor takes a quarter of it, on each side."""
_SHARE = 1 / 8
"""The weight of the newest ask in the moving average of their durations."""
_LONG_S = 10 * LIMIT_S
"""The longest duration that enters the average, so that a few short asks outweigh a single long one."""


class BusyPoll:
    """Keeps the loop awake while the only pending answer of a link is about to arrive.

    The loop polls its sockets and runs everything else that is due; other processes that wait for the processor go
    first. It polls only while asks by this link usually take no longer than `LIMIT_S`. An unexpectedly slow one costs
    that much processor time at most.
    """

    __slots__ = ("_began", "_loop", "_polling", "_usual_s", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._usual_s = 0.0
        self._began = 0.0
        self._waiting = False
        self._polling = False

    def begin(self) -> None:
        """Note that the ask has left; poll if asks are usually short."""
        self._began = perf_counter()
        self._waiting = True
        if not self._polling and self._usual_s <= LIMIT_S:
            self._polling = True
            self._loop.call_soon(self._poll)

    def end(self) -> None:
        """Note that the ask is over."""
        self._waiting = False
        took = min(perf_counter() - self._began, _LONG_S)
        self._usual_s += (took - self._usual_s) * _SHARE

    def _poll(self) -> None:
        if self._waiting and perf_counter() - self._began < LIMIT_S:
            os.sched_yield()
            self._loop.call_soon(self._poll)
        else:
            self._polling = False
