"""The learning curves of several runs, drawn side by side."""

import textwrap
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from components.reporting.comparison import GOAL, Group, Trial

# Okabe and Ito's palette: told apart by the colour-blind, and in grey.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_LINES = ("-", "--", ":")
_TEXT = 9


def comparison_figure(groups: Sequence[Group]) -> Figure:
    """Draw win rate (above) and return (below) against environment steps (left) and minutes (right)."""
    figure = Figure(figsize=(10, 6.4), dpi=160, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)  # not pyplot: its figures are global, and live until they are closed
    panels = figure.subplots(2, 2, sharey="row")
    axes: tuple[tuple[str, Callable[[Trial], NDArray[np.float64]]], ...] = (
        ("environment steps", lambda trial: trial.env_steps),
        ("minutes", lambda trial: trial.minutes),
    )
    values: tuple[tuple[str, Callable[[Trial], NDArray[np.float64]]], ...] = (
        ("win rate of greedy tests", lambda trial: trial.win_rate),
        ("return of greedy tests", lambda trial: trial.returns),
    )
    for row, (value_label, value) in enumerate(values):
        for column, (axis_label, axis) in enumerate(axes):
            panel: Axes = panels[row, column]
            for number, group in enumerate(groups):
                colour = _COLOURS[number % len(_COLOURS)]
                line = _LINES[number // len(_COLOURS) % len(_LINES)]
                grid, (low, middle, high) = group.band(axis, value)
                seeds = f"{len(group.trials)} seed{'s' if len(group.trials) > 1 else ''}"
                label = textwrap.fill(f"{group.label} ({seeds})", 110)
                panel.plot(grid, middle, line, color=colour, linewidth=1.6, label=label)
                if len(group.trials) > 1:
                    panel.fill_between(grid, low, high, color=colour, alpha=0.18, linewidth=0)
            _dress(panel, axis_label if row else "", "" if column else value_label)
        panels[row, 0].xaxis.set_major_formatter(EngFormatter(sep=""))
    panels[0, 0].set_ylim(-0.03, 1.03)
    panels[0, 0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    for panel in panels[0]:
        panel.axhline(GOAL, color="#808080", linewidth=0.8, linestyle=(0, (1, 3)))
    lines, labels = panels[0, 0].get_legend_handles_labels()
    columns = 3 if max(map(len, labels)) < 45 else 1
    figure.legend(lines, labels, loc="outside upper left", ncols=columns, fontsize=_TEXT, frameon=False)
    return figure


def _dress(panel: Axes, x: str, y: str) -> None:
    panel.set_xlabel(x, fontsize=_TEXT)
    panel.set_ylabel(y, fontsize=_TEXT)
    panel.set_xlim(left=0)
    panel.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    panel.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=_TEXT - 1)
