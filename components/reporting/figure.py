"""The learning curves of several runs, drawn side by side."""

import textwrap
from collections.abc import Sequence
from operator import attrgetter

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from components.reporting.comparison import Group
from components.reporting.curve import GREY, TEXT, label_axes, new_figure, show_percents
from components.reporting.win_rate import SOLVED

# Okabe and Ito's palette: distinguishable for the colour-blind, and in grey.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_LINES = ("-", "--", ":")
_AXES = (("environment steps", attrgetter("env_steps")), ("minutes", attrgetter("minutes")))
_VALUES = (("win rate of greedy tests", attrgetter("win_rate")), ("return of greedy tests", attrgetter("returns")))
"""The drawn values: labels, and attributes of a `Trial`."""


def comparison_figure(groups: Sequence[Group]) -> Figure:
    """Draw win rate (above) and return (below) against environment steps (left) and minutes (right).

    Win rates are left out if episodes cannot be won.
    """
    are_won = any(not group.has_returns_alone for group in groups)
    values = _VALUES if are_won else _VALUES[1:]
    figure = new_figure(10, 3.2 * len(values))
    panels = figure.subplots(len(values), 2, sharey="row", squeeze=False)
    for row, (value_label, value) in enumerate(values):
        for column, (axis_label, axis) in enumerate(_AXES):
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
            label_axes(panel, axis_label if row == len(values) - 1 else "", "" if column else value_label)
            panel.set_xlim(left=0)
            panel.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        panels[row, 0].xaxis.set_major_formatter(EngFormatter(sep=""))
    if are_won:
        show_percents(panels[0, 0])
        for panel in panels[0]:
            panel.axhline(SOLVED, color=GREY, linewidth=0.8, linestyle=(0, (1, 3)))
    lines, labels = panels[0, 0].get_legend_handles_labels()
    columns = 3 if max(map(len, labels)) < 45 else 1
    figure.legend(lines, labels, loc="outside upper left", ncols=columns, fontsize=TEXT, frameon=False)
    return figure
