"""One step of an air combat as a printable figure. Distances are in units of the map; y points down."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from components.envs.air_combat.kernel.constants import PASSIVE
from components.envs.air_combat.scenarios import Radar
from components.viewer.air_combat import legend, marks
from components.viewer.air_combat.jamming import Jammed, jammed_by, share_left
from components.viewer.air_combat.legend import BLUE, INK, RED, SIDES
from components.viewer.air_combat.recording import AirFrame, AirRound

WIDTH = 7.2  # inches, of a page's text
MARGIN = 0.02  # inches, on the left and the right
_AROUND = 0.025  # of the map's longer side, shown around it
_GRID, _BORDER = "#ebebeb", "#b0b0b0"
_SIZE = 11.5  # of a unit on a map of 1000 x 1000
_MOST_BEARINGS = 24
_HALO = [withStroke(linewidth=1.8, foreground="white")]


def round_figure(recorded: AirRound, step: int, *, dpi: float = 160.0) -> Figure:
    """Return a figure of the round after `step` steps. The caller owns it and may change or save it.

    The legend below the map explains the marks. Red is filled, blue is hollow, so that no colour is needed.

    Raises:
        IndexError: the round had no such step.
    """
    frame = recorded.frames[step]
    width, height = recorded.scenario.size
    around = _AROUND * max(width, height)  # units at the border are fully visible
    inches = (WIDTH - 2 * MARGIN) * (height + 2 * around) / (width + 2 * around)
    total = legend.HEADER + inches + legend.FOOTER
    figure = Figure(figsize=(WIDTH, total), dpi=dpi, facecolor="white")
    FigureCanvasAgg(figure)  # not pyplot: its figures are global, and live until they are closed
    axes = figure.add_axes((MARGIN / WIDTH, legend.FOOTER / total, 1.0 - 2 * MARGIN / WIDTH, inches / total))
    axes.set(xlim=(-around, width + around), ylim=(height + around, -around), xticks=[], yticks=[])
    axes.set_axis_off()
    _ground(axes, width, height)
    drawing = _Drawing(axes, recorded, frame)
    drawing.radars()
    drawing.destroyed()
    drawing.bearings()
    drawing.known()
    drawing.jammers()
    drawing.missiles()
    drawing.units()
    legend.header(figure, recorded, frame, total)
    legend.footer(figure, total)
    return figure


def _ground(axes: Axes, width: float, height: float) -> None:
    """Draw a line at every 100 units of the map, and the border."""
    lines: list[Any] = [[(x, 0.0), (x, height)] for x in np.arange(100.0, width, 100.0)]
    lines += [[(0.0, y), (width, y)] for y in np.arange(100.0, height, 100.0)]
    axes.add_collection(LineCollection(lines, colors=_GRID, linewidths=0.5, zorder=0))
    border = [[(0.0, 0.0), (width, 0.0), (width, height), (0.0, height), (0.0, 0.0)]]
    axes.add_collection(LineCollection(border, colors=_BORDER, linewidths=0.7, zorder=0))


class _Drawing:
    """Draws on axes of the map."""

    def __init__(self, axes: Axes, recorded: AirRound, frame: AirFrame) -> None:
        self._axes, self._recorded, self._frame = axes, recorded, frame
        self._kinds = recorded.kinds
        self._map = Rectangle((0.0, 0.0), *recorded.scenario.size, transform=axes.transData)
        self._size = _SIZE * max(recorded.scenario.size) / 1000.0
        self._where = np.stack([frame.units["x"], frame.units["y"]], axis=1)
        agents = recorded.n_agents
        self._members = (range(agents), range(agents, len(frame.units)))

    def _sides(self) -> Iterator[tuple[str, str, list[int]]]:
        """Yield each side's colour, the other side's colour, and its living units."""
        alive = self._frame.units["alive"]
        for (colour, other), members in zip(((RED, BLUE), (BLUE, RED)), self._members, strict=True):
            yield colour, other, [i for i in members if alive[i]]

    def radars(self) -> None:
        """Draw radar sectors with their range in this step; blue ones with dashed outlines, jammed ones striped."""
        for (colour, _, living), style in zip(self._sides(), ("-", (0, (4.0, 2.0))), strict=True):
            plain: list[marks.Corners] = []
            jammed: list[marks.Corners] = []
            stripes: list[marks.Corners] = []
            for i in living:
                unit = self._frame.units[i]
                if unit["reach"] <= 0.0:
                    continue
                half, left = self._radar(i).sector, share_left(unit, self._kinds[i])
                outline = self._where[i] + marks.sector(unit["reach"], unit["course"], half)
                (plain if left == 1.0 else jammed).append(outline)
                if left < 1.0:
                    stripes += [
                        self._where[i] + marks.arc(share * unit["reach"], unit["course"], half)
                        for share in (0.4, 0.6, 0.8)
                    ]
            line: dict[str, Any] = {"colors": colour, "linestyles": [style]}
            for drawn in (
                PolyCollection(plain, facecolors=colour, alpha=0.07, linewidths=0.0),
                LineCollection(plain, linewidths=0.45, alpha=0.45, **line),
                LineCollection(jammed, linewidths=0.7, alpha=0.7, **line),
                LineCollection(stripes, colors=colour, linewidths=0.45, alpha=0.6),
            ):
                self._axes.add_collection(drawn)
                drawn.set(zorder=1, clip_path=self._map)

    def _radar(self, i: int) -> Radar:
        return self._recorded.scenario.radars[self._recorded.scenario.units[i].radar]

    def destroyed(self) -> None:
        """Draw a cross for each destroyed unit, with the step; bold crosses for the last ten steps."""
        for i, step in self._recorded.destroyed(self._frame.step).items():
            colour, fill = (RED, RED) if i < self._recorded.n_agents else (BLUE, "white")
            fresh = self._frame.step - step < 10
            point = self._where[i]
            cross: dict[str, Any] = {"s": 60 if fresh else 34, "linewidths": 0.9, "alpha": 1.0 if fresh else 0.55}
            self._axes.scatter(point[0], point[1], marker="X", color=fill, edgecolors=colour, zorder=2, **cross)
            self._label(point + np.array([0.0, 1.6 * self._size]), str(step), INK, alpha=1.0 if fresh else 0.6)

    def bearings(self) -> None:
        """Draw the bearings of radars that receivers hear but their side does not know; none if there are too many."""
        units, frame = self._frame.units, self._frame
        heard = frame.hears & units["alive"][:, None] & (units["alive"] & ~units["known"])[None, :]
        if heard.sum() > _MOST_BEARINGS:
            return
        reach = 0.4 * self._recorded.scenario.receiver.range
        for i, j in np.argwhere(heard):
            ray = [self._where[i], self._where[i] + reach * frame.bearing[i, j]]
            colour = SIDES[int(i >= self._recorded.n_agents)]
            line = LineCollection([ray], colors=colour, linestyles=[(0, (1.0, 2.0))], linewidths=0.9, zorder=2)
            self._axes.add_collection(line)

    def known(self) -> None:
        """Draw squares around units that a radar of the other side sees, diamonds where its receivers fix them."""
        for _, other, living in self._sides():
            units = self._frame.units[living]
            seen = units[units["known"] & (units["source"] != PASSIVE)]
            mark: dict[str, Any] = {"facecolors": "none", "edgecolors": other, "linewidths": 0.8, "zorder": 3}
            self._axes.scatter(seen["x"], seen["y"], s=95, marker="s", **mark)
            fixed = units[units["known"] & (units["source"] == PASSIVE)]
            self._axes.scatter(fixed["fix_x"], fixed["fix_y"], s=80, marker="D", **mark)
            errors = [[(u["x"], u["y"]), (u["fix_x"], u["fix_y"])] for u in fixed]
            self._axes.add_collection(LineCollection(errors, colors=other, linewidths=0.6, zorder=3))

    def jammers(self) -> None:
        """Draw a zigzag ring around a jammer of the whole band, and zigzags from an aimed one to its radars."""
        bursts: list[marks.Corners] = []
        colours: list[str] = []
        for jammed in jammed_by(self._frame.units, self._kinds, self._recorded):
            colour = SIDES[int(jammed.by >= self._recorded.n_agents)]
            for corners in self._waves(jammed):
                bursts.append(self._where[jammed.by] + corners)
                colours.append(colour)
        self._axes.add_collection(LineCollection(bursts, colors=colours, linewidths=0.7, zorder=3))

    def _waves(self, jammed: Jammed) -> list[marks.Corners]:
        if jammed.barrage:
            return [marks.burst(2.1 * self._size)]
        waves = []
        for j in jammed.radars:
            dx, dy = self._where[j] - self._where[jammed.by]
            waves.append(marks.zigzag(float(np.hypot(dx, dy)), float(np.rad2deg(np.arctan2(dy, dx)))))
        course = float(self._frame.units["course"][jammed.by])
        return waves or [marks.zigzag(3.5 * self._size, course)]  # no radar in range uses the jammed point

    def missiles(self) -> None:
        """Draw missiles in flight, each with a line to its target's last known position; dashed for medium ones."""
        flying = self._frame.missiles
        for k, colour in enumerate(SIDES):
            mine = flying[(flying["attacker"] >= self._recorded.n_agents) == bool(k)]
            for medium, style in ((False, "-"), (True, (0, (3.0, 1.5)))):
                some = mine[mine["medium"] == medium]
                lines, bodies = [], []
                for missile in some:
                    target = self._frame.units[missile["target"]]
                    here, there = np.array([missile["x"], missile["y"]]), np.array([target["last_x"], target["last_y"]])
                    lines.append([here, there])
                    ahead = float(np.rad2deg(np.arctan2(*(there - here)[::-1])))
                    bodies.append(here + (0.45 if medium else 0.65) * self._size * marks.turned(marks.MISSILE, ahead))
                line: dict[str, Any] = {"linestyles": [style], "linewidths": 0.6, "alpha": 0.6}
                self._axes.add_collection(LineCollection(lines, colors=colour, zorder=4, **line))
                fill = colour if k == 0 else "white"
                body: dict[str, Any] = {"facecolors": fill, "edgecolors": colour, "linewidths": 0.7}
                self._axes.add_collection(PolyCollection(bodies, zorder=6, **body))

    def units(self) -> None:
        """Draw each unit as a dart or a disc with a nose along its course, with its number and its sub-task, if any."""
        for colour, _, living in self._sides():
            for i in living:
                unit = self._frame.units[i]
                shape = marks.FIGHTER if self._kinds[i]["fighter"] else marks.DETECTOR
                corners = self._where[i] + self._size * marks.turned(shape, unit["course"])
                body: dict[str, Any] = {"facecolors": colour if colour == RED else "white", "edgecolors": colour}
                self._axes.add_collection(PolyCollection([corners], linewidths=1.0, zorder=5, **body))
                away = 3.0 if unit["jammer"] > 0 else 2.1  # beyond the ring
                behind = self._where[i] - away * self._size * marks.towards(unit["course"])
                number = i if i < self._recorded.n_agents else i - self._recorded.n_agents
                words = [str(number), *self._frame.subtasks[i : i + 1]]
                self._label(behind, " ".join(words), colour)

    def _label(self, point: NDArray[np.float64], words: str, colour: str, alpha: float = 1.0) -> None:
        """Write a few small letters on a white halo, cut off at the border of the axes."""
        style: dict[str, Any] = {"color": colour, "alpha": alpha, "fontsize": 6.0, "ha": "center", "va": "center"}
        self._axes.text(point[0], point[1], words, path_effects=_HALO, clip_on=True, zorder=7, **style)
