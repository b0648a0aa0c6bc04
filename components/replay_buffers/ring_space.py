"""Places in a ring: rows that are taken at its head, and given back at its tail."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.replay_buffers.segments import corners_of


class RingSpace:
    """The places of the items of a buffer, each of consecutive rows, in arrays that share them.

    Args:
        slots: number of slots; each holds an item or none.
        size: rows of the arrays.
    """

    def __init__(self, slots: int, size: int) -> None:
        self.size = size
        self.used = 0
        """Rows that are taken."""
        self.starts = np.zeros(slots, np.int64)
        """First row of the item in each slot, (slots,); any row for an item without rows."""
        self._head = 0

    def take(self, slots: Sequence[int], counts: Sequence[int]) -> list[int]:
        """Take `counts` rows for the items of `slots`, in this order; return the first row of each.

        There has to be room.
        """
        *ends, end = accumulate(counts, initial=self._head)
        starts = [row % self.size for row in ends]
        self.starts[slots] = starts
        self.used += end - self._head
        self._head = end % self.size
        return starts

    def give_back(self, n: int) -> None:
        """Give back the `n` rows that were taken first."""
        self.used -= n

    def clear(self) -> None:
        """Give back all rows."""
        self._head = self.used = 0

    def parts(self, start: int, n: int) -> list[slice]:
        """Return `n` rows from row `start` on: as one slice, or as two if they go on at the ring's beginning."""
        until_end = min(n, self.size - start)
        return [slice(start, start + until_end), *([slice(n - until_end)] if until_end < n else [])]

    def runs(self, starts: Sequence[int], counts: Sequence[int]) -> list[tuple[int, int, int]]:
        """Return the rows of items with `counts` rows from rows `starts` on, in as few runs as possible.

        Returns:
            of each run its first row, its first row if all items lie back to back, and its number of rows.
        """
        runs: list[tuple[int, int, int]] = []
        to = end = first = row = 0  # a run is rows from `to` to `end`, which are items from row `first` to `row`
        for start, n in zip(starts, counts, strict=True):
            if start != end and row > first:
                runs.append((to, first, row - first))
            if start != end or row == first:
                to, first = start, row
            end, row = start + n, row + n
            if end > self.size:  # the item goes on at the ring's beginning
                end -= self.size
                runs.append((to, first, row - end - first))
                to, first = 0, row - end
        if row > first:
            runs.append((to, first, row - first))
        return runs

    def corners(self, starts: NDArray[np.int64], counts: NDArray[np.int64], to: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the corners for `copy_segments` of segments in the ring, split at its end.

        Args:
            starts: (E,), first row of each segment.
            counts: (E,), rows of each.
            to: (E,), row to which each is copied.
        """
        until_end = self.size - starts
        around = np.flatnonzero(counts > until_end)
        if not len(around):
            return corners_of(to, starts, counts)
        cut, none = until_end[around], np.zeros(len(around), np.int64)
        rest = corners_of(to[around] + cut, none, counts[around] - cut)
        return np.concatenate([corners_of(to, starts, np.minimum(counts, until_end)), rest])

    def extend(self, size: int, arrays: Iterable[NDArray[Any]]) -> None:
        """Extend the ring to the `size` rows that all `arrays` now have: rows after its old end follow that end."""
        tail, old = (self._head - self.used) % self.size, self.size
        around = max(self.used - (old - tail), 0)  # rows at the beginning, which follow those at the end
        moved = min(around, size - old)
        for array in arrays:
            array[old : old + moved] = array[:moved]
            array[: around - moved] = array[moved:around]
        if around:
            self.starts[:] = np.where(self.starts < tail, (self.starts + old) % size, self.starts)
        self.size, self._head = size, (tail + self.used) % size

    def check_valid(self, slots: NDArray[np.int64], counts: NDArray[np.int64]) -> list[str]:
        """Return one sentence for each inconsistency of items in `slots` (n,), oldest first, of `counts` (n,) rows."""
        wrong = []
        if counts.sum() != self.used or self.used > self.size:
            wrong.append(f"{counts.sum()} rows are held, but {self.used} of {self.size} are counted")
        starts = (self._head - self.used + np.cumsum(counts) - counts) % self.size
        if ((self.starts[slots] != starts) & (counts > 0)).any():
            wrong.append(f"items should start at rows {starts}, they start at {self.starts[slots]}")
        return wrong
