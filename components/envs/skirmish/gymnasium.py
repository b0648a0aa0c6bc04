"""The simulator in Gymnasium (extra `gymnasium`). Importing this module registers `skirmish/8m-v0` and others.

One learner commands the whole team: an observation holds the observations of all agents, and an action holds one action
per agent. B battles, A agents, O observation size, U actions.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from .battles import Battles
from .masks import possible
from .scenarios import SCENARIOS


class SkirmishEnv(gymnasium.Env[NDArray[np.float32], NDArray[np.int64]]):
    """One battle. Observations are (A, O) in [-1, 1], actions (A,).

    `info` holds `action_mask` (A, U) int8, `state` (S,), `battle_won`, and `replaced`: the number of unavailable
    actions that were replaced by *stop* (*nothing* for dead agents), because much Gymnasium code does not use masks.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (Gymnasium declares it so)

    def __init__(self, scenario: str = "8m", *, render_mode: None = None, **options: Any) -> None:
        self.render_mode = render_mode
        self._scenario, self._options = scenario, options
        self._env = Battles(scenario, 1, **options)
        self.observation_space, self.action_space = _spaces(self._env)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start a battle; with a seed, the first battle of that seed. `options` are ignored."""
        super().reset(seed=seed)
        if seed is not None:
            self._env = Battles(self._scenario, 1, **(self._options | {"seed": seed}))
        self._env.reset()
        return self._env.obs[0].copy(), self._info(0)

    def step(self, action: NDArray[np.int64]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Make one step.

        Raises:
            ValueError: the actions have another shape, or the battle is over.
        """
        env = self._env
        actions, replaced = possible(env, np.asarray(action)[None])
        env.step(actions)
        ended = bool(env.terminated[0]), bool(env.truncated[0])
        return env.obs[0].copy(), float(env.reward[0]), *ended, self._info(int(replaced[0].sum()))

    def _info(self, replaced: int) -> dict[str, Any]:
        return {key: value[0] for key, value in _infos(self._env).items()} | {"replaced": replaced}


class SkirmishVectorEnv(VectorEnv[NDArray[np.float32], NDArray[np.int64], NDArray[Any]]):
    """B battles in the simulator's own array layout: observations (B, A, O), actions (B, A).

    A battle that ended is reset in the same step (`AutoresetMode.SAME_STEP`). `_final_obs` (B,) of `info` marks these
    battles; `final_obs` holds their last observation, `final_info` their last infos. Infos are those of `SkirmishEnv`,
    for all battles.
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 (as above)

    def __init__(self, num_envs: int = 1, scenario: str = "8m", **options: Any) -> None:
        self._scenario, self._options = scenario, options
        self._env = Battles(scenario, num_envs, **options)
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = _spaces(self._env)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start all battles; with a seed, the first battles of that seed. `options` are ignored.

        Raises:
            ValueError: `seed` is a list; battles share one seed, and each has its own number.
        """
        if isinstance(seed, list):
            raise ValueError("a list of seeds was given; battles share one seed, in which each has its own number")
        if seed is not None:
            self._env = Battles(self._scenario, self.num_envs, **(self._options | {"seed": seed}))
        self._env.reset()
        return self._env.obs.copy(), self._info(np.zeros(self.num_envs, np.int64))

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Make one step in every battle, and reset the battles that ended.

        Raises:
            ValueError: the actions have another shape, or `reset` was never called.
        """
        env = self._env
        actions, changed = possible(env, np.asarray(actions))
        env.step(actions)
        replaced = changed.sum(axis=1)
        reward, terminated, truncated = env.reward.copy(), env.terminated.copy(), env.truncated.copy()
        ended = terminated | truncated
        info: dict[str, Any] = {}
        if ended.any():
            info = {"final_obs": env.obs.copy(), "_final_obs": ended, "final_info": self._info(replaced)}
            info["_final_info"] = ended
            env.reset(ended)
        return env.obs.copy(), reward, terminated, truncated, info | self._info(replaced)

    def _info(self, replaced: NDArray[np.int64]) -> dict[str, Any]:
        infos = _infos(self._env) | {"replaced": replaced}
        return infos | {f"_{key}": np.ones(self.num_envs, np.bool_) for key in infos}


def _spaces(env: Battles) -> tuple[Any, Any]:
    seen = spaces.Box(-1.0, 1.0, (env.n_agents, env.obs_size), np.float32)
    return seen, spaces.MultiDiscrete([env.n_actions] * env.n_agents)


def _infos(env: Battles) -> dict[str, NDArray[Any]]:
    mask = env.available.astype(np.int8)
    return {"action_mask": mask, "state": env.state.copy(), "battle_won": env.won.copy()}


for _name in SCENARIOS:
    gymnasium.register(
        f"skirmish/{_name}-v0",
        entry_point=f"{__name__}:SkirmishEnv",
        vector_entry_point=f"{__name__}:SkirmishVectorEnv",
        kwargs={"scenario": _name},
    )
