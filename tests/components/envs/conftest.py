"""Hand-made battles, and the policies that the calibration is measured with."""

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from components.envs import Skirmish

sys.path.append(str(Path(__file__).parent))  # of `hosted_envs`, which other processes import by that name too

Unit = dict[str, Any]
Policy = Callable[[Skirmish, np.random.Generator], np.ndarray]


@pytest.fixture(scope="session")
def defined_tests() -> set[str]:
    """The names of the tests of this folder, without `test_`."""
    return {
        node.name.removeprefix("test_")
        for path in Path(__file__).parent.glob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
    }


@pytest.fixture
def stage():
    """A function that sets up a battle by hand: whoever isn't mentioned is dead."""

    def set_up(env: Skirmish, allies: dict[int, Unit], enemies: dict[int, Unit], b: int = 0) -> None:
        agents = env.n_agents
        everybody = allies | {agents + e: unit for e, unit in enemies.items()}
        for i in range(env.units.shape[1]):
            fields = everybody.get(i, {"health": 0.0, "shield": 0.0})
            for field, value in fields.items():
                env.units[field][b, i] = value
        env.show()

    return set_up


@pytest.fixture
def harmless():
    """Fields of an enemy that stays where it is and never shoots."""

    def at(x: float, y: float, **fields: float) -> Unit:
        return {"x": x, "y": y, "goal_x": x, "goal_y": y, "cooldown": 1e9} | fields

    return at


def pick_at_random(env: Skirmish, rng: np.random.Generator) -> np.ndarray:
    """Uniform over the available actions of every agent."""
    return np.argmax(rng.random(env.available.shape) * env.available, axis=2)


@pytest.fixture
def at_random() -> Policy:
    return pick_at_random


@pytest.fixture
def stopping() -> Policy:
    """All agents stop, or do nothing once they are dead."""
    return lambda env, rng: env.available[:, :, 1].astype(np.int64)


@pytest.fixture
def lining_up() -> Policy:
    """Form a line at x = 8, wait for an enemy within 6.5, then shoot whom most of us reach, the weakest first."""

    def act(env: Skirmish, rng: np.random.Generator) -> np.ndarray:
        copies, agents, _ = env.available.shape
        actions = np.zeros((copies, agents), dtype=np.int64)
        for b in np.flatnonzero(~(env.terminated | env.truncated)):
            x, y, pool = env.units["x"][b], env.units["y"][b], env.units["health"][b] + env.units["shield"][b]
            alive = env.units["health"][b] > 0
            ours = [i for i in range(agents) if alive[i]]
            theirs = [e for e in range(agents, len(x)) if alive[e]]
            near = min(np.hypot(x[i] - x[e], y[i] - y[e]) for i in ours for e in theirs)
            reach = env.available[b, :, 6:]
            focus = max(theirs, key=lambda e: (reach[ours, e - agents].sum(), -pool[e]))
            for rank, i in enumerate(sorted(ours, key=lambda i: (y[i], i))):
                goal = 8.0, 16.0 + (rank - (len(ours) - 1) / 2) * 0.76
                if near <= 6.5:
                    if reach[i].any():
                        weakest = agents + min(np.flatnonzero(reach[i]), key=lambda e: pool[agents + e])
                        actions[b, i] = 6 - agents + (focus if reach[i, focus - agents] else weakest)
                        continue
                    goal = x[focus], y[focus]
                dx, dy = goal[0] - x[i], goal[1] - y[i]
                action = (4 if dx > 0 else 5) if abs(dx) > abs(dy) else (2 if dy > 0 else 3)
                close = near > 6.5 and max(abs(dx), abs(dy)) < 0.6
                actions[b, i] = 1 if close or not env.available[b, i, action] else action
        return actions

    return act


@pytest.fixture
def play():
    """A function that plays the same number of episodes in every battle and returns their figures.

    Counting the first so many episodes to end would favour short ones.
    """

    def episodes(env: Skirmish, policy: Policy, each: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(7)
        left = np.full(env.n_envs, each)
        returns, lengths = np.zeros(env.n_envs), np.zeros(env.n_envs)
        rows: list[tuple[float, float, bool, int, int]] = []
        agents = env.n_agents
        env.reset()
        while left.any():
            env.step(policy(env, rng))
            returns += env.reward
            lengths += 1
            over = env.terminated | env.truncated
            for b in np.flatnonzero(over & (left > 0)):
                dead = env.units["health"][b] <= 0
                rows.append((returns[b], lengths[b], env.won[b], dead[:agents].sum(), dead[agents:].sum()))
            left[over] -= left[over] > 0
            returns[over] = lengths[over] = 0
            if over.any():
                env.reset(over)
        names = ("return", "length", "won", "dead_allies", "dead_enemies")
        return {
            name: np.array(column, dtype=float) for name, column in zip(names, zip(*rows, strict=True), strict=True)
        }

    return episodes
