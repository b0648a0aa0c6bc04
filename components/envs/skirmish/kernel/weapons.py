"""Weapons: shots, missiles, beams, bursts, and what a hit does."""

from math import sqrt

from .chance import draw
from .compiling import inlined, internal
from .constants import (
    AIR,
    BEAM_TICKS,
    SWEEP_DELAY,
    SWEEP_POINTS,
    SWEEP_TICKS,
    Doubles,
    Record,
    Records,
)
from .ground import distance
from .targets import call_for_help

LEAST_DAMAGE = 0.5
SWEEP_REACH = 0.15  # a beam's points hurt units whose edge is this near


@inlined
def hurt(j: int, attacker: int, units: Records, kinds: Records, damage: Doubles, rules: Record) -> None:
    """Apply one hit: the shield absorbs damage first, armour reduces the rest."""
    unit = units[j]
    through = damage[kinds[attacker].type_row, kinds[j].type_row]
    absorbed = min(unit.shield, through)
    unit.shield -= absorbed
    through -= absorbed
    if through > 0.0:
        unit.health -= max(through - kinds[j].armour, LEAST_DAMAGE)
    unit.quiet = 0
    if unit.health <= 0.0:
        unit.health = 0.0
        unit.shield = 0.0
        unit.bursting = kinds[j].burst > 0.0
    if j >= rules.allies:
        unit.attacker = attacker
        if unit.help_in == 0 and rules.calls:
            call_for_help(j, attacker, units, rules)


@internal
def burst(i: int, units: Records, kinds: Records, damage: Doubles, rules: Record) -> None:
    """Hurt every unit of the other side within the radius of the burst, except in the air."""
    first, last = (rules.allies, rules.allies + rules.enemies) if i < rules.allies else (0, rules.allies)
    for j in range(first, last):
        near = distance(units[i], units[j]) - kinds[j].radius <= kinds[i].burst
        if near and units[j].health > 0.0 and kinds[j].layer != AIR:
            hurt(j, i, units, kinds, damage, rules)


@internal
def burst_all(units: Records, kinds: Records, damage: Doubles, rules: Record) -> None:
    """Carry out all bursts, including those of units that a burst kills, until none is left."""
    again = True
    while again:
        again = False
        for i in range(len(units)):
            if units[i].bursting:
                units[i].bursting = False
                again = True
                burst(i, units, kinds, damage, rules)


@inlined
def touches(point: int, along: float, across: float, reach: float, half: float) -> bool:
    """True if a point of a beam's line, counted from its start, reaches (along, across), relative to the middle."""
    away = along - half * (2.0 * point / (SWEEP_POINTS - 1) - 1.0)
    return away * away + across * across <= reach * reach


@internal
def sweep(i: int, tick: int, units: Records, kinds: Records, damage: Doubles, rules: Record) -> None:
    """Hurt the units that the two rows of points first touch in this tick of a beam, except its target."""
    unit, kind = units[i], kinds[i]
    target = units[unit.hit_target]
    if target.health > 0.0:
        unit.hit_x = target.x
        unit.hit_y = target.y
    dx = unit.hit_x - unit.x
    dy = unit.hit_y - unit.y
    far = sqrt(dx * dx + dy * dy)
    if far < 1e-9:
        dx, dy, far = unit.facing_x, unit.facing_y, 1.0
    first, last = (rules.allies, rules.allies + rules.enemies) if i < rules.allies else (0, rules.allies)
    for j in range(first, last):
        other = units[j]
        if j == unit.hit_target or other.health <= 0.0 or kinds[j].layer == AIR:
            continue
        away_x = other.x - unit.hit_x
        away_y = other.y - unit.hit_y
        along = (away_y * dx - away_x * dy) / far
        across = (away_x * dx + away_y * dy) / far
        reach = kinds[j].radius + SWEEP_REACH
        for _ in range(2):
            for point in range(2 * tick, min(2 * tick + 2, SWEEP_POINTS)):
                # Each row hurts a unit once, at its first point that touches the unit.
                before = point > 0 and touches(point - 1, along, across, reach, kind.sweep)
                if not before and touches(point, along, across, reach, kind.sweep) and other.health > 0.0:
                    hurt(j, i, units, kinds, damage, rules)
            along = -along


@internal
def burn(i: int, units: Records, kinds: Records, damage: Doubles, rules: Record) -> None:
    """Apply the damage of one tick of a beam: first to units on its line, in the end to its target."""
    unit = units[i]
    tick = kinds[i].hits - unit.hits_left
    unit.hits_left -= 1
    if tick < SWEEP_TICKS:
        unit.hit_in += 1.0 if tick < SWEEP_TICKS - 1 else BEAM_TICKS - SWEEP_DELAY - SWEEP_TICKS + 1.0
        if tick < unit.drawn:
            sweep(i, tick, units, kinds, damage, rules)
        return
    for _ in range(2):
        if units[unit.hit_target].health > 0.0:
            hurt(unit.hit_target, i, units, kinds, damage, rules)


@internal
def land(i: int, units: Records, kinds: Records, damage: Doubles, rules: Record) -> None:
    """Apply the later hits of a shot. If the shooter is dead, only missiles still hit."""
    unit, kind = units[i], kinds[i]
    if unit.health <= 0.0 and kind.missile_speed == 0.0:
        unit.hits_left = 0
        return
    while unit.hits_left > 0 and unit.hit_in <= 0.0:
        if kind.sweep > 0.0:
            burn(i, units, kinds, damage, rules)
            continue
        unit.hits_left -= 1
        unit.hit_in += kind.hit_gap
        if units[unit.hit_target].health > 0.0:
            hurt(unit.hit_target, i, units, kinds, damage, rules)


@internal
def shoot(i: int, units: Records, kinds: Records, damage: Doubles, rules: Record, battle: Record) -> None:
    """Fire a shot that is due, unless the unit or its target has died before."""
    unit, kind = units[i], kinds[i]
    if unit.health <= 0.0:
        return
    target = unit.target
    unit.aiming = False
    if units[target].health <= 0.0:
        return
    if kind.burst > 0.0:
        unit.health = 0.0
        unit.bursting = True
        return
    delay = 3.0 * draw(battle) - 1.0
    unit.cooldown = kind.period + delay - kind.damage_point + unit.windup
    unit.hits_left = kind.hits
    unit.hit_target = target
    if kind.sweep > 0.0:
        unit.hit_in = SWEEP_DELAY
        unit.drawing = True
        unit.drawn = 0
        unit.hit_x = units[target].x
        unit.hit_y = units[target].y
    elif kind.missile_speed > 0.0:
        edge = distance(unit, units[target]) - kind.radius - kinds[target].radius
        unit.hit_in = max(edge, 0.0) / kind.missile_speed
    else:
        unit.hit_in = kind.hit_gap
        unit.hits_left -= 1
        hurt(target, i, units, kinds, damage, rules)
