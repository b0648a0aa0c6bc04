"""Players of the battles that are shown: scripts that read positions, random actions, or a trained policy.

Shapes: A agents, N units (agents first), U actions. One battle at a time.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from components.envs import Skirmish
from components.envs.skirmish.kernel.constants import EAST, FIRST_TARGET, NO_OP, NORTH, SOUTH, STOP, WEST
from components.policies.acting import ActingPolicy

Player = Callable[[Skirmish], NDArray[np.int64]]
"""A function from an environment of one battle to the actions (1, A) of its agents. Each episode gets a new one."""

PlayerFactory = Callable[[Skirmish, np.random.Generator], Player]
"""Makes the player of one episode."""


def random_player(env: Skirmish, rng: np.random.Generator) -> Player:
    """Return a player that draws available actions with equal probability."""

    def play(env: Skirmish) -> NDArray[np.int64]:
        chosen: NDArray[np.int64] = np.argmax(rng.random(env.available.shape) * env.available, axis=2)
        return chosen

    return play


def attacker(dislike: Callable[[Skirmish, int], NDArray[np.float64]]) -> PlayerFactory:
    """Return players that attack the enemy in range with the least `dislike`, else walk towards the nearest enemy.

    Healers do the same with friends.

    Args:
        dislike: a function from an environment and an agent to the agent's dislike (N,) of every unit.
    """

    def play(env: Skirmish) -> NDArray[np.int64]:
        return np.array([[_approach(env, i, dislike(env, i)) for i in range(env.spec.n_agents)]])

    return lambda env, rng: play


def _strength(env: Skirmish, agent: int) -> NDArray[np.float64]:
    """Return the sum of health and shield of every unit (N,)."""
    strength: NDArray[np.float64] = env.units["health"][0] + env.units["shield"][0]
    return strength


def policy_player(policy: ActingPolicy) -> PlayerFactory:
    """Return players that act greedily by a policy."""

    def make(env: Skirmish, rng: np.random.Generator) -> Player:
        hidden = policy.initial_hidden(1)
        last = np.full((1, env.spec.n_agents), -1, np.int64)

        def play(env: Skirmish) -> NDArray[np.int64]:
            nonlocal hidden, last
            last, hidden = policy.act(env.obs, env.available, last, hidden, epsilon=0.0, rng=rng)
            return last

        return play

    return make


def _distances(env: Skirmish, agent: int) -> NDArray[np.float64]:
    """Return the distances (N,) from one agent to every unit, in cells."""
    units = env.units[0]
    distances: NDArray[np.float64] = np.hypot(units["x"] - units["x"][agent], units["y"] - units["y"][agent])
    return distances


def _approach(env: Skirmish, agent: int, dislike: NDArray[np.float64]) -> int:
    """Return the action on the target in range with the least `dislike` (N,), or else a move towards the nearest."""
    units, available = env.units[0], env.available[0, agent]
    if available[NO_OP]:
        return NO_OP
    agents = env.spec.n_agents
    heals = env.kinds["healing"][0, agent] > 0.0
    others = np.arange(agents) if heals else np.arange(agents, len(units))  # the units that attack actions number
    within = np.flatnonzero(available[FIRST_TARGET:])
    if len(within):
        return int(FIRST_TARGET + within[np.argmin(dislike[others[within]])])
    goals = others[(units["health"][others] > 0.0) & (others != agent)]
    if not len(goals):
        return STOP
    goal = goals[np.argmin(_distances(env, agent)[goals])]
    dx, dy = units["x"][goal] - units["x"][agent], units["y"][goal] - units["y"][agent]
    ways = [EAST if dx > 0.0 else WEST, NORTH if dy > 0.0 else SOUTH]
    if abs(dy) > abs(dx):
        ways.reverse()
    return next((way for way in ways if available[way]), STOP)


PLAYERS: dict[str, PlayerFactory] = {
    "random": random_player,
    "nearest": attacker(_distances),
    "weakest": attacker(_strength),
}
"""Players by their names on the command line."""
