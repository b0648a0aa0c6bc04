"""Healers: how they choose a patient, and how they heal."""

from math import sqrt

from .compiling import inlined, internal
from .constants import FULL_ENERGY, Record, Records
from .ground import distance

ENERGY_REGEN = 0.5625 / 16.0
ENERGY_PER_HEALTH = 0.33


@inlined
def can_be_healed(unit: Record, kind: Record) -> bool:
    """True if a living unit is biological and hurt."""
    return bool(kind.biological and 0.0 < unit.health < kind.health)


@inlined
def needs_healer(unit: Record, kind: Record, friend: Record, friend_kind: Record) -> bool:
    """True if a friend can be healed and is in a healer's scan range."""
    near = distance(unit, friend) - kind.radius - friend_kind.radius <= kind.scan
    return bool(near and can_be_healed(friend, friend_kind))


@internal
def choose_patient(i: int, units: Records, kinds: Records, rules: Record, looks: bool) -> None:
    """Choose an enemy healer's target: its patient while that needs healing, else the weakest friend if `looks`.

    Without a patient, it follows the army.
    """
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
        if looks and share < least and needs_healer(unit, kind, friend, kinds[j]):
            least = share
            unit.target = j
    dx = unit.x - unit.goal_x
    dy = unit.y - unit.goal_y
    # The healer stays behind the army: it waits while it is nearer to the goal than the others on average.
    unit.arrived = sqrt(dx * dx + dy * dy) * friends <= gone


@internal
def heal(unit: Record, kind: Record, units: Records, kinds: Records) -> None:
    """Play a healer's tick: heal its patient, and recover energy."""
    if unit.healing and can_be_healed(units[unit.target], kinds[unit.target]):
        patient = units[unit.target]
        given = min(kind.healing, kinds[unit.target].health - patient.health)
        given = min(given, unit.energy / ENERGY_PER_HEALTH)
        patient.health += given
        unit.energy = max(unit.energy - given * ENERGY_PER_HEALTH, 0.0)
    if unit.stride == 0.0:
        unit.pace = 0.0
    unit.energy = min(unit.energy + ENERGY_REGEN, FULL_ENERGY)
