"""The file that a trace is written to, which leaves the memory of the machine to the rest of the run."""

import io
import os
from pathlib import Path
from typing import Any

WINDOW = 8 << 20
"""Bytes after which what was written is let go."""
BEHIND = 4
"""Windows that are looked at again: the disk had no time for them yet when they were let go first."""


class TraceOutput(io.FileIO):
    """A new file, without a buffer of Python's, of which the system keeps no more than the end in memory.

    A trace grows by a gigabyte in a few seconds and is seldom read at once. Left to itself the system would give it all
    memory that is free, page by page, which takes longer than to fill the pages, and then have the disk write seconds
    of it at a time. Instead each window is sent to the disk when it is full, and its pages are used again once they are
    there. Nobody waits for that; where the system takes no such advice, all is as with any file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "xb")
        self._end = 0
        self._advised = 0

    def write(self, data: Any, /) -> int:
        """Write what the disk takes of `data`; return how many bytes that is."""
        wrote = super().write(data) or 0
        self._end += wrote
        if self._end - self._advised >= WINDOW:
            self._let_go()
        return wrote

    def truncate(self, size: int | None = None, /) -> int:
        """Cut the file off at `size`, where the next bytes go."""
        cut = super().truncate(size)
        self._end = cut
        self._advised = min(self._advised, cut)
        return cut

    def _let_go(self) -> None:
        if hasattr(os, "posix_fadvise"):
            begin = max(0, self._advised - BEHIND * WINDOW)
            # It has what is not on the disk yet written, and frees what is there already.
            os.posix_fadvise(self.fileno(), begin, self._end - begin, os.POSIX_FADV_DONTNEED)
        self._advised = self._end
