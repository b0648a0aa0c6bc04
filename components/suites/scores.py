"""The scores of a run in a suite, from its greedy tests."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from components.reporting.comparison import Trial
from components.reporting.win_rate import WINDOW

LEVELS = (0.5, 0.9)
"""Win rates for which the table has the time at which they were reached."""


@dataclass(frozen=True, slots=True)
class Reached:
    """Point at which a greedy test first reached a win rate."""

    env_steps: float
    minutes: float


@dataclass(frozen=True, slots=True)
class Scores:
    """The figures of one run. Win rates are from 0 to 1."""

    trial: Trial
    final: float
    """Mean win rate of the last `WINDOW` tests."""
    best: float
    """The highest win rate of a single test."""
    area: float
    """The area under the win rate over environment steps, as a share of the largest possible."""
    reached: Mapping[float, Reached | None]
    """The point for each level; None if no test reached it."""
    jittered: Mapping[float, float] = field(default_factory=dict)
    """Win rate of the best parameters in new battles, by the jitter of starting positions in cells."""

    @property
    def minutes(self) -> float:
        """Duration of the run until its last test, in minutes."""
        return float(self.trial.minutes[-1])


def scores_of(trial: Trial, jittered: Mapping[float, float] | None = None) -> Scores:
    """Return the scores of a run with one test or more."""
    steps, rates = trial.env_steps, trial.win_rate
    return Scores(
        trial=trial,
        final=float(rates[-WINDOW:].mean()),
        best=float(rates.max()),
        area=_area(trial),
        reached={level: _reached(trial, level) for level in LEVELS} if len(steps) else {},
        jittered=jittered or {},
    )


def _area(trial: Trial) -> float:
    """Return the area; the win rate is linear between tests, and before the first test it is that of this test."""
    steps = np.concatenate([[0.0], trial.env_steps])
    rates = np.concatenate([trial.win_rate[:1], trial.win_rate])
    if steps[-1] <= 0:
        return float(rates[-1])
    return float(np.trapezoid(rates, steps) / steps[-1])


def _reached(trial: Trial, level: float) -> Reached | None:
    found = np.flatnonzero(trial.win_rate >= level)
    if not len(found):
        return None
    return Reached(float(trial.env_steps[found[0]]), float(trial.minutes[found[0]]))
