"""How whoever asks a process of this host waits for the answer: awake for a moment, then asleep."""

import asyncio
import os
from time import perf_counter

LIMIT_S = 200e-6
"""How long the loop stays awake for an answer. Waking a processor that sleeps takes a quarter of it, at either side."""
_SHARE = 1 / 8
"""What the newest ask counts for in how long they usually take."""
_LONG_S = 10 * LIMIT_S
"""An ask counts for no more than this, so that a single long one is forgotten after a few short ones."""


class BusyPoll:
    """Keeps the loop from going to sleep while the only answer that a link waits for is about to come.

    The loop looks for it again and again, and runs whatever else there is to do; a process that waits for this
    processor goes first. It does so only if asks by this link usually take no longer than `LIMIT_S`: where they take
    longer, it is not tried, and one that suddenly does costs that much of processor time and no more.
    """

    __slots__ = ("_began", "_looking", "_loop", "_usual_s", "_waits")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._usual_s = 0.0
        self._began = 0.0
        self._waits = False
        self._looking = False

    def begin(self) -> None:
        """Take note that the one ask has left."""
        self._began = perf_counter()
        self._waits = True
        if not self._looking and self._usual_s <= LIMIT_S:
            self._looking = True
            self._loop.call_soon(self._look)

    def end(self) -> None:
        """Take note that it is over."""
        self._waits = False
        took = min(perf_counter() - self._began, _LONG_S)
        self._usual_s += (took - self._usual_s) * _SHARE

    def _look(self) -> None:
        if self._waits and perf_counter() - self._began < LIMIT_S:
            os.sched_yield()
            self._loop.call_soon(self._look)
        else:
            self._looking = False
