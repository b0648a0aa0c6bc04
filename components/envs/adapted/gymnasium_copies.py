"""Gymnasium environments as an `Env` (extra `gymnasium`): B copies, each a separate object."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from components.envs.adapted.copies import FieldEnv, checked_mask, limit_of, number, seed_of
from components.envs.adapted.spaces import Does, Part, does_of, is_flat, parts_of, spec_of
from components.envs.base import EnvSpec


class GymnasiumCopies(FieldEnv):
    """B copies of a Gymnasium environment, which is one agent.

    The first reset of copy i gets the seed `seed_of(seed, i)`; later ones get none, as Gymnasium advises. The last
    observation of an episode is the one that the environment returned with the last step. `info["action_mask"]` (U,)
    marks the available actions of a Discrete. `info["is_success"]` of the last step tells whether the episode is won.

    Args:
        make: makes one environment.
        n_envs: B.
        seed: of all copies.
        episode_limit: steps after which an episode is cut; by default those of its TimeLimit.

    Raises:
        UsageError: a space is not supported, or the environment declares no limit and none is given.
    """

    def __init__(
        self,
        make: Callable[[], gymnasium.Env[Any, Any]],
        n_envs: int = 1,
        *,
        seed: int = 0,
        episode_limit: int | None = None,
    ) -> None:
        self._envs = [make() for _ in range(n_envs)]
        self.n_envs = n_envs
        env = self._envs[0]
        name = name_of(env)
        self._limit = limit_of(declared_limit(env), episode_limit, name)
        self.spec, self._parts, self._does = agent_spec(env, env.observation_space, env.action_space, self._limit)
        self._seeds: list[int | None] = [seed_of(seed, b) for b in range(n_envs)]
        self._has_state = "state" in dict(self.spec.schema.fields)
        self._allocate()

    def reset(self, which: NDArray[np.bool_] | None = None) -> None:
        for b in range(self.n_envs) if which is None else np.flatnonzero(which).tolist():
            obs, info = self._envs[b].reset(seed=self._seeds[b])
            self._seeds[b] = None
            self._show(b, obs, info)
            self.reward[b] = 0.0
            self.terminated[b] = self.truncated[b] = self.won[b] = self._over[b] = False
            self._t[b] = 0
        self._shown()

    def step(self, actions: NDArray[Any]) -> None:
        everything = np.arange(self.n_envs)
        self._does.check(actions, (self.n_envs, 1))
        self._check_playing(everything)
        if self._does.masked:
            self._check_available(actions, everything)
        self._t += 1
        for b, env in enumerate(self._envs):
            obs, reward, terminated, truncated, info = env.step(self._does.decode(actions[b, 0]))
            self._show(b, obs, info)
            self.reward[b] = number(reward)
            ended = bool(terminated), bool(truncated) or (self._t[b] >= self._limit and not terminated)
            self.terminated[b], self.truncated[b] = ended
            self.won[b] = any(ended) and bool(info.get("is_success", False))
        self._shown()
        self._over[:] = self.terminated | self.truncated

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _show(self, b: int, obs: Any, info: dict[str, Any]) -> None:
        for part in self._parts:
            self._arrays[part.name][b, 0] = part.value(obs, part.field.shape)
        mask = info.get("action_mask") if self._does.masked else None
        if mask is not None:
            self.available[b, 0] = checked_mask(mask, (self._does.n_actions,))
        elif self._does.masked:
            self.available[b, 0] = True

    def _shown(self) -> None:
        """Check the fields of all copies, and derive the state from the observations."""
        self._check_finite()
        if self._has_state:
            self.state[:] = self.obs[:, 0]


def agent_spec(env: Any, seen: Any, done: Any, limit: int) -> tuple[EnvSpec, tuple[Part, ...], Does]:
    """Return the spec, the observation fields and the action of a single-agent environment with these spaces.

    Raises:
        UsageError: a space is not supported.
    """
    name = name_of(env)
    parts, does = parts_of(seen, name), does_of(done, name)
    state_size = parts[0].field.shape[0] if is_flat(parts) else 0
    threshold = None if env.spec is None else env.spec.reward_threshold
    return spec_of(name, 1, limit, parts, does, state_size, reward_threshold=threshold), parts, does


def name_of(env: Any) -> str:
    """Return the name of an environment."""
    spec = env.spec
    return str(spec.id if spec is not None else type(env.unwrapped).__name__)


def declared_limit(env: gymnasium.Env[Any, Any]) -> int | None:
    """Return the number of steps after which the environment cuts an episode; None if it declares none."""
    if env.has_wrapper_attr("_max_episode_steps"):  # of a TimeLimit, which may be anywhere among the wrappers
        return int(env.get_wrapper_attr("_max_episode_steps"))
    return None if env.spec is None else env.spec.max_episode_steps
