"""Crowds: how units push each other apart, and swerve round each other."""

from math import sqrt

import numpy as np

from .compiling import inlined, internal
from .constants import ADVANCE, LANES, Doubles, Footing, Record, Records
from .ground import shift
from .vicinity import lowest, met_by

STEER_REACH = 0.6
STEER_AHEAD = 0.3
STEER_LIMIT = 2.0
MANY = 25  # units from which on LANES are tested at once; among fewer, branches are predicted well
WORD = 64  # bits of an integer


@inlined
def push_apart(
    one: Record, other: Record, one_kind: Record, other_kind: Record, dx: float, dy: float, overlap: float, foes: bool
) -> None:
    """Share out an overlap of two units; (dx, dy) is the unit vector from `one` to `other`.

    A unit that fights is not moved by a unit of the other side that does not.
    """
    share = 0.5
    if one.holding and not other.holding:
        share = 0.0 if foes else one_kind.yielding
    elif other.holding and not one.holding:
        share = 1.0 - (0.0 if foes else other_kind.yielding)
    one.push_x -= share * overlap * dx
    one.push_y -= share * overlap * dy
    other.push_x += (1.0 - share) * overlap * dx
    other.push_y += (1.0 - share) * overlap * dy


@inlined
def arrive_with(unit: Record, rules: Record) -> None:
    """End a unit's advance near the goal, where a friend has stopped in its way: one point has no room for all."""
    dx = unit.goal_x - unit.x
    dy = unit.goal_y - unit.y
    if unit.order == ADVANCE and unit.target < 0 and dx * dx + dy * dy <= rules.crowd * rules.crowd:
        unit.arrived = True


@inlined
def steer_round(i: int, unit: Record, dx: float, dy: float, closeness: float) -> None:
    """Swerve from a unit in the way, if it is well ahead, to the side on which it is not."""
    ahead = unit.heading_x * dx + unit.heading_y * dy
    if ahead <= STEER_AHEAD:
        return
    weight = closeness * ahead
    across = unit.heading_x * dy - unit.heading_y * dx
    if across > 1e-9 or (across >= -1e-9 and i % 2 == 0):
        weight = -weight
    unit.steer_x -= weight * unit.heading_y
    unit.steer_y += weight * unit.heading_x


@inlined
def meet(i: int, j: int, units: Records, kinds: Records, rules: Record) -> None:
    """If two units are near each other, let them push each other apart, and swerve round each other."""
    one, other = units[i], units[j]
    dx = other.x - one.x  # units move only after all have met
    dy = other.y - one.y
    touch = kinds[i].separation + kinds[j].separation
    near = touch + STEER_REACH
    squared = dx * dx + dy * dy
    if squared >= near * near or other.health <= 0.0 or kinds[j].layer != kinds[i].layer:
        return
    # `&` instead of `and`: a branch that the processor mispredicts costs more than a few products.
    crossing = one.heading_x * other.heading_x + one.heading_y * other.heading_y <= 0.0
    one_ahead = one.heading_x * dx + one.heading_y * dy > 0.0
    other_ahead = other.heading_x * dx + other.heading_y * dy < 0.0
    one_swerves = crossing & one_ahead & (one.stride > 0.0) & (one.target != j)
    other_swerves = crossing & other_ahead & (other.stride > 0.0) & (other.target != i)
    if not one_swerves and not other_swerves and squared >= touch * touch:
        return
    far = sqrt(squared)
    if far < 1e-6:
        # Two units on one spot have no direction between them; any will do.
        dx, dy, far = 1e-6, 0.0, 1e-6
    inverse = 1.0 / far
    dx *= inverse
    dy *= inverse
    if far < touch:
        push_apart(one, other, kinds[i], kinds[j], dx, dy, touch - far, i < rules.allies <= j)
        if one.arrived or other.arrived:
            arrive_with(one, rules)
            arrive_with(other, rules)
    closeness = 1.0 - max(far - touch, 0.0) / STEER_REACH
    if one_swerves:
        steer_round(i, one, dx, dy, closeness)
    if other_swerves:
        steer_round(j, other, -dx, -dy, closeness)


@inlined
def write_places(units: Records, kinds: Records, places: Doubles) -> None:
    """Write the columns that `met_by` reads."""
    for i in range(len(units)):
        unit = units[i]
        places[0, i] = unit.x if unit.health > 0.0 else np.nan
        places[1, i] = unit.y
        places[2, i] = kinds[i].separation
        places[3, i] = unit.heading_x
        places[4, i] = unit.heading_y
        places[5, i] = unit.stride


@internal
def separate(units: Records, kinds: Records, rules: Record, footing: Footing, places: Doubles) -> None:
    """Push overlapping units apart, and let walking units swerve from units ahead of them."""
    n = len(units)
    for i in range(n):
        unit = units[i]
        unit.push_x = 0.0
        unit.push_y = 0.0
        unit.steer_x = 0.0
        unit.steer_y = 0.0
    many = n >= MANY
    if many:
        write_places(units, kinds, places)

    for i in range(n):
        if units[i].health <= 0.0:
            continue
        if not many:
            for j in range(i + 1, n):
                meet(i, j, units, kinds, rules)
            continue
        for start in range(i + 1 - (i + 1) % LANES, n, WORD):
            found = 0
            for first in range(start, min(start + WORD, n), LANES):
                found |= met_by(places, i, first, STEER_REACH) << (first - start)
            if start <= i:
                found &= -1 << (i + 1 - start)
            while found != 0:
                meet(i, start + lowest(found), units, kinds, rules)
                found &= found - 1

    for i in range(n):
        unit = units[i]
        if unit.health <= 0.0:
            continue
        steer = unit.steer_x * unit.steer_x + unit.steer_y * unit.steer_y
        if steer > STEER_LIMIT * STEER_LIMIT:
            unit.steer_x *= STEER_LIMIT / sqrt(steer)
            unit.steer_y *= STEER_LIMIT / sqrt(steer)
        if kinds[i].speed > 0.0 and (unit.push_x != 0.0 or unit.push_y != 0.0):
            shift(unit, kinds[i], rules, footing, unit.push_x, unit.push_y)
