"""Orders (N, 4) from the actions of agents, and from the rules of opponents."""

from math import atan2, floor, pi, sqrt

from components.envs.air_combat.kernel.aiming import choose_shot, commands_of
from components.envs.air_combat.kernel.chance import draw
from components.envs.air_combat.kernel.compiling import compiled
from components.envs.air_combat.kernel.constants import (
    AIM,
    ATTACK,
    AUTOMATIC,
    BARRAGE,
    COURSE,
    FIRST_MISSILE,
    HOP,
    JAMMER,
    JAMMER_OFF,
    PASSIVE,
    RADAR,
    RULES_HARD,
    SILENT,
    STATIC,
    STAY,
    STRAIGHT,
    Bools,
    Ints,
    Record,
    Records,
)
from components.envs.air_combat.kernel.sensing import enemies_of

CRANK = 50
"""Degrees off the target that the hard opponent flies while a missile flies at it: still in the radar's sector."""
LOST = 2.0
"""Distance, in steps of flight, from the last known position of an enemy at which the search for it ends."""


@compiled
def hop(unit: Record, battle: Record, kind: Record) -> int:
    """Return another frequency point of a radar, all with equal probability."""
    if kind.radar_points == 1:
        return 1
    if unit.radar == 0:
        return 1 + int(draw(battle) * kind.radar_points)
    return 1 + (unit.radar + int(draw(battle) * (kind.radar_points - 1))) % kind.radar_points  # type: ignore[no-any-return]


@compiled
def nearest_known(i: int, units: Records, rules: Record) -> int:
    """Return the living enemy with the nearest last known position to unit i; -1 if its side never knew one."""
    unit = units[i]
    best, found = 0.0, -1
    first, last = enemies_of(i, units, rules)
    for j in range(first, last):
        target = units[j]
        if target.alive and target.last_step >= 0:
            dx, dy = target.last_x - unit.x, target.last_y - unit.y
            d2 = dx * dx + dy * dy
            if found < 0 or d2 < best:
                best, found = d2, j
    return found


@compiled
def reference(i: int, units: Records, rules: Record) -> tuple[float, float]:
    """Return the unit vector of an agent's course 0: towards `nearest_known`, or else towards the other side."""
    j = nearest_known(i, units, rules)
    if j >= 0:
        dx, dy = units[j].last_x - units[i].x, units[j].last_y - units[i].y
        distance = sqrt(dx * dx + dy * dy)
        if distance > 0.0:
            return dx / distance, dy / distance
    return (1.0 if i < rules.red else -1.0), 0.0


@compiled
def degrees_of(ux: float, uy: float) -> int:
    """Return the course of a direction, in whole degrees from 0 to 359."""
    return floor(atan2(uy, ux) * 180.0 / pi + 0.5) % 360


@compiled
def loudest(i: int, units: Records, kinds: Records, rules: Record, hears: Bools) -> int:
    """Return the nearest enemy whose radar unit i hears and can jam; -1 if there is none."""
    best, found = 0.0, -1
    first, last = enemies_of(i, units, rules)
    for j in range(first, last):
        if hears[i, j] and units[j].alive and kinds[i].jammer_band == kinds[j].radar_band:
            if units[j].radar == 0 or units[j].radar > kinds[i].jammer_points:
                continue
            dx, dy = units[j].x - units[i].x, units[j].y - units[i].y
            d2 = dx * dx + dy * dy
            if found < 0 or d2 < best:
                best, found = d2, j
    return found


@compiled
def order_action(
    i: int, action: int, units: Records, battle: Record, kinds: Records, rules: Record, hears: Bools, orders: Ints
) -> None:
    """Write the orders of the action of unit i: course * K + command."""
    unit = units[i]
    first, last = enemies_of(i, units, rules)
    n_commands = commands_of(last - first, rules)
    k, command = action // n_commands, action % n_commands
    ux, uy = reference(i, units, rules)
    orders[i, COURSE] = (degrees_of(ux, uy) + floor(k * 360.0 / rules.courses + 0.5)) % 360
    orders[i, RADAR] = unit.radar
    orders[i, JAMMER] = unit.jammer
    orders[i, ATTACK] = 0
    if command == HOP:
        orders[i, RADAR] = hop(unit, battle, kinds[i])
    elif command == SILENT:
        orders[i, RADAR] = 0
        orders[i, JAMMER] = 0
    elif command == BARRAGE:
        orders[i, JAMMER] = kinds[i].jammer_points + 1
    elif command == AIM:
        heard = loudest(i, units, kinds, rules, hears)
        if heard >= 0:
            orders[i, JAMMER] = units[heard].radar
    elif command == JAMMER_OFF:
        orders[i, JAMMER] = 0
    elif command >= FIRST_MISSILE:
        orders[i, ATTACK] = AUTOMATIC if rules.nearest_targets else command - FIRST_MISSILE + 1


@compiled
def order_by_rules(
    i: int, units: Records, battle: Record, kinds: Records, rules: Record, is_hard: bool, hears: Bools, orders: Ints
) -> None:
    """Write the orders of unit i: it searches, approaches, fires and evades.

    - It searches along its course, and turns to the middle of the map at the border.
    - It approaches the nearest enemy that its side knows or knew.
    - It evades when it has no missile: it flies away from that enemy. A detector evades within 0.8 of its radar range.
    - Its radar changes its frequency point in every step.
    - The hard opponent turns its radar off while receivers fix the nearest enemy. It jams the whole band when it hears
      an enemy radar of that band. It flies past its target while a missile flies at it, so that the distance shrinks
      slowly.
    """
    unit, kind = units[i], kinds[i]
    orders[i, COURSE] = unit.course
    orders[i, RADAR] = hop(unit, battle, kind)
    orders[i, JAMMER] = 0
    orders[i, ATTACK] = 0
    if is_hard and kind.jammer_band >= 0 and loudest(i, units, kinds, rules, hears) >= 0:
        orders[i, JAMMER] = kind.jammer_points + 1
    j = nearest_known(i, units, rules)
    if is_hard and kind.fighter and j >= 0 and units[j].known and units[j].source == PASSIVE:
        orders[i, RADAR] = 0
    distance = ux = uy = 0.0
    if j >= 0:
        dx, dy = units[j].last_x - unit.x, units[j].last_y - unit.y
        distance = sqrt(dx * dx + dy * dy)
        if distance > 0.0:
            ux, uy = dx / distance, dy / distance
    if j < 0 or (not units[j].known and distance <= LOST * kind.speed) or distance == 0.0:
        at_border = unit.x <= 0.0 or unit.y <= 0.0 or unit.x >= rules.size_x or unit.y >= rules.size_y
        if at_border:
            orders[i, COURSE] = degrees_of(rules.size_x / 2.0 - unit.x, rules.size_y / 2.0 - unit.y)
        return
    course = degrees_of(ux, uy)
    flees = unit.long_left + unit.medium_left == 0
    if not kind.fighter:
        flees = distance < 0.8 * kind.radar_range
    if flees:
        orders[i, COURSE] = (course + 180) % 360
        return
    orders[i, ATTACK] = choose_shot(i, units, rules, is_hard)
    if is_hard and units[j].known and units[j].threats > 0:
        course = (course + CRANK) % 360
    orders[i, COURSE] = course


@compiled
def order_side(
    first: int, opponent: int, units: Records, battle: Record, kinds: Records, rules: Record, hears: Bools, orders: Ints
) -> None:
    """Write the orders of the side whose first unit is `first`, by the rules of this opponent."""
    last = rules.red if first == 0 else len(units)
    for i in range(first, last):
        unit = units[i]
        if not unit.alive:
            continue
        if opponent in (STATIC, STRAIGHT):
            orders[i, COURSE] = STAY if opponent == STATIC else unit.course
            orders[i, RADAR] = unit.radar
            orders[i, JAMMER] = 0
            orders[i, ATTACK] = 0
        else:
            order_by_rules(i, units, battle, kinds, rules, opponent == RULES_HARD, hears, orders)
