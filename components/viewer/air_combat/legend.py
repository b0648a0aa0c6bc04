"""The text above and below the map: step, outcome, what each side has left, and the meaning of the marks."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure

from components.viewer.air_combat import marks
from components.viewer.air_combat.recording import AirFrame, AirRound

# Okabe and Ito's palette, which colour-blind people can tell apart. Red is filled, blue hollow, for prints in grey.
RED, BLUE = "#d55e00", "#0072b2"
SIDES = (RED, BLUE)
INK = "#202020"
HEADER, FOOTER = 0.56, 0.72  # inches
_UNIT = 0.075  # inches, half the size of a mark
_ROWS = (0.57, 0.35, 0.13)  # inches above the lower edge
_COLUMNS = (0.27, 1.98, 3.88, 5.62)  # inches from the left


def header(figure: Figure, recorded: AirRound, frame: AirFrame, total: float) -> None:
    """Write the scenario, the step, the reward and the outcome, and below them what each side has left."""
    upper, lower = 1.0 - 0.17 / total, 1.0 - 0.40 / total
    text: dict[str, Any] = {"color": INK, "va": "center"}
    figure.text(0.012, upper, recorded.scenario.name, fontsize=10, fontweight="bold", **text)
    step = f"step {frame.step} of at most {recorded.scenario.rules.max_steps}"
    figure.text(0.5, upper, step, fontsize=9, ha="center", **text)
    end = f"{frame.outcome} for red  ·  " if frame.outcome else ""
    figure.text(0.988, upper, f"{end}reward so far {frame.reward:.2f}", fontsize=9, ha="right", **text)
    agents = recorded.n_agents
    sides = (("red", frame.units[:agents], RED, 0.012), ("blue", frame.units[agents:], BLUE, 0.988))
    for name, units, colour, x in sides:
        alive = units[units["alive"]]
        words = (
            f"{name}: {len(alive)}/{len(units)} units, {alive['long_left'].sum()} long and "
            f"{alive['medium_left'].sum()} medium missiles left"
        )
        place: dict[str, Any] = {"va": "center", "ha": "left" if name == "red" else "right"}
        figure.text(x, lower, words, fontsize=8, color=colour, **place)


def footer(figure: Figure, total: float) -> None:
    """Draw each mark with its meaning."""
    axes = figure.add_axes((0.0, 0.0, 1.0, FOOTER / total))
    width = float(figure.get_figwidth())
    axes.set(xlim=(0.0, width), ylim=(FOOTER, 0.0))  # y points down, as on the map
    axes.set_axis_off()
    cells = [(x, FOOTER - y) for x in _COLUMNS for y in _ROWS]
    for (x, y), (draw, words) in zip(cells, _MARKS, strict=True):
        draw(axes, np.array([x, y]))
        axes.text(x + 0.25, y, words, fontsize=6.8, color=INK, va="center")


Draw = Callable[[Axes, marks.Corners], None]
_LEFT = np.array([-1.7, 0.0])


def _shapes(shape: marks.Corners, size: float = _UNIT) -> Draw:
    """Return a function that draws a shape for each side."""

    def draw(axes: Axes, point: marks.Corners) -> None:
        for side, colour in enumerate(SIDES):
            corners = point + (side * 2.4 - 1.2) * np.array([_UNIT, 0.0]) + size * shape
            fill = colour if side == 0 else "white"
            axes.add_collection(PolyCollection([corners], facecolors=fill, edgecolors=colour, linewidths=1.0))

    return draw


def _lines(
    lines: list[marks.Corners], colour: str = RED, style: Any = "-", width: float = 0.8, fill: float = 0
) -> Draw:
    """Return a function that draws lines; if `fill` is not 0, it fills the first one with this opacity."""

    def draw(axes: Axes, point: marks.Corners) -> None:
        placed = [point + _UNIT * line for line in lines]
        if fill:
            axes.add_collection(PolyCollection(placed[:1], facecolors=colour, alpha=fill, linewidths=0))
        axes.add_collection(LineCollection(placed, colors=colour, linestyles=[style], linewidths=width))

    return draw


def _points(marker: str, colour: str = RED) -> Draw:
    """Return a function that draws an open marker of a known unit."""

    def draw(axes: Axes, point: marks.Corners) -> None:
        axes.scatter(point[0], point[1], s=42, marker=marker, facecolors="none", edgecolors=colour, linewidths=0.9)

    return draw


def _crosses(axes: Axes, point: marks.Corners) -> None:
    for side, colour in enumerate(SIDES):
        x = point[0] + (side * 2.4 - 1.2) * _UNIT
        fill = colour if side == 0 else "white"
        axes.scatter(x, point[1], s=36, marker="X", color=fill, edgecolors=colour, linewidths=0.9)


def _flight(style: Any, size: float) -> Draw:
    """Return a function that draws a missile and its line."""

    def draw(axes: Axes, point: marks.Corners) -> None:
        start, end = point + _UNIT * _LEFT, point - _UNIT * _LEFT
        axes.add_collection(LineCollection([[start, end]], colors=RED, linestyles=[style], linewidths=0.8))
        axes.add_collection(PolyCollection([start + size * _UNIT * marks.MISSILE], facecolors=RED))

    return draw


_STRIPES = [_LEFT + marks.sector(3.2, 0.0, 24.0), *(_LEFT + marks.arc(r, 0.0, 24.0) for r in (1.3, 1.9, 2.6))]
_MARKS: list[tuple[Draw, str]] = [
    (_shapes(0.8 * marks.FIGHTER), "fighter, red and blue"),
    (_shapes(0.8 * marks.DETECTOR), "detector, red and blue"),
    (_crosses, "destroyed, in step"),
    (_lines([_LEFT + marks.sector(3.2, 0.0, 24.0)], width=0.6, fill=0.12), "radar, as far as it reaches"),
    (_lines(_STRIPES, width=0.6), "jammed radar"),
    (_lines([np.array([(-1.8, 0.0), (1.8, 0.0)])], style=(0, (1.0, 2.0))), "bearing of an unknown radar"),
    (_lines([marks.burst(1.2)]), "jams the whole band"),
    (_lines([_LEFT + marks.zigzag(3.6, 0.0, 0.6)]), "jams the radar at the end"),
    (_flight("-", 0.8), "long missile, flying"),
    (_flight((0, (3.0, 1.5)), 0.55), "medium missile, flying"),
    (_points("s"), "red sees it by radar"),
    (_points("D"), "red fixes it by receivers"),
]
"""Marks and their meanings, column by column."""
