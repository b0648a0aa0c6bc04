"""Players that command red in the rounds that are shown: rules, random actions, or a trained policy.

Shapes: A agents, U actions. One round at a time.
"""

from collections.abc import Callable, Iterator

import numpy as np

from components.envs.air_combat.battles import Rule
from components.envs.air_combat.env import AirCombat
from components.policies.acting import ActingPolicy

Player = Callable[[AirCombat], Iterator[tuple[str, ...]]]
"""A function that makes one step in an environment of one battle. After each world step it yields the sub-tasks of the
agents, or an empty tuple. Each round gets a new one."""

PlayerFactory = Callable[[AirCombat, np.random.Generator], Player]
"""Makes the player of one round."""


def random_player(env: AirCombat, rng: np.random.Generator) -> Player:
    """Return a player that draws available actions with equal probability."""

    def play(env: AirCombat) -> Iterator[tuple[str, ...]]:
        for _ in env.world_steps(np.argmax(rng.random(env.available.shape) * env.available, axis=2)):
            yield ()

    return play


def rule_player(rule: Rule) -> PlayerFactory:
    """Return players that command red by the rules of an opponent."""

    def play(env: AirCombat) -> Iterator[tuple[str, ...]]:
        env.order_by_rules(1, rule)
        env.step_ordered()
        yield ()

    return lambda env, rng: play


def policy_player(policy: ActingPolicy) -> PlayerFactory:
    """Return players that act greedily by a policy. If it declares a field `subtask`, they yield the sub-tasks."""

    def make(env: AirCombat, rng: np.random.Generator) -> Player:
        hidden = policy.initial_hidden(1)
        last = np.full((1, env.spec.n_agents), -1, np.int64)
        names = [task.name for task in env.spec.subtasks]

        def play(env: AirCombat) -> Iterator[tuple[str, ...]]:
            nonlocal hidden, last
            acted = policy.act_on(env.fields(), last, hidden, epsilon=0.0, rng=rng)
            last, hidden = acted.actions, acted.hidden
            chosen = tuple(names[k] for k in acted.fields["subtask"][0]) if "subtask" in acted.fields else ()
            for _ in env.world_steps(last):
                yield chosen

        return play

    return make


PLAYERS: dict[str, PlayerFactory] = {"random": random_player, "easy": rule_player("easy"), "hard": rule_player("hard")}
"""Players by their names on the command line."""
