"""Rollouts: a policy plays B copies of an environment, each copy in an episode of its own.

Shapes: B copies, T steps of an episode (the limit at most), A agents; E finished episodes, N steps of all of them.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from components.envs.base import ALL, Copies, Env, EnvSpec
from components.policies.acting import ActingPolicy
from components.policies.base import Policy
from messages import InsertTransitionMsg
from orchestra import freeze


class EnvFactory(Protocol):
    """Makes an environment in the process that needs it: `partial(Skirmish, "8m")`."""

    def __call__(self, n_envs: int, *, seed: int) -> Env: ...


class PolicyFactory(Protocol):
    """Makes a policy that learns, in the process that needs it: `partial(Qmix, learning_rate=1e-3)`."""

    def __call__(self, spec: EnvSpec, *, seed: int) -> Policy: ...


class ActingFactory(Protocol):
    """Makes a policy that acts, in the process that needs it: `Algorithm.acting`, or a `PolicyFactory`."""

    def __call__(self, spec: EnvSpec, *, seed: int) -> ActingPolicy: ...


class ActingCopies:
    """Copies of an environment that a policy plays: their hidden states, their last actions, and which are ready.

    All copies that are ready act in one forward pass. Of a batched simulator these are always all.
    """

    def __init__(self, env: Env, policy: ActingPolicy, rng: np.random.Generator) -> None:
        self.env, self._policy, self._rng = env, policy, rng
        self.hidden = policy.initial_hidden(env.n_envs)
        self.last_actions = np.full((env.n_envs, env.spec.n_agents), -1, np.int64)  # (B, A)
        self.ready: Copies = _NONE
        """The copies that wait for actions."""
        self._numbers = np.arange(env.n_envs)
        self._acting = np.zeros(env.n_envs, np.bool_)  # (B,): copies that have been sent actions

    def begin(self, copies: Copies) -> None:
        """Begin episodes in these copies."""
        self.env.send_reset(copies)
        self._forget(copies)
        self.ready = ALL if self.env.lock_step else self._without(copies)

    def act(self, epsilon: float) -> NDArray[np.int64]:
        """Choose the actions (n, A) of the copies that are ready, and send them."""
        env, ready = self.env, self.ready
        if not self.any_ready():
            return self.last_actions[:0]
        actions, hidden = self._policy.act(
            env.obs[ready],
            env.available[ready],
            self.last_actions[ready],
            self.hidden[ready],
            epsilon=epsilon,
            rng=self._rng,
        )
        if isinstance(ready, slice):
            self.hidden, self.last_actions = hidden, actions
        else:
            self.hidden[ready], self.last_actions[ready] = hidden, actions
        env.send(actions, ready)
        self._acting[ready] = True
        self.ready = _NONE
        return actions

    def receive(self) -> tuple[Copies, NDArray[np.bool_] | None]:
        """Wait for copies; return those that have made a step, and which (B,) have lost their episode, if any.

        A copy that has made a step is ready, unless `leave` or `begin` names it.
        """
        self.ready = received = self.env.recv()
        lost = self.env.failed_copies()
        if lost is not None and lost.any():
            self._forget(lost)
            self._acting[lost] = False
        else:
            lost = None
        acted = self._acting[received]
        stepped = received if acted.all() else self._numbers[received][acted]
        self._acting[received] = False
        return stepped, lost

    def leave(self, copies: Copies) -> None:
        """Leave these copies, whose episodes have ended, as they are."""
        self.ready = self._without(copies)

    def any_ready(self) -> bool:
        """True if a copy waits for actions."""
        return isinstance(self.ready, slice) or len(self.ready) > 0

    def _forget(self, copies: Copies | NDArray[np.bool_]) -> None:
        self.hidden[copies] = 0.0
        self.last_actions[copies] = -1

    def _without(self, copies: Copies) -> NDArray[np.int64]:
        return np.setdiff1d(self._numbers[self.ready], self._numbers[copies], assume_unique=True)


_NONE = np.empty(0, np.int64)


class Rollout:
    """Collects experience. Each copy has its own hidden states, last actions and episode memory.

    An ended episode stays in its row of the memories until the turn ends, while its copy goes on in a spare row. So all
    episodes of a turn are copied once, straight into the arrays of their message.
    """

    def __init__(self, env: Env, policy: ActingPolicy, rng: np.random.Generator) -> None:
        spec = env.spec
        self.version = 0
        """Version of the acting parameters."""
        self._env = env
        self._policy = policy
        self._copies = ActingCopies(env, policy, rng)
        self._rows = np.arange(env.n_envs)  # (B,): of the memories, for the episodes under way
        self._spare = list(range(env.n_envs, 2 * env.n_envs))
        self._ended: list[_Ended] = []
        self._t = np.zeros(env.n_envs, np.int64)  # (B,)
        steps, frames = (2 * env.n_envs, spec.episode_limit), (2 * env.n_envs, spec.episode_limit + 1)
        self._obs = np.zeros((*frames, spec.n_agents, spec.obs_size), np.float32)  # (2B, T+1, A, O)
        self._state = np.zeros((*frames, spec.state_size), np.float32)  # (2B, T+1, S)
        self._available = np.zeros((*frames, spec.n_agents, spec.n_actions), np.bool_)  # (2B, T+1, A, U)
        self._actions = np.zeros((*steps, spec.n_agents), np.int64)  # (2B, T, A)
        self._reward = np.zeros(steps, np.float32)  # (2B, T)
        self._versions = np.zeros(steps, np.int32)  # (2B, T)
        self._begun = False  # the first `collect` resets the environment, which may take long

    def load(self, params: NDArray[np.float32], version: int) -> None:
        """Act with parameters `params` from the next step on."""
        self._policy.load(params)
        self.version = version

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def collect(self, steps: int, epsilon: float, most: int | None = None) -> InsertTransitionMsg | None:
        """Make B times `steps` steps; return the episodes that ended, if any did.

        In lock-step these are `steps` in every copy. A turn ends early when no copy becomes ready for a while, or with
        the step in which the `most`-th episode ends; None for any number.
        """
        if not self._begun:
            self._copies.begin(ALL)
            self._begun = True
        parts: list[InsertTransitionMsg] = []
        left = steps * self._env.n_envs
        while left > 0:
            made, part = self._step(epsilon)
            left -= made
            if part is not None:
                parts.append(part)
            if not made and not self._copies.any_ready():
                break
            if most is not None:
                ended = sum(len(each.rows) for each in self._ended) + sum(each.episodes for each in parts)
                if ended >= most:
                    break
        if self._ended:
            parts.append(self._cut(epsilon))
        return concatenated(parts) if parts else None

    def state(self) -> dict[str, NDArray[Any]] | None:
        """Return the state by name, as copies, without the generator; None if the environment takes no snapshots.

        Of the episodes under way it has the frames played so far, copy after copy.
        """
        game = self._env.snapshot()
        if game is None:
            return None
        own = {name: array.copy() for name, array in self._changing().items()}
        own |= {name: _joined(memory, self._rows, self._t) for name, memory in self._memories().items()}
        own["begun"] = np.array(self._begun)
        return {**own, **{f"env/{name}": array for name, array in game.items()}}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Continue from the state of a rollout of the same environment and policy.

        Raises:
            ValueError: the state belongs to another rollout; nothing has changed.
        """
        memories = self._memories()
        for name, mine in {**self._changing(), **memories}.items():
            shape = (int(_played(mine, state["t"]).sum()), *mine.shape[2:]) if name in memories else mine.shape
            if name not in state or (state[name].shape, state[name].dtype) != (shape, mine.dtype):
                raise ValueError(f"the state of another rollout: {name} must be {mine.dtype} {shape}")
        self._env.restore({name[4:]: array for name, array in state.items() if name.startswith("env/")})
        for name, mine in self._changing().items():
            mine[...] = state[name]
        n_envs = len(self._t)
        self._rows, self._spare = np.arange(n_envs), list(range(n_envs, 2 * n_envs))
        for name, memory in memories.items():
            memory[:n_envs][_played(memory, self._t)] = state[name]
        self._begun = bool(state["begun"])
        if self._begun:
            self._copies.ready = ALL

    def _changing(self) -> dict[str, NDArray[Any]]:
        """Return what changes in place by name, each (B, …)."""
        return {"t": self._t, "hidden": self._copies.hidden, "last_actions": self._copies.last_actions}

    def _memories(self) -> dict[str, NDArray[Any]]:
        """Return the memories of episodes by name, each (2B, frames, …)."""
        return {name: getattr(self, f"_{name}") for name in _MEMORIES}

    def _step(self, epsilon: float) -> tuple[int, InsertTransitionMsg | None]:
        """Act in the copies that are ready, and wait for others.

        Return how many have made a step, and earlier episodes of the turn if their rows are needed.
        """
        env, rows, t, ready = self._env, self._rows, self._t, self._copies.ready
        self._observe(ready)
        self._actions[rows[ready], t[ready]] = self._copies.act(epsilon)
        self._versions[rows[ready], t[ready]] = self.version
        stepped, lost = self._copies.receive()
        if lost is not None:
            t[lost] = 0
        self._reward[rows[stepped], t[stepped]] = env.reward[stepped]
        t[stepped] += 1
        done = np.zeros(env.n_envs, np.bool_)
        done[stepped] = env.terminated[stepped] | env.truncated[stepped]
        made, part = len(t[stepped]), None
        if done.any():
            ended = np.flatnonzero(done)
            self._observe(ended)
            part = self._cut(epsilon) if len(ended) > len(self._spare) else None
            self._ended.append(_Ended(rows[ended], t[ended], env.terminated[ended], env.won[ended]))
            rows[ended] = [self._spare.pop() for _ in ended]
            t[ended] = 0
            self._copies.begin(ended)
        return made, part

    def _observe(self, copies: slice | NDArray[np.int64]) -> None:
        env, rows, t = self._env, self._rows[copies], self._t[copies]
        self._obs[rows, t] = env.obs[copies]
        self._state[rows, t] = env.state[copies]
        self._available[rows, t] = env.available[copies]

    def _cut(self, epsilon: float) -> InsertTransitionMsg:
        """Return the episodes that ended in this turn, and free their rows."""
        rows, lengths, terminated, won = (np.concatenate(arrays) for arrays in zip(*self._ended, strict=True))
        self._ended.clear()
        self._spare += rows.tolist()
        arrays = {
            name: freeze(_joined(memory, rows, lengths + (name in _FRAMES)))
            for name, memory in self._memories().items()
        }
        return InsertTransitionMsg(
            **arrays,
            lengths=freeze(lengths.astype(np.int32)),
            terminated=freeze(terminated),
            won=freeze(won),
            epsilon=freeze(np.full(len(rows), epsilon, np.float32)),
            newest_version=None,
            sender="",
            source="",
        )


class _Ended(NamedTuple):
    """Episodes that ended in one step."""

    rows: NDArray[np.int64]  # (E,): of the memories
    lengths: NDArray[np.int64]  # (E,): steps
    terminated: NDArray[np.bool_]  # (E,)
    won: NDArray[np.bool_]  # (E,)


def _joined(memory: NDArray[Any], rows: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[Any]:
    """Return the first `counts` (E,) frames in each of the `rows` (E,) of a memory, back to back."""
    return np.concatenate([memory[row, :count] for row, count in zip(rows.tolist(), counts.tolist(), strict=True)])


def concatenated(parts: list[InsertTransitionMsg]) -> InsertTransitionMsg:
    """Return all episodes of `parts` in one message."""
    if len(parts) == 1:
        return parts[0]
    names = InsertTransitionMsg.wire.array_fields
    arrays = {name: freeze(np.concatenate([getattr(part, name) for part in parts])) for name in names}
    first = parts[0]
    return InsertTransitionMsg(**arrays, newest_version=first.newest_version, sender=first.sender, source=first.source)


_FRAMES = ("obs", "state", "available")
_MEMORIES = (*_FRAMES, "actions", "reward", "versions")


def _played(memory: NDArray[Any], t: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which frames of a memory (B, frames, …) are written after `t` (B,) steps, as (B, frames)."""
    played: NDArray[np.bool_] = np.arange(memory.shape[1]) < t[:, None]
    return played


class EpisodeResults(NamedTuple):
    """Results of E episodes."""

    won: NDArray[np.bool_]  # (E,)
    returns: NDArray[np.float64]  # (E,)
    lengths: NDArray[np.int64]  # (E,)


def play_once(
    make_env: EnvFactory,
    n_envs: int,
    seed: int,
    make_policy: ActingFactory,
    params: NDArray[np.float32],
    episodes: int,
    rng: np.random.Generator,
) -> EpisodeResults:
    """Make environments and a policy with `params`, `play` greedily, and close the environments, even on failure."""
    env = make_env(n_envs, seed=seed)
    try:
        policy = make_policy(env.spec, seed=0)
        policy.load(params)
        return play(env, policy, episodes, rng)
    finally:
        env.close()


def play(
    env: Env, policy: ActingPolicy, episodes: int, rng: np.random.Generator, *, epsilon: float = 0.0
) -> EpisodeResults:
    """Play `episodes` whole episodes, greedily by default, and return their results.

    The first episodes that began count, not the first that ended: that would favour short ones.
    """
    rounds: list[EpisodeResults] = []
    copies = ActingCopies(env, policy, rng)
    while (left := episodes - sum(len(part.won) for part in rounds)) > 0:
        copies.begin(ALL)
        total = np.zeros(env.n_envs)
        length = np.zeros(env.n_envs, np.int64)
        victory = np.zeros(env.n_envs, np.bool_)
        playing = np.ones(env.n_envs, np.bool_)
        while playing.any():
            copies.act(epsilon)
            stepped, lost = copies.receive()
            counts = np.zeros(env.n_envs, np.bool_)
            counts[stepped] = playing[stepped]
            total[counts] += env.reward[counts]
            length[counts] += 1
            victory[counts] |= env.won[counts]
            if lost is not None:  # they play another episode instead
                total[lost & playing] = 0.0
                length[lost & playing] = 0
            done = np.zeros(env.n_envs, np.bool_)
            done[stepped] = env.terminated[stepped] | env.truncated[stepped]
            playing &= ~done
            if not done.any():
                continue
            if not env.lock_step:
                copies.leave(np.flatnonzero(done))
            elif playing.any():
                copies.begin(np.flatnonzero(done))  # a finished copy plays on; that episode does not count
        count = min(left, env.n_envs)
        rounds.append(EpisodeResults(victory[:count], total[:count], length[:count]))
    return EpisodeResults(*map(np.concatenate, zip(*rounds, strict=True)))
