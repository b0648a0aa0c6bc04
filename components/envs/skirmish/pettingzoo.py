"""The simulator as a PettingZoo `ParallelEnv` (extra `pettingzoo`)."""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from .battles import Battles
from .masks import possible

Seen = dict[str, NDArray[Any]]
"""`observation` (O,) float32 in [-1, 1], and `action_mask` (U,) int8: 1 for each action that is available."""


class SkirmishParallelEnv(ParallelEnv[str, Seen, int]):  # type: ignore[misc]  # PettingZoo has no types
    """One battle; agents are `agent_0`, `agent_1`, … as SMAC numbers them.

    All agents stay until the battle ends, and end together. The dead have one action, 0, as in SMAC. Everyone is given
    the team's reward. `state()` is what SMAC's `get_state` is. `infos` say, each for its agent, `alive`,
    `battle_won`, and `replaced`: its action was not available and made into *stop* (*nothing* for the dead), since
    much code of PettingZoo knows no masks.

    Args:
        scenario: as for `Battles`.
        seed: of the battles, until `reset` names another.
        options: whatever else `Battles` takes.

    Raises:
        ValueError: as `Battles`.
    """

    def __init__(self, scenario: str = "8m", *, seed: int = 0, **options: Any) -> None:
        self._scenario, self._options = scenario, options
        self._env = Battles(scenario, 1, seed=seed, **options)
        self.render_mode = None
        self.metadata = {
            "name": f"skirmish_{self._env.scenario.name}_v0",
            "render_modes": [],
            "is_parallelizable": True,
        }
        env = self._env
        self.possible_agents = [f"agent_{i}" for i in range(env.n_agents)]
        self.agents: list[str] = []
        self.observation_spaces = {
            agent: spaces.Dict(
                {
                    "observation": spaces.Box(-1.0, 1.0, (env.obs_size,), np.float32),
                    "action_mask": spaces.MultiBinary(env.n_actions),
                }
            )
            for agent in self.possible_agents
        }
        self.action_spaces = {agent: spaces.Discrete(env.n_actions) for agent in self.possible_agents}

    def observation_space(self, agent: str) -> spaces.Dict:
        """What an agent may see."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Discrete:
        """What an agent may do."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Seen], dict[str, dict[str, Any]]]:
        """Start a battle; with a seed, the first that follows from it. There are no `options`."""
        if seed is not None:
            self._env = Battles(self._scenario, 1, seed=seed, **self._options)
        self._env.reset()
        self.agents = list(self.possible_agents)
        return self._seen(), self._infos(np.zeros(len(self.agents), np.bool_))

    def step(
        self, actions: dict[str, int]
    ) -> tuple[dict[str, Seen], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Make one step.

        Raises:
            ValueError: an agent has no action, or the battle is over; nothing has been stepped then.
        """
        missing = [agent for agent in self.possible_agents if agent not in actions]
        if missing:
            raise ValueError(f"no action was given for {', '.join(missing)}")
        given = np.array([[int(actions[agent]) for agent in self.possible_agents]])
        chosen, replaced = possible(self._env, given)
        self._env.step(chosen)
        everyone = list(self.possible_agents)
        reward = float(self._env.reward[0])
        terminated, truncated = bool(self._env.terminated[0]), bool(self._env.truncated[0])
        if terminated or truncated:
            self.agents = []
        return (
            self._seen(),
            dict.fromkeys(everyone, reward),
            dict.fromkeys(everyone, terminated),
            dict.fromkeys(everyone, truncated),
            self._infos(replaced[0]),
        )

    def state(self) -> NDArray[np.float32]:
        """Return the global state (S,)."""
        state: NDArray[np.float32] = self._env.state[0].copy()
        return state

    def close(self) -> None:
        """Nothing: all it holds is memory."""

    def _seen(self) -> dict[str, Seen]:
        env = self._env
        return {
            agent: {"observation": env.obs[0, i].copy(), "action_mask": env.available[0, i].astype(np.int8)}
            for i, agent in enumerate(self.possible_agents)
        }

    def _infos(self, replaced: NDArray[np.bool_]) -> dict[str, dict[str, Any]]:
        won, health = bool(self._env.won[0]), self._env.units["health"][0]
        return {
            agent: {"alive": bool(health[i] > 0.0), "battle_won": won, "replaced": bool(replaced[i])}
            for i, agent in enumerate(self.possible_agents)
        }
