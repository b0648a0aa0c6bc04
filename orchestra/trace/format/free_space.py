"""The free space of a disk, of which traces leave a part to the run: it needs it for its checkpoints."""

import math
import shutil
from pathlib import Path

from orchestra.clock import Clock

RESERVE_BYTES = 512 << 20
"""Free disk space below which no trace is written."""
LOOK_S = 0.5
"""Seconds between two looks at the free space."""


class FreeSpace:
    """Tells whether the disk of a folder has room for a trace."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._next_look = -math.inf
        self._short = False

    @property
    def is_short(self) -> bool:
        """Whether less than `RESERVE_BYTES` were left half a second ago or later."""
        now = self._clock.monotonic()
        if now >= self._next_look:
            self._next_look = now + LOOK_S
            try:
                self._short = shutil.disk_usage(self._folder).free < RESERVE_BYTES
            except OSError:
                self._short = False  # writing will fail with the reason
        return self._short
