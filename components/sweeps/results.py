"""The results of a sweep: one score for each run, mean and interval for each configuration."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from components.reporting.comparison import Trial, read_trial
from components.reporting.win_rate import WINDOW
from components.sweeps.configurations import Configuration
from orchestra import RunDirectory, UsageError

Metric = Literal["win-rate", "return"]
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""The 0.975 quantile of Student's t distribution with 1, 2, 3 … degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a configuration."""

    configuration: Configuration
    scores: Mapping[int, float]
    """Score by seed, of runs that are done or were stopped, and have a test."""
    runs: int
    note: str = ""

    @property
    def mean(self) -> float:
        """Mean of the scores; nan if there are none."""
        return float(np.mean(list(self.scores.values()))) if self.scores else math.nan

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean by Student's t distribution; None for fewer than two seeds."""
        return mean_interval(list(self.scores.values()))


def mean_interval(scores: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean by Student's t distribution; None for fewer than two scores."""
    n = len(scores)
    if n < 2:
        return None
    quantile = _T[n - 2] if n - 2 < len(_T) else 1.96 + 2.4 / (n - 1)
    half = quantile * float(np.std(scores, ddof=1)) / math.sqrt(n)
    mean = float(np.mean(scores))
    return mean - half, mean + half


def read_tests(run: RunDirectory | None) -> Trial | None:
    """Return the greedy tests of a run; None if it has not begun or has none yet."""
    if run is None:
        return None
    try:
        return read_trial(run.path)
    except UsageError:  # it has no test yet, or a record is being written
        return None


def curve(trial: Trial, metric: Metric | None) -> list[float]:
    """Return the score of each test: its win rate, or its return; by default the win rate where episodes can be won."""
    if metric == "win-rate" and trial.has_returns_alone:
        raise UsageError(f"--metric win-rate: episodes of {trial.name} cannot be won; write --metric return")
    by_return = metric == "return" or trial.has_returns_alone
    return [float(each) for each in (trial.returns if by_return else trial.win_rate)]


def score(trial: Trial, metric: Metric | None) -> float:
    """Return the score of a run: the mean of its last tests."""
    return float(np.mean(curve(trial, metric)[-WINDOW:]))


def ranked(results: Sequence[Result], *, minimise: bool = False) -> list[Result]:
    """Return the results, the best first and those without a score last."""
    return sorted(
        results, key=lambda each: math.inf if math.isnan(each.mean) else (each.mean if minimise else -each.mean)
    )


def as_text(results: Sequence[Result]) -> str:
    """Return the table for a terminal."""
    rows = [("CONFIGURATION", "SEEDS", "MEAN", "95 % INTERVAL", ""), *map(_row, results)]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines)


def as_markdown(results: Sequence[Result], command: str) -> str:
    """Return the table for a page, with a note on its figures."""
    rows = [("configuration", "seeds", "mean", "95 % interval", "note"), ("---",) * 5, *map(_row, results)]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    note = (
        f"The score of a run is the mean of its last {WINDOW} greedy tests. The interval is that of the mean over the "
        f"seeds,\nby Student's t distribution. Command: `{command}`"
    )
    return f"{table}\n\n{note}\n"


def as_csv(results: Sequence[Result]) -> str:
    """Return a line for each run: the flags of its configuration, its seed, its score."""
    names = list(dict.fromkeys(name for each in results for name in each.configuration.values))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["configuration", *names, "seed", "score"])
    for each in results:
        values = [each.configuration.values.get(name, "") for name in names]
        for seed, value in each.scores.items():
            writer.writerow([each.configuration.name, *values, seed, value])
    return out.getvalue()


def _row(result: Result) -> tuple[str, str, str, str, str]:
    seeds = f"{len(result.scores)} of {result.runs}"
    if not result.scores:
        return result.configuration.label, seeds, "-", "-", result.note
    between = result.interval
    interval = "-" if between is None else f"{between[0]:.4g} to {between[1]:.4g}"
    return result.configuration.label, seeds, f"{result.mean:.4g}", interval, result.note
