"""Rollouts: a policy plays B copies of an environment, each copy in an episode of its own.

Shapes: B copies, T steps of an episode (the limit at most), A agents; E finished episodes, N steps of all of them.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from components.acting_copies import ActingCopies
from components.envs.base import ALL, Copies, Env, EnvSpec
from components.experience import ExperienceSchema, FieldSpec
from components.policies.acting import Acted, ActingPolicy
from components.policies.base import Policy
from components.row_memory import RowMemory
from components.segment_messages import SegmentMessages
from components.segments import Ended, joined, written
from messages import InsertTransitionMsg

SPARE = 0.25
"""Rows of memory for ended episodes, for each copy. If there are none left, the episodes are copied."""
FORGETTING = 0.1
"""Weight of a message in the moving mean of the lengths of segments."""


class EnvFactory(Protocol):
    """Makes an environment in the process that needs it: `partial(Skirmish, "8m")`."""

    def __call__(self, n_envs: int, *, seed: int) -> Env: ...


class PolicyFactory(Protocol):
    """Makes a policy that learns, in the process that needs it: `partial(Qmix, learning_rate=1e-3)`."""

    def __call__(self, spec: EnvSpec, *, seed: int) -> Policy: ...


class ActingFactory(Protocol):
    """Makes a policy that acts, in the process that needs it: `Algorithm.acting`, or a `PolicyFactory`."""

    def __call__(self, spec: EnvSpec, *, seed: int) -> ActingPolicy: ...


def no_memory(nbytes: int) -> None:
    """Lend no memory for a message, which then has memory of its own."""


class Rollout:
    """Collects experience. Each copy has its own hidden states, last actions and memory of its segment.

    An ended segment stays in its row of the memories, while its copy continues in a spare row, until its message is
    made or all spare rows are used.

    Args:
        env: the environments.
        policy: acts in them, and declares its fields of a transition.
        rng: source of all randomness of the policy.
        segment_length: steps after which a segment ends although its episode continues; None for whole episodes.
        lend: lends memory for messages, as `Actor.message_memory`; by default they have memory of their own.

    Raises:
        ValueError: `segment_length` is below 1, or the fields of the policy clash with those of the environment.
    """

    def __init__(
        self,
        env: Env,
        policy: ActingPolicy,
        rng: np.random.Generator,
        *,
        segment_length: int | None = None,
        lend: Callable[[int], NDArray[Any] | None] = no_memory,
    ) -> None:
        self.schema = segment_schema(env.spec, policy.fields, segment_length)
        """The fields of a transition."""
        self.version = 0
        """Version of the acting parameters."""
        self._env = env
        self._policy = policy
        self._copies = ActingCopies(env, policy, rng)
        self._rows = np.arange(env.n_envs)  # (B,): rows of the memories for the current segments
        # Episodes end at any time, segments of them all at once.
        self._n_spare = max(1, int(SPARE * env.n_envs)) if segment_length is None else env.n_envs
        self._spare = self._all_spare()
        self._ended: list[Ended] = []
        self._t = np.zeros(env.n_envs, np.int64)  # (B,): steps of the current segments
        self._first = np.zeros(env.n_envs, np.int32)  # (B,): steps of the episode before the segment
        self._return_before = np.zeros(env.n_envs, np.float64)  # (B,)
        self._episode = np.arange(env.n_envs)  # (B,): number of the current episode
        self._episodes = np.array(env.n_envs)  # number of episodes begun
        declared = env.spec.schema
        self._seen = declared.frames
        self._earned = tuple(name for name in declared.steps if name != "actions")
        self._said = {name: spec.per for name, spec in policy.fields.items() if name != "epsilon"}
        self._values_last_frame = "frame" in self._said.values()
        limit, rows = self.schema.limit, env.n_envs + len(self._spare)
        leading = {"frame": (rows, limit + 1), "step": (rows, limit), "segment": (rows,)}
        self._usual = float(limit)
        """Moving mean of the steps of ended segments: a row keeps the memory of as many for its next segment."""
        self._paged: list[RowMemory] = []
        self._memory = {
            name: self._zeros(
                (*leading[spec.per], *self.schema.items[name][0]), spec.dtype, by_time=spec.per != "segment"
            )
            for name, spec in self.schema.fields
        }
        self._versions = self._zeros((rows, limit), np.int32, by_time=True)
        # Segments of episodes that continue are learned from once: differences would cost more than they save.
        memory = {**self._memory, "versions": self._versions}
        self._messages = SegmentMessages(self.schema, memory, sparse=segment_length is None, lend=lend)
        self._begun = False  # the first `collect` resets the environment, which may take long

    def load(self, params: NDArray[np.float32], version: int) -> None:
        """Act with parameters `params` from the next step on."""
        self._policy.load(params)
        self.version = version

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def collect(
        self,
        steps: int,
        epsilon: float,
        most: int | None = None,
        unit: Literal["segments", "steps"] = "segments",
    ) -> InsertTransitionMsg | None:
        """Make B times `steps` steps; return the segments that ended, if any did.

        In lock-step each copy makes `steps` steps. A turn ends early when no copy becomes ready for a while, or with
        the step in which the `most`-th segment ends; None for any number. If `most` counts steps, the steps of unended
        segments from earlier turns count too, and all segments end with the last step, except in copies that are
        making a step.
        """
        if not self._begun:
            self._copies.begin(ALL)
            self._begun = True
        left = steps * self._env.n_envs
        while left > 0:
            made = self._step(epsilon)
            left -= made
            if not made and not self._copies.any_ready():
                break
            if most is not None and self._made(unit) >= most:
                if unit == "steps":
                    over = np.zeros(self._env.n_envs, np.bool_)
                    over[self._copies.ready] = self._t[self._copies.ready] > 0
                    if over.any():
                        self._end(np.zeros_like(over), over, epsilon)
                break
        if not (self._ended or self._messages.segments):
            return None
        ended = Ended.together(self._ended) if self._ended else None
        self._ended.clear()
        message = self._messages.message(ended)
        if ended is not None:
            self._free_rows(ended)
        return message

    def state(self) -> dict[str, NDArray[Any]] | None:
        """Return the state by name, as copies, without the generator; None if the environment takes no snapshots.

        It contains the frames of the current segments so far, copy after copy.
        """
        game = self._env.snapshot()
        if game is None:
            return None
        own = {name: array.copy() for name, array in self._changing().items()}
        own |= {f"memory/{name}": joined(memory, self._rows, self._t) for name, memory in self._by_time().items()}
        own |= {f"memory/{name}": self._memory[name][self._rows] for name in self.schema.segments}
        own["begun"] = np.array(self._begun)
        return {**own, **{f"env/{name}": array for name, array in game.items()}}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Continue from the state of a rollout of the same environment and policy.

        Raises:
            ValueError: the state belongs to another rollout; nothing has changed.
        """
        n_envs, by_time = len(self._t), self._by_time()
        expected = {name: (mine.shape, mine.dtype) for name, mine in self._changing().items()}
        filled = {name: written(state["t"], mine.shape[1]) for name, mine in by_time.items()}
        for name, mine in by_time.items():
            expected[f"memory/{name}"] = (int(filled[name].sum()), *mine.shape[2:]), mine.dtype
        for name in self.schema.segments:
            mine = self._memory[name]
            expected[f"memory/{name}"] = (n_envs, *mine.shape[1:]), mine.dtype
        for name, (shape, dtype) in expected.items():
            if name not in state or (state[name].shape, state[name].dtype) != (shape, dtype):
                raise ValueError(f"the state of another rollout: {name} must be {dtype} {shape}")
        self._env.restore({name[4:]: array for name, array in state.items() if name.startswith("env/")})
        for name, mine in self._changing().items():
            mine[...] = state[name]
        self._rows, self._spare, self._ended = np.arange(n_envs), self._all_spare(), []
        for name, memory in by_time.items():
            memory[:n_envs][filled[name]] = state[f"memory/{name}"]
        for name in self.schema.segments:
            self._memory[name][:n_envs] = state[f"memory/{name}"]
        self._begun = bool(state["begun"])
        if self._begun:
            self._copies.ready = ALL

    def _all_spare(self) -> list[int]:
        """Return the rows of the memories that no copy uses at first."""
        n_envs = self._env.n_envs
        return list(range(n_envs, n_envs + self._n_spare))

    def _zeros(self, shape: tuple[int, ...], dtype: DTypeLike, *, by_time: bool) -> NDArray[Any]:
        """Return a memory; if it is `by_time`, (rows, frames, …), its pages can be given back."""
        if not by_time:
            return np.zeros(shape, dtype)
        self._paged.append(RowMemory(shape, dtype))
        return self._paged[-1].array

    def _changing(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that change in place by name, each (B, …) except the number of episodes."""
        return {
            "t": self._t,
            "hidden": self._copies.hidden,
            "last_actions": self._copies.last_actions,
            "first": self._first,
            "return_before": self._return_before,
            "episode": self._episode,
            "episodes": self._episodes,
        }

    def _by_time(self) -> dict[str, NDArray[Any]]:
        """Return the memories per frame and per step by name, each (rows, frames, …)."""
        named = {name: self._memory[name] for name in (*self.schema.frames, *self.schema.steps)}
        return {**named, "versions": self._versions}

    def _step(self, epsilon: float) -> int:
        """Act in the copies that are ready, and wait for others; return the number of copies that made a step."""
        env, rows, t, ready = self._env, self._rows, self._t, self._copies.ready
        self._observe(ready)
        acted = self._copies.act(epsilon)
        if acted is not None:
            self._remember(ready, acted)
        stepped, lost = self._copies.receive()
        if lost is not None:
            self._begin_episodes(lost)
        arrays = env.fields()
        for name in self._earned:
            self._memory[name][rows[stepped], t[stepped]] = arrays[name][stepped]
        t[stepped] += 1
        done = np.zeros(env.n_envs, np.bool_)
        done[stepped] = env.terminated[stepped] | env.truncated[stepped]
        full = t >= self.schema.limit
        made = len(t[stepped])
        if done.any() or full.any():
            self._end(done, done | full, epsilon)
        return made

    def _end(self, done: NDArray[np.bool_], over: NDArray[np.bool_], epsilon: float) -> None:
        """End the segments of the copies `over` (B,), and the episodes of the copies `done` (B,)."""
        env, rows, t = self._env, self._rows, self._t
        ended = np.flatnonzero(over)
        self._observe(ended)
        if self._values_last_frame:
            last = self._copies.last_frame(ended)
            for name, per in self._said.items():
                if per == "frame":
                    self._memory[name][rows[ended], t[ended]] = last[name]
        finished = done[ended]
        self._ended.append(
            Ended(
                rows[ended],
                t[ended],
                env.terminated[ended] & finished,
                env.truncated[ended] & finished & ~env.terminated[ended],
                env.won[ended] & finished,
                self._episode[ended],
                self._first[ended],
                self._return_before[ended],
                np.full(len(ended), epsilon, np.float32),
            )
        )
        going_on = ended[~finished]
        if len(going_on):
            self._return_before[going_on] += [
                self._earned_in(row, n) for row, n in zip(rows[going_on].tolist(), t[going_on].tolist(), strict=True)
            ]
            self._first[going_on] += t[going_on].astype(np.int32)
        if len(ended) > len(self._spare):
            copied = Ended.together(self._ended)
            self._ended.clear()
            self._messages.stage(copied)
            self._free_rows(copied)
        rows[ended] = [self._spare.pop() for _ in ended]
        t[ended] = 0
        if finished.any():
            self._begin_episodes(done)
            self._copies.begin(ended[finished])

    def _made(self, unit: Literal["segments", "steps"]) -> int:
        """Return the number of segments that ended in this turn, or the steps of these and of the current segments."""
        if unit == "segments":
            return sum(len(each.rows) for each in self._ended) + self._messages.segments
        ended = sum(int(each.lengths.sum()) for each in self._ended) + self._messages.steps
        return ended + int(self._t.sum())

    def _begin_episodes(self, copies: NDArray[np.bool_]) -> None:
        """Reset the counts for new episodes in these copies (B,)."""
        n = int(copies.sum())
        self._t[copies] = 0
        self._first[copies], self._return_before[copies] = 0, 0.0
        self._episode[copies] = self._episodes + np.arange(n)
        self._episodes += n

    def _earned_in(self, row: int, n_steps: int) -> float:
        """Return the reward of the first steps of a row, the mean over agents if each agent has a reward."""
        return float(self._memory["reward"][row, :n_steps].reshape(n_steps, -1).mean(1, dtype=np.float64).sum())

    def _observe(self, copies: slice | NDArray[np.int64]) -> None:
        arrays, rows, t = self._env.fields(), self._rows[copies], self._t[copies]
        for name in self._seen:
            self._memory[name][rows, t] = arrays[name][copies]

    def _remember(self, ready: Copies, acted: Acted) -> None:
        """Record the policy's actions and fields in the copies that were ready."""
        rows, t = self._rows[ready], self._t[ready]
        self._memory["actions"][rows, t] = acted.actions
        self._versions[rows, t] = self.version
        for name, per in self._said.items():
            if per == "segment":
                begins = t == 0
                self._memory[name][rows[begins]] = acted.fields[name][begins]
            else:
                self._memory[name][rows, t] = acted.fields[name]

    def _free_rows(self, ended: Ended) -> None:
        """Free the rows of ended segments, which were copied, and give back memory that is seldom needed."""
        seldom = self._n_spare // 2  # rows low in the stack are used only where many segments end
        self._usual += FORGETTING * (float(ended.lengths.mean()) - self._usual)
        usual = round(self._usual)
        for row, length in zip(ended.rows.tolist(), ended.lengths.tolist(), strict=True):
            kept = usual if len(self._spare) >= seldom else 0
            if length > kept:
                for memory in self._paged:
                    memory.give_back(row, kept)
            self._spare.append(row)


def segment_schema(
    spec: EnvSpec, fields: Mapping[str, FieldSpec], segment_length: int | None = None
) -> ExperienceSchema:
    """Return the fields of a transition in this environment with a policy that declares `fields`.

    Args:
        spec: spec of the environment.
        fields: fields of the policy.
        segment_length: largest number of steps of a segment; None for whole episodes.

    Raises:
        ValueError: `segment_length` is below 1, or a field has the name of another.
    """
    schema = spec.schema.having(fields)
    return schema if segment_length is None else schema.limited(min(segment_length, schema.limit))
