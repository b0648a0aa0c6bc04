"""Strands: the ready callbacks of each simulated process, in order; the seed decides which process runs next.

asyncio runs callbacks in the order in which they were scheduled; processes guarantee no order between each other. So
callbacks are kept in *strands*, one for each simulated process. A strand's callbacks run in order, and the seed chooses
the next strand. The strand is a context variable: whatever a callback schedules, spawns or awaits belongs to its own
strand, and all of it ends with the process.
"""

import contextvars
from asyncio import events
from collections import deque

from orchestra.simulation.seeded_random import SeededRandom

OUTSIDE = "outside"
"""The strand of the code that runs the simulation."""
MAX_LATENESS_S = 1e-3
"""A process's timers fire up to this late. Each process has its own lateness, so that no two timers coincide."""


class Strand:
    """The callbacks of one simulated process."""

    def __init__(self, name: str, lateness: float = 0.0) -> None:
        self.name = name
        self.lateness = lateness
        """Seconds by which its timers fire late."""
        self.ready: deque[events.Handle] = deque()
        self.alive = True
        self.paused = False
        self.context = contextvars.copy_context()
        """The context of callbacks that begin outside of the process, such as an arriving packet."""
        self.context.run(_strand.set, self)


_strand: contextvars.ContextVar[Strand] = contextvars.ContextVar("strand")


class Strands:
    """All strands of a simulation, and the order in which their callbacks run."""

    def __init__(self, random: SeededRandom) -> None:
        self.outside = Strand(OUTSIDE)
        self._random = random
        self._runnable: list[Strand] = []
        self._current: Strand | None = None
        self._stay = random.choice((0.0, 0.5, 0.9))
        """The probability that the strand that ran last runs again."""

    def create(self, name: str) -> Strand:
        """Return a new strand, for a process that starts."""
        return Strand(name, self._random.uniform(0.0, MAX_LATENESS_S))

    def of(self, context: contextvars.Context) -> Strand:
        """Return the strand of a callback with this context."""
        return context.get(_strand, self.outside)

    def current(self) -> Strand:
        """Return the strand that is running."""
        return _strand.get(self.outside)

    def add(self, handle: events.Handle, strand: Strand) -> None:
        """Queue a callback, unless its process has ended."""
        if not strand.alive:
            return
        if not strand.ready and not strand.paused:
            self._runnable.append(strand)
        strand.ready.append(handle)

    def next(self) -> tuple[Strand, events.Handle] | None:
        """Take the callback that runs next; None if none is ready."""
        runnable = self._runnable
        if not runnable:
            return None
        if len(runnable) == 1:
            index = 0
        elif self._current in runnable and self._random.chance(self._stay):
            index = runnable.index(self._current)
        else:
            index = self._random.below(len(runnable))
        strand = self._current = runnable[index]
        handle = strand.ready.popleft()
        if not strand.ready:
            del runnable[index]
        return strand, handle

    def pause(self, strand: Strand) -> None:
        """Run no callback of `strand` until `resume`."""
        strand.paused = True
        if strand in self._runnable:
            self._runnable.remove(strand)

    def resume(self, strand: Strand) -> None:
        """Run the callbacks of a paused strand again."""
        strand.paused = False
        if strand.ready and strand.alive:
            self._runnable.append(strand)

    def end(self, strand: Strand) -> None:
        """Drop a strand: no callback of it, and no `finally`, runs again."""
        strand.alive = False
        strand.ready.clear()
        if strand in self._runnable:
            self._runnable.remove(strand)

    def clear(self) -> None:
        """Drop all queued callbacks."""
        self._runnable.clear()
