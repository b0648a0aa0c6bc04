"""Scenarios: armies, starting places, terrain, step limit. `scenarios.toml` holds those of SMAC and of SMACv2."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .kernel.constants import FIRST_TARGET
from .terrain import TERRAINS, Terrain
from .units import UnitType, unit_named

Point = tuple[float, float]

Group = tuple[Point, int]
"""A starting point, and the number of a side's next units that start there, next to each other."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A number that is drawn uniformly between two bounds, for each agent and episode."""

    low: float
    high: float
    observe: bool = True
    """Whether agents see each other's numbers."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Armies and starting places drawn for each episode, as in SMACv2 (Ellis et al. 2023)."""

    types: tuple[UnitType, ...]
    """Unit types in the order of the one-hot columns. Agents are numbered by the names of their types."""
    weights: tuple[float, ...]
    """The probability of each type; they sum to 1."""
    never_alone: tuple[UnitType, ...]
    """Types that may not form an army alone."""
    surrounded: float
    """The share of episodes in which enemies surround the allies; in the others, the sides mirror each other.

    SMACv2's `p` is the share of those others.
    """
    observe: bool = True
    """Whether agents see each other's types."""
    attack: Spread | None = None
    """Bounds of the probability that an order to attack or to heal is carried out; by default, it always is."""
    health: Spread | None = None
    """Bounds of the share of its health at which an agent dies; by default, it dies at zero."""
    mask_probability: float | None = None
    """The probability that an agent sees an enemy's health and type, drawn for each pair; by default, it is 1."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One battle. Units are in the order in which observations list them."""

    name: str
    allies: tuple[UnitType, ...]
    enemies: tuple[UnitType, ...]
    limit: int
    """Steps after which the episode is truncated without a winner."""
    map_type: str
    """SMAC's name for the family of unit types."""
    terrain: Terrain
    ally_types: tuple[UnitType, ...] = ()
    """Unit types of an ally's one-hot columns, in order; empty if each side has only one type."""
    enemy_types: tuple[UnitType, ...] = ()
    ally_groups: tuple[Group, ...] = ()
    """Empty where armies are drawn."""
    enemy_groups: tuple[Group, ...] = ()
    hunts: bool = False
    """Whether the enemies hunt the nearest ally at any distance, instead of marching."""
    attack_one: bool = False
    """Whether the enemies are ordered to attack one ally, drawn for each battle, until it is dead."""
    march: tuple[Point, ...] = ()
    """The point that the enemies march to, or the ends of a line on which it is drawn; if empty, the allies' start."""
    draw: Draw | None = None
    """Set if armies are drawn; `allies` and `enemies` then give only the number of units and their race."""
    unit_ranges: bool = False
    """An agent sees and shoots as far as its unit can, instead of 9 and 6 cells: SMACv2's rule."""
    least_shoot: float = 2.0
    """The lower bound of an agent's shooting range with `unit_ranges`, in cells."""

    looks: int = 0
    """Number of directions of an agent's cone of vision (SMACv2's `conic_fov`); 0 if it sees all around."""
    cone_as_published: bool = False
    """True if the cone also extends to the opposite side, as in SMACv2, which compares slopes instead of directions."""

    @property
    def first_target(self) -> int:
        """The number of the action that attacks the first enemy."""
        return FIRST_TARGET + self.looks

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The fields of `records.KIND` with the numbers that are drawn for each agent."""
        attack, health = (self.draw.attack, self.draw.health) if self.draw else (None, None)
        return ("attack_chance",) * (attack is not None) + ("health_level",) * (health is not None)

    @property
    def n_actions(self) -> int:
        """The number of actions of an agent.

        If drawn armies may have healers, there is a target action for each ally, even if there are fewer enemies:
        SMACv2's rule. In SMAC, a healer can heal no more allies than there are enemies.
        """
        targets = len(self.enemies)
        if self.draw is not None and any(unit.healing > 0.0 for unit in self.draw.types):
            targets = max(targets, len(self.allies))
        return self.first_target + targets


Table = Mapping[str, Any]
"""A table of a scenario file."""


def make_scenario(
    name: str,
    *,
    limit: int,
    map_type: str,
    terrain: Terrain,
    allies: Sequence[Table] = (),
    enemies: Sequence[Table] = (),
    enemy_types: Sequence[str] = (),
    march: Sequence[Point] = (),
    draw: Table | None = None,
    **others: bool,
) -> Scenario:
    """Make a scenario from the validated tables of a file.

    Columns of types are in the order of their names, by which SMAC numbers agents, or in the order that `draw` gives.

    Raises:
        ValueError: the name of a unit is unknown.
    """
    lots = None
    if draw is not None:
        names = draw["types"] or sorted(draw["weights"])
        shares = tuple(draw["weights"][unit] / sum(draw["weights"].values()) for unit in names)
        types = tuple(map(unit_named, names))
        never_alone = tuple(map(unit_named, draw["never_alone"]))
        numbers = (draw.get("attack"), draw.get("health"), draw.get("mask_probability"))
        lots = Draw(types, shares, never_alone, draw["surrounded"], draw.get("observe", True), *numbers)
        ours, theirs = types[:1] * draw["allies"], types[:1] * draw["enemies"]
    else:
        ours, theirs = _units(allies), _units(enemies)
        types = tuple(dict.fromkeys([*_by_name(ours), *_by_name(theirs)]))
        if len(set(ours)) == len(set(theirs)) == 1:
            types = ()
    return Scenario(
        name,
        ours,
        theirs,
        limit,
        map_type,
        terrain,
        types,
        tuple(map(unit_named, enemy_types)) or types,
        _groups(allies),
        _groups(enemies),
        march=tuple((x, y) for x, y in march),
        draw=lots,
        **others,
    )


def _units(groups: Sequence[Table]) -> tuple[UnitType, ...]:
    return tuple(unit_named(unit) for group in groups for unit, n in group["units"].items() for _ in range(n))


def _by_name(units: Sequence[UnitType]) -> list[UnitType]:
    return sorted(set(units), key=lambda unit: unit.name)


def _groups(groups: Sequence[Table]) -> tuple[Group, ...]:
    return tuple((tuple(group["at"]), sum(group["units"].values())) for group in groups)


def _built_in() -> dict[str, Scenario]:
    tables = tomllib.loads(Path(__file__).with_name("scenarios.toml").read_text(encoding="utf-8"))
    for race, draw in tables["races"].items():
        for allies, enemies in tables["sizes"]:
            drawn = {"map_type": f"{race}_gen", "draw": draw | {"allies": allies, "enemies": enemies}}
            tables["battles"][f"{race}_{allies}_vs_{enemies}"] = tables["drawn"] | drawn
    return {
        name: make_scenario(name, **(table | {"terrain": TERRAINS[table["terrain"]]}))
        for name, table in tables["battles"].items()
    }


SCENARIOS = _built_in()
