"""SMAC's scripted player, `heuristic_ai`: attack the enemy that was nearest when the last target died."""

from collections.abc import Mapping

from .kernel import constants
from .unit_view import UnitView, distance
from .units import UNIT_TYPES, UnitType

_TYPES: Mapping[int, UnitType] = {kind.type_id: kind for kind in UNIT_TYPES.values()}


def heals(unit: UnitView) -> bool:
    """Return whether a unit heals friends instead of attacking enemies."""
    return _TYPES[unit.unit_type].healing > 0.0


def choose_target(unit: UnitView, others: Mapping[int, UnitView], target: int | None) -> int | None:
    """Return the number of the unit to attack or to heal, or None if there is none.

    Args:
        unit: the unit that acts.
        others: the enemies by number; for a healer, its friends.
        target: the present target, which is kept while it is still valid.
    """
    if target is not None and _is_target(unit, others[target]):
        return target
    targets = [number for number, other in others.items() if _is_target(unit, other)]
    return min(targets, key=lambda number: distance(unit, others[number]), default=None)


def direction(unit: UnitView, other: UnitView) -> int:
    """Return the move action that takes a unit nearer to another, along the axis on which it is farther away."""
    dx, dy = other.pos.x - unit.pos.x, other.pos.y - unit.pos.y
    if abs(dx) > abs(dy):
        return constants.EAST if dx > 0.0 else constants.WEST
    return constants.NORTH if dy > 0.0 else constants.SOUTH


def _is_target(unit: UnitView, other: UnitView) -> bool:
    kind = _TYPES[other.unit_type]
    if heals(unit):
        return kind.healing == 0.0 and 0.0 < other.health < other.health_max
    return other.health > 0.0 and (kind.layer != "air" or _TYPES[unit.unit_type].weapon.hits_air)
