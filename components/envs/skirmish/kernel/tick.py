"""One tick of one battle, a sixteenth of a second; and one step, which is several ticks."""

from .chance import draw
from .compiling import internal, merged
from .constants import (
    ATTACK,
    FALL_BEFORE,
    FIRST_TARGET,
    HUNT_EVERY,
    SHIELD_REGEN,
    SHIELD_REST,
    SWEEP_TICKS,
    TREAT_EVERY,
    Doubles,
    Footing,
    Ints,
    Record,
    Records,
    Ways,
)
from .crowd import separate
from .ground import shift
from .healing import choose_patient, heal
from .orders import decide, find_way, give_order
from .sight import look
from .targets import choose_target, hunt_all
from .views import may_reach
from .weapons import burst_all, land, shoot


@internal
def choose_all(units: Records, battle: Record, kinds: Records, rules: Record) -> None:
    """Let the enemies choose targets; their healers choose patients."""
    looks = battle.tick % TREAT_EVERY == 0
    for i in range(rules.allies, len(units)):
        if units[i].health > 0.0 and units[i].order != ATTACK:  # an order to attack is kept
            if kinds[i].healing > 0.0:
                choose_patient(i, units, kinds, rules, looks)
            else:
                choose_target(i, units, kinds, rules)


@internal
def find_ways(units: Records, kinds: Records, ways: Ways) -> None:
    """Find the next stop of each living unit on its way round corners."""
    for i in range(len(units)):
        if units[i].health > 0.0:
            find_way(units[i], kinds[i], units, ways)


@internal
def decide_all(units: Records, kinds: Records) -> int:
    """Advance every order by a tick. Write the shots and hits that are due to `event`, and return their number."""
    n = len(units)
    events = 0
    for i in range(n):
        unit = units[i]
        if unit.hits_left > 0:
            unit.hit_in -= 1.0
            if unit.drawing:
                # Points of a beam are drawn while the unit attacks the target of the shot.
                unit.drawing = unit.target == unit.hit_target and unit.drawn < SWEEP_TICKS
                unit.drawn += unit.drawing
            if unit.hit_in <= 0.0:
                units[events].event = n + i
                events += 1
        # The last hit of a shot comes long before the next shot (`tables` checks it): at most one event per unit.
        if unit.health > 0.0 and decide(i, units, kinds):
            units[events].event = i
            events += 1
    return events


@internal
def walk_all(units: Records, kinds: Records, rules: Record, footing: Footing) -> None:
    """Move units by the strides that were decided, inside the walls."""
    for i in range(len(units)):
        unit = units[i]
        if unit.stride > 0.0:
            shift(unit, kinds[i], rules, footing, unit.stride * unit.facing_x, unit.stride * unit.facing_y)


@merged
def fight_all(events: int, units: Records, battle: Record, kinds: Records, damage: Doubles, rules: Record) -> None:
    """Play shots and hits in random order, as in the game: of two units that would kill each other, only one does."""
    n = len(units)
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


@internal
def recover_all(units: Records, kinds: Records, rules: Record) -> None:
    """Stop dead units, and restore health, shields and energy of living ones."""
    for i in range(len(units)):
        unit = units[i]
        if unit.health <= 0.0:
            # Dead units do not walk, and are in no unit's way.
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
        for i in range(len(units)):
            if kinds[i].healing > 0.0 and units[i].health > 0.0:
                heal(units[i], kinds[i], units, kinds)


@internal
def fall_all(units: Records, kinds: Records, rules: Record) -> None:
    """Kill the agents whose health is below their level."""
    for i in range(rules.allies):
        unit = units[i]
        if 0.0 < unit.health < kinds[i].health_level * kinds[i].health:
            unit.health = 0.0
            unit.shield = 0.0
            unit.aiming = False


@merged
def play_tick(
    units: Records,
    battle: Record,
    kinds: Records,
    damage: Doubles,
    rules: Record,
    footing: Footing,
    ways: Ways,
    places: Doubles,
) -> None:
    """Play one tick, a sixteenth of a second."""
    if not rules.commanded:
        if battle.tick % rules.reaction == 0:
            choose_all(units, battle, kinds, rules)
        if rules.drawn and (battle.tick + battle.offset) % HUNT_EVERY == 0:
            hunt_all(units, kinds, rules)
    if len(ways) > 0:
        find_ways(units, kinds, ways)
    events = decide_all(units, kinds)
    walk_all(units, kinds, rules, footing)
    if events > 0:
        fight_all(events, units, battle, kinds, damage, rules)
    recover_all(units, kinds, rules)
    separate(units, kinds, rules, footing, places)
    battle.tick += 1


@merged
def play_step(
    units: Records,
    battle: Record,
    kinds: Records,
    damage: Doubles,
    rules: Record,
    footing: Footing,
    ways: Ways,
    places: Doubles,
    actions: Ints,
    enemy_actions: Ints,
) -> None:
    """Play the ticks between two decisions. Orders arrive after the first of them, as in the game."""
    for i in range(len(units)):
        units[i].before = units[i].health + units[i].shield
    commanded = len(units) if rules.commanded else rules.allies
    for i in range(commanded):
        units[i].heeds = True
    if rules.looks > 0:
        for i in range(rules.allies):
            if FIRST_TARGET <= actions[i] < rules.first_target:
                look(units[i], actions[i] - FIRST_TARGET, rules)
                units[i].heeds = False
    if not rules.action_mask or rules.draws_chances:
        for i in range(rules.allies):
            target = actions[i] - rules.first_target
            if target >= 0 and units[i].health > 0.0:
                units[i].heeds = rules.action_mask or may_reach(i, target, units, kinds, rules)
                if rules.draws_chances and draw(battle) > kinds[i].attack_chance:
                    units[i].heeds = False
    for tick in range(rules.ticks):
        play_tick(units, battle, kinds, damage, rules, footing, ways, places)
        if rules.draws_levels and tick + 1 == rules.ticks - FALL_BEFORE:
            fall_all(units, kinds, rules)
        if tick == 0:
            for i in range(commanded):
                if units[i].health > 0.0 and units[i].heeds:
                    action = actions[i] if i < rules.allies else enemy_actions[i - rules.allies]
                    give_order(i, action, units, kinds, rules)
    for i in range(commanded):
        units[i].last_action = actions[i] if i < rules.allies else enemy_actions[i - rules.allies]
    battle.steps += 1
