"""Aggregates over maps and seeds: the interquartile mean with stratified bootstrap intervals.

Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", NeurIPS 2021. The authors'
library is rliable; its functions are a few lines of NumPy here, because it depends on arch, seaborn and absl.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RESAMPLES = 10_000
_AT_ONCE = 1_000
"""Resamples that are in memory at a time."""


def interquartile_mean(scores: Floats) -> Floats:
    """Return the mean of the middle half of the scores along the last axis, (..., N) to (...).

    Like `scipy.stats.trim_mean(scores, 0.25)`: a quarter of the N scores, rounded down, is left out at each end.

    Raises:
        ValueError: there are no scores.
    """
    n = scores.shape[-1]
    if n == 0:
        raise ValueError("scores: expected one or more, got none")
    cut = n // 4
    middle: Floats = np.sort(scores, axis=-1)[..., cut : n - cut].mean(axis=-1)
    return middle


def stratified_interval(
    scores: Sequence[Floats],
    aggregate: Callable[[Floats], Floats] = interquartile_mean,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the 95 % percentile interval of an aggregate of all scores, from a bootstrap stratified by map.

    Each resample draws, for each map separately, as many runs as the map has, with replacement.

    Args:
        scores: for each map, one score for each run.
        aggregate: function of scores (..., N) to (...).
        resamples: number of resamples.
        seed: seed of the draws.

    Raises:
        ValueError: there are no scores.
    """
    rng = np.random.default_rng(seed)
    values = []
    for first in range(0, resamples, _AT_ONCE):
        size = min(_AT_ONCE, resamples - first)
        drawn = [runs[rng.integers(len(runs), size=(size, len(runs)))] for runs in scores if len(runs)]
        if not drawn:
            raise ValueError("scores: expected one or more, got none")
        values.append(aggregate(np.concatenate(drawn, axis=1)))
    low, high = np.percentile(np.concatenate(values), [2.5, 97.5])
    return float(low), float(high)
