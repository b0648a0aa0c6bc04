"""Orders: what a unit was told to do, carried out tick by tick."""

from math import sqrt

from .compiling import inlined
from .constants import (
    ADVANCE,
    AIR,
    ATTACK,
    CELLS,
    EAST,
    GROUND,
    IDLE,
    MOVE,
    NORTH,
    RANGE_SLOP,
    SOUTH,
    STOP,
    Record,
    Records,
    Ways,
)
from .healing import can_be_healed

COS_TURN, SIN_TURN = 0.4616948, 0.8870355  # 62.49 degrees: 999.84 a second
COS_AIM = 0.9807853  # 11.25 degrees: largest angle to the target at which a unit shoots
COS_BEAM = 0.7071068  # 45 degrees, for beams, which swing
COS_HEAL = 0.9659420  # 14.9963 degrees
ARRIVED = 0.5  # distance from its goal at which an advance ends


@inlined
def order_attack(i: int, target: int, units: Records, kinds: Records) -> None:
    """Order a unit to attack another until that is dead, or a healer to heal it.

    A unit refuses the order if its weapon cannot hit the target. An attack on the same target goes on without
    interruption.
    """
    unit = units[i]
    if kinds[i].healing == 0.0 and kinds[target].layer == AIR and not kinds[i].hits_air:
        return
    if unit.order != ATTACK or unit.target != target:
        unit.order = ATTACK
        unit.target = target
        unit.aiming = False


@inlined
def give_order(i: int, action: int, units: Records, kinds: Records, rules: Record) -> None:
    """Give a living unit the order of its agent's action. SMAC offers attacks that the game refuses, too.

    An opponent that commands the enemies sees the map rotated by 180 degrees, so its north is the allies' south.
    """
    unit = units[i]
    if action >= rules.first_target:
        # The actions that attack enemies for other units heal friends for healers.
        target = action - rules.first_target
        if (kinds[i].healing == 0.0) == (i < rules.allies):
            target += rules.allies
        order_attack(i, target, units, kinds)
        return
    unit.target = -1
    unit.aiming = False
    if action <= STOP:
        unit.order = IDLE
        return
    unit.order = MOVE
    unit.goal_x = unit.x
    unit.goal_y = unit.y
    far = rules.move_amount if i < rules.allies else -rules.move_amount
    if action == NORTH:
        unit.goal_y += far
    elif action == SOUTH:
        unit.goal_y -= far
    elif action == EAST:
        unit.goal_x += far
    else:
        unit.goal_x -= far


@inlined
def turn(unit: Record, way_x: float, way_y: float) -> None:
    """Turn a standing unit towards a direction, 62.5 degrees at most."""
    if unit.facing_x * way_x + unit.facing_y * way_y >= COS_TURN:
        unit.facing_x = way_x
        unit.facing_y = way_y
        return
    sine = SIN_TURN if unit.facing_x * way_y - unit.facing_y * way_x >= 0.0 else -SIN_TURN
    facing_x = COS_TURN * unit.facing_x - sine * unit.facing_y
    facing_y = sine * unit.facing_x + COS_TURN * unit.facing_y
    length = sqrt(facing_x * facing_x + facing_y * facing_y)
    unit.facing_x = facing_x / length
    unit.facing_y = facing_y / length


@inlined
def find_way(unit: Record, kind: Record, units: Records, ways: Ways) -> None:
    """Set the next stop on the way to the unit's target, or to the goal of its advance."""
    unit.stop = -1
    if kind.layer != GROUND or (unit.target < 0 and unit.order != ADVANCE):
        return
    x, y = unit.goal_x, unit.goal_y
    if unit.target >= 0 and units[unit.target].health > 0.0:
        x, y = units[unit.target].x, units[unit.target].y
    unit.stop = ways[int(unit.x) * CELLS + int(unit.y), int(x) * CELLS + int(y)]


@inlined
def head_for(unit: Record, kind: Record, goal_x: float, goal_y: float) -> None:
    """Walk towards a goal, round corners, and sideways round units in the way. Turning takes no time."""
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
    unit.facing_x = way_x / length
    unit.facing_y = way_y / length
    unit.stride = min(speed, far)


@inlined
def fight(unit: Record, kind: Record, target: Record, target_kind: Record) -> bool:
    """Chase the target into range, face it and aim. Return whether the shot is due in this tick."""
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
        if unit.facing_x * dx + unit.facing_y * dy < (COS_BEAM if kind.sweep > 0.0 else COS_AIM) * far:
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


@inlined
def tend(unit: Record, kind: Record, patient: Record, patient_kind: Record) -> None:
    """Follow a friend. If it is in range and hurt, face it and heal it."""
    dx = patient.x - unit.x
    dy = patient.y - unit.y
    far = sqrt(dx * dx + dy * dy)
    if far > kind.range + kind.radius + patient_kind.radius:
        head_for(unit, kind, patient.x, patient.y)
    elif unit.energy > 0.0 and can_be_healed(patient, patient_kind):
        if far > 1e-9:
            turn(unit, dx / far, dy / far)
        unit.healing = unit.facing_x * dx + unit.facing_y * dy >= COS_HEAL * far


@inlined
def decide(i: int, units: Records, kinds: Records) -> bool:
    """Advance one unit's order by a tick, without effects on other units. Return whether its shot is due."""
    unit, kind = units[i], kinds[i]
    unit.heading_x = 0.0
    unit.heading_y = 0.0
    unit.stride = 0.0
    unit.healing = False
    unit.holding = False
    # The part of a tick that exceeds the cooldown is credited for one tick, so that the mean period is exact.
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
            unit.order = IDLE  # allies choose no new target by themselves, enemies do so at once
            unit.attacker = -1  # forgets attackers from before: during the order it ignored them

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
