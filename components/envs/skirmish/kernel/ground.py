"""The ground: distances, where units can stand, and how walls stop them."""

from math import sqrt

from .compiling import inlined
from .constants import AIR, CELLS, CLEAR, GIANT, Footing, Record

WALL_REACH = 0.5  # most that a unit keeps from blocked cells, which are coarser than the game's own ground


@inlined
def distance(one: Record, other: Record) -> float:
    """Return the distance from centre to centre."""
    dx = other.x - one.x
    dy = other.y - one.y
    return sqrt(dx * dx + dy * dy)


@inlined
def is_open(walkable: Footing, x: float, y: float) -> bool:
    """True if there is a cell at (x, y) and it can be walked on. `int` rounds towards zero, as in SMAC."""
    column, row = int(x), int(y)
    return 0 <= column < CELLS and 0 <= row < CELLS and bool(walkable[column, row])


@inlined
def stay_inside(unit: Record, kind: Record, rules: Record) -> None:
    """Keep the unit's edge inside the walls; for units in the air, inside the map."""
    if kind.layer == AIR:
        unit.x = min(max(unit.x, kind.radius), CELLS - kind.radius)
        unit.y = min(max(unit.y, kind.radius), CELLS - kind.radius)
        return
    unit.x = min(max(unit.x, rules.west + kind.radius), rules.east - kind.radius)
    unit.y = min(max(unit.y, rules.south + kind.radius), rules.north - kind.radius)


@inlined
def push_off_walls(unit: Record, reach: float, footing: Footing, who: int) -> None:
    """Push a unit away from the blocked cells round its own, to a distance of `reach`."""
    column, row = int(unit.x), int(unit.y)
    for c in range(max(column - 1, 0), min(column + 2, CELLS)):
        for r in range(max(row - 1, 0), min(row + 2, CELLS)):
            if footing[who, c, r]:
                continue
            dx = unit.x - min(max(unit.x, float(c)), c + 1.0)
            dy = unit.y - min(max(unit.y, float(r)), r + 1.0)
            near = sqrt(dx * dx + dy * dy)
            if 1e-9 < near < reach:
                unit.x += dx / near * (reach - near)
                unit.y += dy / near * (reach - near)


@inlined
def slide(unit: Record, kind: Record, rules: Record, footing: Footing, who: int, dx: float, dy: float) -> None:
    """Move a unit over ground with blocked cells: at these, it is pushed back, slides along, or stays."""
    x, y = unit.x, unit.y
    unit.x += dx
    unit.y += dy
    stay_inside(unit, kind, rules)
    if footing[who, int(unit.x), int(unit.y)] < CLEAR:
        push_off_walls(unit, min(kind.radius, WALL_REACH), footing, who)
    if not footing[who, int(unit.x), int(unit.y)]:
        if footing[who, int(unit.x), int(y)]:
            unit.y = y
        elif footing[who, int(x), int(unit.y)]:
            unit.x = x
        else:
            unit.x = x
            unit.y = y


@inlined
def shift(unit: Record, kind: Record, rules: Record, footing: Footing, dx: float, dy: float) -> None:
    """Move a unit, as far as the ground allows."""
    if rules.carved and kind.layer != AIR:
        slide(unit, kind, rules, footing, 1 if kind.layer == GIANT else 0, dx, dy)
        return
    unit.x += dx
    unit.y += dy
    stay_inside(unit, kind, rules)
