"""The functions that Python calls, each for B battles.

`kinds` is (1, N) where armies are always the same, (B, N) where they are drawn. `enemy_actions` is (1, E) where no
opponent commands the enemies, else (B, E). Arrays come in plain tuples: numba unpacks these faster than named ones.
"""

from .compiling import compiled, shared
from .constants import Bools, Doubles, Ints, Outcome, Played, Records, Seen, Start, Ways
from .episode import judge, line_up
from .finding import ALL_IN_VIEW, find, forget_dead
from .tick import play_step
from .views import show


@compiled
def first_refused(actions: Ints, battles: Records, available: Bools) -> int:
    """Return the number b * A + i of the first action that is not available, or -1."""
    copies, agents = actions.shape
    choices = available.shape[2]
    for b in range(copies):
        for i in range(agents):
            action = actions[b, i]
            if battles[b].over or action < 0 or action >= choices or not available[b, i, action]:
                number: int = b * agents + i
                return number
    return -1


@shared
def show_battle(b: int, played: Played, seen: Seen) -> None:
    """Write observations, state and available actions of battle b."""
    units, battles, kinds, rules = played
    footing, height, obs, state, available = seen
    armies = kinds[b % len(kinds)]
    show(units[b], battles[b], armies, rules[0], footing[0], height, available[b], obs[b], state[b])


@compiled
def reset_all(which: Bools, start: Start, played: Played, seen: Seen, outcome: Outcome) -> None:
    """Begin a new episode in the battles where `which` (B,) is true."""
    units, battles, kinds, rules = played
    reward, terminated, truncated, won = outcome
    for b in range(len(battles)):
        if which[b]:
            armies = kinds[b % len(kinds)]
            line_up(units[b], battles[b], armies, start, rules[0], seen[0])
            if rules[0].edition != ALL_IN_VIEW:
                find(units[b], battles[b], armies, rules[0])
            show_battle(b, played, seen)
            reward[b] = 0.0
            terminated[b] = False
            truncated[b] = False
            won[b] = False


@compiled
def step_all(
    actions: Ints,
    enemy_actions: Ints,
    damage: Doubles,
    ways: Ways,
    places: Doubles,
    played: Played,
    seen: Seen,
    outcome: Outcome,
) -> None:
    """Make one step in every battle; the actions have been checked."""
    units, battles, kinds, rules = played
    for b in range(len(battles)):
        armies = kinds[b % len(kinds)]
        orders = enemy_actions[b % len(enemy_actions)]
        play_step(units[b], battles[b], armies, damage, rules[0], seen[0], ways, places, actions[b], orders)
        judge(b, units[b], battles[b], armies, rules[0], outcome)
        if rules[0].edition != ALL_IN_VIEW:
            forget_dead(units[b], rules[0])
            find(units[b], battles[b], armies, rules[0])
        show_battle(b, played, seen)


@compiled
def show_all(played: Played, seen: Seen) -> None:
    """Write observations, states and available actions again, after a change of the records from outside."""
    for b in range(len(played[1])):
        show_battle(b, played, seen)
