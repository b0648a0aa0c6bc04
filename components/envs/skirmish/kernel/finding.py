"""Finding: which agents know of which enemies, in the later edition of SMACv2."""

from .chance import draw
from .compiling import internal
from .constants import Record, Records
from .sight import sees

ALL_IN_VIEW, AS_PUBLISHED, AS_INTENDED = 0, 1, 2
"""Indexes of `options.EDITIONS`."""


@internal
def forget_dead(units: Records, rules: Record) -> None:
    """Make dead enemies unknown, and also those whose finder is dead."""
    gone = 0
    for a in range(rules.allies):
        if units[a].health <= 0.0:
            gone |= 1 << a
    for e in range(rules.allies, rules.allies + rules.enemies):
        enemy = units[e]
        if enemy.health <= 0.0 or (enemy.finder >= 0 and gone >> enemy.finder & 1):
            enemy.finder = -1
            enemy.known_to = 0


@internal
def find(units: Records, battle: Record, kinds: Records, rules: Record) -> None:
    """Let the agents look for enemies, one after the other in random order, which is drawn into `event`.

    The first agent that sees an enemy finds it, and each other agent learns of it with probability `prob_obs_enemy`. As
    published, an agent that does not know of an enemy yet does not see those of lower number either.
    """
    for a in range(rules.allies):
        units[a].event = a
    for k in range(rules.allies - 1, 0, -1):
        other = int(draw(battle) * (k + 1))
        swapped = units[k].event
        units[k].event = units[other].event
        units[other].event = swapped
    for turn in range(rules.allies):
        a = units[turn].event
        me = units[a]
        me.blind_to = -1
        if me.health <= 0.0:
            continue
        for e in range(rules.enemies):
            enemy = units[rules.allies + e]
            dx = enemy.x - me.x
            dy = enemy.y - me.y
            if enemy.finder < 0 and sees(me, kinds[a], dx, dy, rules):
                enemy.finder = a
                for b in range(rules.allies):
                    if b == a or draw(battle) < rules.prob_obs_enemy:
                        enemy.known_to |= 1 << b
            if rules.edition == AS_PUBLISHED and not enemy.known_to >> a & 1:
                me.blind_to = e
