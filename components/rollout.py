"""Rollouts: a policy plays B copies of an environment, each copy in an episode of its own.

Shapes: B copies, T steps of an episode (the limit at most), A agents; E finished episodes, N steps of all of them.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from components.envs.base import Env, EnvSpec
from components.policies.base import Policy
from messages import InsertTransitionMsg
from orchestra import freeze


class EnvFactory(Protocol):
    """Makes an environment in the process that needs it: `partial(Skirmish, "8m")`."""

    def __call__(self, n_envs: int, *, seed: int) -> Env: ...


class PolicyFactory(Protocol):
    """Makes a policy in the process that needs it: `partial(Qmix, learning_rate=1e-3)`."""

    def __call__(self, spec: EnvSpec, *, seed: int) -> Policy: ...


class Rollout:
    """Collects experience. Each copy has its own hidden states, last actions and episode memory."""

    def __init__(self, env: Env, policy: Policy, rng: np.random.Generator) -> None:
        spec = env.spec
        self.version = 0
        """Version of the acting parameters."""
        self._env = env
        self._policy = policy
        self._rng = rng
        self._rows = np.arange(env.n_envs)
        self._t = np.zeros(env.n_envs, np.int64)  # (B,)
        self._hidden = policy.initial_hidden(env.n_envs)
        self._last_actions = np.full((env.n_envs, spec.n_agents), -1, np.int64)  # (B, A)
        frames = (env.n_envs, spec.episode_limit + 1)
        self._obs = np.zeros((*frames, spec.n_agents, spec.obs_size), np.float32)  # (B, T+1, A, O)
        self._state = np.zeros((*frames, spec.state_size), np.float32)  # (B, T+1, S)
        self._available = np.zeros((*frames, spec.n_agents, spec.n_actions), np.bool_)  # (B, T+1, A, U)
        self._actions = np.zeros((env.n_envs, spec.episode_limit, spec.n_agents), np.int64)  # (B, T, A)
        self._reward = np.zeros((env.n_envs, spec.episode_limit), np.float32)  # (B, T)
        self._begun = False  # the first `collect` resets the environment, which may take long

    def load(self, params: NDArray[np.float32], version: int) -> None:
        """Act with parameters `params` from the next step on."""
        self._policy.load(params)
        self.version = version

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def collect(self, steps: int, epsilon: float) -> InsertTransitionMsg | None:
        """Make `steps` steps in every copy; return the episodes that ended, if any did."""
        if not self._begun:
            self._env.reset()
            self._begun = True
        # At most every episode under way and every step made now, each step the end of an episode.
        ended = _Ended(self._memories(), room=int(self._t.sum()) + 2 * steps * len(self._t))
        for _ in range(steps):
            self._step(epsilon, ended)
        return ended.message(self.version, epsilon)

    def state(self) -> dict[str, NDArray[Any]] | None:
        """Return the state by name, as copies, without the generator; None if the environment takes no snapshots.

        Of the episodes under way it has the frames played so far, copy after copy.
        """
        game = self._env.snapshot()
        if game is None:
            return None
        own = {name: getattr(self, f"_{name}").copy() for name in _CHANGING}
        own |= {name: memory[_played(memory, self._t)] for name, memory in self._memories().items()}
        own["begun"] = np.array(self._begun)
        return {**own, **{f"env/{name}": array for name, array in game.items()}}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Continue from the state of a rollout of the same environment and policy.

        Raises:
            ValueError: the state belongs to another rollout; nothing has changed.
        """
        memories = self._memories()
        for name in (*_CHANGING, *memories):
            mine = memories.get(name, getattr(self, f"_{name}"))
            shape = (int(_played(mine, state["t"]).sum()), *mine.shape[2:]) if name in memories else mine.shape
            if name not in state or (state[name].shape, state[name].dtype) != (shape, mine.dtype):
                raise ValueError(f"the state of another rollout: {name} must be {mine.dtype} {shape}")
        self._env.restore({name[4:]: array for name, array in state.items() if name.startswith("env/")})
        for name in _CHANGING:
            setattr(self, f"_{name}", state[name].copy())
        for name, memory in memories.items():
            memory[_played(memory, self._t)] = state[name]
        self._begun = bool(state["begun"])

    def _memories(self) -> dict[str, NDArray[Any]]:
        """Return the memory of the episodes under way by name, each (B, frames, …)."""
        return {name: getattr(self, f"_{name}") for name in ("obs", "state", "available", "actions", "reward")}

    def _step(self, epsilon: float, finished: "_Ended") -> None:
        env, rows, t = self._env, self._rows, self._t
        self._observe(rows, t)
        actions, self._hidden = self._policy.act(
            env.obs, env.available, self._last_actions, self._hidden, epsilon=epsilon, rng=self._rng
        )
        env.step(actions)
        self._actions[rows, t] = actions
        self._reward[rows, t] = env.reward
        self._last_actions = actions
        t += 1
        lost = env.failed_copies()
        if lost is not None and lost.any():
            self._reset_copies(lost)
        done = env.terminated | env.truncated
        if not done.any():
            return
        rows = np.flatnonzero(done)
        self._observe(rows, t[rows])
        finished.add(rows, t[rows], env.terminated[rows], env.won[rows])
        env.reset(done)
        self._reset_copies(done)

    def _reset_copies(self, which: NDArray[np.bool_]) -> None:
        self._hidden[which] = 0.0
        self._last_actions[which] = -1
        self._t[which] = 0

    def _observe(self, rows: NDArray[np.int64], t: NDArray[np.int64]) -> None:
        env = self._env
        self._obs[rows, t] = env.obs[rows]
        self._state[rows, t] = env.state[rows]
        self._available[rows, t] = env.available[rows]


class _Ended:
    """Episodes that ended, copied once: out of the rollout's memory into the arrays of their message.

    Args:
        memories: of the episodes under way, by name: (B, frames, …).
        room: frames that suffice for all episodes.
    """

    def __init__(self, memories: dict[str, NDArray[Any]], room: int) -> None:
        self._memories = memories
        self._room = room
        self._arrays: dict[str, NDArray[Any]] = {}
        self._steps = 0
        self._lengths: list[int] = []
        self._terminated: list[bool] = []
        self._won: list[bool] = []

    def add(
        self, rows: NDArray[np.int64], lengths: NDArray[np.int64], terminated: NDArray[np.bool_], won: NDArray[np.bool_]
    ) -> None:
        """Append the episodes of some rows (E,) of the memories."""
        if not self._arrays:
            for name, memory in self._memories.items():
                self._arrays[name] = np.empty((self._room, *memory.shape[2:]), memory.dtype)
        for row, length in zip(rows.tolist(), lengths.tolist(), strict=True):
            for name, memory in self._memories.items():
                last = name in _FRAMES  # an episode has one frame more than steps
                at = self._steps + last * len(self._lengths)
                self._arrays[name][at : at + length + last] = memory[row, : length + last]
            self._lengths.append(length)
            self._steps += length
        self._terminated += terminated.tolist()
        self._won += won.tolist()

    def message(self, version: int, epsilon: float) -> InsertTransitionMsg | None:
        """Return the episodes, which parameters of `version` played; None where there are none."""
        n = len(self._lengths)
        if n == 0:
            return None
        for name, array in self._arrays.items():
            # Gives the rest back without a copy.
            array.resize((self._steps + n * (name in _FRAMES), *array.shape[1:]), refcheck=False)
        return InsertTransitionMsg(
            **{name: freeze(array) for name, array in self._arrays.items()},
            lengths=freeze(np.array(self._lengths, np.int32)),
            terminated=freeze(np.array(self._terminated)),
            won=freeze(np.array(self._won)),
            versions=freeze(np.full(n, version, np.int64)),
            epsilon=freeze(np.full(n, epsilon, np.float32)),
        )


def concatenated(parts: list[InsertTransitionMsg]) -> InsertTransitionMsg:
    """Return all episodes of `parts` in one message."""
    if len(parts) == 1:
        return parts[0]
    names = InsertTransitionMsg.wire.array_fields
    arrays = {name: freeze(np.concatenate([getattr(part, name) for part in parts])) for name in names}
    return InsertTransitionMsg(**arrays)


_CHANGING = ("t", "hidden", "last_actions")
_FRAMES = ("obs", "state", "available")


def _played(memory: NDArray[Any], t: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which frames of a memory (B, frames, …) are written after `t` (B,) steps, as (B, frames)."""
    played: NDArray[np.bool_] = np.arange(memory.shape[1]) < t[:, None]
    return played


@dataclass(frozen=True, slots=True)
class EpisodeResults:
    """Results of E episodes."""

    won: NDArray[np.bool_]  # (E,)
    returns: NDArray[np.float64]  # (E,)
    lengths: NDArray[np.int64]  # (E,)


def play_once(
    make: EnvFactory, n_envs: int, seed: int, policy: Policy, episodes: int, rng: np.random.Generator
) -> EpisodeResults:
    """Make environments, `play` greedily, and close them, also after a failure."""
    env = make(n_envs, seed=seed)
    try:
        return play(env, policy, episodes, rng)
    finally:
        env.close()


def play(env: Env, policy: Policy, episodes: int, rng: np.random.Generator, *, epsilon: float = 0.0) -> EpisodeResults:
    """Play `episodes` whole episodes, greedily by default, and return their results.

    The first episodes that began count, not the first that ended: that would favour short ones.
    """
    won: list[NDArray[np.bool_]] = []
    returns: list[NDArray[np.float64]] = []
    lengths: list[NDArray[np.int64]] = []
    while (left := episodes - sum(len(round_) for round_ in won)) > 0:
        env.reset()
        hidden = policy.initial_hidden(env.n_envs)
        last_actions = np.full((env.n_envs, env.spec.n_agents), -1, np.int64)
        total = np.zeros(env.n_envs)
        length = np.zeros(env.n_envs, np.int64)
        victory = np.zeros(env.n_envs, np.bool_)
        playing = np.ones(env.n_envs, np.bool_)
        while playing.any():
            actions, hidden = policy.act(env.obs, env.available, last_actions, hidden, epsilon=epsilon, rng=rng)
            env.step(actions)
            last_actions = actions
            total[playing] += env.reward[playing]
            length[playing] += 1
            done = env.terminated | env.truncated
            victory |= playing & env.won
            lost = env.failed_copies()
            if lost is not None and lost.any():  # they play another episode instead
                total[lost & playing] = 0.0
                length[lost & playing] = 0
                hidden[lost] = 0.0
                last_actions[lost] = -1
            playing &= ~done
            if done.any() and playing.any():
                env.reset(done)  # a finished copy plays on; that episode does not count
                hidden[done] = 0.0
                last_actions[done] = -1
        count = min(left, env.n_envs)
        won.append(victory[:count])
        returns.append(total[:count])
        lengths.append(length[:count])
    return EpisodeResults(np.concatenate(won), np.concatenate(returns), np.concatenate(lengths))
