"""Rank-based prioritisation (Schaul et al. 2016, §3.3): items are drawn by the rank of their priority.

The size of an outlier does not matter, so errors need no clipping.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from components.checkpoints.array_file import ArrayReader, CheckpointError, StateArray
from components.replay_buffers.invalid import check_priorities
from components.replay_buffers.priorities import Priorities

FRESHNESS = 8
"""Ranks are recomputed when more than one in this many items has changed. Until then, a changed item has the rank that
its priority would have had at the last computation. The paper sorts less often."""


class RankedPriorities(Priorities):
    """Draws item i with probability P_i = w_i / Σ w, with w = (1 / rank)^alpha; the largest priority has rank 1.

    Among equals, the item of the lower slot comes first. An item of priority 0 is drawn too.

    Args:
        capacity: number of items; none is held at first.
        alpha: 0 draws uniformly; 0.7 in the paper.
        beta: as for `Priorities`; 0.5 at first in the paper.
        normalize: as for `Priorities`.

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(
        self, capacity: int, *, alpha: float = 0.7, beta: float = 0.5, normalize: Literal["batch", "buffer"] = "batch"
    ) -> None:
        super().__init__(capacity, alpha=alpha, beta=beta, epsilon=0.0, normalize=normalize)
        self._numbers = np.full(capacity, -1.0)  # priorities; below 0 in empty slots
        self._ladder = np.zeros(0)  # negated priorities at the last computation, sorted
        self._n_changed = 0

    def to_weights(self, priorities: NDArray[np.floating[Any]], n: int) -> NDArray[np.float64]:
        """Return `priorities` themselves, which `set` takes.

        Raises:
            InvalidExperience: `priorities` are not n floats that are finite and at least 0.
        """
        check_priorities(priorities, n)
        return priorities.astype(np.float64)

    def set(self, slots: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        """Set the priorities of `slots` (n,), from `to_weights`; for a slot named twice the last one counts."""
        self._numbers[slots] = weights
        self._n_changed += len(slots)
        super().set(slots, self._weights(1 + np.searchsorted(self._ladder, -weights)))

    def _fill(self, start: int, n: int, weight: float) -> None:
        number = self.largest if weight > 0 else -1.0
        for begin, stop in ((start, min(start + n, self.capacity)), (0, start + n - self.capacity)):
            if begin < stop:
                self._numbers[begin:stop] = number
        self._n_changed += n
        super()._fill(start, n, weight and float(self._weights(1 + np.searchsorted(self._ladder, -number))))

    def _weights(self, ranks: NDArray[np.integer[Any]] | np.integer[Any]) -> NDArray[np.float64]:
        weights: NDArray[np.float64] = np.asarray(ranks, np.float64) ** -self.alpha
        return weights

    def rank(self) -> None:
        """Recompute all ranks, if an item has changed."""
        if not self._n_changed:
            return
        there = np.flatnonzero(self._numbers >= 0)
        order = np.argsort(-self._numbers[there], kind="stable")
        self._ladder, self._n_changed = -self._numbers[there[order]], 0
        if len(there):
            super().set(there[order], self._weights(1 + np.arange(len(there))))

    def refresh(self) -> None:
        """Recompute all ranks, if enough items have changed."""
        if self._n_changed * FRESHNESS > len(self._ladder):
            self.rank()

    def state_arrays(self, held: int) -> dict[str, StateArray]:
        """Return the arrays of a checkpoint. Ranks are recomputed now, and again when it is loaded."""
        self.rank()
        arrays = super().state_arrays(held)
        del arrays["weights"]
        return arrays | {"numbers": StateArray.of(self._numbers[:held])}

    def _check_weights(self, reader: ArrayReader, held: int) -> None:
        numbers = reader.read("numbers", np.float64, (held,))
        if held and not (np.isfinite(numbers).all() and ((numbers >= 0) | (numbers == -1.0)).all()):
            raise CheckpointError(
                f"numbers: expected priorities of at least 0, or -1 where there is none, got {numbers}"
            )

    def _take_weights(self, reader: ArrayReader, held: int) -> None:
        numbers = reader.read("numbers", np.float64, (held,))
        there = np.flatnonzero(numbers >= 0)
        self.set(there, numbers[there])
        self.rank()

    def check_valid(self) -> list[str]:
        wrong = super().check_valid()
        slots = np.arange(self.capacity)
        if ((self._numbers >= 0) != (self[slots] > 0)).any():
            wrong.append("items with a priority are not those with weight")
        return wrong
