"""A battle in the terminal: the map in letters, and every unit's health below it."""

from collections.abc import Iterator

import numpy as np
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.text import Text

from components.envs.skirmish.terrain import MAP_SIZE
from components.viewer.recording import Battle, Frame

ALLY, ENEMY = "bold blue", "bold red"
_BAR = 6  # characters
_DEAD = "\u00d7 "
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def show(battle: Battle, frame: Frame) -> RenderableType:
    """Return one step as text. A cell of the map is two characters: the letter of a unit's type and its number.

    Of several units in a cell, the first living one is shown. All units are listed with their health, shield and
    targets.
    """
    seconds = frame.step * battle.seconds_per_step
    parts = (battle.scenario.name, f"step {frame.step}/{battle.limit}", f"{seconds:.1f} s")
    title = Text("  ".join([*parts, f"reward so far {frame.reward:.2f}", frame.outcome]).rstrip(), style="bold")
    sides = [Columns(list(_side(battle, frame, agents)), padding=(0, 2)) for agents in (True, False)]
    return Group(title, *_map(battle, frame), *sides)


def _map(battle: Battle, frame: Frame) -> Iterator[Text]:
    walkable = battle.scenario.terrain.walkable()
    cells: dict[tuple[int, int], tuple[str, str]] = {}
    for i, unit in enumerate(frame.units):
        alive, agent = bool(unit["health"] > 0.0), i < battle.n_agents
        cell = (int(unit["x"]), int(unit["y"]))
        style = (ALLY if agent else ENEMY) if alive else ("dim blue" if agent else "dim red")
        word = _name(battle, i)[:2] if alive else _DEAD
        if cell not in cells or (alive and cells[cell][1].startswith("dim")):
            cells[cell] = (word, style)
    rows = np.flatnonzero(walkable.any(axis=0))
    lowest = min([int(rows.min()), *(y for _, y in cells)])
    highest = max([int(rows.max()), *(y for _, y in cells)])
    for y in range(highest, lowest - 1, -1):
        line = Text(no_wrap=True)
        for x in range(MAP_SIZE):
            word, style = cells.get((x, y), ("· " if walkable[x, y] else "▒▒", "dim"))
            line.append(f"{word:2}", style)
        yield line


def _side(battle: Battle, frame: Frame, agents: bool) -> Iterator[Text]:
    for i, (unit, kind) in enumerate(zip(frame.units, battle.types, strict=True)):
        if (i < battle.n_agents) != agents:
            continue
        name = Text(f"{_name(battle, i):<3} ", ALLY if agents else ENEMY)
        if unit["health"] <= 0.0:
            yield name.append(f"{'dead':<{_BAR + 4}}", "dim")
            continue
        name.append(_bar(unit["health"] / kind.health), "green").append(f"{unit['health']:4.0f}")
        if kind.shield > 0.0:
            name.append(f"+{unit['shield']:.0f}", "cyan")
        for strike in frame.strikes:
            if strike.by == i:
                name.append(f" {'♥' if strike.heals else '→'}{_name(battle, strike.to)}")
        yield name


def _name(battle: Battle, i: int) -> str:
    """Return a type's letter (lower case for allies, upper case for enemies, so colour is not needed) and a number."""
    letter = battle.types[i].name[0]
    return f"{letter}{i}" if i < battle.n_agents else f"{letter.upper()}{i - battle.n_agents}"


def _bar(share: float) -> str:
    eighths = max(round(min(float(share), 1.0) * _BAR * 8), 1)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(_BAR)
