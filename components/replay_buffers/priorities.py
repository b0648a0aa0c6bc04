"""Prioritised experience replay (Schaul et al. 2016): priorities of items of any kind.

Items are slots, 0 to `capacity` - 1. An item is drawn with probability P_i = w_i / Σ w, with w = (priority +
epsilon)^alpha.
"""

from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from components.checkpoints.array_file import ArrayReader, CheckpointError, StateArray
from components.replay_buffers.invalid import InvalidExperience, check_priorities
from components.replay_buffers.segment_tree import LARGEST_SUM, SegmentTree, SumTree


class WeightOptions(TypedDict, total=False):
    """Keywords of `Priorities`."""

    alpha: float
    beta: float
    epsilon: float
    normalize: Literal["batch", "buffer"]
    decay: float


class Priorities:
    """Weights by which items are drawn, and importance weights that correct for them.

    Args:
        capacity: number of items; at first none has a weight.
        alpha: 0 draws uniformly, 1 in proportion to priorities; 0.6 in the paper.
        beta: strength of the correction by importance weights, in [0, 1]; 0.4 at first in the paper, and annealed to 1.
            It may be set between two draws.
        epsilon: added to priorities, so that an item of priority 0 can be drawn; with 0 it is never drawn.
        normalize: importance weights (n P_i)^-beta are divided by the largest of the batch, as in the paper, or by the
            largest of the whole buffer, as in the authors' code. With the latter, the weight of an item does not depend
            on the other items of the batch.
        decay: factor for the weight w of an item each time it is drawn. With 0 an item is drawn once, and again only
            after it has got a new priority.

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(
        self,
        capacity: int,
        *,
        alpha: float = 0.6,
        beta: float = 0.4,
        epsilon: float = 1e-6,
        normalize: Literal["batch", "buffer"] = "batch",
        decay: float = 1.0,
    ) -> None:
        for name, number, most in (("alpha", alpha, np.inf), ("beta", beta, 1.0), ("epsilon", epsilon, np.inf)):
            if not (0.0 <= number <= most and np.isfinite(number)):
                raise ValueError(f"{name}: expected a finite number in [0, {most}], got {number}")
        if not 0.0 <= decay <= 1.0:
            raise ValueError(f"decay: expected a number in [0, 1], got {decay}")
        if normalize not in ("batch", "buffer"):
            raise ValueError(f"normalize: expected batch or buffer, got {normalize!r}")
        self.capacity = capacity
        self.alpha, self.beta, self.epsilon, self.normalize, self.decay = alpha, beta, epsilon, normalize, decay
        self.largest = 1.0
        """Largest priority given so far, with which new items enter; 1 until one is larger."""
        self._sums = SumTree(capacity)
        self._least = SegmentTree(capacity, np.minimum, np.inf) if normalize == "buffer" else None

    @property
    def total(self) -> float:
        """The sum of all weights, Σ w."""
        return self._sums.folded

    def __getitem__(self, slots: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the weights w (n,) of `slots` (n,)."""
        return self._sums[slots]

    def to_weights(self, priorities: NDArray[np.floating[Any]], n: int) -> NDArray[np.float64]:
        """Return the weights (n,) of `priorities`.

        Raises:
            InvalidExperience: `priorities` are not n floats, or one is negative, not finite, or so large that sums
                would overflow.
        """
        check_priorities(priorities, n)
        with np.errstate(over="ignore"):
            weights: NDArray[np.float64] = (priorities.astype(np.float64) + self.epsilon) ** self.alpha
        if n and not weights.max() < LARGEST_SUM / self.capacity:
            raise InvalidExperience(
                f"priorities: expected a sum that is finite when they are raised to the power {self.alpha}, "
                f"got {priorities}"
            )
        return weights

    def note_max(self, priorities: NDArray[np.floating[Any]]) -> None:
        """Update `largest` with new `priorities` (n,) of items."""
        if len(priorities):
            self.largest = max(self.largest, float(priorities.max()))

    def set(self, slots: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        """Set the weights (n,) of `slots` (n,); for a slot named twice the last one counts."""
        self._sums[slots] = weights
        if self._least is not None:  # items that are never drawn do not count
            self._least[slots] = np.where(weights > 0, weights, np.inf)

    def add(self, start: int, n: int) -> None:
        """Give `n` slots from `start` on, modulo `capacity`, the weight of the largest priority."""
        self._fill(start, n, (self.largest + self.epsilon) ** self.alpha)

    def clear(self, start: int, n: int) -> None:
        """Set the weights of `n` slots from `start` on, modulo `capacity`, to 0."""
        self._fill(start, n, 0.0)

    def _fill(self, start: int, n: int, weight: float) -> None:
        for begin, stop in ((start, min(start + n, self.capacity)), (0, start + n - self.capacity)):
            if begin < stop:
                self._sums.fill(begin, stop, weight)
                if self._least is not None:
                    self._least.fill(begin, stop, weight if weight > 0 else np.inf)

    def refresh(self) -> None:
        """Recompute weights that depend on other items; here none do."""

    def draw(
        self, batch_size: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float64]]:
        """Draw slots (B,) in proportion to their weights; return them, their importance weights (B,), and w (B,).

        Slots are drawn in strata, one from each of `batch_size` equal shares of the sum, so a slot may be drawn twice.

        Raises:
            ValueError: no item has weight.
        """
        self.refresh()
        shares = rng.random(batch_size)
        shares += np.arange(batch_size)
        shares /= batch_size
        slots = self._sums.find(shares)
        drawn = self._sums[slots]
        # (n P)^-beta over its maximum: n and the sum cancel.
        least = drawn.min() if self._least is None else self._least.folded
        importance = ((least / drawn) ** self.beta).astype(np.float32)
        if self.decay != 1.0:
            once, times = np.unique(slots, return_counts=True)
            self.set(once, self._sums[once] * self.decay**times)
        return slots, importance, drawn

    def state_arrays(self, held: int) -> dict[str, StateArray]:
        """Return the arrays of a checkpoint of slots 0 to `held` - 1."""
        names = ("alpha", "epsilon", "beta", "largest")
        numbers = {name: StateArray.of(np.array(getattr(self, name), np.float64)) for name in names}
        return {**numbers, "weights": StateArray.of(self._sums[np.arange(held)])}

    def check_state(self, reader: ArrayReader, held: int) -> None:
        """Raise `CheckpointError` unless the arrays could come from `state_arrays`."""
        reader.expect_value("alpha", float(self.alpha))  # the weights depend on it
        reader.expect_value("epsilon", float(self.epsilon))
        for name, most in (("beta", 1.0), ("largest", np.inf)):
            number = float(reader.read(name, np.float64, ()))
            if not (0.0 <= number <= most and np.isfinite(number)):
                raise CheckpointError(f"{name}: expected a finite number in [0, {most}], got {number}")
        self._check_weights(reader, held)

    def _check_weights(self, reader: ArrayReader, held: int) -> None:
        weights = reader.read("weights", np.float64, (held,))
        if held and not (weights.min() >= 0 and weights.max() < LARGEST_SUM / self.capacity):
            raise CheckpointError(f"weights: expected numbers of at least 0 with a finite sum, got {weights}")

    def load_state(self, reader: ArrayReader, held: int) -> None:
        """Load checked arrays."""
        self.beta, self.largest = (float(reader.read(name, np.float64, ())) for name in ("beta", "largest"))
        self.clear(0, self.capacity)
        self._take_weights(reader, held)

    def _take_weights(self, reader: ArrayReader, held: int) -> None:
        self.set(np.arange(held), reader.read("weights", np.float64, (held,)))

    def check_valid(self) -> list[str]:
        """Return one sentence for each inconsistency; none if all is well."""
        wrong = self._sums.check_valid()
        if self._least is not None:
            wrong += self._least.check_valid()
            weights = self._sums[np.arange(self.capacity)]
            if (self._least[np.arange(self.capacity)] != np.where(weights > 0, weights, np.inf)).any():
                wrong.append("the least weights are not those of the sums")
        return wrong
