"""Scenarios of one's own, in a TOML file of a few lines.

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
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from components.envs.skirmish.scenarios import SCENARIOS, Scenario, make_scenario
from components.envs.skirmish.tables import kinds_table
from components.envs.skirmish.terrain import MAP_SIZE, TERRAINS, Terrain, carved

MOST_UNITS = 128
"""Of both sides together: what happens in a tick grows with the square of it."""

Count = Annotated[int, Field(ge=1, le=MOST_UNITS)]
Cells = Annotated[float, Field(ge=0.0, le=MAP_SIZE)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=False)


class GroupTable(_Table):
    """Some units of a side, and the point that they start round."""

    units: Annotated[dict[str, Count], Field(min_length=1)]
    at: tuple[Cells, Cells]


class DrawTable(_Table):
    """Armies that are drawn."""

    allies: Count
    enemies: Count
    weights: Annotated[dict[str, Annotated[float, Field(gt=0.0)]], Field(min_length=1)]
    never_alone: tuple[str, ...] = ()
    surrounded: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5
    types: tuple[str, ...] = ()
    """The order of the one-hot columns; by name, if empty."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for name in self.never_alone:
            if name not in self.weights:
                raise ValueError(f"never_alone names {name!r}, which has no weight")
        if set(self.weights) <= set(self.never_alone):
            raise ValueError("never_alone names all types: no army could be drawn")
        if self.types and sorted(self.types) != sorted(self.weights):
            raise ValueError(f"types must name each of {', '.join(self.weights)} once, and is {list(self.types)}")
        return self


class ScenarioFile(_Table):
    """The contents of a scenario file."""

    name: str = ""
    limit: Annotated[int, Field(ge=1, le=10_000)]
    terrain: str | list[tuple[int, int, int, int]] = "strip"
    winding: bool = False
    """Units look for ways round corners, as they must where rectangles make up a maze."""
    allies: list[GroupTable] = []
    enemies: list[GroupTable] = []
    draw: DrawTable | None = None
    march: tuple[Cells, Cells] | None = None
    """Where the enemies march to; else to the first group of allies."""
    hunts: bool = False
    """Whether the enemies hunt the nearest ally at any distance."""
    unit_ranges: bool = False
    """Agents see and shoot as far as their units can, instead of 9 and 6 cells."""

    @model_validator(mode="after")
    def _has_two_armies(self) -> Self:
        if self.draw is not None and (self.allies or self.enemies or self.march is not None or self.hunts):
            raise ValueError("[draw] takes the place of [[allies]], [[enemies]], march and hunts")
        if self.draw is None and not (self.allies and self.enemies):
            raise ValueError("a battle needs both [[allies]] and [[enemies]], or [draw]")
        return self

    def ground(self) -> Terrain:
        """Return the terrain."""
        if isinstance(self.terrain, str):
            try:
                return TERRAINS[self.terrain]
            except KeyError:
                raise ValueError(f"there is no terrain {self.terrain!r}; there are {', '.join(TERRAINS)}") from None
        if not self.terrain:
            raise ValueError("terrain has no rectangle")
        for south, north, west, east in self.terrain:
            if not (0 <= south < north <= MAP_SIZE and 0 <= west < east <= MAP_SIZE):
                raise ValueError(
                    f"terrain [{south}, {north}, {west}, {east}] is no rectangle [south, north, west, east] within "
                    f"{MAP_SIZE} x {MAP_SIZE} cells"
                )
        return carved(self.terrain, winding=self.winding)

    def scenario(self, name: str) -> Scenario:
        """Return the scenario; `name` is its name if the file gives none."""
        scenario = make_scenario(
            self.name or name,
            map_type="own",
            terrain=self.ground(),
            march=() if self.march is None else (self.march,),
            **self.model_dump(exclude={"name", "terrain", "winding", "march"}),
        )
        sides = {"allies": scenario.allies, "enemies": scenario.enemies}
        if scenario.draw is not None:
            sides = {"draw": scenario.draw.types}
        for side, units in sides.items():
            races = sorted({unit.race for unit in units})
            if len(races) > 1:
                # Whether there is a column for shields is a matter of race, in SMAC and so here.
                raise ValueError(f"{side} are of several races ({', '.join(races)}), must be of one")
        total = len(scenario.allies) + len(scenario.enemies)
        if total > MOST_UNITS:
            raise ValueError(f"{total} units are too many: {MOST_UNITS} at most")
        return scenario


def load_scenario(path: Path) -> Scenario:
    """Read a scenario file.

    Raises:
        ValueError: it can't be read, or something in it is wrong; the message says what, where, and what may be.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"scenario file {path} can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"scenario file {path} is not TOML: {error}") from None
    try:
        scenario = ScenarioFile.model_validate(table).scenario(path.stem)
        kinds_table(scenario, "liberty")  # looks whether there is room
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"scenario file {path}: {where + ': ' if where else ''}{said}") from None
    except ValueError as error:
        raise ValueError(f"scenario file {path}: {error}") from None
    return scenario


def scenario_named(name: str) -> Scenario:
    """The scenario that SMAC or SMACv2 calls so, or that the file of this name, which ends in `.toml`, describes.

    Raises:
        ValueError: there is none of this name; the message lists those there are. Or the file is wrong.
    """
    if name.endswith(".toml"):
        return load_scenario(Path(name))
    try:
        return SCENARIOS[name]
    except KeyError:
        there_are = ", ".join(SCENARIOS)
        raise ValueError(f"scenario {name!r} is unknown; there are {there_are}, and files that end in .toml") from None
