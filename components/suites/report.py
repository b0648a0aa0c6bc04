"""The report of a suite: a table for people, the same as CSV, and the raw results in the format of marl-eval."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from components.reporting.win_rate import WINDOW
from components.suites.aggregates import RESAMPLES, Floats, interquartile_mean, stratified_interval
from components.suites.published import Suite
from components.suites.scores import LEVELS, Reached, Scores

Results = Mapping[str, Mapping[str, Mapping[int, Scores]]]
"""Scores by algorithm, map and seed."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The interquartile mean of a score over the runs of all maps, with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def aggregate(scores: Sequence[Floats]) -> Aggregate:
    """Return the aggregate of the scores of each map."""
    return Aggregate(float(interquartile_mean(np.concatenate(scores))), *stratified_interval(scores))


def aggregates(by_map: Mapping[str, Mapping[int, Scores]]) -> dict[str, Aggregate]:
    """Return the aggregates of an algorithm by score: `final`, `best`, `area`."""
    return {
        name: aggregate([np.array([getattr(run, name) for run in runs.values()]) for runs in by_map.values() if runs])
        for name in ("final", "best", "area")
    }


def rows(suite: Suite, results: Results) -> list[dict[str, Any]]:
    """Return a row of plain numbers for each algorithm and map: medians over the seeds. A missing value is None."""
    return [
        _row(suite, algorithm, scenario, list(runs.values()))
        for algorithm, by_map in results.items()
        for scenario, runs in by_map.items()
        if runs
    ]


def _row(suite: Suite, algorithm: str, scenario: str, runs: Sequence[Scores]) -> dict[str, Any]:
    final = [run.final for run in runs]
    published = suite.published.get(algorithm)
    rate = None if published is None else published.rates.get(scenario)
    row: dict[str, Any] = {
        "algorithm": algorithm,
        "map": scenario,
        "seeds": len(runs),
        "steps": _median([float(run.trial.env_steps[-1]) for run in runs]),
        "final": _median(final),
        "final_lowest": min(final),
        "final_highest": max(final),
        "published": rate,
        "difference": None if rate is None else float(np.median(final)) - rate,
        "best": _median([run.best for run in runs]),
        "area": _median([run.area for run in runs]),
    }
    for level in LEVELS:
        reached = [at for run in runs if (at := run.reached[level]) is not None]
        row |= _reached(f"{level:.0%}".replace("%", ""), reached)
    row |= {"minutes": _median([run.minutes for run in runs])}
    for jitter in suite.jitters:
        row[f"jitter_{jitter:g}"] = _median([run.jittered[jitter] for run in runs if jitter in run.jittered])
    return row


def _reached(level: str, reached: Sequence[Reached]) -> dict[str, Any]:
    return {
        f"reached_{level}": len(reached),
        f"steps_to_{level}": _median([at.env_steps for at in reached]),
        f"minutes_to_{level}": _median([at.minutes for at in reached]),
    }


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def as_csv(table: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as CSV; a missing value is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table[0]) if table else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()


def as_markdown(suite: Suite, results: Results, *, command: str, episodes: int) -> str:
    """Return the report as a page: a table for each algorithm, aggregates, and notes on the figures."""
    table = rows(suite, results)
    parts = [f"# {suite.title}", f"`{command}`"]
    for algorithm, by_map in results.items():
        own = [row for row in table if row["algorithm"] == algorithm]
        if not own:
            continue
        parts += [f"## {algorithm}", _markdown_table(suite, own)]
        lines = [f"- {_LABELS[name]}: {value}" for name, value in aggregates(by_map).items()]
        n_runs = sum(len(runs) for runs in by_map.values())
        title = f"Interquartile means over {n_runs} runs of {len(own)} maps, with 95 % intervals:"
        parts.append("\n".join([title, "", *lines]))
        if (published := suite.published.get(algorithm)) is not None:
            near = [row for row in own if row["difference"] is not None]
            held = sum(row["difference"] >= -_MARGIN for row in near)
            parts.append(
                f"At least the published figure less {_MARGIN * 100:.0f} points on {held} of {len(near)} maps. "
                f"Published: {published.source}"
            )
    parts.append(_note(episodes))
    return "\n\n".join(parts) + "\n"


_MARGIN = 0.05
_LABELS = {"final": "win rate at the end", "best": "best test", "area": "area under the curve"}


def _note(episodes: int) -> str:
    return (
        f"A greedy test is `--eval-episodes` battles, by default 32. *Final* is the mean of the last {WINDOW} tests, "
        "*best* the best single one, *area* the area under the win rate over environment steps as a share of the "
        "largest possible. Values of a map are medians over its seeds, in brackets the lowest and the highest. *To 50 "
        "%* and *to 90 %* are steps and minutes up to the first test with that win rate, medians of the runs that had "
        f"one. *Jitter* is the share of {episodes} new battles that the best parameters of a run win when each start "
        "position is moved by up to this many cells per axis. Intervals are of a bootstrap stratified by map, "
        f"{RESAMPLES:,} resamples (Agarwal et al. 2021)."
    )


def _markdown_table(suite: Suite, table: Sequence[Mapping[str, Any]]) -> str:
    jitters = [f"jitter {jitter:g}" for jitter in suite.jitters]
    names = ["map", "seeds", "final", "published", "best", "area", "to 50 %", "to 90 %", "minutes", *jitters]
    lines = [" | ".join(names), " | ".join("---" for _ in names)]
    for row in table:
        cells = [
            row["map"],
            str(row["seeds"]),
            f"{row['final']:.1%} ({row['final_lowest']:.1%} to {row['final_highest']:.1%})",
            _rate(row["published"]),
            _rate(row["best"]),
            f"{row['area']:.3f}",
            _way(row, "50"),
            _way(row, "90"),
            f"{row['minutes']:.1f}",
            *(_rate(row[f"jitter_{jitter:g}"]) for jitter in suite.jitters),
        ]
        lines.append(" | ".join(cells))
    return "\n".join(f"| {line} |" for line in lines)


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _way(row: Mapping[str, Any], level: str) -> str:
    count = row[f"reached_{level}"]
    if not count:
        return "never"
    runs = "" if count == row["seeds"] else f" ({count} of {row['seeds']})"
    return f"{row[f'steps_to_{level}']:,.0f} in {row[f'minutes_to_{level}']:.1f} min{runs}"


def marl_eval(suite: Suite, results: Results, *, steps: int, interval: int) -> dict[str, Any]:
    """Return the raw results in the format of marl-eval (github.com/instadeepai/marl-eval, README).

    That library needs equally many tests of all runs. So there is an entry for each `interval` steps up to `steps`: the
    last test until then, or the first one. Lists have one element, because a win rate is a single figure of a test.
    """
    grid = range(interval, steps + 1, interval)
    maps = sorted({scenario for by_map in results.values() for scenario in by_map})
    return {
        suite.name: {
            scenario: {
                algorithm: {f"seed_{seed}": _raw(run, grid) for seed, run in sorted(by_map.get(scenario, {}).items())}
                for algorithm, by_map in results.items()
            }
            for scenario in maps
        }
    }


def _raw(run: Scores, grid: range) -> dict[str, Any]:
    trial = run.trial
    places = np.maximum(np.searchsorted(trial.env_steps, grid, side="right") - 1, 0)
    raw: dict[str, Any] = {
        f"step_{number}": {
            "step_count": int(trial.env_steps[place]),
            "elapsed_time": float(trial.minutes[place] * 60),
            "win_rate": [float(trial.win_rate[place])],
            "return": [float(trial.returns[place])],
        }
        for number, place in enumerate(places)
    }
    best = int(np.argmax(trial.win_rate))
    raw["absolute_metrics"] = {
        "win_rate": [run.jittered.get(0.0, float(trial.win_rate[best]))],
        "return": [float(trial.returns[best])],
    }
    return raw
