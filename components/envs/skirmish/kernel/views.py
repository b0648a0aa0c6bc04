"""Views: available actions and observations of agents, and the state for the critic."""

from math import sqrt

from .compiling import inlined, internal, merged
from .constants import (
    CELLS,
    EAST,
    FIRST_TARGET,
    FULL_ENERGY,
    MIDDLE,
    NO_OP,
    NORTH,
    SOUTH,
    STOP,
    WEST,
    Bools,
    Doubles,
    Floats,
    Footing,
    Record,
    Records,
)
from .finding import ALL_IN_VIEW
from .ground import is_open
from .sight import in_cone, sees


@inlined
def list_actions(i: int, units: Records, kinds: Records, rules: Record, walkable: Footing, available: Bools) -> None:
    """Write the available actions of agent i, (U,)."""
    available[:] = False
    unit = units[i]
    if unit.health <= 0.0:
        available[NO_OP] = True
        return
    probe = rules.move_amount / 2.0
    available[STOP] = True
    available[NORTH] = is_open(walkable, unit.x, unit.y + probe)
    available[SOUTH] = is_open(walkable, unit.x, unit.y - probe)
    available[EAST] = is_open(walkable, unit.x + probe, unit.y)
    available[WEST] = is_open(walkable, unit.x - probe, unit.y)
    for action in range(FIRST_TARGET, rules.first_target):
        available[action] = True
    if kinds[i].healing > 0.0:
        for k in range(min(rules.allies, rules.actions - rules.first_target)):
            if units[k].health > 0.0 and kinds[k].healing == 0.0:
                near = not rules.action_mask or is_in_reach(unit, units[k], kinds[i], rules)
                available[rules.first_target + k] = near
        return
    for e in range(rules.enemies):
        enemy = units[rules.allies + e]
        near = not rules.action_mask or is_in_reach(unit, enemy, kinds[i], rules)
        available[rules.first_target + e] = near and enemy.health > 0.0


@inlined
def is_in_reach(one: Record, other: Record, kind: Record, rules: Record) -> bool:
    """True if `one` may be ordered to attack or heal `other`: near enough, centre to centre, and in its cone."""
    dx = other.x - one.x
    dy = other.y - one.y
    near: bool = dx * dx + dy * dy <= kind.shoot * kind.shoot
    return near and (rules.looks == 0 or in_cone(one, dx, dy, rules))


@inlined
def may_reach(i: int, k: int, units: Records, kinds: Records, rules: Record) -> bool:
    """True if target k of agent i is in its reach; for healers, k is a friend."""
    other = k if kinds[i].healing > 0.0 else rules.allies + k
    return is_in_reach(units[i], units[other], kinds[i], rules)


@inlined
def health_above(unit: Record, kind: Record) -> float:
    """Return an agent's share of the health above the level at which it dies."""
    share: float = (unit.health / kind.health - kind.health_level) / (1.0 - kind.health_level)
    return share


@internal
def probe_ground(unit: Record, rules: Record, walkable: Footing, height: Doubles, at: int, row: Floats) -> int:
    """Write the ground around a unit; return the next free index."""
    x, y = int(unit.x), int(unit.y)
    near = int(rules.move_amount)
    far = int(2.0 * rules.move_amount)
    for kind in range(2):
        if (kind == 0 and not rules.obs_pathing_grid) or (kind == 1 and not rules.obs_terrain_height):
            continue
        for point in range(8 + kind):
            dx, dy = 0, 0
            if point == 0:
                dy = far
            elif point == 1:
                dy = -far
            elif point == 2:
                dx = far
            elif point == 3:
                dx = -far
            elif point < 8:
                dx = near if point % 2 == 0 else -near
                dy = near if point in (4, 7) else -near
            value = 1.0
            if 0 <= x + dx < CELLS and 0 <= y + dy < CELLS:
                if kind == 1:
                    value = height[x + dx, y + dy] / 255.0
                elif not walkable[x + dx, y + dy]:
                    value = 0.0
            row[at] = value
            at += 1
    return at


@inlined
def observe(
    i: int,
    units: Records,
    battle: Record,
    kinds: Records,
    rules: Record,
    walkable: Footing,
    height: Doubles,
    available: Bools,
    row: Floats,
) -> None:
    """Write agent i's observation, (O,): moves, ground, enemies, friends, itself, time. If dead, all but time is 0."""
    row[:] = 0.0
    me, kind = units[i], kinds[i]
    if rules.obs_timestep_number:
        row[len(row) - 1] = battle.steps / rules.limit
    if me.health <= 0.0 or not rules.obs_starcraft:
        return
    actions = len(available)

    for action in range(NORTH, FIRST_TARGET):
        row[action - NORTH] = available[action]
    at = probe_ground(me, rules, walkable, height, 4, row)

    enemy_width = 4 + rules.type_bits
    ally_width = 4 + rules.type_bits
    if rules.obs_all_health:
        enemy_width += 1 + rules.enemy_shield
        ally_width += 1 + rules.ally_shield
    # Locals, because the compiler reads a record again after each write to the observation.
    all_seen, cone, masks = rules.fully_observable, rules.looks > 0, rules.draws_masks
    chances, levels, numbers = rules.draws_chances, rules.draws_levels, rules.draws_chances or rules.draws_levels
    sight = kind.sight
    ally_width += chances + levels
    if rules.obs_last_action:
        ally_width += actions

    friends_at = at + rules.enemies * enemy_width

    for j in range(len(units)):
        other = units[j]
        if j == i or other.health <= 0.0:
            continue
        dx = other.x - me.x
        dy = other.y - me.y
        squared = dx * dx + dy * dy
        if not all_seen:
            if cone:
                if not sees(me, kind, dx, dy, rules):
                    continue
            elif squared >= sight * sight:
                continue
        is_enemy = j >= rules.allies
        if is_enemy:
            e = j - rules.allies
            if rules.edition != ALL_IN_VIEW and (e <= me.blind_to or not other.known_to >> i & 1):
                continue
            p = at + e * enemy_width
            row[p] = available[rules.first_target + e] and (rules.action_mask or may_reach(i, e, units, kinds, rules))
        else:
            p = friends_at + (j - 1 if j > i else j) * ally_width
            row[p] = 1.0
        row[p + 1] = sqrt(squared) / sight
        row[p + 2] = dx / sight
        row[p + 3] = dy / sight
        p += 4
        if masks and is_enemy and kinds[j].hidden_from >> i & 1:
            continue
        if rules.obs_all_health:
            if is_enemy or not levels:
                row[p] = other.health / kinds[j].health
            elif not rules.hides_levels:
                row[p] = health_above(other, kinds[j])
            p += 1
            if rules.enemy_shield if is_enemy else rules.ally_shield:
                row[p] = other.shield / kinds[j].shield
                p += 1
        if numbers and not is_enemy:
            if chances:
                row[p] = 0.0 if rules.hides_chances else kinds[j].attack_chance
                p += 1
            if levels:
                row[p] = 0.0 if rules.hides_levels else kinds[j].health_level
                p += 1
        if rules.type_bits > 0:
            row[p + kinds[j].type_bit] = is_enemy or not rules.hides_types
            p += rules.type_bits
        if rules.obs_last_action and not is_enemy and other.last_action >= 0:
            row[p + other.last_action] = 1.0

    at = friends_at + (rules.allies - 1) * ally_width
    if rules.obs_own_health:
        row[at] = health_above(me, kind) if levels else me.health / kind.health
        at += 1
        if rules.ally_shield:
            row[at] = me.shield / kind.shield
            at += 1
    if chances:
        row[at] = kind.attack_chance
        at += 1
    if levels:
        row[at] = kind.health_level
        at += 1
    if rules.obs_own_position:
        row[at] = me.x / CELLS
        row[at + 1] = me.y / CELLS
        at += 2
    if cone:
        row[at] = me.look_x
        row[at + 1] = me.look_y
        at += 2
    if rules.type_bits > 0:
        row[at + kind.type_bit] = 1.0


@internal
def write_state(
    units: Records, battle: Record, kinds: Records, rules: Record, observations: Floats, row: Floats
) -> None:
    """Write the state for a central critic, (S,): all units by absolute position, the agents' last actions, time."""
    row[:] = 0.0
    if rules.obs_instead_of_state:
        agents, width = observations.shape
        for i in range(agents):
            for k in range(width):  # a slice would take numba two seconds more to compile
                row[i * width + k] = observations[i, k]
        return
    at = 0
    chances, levels, cone = rules.draws_chances, rules.draws_levels, rules.looks > 0
    own_width = 1 + chances + levels + 2 * cone
    numbers = chances or levels or cone
    for i in range(len(units)):
        unit, kind = units[i], kinds[i]
        is_ally = i < rules.allies
        has_shield = rules.ally_shield if is_ally else rules.enemy_shield
        width = 3 + has_shield + rules.type_bits
        if is_ally:
            width += own_width
        if unit.health > 0.0:
            p = at
            row[p] = health_above(unit, kind) if levels and is_ally else unit.health / kind.health
            p += 1
            if is_ally:
                row[p] = max(unit.cooldown, 0.0) / kind.full_cooldown
                if kind.healing > 0.0:
                    row[p] = unit.energy / FULL_ENERGY
                p += 1
            row[p] = (unit.x - MIDDLE) / CELLS
            row[p + 1] = (unit.y - MIDDLE) / CELLS
            p += 2
            if has_shield:
                row[p] = unit.shield / kind.shield
                p += 1
            if numbers and is_ally:
                if chances:
                    row[p] = kind.attack_chance
                    p += 1
                if levels:
                    row[p] = kind.health_level
                    p += 1
                if cone:
                    row[p] = unit.look_x
                    row[p + 1] = unit.look_y
                    p += 2
            if rules.type_bits > 0:
                row[p + kind.type_bit] = 1.0
        at += width
    if rules.state_last_action:
        for i in range(rules.allies):
            if units[i].last_action >= 0:
                row[at + units[i].last_action] = 1.0
            at += rules.actions
    if rules.state_timestep_number:
        row[at] = battle.steps / rules.limit


@merged
def show(
    units: Records,
    battle: Record,
    kinds: Records,
    rules: Record,
    walkable: Footing,
    height: Doubles,
    available: Bools,
    obs: Floats,
    state: Floats,
) -> None:
    """Write available actions, observations and state of one battle."""
    for i in range(rules.allies):
        list_actions(i, units, kinds, rules, walkable, available[i])
        observe(i, units, battle, kinds, rules, walkable, height, available[i], obs[i])
    write_state(units, battle, kinds, rules, obs, state)
