"""Rollouts: a policy plays B copies of an environment, each copy in an episode of its own.

Shapes: B copies, T steps of an episode (the limit at most), A agents; E finished episodes, N steps of all of them.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from components.envs.base import ALL, Copies, Env, EnvSpec
from components.experience import ExperienceSchema, FieldSpec
from components.policies.acting import Acted, ActingPolicy
from components.policies.base import Policy
from components.row_memory import RowMemory
from components.segments import Ended, joined, played
from messages import InsertTransitionMsg
from orchestra import Arrays, freeze


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
        item, dtype = env.spec.schema.items["actions"]
        self._no_action = -1 if dtype.kind == "i" else 0
        self.last_actions = np.full((env.n_envs, *item), self._no_action, dtype)  # (B, A) of a team
        self.ready: Copies = _NONE
        """The copies that wait for actions."""
        self._numbers = np.arange(env.n_envs)
        self._acting = np.zeros(env.n_envs, np.bool_)  # (B,): copies that have been sent actions

    def begin(self, copies: Copies) -> None:
        """Begin episodes in these copies."""
        self.env.send_reset(copies)
        self._forget(copies)
        self.ready = ALL if self.env.lock_step else self._without(copies)

    def act(self, epsilon: float) -> Acted | None:
        """Choose the actions of the copies that are ready, and send them; None if no copy is ready."""
        env, ready = self.env, self.ready
        if not self.any_ready():
            return None
        acted = self._policy.act_on(
            self.frames(ready), self.last_actions[ready], self.hidden[ready], epsilon=epsilon, rng=self._rng
        )
        if isinstance(ready, slice):
            self.hidden, self.last_actions = acted.hidden, acted.actions
        else:
            self.hidden[ready], self.last_actions[ready] = acted.hidden, acted.actions
        env.send(acted.actions, ready)
        self._acting[ready] = True
        self.ready = _NONE
        return acted

    def frames(self, copies: Copies) -> dict[str, NDArray[Any]]:
        """Return the environment's fields per frame of these copies."""
        arrays = self.env.fields()
        return {name: arrays[name][copies] for name in self.env.spec.schema.frames}

    def last_frame(self, copies: Copies) -> Mapping[str, NDArray[Any]]:
        """Return the policy's fields per frame for the last frame of a segment in these copies."""
        return self._policy.last_frame(self.frames(copies), self.last_actions[copies], self.hidden[copies])

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
        self.last_actions[copies] = self._no_action

    def _without(self, copies: Copies) -> NDArray[np.int64]:
        return np.setdiff1d(self._numbers[self.ready], self._numbers[copies], assume_unique=True)


_NONE = np.empty(0, np.int64)


class Rollout:
    """Collects experience. Each copy has its own hidden states, last actions and memory of its segment.

    An ended segment stays in its row of the memories until the turn ends, while its copy goes on in a spare row. So all
    segments of a turn are copied once, straight into the arrays of their message.

    Args:
        env: the environments.
        policy: acts in them, and declares its fields of a transition.
        rng: all randomness of the policy.
        segment_length: steps after which a segment ends though its episode goes on; None for whole episodes.

    Raises:
        ValueError: `segment_length` is below 1, or the fields of the policy clash with those of the environment.
    """

    def __init__(
        self, env: Env, policy: ActingPolicy, rng: np.random.Generator, *, segment_length: int | None = None
    ) -> None:
        self.schema = segment_schema(env.spec, policy.fields, segment_length)
        """The fields of a transition."""
        self.version = 0
        """Version of the acting parameters."""
        self._env = env
        self._policy = policy
        self._copies = ActingCopies(env, policy, rng)
        self._rows = np.arange(env.n_envs)  # (B,): of the memories, for the segments under way
        self._spare = list(range(env.n_envs, 2 * env.n_envs))
        self._ended: list[Ended] = []
        self._t = np.zeros(env.n_envs, np.int64)  # (B,): steps of the segments under way
        self._first = np.zeros(env.n_envs, np.int32)  # (B,): steps of the episode before the segment
        self._return_before = np.zeros(env.n_envs, np.float64)  # (B,)
        self._episode = np.arange(env.n_envs)  # (B,): number of the episode under way
        self._episodes = np.array(env.n_envs)  # episodes begun
        declared = env.spec.schema
        self._seen = declared.frames
        self._earned = tuple(name for name in declared.steps if name != "actions")
        self._said = {name: spec.per for name, spec in policy.fields.items() if name != "epsilon"}
        self._values_last_frame = "frame" in self._said.values()
        limit, copies = self.schema.limit, 2 * env.n_envs
        leading = {"frame": (copies, limit + 1), "step": (copies, limit), "segment": (copies,)}
        self._usual = limit if segment_length is not None else limit // 2
        """Steps of a segment whose memory is kept for the next one in its row."""
        self._paged: list[RowMemory] = []
        self._memory = {
            name: self._zeros(
                (*leading[spec.per], *self.schema.items[name][0]), spec.dtype, by_time=spec.per != "segment"
            )
            for name, spec in self.schema.fields
        }
        self._versions = self._zeros((copies, limit), np.int32, by_time=True)
        self._begun = False  # the first `collect` resets the environment, which may take long

    def load(self, params: NDArray[np.float32], version: int) -> None:
        """Act with parameters `params` from the next step on."""
        self._policy.load(params)
        self.version = version

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def collect(
        self, steps: int, epsilon: float, most: int | None = None, unit: Literal["segments", "steps"] = "segments"
    ) -> InsertTransitionMsg | None:
        """Make B times `steps` steps; return the segments that ended, if any did.

        In lock-step these are `steps` in every copy. A turn ends early when no copy becomes ready for a while, or with
        the step in which the `most`-th segment ends; None for any number. Where `most` counts steps, so do those of
        earlier turns whose segment has not ended, and all segments end with the last, but of copies that make a step.
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
            if most is not None and self._made(parts, unit) >= most:
                if unit == "steps":
                    over = np.zeros(self._env.n_envs, np.bool_)
                    over[self._copies.ready] = self._t[self._copies.ready] > 0
                    more = self._end(np.zeros_like(over), over, epsilon) if over.any() else None
                    parts += [] if more is None else [more]
                break
        if self._ended:
            parts.append(self._cut(epsilon))
        return InsertTransitionMsg.concatenated(parts) if parts else None

    def state(self) -> dict[str, NDArray[Any]] | None:
        """Return the state by name, as copies, without the generator; None if the environment takes no snapshots.

        Of the segments under way it has the frames played so far, copy after copy.
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
        expected |= {
            f"memory/{name}": ((int(played(mine, state["t"]).sum()), *mine.shape[2:]), mine.dtype)
            for name, mine in by_time.items()
        }
        for name in self.schema.segments:
            mine = self._memory[name]
            expected[f"memory/{name}"] = (n_envs, *mine.shape[1:]), mine.dtype
        for name, (shape, dtype) in expected.items():
            if name not in state or (state[name].shape, state[name].dtype) != (shape, dtype):
                raise ValueError(f"the state of another rollout: {name} must be {dtype} {shape}")
        self._env.restore({name[4:]: array for name, array in state.items() if name.startswith("env/")})
        for name, mine in self._changing().items():
            mine[...] = state[name]
        self._rows, self._spare = np.arange(n_envs), list(range(n_envs, 2 * n_envs))
        for name, memory in by_time.items():
            memory[:n_envs][played(memory, self._t)] = state[f"memory/{name}"]
        for name in self.schema.segments:
            self._memory[name][:n_envs] = state[f"memory/{name}"]
        self._begun = bool(state["begun"])
        if self._begun:
            self._copies.ready = ALL

    def _zeros(self, shape: tuple[int, ...], dtype: DTypeLike, *, by_time: bool) -> NDArray[Any]:
        """Return a memory; the pages of one `by_time`, (2B, frames, …), can be given back."""
        if not by_time:
            return np.zeros(shape, dtype)
        self._paged.append(RowMemory(shape, dtype))
        return self._paged[-1].array

    def _changing(self) -> dict[str, NDArray[Any]]:
        """Return what changes in place by name, each (B, …) but the number of episodes."""
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
        """Return the memories per frame and per step by name, each (2B, frames, …)."""
        named = {name: self._memory[name] for name in (*self.schema.frames, *self.schema.steps)}
        return {**named, "versions": self._versions}

    def _step(self, epsilon: float) -> tuple[int, InsertTransitionMsg | None]:
        """Act in the copies that are ready, and wait for others.

        Return how many have made a step, and earlier segments of the turn if their rows are needed.
        """
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
        made, part = len(t[stepped]), None
        if done.any() or full.any():
            part = self._end(done, done | full, epsilon)
        return made, part

    def _end(self, done: NDArray[np.bool_], over: NDArray[np.bool_], epsilon: float) -> InsertTransitionMsg | None:
        """End the segments of the copies `over` (B,), and the episodes of the copies `done` (B,)."""
        env, rows, t = self._env, self._rows, self._t
        ended = np.flatnonzero(over)
        self._observe(ended)
        if self._values_last_frame:
            last = self._copies.last_frame(ended)
            for name, per in self._said.items():
                if per == "frame":
                    self._memory[name][rows[ended], t[ended]] = last[name]
        part = self._cut(epsilon) if len(ended) > len(self._spare) else None
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
            )
        )
        going_on = ended[~finished]
        if len(going_on):
            self._return_before[going_on] += [
                self._earned_in(row, n) for row, n in zip(rows[going_on].tolist(), t[going_on].tolist(), strict=True)
            ]
            self._first[going_on] += t[going_on].astype(np.int32)
        rows[ended] = [self._spare.pop() for _ in ended]
        t[ended] = 0
        if finished.any():
            self._begin_episodes(done)
            self._copies.begin(ended[finished])
        return part

    def _made(self, parts: list[InsertTransitionMsg], unit: Literal["segments", "steps"]) -> int:
        """Return how many segments have ended in this turn, or how many steps they and those under way have."""
        if unit == "segments":
            return sum(len(each.rows) for each in self._ended) + sum(each.segments for each in parts)
        ended = sum(int(each.lengths.sum()) for each in self._ended) + sum(each.steps for each in parts)
        return ended + int(self._t.sum())

    def _begin_episodes(self, copies: NDArray[np.bool_]) -> None:
        """Begin to count new episodes in these copies (B,)."""
        n = int(copies.sum())
        self._t[copies] = 0
        self._first[copies], self._return_before[copies] = 0, 0.0
        self._episode[copies] = self._episodes + np.arange(n)
        self._episodes += n

    def _earned_in(self, row: int, n_steps: int) -> float:
        """Return the reward of the first steps of a row, the mean over agents where each has one."""
        return float(self._memory["reward"][row, :n_steps].reshape(n_steps, -1).mean(1, dtype=np.float64).sum())

    def _observe(self, copies: slice | NDArray[np.int64]) -> None:
        arrays, rows, t = self._env.fields(), self._rows[copies], self._t[copies]
        for name in self._seen:
            self._memory[name][rows, t] = arrays[name][copies]

    def _remember(self, ready: Copies, acted: Acted) -> None:
        """Write what the policy has done in the copies that were ready."""
        rows, t = self._rows[ready], self._t[ready]
        self._memory["actions"][rows, t] = acted.actions
        self._versions[rows, t] = self.version
        for name, per in self._said.items():
            if per == "segment":
                begins = t == 0
                self._memory[name][rows[begins]] = acted.fields[name][begins]
            else:
                self._memory[name][rows, t] = acted.fields[name]

    def _cut(self, epsilon: float) -> InsertTransitionMsg:
        """Return the segments that ended in this turn, and free their rows."""
        columns = (np.concatenate(arrays) for arrays in zip(*self._ended, strict=True))
        rows, lengths, terminated, truncated, won, episode, first, return_before = columns
        self._ended.clear()
        place = len(self._spare)
        self._spare += rows.tolist()

        def per(names: Iterable[str], more: int) -> Arrays:
            return Arrays({name: freeze(joined(self._memory[name], rows, lengths + more)) for name in names})

        per_segment = {name: self._memory[name][rows] for name in self.schema.segments}
        if "epsilon" in per_segment:
            per_segment["epsilon"] = np.full(len(rows), epsilon, np.float32)
        message = InsertTransitionMsg(
            per_frame=per(self.schema.frames, 1),
            per_step=per(self.schema.steps, 0),
            per_segment=Arrays({name: freeze(array) for name, array in per_segment.items()}),
            lengths=freeze(lengths.astype(np.int32)),
            terminated=freeze(terminated),
            truncated=freeze(truncated),
            won=freeze(won),
            versions=freeze(joined(self._versions, rows, lengths)),
            episode=freeze(episode),
            first=freeze(first),
            return_before=freeze(return_before),
            newest_version=None,
            sender="",
            source="",
        )
        seldom = len(self._t) // 2  # the rows at the bottom of the stack, used when many segments end in one turn
        for row, length in zip(rows.tolist(), lengths.tolist(), strict=True):
            kept = self._usual if place >= seldom else 0
            if length > kept:
                for memory in self._paged:
                    memory.give_back(row, kept)
            place += 1
        return message


def segment_schema(
    spec: EnvSpec, fields: Mapping[str, FieldSpec], segment_length: int | None = None
) -> ExperienceSchema:
    """Return the fields of a transition in this environment with a policy that declares `fields`.

    Args:
        spec: of the environment.
        fields: of the policy.
        segment_length: steps of a segment at most; None for whole episodes.

    Raises:
        ValueError: `segment_length` is below 1, or a field has the name of another.
    """
    schema = spec.schema.having(fields)
    return schema if segment_length is None else schema.limited(min(segment_length, schema.limit))
