"""The learning curve of a run as a picture: win rate and return, in training and in greedy tests, over env steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from components.reporting.progress import new_tests
from components.reporting.replaced_file import replaced
from orchestra import read_records

# Blue and vermilion of Okabe and Ito's palette: distinguishable for the colour-blind, and in grey.
_TRAIN = "#56b4e9"
_TEST = "#d55e00"
GREY = "#808080"
TEXT = 9
"""Size of a figure's text."""
_APART = 0.06  # least distance of labels of the upper axis, as a share of its width
_MARKS = 60  # with more tests than this, there is no room for marks


def draw_curve(metrics: Path, picture: Path, *, title: str | None = None) -> None:
    """Draw the metrics file of a run, finished or not, into a PNG; an older picture is replaced in one step.

    The left panel has the win rate, unless episodes cannot be won; the right panel has the return. The lower axis has
    env steps, the upper axis the minutes that they took. The training curve is the mean over recent episodes with
    exploration; each mark of the test curve is one greedy test. A file without records gives empty axes with a note.

    Raises:
        OSError: the file cannot be read, or the picture not written.
        ValueError: the file is not a metrics file.
    """
    figure = curve_figure(read_records(metrics), title=title)
    with replaced(picture) as unfinished:
        figure.savefig(unfinished, format="png")


def curve_figure(records: Sequence[Mapping[str, Any]], *, title: str | None = None) -> Figure:
    """Return the curve as a figure. The caller owns it and may change or save it."""
    figure = new_figure(9.2, 3.8)
    rates, returns = (
        any(record.get(f"{kind}_{figures}") is not None for record in records for kind in ("train", "test"))
        for figures in ("win_rate", "return")
    )
    panels = figure.subplots(1, 1 if returns and not rates else 2, squeeze=False)[0]
    if title is not None:
        figure.suptitle(title, fontsize=TEXT + 1, x=0.01, y=0.965, ha="left", va="center")
    lines = _panel(panels[-1], records, "return", "return of an episode")
    if len(panels) > 1:
        _panel(panels[0], records, "win_rate", "win rate")
        show_percents(panels[0])
        panels[0].set_yticks(np.linspace(0, 1, 6))
    # One legend for both panels, outside of them, where it cannot cover a curve.
    figure.legend(handles=lines, loc="outside upper right", ncols=2, fontsize=TEXT, frameon=False)
    return figure


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size, in inches. The caller owns it."""
    figure = Figure(figsize=(width, height), dpi=160, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)  # not pyplot, whose figures are global and exist until they are closed
    return figure


def show_percents(panel: Axes) -> None:
    """Set the y axis of a panel to 0 to 100 percent."""
    panel.set_ylim(-0.03, 1.03)
    panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def label_axes(panel: Axes, x: str, y: str) -> None:
    """Label the axes of a panel, and remove unneeded lines."""
    panel.set_xlabel(x, fontsize=TEXT)
    panel.set_ylabel(y, fontsize=TEXT)
    panel.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=TEXT - 1)


def _panel(axes: Axes, records: Sequence[Mapping[str, Any]], figure: str, label: str) -> list[Line2D]:
    train, test = _series(records, f"train_{figure}"), _series(new_tests(records), f"test_{figure}")
    lines = [
        # A line of one point would be invisible.
        *axes.plot(*train.T, color=_TRAIN, linewidth=1.3, marker="." if len(train) == 1 else "", label="training"),
        *axes.plot(
            *test.T,
            color=_TEST,
            linewidth=1.6,
            marker="o",
            markersize=3.5 if len(test) <= _MARKS else 0,
            clip_on=False,  # draw whole marks at the edge
            in_layout=False,  # an unclipped line without points would take all the room
            zorder=3,
            label="greedy test",
        ),
    ]
    label_axes(axes, "environment steps", label)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(color=GREY)
    last = max((record["env_steps"] for record in records), default=0)
    if last > 0:
        axes.set_xlim(0, last)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 2.5, 5, 10]))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    else:
        axes.set_xlim(0, 1)
        axes.set_xticks([0])
    if not train.size and not test.size:
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no figures yet", transform=axes.transAxes, ha="center", va="center", color=GREY)
    _minutes_on_top(axes, records)
    return lines


def _series(records: Sequence[Mapping[str, Any]], name: str) -> NDArray[np.float64]:
    """Return the env steps and values (N, 2) of the records that have a value."""
    pairs = [(record["env_steps"], record[name]) for record in records if record.get(name) is not None]
    return np.array(pairs, dtype=np.float64).reshape(-1, 2)


def _minutes_on_top(axes: Axes, records: Sequence[Mapping[str, Any]]) -> None:
    """Add an upper axis with marks at the env steps made after 0, 5, 10, … minutes; uneven if the pace varies."""
    top = axes.twiny()
    top.set_xlim(axes.get_xlim())
    top.set_xlabel("minutes", fontsize=TEXT)
    top.tick_params(labelsize=TEXT - 1, color=GREY)
    top.spines[["left", "right", "bottom"]].set_visible(False)
    top.spines["top"].set_color(GREY)
    steps = np.array([0, *(record["env_steps"] for record in records)], dtype=np.float64)
    minutes = np.array([0, *(record["elapsed_s"] / 60 for record in records)], dtype=np.float64)
    minutes = np.maximum.accumulate(minutes)  # a continued run may count from 0 again
    at: list[float] = []
    labels: list[str] = []
    for tick in MaxNLocator(7, steps=[1, 2, 5, 10]).tick_values(0, max(minutes[-1], 1e-9)):
        position = float(np.interp(tick, minutes, steps))
        # If the run made no steps, several minutes share one place: only the first is written.
        if tick <= minutes[-1] and (not at or position - at[-1] >= _APART * axes.get_xlim()[1]):
            at.append(position)
            labels.append(f"{tick:g}")
    top.set_xticks(at, labels)
