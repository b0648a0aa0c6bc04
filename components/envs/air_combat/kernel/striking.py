"""Missiles: attacks, flight, hits."""

from math import sqrt

from components.envs.air_combat.kernel.chance import draw
from components.envs.air_combat.kernel.compiling import compiled
from components.envs.air_combat.kernel.constants import Record, Records
from components.envs.air_combat.kernel.sensing import enemies_of


@compiled
def can_attack(i: int, j: int, medium: bool, units: Records, rules: Record, margin: float) -> bool:
    """Return whether unit i has such a missile, and unit j is alive, known, and within its range plus `margin`."""
    unit, target = units[i], units[j]
    left = unit.medium_left if medium else unit.long_left
    if left <= 0 or not target.alive or not target.known:
        return False
    reach = margin + (rules.medium_range if medium else rules.long_range)
    dx, dy = target.last_x - unit.x, target.last_y - unit.y
    return dx * dx + dy * dy <= reach * reach  # type: ignore[no-any-return]  # a numpy bool, to the type checker


@compiled
def strike(missile: Record, observed: float, units: Records, battle: Record, kinds: Records, rules: Record) -> None:
    """Decide whether a missile that has arrived hits.

    The probability of a hit falls linearly with the distance at which it was fired, and is multiplied by the share of
    its flight in which its target was observed.
    """
    target, attacker = units[missile.target], units[missile.attacker]
    is_fighter = kinds[missile.target].fighter
    if rules.hit_prob_enable:
        near = rules.medium_hit_near if missile.medium else rules.long_hit_near
        far = rules.medium_hit_far if missile.medium else rules.long_hit_far
        reach = rules.medium_range if missile.medium else rules.long_range
        if draw(battle) >= (near + (far - near) * missile.distance / reach) * observed:
            attacker.reward += rules.miss_fighter if is_fighter else rules.miss_detector
            return
    target.doomed = True
    attacker.reward += rules.hit_fighter if is_fighter else rules.hit_detector
    target.reward += rules.fighter_destroyed if is_fighter else rules.detector_destroyed
    if missile.attacker < rules.red:
        battle.hits_red += 1
    else:
        battle.hits_blue += 1


@compiled
def is_due(i: int, attack: int, units: Records, rules: Record) -> bool:
    """Return whether the attack that unit i is ordered to make can be made now."""
    first, last = enemies_of(i, units, rules)
    if attack <= 0 or attack > 2 * (last - first):
        return False
    return can_attack(i, first + (attack - 1) % (last - first), attack > last - first, units, rules, 0.0)


@compiled
def attack_all(units: Records, missiles: Records, battle: Record, kinds: Records, rules: Record) -> int:
    """Carry out the attacks of this step, side 1 first; return the number of missiles in flight before.

    An invalid attack gets the reward `invalid_attack` and uses no missile.
    """
    before: int = battle.flying
    for i in range(len(units)):
        unit = units[i]
        if not unit.alive or unit.attack == 0:
            continue
        first, last = enemies_of(i, units, rules)
        medium = unit.attack > last - first
        j = first + (unit.attack - 1) % (last - first)
        if unit.attack > 2 * (last - first) or not can_attack(i, j, medium, units, rules, 0.0):
            unit.reward += rules.invalid_attack
            continue
        unit.reward += rules.valid_attack
        if medium:
            unit.medium_left -= 1
        else:
            unit.long_left -= 1
        if i < rules.red:
            battle.fired_red += 1
        else:
            battle.fired_blue += 1
        missile = missiles[battle.flying]
        missile.attacker = i
        missile.target = j
        missile.medium = medium
        missile.source = units[j].source
        missile.x = unit.x
        missile.y = unit.y
        dx, dy = units[j].last_x - unit.x, units[j].last_y - unit.y
        missile.distance = sqrt(dx * dx + dy * dy)
        missile.steps = 0
        missile.observed = 0
        if rules.attack_effect_delay:
            battle.flying += 1
        elif not units[j].doomed:
            strike(missile, 1.0, units, battle, kinds, rules)
    return before


@compiled
def fly_all(before: int, units: Records, missiles: Records, battle: Record, kinds: Records, rules: Record) -> None:
    """Fly the first `before` missiles a step towards the current or last known positions of their targets.

    If several arrive at a target in one step, they are decided in the order of firing, until one hits.
    """
    kept = 0
    for k in range(battle.flying):
        missile = missiles[k]
        target = units[missile.target]
        if k < before and not target.doomed:
            missile.steps += 1
            if target.known:
                missile.observed += 1
            dx, dy = target.last_x - missile.x, target.last_y - missile.y
            distance = sqrt(dx * dx + dy * dy)
            speed = rules.medium_speed if missile.medium else rules.long_speed
            if distance <= speed:
                missile.x = target.last_x
                missile.y = target.last_y
                strike(missile, missile.observed / missile.steps, units, battle, kinds, rules)
                continue
            missile.x += dx / distance * speed
            missile.y += dy / distance * speed
        if kept != k:
            missiles[kept] = missiles[k]
        kept += 1
    battle.flying = kept


@compiled
def fall_all(units: Records, missiles: Records, battle: Record) -> None:
    """Remove the units that were hit and the missiles at them, and count the missiles at each of the others."""
    for i in range(len(units)):
        unit = units[i]
        unit.threats = 0
        if unit.doomed:
            unit.alive = False
            unit.doomed = False
            unit.known = False
            unit.radar = 0
            unit.jammer = 0
    kept = 0
    for k in range(battle.flying):
        target = units[missiles[k].target]
        if target.alive:
            target.threats += 1
            if kept != k:
                missiles[kept] = missiles[k]
            kept += 1
    battle.flying = kept
