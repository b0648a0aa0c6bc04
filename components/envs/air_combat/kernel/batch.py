"""The functions that Python calls, on B battles."""

from components.envs.air_combat.kernel.aiming import aimed, make_attack
from components.envs.air_combat.kernel.commanding import order_action, order_side
from components.envs.air_combat.kernel.compiling import allocating, compiled
from components.envs.air_combat.kernel.constants import ATTACK, ORDERED, Bools, Ints, Outcome, Played, Seen, Sensed
from components.envs.air_combat.kernel.moving import line_up
from components.envs.air_combat.kernel.round import play_step, round_reward, sense
from components.envs.air_combat.kernel.striking import is_due
from components.envs.air_combat.kernel.views import show


@compiled
def show_battle(b: int, first: int, played: Played, sensed: Sensed, seen: Seen) -> None:
    """Write the view of battle b for the side whose first unit is `first`."""
    units, _, battles, kinds, rules = played
    sees, hears, bearing, _ = sensed
    obs, state, available = seen
    show(first, units[b], battles[b], kinds, rules[0], sees[b], hears[b], bearing[b], obs[b], state[b], available[b])


@compiled
def show_all(first: int, played: Played, sensed: Sensed, seen: Seen) -> None:
    """Write the view of every battle for the side whose first unit is `first`."""
    for b in range(len(played[2])):
        show_battle(b, first, played, sensed, seen)


@compiled
def reset_all(which: Bools, played: Played, sensed: Sensed, seen: Seen, outcome: Outcome) -> None:
    """Begin a new round in the battles selected by `which` (B,)."""
    units, _, battles, kinds, rules = played
    sees, hears, bearing, sighted = sensed
    reward, rewards, terminated, truncated, won = outcome
    for b in range(len(battles)):
        if which[b]:
            line_up(units[b], battles[b], kinds, rules[0])
            sense(units[b], battles[b], kinds, rules[0], sees[b], hears[b], bearing[b], sighted[b])
            sighted[b] = False  # sightings count, and are rewarded, from the first step on
            for i in range(len(units[b])):
                units[b, i].reward = 0.0
            show_battle(b, 0, played, sensed, seen)
            reward[b] = 0.0
            rewards[b] = 0.0
            terminated[b] = False
            truncated[b] = False
            won[b] = False


@compiled
def order_all(first: int, actions: Ints, played: Played, sensed: Sensed, orders: Ints) -> None:
    """Write the orders (B, N, 4) of the actions (B, A) of the side whose first unit is `first`."""
    units, _, battles, kinds, rules = played
    for b in range(len(battles)):
        for a in range(actions.shape[1]):
            if units[b, first + a].alive:
                order_action(first + a, actions[b, a], units[b], battles[b], kinds, rules[0], sensed[1][b], orders[b])


@compiled
def order_by_rules_all(first: int, opponent: int, played: Played, sensed: Sensed, orders: Ints) -> None:
    """Write the orders (B, N, 4) of the side whose first unit is `first`, by the rules of this opponent."""
    units, _, battles, kinds, rules = played
    for b in range(len(battles)):
        order_side(first, opponent, units[b], battles[b], kinds, rules[0], sensed[1][b], orders[b])


@allocating
def step_all(orders: Ints, played: Played, sensed: Sensed, seen: Seen, outcome: Outcome) -> None:
    """Play `frame_skip` world steps of every battle; fewer if it ends earlier.

    An attack is made in the first world step in which it is possible, or else in the last, where it is invalid. Rules
    can attack in any world step. `rewards` are the sums of each agent's own rewards over the world steps; `reward` is
    their sum, plus the reward of the round at its end. Both are scaled.
    """
    units, missiles, battles, kinds, rules = played
    sees, hears, bearing, sighted = sensed
    reward, rewards, terminated, truncated, won = outcome
    for b in range(len(battles)):
        battle = battles[b]
        rewards[b] = 0.0
        ordered = len(units[b]) if rules[0].opponent == ORDERED else rules[0].red
        standing = orders[b, :ordered, ATTACK].copy()
        for frame in range(rules[0].frame_skip):
            for i in range(ordered):
                made = make_attack(i, standing[i], frame == rules[0].frame_skip - 1, units[b], rules[0])
                orders[b, i, ATTACK] = made
                if made != 0:
                    standing[i] = 0
            if rules[0].opponent != ORDERED:
                order_side(rules[0].red, rules[0].opponent, units[b], battle, kinds, rules[0], hears[b], orders[b])
            play_step(
                units[b],
                missiles[b],
                battle,
                kinds,
                rules[0],
                sees[b],
                hears[b],
                bearing[b],
                sighted[b],
                orders[b],
            )
            for a in range(rules[0].red):
                rewards[b, a] += units[b, a].reward * rules[0].reward_scale
            if battle.over:
                break
        reward[b] = rewards[b].sum()
        if battle.over:
            reward[b] += round_reward(battle.outcome, rules[0]) * rules[0].reward_scale
        terminated[b] = battle.over
        truncated[b] = False
        won[b] = battle.outcome > 0
        show_battle(b, 0, played, sensed, seen)


@compiled
def due_all(attacks: Ints, played: Played, due: Bools) -> None:
    """Write to `due` (B, N) which of the ordered attacks (B, N) can be made now."""
    units, _, battles, _, rules = played
    for b in range(len(battles)):
        for i in range(len(units[b])):
            due[b, i] = is_due(i, aimed(i, attacks[b, i], units[b], rules[0]), units[b], rules[0])


@compiled
def first_refused(actions: Ints, battles_over: Bools, available: Bools) -> int:
    """Return the number b * A + a of the first action that can't be taken, or -1."""
    copies, agents = actions.shape
    choices = available.shape[2]
    for b in range(copies):
        for a in range(agents):
            action = actions[b, a]
            if battles_over[b] or action < 0 or action >= choices or not available[b, a, action]:
                number: int = b * agents + a
                return number
    return -1
