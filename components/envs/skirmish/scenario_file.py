"""User-defined scenarios, in a TOML file of a few lines.

    name = "rescue"                 # the file's name, if left out
    limit = 120                     # steps
    terrain = "strip"               # of a SMAC map, or rectangles [south, north, west, east] of cells

    [[allies]]                      # a group whose units start next to each other
    units = { marine = 5, medivac = 1 }
    at = [9, 16]

    [[enemies]]
    units = { zealot = 3 }
    at = [23, 16]

Or armies drawn for each episode, instead of groups:

    [draw]
    allies = 5
    enemies = 6
    weights = { marine = 0.45, marauder = 0.45, medivac = 0.1 }
    never_alone = ["medivac"]
    surrounded = 0.5
    types = ["marine", "marauder", "medivac"]  # the order of the one-hot columns; by name, if left out
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .scenarios import SCENARIOS, Scenario, make_scenario
from .tables import kinds_table
from .terrain import MAP_SIZE, TERRAINS, Terrain, carved
from .toml_checks import REQUIRED, by_name, list_of, number, of_type, table_of

MOST_UNITS = 128
"""The greatest number of units on both sides together: the work per tick grows with its square."""

_COUNT = number(1, MOST_UNITS, whole=True)
_POINT = list_of(number(0.0, MAP_SIZE), 2)
_TEXT = of_type(str, "a text")
_FLAG = of_type(bool, "true or false")
_GROUPS = list_of(table_of(units=(by_name(_COUNT), REQUIRED), at=(_POINT, REQUIRED)))
_RECTANGLES = list_of(list_of(of_type(int, "an integer"), 4))


def _ground(value: Any, where: str) -> Any:
    return value if isinstance(value, str) else _RECTANGLES(value, where)


_DRAW = table_of(
    allies=(_COUNT, REQUIRED),
    enemies=(_COUNT, REQUIRED),
    weights=(by_name(number(0.0, above=True)), REQUIRED),
    never_alone=(list_of(_TEXT), ()),
    surrounded=(number(0.0, 1.0), 0.5),
    types=(list_of(_TEXT), ()),  # the order of the one-hot columns; by name, if empty
)
_FILE = table_of(
    name=(_TEXT, ""),
    limit=(number(1, 10_000, whole=True), REQUIRED),
    terrain=(_ground, "strip"),
    winding=(_FLAG, False),  # units find paths around corners; needed if rectangles form a maze
    allies=(_GROUPS, ()),
    enemies=(_GROUPS, ()),
    draw=(_DRAW, None),
    march=(_POINT, None),  # where the enemies march to; by default, the first group of allies
    hunts=(_FLAG, False),  # whether the enemies hunt the nearest ally at any distance
    attack_one=(_FLAG, False),  # whether the enemies are ordered to attack one ally, until it is dead
    unit_ranges=(_FLAG, False),  # agents see and shoot as far as their units can, instead of 9 and 6 cells
)


def _check_armies(table: Mapping[str, Any]) -> None:
    """Raise `ValueError` unless there are two armies, in groups or drawn."""
    draw = table["draw"]
    if draw is None:
        if not (table["allies"] and table["enemies"]):
            raise ValueError("a battle needs both [[allies]] and [[enemies]], or [draw]")
        return
    given = table["allies"] or table["enemies"] or table["march"] is not None or table["hunts"] or table["attack_one"]
    if given:
        raise ValueError("[draw] takes the place of [[allies]], [[enemies]], march, hunts and attack_one")
    for name in draw["never_alone"]:
        if name not in draw["weights"]:
            raise ValueError(f"draw: never_alone names {name!r}, which has no weight")
    if set(draw["weights"]) <= set(draw["never_alone"]):
        raise ValueError("draw: never_alone names all types: no army could be drawn")
    if draw["types"] and sorted(draw["types"]) != sorted(draw["weights"]):
        raise ValueError(f"draw: types must name each of {', '.join(draw['weights'])} once, and is {draw['types']}")


def _terrain_of(table: Mapping[str, Any]) -> Terrain:
    asked = table["terrain"]
    if isinstance(asked, str):
        try:
            return TERRAINS[asked]
        except KeyError:
            raise ValueError(f"there is no terrain {asked!r}; there are {', '.join(TERRAINS)}") from None
    if not asked:
        raise ValueError("terrain has no rectangle")
    for south, north, west, east in asked:
        if not (0 <= south < north <= MAP_SIZE and 0 <= west < east <= MAP_SIZE):
            raise ValueError(
                f"terrain [{south}, {north}, {west}, {east}] is no rectangle [south, north, west, east] within "
                f"{MAP_SIZE} x {MAP_SIZE} cells"
            )
    return carved([(south, north, west, east) for south, north, west, east in asked], winding=table["winding"])


def scenario_of_table(table: Mapping[str, Any], name: str) -> Scenario:
    """Return the scenario that the contents of a file describe; `name` is its name if they give none.

    Raises:
        ValueError: a value is invalid; the message says which one, and what is allowed.
    """
    checked = _FILE(table, "")
    _check_armies(checked)
    march = checked.pop("march")
    terrain = _terrain_of(checked)
    title = checked.pop("name") or name
    del checked["terrain"], checked["winding"]
    scenario = make_scenario(title, map_type="own", terrain=terrain, march=() if march is None else (march,), **checked)
    sides = {"allies": scenario.allies, "enemies": scenario.enemies}
    if scenario.draw is not None:
        sides = {"draw": scenario.draw.types}
    for side, units in sides.items():
        races = sorted({unit.race for unit in units})
        if len(races) > 1:
            # The race decides whether there is a column for shields, in SMAC and therefore here.
            raise ValueError(f"{side} are of several races ({', '.join(races)}), must be of one")
    total = len(scenario.allies) + len(scenario.enemies)
    if total > MOST_UNITS:
        raise ValueError(f"{total} units are too many: {MOST_UNITS} at most")
    return scenario


def load_scenario(path: Path) -> Scenario:
    """Read a scenario file.

    Raises:
        ValueError: the file can't be read or a value is invalid; the message says which one, and what is allowed.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"scenario file {path} can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"scenario file {path} is not TOML: {error}") from None
    try:
        scenario = scenario_of_table(table, path.stem)
        kinds_table(scenario, "liberty")  # raises if a group has no room
    except ValueError as error:
        raise ValueError(f"scenario file {path}: {error}") from None
    return scenario


def scenario_named(name: str) -> Scenario:
    """Return the scenario of this name in SMAC or SMACv2, or that of the file of this name if it ends in `.toml`.

    Raises:
        ValueError: the name is unknown, and the message lists the known ones; or the file is invalid.
    """
    if name.endswith(".toml"):
        return load_scenario(Path(name))
    try:
        return SCENARIOS[name]
    except KeyError:
        there_are = ", ".join(SCENARIOS)
        raise ValueError(f"scenario {name!r} is unknown; there are {there_are}, and files that end in .toml") from None
