"""Gymnasium vector environments as an `Env` (extra `gymnasium`), with any autoreset mode.

`metadata["autoreset_mode"]` names the mode. A new episode begins in the step after the end of the previous one, which
ignores its action; in the step that ends the previous one; or on an explicit reset. In all three modes, the last
observation of an episode is its own, and nothing is recorded between two episodes. B copies.
"""

from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from components.envs.adapted.copies import FieldEnv, checked_mask, limit_of
from components.envs.adapted.gymnasium_copies import agent_spec, name_of
from components.envs.base import ALL, Copies
from components.envs.skirmish.checks import check_mask
from orchestra import UsageError

_NONE = np.empty(0, np.int64)


class VectorCopies(FieldEnv):
    """A vector environment whose copies are reset explicitly, `AutoresetMode.DISABLED`.

    One seed determines all copies: that of the first reset.

    Args:
        envs: the vector environment.
        seed: of all copies.
        episode_limit: steps after which it cuts an episode; by default the limit that it declares.

    Raises:
        UsageError: a space is not supported, or it declares no limit and none is given.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any], *, seed: int = 0, episode_limit: int | None = None) -> None:
        self._vector, self.n_envs = envs, envs.num_envs
        self._name = name_of(envs)
        limit = limit_of(_declared_limit(envs), episode_limit, self._name)
        seen, done = envs.single_observation_space, envs.single_action_space
        self.spec, self._parts, self._does = agent_spec(envs, seen, done, limit)
        self._seed: int | None = seed
        self._has_state = "state" in dict(self.spec.schema.fields)
        self._allocate()
        self._actions = np.zeros((self.n_envs, 1, *self._does.field.shape), self._does.field.dtype)

    def reset(self, which: NDArray[np.bool_] | None = None) -> None:
        which = np.ones(self.n_envs, np.bool_) if which is None else which
        check_mask(which, self.n_envs)
        if which.all():
            self._reset_all()
        elif which.any():
            obs, infos = self._vector.reset(options={"reset_mask": which})
            self._show(obs, infos, np.flatnonzero(which))
            self._begin(np.flatnonzero(which))

    def step(self, actions: NDArray[Any]) -> None:
        self._check(actions, np.arange(self.n_envs))
        self._actions[:] = actions
        self._take(*self._vector.step(self._does.decode(self._actions[:, 0])), ALL)

    def close(self) -> None:
        self._vector.close()

    def _check(self, actions: NDArray[Any], copies: NDArray[np.int64]) -> None:
        self._does.check(actions, (len(copies), 1))
        self._check_playing(copies)
        if self._does.masked:
            self._check_available(actions, copies)

    def _reset_all(self) -> None:
        obs, infos = self._vector.reset(seed=self._seed)
        self._seed = None
        self._show(obs, infos, ALL)
        self._begin(ALL)

    def _begin(self, copies: Copies) -> None:
        """Note that episodes begin in these copies."""
        self.reward[copies], self._t[copies] = 0.0, 0
        for flags in (self.terminated, self.truncated, self.won, self._over):
            flags[copies] = False

    def _take(self, obs: Any, reward: Any, terminated: Any, truncated: Any, infos: dict[str, Any], at: Copies) -> None:
        """Copy the results of a step for these copies."""
        rewards = np.asarray(reward)
        if rewards.shape != (self.n_envs,):
            raise ValueError(f"reward: expected shape {(self.n_envs,)}, got {rewards.shape}")
        self.reward[at] = rewards[at]
        self.terminated[at] = np.asarray(terminated)[at]
        self.truncated[at] = np.asarray(truncated)[at]
        self._over[at] = self.terminated[at] | self.truncated[at]
        self._t[at] += 1
        self._check_limit()
        self._show(obs, infos, at)
        self.won[at] = self._over[at] & _flags(infos.get("is_success"), self.n_envs)[at]

    def _check_limit(self) -> None:
        late = (self._t >= self.spec.episode_limit) & ~self._over
        if late.any():
            raise ValueError(
                f"copy {late.argmax()}: an episode of {self._name} is longer than the {self.spec.episode_limit} steps "
                "that it should have at most (--episode-limit); a vector environment cuts its episodes itself"
            )

    def _show(self, obs: Any, infos: dict[str, Any], at: Copies) -> None:
        for part in self._parts:
            self._arrays[part.name][at, 0] = part.value(obs, (self.n_envs, *part.field.shape))[at]
        self._check_finite()
        if self._has_state:
            self.state[at] = self.obs[at, 0]
        if self._does.masked:
            self.available[at, 0] = self._masks(infos)[at]

    def _masks(self, infos: dict[str, Any]) -> NDArray[np.bool_]:
        """Return which actions are available (B, U); all of a copy if the infos have no mask for it."""
        masks = np.ones((self.n_envs, self._does.n_actions), np.bool_)
        if "action_mask" in infos:
            said = np.asarray(infos.get("_action_mask", np.ones(self.n_envs, np.bool_)))
            given = np.where(said[:, None], np.asarray(infos["action_mask"]), 1)
            masks[:] = checked_mask(given, masks.shape)
        return masks


class SameStepCopies(VectorCopies):
    """A vector environment that begins the next episode in the step that ends one, `AutoresetMode.SAME_STEP`.

    The arrays of the next episode are kept until the copy is reset.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any], *, seed: int = 0, episode_limit: int | None = None) -> None:
        super().__init__(envs, seed=seed, episode_limit=episode_limit)
        self._next = {name: np.zeros_like(array) for name, array in self._arrays.items()}

    def reset(self, which: NDArray[np.bool_] | None = None) -> None:
        which = np.ones(self.n_envs, np.bool_) if which is None else which
        check_mask(which, self.n_envs)
        if self._seed is not None or not self._over[which].all():
            if not which.all():
                raise ValueError(f"{self!r} begins an episode where one has ended, or in all copies together")
            self._reset_all()
            return
        for name, array in self._arrays.items():
            array[which] = self._next[name][which]
        self._begin(np.flatnonzero(which))

    def _take(self, obs: Any, reward: Any, terminated: Any, truncated: Any, infos: dict[str, Any], at: Copies) -> None:
        super()._take(obs, reward, terminated, truncated, infos, at)
        for b in np.flatnonzero(self._over).tolist():
            for name, array in self._arrays.items():
                self._next[name][b] = array[b]
            final = _row(infos["final_obs"], b)
            for part in self._parts:
                self._arrays[part.name][b, 0] = part.value(final, part.field.shape)
            self._check_finite()
            if self._has_state:
                self.state[b] = self.obs[b, 0]
            if self._does.masked:
                self.available[b] = True
            success = infos.get("final_info", {}).get("is_success")
            self.won[b] = _flags(success, self.n_envs)[b]


class NextStepCopies(VectorCopies):
    """A vector environment that begins an episode in the step after the end of one, `AutoresetMode.NEXT_STEP`.

    A copy begins an episode during a step of the others and is received with them, but makes no step itself. So copies
    are not in lock-step.
    """

    lock_step: ClassVar[bool] = False

    def __init__(self, envs: VectorEnv[Any, Any, Any], *, seed: int = 0, episode_limit: int | None = None) -> None:
        super().__init__(envs, seed=seed, episode_limit=episode_limit)
        self._sent, self._begun = np.zeros((2, self.n_envs), np.bool_)  # (B,): copies to be received
        self._due = np.zeros(self.n_envs, np.bool_)  # (B,): the next step begins an episode in them
        self._all_begun = False

    def send(self, actions: NDArray[Any], copies: Copies) -> None:
        which = np.arange(self.n_envs)[copies]
        self._check(actions, which)
        self._actions[which] = actions
        self._sent[which] = True

    def send_reset(self, copies: Copies) -> None:
        which = np.arange(self.n_envs)[copies]
        if self._due[which].all():
            self._begun[which] = True
        elif len(which) == self.n_envs:
            self._reset_all()
            self._due[:] = self._sent[:] = self._begun[:] = False
            self._all_begun = True
        else:
            raise ValueError(f"{self!r} begins an episode where one has just ended, or in all copies together")

    def recv(self) -> Copies:
        if self._all_begun:
            self._all_begun = False
            return ALL
        received = self._sent | self._begun
        if not received.any():
            return _NONE
        obs, reward, terminated, truncated, infos = self._vector.step(self._does.decode(self._actions[:, 0]))
        begins = self._due
        self._due = (np.asarray(terminated) | np.asarray(truncated)) & ~begins
        stepped, begun = np.flatnonzero(self._sent), np.flatnonzero(self._begun)
        self._show(obs, infos, begun)
        self._begin(begun)
        self._take(obs, reward, terminated, truncated, infos, stepped)
        self._sent[:] = self._begun[:] = False
        return np.flatnonzero(received)

    def step(self, actions: NDArray[Any]) -> None:
        self.send(actions, ALL)
        self.recv()

    def reset(self, which: NDArray[np.bool_] | None = None) -> None:
        which = np.ones(self.n_envs, np.bool_) if which is None else which
        check_mask(which, self.n_envs)
        if not which.all():
            raise ValueError(f"{self!r} begins episodes in all copies together, or by `send_reset` and `recv`")
        self.send_reset(ALL)
        self.recv()


_MODES = {
    AutoresetMode.DISABLED: VectorCopies,
    AutoresetMode.SAME_STEP: SameStepCopies,
    AutoresetMode.NEXT_STEP: NextStepCopies,
}


def vector_copies(envs: VectorEnv[Any, Any, Any], *, seed: int, episode_limit: int | None = None) -> VectorCopies:
    """Return a vector environment as an `Env`.

    Raises:
        UsageError: it declares no autoreset mode, or as `VectorCopies`.
    """
    mode = envs.metadata.get("autoreset_mode")
    if mode not in _MODES:
        raise UsageError(
            f"{name_of(envs)}: metadata['autoreset_mode'] is {mode!r}; a vector environment names one of "
            f"{', '.join(map(str, _MODES))} there"
        )
    return _MODES[mode](envs, seed=seed, episode_limit=episode_limit)


def _declared_limit(envs: Any) -> int | None:
    spec = envs.spec
    if spec is not None:
        declared = spec.kwargs.get("max_episode_steps", spec.max_episode_steps)
        if declared is not None:
            return int(declared)
    declared = getattr(envs.unwrapped, "max_episode_steps", None)
    return None if declared is None else int(declared)


def _flags(given: Any, n: int) -> NDArray[np.bool_]:
    return np.zeros(n, np.bool_) if given is None else np.asarray(given).astype(np.bool_)


def _row(value: Any, b: int) -> Any:
    """Return the observation of copy `b` from a batch of observations, or from an object array of them."""
    if isinstance(value, dict):
        return {key: _row(part, b) for key, part in value.items()}
    return tuple(_row(part, b) for part in value) if isinstance(value, tuple) else value[b]
