"""The figure of a suite: the win rate on each map, and the interquartile mean over all of them."""

import math
from collections.abc import Sequence
from operator import attrgetter

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from components.reporting.comparison import Group
from components.reporting.curve import GREY, TEXT, label_axes, new_figure, show_percents
from components.suites.aggregates import interquartile_mean, stratified_interval
from components.suites.published import Suite
from components.suites.report import Results
from components.suites.scores import Scores

# Okabe and Ito's palette: distinguishable for the colour-blind, and in grey.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_POINTS = 41
"""Number of points at which the interquartile mean is drawn."""
_RESAMPLES = 1_000


def suite_figure(suite: Suite, results: Results) -> Figure:
    """Draw a panel for each map, medians with quartiles, published win rates dashed; the last panel is of all maps."""
    maps = [scenario for scenario in suite.maps if any(by_map.get(scenario) for by_map in results.values())]
    columns = min(4, len(maps) + 1)
    n_rows = math.ceil((len(maps) + 1) / columns)
    figure = new_figure(3.1 * columns, 2.3 * n_rows + 0.4)
    panels = figure.subplots(n_rows, columns, sharey=True, squeeze=False).ravel()
    for panel, scenario in zip(panels, maps, strict=False):
        for number, (algorithm, by_map) in enumerate(results.items()):
            _draw_map(panel, suite, algorithm, scenario, list(by_map.get(scenario, {}).values()), _COLOURS[number % 7])
        _finish(panel, scenario)
    whole = panels[len(maps)]
    for number, (algorithm, by_map) in enumerate(results.items()):
        _draw_all(whole, algorithm, [list(runs.values()) for runs in by_map.values() if runs], _COLOURS[number % 7])
    _finish(whole, "interquartile mean, all maps")
    for panel in panels[len(maps) + 1 :]:
        panel.remove()
    show_percents(panels[0])
    lines, labels = whole.get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside upper left", ncols=4, fontsize=TEXT, frameon=False)
    return figure


def _draw_map(panel: Axes, suite: Suite, algorithm: str, scenario: str, runs: Sequence[Scores], colour: str) -> None:
    if not runs:
        return
    group = Group(algorithm, tuple(run.trial for run in runs))
    grid, (low, middle, high) = group.band(attrgetter("env_steps"), attrgetter("win_rate"))
    panel.plot(grid, middle, color=colour, linewidth=1.4)
    if len(runs) > 1:
        panel.fill_between(grid, low, high, color=colour, alpha=0.18, linewidth=0)
    published = suite.published.get(algorithm)
    if published is not None and scenario in published.rates:
        panel.axhline(published.rates[scenario], color=colour, linewidth=0.9, linestyle=(0, (4, 3)))


def _draw_all(panel: Axes, algorithm: str, by_map: Sequence[Sequence[Scores]], colour: str) -> None:
    """Draw the interquartile mean over all runs with its 95 % interval, in the range in which all have tests."""
    trials = [[run.trial for run in runs] for runs in by_map]
    if not trials:
        return
    grid = np.linspace(0, min(float(trial.env_steps[-1]) for runs in trials for trial in runs), _POINTS)
    lines = [np.stack([np.interp(grid, trial.env_steps, trial.win_rate) for trial in runs]) for runs in trials]
    middle = interquartile_mean(np.concatenate(lines).T)
    bounds = np.array(
        [stratified_interval([runs[:, k] for runs in lines], resamples=_RESAMPLES) for k in range(len(grid))]
    )
    panel.plot(grid, middle, color=colour, linewidth=1.6, label=algorithm)
    panel.fill_between(grid, bounds[:, 0], bounds[:, 1], color=colour, alpha=0.18, linewidth=0)


def _finish(panel: Axes, title: str) -> None:
    label_axes(panel, "", "")
    panel.set_title(title, fontsize=TEXT, color=GREY, loc="left")
    panel.set_xlim(left=0)
    panel.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
