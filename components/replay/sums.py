"""Drawing in proportion to weights: running sums in a few levels, with every operation on whole arrays."""

import numpy as np
from numpy.typing import NDArray

WIDTH = 16
"""Numbers of a block, which fold to one of the level above. More would mean fewer levels, each costing more."""

TOP = 4096
"""Entries of a pyramid's top level at most. Running sums of all of them are made once for every draw."""

LARGEST_SUM = 1e300
"""What the weights of all items together are to stay below, so that no sum of them becomes infinite."""

RUNNING = np.triu(np.ones((WIDTH, WIDTH)))
"""What blocks are multiplied with for their running sums: a product is several times as fast as `np.cumsum` here."""

BELOW_ONE = 1.0 - 2.0**-53


class Pyramid:
    """What blocks of `size` numbers fold to, and blocks of these, up to a level of at most TOP.

    Numpy pays by the call, not by the item, so blocks are wide and levels few. Every entry is made anew from those
    below it whenever one of them changes, so no rounding error accumulates.

    Args:
        size: how many numbers.
        fold: `np.add` or `np.minimum`.
        empty: what every number is at first, which folding does not notice.
    """

    def __init__(self, size: int, fold: np.ufunc, empty: float) -> None:
        self.size = size
        self._fold, self._empty = fold, empty
        self._blocks: list[NDArray[np.float64]] = []  # (entries of the level above, WIDTH), from the bottom
        while size > TOP:
            self._blocks.append(np.full((-(-size // WIDTH), WIDTH), empty))
            size = len(self._blocks[-1])
        self._top = np.full(size, empty)
        self._flat = [*(level.reshape(-1) for level in self._blocks), self._top]

    @property
    def folded(self) -> float:
        """What all numbers fold to."""
        return float(self._fold.reduce(self._top))

    def __getitem__(self, items: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the numbers of `items` (n,)."""
        return self._flat[0][items]

    def __setitem__(self, items: NDArray[np.int64], numbers: NDArray[np.float64] | float) -> None:
        """Set the numbers of `items` (n,); of an item named twice the last one stays."""
        self._flat[0][items] = numbers
        for level, above in zip(self._blocks, self._flat[1:], strict=True):
            items = items // WIDTH
            above[items] = self._fold.reduce(level.take(items, axis=0), axis=1)

    def fill(self, start: int, stop: int, number: float) -> None:
        """Set the numbers of items `start` to `stop`, at least one: faster than naming each."""
        self._flat[0][start:stop] = number
        for level, above in zip(self._blocks, self._flat[1:], strict=True):
            start, stop = start // WIDTH, (stop - 1) // WIDTH + 1
            self._fold.reduce(level[start:stop], axis=1, out=above[start:stop])

    def check_valid(self) -> list[str]:
        """Return what is wrong, one sentence each; nothing if all is well."""
        wrong = []
        for i, (level, above) in enumerate(zip(self._blocks, self._flat[1:], strict=True)):
            if (above[: len(level)] != self._fold.reduce(level, axis=1)).any():
                wrong.append(f"level {i + 1} is not what level {i} folds to")
        if (self._flat[0][self.size :] != self._empty).any():
            wrong.append("there is a number beyond the last item")
        return wrong


class SumTree(Pyramid):
    """Non-negative weights of `size` items, drawn in proportion to them."""

    def __init__(self, size: int) -> None:
        super().__init__(size, np.add, 0.0)

    def find(self, shares: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the items (n,) at which the running sum passes `shares` (n,), in [0, 1], of the total, above 0.

        With uniform shares an item is drawn in proportion to its weight; one of weight 0 never is.
        """
        ends = np.empty(len(self._top) + 1)
        ends[0] = 0.0
        np.cumsum(self._top, out=ends[1:])
        # Rounding may lift a position to the very end, where nothing is found: it is kept before it.
        at = np.minimum(shares * ends[-1], np.nextafter(ends[-1], 0.0))
        item = ends[1:].searchsorted(at, side="right")
        at -= ends[item]
        for level in reversed(self._blocks):
            block = level.take(item, axis=0)
            ends = block @ RUNNING
            # A block's running sum may end a little before what its entry above says.
            np.minimum(at, ends[:, -1] * BELOW_ONE, out=at)
            within = (ends > at[:, None]).argmax(1)
            flat = np.arange(0, block.size, WIDTH) + within
            chosen = block.reshape(-1).take(flat)
            if not chosen.all():  # rounding has moved a position onto what has no weight: to the next that has some
                for row in np.flatnonzero(chosen == 0.0).tolist():
                    there = np.flatnonzero(block[row])
                    within[row] = there[min(there.searchsorted(within[row]), len(there) - 1)]
                flat = np.arange(0, block.size, WIDTH) + within
                chosen = block.reshape(-1).take(flat)
            at -= ends.reshape(-1).take(flat) - chosen
            item = item * WIDTH + within
        return np.asarray(item, np.int64)

    def check_valid(self) -> list[str]:
        wrong = super().check_valid()
        if not (np.isfinite(self._flat[0]) & (self._flat[0] >= 0)).all():
            wrong.append("a weight is negative or not finite")
        return wrong
