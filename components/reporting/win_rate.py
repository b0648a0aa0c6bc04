"""Results of greedy tests: the test from which on a scenario is solved, and the precision of a win rate."""

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

SOLVED = 0.9
"""Mean win rate at which a scenario counts as solved."""
WINDOW = 5
"""Number of successive tests over which the mean is taken: a single test may be luck."""
_Z = 1.959964
"""Quantile of the normal distribution with 2.5 % above it."""


def solved_at(results: Sequence[float], least: float = SOLVED) -> int | None:
    """Return the index of the first test from which every `WINDOW` tests in succession average at least `least`.

    None if there is no such test: the last window is below, or there are fewer than `WINDOW` tests. Windows before a
    later one that is below do not count.

    Args:
        results: win rates, or returns of an environment that has no winner.
        least: the mean at which the scenario counts as solved.
    """
    if len(results) < WINDOW:
        return None
    means = sliding_window_view(np.asarray(results, np.float64), WINDOW).mean(axis=1)
    below = np.flatnonzero(means < least - 1e-9)  # sums of 0.9 are not exact
    first = int(below[-1]) + 1 if len(below) else 0
    return first if first < len(means) else None


def wilson_interval(won: int, episodes: int) -> tuple[float, float]:
    """Return the 95 % score interval of a win rate of `won` of `episodes`, within 0 to 1.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", Journal of the American
    Statistical Association 22 (1927), 209-212. With p = won / n the bounds are
    (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n).

    Raises:
        ValueError: there are no episodes, or more won episodes than episodes.
    """
    if not 0 <= won <= episodes or episodes == 0:
        raise ValueError(f"won: expected 0 to {episodes} of one episode or more, got {won}")
    share, extra = won / episodes, _Z**2 / episodes
    centre = share + extra / 2
    half = _Z * (share * (1 - share) / episodes + extra / episodes / 4) ** 0.5
    low, high = (centre - half) / (1 + extra), (centre + half) / (1 + extra)
    return (0.0 if won == 0 else low), (1.0 if won == episodes else high)


def win_rate_text(won: int, episodes: int) -> str:
    """Return a win rate with its interval, as in `80.0% (95% interval 49.0% to 94.3%; 8 of 10 greedy episodes)`."""
    low, high = wilson_interval(won, episodes)
    return f"{won / episodes:.1%} (95% interval {low:.1%} to {high:.1%}; {won:,} of {episodes:,} greedy episodes)"
