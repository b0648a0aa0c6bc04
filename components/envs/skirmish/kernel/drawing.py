"""Drawing lots: who fights and from where, anew for each episode, as SMACv2 does (Ellis et al. 2023)."""

from components.envs.skirmish.kernel.chance import draw
from components.envs.skirmish.kernel.compiling import compiled
from components.envs.skirmish.kernel.constants import CELLS, MIDDLE, Doubles, Record, Records

DIAGONALS = 4
NO_MANS_LAND = 1.0  # allies start at least this far west of the middle, where the enemies mirror them
NEAREST = 2.0  # a group of surrounding enemies starts at least this far from the middle, in x and in y


@compiled
def draw_armies(units: Records, battle: Record, kinds: Records, catalogue: Records, rules: Record) -> None:
    """Draw the allies' types by weight, and give the enemies the same; those they have more are drawn likewise.

    Units are then in the order of `catalogue` (T,), as agents are numbered by type, and the further enemies follow. No
    army consists of types alone that are `never_alone`.
    """
    both = min(rules.allies, rules.enemies)
    draw_army(0, rules.allies, units, battle, catalogue)
    for k in range(both):
        units[rules.allies + k].event = units[k].event
    if rules.enemies > both:
        draw_army(rules.allies + both, rules.allies + rules.enemies, units, battle, catalogue)
    enlist(0, rules.allies, units, kinds, catalogue)
    enlist(rules.allies, rules.allies + both, units, kinds, catalogue)
    enlist(rules.allies + both, rules.allies + rules.enemies, units, kinds, catalogue)


@compiled
def draw_army(first: int, last: int, units: Records, battle: Record, catalogue: Records) -> None:
    """Note in `event` a number of the catalogue for each unit from `first` to before `last`."""
    lonely = True
    while lonely:
        for i in range(first, last):
            ticket = draw(battle)
            row = 0
            while row < len(catalogue) - 1 and ticket >= catalogue[row].weight:
                ticket -= catalogue[row].weight
                row += 1
            units[i].event = row
            lonely = lonely and bool(catalogue[row].never_alone)


@compiled
def enlist(first: int, last: int, units: Records, kinds: Records, catalogue: Records) -> None:
    """Make units what was drawn for them, those of one type beside each other."""
    place = first
    for row in range(len(catalogue)):
        for i in range(first, last):
            if units[i].event == row:
                kinds[place] = catalogue[row]
                place += 1


@compiled
def draw_places(units: Records, battle: Record, kinds: Records, spiral: Doubles, rules: Record) -> tuple[float, float]:
    """Draw where everybody starts. Returns the middle of the allies, which the enemies march to."""
    if draw(battle) < rules.surrounded:
        surround(units, battle, kinds, spiral, rules)
    else:
        reflect(battle, kinds, rules)
    x, y = 0.0, 0.0
    for i in range(rules.allies):
        x += kinds[i].start_x
        y += kinds[i].start_y
    return x / rules.allies, y / rules.allies


@compiled
def surround(units: Records, battle: Record, kinds: Records, spiral: Doubles, rules: Record) -> None:
    """The allies in the middle, the enemies in one to four groups on the diagonals, each at a distance of its own."""
    for i in range(rules.allies):
        kinds[i].start_x = MIDDLE + spiral[i, 0]
        kinds[i].start_y = MIDDLE + spiral[i, 1]
    groups = 1 + int(draw(battle) * DIAGONALS)
    for i in range(rules.allies, rules.allies + rules.enemies):
        units[i].event = int(draw(battle) * groups)
    taken = 0  # a bit for each diagonal
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
        member = 0
        for i in range(rules.allies, rules.allies + rules.enemies):
            if units[i].event == group:
                kinds[i].start_x = x + spiral[member, 0]
                kinds[i].start_y = y + spiral[member, 1]
                member += 1


@compiled
def reflect(battle: Record, kinds: Records, rules: Record) -> None:
    """The allies anywhere in the west, each mirrored by an enemy in the east; further enemies anywhere there."""
    for i in range(rules.allies):
        kinds[i].start_x = (MIDDLE - NO_MANS_LAND) * draw(battle)
        kinds[i].start_y = CELLS * draw(battle)
    for e in range(rules.enemies):
        enemy = kinds[rules.allies + e]
        if e < rules.allies:
            enemy.start_x = CELLS - kinds[e].start_x
            enemy.start_y = kinds[e].start_y
        else:
            enemy.start_x = MIDDLE + MIDDLE * draw(battle)
            enemy.start_y = CELLS * draw(battle)


@compiled
def drawn_divisor(kinds: Records, rules: Record) -> float:
    """What makes a perfect win over these enemies worth as much as over any others."""
    if not rules.reward_scale:
        return 1.0
    most: float = rules.reward_win + rules.reward_death_value * rules.enemies
    for i in range(rules.allies, rules.allies + rules.enemies):
        most += kinds[i].health + kinds[i].shield
    divisor: float = most / rules.reward_scale_rate
    return divisor
