"""Types and starting places of units, drawn for each episode as in SMACv2 (Ellis et al. 2023)."""

from .chance import draw
from .compiling import internal
from .constants import CELLS, MIDDLE, PLACES_GIVEN, TYPES_GIVEN, Doubles, Record, Records

DIAGONALS = 4
NO_MANS_LAND = 1.0  # allies start at least this far west of the middle, where the enemies mirror them
NEAREST = 2.0  # a group of surrounding enemies starts at least this far from the middle, in x and in y


@internal
def draw_armies(
    units: Records, battle: Record, kinds: Records, catalogue: Records, spiral: Doubles, rules: Record
) -> None:
    """Draw types and places. Agents are then numbered by type; enemies keep the order in which they were drawn.

    The enemies have the allies' types, in the same order; further enemies are drawn in the same way. Neither side
    consists of `never_alone` types only. Types and places are independent. What the caller has given is not drawn.
    """
    both = min(rules.allies, rules.enemies)
    if not battle.given & TYPES_GIVEN:
        draw_army(0, rules.allies, both, units, battle, catalogue)
        for k in range(both):
            units[rules.allies + k].event = units[k].event
        if rules.enemies > both:
            further = rules.enemies - both
            draw_army(rules.allies + both, rules.allies + rules.enemies, further, units, battle, catalogue)
    if not battle.given & PLACES_GIVEN:
        if draw(battle) < rules.surrounded:
            surround(units, battle, spiral, rules)
        else:
            reflect(units, battle, rules)
    battle.given = 0
    place = 0
    for rank in range(len(catalogue)):
        for i in range(rules.allies):
            if catalogue[units[i].event].rank == rank:
                enlist(units[i], kinds, place, catalogue)
                place += 1
    for i in range(rules.allies, rules.allies + rules.enemies):
        enlist(units[i], kinds, i, catalogue)
    draw_capabilities(battle, kinds, rules)


@internal
def draw_capabilities(battle: Record, kinds: Records, rules: Record) -> None:
    """Draw the `attack_chance` and `health_level` of each agent, and the agents that each enemy is `hidden_from`."""
    for i in range(rules.allies):
        if rules.draws_chances:
            kinds[i].attack_chance = rules.chance_low + (rules.chance_high - rules.chance_low) * draw(battle)
        if rules.draws_levels:
            kinds[i].health_level = rules.level_low + (rules.level_high - rules.level_low) * draw(battle)
    if rules.draws_masks:
        for e in range(rules.allies, rules.allies + rules.enemies):
            for i in range(rules.allies):
                if draw(battle) >= rules.mask_probability:
                    kinds[e].hidden_from |= 1 << i


@internal
def draw_army(first: int, last: int, judged: int, units: Records, battle: Record, catalogue: Records) -> None:
    """Draw a row of the catalogue into `event`, for each unit from `first` to before `last`.

    The first `judged` of them are not all of `never_alone` types.
    """
    lonely = True
    while lonely:
        for i in range(first, last):
            ticket = draw(battle)
            row = 0
            while row < len(catalogue) - 1 and ticket >= catalogue[row].weight:
                ticket -= catalogue[row].weight
                row += 1
            units[i].event = row
            lonely = lonely and (i >= first + judged or bool(catalogue[row].never_alone))


@internal
def enlist(drawn: Record, kinds: Records, place: int, catalogue: Records) -> None:
    """Copy the type and starting place that were drawn into the record of kinds at `place`."""
    kinds[place] = catalogue[drawn.event]
    kinds[place].start_x = drawn.goal_x
    kinds[place].start_y = drawn.goal_y


@internal
def surround(units: Records, battle: Record, spiral: Doubles, rules: Record) -> None:
    """Write places to `goal_x` and `goal_y`: allies in the middle, enemies in groups on the diagonals.

    There are one to four groups, each at its own random distance; some may be empty. They take the enemies in order.
    """
    for i in range(rules.allies):
        units[i].goal_x = MIDDLE + spiral[i, 0]
        units[i].goal_y = MIDDLE + spiral[i, 1]
    groups = 1 + int(draw(battle) * DIAGONALS)
    taken = 0  # a bit for each diagonal
    first = rules.allies
    for group in range(groups):
        left = int(draw(battle) * (DIAGONALS - group))
        diagonal = 0
        while left > 0 or taken >> diagonal & 1:
            left -= 1 - (taken >> diagonal & 1)
            diagonal += 1
        taken |= 1 << diagonal
        out = MIDDLE - (MIDDLE - NEAREST) * draw(battle)
        x = MIDDLE + (out if diagonal & 1 else -out)
        y = MIDDLE + (out if diagonal & 2 else -out)
        size = 0  # as if each enemy chose a group, with equal probabilities
        for _ in range(first, rules.allies + rules.enemies):
            size += draw(battle) * (groups - group) < 1.0
        for member in range(size):
            units[first + member].goal_x = x + spiral[member, 0]
            units[first + member].goal_y = y + spiral[member, 1]
        first += size


@internal
def reflect(units: Records, battle: Record, rules: Record) -> None:
    """Write places to `goal_x` and `goal_y`: allies anywhere in the west, as many enemies mirrored.

    Further enemies are anywhere in the east.
    """
    for i in range(rules.allies):
        units[i].goal_x = (MIDDLE - NO_MANS_LAND) * draw(battle)
        units[i].goal_y = CELLS * draw(battle)
    for e in range(rules.enemies):
        enemy = units[rules.allies + e]
        if e < rules.allies:
            enemy.goal_x = CELLS - units[e].goal_x
            enemy.goal_y = units[e].goal_y
        else:
            enemy.goal_x = MIDDLE + MIDDLE * draw(battle)
            enemy.goal_y = CELLS * draw(battle)


@internal
def drawn_divisor(kinds: Records, rules: Record) -> float:
    """Return the divisor with which a perfect win over these enemies has the same return as over any others."""
    if not rules.reward_scale:
        return 1.0
    most: float = rules.reward_win + rules.reward_death_value * rules.enemies
    for i in range(rules.allies, rules.allies + rules.enemies):
        most += kinds[i].health + kinds[i].shield
    divisor: float = most / rules.reward_scale_rate
    return divisor
