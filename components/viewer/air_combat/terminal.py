"""A step of an air combat in the terminal: the map in characters, and beside it a list of all units and their state."""

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from components.envs.air_combat.kernel.constants import PASSIVE
from components.viewer.air_combat import marks
from components.viewer.air_combat.jamming import jammed_by, share_left
from components.viewer.air_combat.recording import AirFrame, AirRound

RED, BLUE = "bold red", "bold blue"
_ROWS = 26
_DESTROYED = "\u00d7"
_ARROWS = "→↘↓↙←↖↑↗"


def show(recorded: AirRound, frame: AirFrame) -> RenderableType:
    """Return one step as text. A unit is an arrow along its course, its letter (upper case for blue) and its number.

    Dots mark cells that a radar of red sees, colons those of blue, plus signs those of both. `*` is a missile; a cross
    marks a destroyed unit. The list has long and medium missiles, the range of the radar (with `!` if it is jammed),
    the action of the jammer, `seen` or `fixed` if the other side knows the unit, and its sub-task.
    """
    parts = (recorded.scenario.name, f"step {frame.step}/{recorded.scenario.rules.max_steps}")
    title = Text("  ".join([*parts, f"reward so far {frame.reward:.2f}", frame.outcome]).rstrip(), style="bold")
    beside = Table.grid(padding=(0, 2))
    units, agents = list(_units(recorded, frame)), recorded.n_agents
    lists = [units] if len(units) <= _ROWS else [units[:agents], units[agents:]]
    beside.add_row(Group(*_map(recorded, frame)), *(Group(*each) for each in lists))
    return Group(title, beside)


class _Canvas:
    """Characters with styles. Each represents a part of the map that is about twice as high as wide."""

    def __init__(self, width: float, height: float) -> None:
        self._across, self._down = width, height
        self._columns = min(max(round(2 * _ROWS * width / height), 8), 4 * _ROWS)
        self._cells = [[(" ", "")] * self._columns for _ in range(_ROWS)]

    def cell(self, x: float, y: float) -> tuple[int, int]:
        """Return row and column of a point of the map."""
        row = min(int(y / self._down * _ROWS), _ROWS - 1)
        return row, min(int(x / self._across * self._columns), self._columns - 1)

    def centres(self) -> tuple[np.ndarray, np.ndarray]:
        """Return x (1, columns) and y (rows, 1) of the centres of all cells."""
        x = (np.arange(self._columns) + 0.5) * self._across / self._columns
        return x[None, :], ((np.arange(_ROWS) + 0.5) * self._down / _ROWS)[:, None]

    def write(self, row: int, column: int, word: str, style: str) -> None:
        """Write a word that begins in a cell, or further left if it does not fit."""
        first = max(min(column, self._columns - len(word)), 0)
        for k, letter in enumerate(word):
            self._cells[row][first + k] = (letter, style)

    def lines(self) -> Iterator[Text]:
        """Yield the rows, with a border around them."""
        yield Text("┌" + "─" * self._columns + "┐", "dim")
        for row in self._cells:
            line = Text(no_wrap=True).append("│", "dim")
            for style, cells in groupby(row, key=itemgetter(1)):
                line.append("".join(letter for letter, _ in cells), style)
            yield line.append("│", "dim")
        yield Text("└" + "─" * self._columns + "┘", "dim")


def _map(recorded: AirRound, frame: AirFrame) -> Iterator[Text]:
    canvas = _Canvas(*recorded.scenario.size)
    units, agents = frame.units, recorded.n_agents
    covered = [_covered(recorded, frame, canvas, members) for members in (range(agents), range(agents, len(units)))]
    for row, column in np.argwhere(covered[0] | covered[1]):
        word = "+" if covered[0][row, column] and covered[1][row, column] else "." if covered[0][row, column] else ":"
        canvas.write(row, column, word, "dim")
    for i in np.flatnonzero(~units["alive"]):
        canvas.write(*canvas.cell(units["x"][i], units["y"][i]), _DESTROYED, "dim red" if i < agents else "dim blue")
    for missile in frame.missiles:
        canvas.write(*canvas.cell(missile["x"], missile["y"]), "*", RED if missile["attacker"] < agents else BLUE)
    for i in np.flatnonzero(units["alive"]):
        arrow = _ARROWS[round(units["course"][i] / 45.0) % 8]
        word, style = arrow + recorded.name(int(i)), RED if i < agents else BLUE
        canvas.write(*canvas.cell(units["x"][i], units["y"][i]), word, style)
    return canvas.lines()


def _covered(recorded: AirRound, frame: AirFrame, canvas: _Canvas, members: range) -> np.ndarray:
    """Return the cells (rows, columns) whose centres the radars of these units see."""
    x, y = canvas.centres()
    covered = np.zeros(np.broadcast_shapes(x.shape, y.shape), np.bool_)
    for i in members:
        unit, half = frame.units[i], recorded.scenario.radars[recorded.scenario.units[i].radar].sector
        dx, dy = x - unit["x"], y - unit["y"]
        ahead = marks.towards(unit["course"])
        distance = np.hypot(dx, dy)
        inside = ahead[0] * dx + ahead[1] * dy >= np.cos(np.deg2rad(half)) * distance - 1e-9
        covered |= unit["alive"] & inside & (distance <= unit["reach"])
    return covered


def _units(recorded: AirRound, frame: AirFrame) -> Iterator[Text]:
    jammers = {jammed.by: jammed for jammed in jammed_by(frame.units, recorded.kinds, recorded)}
    destroyed = recorded.destroyed(frame.step)
    for i, (unit, kind) in enumerate(zip(frame.units, recorded.kinds, strict=True)):
        line = Text(no_wrap=True).append(f"{recorded.name(i):<4}", RED if i < recorded.n_agents else BLUE)
        if i in destroyed:
            yield line.append(f"destroyed in step {destroyed[i]}", "dim")
            continue
        line.append(f"{unit['long_left']}+{unit['medium_left']} ")
        radar = f"{unit['reach']:.0f}{'!' if share_left(unit, kind) < 1.0 else ''}" if unit["radar"] > 0 else "off"
        line.append(f" radar {radar:<4}", "cyan")
        words = [_jams(recorded, jammers[i].barrage, jammers[i].radars)] if i in jammers else []
        if unit["known"]:
            words.append("fixed" if unit["source"] == PASSIVE else "seen")
        words += frame.subtasks[i : i + 1]
        yield line.append(f" {' '.join(words)}".rstrip())


def _jams(recorded: AirRound, barrage: bool, radars: tuple[int, ...]) -> str:
    if barrage:
        return f"jams {len(radars)}"
    return f"aims at {','.join(recorded.name(j) for j in radars) or 'none'}"
