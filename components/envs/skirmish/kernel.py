"""The battle itself, as plain scalar code: one tick of one battle, then everything that SMAC makes of it.

numba compiles this file; with `NUMBA_DISABLE_JIT=1` the very same lines run in the interpreter and give the same
bits. That holds because only `+ - * /` and `sqrt` are used, which IEEE 754 defines exactly: directions are unit
vectors, never angles, and the random numbers are integers. All compiled code is in this one file since numba's cache
watches no other.

`units` are the records (N,) of one battle, allies first; `kinds` (N,) what each of them is; `damage` (N, N) what one
hit of the first does to the second, before armour. B battles, A agents, E enemies, U actions.
"""

from collections.abc import Callable
from math import sqrt
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

_F = TypeVar("_F", bound=Callable[..., Any])

Record = Any  # one of `records`, by reference: numpy's stubs can't say which fields it has
Records = Any  # an array of them
Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Ways = NDArray[np.int16]


def compiled(function: _F) -> _F:
    """Compile at the first call and keep the result on disk; never fast-math, which may round differently."""
    return cast("_F", numba.njit(cache=True, nogil=True, error_model="numpy")(function))


IDLE, MOVE, ATTACK, ADVANCE = 0, 1, 2, 3

GROUND, GIANT, AIR = 0, 1, 2

NO_OP, STOP, NORTH, SOUTH, EAST, WEST, FIRST_TARGET = 0, 1, 2, 3, 4, 5, 6

SIGHT = 9.0  # of every unit, centre to centre: a rule of SMAC, not of the game
SHOOT = 6.0  # likewise: an attack may be ordered up to here, whatever the weapon's range
CELLS = 32
MIDDLE = 16.0

COS_TURN, SIN_TURN = 0.4616948, 0.8870355  # 62.49 degrees: 999.84 a second
COS_AIM = 0.9807853  # 11.25 degrees: near enough to shoot or to walk
RANGE_SLOP = 1.0  # how far a target may slip away from one who is already aiming
SCAN_SLOP = 0.5  # likewise from one who has merely chosen it
ARRIVED = 0.5
WALL_REACH = 0.5  # how near blocked cells let the largest come: those are coarser than the game's own ground

SHIELD_REST = 160  # ticks without harm after which a shield recovers
SHIELD_REGEN = 0.125
LEAST_DAMAGE = 0.5

SWEEP_DELAY = 6.0  # from the shot to the first sweep of a beam
SWEEP_REACH = 0.15  # how far to both sides of its line it hurts

FULL_ENERGY = 200.0
FIRST_ENERGY = 50.0
ENERGY_REGEN = 0.5625 / 16.0
ENERGY_PER_HEALTH = 0.33

HELP_REACH = 4.0
HELP_EVERY = 32

SOFT_HOLD = 0.25  # a unit that fights takes this share of an overlap with one that walks
STEER_REACH = 0.6
STEER_AHEAD = 0.3
STEER_LIMIT = 2.0

LOW_32 = 0xFFFFFFFF


@compiled
def draw(battle: Record) -> float:
    """A number from [0, 1): the generator sfc32, whose 32-bit sums fit 64-bit integers without overflow."""
    mixed: int = (battle.a + battle.b + battle.counter) & LOW_32
    battle.counter = (battle.counter + 1) & LOW_32
    battle.a = battle.b ^ (battle.b >> 9)
    battle.b = (battle.c + (battle.c << 3)) & LOW_32
    battle.c = (((battle.c << 21) | (battle.c >> 11)) + mixed) & LOW_32
    return mixed / 4294967296.0


@compiled
def distance(one: Record, other: Record) -> float:
    """From centre to centre."""
    dx = other.x - one.x
    dy = other.y - one.y
    return sqrt(dx * dx + dy * dy)


@compiled
def is_open(walkable: Bools, x: float, y: float) -> bool:
    """Whether there is a cell and one can stand on it. `int` rounds towards zero, and so does SMAC's."""
    column, row = int(x), int(y)
    return 0 <= column < CELLS and 0 <= row < CELLS and bool(walkable[column, row])


# --- Choosing whom to fight -----------------------------------------------------------------------------------------


@compiled
def is_threat(kind: Record, other: Record, other_kind: Record) -> bool:
    """Whether an enemy minds somebody who is near: armed, or healing, and not out of its weapon's world."""
    if other_kind.layer != AIR:
        return True
    return bool(kind.hits_air and (other_kind.healing == 0.0 or other.healing))


@compiled
def choose_target(i: int, units: Records, kinds: Records, rules: Record) -> None:
    """What an enemy decides each tick: keep its target while that is sensible, else take the nearest in sight."""
    unit, kind = units[i], kinds[i]
    target = unit.target
    keeps = False
    if target >= 0 and units[target].health > 0.0:
        edge = distance(unit, units[target]) - kind.radius - kinds[target].radius
        within = edge <= kind.range or (unit.aiming and edge <= kind.range + RANGE_SLOP)
        if within and is_threat(kind, units[target], kinds[target]):
            return
        keeps = edge <= kind.scan + SCAN_SLOP or target == unit.attacker

    nearest, nearest_edge = -1, 1e9
    for j in range(rules.allies):
        if units[j].health > 0.0:
            edge = distance(unit, units[j]) - kind.radius - kinds[j].radius
            if edge < nearest_edge and is_threat(kind, units[j], kinds[j]):
                nearest, nearest_edge = j, edge
    if rules.healers and nearest_edge > kind.scan and kind.hits_air:
        # Healers that help nobody come last: no others are in sight.
        for j in range(rules.allies):
            if units[j].health > 0.0 and kinds[j].healing > 0.0:
                edge = distance(unit, units[j]) - kind.radius - kinds[j].radius
                if edge < nearest_edge:
                    nearest, nearest_edge = j, edge

    chosen = -1
    if keeps:
        # Chasing somebody while another stands within reach would waste the shot.
        chosen = nearest if nearest_edge <= kind.range else target
    elif nearest_edge <= kind.scan:
        chosen = nearest
    elif unit.attacker >= 0 and units[unit.attacker].health > 0.0:
        chosen = unit.attacker
    elif rules.hunts:
        chosen = nearest
    if chosen != target:
        unit.target = chosen
        unit.aiming = False


@compiled
def choose_patient(i: int, units: Records, kinds: Records, rules: Record) -> None:
    """What an enemy healer decides each tick: keep its patient, else take the weakest in sight; else follow."""
    unit, kind = units[i], kinds[i]
    if unit.target >= 0 and needs_healer(unit, kind, units[unit.target], kinds[unit.target]):
        return
    unit.target = -1
    least = 1.0
    friends, gone = 0, 0.0
    for j in range(rules.allies, rules.allies + rules.enemies):
        friend = units[j]
        if friend.health <= 0.0 or kinds[j].healing > 0.0:
            continue
        dx = friend.x - unit.goal_x
        dy = friend.y - unit.goal_y
        friends += 1
        gone += sqrt(dx * dx + dy * dy)
        share = friend.health / kinds[j].health
        if share < least and needs_healer(unit, kind, friend, kinds[j]):
            least = share
            unit.target = j
    dx = unit.x - unit.goal_x
    dy = unit.y - unit.goal_y
    # It flies behind the army, not ahead of it: waits while it is nearer to the goal than the others on average.
    unit.arrived = sqrt(dx * dx + dy * dy) * friends <= gone


@compiled
def needs_healer(unit: Record, kind: Record, friend: Record, friend_kind: Record) -> bool:
    """Whether a healer sees something to do here."""
    near = distance(unit, friend) - kind.radius - friend_kind.radius <= kind.scan
    return bool(near and can_be_healed(friend, friend_kind))


@compiled
def can_be_healed(unit: Record, kind: Record) -> bool:
    """Whether it is hurt, and made of flesh."""
    return bool(kind.biological and 0.0 < unit.health < kind.health)


@compiled
def call_for_help(j: int, attacker: int, units: Records, rules: Record) -> None:
    """Tell the friends near a hurt enemy who did it, if they have nobody to fight yet."""
    units[j].help_in = HELP_EVERY
    for k in range(rules.allies, rules.allies + rules.enemies):
        friend = units[k]
        if k == j or friend.health <= 0.0 or distance(friend, units[j]) > HELP_REACH:
            continue
        if friend.attacker < 0 or units[friend.attacker].health <= 0.0:
            friend.attacker = attacker


# --- Doing what was ordered -----------------------------------------------------------------------------------------


@compiled
def give_order(i: int, action: int, units: Records, kinds: Records, rules: Record) -> None:
    """Let a living ally do what its agent chose. An order it already has goes on without interruption."""
    unit = units[i]
    if action >= FIRST_TARGET:
        # Healers are offered their friends by the same actions as others are offered enemies.
        target = action - FIRST_TARGET
        if kinds[i].healing == 0.0:
            target += rules.allies
            if kinds[target].layer == AIR and not kinds[i].hits_air:
                return  # offered by SMAC, refused by the game
        if unit.order != ATTACK or unit.target != target:
            unit.order = ATTACK
            unit.target = target
            unit.aiming = False
        return
    unit.target = -1
    unit.aiming = False
    if action <= STOP:
        unit.order = IDLE
        return
    unit.order = MOVE
    unit.goal_x = unit.x
    unit.goal_y = unit.y
    if action == NORTH:
        unit.goal_y += rules.move_amount
    elif action == SOUTH:
        unit.goal_y -= rules.move_amount
    elif action == EAST:
        unit.goal_x += rules.move_amount
    else:
        unit.goal_x -= rules.move_amount


@compiled
def turn(unit: Record, way_x: float, way_y: float) -> float:
    """Turn towards a direction, 62.5 degrees at most. Returns the share of the tick that is left for walking."""
    ahead = unit.facing_x * way_x + unit.facing_y * way_y
    if ahead >= COS_TURN:
        unit.facing_x = way_x
        unit.facing_y = way_y
        return 1.0 if ahead >= COS_AIM else 0.5
    sine = SIN_TURN if unit.facing_x * way_y - unit.facing_y * way_x >= 0.0 else -SIN_TURN
    facing_x = COS_TURN * unit.facing_x - sine * unit.facing_y
    facing_y = sine * unit.facing_x + COS_TURN * unit.facing_y
    length = sqrt(facing_x * facing_x + facing_y * facing_y)
    unit.facing_x = facing_x / length
    unit.facing_y = facing_y / length
    return 0.0


@compiled
def find_way(unit: Record, kind: Record, units: Records, ways: Ways) -> None:
    """Note the next stop on the way to the unit's target, or to where it advances."""
    unit.stop = -1
    if kind.layer != GROUND or (unit.target < 0 and unit.order != ADVANCE):
        return
    x, y = unit.goal_x, unit.goal_y
    if unit.target >= 0 and units[unit.target].health > 0.0:
        x, y = units[unit.target].x, units[unit.target].y
    unit.stop = ways[int(unit.x) * CELLS + int(unit.y), int(x) * CELLS + int(y)]


@compiled
def head_for(unit: Record, kind: Record, goal_x: float, goal_y: float) -> None:
    """Turn towards a goal and set out for it, round corners, and sideways round whoever is in the way."""
    if unit.stop >= 0:
        goal_x = unit.stop // CELLS + 0.5
        goal_y = unit.stop % CELLS + 0.5
    dx = goal_x - unit.x
    dy = goal_y - unit.y
    far = sqrt(dx * dx + dy * dy)
    if far < 1e-9 or kind.speed == 0.0:
        return
    unit.heading_x = dx / far
    unit.heading_y = dy / far
    way_x = unit.heading_x + unit.steer_x
    way_y = unit.heading_y + unit.steer_y
    length = sqrt(way_x * way_x + way_y * way_y)
    if length < 1e-9:
        return
    speed = kind.speed
    if kind.acceleration > 0.0:
        unit.pace = min(unit.pace + kind.acceleration, kind.speed)
        speed = unit.pace
    unit.stride = min(speed, far) * turn(unit, way_x / length, way_y / length)


@compiled
def decide(i: int, units: Records, kinds: Records) -> bool:
    """Advance one unit's order by a tick, as far as nobody else feels it. Returns whether its shot is due."""
    unit, kind = units[i], kinds[i]
    unit.heading_x = 0.0
    unit.heading_y = 0.0
    unit.stride = 0.0
    unit.healing = False
    unit.holding = False
    # What a tick was too long for stays credited for one tick, so that the mean period is exact.
    unit.cooldown = unit.cooldown - 1.0 if unit.cooldown > 0.0 else 0.0

    if unit.target >= 0:
        unit.arrived = False
        target = units[unit.target]
        if target.health > 0.0:
            if kind.healing > 0.0:
                tend(unit, kind, target, kinds[unit.target])
                return False
            return fight(unit, kind, target, kinds[unit.target])
        unit.target = -1
        unit.aiming = False
        if unit.order == ATTACK:
            unit.order = IDLE  # allies look for nobody else by themselves

    if unit.order == MOVE:
        head_for(unit, kind, unit.goal_x, unit.goal_y)
    elif unit.order == ADVANCE:
        dx = unit.goal_x - unit.x
        dy = unit.goal_y - unit.y
        if dx * dx + dy * dy <= ARRIVED * ARRIVED:
            unit.arrived = True
        if not unit.arrived:
            head_for(unit, kind, unit.goal_x, unit.goal_y)
    return False


@compiled
def fight(unit: Record, kind: Record, target: Record, target_kind: Record) -> bool:
    """Chase the target into range, face it, take aim. Returns whether the shot is due in this tick."""
    dx = target.x - unit.x
    dy = target.y - unit.y
    far = sqrt(dx * dx + dy * dy)
    reach = kind.range + kind.radius + target_kind.radius
    if unit.aiming:
        reach += RANGE_SLOP
    if far > reach:
        unit.aiming = False
        head_for(unit, kind, target.x, target.y)
        return False

    unit.holding = True
    if far > 1e-9:
        turn(unit, dx / far, dy / far)
        if unit.facing_x * dx + unit.facing_y * dy < COS_AIM * far:
            unit.aiming = False
            return False
    if not unit.aiming:
        if unit.cooldown > 0.0:
            return False
        unit.aiming = True
        unit.windup = kind.damage_point + unit.cooldown
    else:
        unit.windup -= 1.0
    due: bool = unit.windup <= 0.0
    return due


@compiled
def tend(unit: Record, kind: Record, patient: Record, patient_kind: Record) -> None:
    """Follow a friend, and heal it where it is near enough and hurt."""
    dx = patient.x - unit.x
    dy = patient.y - unit.y
    if sqrt(dx * dx + dy * dy) > kind.range + kind.radius + patient_kind.radius:
        head_for(unit, kind, patient.x, patient.y)
    else:
        unit.healing = unit.energy > 0.0 and can_be_healed(patient, patient_kind)


@compiled
def walk(unit: Record, kind: Record, rules: Record, footing: Bools) -> None:
    """Make the stride that was decided, and stay inside the walls."""
    shift(unit, kind, rules, footing, unit.stride * unit.facing_x, unit.stride * unit.facing_y)


@compiled
def shift(unit: Record, kind: Record, rules: Record, footing: Bools, dx: float, dy: float) -> None:
    """Move a unit, as far as the ground allows."""
    if rules.carved and kind.layer != AIR:
        slide(unit, kind, rules, footing, 1 if kind.layer == GIANT else 0, dx, dy)
        return
    unit.x += dx
    unit.y += dy
    stay_inside(unit, kind, rules)


@compiled
def slide(unit: Record, kind: Record, rules: Record, footing: Bools, who: int, dx: float, dy: float) -> None:
    """Move a unit over ground with blocked cells: they push back what touches them, and it slides along, or stays."""
    x, y = unit.x, unit.y
    unit.x += dx
    unit.y += dy
    stay_inside(unit, kind, rules)
    push_off_walls(unit, min(kind.radius, WALL_REACH), footing, who)
    if not footing[who, int(unit.x), int(unit.y)]:
        if footing[who, int(unit.x), int(y)]:
            unit.y = y
        elif footing[who, int(x), int(unit.y)]:
            unit.x = x
        else:
            unit.x = x
            unit.y = y


@compiled
def stay_inside(unit: Record, kind: Record, rules: Record) -> None:
    """Keep the unit's edge on this side of the walls. What flies knows only the end of the map."""
    if kind.layer == AIR:
        unit.x = min(max(unit.x, kind.radius), CELLS - kind.radius)
        unit.y = min(max(unit.y, kind.radius), CELLS - kind.radius)
        return
    unit.x = min(max(unit.x, rules.west + kind.radius), rules.east - kind.radius)
    unit.y = min(max(unit.y, rules.south + kind.radius), rules.north - kind.radius)


@compiled
def push_off_walls(unit: Record, reach: float, footing: Bools, who: int) -> None:
    """Put a unit this far from the blocked cells round its own."""
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


# --- Hurting --------------------------------------------------------------------------------------------------------


@compiled
def shoot(i: int, units: Records, kinds: Records, damage: NDArray[np.float64], rules: Record, battle: Record) -> None:
    """Let go of a shot that was due, unless somebody was quicker."""
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
        unit.hit_x = units[target].x
        unit.hit_y = units[target].y
    elif kind.missile_speed > 0.0:
        edge = distance(unit, units[target]) - kind.radius - kinds[target].radius
        unit.hit_in = max(edge, 0.0) / kind.missile_speed
    else:
        unit.hit_in = kind.hit_gap
        unit.hits_left -= 1
        hurt(target, i, units, kinds, damage, rules)


@compiled
def land(i: int, units: Records, kinds: Records, damage: NDArray[np.float64], rules: Record) -> None:
    """Let the later hits of a shot arrive. A missile outlives who sent it, a second blow does not."""
    unit, kind = units[i], kinds[i]
    if unit.health <= 0.0 and kind.missile_speed == 0.0:
        unit.hits_left = 0
        return
    while unit.hits_left > 0 and unit.hit_in <= 0.0:
        unit.hits_left -= 1
        unit.hit_in += kind.hit_gap
        if kind.sweep > 0.0:
            sweep(i, units, kinds, damage, rules)
        elif units[unit.hit_target].health > 0.0:
            hurt(unit.hit_target, i, units, kinds, damage, rules)


@compiled
def sweep(i: int, units: Records, kinds: Records, damage: NDArray[np.float64], rules: Record) -> None:
    """Draw a beam across its target, over the ground: it hurts every foe on its line."""
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
        if other.health <= 0.0 or kinds[j].layer == AIR:
            continue
        away_x = other.x - unit.hit_x
        away_y = other.y - unit.hit_y
        along = min(max((away_y * dx - away_x * dy) / far, -kind.sweep), kind.sweep)
        away_x += along * dy / far
        away_y -= along * dx / far
        if sqrt(away_x * away_x + away_y * away_y) <= kinds[j].radius + SWEEP_REACH:
            hurt(j, i, units, kinds, damage, rules)


@compiled
def burst_all(units: Records, kinds: Records, damage: NDArray[np.float64], rules: Record) -> None:
    """Let those who are to burst do it, and those they kill by it, until nobody is left who would."""
    again = True
    while again:
        again = False
        for i in range(len(units)):
            if units[i].bursting:
                units[i].bursting = False
                again = True
                burst(i, units, kinds, damage, rules)


@compiled
def burst(i: int, units: Records, kinds: Records, damage: NDArray[np.float64], rules: Record) -> None:
    """Hurt every foe on the ground who is near."""
    first, last = (rules.allies, rules.allies + rules.enemies) if i < rules.allies else (0, rules.allies)
    for j in range(first, last):
        near = distance(units[i], units[j]) - kinds[j].radius <= kinds[i].burst
        if near and units[j].health > 0.0 and kinds[j].layer != AIR:
            hurt(j, i, units, kinds, damage, rules)


@compiled
def hurt(j: int, attacker: int, units: Records, kinds: Records, damage: NDArray[np.float64], rules: Record) -> None:
    """One hit: the shield takes what it can, armour softens the rest."""
    unit = units[j]
    through = damage[attacker, j]
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
        if unit.help_in == 0:
            call_for_help(j, attacker, units, rules)


# --- Keeping apart --------------------------------------------------------------------------------------------------


@compiled
def separate(units: Records, kinds: Records, rules: Record, footing: Bools) -> None:
    """Push overlapping units apart, and let those who walk see what they are about to walk into."""
    n = len(units)
    for i in range(n):
        unit = units[i]
        unit.push_x = 0.0
        unit.push_y = 0.0
        unit.steer_x = 0.0
        unit.steer_y = 0.0

    for i in range(n):
        one = units[i]
        if one.health <= 0.0:
            continue
        for j in range(i + 1, n):
            other = units[j]
            dx = other.x - one.x
            dy = other.y - one.y
            touch = kinds[i].separation + kinds[j].separation
            near = touch + STEER_REACH
            squared = dx * dx + dy * dy
            if squared >= near * near or other.health <= 0.0 or kinds[i].layer != kinds[j].layer:
                continue
            far = sqrt(squared)
            if far < 1e-6:
                # Two on one spot have no direction to part in; any will do.
                dx, dy, far = 1e-6, 0.0, 1e-6
            dx /= far
            dy /= far
            if far < touch:
                push_apart(one, other, dx, dy, touch - far)
                if one.arrived or other.arrived:
                    arrive_with(one, rules)
                    arrive_with(other, rules)
            closeness = 1.0 - max(far - touch, 0.0) / STEER_REACH
            if one.stride > 0.0 and one.target != j:
                steer_round(i, one, other, dx, dy, closeness)
            if other.stride > 0.0 and other.target != i:
                steer_round(j, other, one, -dx, -dy, closeness)

    for i in range(n):
        unit = units[i]
        if unit.health <= 0.0:
            continue
        steer = sqrt(unit.steer_x * unit.steer_x + unit.steer_y * unit.steer_y)
        if steer > STEER_LIMIT:
            unit.steer_x *= STEER_LIMIT / steer
            unit.steer_y *= STEER_LIMIT / steer
        if kinds[i].speed > 0.0:
            shift(unit, kinds[i], rules, footing, unit.push_x, unit.push_y)


@compiled
def push_apart(one: Record, other: Record, dx: float, dy: float, overlap: float) -> None:
    """Divide an overlap between two; (dx, dy) is the unit vector from one to the other."""
    share = 0.5
    if one.holding and not other.holding:
        share = SOFT_HOLD
    elif other.holding and not one.holding:
        share = 1.0 - SOFT_HOLD
    one.push_x -= share * overlap * dx
    one.push_y -= share * overlap * dy
    other.push_x += (1.0 - share) * overlap * dx
    other.push_y += (1.0 - share) * overlap * dy


@compiled
def arrive_with(unit: Record, rules: Record) -> None:
    """Stop where a friend has stopped who is in the way: an army does not squeeze itself onto one point."""
    dx = unit.goal_x - unit.x
    dy = unit.goal_y - unit.y
    if unit.order == ADVANCE and unit.target < 0 and dx * dx + dy * dy <= rules.crowd * rules.crowd:
        unit.arrived = True


@compiled
def steer_round(i: int, unit: Record, other: Record, dx: float, dy: float, closeness: float) -> None:
    """Swerve from somebody ahead who does not go the same way, to the side he is not on."""
    ahead = unit.heading_x * dx + unit.heading_y * dy
    if ahead <= STEER_AHEAD or unit.heading_x * other.heading_x + unit.heading_y * other.heading_y > 0.0:
        return
    weight = closeness * ahead
    across = unit.heading_x * dy - unit.heading_y * dx
    if across > 1e-9 or (across >= -1e-9 and i % 2 == 0):
        weight = -weight
    unit.steer_x -= weight * unit.heading_y
    unit.steer_y += weight * unit.heading_x


# --- One tick, one step, one episode --------------------------------------------------------------------------------


@compiled
def play_tick(
    units: Records,
    battle: Record,
    kinds: Records,
    damage: NDArray[np.float64],
    rules: Record,
    footing: Bools,
    ways: Ways,
) -> None:
    """A sixteenth of a second."""
    n = len(units)
    for i in range(rules.allies, n):
        if units[i].health > 0.0:
            if kinds[i].healing > 0.0:
                choose_patient(i, units, kinds, rules)
            else:
                choose_target(i, units, kinds, rules)

    if len(ways) > 0:
        for i in range(n):
            if units[i].health > 0.0:
                find_way(units[i], kinds[i], units, ways)

    events = 0
    for i in range(n):
        unit = units[i]
        if unit.hits_left > 0:
            unit.hit_in -= 1.0
            if unit.hit_in <= 0.0:
                units[events].event = n + i
                events += 1
        # The last hit of a shot comes long before the next shot (`tables` sees to it): at most one event each.
        if unit.health > 0.0 and decide(i, units, kinds):
            units[events].event = i
            events += 1

    for i in range(n):
        if units[i].stride > 0.0:
            walk(units[i], kinds[i], rules, footing)

    # The game handles units in random order, so that of two who would kill each other only one does.
    for k in range(events - 1, 0, -1):
        other = int(draw(battle) * (k + 1))
        swapped = units[k].event
        units[k].event = units[other].event
        units[other].event = swapped
    for k in range(events):
        event = units[k].event
        if event < n:
            shoot(event, units, kinds, damage, rules, battle)
        else:
            land(event - n, units, kinds, damage, rules)
        if rules.bursts:
            burst_all(units, kinds, damage, rules)

    for i in range(n):
        unit = units[i]
        if unit.health <= 0.0:
            # The dead are out of everybody's way and walk no more.
            unit.stride = 0.0
            unit.holding = False
            continue
        unit.quiet += 1
        if unit.help_in > 0:
            unit.help_in -= 1
        if unit.quiet > SHIELD_REST and unit.shield < kinds[i].shield:
            unit.shield = min(unit.shield + SHIELD_REGEN, kinds[i].shield)
        if rules.regenerates and kinds[i].regeneration > 0.0:
            unit.health = min(unit.health + kinds[i].regeneration, kinds[i].health)
    if rules.healers:
        for i in range(n):
            if kinds[i].healing > 0.0 and units[i].health > 0.0:
                heal(units[i], kinds[i], units, kinds)

    battle.tick += 1
    if battle.tick % 2 == 0:
        separate(units, kinds, rules, footing)


@compiled
def heal(unit: Record, kind: Record, units: Records, kinds: Records) -> None:
    """A tick of a healer's work, and of its rest."""
    if unit.healing and can_be_healed(units[unit.target], kinds[unit.target]):
        patient = units[unit.target]
        given = min(kind.healing, kinds[unit.target].health - patient.health)
        given = min(given, unit.energy / ENERGY_PER_HEALTH)
        patient.health += given
        unit.energy = max(unit.energy - given * ENERGY_PER_HEALTH, 0.0)
    if unit.stride == 0.0:
        unit.pace = 0.0
    unit.energy = min(unit.energy + ENERGY_REGEN, FULL_ENERGY)


@compiled
def play_step(
    units: Records,
    battle: Record,
    kinds: Records,
    damage: NDArray[np.float64],
    rules: Record,
    footing: Bools,
    ways: Ways,
    actions: Ints,
) -> None:
    """The ticks between two decisions. Orders arrive after the first of them, as in the game."""
    for i in range(len(units)):
        units[i].before = units[i].health + units[i].shield
    for tick in range(rules.ticks):
        play_tick(units, battle, kinds, damage, rules, footing, ways)
        if tick == 0:
            for i in range(rules.allies):
                if units[i].health > 0.0:
                    give_order(i, actions[i], units, kinds, rules)
    for i in range(rules.allies):
        units[i].last_action = actions[i]
    battle.steps += 1


@compiled
def judge(
    b: int,
    units: Records,
    battle: Record,
    kinds: Records,
    rules: Record,
    reward: Floats,
    terminated: Bools,
    truncated: Bools,
    won: Bools,
) -> None:
    """What SMAC makes of the step: the reward, and whether it was the last."""
    allies_left, enemies_left = 0, 0
    gained, lost = 0.0, 0.0
    for i in range(len(units)):
        unit = units[i]
        change = unit.before - (unit.health + unit.shield)
        if unit.before > 0.0 and unit.health <= 0.0:
            change += rules.reward_death_value
        if i < rules.allies:
            lost += rules.reward_negative_scale * change
            allies_left += unit.health > 0.0 and kinds[i].healing == 0.0
        else:
            gained += change
            enemies_left += unit.health > 0.0 and kinds[i].healing == 0.0

    total = 0.0
    if not rules.reward_sparse:
        # The absolute value, not the positive part: enemy shields that recover are rewarded, in SMAC as here.
        total = abs(gained) if rules.reward_only_positive else gained - lost
    terminated[b] = allies_left == 0 or enemies_left == 0
    won[b] = allies_left > 0 and enemies_left == 0
    if won[b]:
        total = 1.0 if rules.reward_sparse else total + rules.reward_win
    elif allies_left == 0 and (enemies_left > 0 or rules.healers):  # SMAC asks for healers first, and no further
        total = -1.0 if rules.reward_sparse else total + rules.reward_defeat
    truncated[b] = not terminated[b] and battle.steps >= rules.limit
    battle.over = terminated[b] or truncated[b]
    reward[b] = total / rules.reward_divisor


@compiled
def line_up(units: Records, battle: Record, kinds: Records, rules: Record, footing: Bools) -> None:
    """Put everybody at the start, alive and well."""
    march_x, march_y = rules.march_x, rules.march_y
    if rules.march_dx != 0.0 or rules.march_dy != 0.0:
        share = draw(battle)
        march_x += share * rules.march_dx
        march_y += share * rules.march_dy
    for i in range(len(units)):
        unit, kind = units[i], kinds[i]
        ally = i < rules.allies
        unit.x = kind.start_x
        unit.y = kind.start_y
        if rules.start_jitter > 0.0:
            unit.x += rules.start_jitter * (2.0 * draw(battle) - 1.0)
            unit.y += rules.start_jitter * (2.0 * draw(battle) - 1.0)
            stay_inside(unit, kind, rules)
            if rules.carved and not is_open(footing[0], unit.x, unit.y):
                unit.x = kind.start_x
                unit.y = kind.start_y
        stay_inside(unit, kind, rules)  # a large army's spiral may reach over an edge
        unit.health = kind.health
        unit.shield = kind.shield
        unit.energy = FIRST_ENERGY if kind.healing > 0.0 else 0.0
        unit.before = kind.health + kind.shield
        unit.quiet = 0
        unit.facing_x = 1.0 if ally else -1.0
        unit.facing_y = 0.0
        unit.heading_x = 0.0
        unit.heading_y = 0.0
        unit.stride = 0.0
        unit.pace = 0.0
        unit.steer_x = 0.0
        unit.steer_y = 0.0
        unit.push_x = 0.0
        unit.push_y = 0.0
        unit.order = IDLE if ally else ADVANCE
        unit.goal_x = march_x
        unit.goal_y = march_y
        unit.stop = -1
        unit.target = -1
        unit.attacker = -1
        unit.help_in = 0
        unit.bursting = False
        unit.healing = False
        unit.holding = False
        unit.arrived = False
        unit.aiming = False
        unit.windup = 0.0
        unit.cooldown = 0.0
        unit.hits_left = 0
        unit.hit_in = 0.0
        unit.hit_target = -1
        unit.hit_x = 0.0
        unit.hit_y = 0.0
        unit.last_action = -1
        unit.event = 0

    # Agents are numbered by type, then x, then y; they differ in nothing else yet, so moving the places is enough.
    for i in range(1, rules.allies):
        j = i
        while j > 0 and kinds[j].rank == kinds[j - 1].rank:
            left, right = units[j - 1], units[j]
            if left.x < right.x or (left.x == right.x and left.y <= right.y):
                break
            x, y = left.x, left.y
            left.x = right.x
            left.y = right.y
            right.x = x
            right.y = y
            j -= 1
    battle.tick = 0
    battle.steps = 0
    battle.over = False


# --- What agents may do and see -------------------------------------------------------------------------------------


@compiled
def list_actions(i: int, units: Records, kinds: Records, rules: Record, walkable: Bools, available: Bools) -> None:
    """Write what agent i may do, (U,)."""
    available[:] = False
    unit = units[i]
    if unit.health <= 0.0:
        available[NO_OP] = True
        return
    probe = rules.move_amount / 2.0
    available[STOP] = True
    available[NORTH] = is_open(walkable, unit.x, unit.y + probe)
    available[SOUTH] = is_open(walkable, unit.x, unit.y - probe)
    available[EAST] = is_open(walkable, unit.x + probe, unit.y)
    available[WEST] = is_open(walkable, unit.x - probe, unit.y)
    if kinds[i].healing > 0.0:
        for k in range(min(rules.allies, rules.enemies)):
            if units[k].health > 0.0 and kinds[k].healing == 0.0:
                available[FIRST_TARGET + k] = distance(unit, units[k]) <= SHOOT
        return
    for e in range(rules.enemies):
        enemy = units[rules.allies + e]
        available[FIRST_TARGET + e] = enemy.health > 0.0 and distance(unit, enemy) <= SHOOT


@compiled
def probe_ground(
    unit: Record, rules: Record, walkable: Bools, height: NDArray[np.float64], at: int, row: Floats
) -> int:
    """Write the ground around a unit; returns the next free index."""
    x, y = int(unit.x), int(unit.y)
    near = int(rules.move_amount)
    far = int(2.0 * rules.move_amount)
    for kind in range(2):
        if (kind == 0 and not rules.obs_pathing_grid) or (kind == 1 and not rules.obs_terrain_height):
            continue
        for point in range(8 + kind):
            dx, dy = 0, 0
            if point == 0:
                dy = far
            elif point == 1:
                dy = -far
            elif point == 2:
                dx = far
            elif point == 3:
                dx = -far
            elif point < 8:
                dx = near if point % 2 == 0 else -near
                dy = near if point in (4, 7) else -near
            value = 1.0
            if 0 <= x + dx < CELLS and 0 <= y + dy < CELLS:
                if kind == 1:
                    value = height[x + dx, y + dy] / 255.0
                elif not walkable[x + dx, y + dy]:
                    value = 0.0
            row[at] = value
            at += 1
    return at


@compiled
def observe(
    i: int,
    units: Records,
    battle: Record,
    kinds: Records,
    rules: Record,
    walkable: Bools,
    height: NDArray[np.float64],
    available: Bools,
    row: Floats,
) -> None:
    """Write what agent i sees, (O,): where it may go, the enemies, its friends, itself. All zero once it is dead."""
    row[:] = 0.0
    me, kind = units[i], kinds[i]
    if rules.obs_timestep_number:
        row[len(row) - 1] = battle.steps / rules.limit
    if me.health <= 0.0:
        return
    actions = len(available)

    for action in range(NORTH, FIRST_TARGET):
        row[action - NORTH] = available[action]
    at = probe_ground(me, rules, walkable, height, 4, row)

    enemy_width = 4 + rules.type_bits
    ally_width = 4 + rules.type_bits
    if rules.obs_all_health:
        enemy_width += 1 + rules.enemy_shield
        ally_width += 1 + rules.ally_shield
    if rules.obs_last_action:
        ally_width += actions

    friends_at = at + rules.enemies * enemy_width

    for j in range(len(units)):
        other = units[j]
        if j == i or other.health <= 0.0:
            continue
        far = distance(me, other)
        if far >= SIGHT:
            continue
        is_enemy = j >= rules.allies
        if is_enemy:
            p = at + (j - rules.allies) * enemy_width
            row[p] = available[FIRST_TARGET + j - rules.allies]
        else:
            p = friends_at + (j - 1 if j > i else j) * ally_width
            row[p] = 1.0
        row[p + 1] = far / SIGHT
        row[p + 2] = (other.x - me.x) / SIGHT
        row[p + 3] = (other.y - me.y) / SIGHT
        p += 4
        if rules.obs_all_health:
            row[p] = other.health / kinds[j].health
            p += 1
            if rules.enemy_shield if is_enemy else rules.ally_shield:
                row[p] = other.shield / kinds[j].shield
                p += 1
        if rules.type_bits > 0:
            row[p + kinds[j].type_bit] = 1.0
            p += rules.type_bits
        if rules.obs_last_action and not is_enemy and other.last_action >= 0:
            row[p + other.last_action] = 1.0

    at = friends_at + (rules.allies - 1) * ally_width
    if rules.obs_own_health:
        row[at] = me.health / kind.health
        at += 1
        if rules.ally_shield:
            row[at] = me.shield / kind.shield
            at += 1
    if rules.type_bits > 0:
        row[at + kind.type_bit] = 1.0


@compiled
def write_state(
    units: Records, battle: Record, kinds: Records, rules: Record, observations: Floats, row: Floats
) -> None:
    """Write what a central critic sees, (S,): all units by absolute position, then the agents' last actions."""
    row[:] = 0.0
    if rules.obs_instead_of_state:
        agents, width = observations.shape
        for i in range(agents):
            row[i * width : (i + 1) * width] = observations[i]
        return
    at = 0
    for i in range(len(units)):
        unit, kind = units[i], kinds[i]
        is_ally = i < rules.allies
        has_shield = rules.ally_shield if is_ally else rules.enemy_shield
        width = 3 + is_ally + has_shield + rules.type_bits
        if unit.health > 0.0:
            p = at
            row[p] = unit.health / kind.health
            p += 1
            if is_ally:
                row[p] = max(unit.cooldown, 0.0) / kind.full_cooldown
                if kind.healing > 0.0:
                    row[p] = unit.energy / FULL_ENERGY
                p += 1
            row[p] = (unit.x - MIDDLE) / CELLS
            row[p + 1] = (unit.y - MIDDLE) / CELLS
            p += 2
            if has_shield:
                row[p] = unit.shield / kind.shield
                p += 1
            if rules.type_bits > 0:
                row[p + kind.type_bit] = 1.0
        at += width
    if rules.state_last_action:
        for i in range(rules.allies):
            if units[i].last_action >= 0:
                row[at + units[i].last_action] = 1.0
            at += FIRST_TARGET + rules.enemies
    if rules.state_timestep_number:
        row[at] = battle.steps / rules.limit


@compiled
def show(
    units: Records,
    battle: Record,
    kinds: Records,
    rules: Record,
    walkable: Bools,
    height: NDArray[np.float64],
    available: Bools,
    obs: Floats,
    state: Floats,
) -> None:
    """Write all that agents and critic see of one battle."""
    for i in range(rules.allies):
        list_actions(i, units, kinds, rules, walkable, available[i])
        observe(i, units, battle, kinds, rules, walkable, height, available[i], obs[i])
    write_state(units, battle, kinds, rules, obs, state)


# --- B battles ------------------------------------------------------------------------------------------------------


@compiled
def first_refused(actions: Ints, battles: Records, available: Bools) -> int:
    """The number b * A + i of the first action that can't be taken, or -1."""
    copies, agents = actions.shape
    choices = available.shape[2]
    for b in range(copies):
        for i in range(agents):
            action = actions[b, i]
            if battles[b].over or action < 0 or action >= choices or not available[b, i, action]:
                number: int = b * agents + i
                return number
    return -1


@compiled
def reset_all(
    which: Bools,
    units: Records,
    battles: Records,
    kinds: Records,
    rules: Records,
    footing: Bools,
    height: NDArray[np.float64],
    obs: Floats,
    state: Floats,
    available: Bools,
    reward: Floats,
    terminated: Bools,
    truncated: Bools,
    won: Bools,
) -> None:
    """Begin a new episode in the battles that `which` (B,) names."""
    for b in range(len(battles)):
        if which[b]:
            line_up(units[b], battles[b], kinds, rules[0], footing)
            show(units[b], battles[b], kinds, rules[0], footing[0], height, available[b], obs[b], state[b])
            reward[b] = 0.0
            terminated[b] = False
            truncated[b] = False
            won[b] = False


@compiled
def step_all(
    actions: Ints,
    units: Records,
    battles: Records,
    kinds: Records,
    damage: NDArray[np.float64],
    rules: Records,
    footing: Bools,
    ways: Ways,
    height: NDArray[np.float64],
    obs: Floats,
    state: Floats,
    available: Bools,
    reward: Floats,
    terminated: Bools,
    truncated: Bools,
    won: Bools,
) -> None:
    """One step of every battle; the actions have been checked."""
    for b in range(len(battles)):
        play_step(units[b], battles[b], kinds, damage, rules[0], footing, ways, actions[b])
        judge(b, units[b], battles[b], kinds, rules[0], reward, terminated, truncated, won)
        show(units[b], battles[b], kinds, rules[0], footing[0], height, available[b], obs[b], state[b])


@compiled
def show_all(
    units: Records,
    battles: Records,
    kinds: Records,
    rules: Records,
    footing: Bools,
    height: NDArray[np.float64],
    obs: Floats,
    state: Floats,
    available: Bools,
) -> None:
    """Write again what can be seen, after the records were changed from outside."""
    for b in range(len(battles)):
        show(units[b], battles[b], kinds, rules[0], footing[0], height, available[b], obs[b], state[b])


COMPILED = hasattr(step_all, "py_func")
"""False under `NUMBA_DISABLE_JIT=1`."""
