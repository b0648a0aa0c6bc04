"""A unit as SMAC's class presents it."""

from dataclasses import dataclass
from math import hypot
from typing import Any

from .units import UnitType


@dataclass(frozen=True, slots=True)
class Position:
    """A point of the map, in cells."""

    x: float
    y: float


@dataclass(frozen=True, slots=True)
class UnitView:
    """The state of a unit after some step, with the field names of the game's interface."""

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


def view_of(unit: Any, kind: UnitType, index: int, *, ally: bool) -> UnitView:
    """Return a unit as SMAC presents it.

    Args:
        unit: the unit's record, one of `records.UNIT`.
        kind: its type.
        index: its number in the battle, allies first.
        ally: whether the unit is an ally.
    """
    return UnitView(
        tag=index,
        owner=1 if ally else 2,
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
    """Return the distance between two units' centres, in cells."""
    return hypot(other.pos.x - one.pos.x, other.pos.y - one.pos.y)
