"""The processor use of the processes of a host, and of all processes that they have started."""

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from orchestra.hosts.descendants import children_of

LEAST_S = 2.0
"""Seconds between two measurements, at least: the system counts processor time in hundredths of a second."""
_UTIME = 11
"""The place of the processor times in `/proc/<pid>/stat`, counted from the state of the process."""


class ProcessorUse:
    """Measures how many processors some processes use, from one measurement to the next. Linux only."""

    def __init__(self) -> None:
        self._before: dict[int, float] = {}
        self._at: float | None = None
        self._cores: float | None = None

    def measured(self, now: float, trees: Collection[int], alone: Collection[int] = ()) -> float | None:
        """Return the processors in use since the measurement before; None until there are two.

        A process that was not among those of the measurement before has begun since.

        A measurement soon after another one repeats its result.

        Args:
            now: seconds of a monotonic clock.
            trees: process ids. What these processes have started counts, too.
            alone: process ids of which only the process itself counts.
        """
        if self._at is not None and now - self._at < LEAST_S:
            return self._cores
        seconds = {pid: _seconds(pid, below=True) for pid in trees} | {pid: _seconds(pid) for pid in alone}
        found = {pid: spent for pid, spent in seconds.items() if spent is not None}
        if self._at is not None:
            used = sum(max(spent - self._before.get(pid, 0.0), 0.0) for pid, spent in found.items())  # or it is new
            self._cores = used / (now - self._at)
        self._before, self._at = found, now
        return self._cores


def _seconds(pid: int, *, below: bool = False) -> float | None:
    """Return the processor time of a process in seconds, with that of its children; None if it has ended."""
    try:
        # The name of the process is in parentheses, and may have some itself.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # Its own time in user and kernel mode, and that of the children for whose end it has waited.
    ticks = sum(map(int, fields[_UTIME : _UTIME + (4 if below else 2)]))
    spent = ticks / os.sysconf("SC_CLK_TCK")
    if below:
        with suppress(OSError):
            spent += sum(_seconds(child, below=True) or 0.0 for child in children_of(pid))
    return spent
