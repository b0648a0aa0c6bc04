"""The choice of targets: by the rules, and for agents with a single command for all missiles."""

from components.envs.air_combat.kernel.compiling import compiled
from components.envs.air_combat.kernel.constants import AUTOMATIC, FIRE, FIRST_MISSILE, Ints, Record, Records
from components.envs.air_combat.kernel.sensing import enemies_of
from components.envs.air_combat.kernel.striking import can_attack, is_due

SALVO = 2
"""Number of missiles in flight at a target from which rules, and agents with targets "nearest", fire no more at it."""


@compiled
def commands_of(n_enemies: int, rules: Record) -> int:
    """Return K, the number of commands of an agent."""
    return FIRE + 1 if rules.nearest_targets else FIRST_MISSILE + 2 * n_enemies


@compiled
def choose_shot(i: int, units: Records, rules: Record, is_hard: bool) -> int:
    """Return the attack of unit i, 0 for none: a medium missile if one reaches a target, or else a long one.

    Targets with `SALVO` missiles in flight at them are skipped. Of the others, the easy opponent fires at the nearest,
    the hard one at that with the fewest missiles in flight at it, and of several at the nearest.
    """
    first, last = enemies_of(i, units, rules)
    for medium in (True, False):
        best, fewest, found = 0.0, SALVO, -1
        for j in range(first, last):
            target = units[j]
            if target.threats >= SALVO or not can_attack(i, j, medium, units, rules, 0.0):
                continue
            dx, dy = target.last_x - units[i].x, target.last_y - units[i].y
            d2 = dx * dx + dy * dy
            threats = target.threats if is_hard else 0
            if threats < fewest or (threats == fewest and d2 < best):
                best, fewest, found = d2, threats, j
        if found >= 0:
            return found - first + 1 + (last - first if medium else 0)
    return 0


@compiled
def aimed(i: int, attack: int, units: Records, rules: Record) -> int:
    """Return the attack that an order of unit i means now; `AUTOMATIC` means the hard rules' choice."""
    return choose_shot(i, units, rules, True) if attack == AUTOMATIC else attack


@compiled
def make_attack(i: int, standing: int, is_last: bool, units: Records, rules: Record) -> int:
    """Return the attack of unit i in this world step: the standing one if it is possible or `is_last`, else 0."""
    attack = aimed(i, standing, units, rules)
    return attack if is_last or is_due(i, attack, units, rules) else 0


@compiled
def can_fire(i: int, units: Records, kinds: Records, rules: Record) -> bool:
    """Return whether unit i can fire at a target now, or perhaps by the last world step of this step."""
    first, last = enemies_of(i, units, rules)
    for j in range(first, last):
        margin = (rules.frame_skip - 1) * (kinds[i].speed + kinds[j].speed)
        if units[j].threats < SALVO and (
            can_attack(i, j, False, units, rules, margin) or can_attack(i, j, True, units, rules, margin)
        ):
            return True
    return False


@compiled
def _distance_key(i: int, j: int, units: Records) -> float:
    """Return the sort key of `by_distance`: a squared distance, or a number above all those on a map."""
    target = units[j]
    if not target.alive:
        return 2e18
    if target.last_step < 0:
        return 1e18
    dx, dy = target.last_x - units[i].x, target.last_y - units[i].y
    return dx * dx + dy * dy  # type: ignore[no-any-return]  # a numpy float, to the type checker


@compiled
def by_distance(i: int, units: Records, rules: Record, order: Ints) -> None:
    """Write the enemies of unit i to `order` (E,): by distance to their last known positions, dead enemies last.

    Enemies at the same distance keep their order. Enemies never known come after the known ones, by number.
    """
    first, last = enemies_of(i, units, rules)
    for j in range(first, last):
        at = j - first
        key = _distance_key(i, j, units)
        while at > 0 and _distance_key(i, order[at - 1], units) > key:
            order[at] = order[at - 1]
            at -= 1
        order[at] = j
