"""The simulator as a PettingZoo `ParallelEnv` (extra `pettingzoo`)."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from .battles import Battles
from .masks import possible

Seen = dict[str, NDArray[Any]]
"""`observation` (O,) float32 in [-bound, bound], and `action_mask` (U,) int8: 1 for each action that is available."""


class BatchOfOne(Protocol):
    """A batch of battles; `BattleParallelEnv` uses a batch of one."""

    n_actions: int
    obs_size: int
    obs: NDArray[np.float32]
    state: NDArray[np.float32]
    available: NDArray[np.bool_]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]

    def reset(self) -> None: ...

    def step(self, actions: NDArray[np.int64]) -> None: ...


B = TypeVar("B", bound=BatchOfOne)


class BattleParallelEnv(ParallelEnv[str, Seen, int], Generic[B]):  # type: ignore[misc]  # PettingZoo has no types
    """One battle of a simulator. All agents stay until it ends.

    A subclass defines the replacement of unavailable actions, the rewards and the infos.

    Args:
        name: the name of the environment.
        agents: the names of the agents, in the order of their numbers.
        bound: observations lie between -bound and bound.
        seed: the seed of the battles, until `reset` gets another.
        make: returns a batch of one battle for a seed.
    """

    def __init__(self, name: str, agents: Sequence[str], bound: float, seed: int, make: Callable[[int], B]) -> None:
        self._make, self._env = make, make(seed)
        self.render_mode = None
        self.metadata = {"name": name, "render_modes": [], "is_parallelizable": True}
        env = self._env
        self.possible_agents = list(agents)
        self.agents: list[str] = []
        self.observation_spaces = {
            agent: spaces.Dict(
                {
                    "observation": spaces.Box(-bound, bound, (env.obs_size,), np.float32),
                    "action_mask": spaces.MultiBinary(env.n_actions),
                }
            )
            for agent in self.possible_agents
        }
        self.action_spaces = {agent: spaces.Discrete(env.n_actions) for agent in self.possible_agents}

    @abstractmethod
    def _chosen(self, given: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return available actions (1, A) in place of the given ones, and a mask of the replaced ones."""

    @abstractmethod
    def _rewards(self) -> list[float]:
        """Return the reward of each agent in the last step."""

    @abstractmethod
    def _info(self, i: int) -> dict[str, Any]:
        """Return the info of agent i."""

    def observation_space(self, agent: str) -> spaces.Dict:
        """Return the observation space of an agent."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Discrete:
        """Return the action space of an agent."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Seen], dict[str, dict[str, Any]]]:
        """Start a battle; with a seed, the first battle of that seed. `options` are ignored."""
        if seed is not None:
            self._env = self._make(seed)
        self._env.reset()
        self.agents = list(self.possible_agents)
        return self._seen(), self._infos(np.zeros(len(self.agents), np.bool_))

    def step(
        self, actions: dict[str, int]
    ) -> tuple[dict[str, Seen], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Make one step.

        Raises:
            ValueError: an agent has no action, or the battle is over; no step is made.
        """
        missing = [agent for agent in self.possible_agents if agent not in actions]
        if missing:
            raise ValueError(f"no action was given for {', '.join(missing)}")
        chosen, replaced = self._chosen(np.array([[int(actions[agent]) for agent in self.possible_agents]]))
        self._env.step(chosen)
        everyone = list(self.possible_agents)
        terminated, truncated = bool(self._env.terminated[0]), bool(self._env.truncated[0])
        if terminated or truncated:
            self.agents = []
        return (
            self._seen(),
            dict(zip(everyone, self._rewards(), strict=True)),
            dict.fromkeys(everyone, terminated),
            dict.fromkeys(everyone, truncated),
            self._infos(replaced[0]),
        )

    def state(self) -> NDArray[np.float32]:
        """Return the global state (S,)."""
        state: NDArray[np.float32] = self._env.state[0].copy()
        return state

    def close(self) -> None:
        """Do nothing: the environment holds only memory."""

    def _seen(self) -> dict[str, Seen]:
        env = self._env
        return {
            agent: {"observation": env.obs[0, i].copy(), "action_mask": env.available[0, i].astype(np.int8)}
            for i, agent in enumerate(self.possible_agents)
        }

    def _infos(self, replaced: NDArray[np.bool_]) -> dict[str, dict[str, Any]]:
        return {agent: {**self._info(i), "replaced": bool(replaced[i])} for i, agent in enumerate(self.possible_agents)}


class SkirmishParallelEnv(BattleParallelEnv[Battles]):
    """One battle; agents are `agent_0`, `agent_1`, … as SMAC numbers them.

    A dead agent has one available action, 0, as in SMAC. Each agent gets the team's reward. `state()` equals SMAC's
    `get_state`. `infos` hold, per agent, `alive`, `battle_won` and `replaced`: True if its action was unavailable and
    was replaced by *stop* (*nothing* for a dead agent), because much PettingZoo code does not use masks.

    Args:
        scenario: as for `Battles`.
        seed: the seed of the battles, until `reset` gets another.
        options: further arguments of `Battles`.

    Raises:
        ValueError: as `Battles`.
    """

    def __init__(self, scenario: str = "8m", *, seed: int = 0, **options: Any) -> None:
        first = Battles(scenario, 1, seed=seed, **options)
        super().__init__(
            f"skirmish_{first.scenario.name}_v0",
            [f"agent_{i}" for i in range(first.n_agents)],
            1.0,
            seed,
            lambda seed: Battles(scenario, 1, seed=seed, **options),
        )

    def _chosen(self, given: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        return possible(self._env, given)

    def _rewards(self) -> list[float]:
        return [float(self._env.reward[0])] * len(self.possible_agents)

    def _info(self, i: int) -> dict[str, Any]:
        return {"alive": bool(self._env.units["health"][0, i] > 0.0), "battle_won": bool(self._env.won[0])}
