"""Segment trees: draws in proportion to weights, with few levels and operations on whole arrays."""

from math import nextafter

import numpy as np
from numpy.typing import NDArray

WIDTH = 16
"""Numbers per block, which fold to one number of the level above. A larger width means fewer but slower levels."""

TOP = 4096
"""Largest size of the top level. Running sums of all of it are computed for every draw."""

LARGEST_SUM = 1e300
"""Bound of the sum of all weights, so that it stays finite."""

RUNNING = np.triu(np.ones((WIDTH, WIDTH)))
"""Matrix that turns blocks into their running sums: a product is several times as fast as `np.cumsum` here."""

BEFORE = np.tril(np.ones((WIDTH, WIDTH)), -1)
"""The same for transposed blocks, without the number itself: the sums before each number."""


class SegmentTree:
    """Numbers that fold to blocks, and blocks that fold to larger blocks, up to a top level of at most TOP entries.

    NumPy costs more per call than per item, so blocks are wide and levels few. An entry is recomputed from the entries
    below it whenever one of them changes, so no rounding error accumulates.

    Args:
        size: how many numbers.
        fold: `np.add` or `np.minimum`.
        empty: initial value of every number, the identity of `fold`.
    """

    def __init__(self, size: int, fold: np.ufunc, empty: float) -> None:
        self.size = size
        self._fold, self._empty = fold, empty
        self._blocks: list[NDArray[np.float64]] = []  # (entries of the level above, WIDTH), from the bottom
        while size > TOP:
            self._blocks.append(np.full((-(-size // WIDTH), WIDTH), empty))
            size = len(self._blocks[-1])
        self._top = np.full(-(-size // WIDTH) * WIDTH, empty)
        self._flat = [*(level.reshape(-1) for level in self._blocks), self._top]

    @property
    def folded(self) -> float:
        """Fold of all numbers."""
        return float(self._fold.reduce(self._top))

    def __getitem__(self, items: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the numbers of `items` (n,)."""
        return self._flat[0][items]

    def __setitem__(self, items: NDArray[np.int64], numbers: NDArray[np.float64] | float) -> None:
        """Set the numbers of `items` (n,); for an item named twice the last one counts."""
        self._flat[0][items] = numbers
        for level, above in zip(self._blocks, self._flat[1:], strict=True):
            items = items // WIDTH
            above[items] = self._fold_blocks(level.take(items, axis=0))

    def fill(self, start: int, stop: int, number: float) -> None:
        """Set the numbers of items `start` to `stop`, at least one; faster than by index."""
        self._flat[0][start:stop] = number
        for level, above in zip(self._blocks, self._flat[1:], strict=True):
            start, stop = start // WIDTH, (stop - 1) // WIDTH + 1
            above[start:stop] = self._fold_blocks(level[start:stop])

    def _fold_blocks(self, blocks: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the fold of each of `blocks` (n, WIDTH); the result for a block does not depend on other blocks."""
        folded: NDArray[np.float64] = self._fold.reduce(blocks, axis=1)
        return folded

    def check_valid(self) -> list[str]:
        """Return one sentence for each inconsistency; none if all is well."""
        wrong = []
        for i, (level, above) in enumerate(zip(self._blocks, self._flat[1:], strict=True)):
            if (above[: len(level)] != self._fold_blocks(level)).any():
                wrong.append(f"level {i + 1} is not what level {i} folds to")
        if (self._flat[0][self.size :] != self._empty).any():
            wrong.append("there is a number beyond the last item")
        return wrong


class SumTree(SegmentTree):
    """Non-negative weights of `size` items, drawn in proportion to them."""

    def __init__(self, size: int) -> None:
        super().__init__(size, np.add, 0.0)

    def _fold_blocks(self, blocks: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.einsum("ij->i", blocks))  # twice as fast as `np.add.reduce` along short rows

    def find(self, shares: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the items (n,) at which the running sum passes `shares` (n,), in [0, 1], of the total.

        With uniform shares an item is drawn in proportion to its weight; an item of weight 0 is never drawn.

        Raises:
            ValueError: no item has weight.
        """
        begins = np.zeros(len(self._top) + 1)
        ends = begins[1:].reshape(-1, WIDTH)
        np.matmul(self._top.reshape(-1, WIDTH), RUNNING, out=ends)
        ends[1:] += np.cumsum(ends[:-1, -1])[:, None]
        if not begins[-1] > 0:
            raise ValueError("expected something with weight to draw, got none")
        # Rounding may move a position to the end, beyond the last item.
        at = np.minimum(shares * begins[-1], nextafter(begins[-1], 0.0))
        item = begins[1:].searchsorted(at, side="right")
        at -= begins[item]
        columns = np.arange(len(at))
        for level in reversed(self._blocks):
            # Blocks are transposed, so that each operation runs along all of them. A position is in the last number of
            # its block that begins at or before it; by rounding this may be one without weight, or past the end.
            begins = BEFORE @ level.take(item, axis=0, mode="clip").T
            within = np.add.reduce((begins[1:] <= at).view(np.int8), axis=0, dtype=np.int8).astype(np.int64)
            item = item * WIDTH + within
            within *= len(at)
            within += columns
            at -= begins.reshape(-1).take(within)
        np.minimum(item, len(self._flat[0]) - 1, out=item)
        if not self._flat[0].take(item).all():
            for row in np.flatnonzero(self._flat[0][item] == 0.0).tolist():
                item[row] = self._beside(int(item[row]))
        return np.asarray(item, np.int64)

    def _beside(self, item: int) -> int:
        """Return the item with weight next to `item`: before it in the smallest block with weight, else after it."""
        blocks = [*self._blocks, self._top[None]]
        height = 0
        while not blocks[height][item // blocks[height].shape[1]].any():
            item //= WIDTH
            height += 1
        width = blocks[height].shape[1]
        there = np.flatnonzero(blocks[height][item // width])
        first = int(there.searchsorted(item % width))
        item += int(there[max(first - 1, 0)]) - item % width
        for level in reversed(blocks[:height]):
            there = np.flatnonzero(level[item])
            item = item * WIDTH + int(there[-1 if first else 0])
        return item

    def check_valid(self) -> list[str]:
        wrong = super().check_valid()
        if not (np.isfinite(self._flat[0]) & (self._flat[0] >= 0)).all():
            wrong.append("a weight is negative or not finite")
        return wrong
