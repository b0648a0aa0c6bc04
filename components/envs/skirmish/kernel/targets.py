"""Targets: which units the enemies choose to attack."""

from math import sqrt

from .compiling import inlined, internal
from .constants import (
    AIR,
    HELP_EVERY,
    HELP_REACH,
    IDLE,
    KEEP_SLOP,
    RANGE_SLOP,
    Record,
    Records,
)
from .ground import distance
from .orders import order_attack

EVERYWHERE = 1e9


@inlined
def is_threat(kind: Record, other: Record, other_kind: Record) -> bool:
    """True if `other` is on the ground, or if the weapon hits air and `other` is armed or healing."""
    if other_kind.layer != AIR:
        return True
    return bool(kind.hits_air and (other_kind.healing == 0.0 or other.healing))


@inlined
def choose_target(i: int, units: Records, kinds: Records, rules: Record) -> None:
    """Choose an enemy's target: the present one while it is in range or can be chased, else the nearest in sight.

    With `switches`, its attackers have priority: between two shots, it leaves a target in range that walks away or
    attacks another unit, for the nearest unit in range that attacks it.
    """
    unit, kind = units[i], kinds[i]
    target = unit.target
    keeps = False
    if target >= 0 and units[target].health > 0.0:
        edge = distance(unit, units[target]) - kind.radius - kinds[target].radius
        within = edge <= kind.range or (unit.aiming and edge <= kind.range + RANGE_SLOP)
        if within and is_threat(kind, units[target], kinds[target]):
            if rules.switches and units[target].target != i and not unit.aiming:
                attacker = nearest_attacker(i, units, kinds, rules)
                if attacker >= 0:
                    unit.target = attacker
            return
        keeps = edge <= kind.scan + KEEP_SLOP or target == unit.attacker

    if keeps:
        # Chasing one unit while another is in range would waste the shot.
        nearest = nearest_threat(unit, kind, kind.range, units, kinds, rules) if rules.switches else -1
        chosen = nearest if nearest >= 0 else target
    else:
        chosen = nearest_threat(unit, kind, kind.scan, units, kinds, rules)
        if chosen < 0 and rules.healers and kind.hits_air:
            chosen = nearest_healer(unit, kind, units, kinds, rules)  # healers that are not healing come last
        if chosen < 0 and rules.retaliates and unit.attacker >= 0 and units[unit.attacker].health > 0.0:
            chosen = unit.attacker
        if chosen < 0 and rules.hunts:
            chosen = nearest_threat(unit, kind, EVERYWHERE, units, kinds, rules)
    if chosen != target:
        unit.target = chosen
        unit.aiming = False


@inlined
def nearest_threat(unit: Record, kind: Record, reach: float, units: Records, kinds: Records, rules: Record) -> int:
    """Return the nearest ally that is a threat, edge to edge, no farther than `reach`; -1 if there is none."""
    nearest = -1
    least = reach
    for j in range(rules.allies):
        other = units[j]
        if other.health <= 0.0:
            continue
        dx = other.x - unit.x
        dy = other.y - unit.y
        touch = kind.radius + kinds[j].radius
        squared = dx * dx + dy * dy
        if squared > (least + touch) * (least + touch):  # almost always true, and saves the square root
            continue
        edge = sqrt(squared) - touch
        if (edge < least or (nearest < 0 and edge <= least)) and is_threat(kind, other, kinds[j]):
            nearest, least = j, edge
    return nearest


@inlined
def nearest_attacker(i: int, units: Records, kinds: Records, rules: Record) -> int:
    """Return the nearest ally in enemy i's range whose target is this enemy, edge to edge; -1 if there is none."""
    nearest = -1
    least = kinds[i].range
    for j in range(rules.allies):
        if units[j].target == i and units[j].health > 0.0 and is_threat(kinds[i], units[j], kinds[j]):
            edge = distance(units[i], units[j]) - kinds[i].radius - kinds[j].radius
            if edge < least or (nearest < 0 and edge <= least):
                nearest, least = j, edge
    return nearest


@internal
def nearest_healer(unit: Record, kind: Record, units: Records, kinds: Records, rules: Record) -> int:
    """Return the nearest allied healer in sight; -1 if there is none."""
    nearest = -1
    least = kind.scan
    for j in range(rules.allies):
        if units[j].health > 0.0 and kinds[j].healing > 0.0:
            edge = distance(unit, units[j]) - kind.radius - kinds[j].radius
            if edge < least or (nearest < 0 and edge <= least):
                nearest, least = j, edge
    return nearest


@internal
def hunt_all(units: Records, kinds: Records, rules: Record) -> None:
    """Order each idle enemy to attack the nearest ally, centre to centre: the trigger of SMACv2's maps.

    An enemy that cannot attack that ally stays idle. Only the target's death ends such an order.
    """
    for i in range(rules.allies, len(units)):
        unit = units[i]
        if unit.health <= 0.0 or unit.order != IDLE or unit.target >= 0 or kinds[i].healing > 0.0:
            continue
        nearest, least = -1, EVERYWHERE
        for j in range(rules.allies):
            if units[j].health > 0.0 and distance(unit, units[j]) < least:
                nearest, least = j, distance(unit, units[j])
        if nearest >= 0:
            order_attack(i, nearest, units, kinds)


@internal
def call_for_help(j: int, attacker: int, units: Records, rules: Record) -> None:
    """Set the attacker of a hurt enemy as that of its friends nearby, unless they have a living attacker."""
    units[j].help_in = HELP_EVERY
    for k in range(rules.allies, rules.allies + rules.enemies):
        friend = units[k]
        if k == j or friend.health <= 0.0 or distance(friend, units[j]) > HELP_REACH:
            continue
        if friend.attacker < 0 or units[friend.attacker].health <= 0.0:
            friend.attacker = attacker
