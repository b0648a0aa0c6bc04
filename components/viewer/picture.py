"""One step of a battle as a printable figure. Distances are in cells of the map."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle
from numpy.typing import NDArray

from components.envs.skirmish.kernel.constants import FULL_ENERGY
from components.envs.skirmish.terrain import MAP_SIZE, VOID_HEIGHT
from components.envs.skirmish.units import UnitType
from components.viewer.recording import Battle, Frame

# Okabe and Ito's palette, which colour-blind people can tell apart. Outlines differ too, for prints in grey.
ALLY, ENEMY = "#0072b2", "#d55e00"
_HEALTH, _SHIELD, _ENERGY, _EMPTY = "#ffffff", "#8fd3ff", "#f5a8d0", "#1c1c1c"
_HEAL = "#009e73"
_INK = "#202020"
_VOID, _CLIFF, _SEEN, _DARK, _HIGH = "#a9adb3", "#8a8e95", "#fbfaf6", "#e2dfd6", 0.93
_FINE = 600  # pixels of the ground across the picture
_WIDTH = 7.2  # inches, of a page's text
_HEADER, _FOOTER = 0.34, 0.40  # inches
_AROUND = 3.0  # cells shown around all positions of units
_NARROWEST = 16.0  # least width in cells


def _regular(corners: int, turned: float = 0.0, inner: float = 1.0) -> NDArray[np.float64]:
    """Return the corners of a polygon around the origin; of a star if `inner` is below 1."""
    angles = np.pi / 2 + np.deg2rad(turned) + np.arange(corners) * 2 * np.pi / corners
    radii = np.where(np.arange(corners) % 2 == 1, inner, 1.0)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1) * radii[:, None]


def _cross(arm: float) -> NDArray[np.float64]:
    out = [(arm, 1), (arm, arm), (1, arm), (1, -arm), (arm, -arm), (arm, -1)]
    return np.array(out + [(-x, -y) for x, y in out], dtype=np.float64)


_CIRCLE = _regular(32)
_SHAPES = {
    "marine": _CIRCLE,
    "marauder": _regular(4, 45.0) * 1.2,
    "medivac": _cross(0.45),
    "stalker": _regular(4) * 1.15,
    "zealot": _regular(5) * 1.1,
    "colossus": _regular(6),
    "hydralisk": _regular(5, 180.0) * 1.1,
    "zergling": _regular(3) * 1.3,
    "baneling": _regular(16, 0.0, 0.72) * 1.1,
    "spine crawler": _regular(10, 0.0, 0.5) * 1.2,
}


def battle_figure(battle: Battle, step: int, *, dpi: float = 160.0) -> Figure:
    """Return a figure of the battle after `step` steps. The caller owns it and may change or save it.

    Allies are blue, enemies vermilion with dark outlines. Each unit has the number that actions use for it. Its shape
    shows its type, its bars health (white), shield (light blue) and energy (pink), its notch the direction it faces.
    Lines are the attacks of the step, dashed lines healing, crosses dead units. Ground that no ally sees is shaded.

    Raises:
        IndexError: the battle had no such step.
    """
    frame = battle.frames[step]
    west, east, south, north = _bounds(battle)
    height = _WIDTH * (north - south) / (east - west)
    total = _HEADER + height + _FOOTER
    figure = Figure(figsize=(_WIDTH, total), dpi=dpi, facecolor="white")
    FigureCanvasAgg(figure)  # not pyplot: its figures are global, and live until they are closed
    axes = figure.add_axes((0.0, _FOOTER / total, 1.0, height / total))
    axes.set(xlim=(west, east), ylim=(south, north), xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)
    _ground(axes, battle, frame, (west, east, south, north))
    _casualties(axes, battle, frame)
    _strikes(axes, battle, frame)
    _units(axes, battle, frame, points_per_cell=72.0 * _WIDTH / (east - west))
    _header(figure, battle, frame, 1.0 - _HEADER / 2 / total)
    _legend(figure, battle, frame, total)
    return figure


def _bounds(battle: Battle) -> tuple[float, float, float, float]:
    """Return the part of the map around all positions of units, the same for every step."""
    x = np.concatenate([frame.units["x"] for frame in battle.frames])
    y = np.concatenate([frame.units["y"] for frame in battle.frames])
    width = max(float(np.ptp(x)) + 2 * _AROUND, _NARROWEST)
    height = max(float(np.ptp(y)) + 2 * _AROUND, width / 2.0)
    width = max(width, height)
    west, south = (x.min() + x.max() - width) / 2.0, (y.min() + y.max() - height) / 2.0
    return west, west + width, south, south + height


def _ground(axes: Axes, battle: Battle, frame: Frame, bounds: tuple[float, float, float, float]) -> None:
    """Draw the ground, lit where an ally sees it."""
    terrain = battle.scenario.terrain
    west, east, south, north = bounds
    x = np.linspace(west, east, _FINE)[None, :]
    y = np.linspace(south, north, round(_FINE * (north - south) / (east - west)))[:, None]
    # Distance of each point beyond the sight range of the ally that is nearest to seeing it.
    beyond = np.full((y.size, x.size), np.inf)
    for unit, sight in zip(frame.units[: battle.n_agents], battle.sight, strict=True):
        if unit["health"] > 0.0:
            beyond = np.minimum(beyond, np.hypot(x - unit["x"], y - unit["y"]) - sight)
    heights = terrain.height()
    lowest = heights[terrain.walkable()].min()
    padded = np.pad(heights, MAP_SIZE, constant_values=VOID_HEIGHT)
    height = padded[np.floor(x).astype(int) + MAP_SIZE, np.floor(y).astype(int) + MAP_SIZE]
    image = np.where((beyond < 0.0)[..., None], to_rgb(_SEEN), to_rgb(_DARK))
    image *= np.where(height > lowest, _HIGH ** ((height - lowest) / 16.0), 1.0)[..., None]
    image[height == VOID_HEIGHT] = to_rgb(_VOID)
    for bottom, top, left, right in terrain.cliffs:
        image[(y >= bottom) & (y < top) & (x >= left) & (x < right)] = to_rgb(_CLIFF)
    axes.imshow(image, origin="lower", extent=bounds, interpolation="nearest", aspect="auto", zorder=0)
    if beyond.min() < 0.0 < beyond.max() < np.inf:
        line: dict[str, Any] = {"linewidths": 0.8, "linestyles": "--", "alpha": 0.6}
        axes.contour(x.ravel(), y.ravel(), beyond, levels=[0.0], colors=ALLY, zorder=1, **line)


def _casualties(axes: Axes, battle: Battle, frame: Frame) -> None:
    for side, colour in ((slice(None, battle.n_agents), ALLY), (slice(battle.n_agents, None), ENEMY)):
        dead = frame.units[side][frame.units[side]["health"] <= 0.0]
        axes.scatter(dead["x"], dead["y"], s=26, marker="x", linewidths=1.6, color=colour, alpha=0.5, zorder=2)


def _strikes(axes: Axes, battle: Battle, frame: Frame) -> None:
    if not frame.strikes:
        return
    where = np.stack([frame.units["x"], frame.units["y"]], axis=1)
    lines = [(where[strike.by], where[strike.to]) for strike in frame.strikes]
    ends = np.array([_edge(battle, frame, strike.by, strike.to) for strike in frame.strikes])
    colours = [_HEAL if s.heals else ALLY if s.by < battle.n_agents else ENEMY for s in frame.strikes]
    styles = [(0, (2.0, 1.5) if strike.heals else None) for strike in frame.strikes]
    # Above dead units and below living ones, whose bodies hide the ends; a dot marks where a shot arrives.
    axes.add_collection(LineCollection(lines, colors=colours, linestyles=styles, linewidths=1.1, alpha=0.75, zorder=3))
    axes.scatter(ends[:, 0], ends[:, 1], s=12, color=colours, edgecolors="white", linewidths=0.5, zorder=6)


def _edge(battle: Battle, frame: Frame, by: int, to: int) -> tuple[float, float]:
    """Return the point where the line from one unit meets the other's body."""
    units = frame.units
    dx, dy = units["x"][by] - units["x"][to], units["y"][by] - units["y"][to]
    share = min(_size(battle.types[to]) / max(float(np.hypot(dx, dy)), 1e-6), 1.0)
    return float(units["x"][to] + share * dx), float(units["y"][to] + share * dy)


def _size(kind: UnitType) -> float:
    return max(kind.radius, 0.375)


def _units(axes: Axes, battle: Battle, frame: Frame, points_per_cell: float) -> None:
    """Draw the living units, each with all its parts above the previous one; flyers above all others, translucent."""
    standing = np.flatnonzero(frame.units["health"] > 0.0)
    for k, i in enumerate(sorted(standing, key=lambda i: battle.types[i].layer == "air")):
        unit, kind, agent = frame.units[i], battle.types[i], i < battle.n_agents
        size, level = _size(kind), 4.0 + k / len(frame.units)
        centre = np.array([unit["x"], unit["y"]])
        fill, edge = (ALLY, "white") if agent else (ENEMY, _INK)
        body = {"facecolor": fill, "alpha": 0.8 if kind.layer == "air" else 1.0, "zorder": level}
        axes.add_patch(Polygon(centre + _notch(unit, size), closed=True, linewidth=0, **body))
        axes.add_patch(Polygon(centre + size * _shape(kind), closed=True, edgecolor=edge, linewidth=0.7, **body))
        for corner, width, height, colour in _bars(unit, kind, size):
            axes.add_patch(Rectangle(corner, width, height, facecolor=colour, linewidth=0, zorder=level))
        number = str(i if agent else i - battle.n_agents)
        label: dict[str, Any] = {"color": "white", "fontweight": "bold", "clip_on": True}
        label["fontsize"] = min(size * points_per_cell * 0.8, 9.0)
        axes.text(centre[0], centre[1] + 0.2 * size, number, ha="center", va="center", zorder=level, **label)


def _shape(kind: UnitType) -> NDArray[np.float64]:
    return _SHAPES.get(kind.name, _CIRCLE)


def _notch(unit: Any, size: float) -> NDArray[np.float64]:
    """Return a small triangle on the side that the unit faces."""
    ahead = np.array([unit["facing_x"], unit["facing_y"]])
    aside = np.array([-ahead[1], ahead[0]])
    return np.stack([ahead * 1.35, ahead * 0.85 + aside * 0.4, ahead * 0.85 - aside * 0.4]) * size


def _bars(unit: Any, kind: UnitType, size: float) -> list[tuple[tuple[float, float], float, float, str]]:
    """Return (corner, width, height, colour) of the bars in the lower half of one unit, from the lowest."""
    rows = [(unit["health"] / kind.health, _HEALTH)]
    if kind.shield > 0.0:
        rows.append((unit["shield"] / kind.shield, _SHIELD))
    if kind.healing > 0.0:
        rows.append((unit["energy"] / FULL_ENERGY, _ENERGY))
    width, height, frame = 1.3 * size, 0.2 * size, 0.04 * size
    bars: list[tuple[tuple[float, float], float, float, str]] = []
    for row, (share, colour) in enumerate(rows):
        x, y = float(unit["x"]) - width / 2, float(unit["y"]) + size * (0.22 * row - 0.62)
        bars.append(((x - frame, y - frame), width + 2 * frame, height + 2 * frame, _EMPTY))
        bars.append(((x, y), width * min(float(share), 1.0), height, colour))
    return bars


def _header(figure: Figure, battle: Battle, frame: Frame, y: float) -> None:
    seconds = frame.step * battle.seconds_per_step
    figure.text(0.012, y, battle.scenario.name, fontsize=10, fontweight="bold", color=_INK, va="center")
    middle = f"step {frame.step} of at most {battle.limit}  ·  {seconds:.1f} s"
    figure.text(0.5, y, middle, fontsize=9, color=_INK, ha="center", va="center")
    end = f"{frame.outcome}  ·  " if frame.outcome else ""
    reward = f"{end}reward so far {frame.reward:.2f}"
    figure.text(0.988, y, reward, fontsize=9, color=_INK, ha="right", va="center")


def _legend(figure: Figure, battle: Battle, frame: Frame, total: float) -> None:
    """Draw each side's types, with the numbers of living units."""
    axes = figure.add_axes((0.0, 0.0, 1.0, _FOOTER / total))
    axes.set(xlim=(0.0, _WIDTH), ylim=(0.0, _FOOTER))
    axes.set_axis_off()
    sides = (("allies", range(battle.n_agents)), ("enemies", range(battle.n_agents, len(battle.types))))
    for (side, members), colour, edge, x in zip(sides, (ALLY, ENEMY), ("none", _INK), (0.09, _WIDTH / 2), strict=True):
        axes.text(x, _FOOTER / 2, side, fontsize=7.5, color=_INK, va="center")
        x += 0.075 * len(side) + 0.1
        for kind, text in _counted(battle, frame, members):
            body = np.array([x, _FOOTER / 2]) + 0.06 * _shape(kind)
            axes.add_patch(Polygon(body, closed=True, facecolor=colour, edgecolor=edge, linewidth=0.6))
            axes.text(x + 0.11, _FOOTER / 2, text, fontsize=7.5, color=_INK, va="center")
            x += 0.27 + 0.058 * len(text)


def _counted(battle: Battle, frame: Frame, members: Sequence[int]) -> list[tuple[UnitType, str]]:
    """Return every type of a side, with its name and the numbers of living and of all units."""
    counts = Counter(battle.types[i] for i in members)
    standing = Counter(battle.types[i] for i in members if frame.units["health"][i] > 0.0)
    return [(kind, f"{kind.name} {standing[kind]}/{n}") for kind, n in counts.items()]
