"""A scripted opponent: one script plays both sides of 8m, then random agents play against it."""

import numpy as np
from numpy.typing import NDArray

from components.envs import Skirmish
from components.envs.skirmish import Opposition

BATTLES = 128
rng = np.random.default_rng(0)


def weakest_in_reach(available: NDArray[np.bool_], health: NDArray[np.float64]) -> NDArray[np.int64]:
    """Attack the weakest enemy in reach, else go east.

    Args:
        available: (B, A, U), available actions.
        health: (B, E), health of the enemies.
    """
    reach = available[:, :, 6:]  # (B, A, E)
    weakest = np.where(reach, health[:, None, :], np.inf).argmin(axis=2)  # (B, A)
    walk = np.where(available[:, :, 4], 4, available[:, :, 1])  # east, else stop, or nothing for the dead
    return np.where(reach.any(axis=2), 6 + weakest, walk)


def opponent(side: Opposition) -> NDArray[np.int64]:
    """Apply the same script to the enemies: they see the map rotated by 180°, and their own units first."""
    return weakest_in_reach(side.available, side.units["health"][:, side.n_agents :])


def play(env: Skirmish, *, scripted: bool) -> float:
    """Return the share of battles that the agents win."""
    env.reset()
    ended, won = np.zeros(BATTLES, np.bool_), np.zeros(BATTLES, np.bool_)
    while not ended.all():
        if scripted:
            actions = weakest_in_reach(env.available, env.units["health"][:, env.spec.n_agents :])
        else:
            actions = np.argmax(rng.random(env.available.shape) * env.available, axis=2)
        env.step(actions)
        won |= env.won & ~ended
        over = env.terminated | env.truncated
        ended |= over
        env.reset(over)
    return float(won.mean())


env = Skirmish("8m", BATTLES, start_jitter=0.25, opponent=opponent)
print(f"script against script: {play(env, scripted=True):.0%} won")
print(f"random against script: {play(env, scripted=False):.0%} won")
