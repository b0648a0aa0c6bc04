"""An order to a unit, as SMAC's class would send it to the game."""

from dataclasses import dataclass

from .kernel import constants
from .unit_view import Position, UnitView

ABILITIES = {"stop": 4, "move": 16, "attack": 23, "heal": 386}
"""The game's numbers of the abilities."""
_WAYS = {
    constants.NORTH: (0.0, 1.0),
    constants.SOUTH: (0.0, -1.0),
    constants.EAST: (1.0, 0.0),
    constants.WEST: (-1.0, 0.0),
}


@dataclass(frozen=True, slots=True)
class UnitCommand:
    """An order, with the field names of the game's interface."""

    ability_id: int
    """One of `ABILITIES`."""
    unit_tags: tuple[int, ...]
    target_world_space_pos: Position | None = None
    target_unit_tag: int | None = None
    queue_command: bool = False


def stop(unit: UnitView) -> UnitCommand:
    """Return the order to stop."""
    return UnitCommand(ABILITIES["stop"], (unit.tag,))


def move(unit: UnitView, action: int, amount: float) -> UnitCommand:
    """Return the order to move `amount` cells in the direction of one of the four move actions."""
    dx, dy = _WAYS[action]
    target = Position(unit.pos.x + amount * dx, unit.pos.y + amount * dy)
    return UnitCommand(ABILITIES["move"], (unit.tag,), target_world_space_pos=target)


def strike(unit: UnitView, target: UnitView) -> UnitCommand:
    """Return the order to attack an enemy, or to heal a friend."""
    ability = "heal" if target.owner == unit.owner else "attack"
    return UnitCommand(ABILITIES[ability], (unit.tag,), target_unit_tag=target.tag)
