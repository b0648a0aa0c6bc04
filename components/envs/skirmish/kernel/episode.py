"""An episode of one battle: its start, the reward of a step, and its end."""

from .chance import draw
from .compiling import internal, merged
from .constants import (
    ADVANCE,
    FIRST_ENERGY,
    HUNT_EVERY,
    IDLE,
    Footing,
    Outcome,
    Record,
    Records,
    Start,
)
from .drawing import draw_armies, drawn_divisor
from .ground import is_open, stay_inside
from .orders import order_attack


@merged
def line_up(units: Records, battle: Record, kinds: Records, start: Start, rules: Record, footing: Footing) -> None:
    """Begin an episode: put all units at their starting places, with full health."""
    fresh, catalogue, spiral = start
    march_x, march_y = rules.march_x, rules.march_y
    if not rules.drawn:
        battle.divisor = rules.reward_divisor
    else:
        draw_armies(units, battle, kinds, catalogue, spiral, rules)
        if battle.divisor == 0.0 or not rules.reward_fixed_divisor:
            battle.divisor = drawn_divisor(kinds, rules)
        battle.offset = int(draw(battle) * HUNT_EVERY)
    if rules.march_dx != 0.0 or rules.march_dy != 0.0:
        share = draw(battle)
        march_x += share * rules.march_dx
        march_y += share * rules.march_dy
    victim = int(draw(battle) * rules.allies) if rules.attack_one else -1
    for i in range(len(units)):
        unit, kind = units[i], kinds[i]
        ally = i < rules.allies
        units[i] = fresh[0]
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
        unit.facing_x = 1.0 if ally else -1.0
        unit.order = IDLE if ally or rules.commanded or rules.drawn else ADVANCE
        unit.goal_x = march_x
        unit.goal_y = march_y
        if victim >= 0 and unit.order == ADVANCE and kind.healing == 0.0:
            order_attack(i, victim, units, kinds)

    # Agents are numbered by type, then x, then y; they differ in nothing else yet, so swapping places is enough.
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


@internal
def judge(b: int, units: Records, battle: Record, kinds: Records, rules: Record, outcome: Outcome) -> None:
    """Write the reward of the step and whether the episode has ended, by SMAC's rules."""
    reward, terminated, truncated, won = outcome
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
        total = gained - lost
        if rules.reward_only_positive:
            # `abs` rewards the recovery of enemy shields, as SMAC does; SMACv2 does not.
            total = max(gained, 0.0) if rules.drawn else abs(gained)
    terminated[b] = allies_left == 0 or enemies_left == 0
    won[b] = allies_left > 0 and enemies_left == 0
    if won[b]:
        total = 1.0 if rules.reward_sparse else total + rules.reward_win
    elif allies_left == 0 and (enemies_left > 0 or rules.healers):
        # SMAC first tests whether the allies have only healers left. So with healers, mutual destruction is a defeat.
        total = -1.0 if rules.reward_sparse else total + rules.reward_defeat
    truncated[b] = not terminated[b] and battle.steps >= rules.limit
    battle.over = terminated[b] or truncated[b]
    reward[b] = total / battle.divisor
