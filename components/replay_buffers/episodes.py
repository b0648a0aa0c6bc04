"""Whole episodes, kept as a ring of frames and drawn as padded batches.

Shapes: E episodes of a batch, N steps and F = N + E frames of all of them together, T steps of the longest; A agents,
O observation size, S state size, U actions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from components.checkpoints.array_file import ArrayReader, Checkpointed, CheckpointError, StateArray
from components.replay_buffers.closed import Closable
from components.replay_buffers.invalid import (
    InvalidExperience,
    check_array,
    check_indices,
    check_priorities,
    describe,
)
from components.replay_buffers.storage import BatchMemory, allocate, freeze

if TYPE_CHECKING:  # the one brings a compiler along, the other torch, and memories work without either
    from components.envs.base import EnvSpec
    from components.policies.base import EpisodeBatch

FRAME_FIELDS = ("obs", "state", "available")
STEP_FIELDS = ("actions", "reward")
FIRST_EPISODES = 32
"""Room for so many episodes of full length is taken at first."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """Episodes drawn from a replay buffer, and what `update` needs to find them again. Its arrays are read-only."""

    batch: "EpisodeBatch"
    indices: NDArray[np.int64]  # (E,)
    generations: NDArray[np.int64]  # (E,): differs from one episode to the next that is kept under the same index


@dataclass(frozen=True, slots=True)
class SampledRollouts:
    """Parts of episodes drawn from a replay buffer, and what `update` needs to find these again."""

    batch: "EpisodeBatch"
    """The parts, as if they were episodes: `terminated` where one ends with the game."""
    learn: NDArray[np.bool_]  # (E, T): the steps to learn from; neither burn-in nor padding
    firsts: NDArray[np.int64]  # (E,): the step of its episode with which each begins
    indices: NDArray[np.int64]  # (E,)
    generations: NDArray[np.int64]  # (E,)


def check_rollout(length: int, burn_in: int) -> None:
    """Raise `ValueError` unless rollouts may be so long, and nothing be learnt from the first `burn_in` steps."""
    if not 0 <= burn_in < length:
        raise ValueError(f"expected length of at least 1 and burn_in of 0 to length - 1, got {length} and {burn_in}")


def checked_epsilon(epsilon: NDArray[np.float32] | None, n: int) -> NDArray[np.float32]:
    """Return `epsilon` (n,), zeros for None; raise `InvalidExperience` unless its shape and dtype fit."""
    if epsilon is None:
        return np.zeros(n, np.float32)
    check_array("epsilon", epsilon, (n,), np.float32)
    return epsilon


class EpisodeReplay(Closable, Checkpointed):
    """The last `capacity` episodes, drawn uniformly and without repetition within a batch, as PyMARL does.

    Memory follows the real lengths: frames of all episodes lie back to back in one ring, which is doubled while it is
    too small for `capacity` episodes. So an episode costs its own frames, at most twice, never the padding.

    Args:
        spec: sizes of the environment.
        capacity: episodes held at most; the oldest go first.
        folder: where frames are kept, in files without a name that are mapped into memory; by default they are in
            memory. On a disk, room for `capacity` episodes of full length is taken at once.

    Raises:
        ValueError: `capacity` is below 1.
        OSError: there is no such folder, or too little space in it.
    """

    state_kind = "EpisodeReplay"

    def __init__(self, spec: "EnvSpec", capacity: int, *, folder: str | Path | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"capacity: expected at least 1, got {capacity}")
        self.spec, self.capacity = spec, capacity
        self.inserted = 0
        """Episodes inserted so far, those that are gone included."""
        a, u = spec.n_agents, spec.n_actions
        self._items: dict[str, tuple[tuple[int, ...], type]] = {
            "obs": ((a, spec.obs_size), np.float32),
            "state": ((spec.state_size,), np.float32),
            "available": ((a, u), np.bool_),
            "actions": ((a,), np.int64),
            "reward": ((), np.float32),
        }
        self._folder = folder
        self._n_frames = self._episodes_at_first() * (spec.episode_limit + 1)
        self._ring = self._allocate(self._n_frames)
        self._head = 0  # where the next frame goes
        self._used = 0  # frames of the episodes held
        self._starts = np.zeros(capacity, np.int64)
        self._lengths = np.zeros(capacity, np.int32)
        self._terminated = np.zeros(capacity, np.bool_)
        self._epsilon = np.zeros(capacity, np.float32)
        self._generations = np.full(capacity, -1, np.int64)  # how many were inserted before
        self._batches = BatchMemory()

    def _episodes_at_first(self) -> int:
        """Return for how many episodes of full length room is taken at first."""
        return self.capacity if self._folder is not None else min(self.capacity, FIRST_EPISODES)

    def __len__(self) -> int:
        """Return how many episodes are held."""
        return min(self.inserted, self.capacity)

    @property
    def n_bytes(self) -> int:
        """Bytes that the frames held have been given, of which the system has handed out those that were written."""
        return sum(array.nbytes for array in self._ring.values())

    # Inserting ------------------------------------------------------------------------------------------------------

    def insert(
        self,
        obs: NDArray[np.float32],  # (F, A, O)
        state: NDArray[np.float32],  # (F, S)
        available: NDArray[np.bool_],  # (F, A, U)
        actions: NDArray[np.int64],  # (N, A)
        reward: NDArray[np.float32],  # (N,)
        terminated: NDArray[np.bool_],  # (E,)
        lengths: NDArray[np.int32],  # (E,): steps; an episode has one frame more
        *,
        epsilon: NDArray[np.float32] | None = None,  # (E,): exploration rate at the end; 0 by default
    ) -> None:
        """Add episodes that lie back to back, and drop the oldest beyond `capacity`.

        Raises:
            InvalidExperience: a shape or a dtype is not the one above, a length is not in 1 … the episode limit, an
                action is none, or a reward is not finite. The message names the field and what was expected.
        """
        fields = {"obs": obs, "state": state, "available": available, "actions": actions, "reward": reward}
        self._check(fields, terminated, lengths)
        epsilon = checked_epsilon(epsilon, len(lengths))
        held = len(self)
        surplus = max(len(lengths) - self.capacity, 0)  # these would be dropped at once
        if surplus:
            skipped = int(lengths[:surplus].sum())
            for name in fields:
                fields[name] = fields[name][skipped + (surplus if name in FRAME_FIELDS else 0) :]
            lengths, terminated, epsilon = lengths[surplus:], terminated[surplus:], epsilon[surplus:]
        leaving = (self.inserted - held + np.arange(max(held + len(lengths) - self.capacity, 0))) % self.capacity
        self._used -= int((self._lengths[leaving] + 1).sum())
        self._generations[leaving] = -1
        n_frames = lengths.astype(np.int64) + 1
        if self._used + n_frames.sum() > self._n_frames:
            self._grow(self._used + int(n_frames.sum()))

        serials = self.inserted + surplus + np.arange(len(lengths))
        slots = serials % self.capacity
        stops = np.cumsum(n_frames)
        self._starts[slots] = (self._head + stops - n_frames) % self._n_frames
        self._lengths[slots], self._terminated[slots], self._generations[slots] = lengths, terminated, serials
        self._epsilon[slots] = epsilon
        self._write(fields, stops)
        self.inserted += surplus + len(lengths)
        self._took(int(slots[0]), len(slots))

    def _write(self, fields: Mapping[str, NDArray[Any]], stops: NDArray[np.int64]) -> None:
        total = int(stops[-1])
        until_end = min(total, self._n_frames - self._head)
        self._announce(self._ring.values(), slice(self._head, self._head + until_end), slice(total - until_end))
        for name in FRAME_FIELDS:
            self._ring[name][self._head : self._head + until_end] = fields[name][:until_end]
            self._ring[name][: total - until_end] = fields[name][until_end:]
        rows = (self._head + np.arange(total)) % self._n_frames
        ends = np.zeros(total, np.bool_)
        ends[stops - 1] = True
        for name in STEP_FIELDS:  # nothing is done in an episode's last frame
            self._ring[name][rows[~ends]] = fields[name]
            self._ring[name][rows[ends]] = 0
        self._head = (self._head + total) % self._n_frames
        self._used += total

    def _grow(self, needed: int) -> None:
        """Move to a ring with room for `needed` frames, twice as large if so many can be used."""
        grown = max(needed, min(2 * self._n_frames, self.capacity * (self.spec.episode_limit + 1)))
        tail = (self._head - self._used) % self._n_frames
        until_end = min(self._used, self._n_frames - tail)
        ring = self._allocate(grown)
        for name, array in self._ring.items():
            ring[name][:until_end] = array[tail : tail + until_end]
            ring[name][until_end : self._used] = array[: self._used - until_end]
        self._starts = (self._starts - tail) % self._n_frames
        self._ring, self._n_frames, self._head = ring, grown, self._used

    def _allocate(self, n_frames: int) -> dict[str, NDArray[Any]]:
        return {name: allocate((n_frames, *item), dtype, self._folder) for name, (item, dtype) in self._items.items()}

    def _took(self, first: int, n: int) -> None:
        """Episodes have just been put into `n` slots from `first` on, and on from 0 after the last."""

    def check_episodes(self, episodes: Mapping[str, NDArray[Any]]) -> int:
        """Return how many episodes these are, E; they are by name what `insert` takes.

        Raises:
            InvalidExperience: `insert` would refuse them.
        """
        expected = [*self._items, "terminated", "lengths"]
        if episodes.keys() != set(expected):
            raise InvalidExperience(f"expected the fields {expected}, got {list(episodes)}")
        self._check(episodes, episodes["terminated"], episodes["lengths"])
        return len(episodes["lengths"])

    def _check(self, fields: Mapping[str, NDArray[Any]], terminated: NDArray[Any], lengths: NDArray[Any]) -> None:
        limit = self.spec.episode_limit
        if not isinstance(lengths, np.ndarray) or lengths.ndim != 1 or lengths.dtype != np.int32:
            raise InvalidExperience(f"lengths: expected int32 of shape (E,), got {describe(lengths)}")
        check_array("terminated", terminated, (len(lengths),), np.bool_)
        if len(lengths) == 0 or lengths.min() < 1 or lengths.max() > limit:
            raise InvalidExperience(f"lengths: expected at least one episode of 1 to {limit} steps each, got {lengths}")
        n_steps = int(lengths.sum())
        for name, (item, dtype) in self._items.items():
            rows = n_steps + len(lengths) if name in FRAME_FIELDS else n_steps
            check_array(name, fields[name], (rows, *item), dtype)
        if not np.isfinite(fields["reward"]).all():
            step = int(np.flatnonzero(~np.isfinite(fields["reward"]))[0])
            raise InvalidExperience(f"reward: expected finite numbers, got {fields['reward'][step]} at step {step}")
        actions = fields["actions"]
        if actions.min() < 0 or actions.max() >= self.spec.n_actions:
            raise InvalidExperience(
                f"actions: expected 0 to {self.spec.n_actions - 1}, got {actions.min()} to {actions.max()}"
            )

    # Sampling -------------------------------------------------------------------------------------------------------

    def sample(self, batch_size: int, rng: np.random.Generator) -> Sampled:
        """Draw `batch_size` episodes, padded with zeros to the longest of them.

        The batch is read-only and stays as it is for as long as it is used.

        Raises:
            ValueError: fewer episodes are held, or `batch_size` is below 1.
        """
        slots, weights = self._pick(batch_size, rng)
        generations = self._generations_of(slots)
        batch = self._gather_whole(slots, weights)
        self._drew(slots)
        return Sampled(batch, freeze(slots), freeze(generations))

    def sample_rollouts(
        self, batch_size: int, length: int, rng: np.random.Generator, *, burn_in: int = 0
    ) -> SampledRollouts:
        """Draw `batch_size` episodes as `sample` does, and of each a rollout of up to `length` steps.

        Of an episode, `length - burn_in` steps that follow each other are to be learnt from, one place as likely as
        another, or all if it is shorter. Before them come `burn_in` steps that warm a recurrent net up (Kapturowski et
        al. 2019), or as many as there are: a rollout from the episode's first step on has the initial state.

        The batch is read-only and stays as it is for as long as it is used.

        Args:
            batch_size: rollouts, B.
            length: steps of each at most, burn-in included.
            rng: draws.
            burn_in: steps that nothing is learnt from, 0 to `length` - 1.

        Raises:
            ValueError: an argument is out of its range, or fewer episodes are held.
        """
        check_rollout(length, burn_in)
        slots, weights = self._pick(batch_size, rng)
        generations = self._generations_of(slots)
        firsts, burnt, lengths = self._cut_rollouts(slots, length, burn_in, rng)
        steps = np.arange(lengths.max())
        learn = (steps >= burnt[:, None]) & (steps < lengths[:, None])
        batch = self._gather(slots, weights, firsts, lengths)
        self._drew(slots)
        return SampledRollouts(batch, freeze(learn), freeze(firsts), freeze(slots), freeze(generations))

    def _cut_rollouts(
        self, slots: NDArray[np.int64], length: int, burn_in: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
        """Return of rollouts of the episodes in `slots` (E,) where each begins, its steps of burn-in, and its steps."""
        whole = self._lengths[slots]
        n_learnt = np.minimum(length - burn_in, whole)
        begins = rng.integers(0, whole - n_learnt, endpoint=True)
        firsts = np.maximum(begins - burn_in, 0)
        return firsts, begins - firsts, (begins - firsts + n_learnt).astype(np.int32)

    def _pick(self, batch_size: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the slots (E,) of a batch and their importance weights (E,), if there can be one of that size."""
        if not 1 <= batch_size <= len(self):
            raise ValueError(f"batch_size: expected 1 to {len(self)}, the episodes held, got {batch_size}")
        return self._draw(batch_size, rng)

    def _generations_of(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many episodes were inserted before those in `slots` (E,)."""
        return self._generations[slots]

    def _drew(self, slots: NDArray[np.int64]) -> None:
        """A batch of the episodes in `slots` (E,) has just been gathered."""

    def _draw(self, batch_size: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the slots (E,) of a batch and their importance weights (E,)."""
        return rng.choice(len(self), batch_size, replace=False), np.ones(batch_size, np.float32)

    def _gather_whole(self, slots: NDArray[np.int64], weights: NDArray[np.float32]) -> "EpisodeBatch":
        return self._gather(slots, weights, np.zeros(len(slots), np.int64), self._lengths[slots])

    def _gather(
        self,
        slots: NDArray[np.int64],
        weights: NDArray[np.float32],
        firsts: NDArray[np.int64],
        lengths: NDArray[np.int32],
    ) -> "EpisodeBatch":
        """Return `lengths` (E,) steps of the episodes in `slots` (E,), from their steps `firsts` (E,) on."""
        starts = (self._starts[slots] + firsts) % self._n_frames
        n_frames, longest = lengths.astype(np.int64) + 1, int(lengths.max()) + 1
        around = np.maximum(starts + n_frames - self._n_frames, 0)  # of an episode's frames, those past the ring's end
        split, short = np.flatnonzero(around).tolist(), np.flatnonzero(n_frames < longest).tolist()
        corners = []  # of pieces, for fields of frames and of steps: begin and stop there, first and last here
        for missing in (0, 1):  # nothing is done in an episode's last frame
            rows = n_frames - (np.maximum(around, missing) if split else missing)
            begins = np.arange(len(slots)) * (longest - missing)
            corners.append((rows, np.array([begins, begins + rows, starts, starts + rows]).T))
        most = len(slots) * (self.spec.episode_limit + 1)
        gathered: dict[str, Any] = {}
        for name, source in self._ring.items():
            missing = 0 if name in FRAME_FIELDS else 1
            width, (rows, pieces) = longest - missing, corners[missing]
            out = self._batches.empty(
                name, (len(slots) * width, *source.shape[1:]), source.dtype, most * source.strides[0]
            )
            # An episode is one piece of memory: copying it is far faster than gathering its frames, and views of bytes
            # are what can be copied between with the least ado.
            size = source.itemsize * prod(source.shape[1:])
            to, of = out.reshape(-1).view(np.uint8).data, source.reshape(-1).view(np.uint8).data
            for begin, stop, first, last in (pieces * size).tolist():
                to[begin:stop] = of[first:last]
            for i in split:
                at, rest = i * width + int(rows[i]), max(int(around[i]) - missing, 0)
                out[at : at + rest] = source[:rest]
            for i in short:
                out[i * width + int(n_frames[i]) - missing : (i + 1) * width] = 0
            gathered[name] = freeze(out.reshape(len(slots), width, *source.shape[1:]))
        from components.policies.base import EpisodeBatch

        terminated = self._terminated[slots] & (firsts + lengths == self._lengths[slots])
        return EpisodeBatch(
            lengths=freeze(lengths),
            terminated=freeze(terminated),
            weights=freeze(weights),
            epsilon=freeze(self._epsilon[slots]),
            **gathered,
        )

    def update(
        self,
        indices: NDArray[np.int64],  # (E,)
        generations: NDArray[np.int64],  # (E,)
        priorities: NDArray[np.floating[Any]],  # (E,)
    ) -> None:
        """Take note of new priorities, which this uniform replay buffer checks and otherwise ignores.

        Raises:
            InvalidExperience: an array's shape or dtype is another, an index is none, or a priority is negative or not
                finite.
        """
        check_indices(indices, generations, self.capacity)
        check_priorities(priorities, len(indices))

    # Checkpoints ----------------------------------------------------------------------------------------------------

    def _state_arrays(self) -> dict[str, StateArray]:
        slots = (self.inserted - len(self) + np.arange(len(self))) % self.capacity  # the oldest first
        tail = (self._head - self._used) % self._n_frames
        until_end = min(self._used, self._n_frames - tail)
        arrays = {
            "capacity": StateArray.of(np.array(self.capacity, np.int64)),
            "inserted": StateArray.of(np.array(self.inserted, np.int64)),
            "lengths": StateArray.of(self._lengths[slots]),
            "terminated": StateArray.of(self._terminated[slots]),
            "epsilon": StateArray.of(self._epsilon[slots]),
        }
        for name, array in self._ring.items():
            pieces = array[tail : tail + until_end], array[: self._used - until_end]
            arrays[f"frames/{name}"] = StateArray.of(*pieces, announced=True)
        return arrays

    def _check_state(self, reader: ArrayReader) -> None:
        reader.expect_value("capacity", self.capacity)
        held = min(reader.read_count("inserted"), self.capacity)
        lengths, limit = reader.read("lengths", np.int32, (held,)), self.spec.episode_limit
        if held and (lengths.min() < 1 or lengths.max() > limit):
            raise CheckpointError(f"lengths: expected 1 to {limit} steps each, got {lengths}")
        reader.expect("terminated", np.bool_, (held,))
        reader.expect("epsilon", np.float32, (held,))
        for name, (item, dtype) in self._items.items():
            reader.expect(f"frames/{name}", dtype, (int(lengths.sum()) + held, *item))

    def _load_state(self, reader: ArrayReader) -> None:
        # Should reading fail from here on, nothing is held.
        self.inserted = self._head = self._used = 0
        self._generations[:] = -1
        inserted = reader.read_count("inserted")
        held = min(inserted, self.capacity)
        lengths = reader.read("lengths", np.int32, (held,))
        n_frames = lengths.astype(np.int64) + 1
        used = int(n_frames.sum())
        if used > self._n_frames:
            self._grow(used)
        self._announce(self._ring.values(), slice(used))
        for name, array in self._ring.items():
            reader.read_into(f"frames/{name}", array[:used])
        serials = inserted - held + np.arange(held)
        slots = serials % self.capacity
        self._starts[slots], self._lengths[slots] = np.cumsum(n_frames) - n_frames, lengths
        self._terminated[slots], self._generations[slots] = reader.read("terminated", np.bool_, (held,)), serials
        self._epsilon[slots] = reader.read("epsilon", np.float32, (held,))
        self._used, self._head, self.inserted = used, used % self._n_frames, inserted

    def _release(self) -> None:
        self._ring = {}
        self._batches = BatchMemory()

    def check_valid(self) -> list[str]:
        """Return what is wrong with the books, one sentence each; nothing if all is well."""
        wrong = []
        serials = self.inserted - len(self) + np.arange(len(self))
        slots = serials % self.capacity
        if (self._generations[slots] != serials).any():
            wrong.append(f"slots {slots} should hold episodes {serials}, they hold {self._generations[slots]}")
        if ((self._lengths[slots] < 1) | (self._lengths[slots] > self.spec.episode_limit)).any():
            wrong.append(f"a length is not in 1 … {self.spec.episode_limit}: {self._lengths[slots]}")
        n_frames = self._lengths[slots].astype(np.int64) + 1
        if n_frames.sum() != self._used or self._used > self._n_frames:
            wrong.append(f"{n_frames.sum()} frames are held, the books say {self._used} of {self._n_frames}")
        starts = (self._head - self._used + np.cumsum(n_frames) - n_frames) % self._n_frames
        if (self._starts[slots] != starts).any():
            wrong.append(f"episodes should start at frames {starts}, the books say {self._starts[slots]}")
        return wrong

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self)}/{self.capacity} episodes of {self.spec.name}>"
