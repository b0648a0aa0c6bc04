"""Episodes: the record in which they are inserted, and how they are stored and gathered.

Shapes: E episodes, N steps and F = N + E frames of all of them together, T steps of the longest; A agents, O
observation size, S state size, U actions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.checkpoints.array_file import ArrayReader, CheckpointError, StateArray
from components.envs.base import EnvSpec
from components.policies.base import item_shapes
from components.replay_buffers.invalid import InvalidExperience, check_array, check_finite, describe
from components.replay_buffers.rows import Field, load_rows, picked_rows
from components.replay_buffers.segments import LENGTHS, Segment, begins, copy_segments, corners_of
from components.replay_buffers.storage import BatchMemory, Overwrites, allocate, announce, freeze

FRAME_FIELDS = ("obs", "state", "available")
STEP_FIELDS = ("actions", "reward")
FIRST_EPISODES = 32
"""Number of full-length episodes for which a packed store takes memory at first."""


@dataclass(frozen=True, slots=True)
class Episodes:
    """Whole episodes that lie back to back, unpadded. An episode has one frame more than steps."""

    obs: NDArray[np.float32]  # (F, A, O)
    state: NDArray[np.float32]  # (F, S)
    available: NDArray[np.bool_]  # (F, A, U)
    actions: NDArray[np.int64]  # (N, A)
    reward: NDArray[np.float32]  # (N,)
    terminated: NDArray[np.bool_]  # (E,): False where the episode was cut
    lengths: NDArray[np.int32]  # (E,): steps
    epsilon: NDArray[np.float32] | None = None  # (E,): exploration rate at the end of each; None for 0

    @classmethod
    def of(cls, arrays: Mapping[str, Any]) -> "Episodes":
        """Return episodes of arrays by name, without `epsilon`.

        Raises:
            InvalidExperience: a name is missing or unknown.
        """
        expected = [field.name for field in fields(cls) if field.name != "epsilon"]
        if arrays.keys() != set(expected):
            raise InvalidExperience(f"expected the fields {expected}, got {list(arrays)}")
        return cls(**arrays)

    def __len__(self) -> int:
        """Return the number of episodes, E."""
        return len(self.lengths)


class EpisodeStore:
    """Memory for the episodes of a buffer, with room for a full-length episode in every slot.

    Args:
        spec: sizes of the environment.
        capacity: slots.
        folder: as for `allocate`.
        n_frames: frames for which memory is taken; enough for all slots by default.

    Raises:
        OSError: there is no such folder, or too little space in it.
    """

    def __init__(
        self, spec: EnvSpec, capacity: int, *, folder: str | Path | None = None, n_frames: int | None = None
    ) -> None:
        self.spec, self.capacity = spec, capacity
        self.items = {name: (shape, dtype) for name, (_, shape, dtype) in item_shapes(spec).items()}
        self._folder = folder
        self.arrays = self._allocate(capacity * (spec.episode_limit + 1) if n_frames is None else n_frames)
        self._starts = np.arange(capacity) * (spec.episode_limit + 1)  # frame with which the episode of a slot begins
        self.lengths = np.zeros(capacity, np.int32)
        """Steps of the episode in each slot, (capacity,)."""
        self._terminated = np.zeros(capacity, np.bool_)
        self._epsilon = np.zeros(capacity, np.float32)
        self._batches = BatchMemory()

    def _allocate(self, n_frames: int) -> dict[str, NDArray[Any]]:
        self._n_frames = n_frames
        return {name: allocate((n_frames, *item), dtype, self._folder) for name, (item, dtype) in self.items.items()}

    def release(self) -> None:
        """Let go of all memory; batches stay as they are."""
        self.arrays = {}
        self._batches = BatchMemory()

    @property
    def share_fields(self) -> dict[str, Field | Segment]:
        """Fields of the items of a `ClientSample`, as `FederatedReplay` takes them."""
        limit = self.spec.episode_limit
        segments = {
            name: Segment(dtype, item, limit, more=int(name in FRAME_FIELDS), finite=name == "reward")
            for name, (item, dtype) in self.items.items()
        }
        return {**segments, LENGTHS: Field(np.int32), "terminated": Field(np.bool_)}

    # Writing --------------------------------------------------------------------------------------------------------

    def check(self, episodes: Episodes) -> int:
        """Return the number of episodes, E.

        Raises:
            InvalidExperience: a shape or dtype is wrong, a length is not in 1 to the episode limit, an action does not
                exist, or a reward is not finite. The message names the field and the expected value.
        """
        lengths, limit = episodes.lengths, self.spec.episode_limit
        if not isinstance(lengths, np.ndarray) or lengths.ndim != 1 or lengths.dtype != np.int32:
            raise InvalidExperience(f"lengths: expected int32 of shape (E,), got {describe(lengths)}")
        n = len(lengths)
        check_array("terminated", episodes.terminated, (n,), np.bool_)
        if episodes.epsilon is not None:
            check_array("epsilon", episodes.epsilon, (n,), np.float32)
        if n == 0 or lengths.min() < 1 or lengths.max() > limit:
            raise InvalidExperience(f"lengths: expected at least one episode of 1 to {limit} steps each, got {lengths}")
        n_steps = int(lengths.sum())
        for name, (item, dtype) in self.items.items():
            rows = n_steps + n if name in FRAME_FIELDS else n_steps
            check_array(name, getattr(episodes, name), (rows, *item), dtype)
        actions = episodes.actions
        check_finite("reward", episodes.reward, "at step")
        if actions.min() < 0 or actions.max() >= self.spec.n_actions:
            raise InvalidExperience(
                f"actions: expected 0 to {self.spec.n_actions - 1}, got {actions.min()} to {actions.max()}"
            )
        return n

    def write(self, slots: NDArray[np.int64], episodes: Episodes, overwrites: Overwrites) -> None:
        """Write the last E of checked episodes to `slots` (E,); frames that are overwritten are announced before."""
        skipped = len(episodes) - len(slots)
        step = int(episodes.lengths[:skipped].sum())
        frame = step + skipped
        for slot, n in zip(slots.tolist(), episodes.lengths[skipped:].tolist(), strict=True):
            start = self._place(slot, n + 1)
            if overwrites is not None:
                until_end = min(n + 1, self._n_frames - start)
                announce(overwrites, self.arrays.values(), slice(start, start + until_end), slice(n + 1 - until_end))
            for names, first, count in ((FRAME_FIELDS, frame, n + 1), (STEP_FIELDS, step, n)):
                until_end = min(count, self._n_frames - start)
                for name in names:
                    array, source = self.arrays[name], getattr(episodes, name)
                    array[start : start + until_end] = source[first : first + until_end]
                    if until_end < count:
                        array[: count - until_end] = source[first + until_end : first + count]
            for name in STEP_FIELDS:  # no action is taken in an episode's last frame
                self.arrays[name][(start + n) % self._n_frames] = 0
            frame, step = frame + n + 1, step + n
        self.lengths[slots], self._terminated[slots] = episodes.lengths[skipped:], episodes.terminated[skipped:]
        self._epsilon[slots] = 0.0 if episodes.epsilon is None else episodes.epsilon[skipped:]

    def _place(self, slot: int, n_frames: int) -> int:
        """Return where the `n_frames` of a new episode in `slot` begin; here every slot has room for any."""
        return slot * (self.spec.episode_limit + 1)

    def _corners(
        self, starts: NDArray[np.int64], counts: NDArray[np.int64], to: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return what `copy_segments` takes for segments of the ring of frames, cut where the ring ends.

        Args:
            starts: frame with which each segment begins, (E,).
            counts: frames of each segment, (E,).
            to: row to which each segment is copied, (E,).
        """
        until_end = self._n_frames - starts
        around = np.flatnonzero(counts > until_end)
        if not len(around):
            return corners_of(to, starts, counts)
        cut, none = until_end[around], np.zeros(len(around), np.int64)
        rest = corners_of(to[around] + cut, none, counts[around] - cut)
        return np.concatenate([corners_of(to, starts, np.minimum(counts, until_end)), rest])

    # Gathering ------------------------------------------------------------------------------------------------------

    def gather(
        self, slots: NDArray[np.int64], firsts: NDArray[np.int64], lengths: NDArray[np.int32]
    ) -> dict[str, NDArray[Any]]:
        """Return `lengths` (E,) steps of the episodes in `slots` (E,), from step `firsts` (E,) on, as padded batch.

        The batch is read-only, by field: (E, T + 1, …) of frames, (E, T, …) of steps, and (E,) of episodes.
        """
        starts, longest = (self._starts[slots] + firsts) % self._n_frames, int(lengths.max())
        most, n = len(slots) * (self.spec.episode_limit + 1), len(slots)
        batch: dict[str, NDArray[Any]] = {}
        short = [(i, longest - steps) for i, steps in enumerate(lengths.tolist()) if steps < longest]
        for names, more in ((FRAME_FIELDS, 1), (STEP_FIELDS, 0)):
            width = longest + more
            corners = self._corners(starts, lengths.astype(np.int64) + more, np.arange(n) * width)
            for name in names:
                source = self.arrays[name]
                shape = (n * width, *source.shape[1:])
                out = self._batches.empty(name, shape, source.dtype, most * source.strides[0])
                copy_segments(source, out, corners)
                for i, missing in short:
                    out[(i + 1) * width - missing : (i + 1) * width] = 0
                batch[name] = freeze(out.reshape(n, width, *source.shape[1:]))
        ends = firsts + lengths == self.lengths[slots]
        return batch | {
            "lengths": freeze(lengths),
            "terminated": freeze(self._terminated[slots] & ends),
            "epsilon": freeze(self._epsilon[slots]),
        }

    def pack(
        self, slots: NDArray[np.int64], firsts: NDArray[np.int64], lengths: NDArray[np.int32]
    ) -> dict[str, NDArray[Any]]:
        """Return the same steps as `gather`, unpadded and back to back, as a `ClientSample` has them."""
        starts = (self._starts[slots] + firsts) % self._n_frames
        packed: dict[str, NDArray[Any]] = {}
        for names, more in ((FRAME_FIELDS, 1), (STEP_FIELDS, 0)):
            counts = lengths.astype(np.int64) + more
            corners = self._corners(starts, counts, begins(counts))
            for name in names:
                source = self.arrays[name]
                packed[name] = np.empty((int(counts.sum()), *source.shape[1:]), source.dtype)
                copy_segments(source, packed[name], corners)
        packed[LENGTHS] = lengths
        packed["terminated"] = self._terminated[slots] & (firsts + lengths == self.lengths[slots])
        return packed

    # Checkpoints ----------------------------------------------------------------------------------------------------

    def state_arrays(self, slots: NDArray[np.int64]) -> dict[str, StateArray]:
        """Return the episodes in `slots` (n,), in this order."""
        return {
            "lengths": StateArray.of(self.lengths[slots]),
            "terminated": StateArray.of(self._terminated[slots]),
            "epsilon": StateArray.of(self._epsilon[slots]),
        } | {f"frames/{name}": array for name, array in self._frame_arrays(slots).items()}

    def _frame_arrays(self, slots: NDArray[np.int64]) -> dict[str, StateArray]:
        rows = self._rows(slots)
        return {name: picked_rows(array, rows) for name, array in self.arrays.items()}

    def _rows(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of all frames of the episodes in `slots` (n,)."""
        n_frames = self.lengths[slots].astype(np.int64) + 1
        return np.arange(n_frames.sum()) + np.repeat(self._starts[slots] - begins(n_frames), n_frames)

    def check_state(self, reader: ArrayReader, held: int) -> None:
        """Raise `CheckpointError` unless the arrays could come from `state_arrays` for `held` slots."""
        lengths, limit = reader.read("lengths", np.int32, (held,)), self.spec.episode_limit
        if held and (lengths.min() < 1 or lengths.max() > limit):
            raise CheckpointError(f"lengths: expected 1 to {limit} steps each, got {lengths}")
        reader.expect("terminated", np.bool_, (held,))
        reader.expect("epsilon", np.float32, (held,))
        for name, (item, dtype) in self.items.items():
            reader.expect(f"frames/{name}", dtype, (int(lengths.sum()) + held, *item))

    def load_state(self, reader: ArrayReader, slots: NDArray[np.int64], overwrites: Overwrites) -> None:
        """Load checked arrays into `slots` (n,); all other episodes are gone."""
        n = len(slots)
        self.lengths[:] = 0
        lengths = reader.read("lengths", np.int32, (n,))
        for slot, steps in zip(slots.tolist(), lengths.tolist(), strict=True):
            self._place(slot, steps + 1)
        self.lengths[slots], self._terminated[slots] = lengths, reader.read("terminated", np.bool_, (n,))
        self._epsilon[slots] = reader.read("epsilon", np.float32, (n,))
        rows = self._loaded_rows(slots)
        for name, array in self.arrays.items():
            load_rows(reader, f"frames/{name}", array, rows, overwrites)

    def _loaded_rows(self, slots: NDArray[np.int64]) -> slice | NDArray[np.int64]:
        """Return the rows of all frames of the episodes in `slots` (n,), which have just been placed."""
        return self._rows(slots)

    def check_valid(self, slots: NDArray[np.int64]) -> list[str]:
        """Return one sentence for each inconsistency of the episodes in `slots` (n,); none if all is well."""
        lengths, limit = self.lengths[slots], self.spec.episode_limit
        return [f"a length is not in 1 … {limit}: {lengths}"] if ((lengths < 1) | (lengths > limit)).any() else []


class PackedEpisodeStore(EpisodeStore):
    """Memory for episodes that leave in the order in which they came, which follows their real lengths.

    The frames of all episodes lie back to back in one ring, which is doubled while it is too small for `capacity`
    episodes. On a disk, room for `capacity` full-length episodes is taken at once.

    Args:
        spec: sizes of the environment.
        capacity: slots.
        folder: as for `allocate`.
    """

    def __init__(self, spec: EnvSpec, capacity: int, *, folder: str | Path | None = None) -> None:
        first = capacity if folder is not None else min(capacity, FIRST_EPISODES)
        super().__init__(spec, capacity, folder=folder, n_frames=first * (spec.episode_limit + 1))
        self._head = 0  # where the next frame goes
        self._used = 0  # frames of the episodes held

    def _place(self, slot: int, n_frames: int) -> int:
        leaving = int(self.lengths[slot])
        self._used -= leaving + 1 if leaving else 0
        if self._used + n_frames > self._n_frames:
            self._grow(self._used + n_frames)
        start = self._starts[slot] = self._head
        self._head = (start + n_frames) % self._n_frames
        self._used += n_frames
        return start

    def _grow(self, needed: int) -> None:
        """Move to a ring with room for `needed` frames, twice as large if so many can be used."""
        tail, size, arrays = (self._head - self._used) % self._n_frames, self._n_frames, self.arrays
        self.arrays = self._allocate(max(needed, min(2 * size, self.capacity * (self.spec.episode_limit + 1))))
        until_end = min(self._used, size - tail)
        for name, array in arrays.items():
            self.arrays[name][:until_end] = array[tail : tail + until_end]
            self.arrays[name][until_end : self._used] = array[: self._used - until_end]
        self._starts = (self._starts - tail) % size
        self._head = self._used

    def _frame_arrays(self, slots: NDArray[np.int64]) -> dict[str, StateArray]:
        tail = (self._head - self._used) % self._n_frames
        until_end = min(self._used, self._n_frames - tail)
        rest = self._used - until_end
        return {
            name: StateArray.of(array[tail : tail + until_end], array[:rest], announced=True)
            for name, array in self.arrays.items()
        }

    def load_state(self, reader: ArrayReader, slots: NDArray[np.int64], overwrites: Overwrites) -> None:
        self._head = self._used = 0
        super().load_state(reader, slots, overwrites)

    def _loaded_rows(self, slots: NDArray[np.int64]) -> slice:
        return slice(self._used)

    def check_valid(self, slots: NDArray[np.int64]) -> list[str]:
        wrong, n_frames = super().check_valid(slots), self.lengths[slots].astype(np.int64) + 1
        if n_frames.sum() != self._used or self._used > self._n_frames:
            wrong.append(f"{n_frames.sum()} frames are held, but {self._used} of {self._n_frames} are counted")
        starts = (self._head - self._used + begins(n_frames)) % self._n_frames
        if (self._starts[slots] != starts).any():
            wrong.append(f"episodes should start at frames {starts}, they start at {self._starts[slots]}")
        return wrong
