"""B battles: what Python calls.

`kinds` is (1, N) where armies are always the same, (B, N) where they are drawn; `enemy_actions` likewise (1, E) where
nobody commands the enemies.
"""

from components.envs.skirmish.kernel.compiling import compiled
from components.envs.skirmish.kernel.constants import Bools, Doubles, Floats, Footing, Ints, Records, Ways
from components.envs.skirmish.kernel.episode import judge, line_up
from components.envs.skirmish.kernel.tick import play_step
from components.envs.skirmish.kernel.views import show


@compiled
def first_refused(actions: Ints, battles: Records, available: Bools) -> int:
    """The number b * A + i of the first action that can't be taken, or -1."""
    copies, agents = actions.shape
    choices = available.shape[2]
    for b in range(copies):
        for i in range(agents):
            action = actions[b, i]
            if battles[b].over or action < 0 or action >= choices or not available[b, i, action]:
                number: int = b * agents + i
                return number
    return -1


@compiled
def reset_all(
    which: Bools,
    units: Records,
    battles: Records,
    kinds: Records,
    catalogue: Records,
    spiral: Doubles,
    rules: Records,
    footing: Footing,
    height: Doubles,
    obs: Floats,
    state: Floats,
    available: Bools,
    reward: Floats,
    terminated: Bools,
    truncated: Bools,
    won: Bools,
) -> None:
    """Begin a new episode in the battles that `which` (B,) names."""
    for b in range(len(battles)):
        if which[b]:
            armies = kinds[b % len(kinds)]
            line_up(units[b], battles[b], armies, catalogue, spiral, rules[0], footing)
            show(units[b], battles[b], armies, rules[0], footing[0], height, available[b], obs[b], state[b])
            reward[b] = 0.0
            terminated[b] = False
            truncated[b] = False
            won[b] = False


@compiled
def step_all(
    actions: Ints,
    enemy_actions: Ints,
    units: Records,
    battles: Records,
    kinds: Records,
    damage: Doubles,
    rules: Records,
    footing: Footing,
    ways: Ways,
    height: Doubles,
    obs: Floats,
    state: Floats,
    available: Bools,
    reward: Floats,
    terminated: Bools,
    truncated: Bools,
    won: Bools,
) -> None:
    """One step of every battle; the actions have been checked."""
    for b in range(len(battles)):
        armies = kinds[b % len(kinds)]
        orders = enemy_actions[b % len(enemy_actions)]
        play_step(units[b], battles[b], armies, damage, rules[0], footing, ways, actions[b], orders)
        judge(b, units[b], battles[b], armies, rules[0], reward, terminated, truncated, won)
        show(units[b], battles[b], armies, rules[0], footing[0], height, available[b], obs[b], state[b])


@compiled
def show_all(
    units: Records,
    battles: Records,
    kinds: Records,
    rules: Records,
    footing: Footing,
    height: Doubles,
    obs: Floats,
    state: Floats,
    available: Bools,
) -> None:
    """Write again what can be seen, after the records were changed from outside."""
    for b in range(len(battles)):
        show(units[b], battles[b], kinds[b % len(kinds)], rules[0], footing[0], height, available[b], obs[b], state[b])
