"""The view of a side: observations of its agents, its state, and the actions that are available.

Directions in an agent's observation are turned so that `reference` is the x axis, as for the courses of its actions.
Distances are divided by `NEAR`. Dead agents observe zeros and have only action 0.
"""

from math import sqrt

import numpy as np

from components.envs.air_combat.kernel.aiming import by_distance, can_fire, commands_of
from components.envs.air_combat.kernel.commanding import loudest, reference
from components.envs.air_combat.kernel.compiling import allocating, compiled
from components.envs.air_combat.kernel.constants import (
    ABOUT_ENEMY,
    ABOUT_FRIEND,
    ABOUT_UNIT,
    AIM,
    BARRAGE,
    CLOSE,
    COS,
    FIRE,
    FIRST_MISSILE,
    HOLD,
    HOP,
    JAMMER_OFF,
    NEAR,
    OLD,
    OWN,
    SILENT,
    SIN,
    Bools,
    Doubles,
    Floats,
    Record,
    Records,
)
from components.envs.air_combat.kernel.sensing import enemies_of
from components.envs.air_combat.kernel.striking import can_attack


@compiled
def offer(i: int, units: Records, kinds: Records, rules: Record, hears: Bools, available: Bools) -> None:
    """Write to `available` (U,) which actions unit i can choose.

    A missile is available for a known target that is in its range now, or may be by the last world step of this step.
    With targets "nearest", it is always available.
    """
    available[:] = False
    unit, kind = units[i], kinds[i]
    if not unit.alive:
        available[0] = True
        return
    first, last = enemies_of(i, units, rules)
    n_enemies = last - first
    n_commands = commands_of(n_enemies, rules)
    available[HOLD] = True
    available[HOP] = True
    available[SILENT] = unit.radar > 0 or unit.jammer > 0
    if kind.jammer_band >= 0:
        available[BARRAGE] = unit.jammer <= kind.jammer_points
        available[AIM] = loudest(i, units, kinds, rules, hears) >= 0
        available[JAMMER_OFF] = unit.jammer > 0
    if rules.nearest_targets:
        available[FIRE] = True
    elif unit.long_left + unit.medium_left > 0:
        for j in range(n_enemies):
            margin = (rules.frame_skip - 1) * (kind.speed + kinds[first + j].speed)
            available[FIRST_MISSILE + j] = can_attack(i, first + j, False, units, rules, margin)
            available[FIRST_MISSILE + n_enemies + j] = can_attack(i, first + j, True, units, rules, margin)
    for k in range(1, rules.courses):
        for command in range(n_commands):
            available[k * n_commands + command] = available[command]


@allocating
def observe(
    i: int,
    units: Records,
    battle: Record,
    kinds: Records,
    rules: Record,
    sees: Bools,
    hears: Bools,
    bearing: Doubles,
    obs: Floats,
) -> None:
    """Write the observation (O,) of unit i: itself, then each enemy, then each friend except itself.

    Enemies come in the order of their numbers, or of their distances with targets "nearest".
    """
    obs[:] = 0.0
    unit, kind = units[i], kinds[i]
    if not unit.alive:
        return
    ux, uy = reference(i, units, rules)
    c, s = COS[unit.course], SIN[unit.course]
    is_red = i < rules.red
    obs[0] = 1.0
    # Side 2 sees the map turned by 180 degrees, so that the same policy can command either side.
    obs[1] = (unit.x if is_red else rules.size_x - unit.x) / rules.size_x
    obs[2] = (unit.y if is_red else rules.size_y - unit.y) / rules.size_y
    obs[3] = c * ux + s * uy
    obs[4] = s * ux - c * uy
    obs[5] = ux if is_red else -ux
    obs[6] = uy if is_red else -uy
    obs[7] = unit.radar > 0
    obs[8] = unit.reach / kind.radar_range
    obs[9] = 0 < unit.jammer <= kind.jammer_points
    obs[10] = unit.jammer > kind.jammer_points
    if kind.long_missiles > 0:
        obs[11] = unit.long_left / kind.long_missiles
    if kind.medium_missiles > 0:
        obs[12] = unit.medium_left / kind.medium_missiles
    obs[13] = kind.speed / NEAR * 10.0
    obs[14] = kind.fighter
    obs[15] = battle.steps / rules.max_steps
    obs[16] = battle.flying / (10.0 * len(units))
    obs[17] = can_fire(i, units, kinds, rules)
    at = OWN
    first, last = enemies_of(i, units, rules)
    order = np.empty(last - first if rules.nearest_targets else 0, np.int64)
    if rules.nearest_targets:
        by_distance(i, units, rules, order)
    for k in range(last - first):
        j = order[k] if rules.nearest_targets else first + k
        target = units[j]
        if target.alive:
            obs[at] = 1.0
            obs[at + 1] = target.known
            if target.last_step >= 0:
                dx, dy = target.last_x - unit.x, target.last_y - unit.y
                obs[at + 2] = 1.0
                obs[at + 3] = (dx * ux + dy * uy) / NEAR
                obs[at + 4] = (dy * ux - dx * uy) / NEAR
                distance = sqrt(dx * dx + dy * dy)
                obs[at + 5] = distance / NEAR
                obs[at + 13] = min(max((distance - rules.long_range) / CLOSE, -1.0), 1.0)
                obs[at + 6] = min((battle.steps - target.last_step) / OLD, 1.0)
            obs[at + 7] = sees[i, j]
            if hears[i, j]:
                bx, by = bearing[i, j, 0], bearing[i, j, 1]
                obs[at + 8] = 1.0
                obs[at + 9] = bx * ux + by * uy
                obs[at + 10] = by * ux - bx * uy
            obs[at + 11] = target.threats / 4.0
            obs[at + 12] = kinds[j].fighter
        at += ABOUT_ENEMY
    first, last = (0, rules.red) if is_red else (rules.red, len(units))
    for j in range(first, last):
        if j == i:
            continue
        friend = units[j]
        if friend.alive:
            dx, dy = friend.x - unit.x, friend.y - unit.y
            fc, fs = COS[friend.course], SIN[friend.course]
            obs[at] = 1.0
            obs[at + 1] = (dx * ux + dy * uy) / NEAR
            obs[at + 2] = (dy * ux - dx * uy) / NEAR
            obs[at + 3] = fc * ux + fs * uy
            obs[at + 4] = fs * ux - fc * uy
            obs[at + 5] = friend.jammer > 0
            obs[at + 6] = kinds[j].fighter
        at += ABOUT_FRIEND


@compiled
def describe(first: int, units: Records, battle: Record, kinds: Records, rules: Record, state: Floats) -> None:
    """Write the state (S,) for the side whose first unit is `first`: all units, that side's first, and the time."""
    n = len(units)
    at = 0
    for k in range(n):
        i = (first + k) % n
        unit, kind = units[i], kinds[i]
        if unit.alive:
            sign = 1.0 if first == 0 else -1.0  # side 2 sees the map turned by 180 degrees
            state[at] = 1.0
            state[at + 1] = sign * (unit.x / rules.size_x - 0.5)
            state[at + 2] = sign * (unit.y / rules.size_y - 0.5)
            state[at + 3] = sign * COS[unit.course]
            state[at + 4] = sign * SIN[unit.course]
            state[at + 5] = unit.reach / kind.radar_range
            state[at + 6] = unit.jammer > 0
            state[at + 7] = (unit.long_left + unit.medium_left) / 8.0
            state[at + 8] = unit.known
            state[at + 9] = unit.threats / 4.0
        else:
            state[at : at + ABOUT_UNIT] = 0.0
        at += ABOUT_UNIT
    state[at] = battle.steps / rules.max_steps


@compiled
def show(
    first: int,
    units: Records,
    battle: Record,
    kinds: Records,
    rules: Record,
    sees: Bools,
    hears: Bools,
    bearing: Doubles,
    obs: Floats,
    state: Floats,
    available: Bools,
) -> None:
    """Write the view of the side whose first unit is `first`: 0, or the number of units of side 1."""
    for a in range(len(obs)):
        observe(first + a, units, battle, kinds, rules, sees, hears, bearing, obs[a])
        offer(first + a, units, kinds, rules, hears, available[a])
    describe(first, units, battle, kinds, rules, state)
