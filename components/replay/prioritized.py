"""Prioritised experience replay (Schaul et al. 2016) of whole episodes."""

import numpy as np
from numpy.typing import NDArray

from components.envs.base import EnvSpec
from components.replay.episodes import EpisodeReplay
from components.replay.sums import SumTree


class PrioritizedEpisodeReplay(EpisodeReplay):
    """Draws episode i with probability P_i = p_i^alpha / Σ p^alpha, where p_i is its priority plus `epsilon`.

    A batch is drawn in strata, one episode from each of `batch_size` equal shares of the sum, so an episode may come
    twice. Importance weights are (n P_i)^-β over their maximum in the batch (§3.4 of the paper). New episodes enter
    with the largest priority seen so far, so each is likely to be learnt from before its error is known.

    Args:
        spec: sizes of the environment.
        capacity: episodes held at most; the oldest go first.
        alpha: 0 draws uniformly, 1 in proportion to priorities; 0.6 in the paper.
        beta: strength of the correction by importance weights, in [0, 1]; 0.4 at first in the paper, and annealed to 1.
            It is an attribute, and may be set between two samples.
        epsilon: keeps an episode whose error is 0 within reach.
        slabs: as for `EpisodeReplay`.

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(
        self,
        spec: EnvSpec,
        capacity: int,
        *,
        alpha: float = 0.6,
        beta: float = 0.4,
        epsilon: float = 1e-6,
        slabs: int = 2,
    ) -> None:
        if not (alpha >= 0 and 0 <= beta <= 1 and epsilon > 0):
            raise ValueError(
                f"expected alpha of at least 0, beta in [0, 1] and epsilon above 0, got {alpha}, {beta} and {epsilon}"
            )
        super().__init__(spec, capacity, slabs=slabs)
        self.alpha, self.beta, self.epsilon = alpha, beta, epsilon
        self.max_priority = 1.0
        """The largest priority ever given, with which new episodes enter; 1 until one is larger."""
        self.stale_updates = 0
        """Priorities that came after their episode had been overwritten, and were ignored."""
        self._sums = SumTree(capacity)

    def _took(self, slots: NDArray[np.int64]) -> None:
        self._sums[slots] = (self.max_priority + self.epsilon) ** self.alpha

    def _draw(self, batch_size: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        slots = self._sums.find((np.arange(batch_size) + rng.random(batch_size)) / batch_size)
        # (n P)^-β over its maximum: n and the sum cancel.
        drawn = self._sums[slots]
        return slots, ((drawn / drawn.min()) ** -self.beta).astype(np.float32)

    def update(
        self,
        indices: NDArray[np.int64],  # (E,)
        generations: NDArray[np.int64],  # (E,)
        priorities: NDArray[np.float32],  # (E,)
    ) -> None:
        """Set the priorities of episodes that `sample` named; of one named twice the last stays.

        An episode that has been overwritten since is left out, and counted in `stale_updates`.

        Raises:
            InvalidExperience: shapes differ, an index is none, or a priority is negative or not finite.
        """
        super().update(indices, generations, priorities)
        current = self._generations[indices] == generations
        self.stale_updates += int((~current).sum())
        if current.any():
            kept = priorities[current].astype(np.float64)
            self.max_priority = max(self.max_priority, float(kept.max()))
            self._sums[indices[current]] = (kept + self.epsilon) ** self.alpha

    def check_valid(self) -> list[str]:
        wrong = super().check_valid() + self._sums.check_valid()
        weights = self._sums[np.arange(self.capacity)]
        if (weights[: len(self)] <= 0).any() or weights[len(self) :].any():
            wrong.append(f"exactly the {len(self)} episodes held should have weight, they have {weights}")
        return wrong
