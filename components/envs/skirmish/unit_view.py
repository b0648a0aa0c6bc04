"""A unit as SMAC's own class shows it."""

from dataclasses import dataclass

import numpy as np

from components.envs.skirmish.skirmish import Skirmish


@dataclass(frozen=True, slots=True)
class Position:
    """A point of the map, in cells."""

    x: float
    y: float


@dataclass(frozen=True, slots=True)
class UnitView:
    """A unit as it was when the last step ended, with the field names of the game's interface."""

    tag: int
    owner: int
    """1 for allies, 2 for enemies."""
    unit_type: int
    pos: Position
    health: float
    health_max: float
    shield: float
    shield_max: float
    weapon_cooldown: float
    """In ticks."""
    energy: float = 0.0


def view_of(skirmish: Skirmish, index: int) -> UnitView:
    """Return the unit of that number, allies first, in the one battle of `skirmish`."""
    unit, scenario = skirmish.units[0, index], skirmish.scenario
    kind = (scenario.allies + scenario.enemies)[index]
    return UnitView(
        tag=index,
        owner=1 if index < len(scenario.allies) else 2,
        unit_type=kind.type_id,
        pos=Position(float(unit["x"]), float(unit["y"])),
        health=float(unit["health"]),
        health_max=kind.health,
        shield=float(unit["shield"]),
        shield_max=kind.shield,
        weapon_cooldown=max(float(unit["cooldown"]), 0.0),
        energy=float(unit["energy"]),
    )


def distance(one: UnitView, other: UnitView) -> float:
    """Return how far two units are from each other, in cells."""
    dx, dy = one.pos.x - other.pos.x, one.pos.y - other.pos.y
    return float(np.sqrt(dx * dx + dy * dy))
