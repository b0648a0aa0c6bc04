"""Tables: of what they hold any may go at any time; one object says what is drawn, another what makes room."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from components.checkpoints.array_file import ROWS, ArrayReader, CheckpointError, StateArray, prefixed
from components.replay_buffers.episodes import FRAME_FIELDS, EpisodeReplay, checked_epsilon
from components.replay_buffers.selectors import Selector
from components.replay_buffers.slots import RemoveBy, Slots
from components.replay_buffers.transitions import Field, SampledTransitions, Transitions

if TYPE_CHECKING:  # the one brings a compiler along, the other torch, and memories work without either
    from components.envs.base import EnvSpec


class TransitionTable(Transitions):
    """Up to `capacity` transitions, of which any may go at any time.

    With two `FifoSelector`s and `max_times_sampled` of 1 this is a queue, with two `LifoSelector`s a stack; a
    `UniformSelector` and a `FifoSelector` make it the ring that `Transitions` is, only slower.

    Args:
        fields: by name, what a row holds.
        capacity: rows held at most.
        sampler: as for `Slots`, like all that follow.
        remover: says which rows make room for new ones.
        remove_by: what `remover` is given for a row's priority.
        max_times_sampled: a row goes at the end of the batch in which it is drawn for the so-manieth time; 0 keeps it.
        rng: what `remover` draws with.
        folder: as for `Transitions`.

    Raises:
        ValueError: as for `Transitions` and `Slots`.
    """

    state_kind = "TransitionTable"

    def __init__(
        self,
        fields: Mapping[str, Field],
        capacity: int,
        *,
        sampler: Selector,
        remover: Selector,
        remove_by: RemoveBy = "priority",
        max_times_sampled: int = 0,
        rng: np.random.Generator | None = None,
        folder: str | Path | None = None,
    ) -> None:
        super().__init__(fields, capacity, folder=folder)
        self.slots = Slots(
            capacity,
            sampler=sampler,
            remover=remover,
            remove_by=remove_by,
            max_times_sampled=max_times_sampled,
            rng=rng,
        )
        """Which slots hold a row, and how often each was drawn."""

    def __len__(self) -> int:
        """Return how many rows are held."""
        return len(self.slots)

    @property
    def stale_updates(self) -> int:
        """Rows that `update` and `remove` were to change after they had gone, and ignored."""
        return self.slots.stale_updates

    def insert(
        self,
        rows: Mapping[str, NDArray[Any]],
        priorities: NDArray[np.floating[Any]] | None = None,
    ) -> None:
        """Add N rows with `priorities` (N,), 1 by default; of those there before, as many go as are in the way.

        Raises:
            InvalidExperience: as for `Transitions.insert`; or N is above `capacity`; or priorities are not N floats
                that are finite and at least 0. Nothing is changed then.
        """
        n = self.check_rows(rows)
        self.slots.check(n, priorities)
        slots = self.slots.put(n, priorities)
        for name, array in self._ring.items():
            array[slots] = rows[name]
        self.inserted += n

    def insert_one(self, row: Mapping[str, Any], priority: float = 1.0) -> None:
        """Add one row; see `Transitions.insert_one` and `insert`.

        Raises:
            InvalidExperience: as for `insert`.
        """
        values = self.check_row(row)
        rows = {name: np.asarray(value)[None] for name, value in values.items()}
        self.insert(rows, np.array([priority], np.float64))

    def sample(self, batch_size: int, rng: np.random.Generator) -> SampledTransitions:
        """Draw `batch_size` rows, B, as the sampler says; all weights are 1.

        The batch is read-only and stays as it is for as long as it is used.

        Raises:
            ValueError: fewer rows are held, or `batch_size` is below 1.
        """
        slots, generations = self.slots.draw(batch_size, rng)
        batch = self._gather(slots, generations)
        self.slots.drew(slots)
        return SampledTransitions(batch, slots, generations, np.ones(batch_size, np.float32))

    def update(
        self,
        indices: NDArray[np.int64],  # (B,)
        generations: NDArray[np.int64],  # (B,)
        priorities: NDArray[np.floating[Any]],  # (B,)
    ) -> None:
        """Set the priorities of rows that `sample` named; see `Slots.update`."""
        self.slots.update(indices, generations, priorities)

    def remove(self, indices: NDArray[np.int64], generations: NDArray[np.int64]) -> None:
        """Drop rows (B,) that `sample` named; see `Slots.remove`."""
        self.slots.remove(indices, generations)

    def _state_arrays(self) -> dict[str, StateArray]:
        return {
            "capacity": StateArray.of(np.array(self.capacity, np.int64)),
            **prefixed("slots", self.slots.state_arrays()),
            **prefixed("rows", {name: _kept(array, self.slots.used) for name, array in self._ring.items()}),
        }

    def _check_state(self, reader: ArrayReader) -> None:
        reader.expect_value("capacity", self.capacity)
        used = self.slots.check_state(reader.part("slots"))
        for name, array in self._ring.items():
            reader.expect(f"rows/{name}", array.dtype, (len(used), *array.shape[1:]))

    def _load_state(self, reader: ArrayReader) -> None:
        self.slots.load_state(reader.part("slots"))
        self.inserted = self.slots.inserted
        for name, array in self._ring.items():
            _put_back(reader, f"rows/{name}", array, self.slots.used)

    def check_valid(self) -> list[str]:
        return super().check_valid() + self.slots.check_valid()


class EpisodeTable(EpisodeReplay):
    """Up to `capacity` whole episodes, of which any may go at any time.

    Every slot has room for an episode of full length, of which the system hands out what was written. So this costs
    more memory than the ring of an `EpisodeReplay`, and in exchange it has no order.

    Args:
        spec: sizes of the environment.
        capacity: episodes held at most.
        sampler: as for `Slots`, like all that follow.
        remover: says which episodes make room for new ones.
        remove_by: what `remover` is given for an episode's priority.
        max_times_sampled: an episode goes at the end of the batch in which it is drawn for the so-manieth time; 0 keeps
            it.
        rng: what `remover` draws with.
        folder: as for `EpisodeReplay`.

    Raises:
        ValueError: as for `EpisodeReplay` and `Slots`.
    """

    state_kind = "EpisodeTable"

    def __init__(
        self,
        spec: "EnvSpec",
        capacity: int,
        *,
        sampler: Selector,
        remover: Selector,
        remove_by: RemoveBy = "priority",
        max_times_sampled: int = 0,
        rng: np.random.Generator | None = None,
        folder: str | Path | None = None,
    ) -> None:
        super().__init__(spec, capacity, folder=folder)
        self.slots = Slots(
            capacity,
            sampler=sampler,
            remover=remover,
            remove_by=remove_by,
            max_times_sampled=max_times_sampled,
            rng=rng,
        )
        """Which slots hold an episode, and how often each was drawn."""
        self._starts = np.arange(capacity) * (spec.episode_limit + 1)

    def _episodes_at_first(self) -> int:
        return self.capacity

    def __len__(self) -> int:
        """Return how many episodes are held."""
        return len(self.slots)

    @property
    def stale_updates(self) -> int:
        """Episodes that `update` and `remove` were to change after they had gone, and ignored."""
        return self.slots.stale_updates

    def insert(
        self,
        obs: NDArray[np.float32],  # (F, A, O)
        state: NDArray[np.float32],  # (F, S)
        available: NDArray[np.bool_],  # (F, A, U)
        actions: NDArray[np.int64],  # (N, A)
        reward: NDArray[np.float32],  # (N,)
        terminated: NDArray[np.bool_],  # (E,)
        lengths: NDArray[np.int32],  # (E,): steps; an episode has one frame more
        priorities: NDArray[np.floating[Any]] | None = None,  # (E,)
        *,
        epsilon: NDArray[np.float32] | None = None,  # (E,)
    ) -> None:
        """Add episodes that lie back to back, of priority 1 by default; of those there, as many go as are in the way.

        Raises:
            InvalidExperience: as for `EpisodeReplay.insert`; or E is above `capacity`; or priorities are not E floats
                that are finite and at least 0. Nothing is changed then.
        """
        fields = {"obs": obs, "state": state, "available": available, "actions": actions, "reward": reward}
        self._check(fields, terminated, lengths)
        epsilon = checked_epsilon(epsilon, len(lengths))
        self.slots.check(len(lengths), priorities)
        slots = self.slots.put(len(lengths), priorities)
        self._lengths[slots], self._terminated[slots], self._epsilon[slots] = lengths, terminated, epsilon
        rows, ends = self._rows(slots)
        for name, array in self._ring.items():
            if name in FRAME_FIELDS:
                array[rows] = fields[name]
            else:  # nothing is done in an episode's last frame
                array[rows[~ends]] = fields[name]
                array[rows[ends]] = 0
        self.inserted += len(lengths)

    def _rows(self, slots: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the rows of the frames of the episodes in `slots` (E,), and which frame is an episode's last."""
        n_frames = self._lengths[slots].astype(np.int64) + 1
        stops = np.cumsum(n_frames)
        rows = np.arange(n_frames.sum()) + np.repeat(self._starts[slots] - (stops - n_frames), n_frames)
        ends = np.zeros(len(rows), np.bool_)
        ends[stops - 1] = True
        return rows, ends

    def _pick(self, batch_size: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        slots, _ = self.slots.draw(batch_size, rng)
        return slots, np.ones(batch_size, np.float32)

    def _generations_of(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.slots.generations[slots]

    def _drew(self, slots: NDArray[np.int64]) -> None:
        self.slots.drew(slots)

    def update(
        self,
        indices: NDArray[np.int64],  # (E,)
        generations: NDArray[np.int64],  # (E,)
        priorities: NDArray[np.floating[Any]],  # (E,)
    ) -> None:
        """Set the priorities of episodes that `sample` named; see `Slots.update`."""
        self.slots.update(indices, generations, priorities)

    def remove(self, indices: NDArray[np.int64], generations: NDArray[np.int64]) -> None:
        """Drop episodes (E,) that `sample` named; see `Slots.remove`."""
        self.slots.remove(indices, generations)

    def _state_arrays(self) -> dict[str, StateArray]:
        used = self.slots.used
        rows, _ = self._rows(used)
        return {
            "capacity": StateArray.of(np.array(self.capacity, np.int64)),
            "lengths": StateArray.of(self._lengths[used]),
            "terminated": StateArray.of(self._terminated[used]),
            "epsilon": StateArray.of(self._epsilon[used]),
            **prefixed("slots", self.slots.state_arrays()),
            **prefixed("frames", {name: _kept(array, rows) for name, array in self._ring.items()}),
        }

    def _check_state(self, reader: ArrayReader) -> None:
        reader.expect_value("capacity", self.capacity)
        used = self.slots.check_state(reader.part("slots"))
        lengths, limit = reader.read("lengths", np.int32, (len(used),)), self.spec.episode_limit
        if len(used) and (lengths.min() < 1 or lengths.max() > limit):
            raise CheckpointError(f"lengths: expected 1 to {limit} steps each, got {lengths}")
        reader.expect("terminated", np.bool_, (len(used),))
        reader.expect("epsilon", np.float32, (len(used),))
        for name, (item, dtype) in self._items.items():
            reader.expect(f"frames/{name}", dtype, (int(lengths.sum()) + len(used), *item))

    def _load_state(self, reader: ArrayReader) -> None:
        self.slots.load_state(reader.part("slots"))
        self.inserted, used = self.slots.inserted, self.slots.used
        self._lengths[used] = reader.read("lengths", np.int32, (len(used),))
        self._terminated[used] = reader.read("terminated", np.bool_, (len(used),))
        self._epsilon[used] = reader.read("epsilon", np.float32, (len(used),))
        rows, _ = self._rows(used)
        for name, array in self._ring.items():
            _put_back(reader, f"frames/{name}", array, rows)

    def check_valid(self) -> list[str]:
        lengths, wrong = self._lengths[self.slots.used], self.slots.check_valid()
        if ((lengths < 1) | (lengths > self.spec.episode_limit)).any():
            wrong.append(f"a length is not in 1 … {self.spec.episode_limit}: {lengths}")
        return wrong


def _kept(array: NDArray[Any], rows: NDArray[np.int64]) -> StateArray:
    """Return the column of some rows (n,) of an array, copied a few at a time."""

    def pieces() -> Iterator[NDArray[Any]]:
        for start in range(0, len(rows), ROWS):
            yield array[rows[start : start + ROWS]]

    return StateArray(array.dtype, (len(rows), *array.shape[1:]), pieces())


def _put_back(reader: ArrayReader, name: str, array: NDArray[Any], rows: NDArray[np.int64]) -> None:
    """Fill some rows (n,) of an array."""
    start = 0
    for chunk in reader.read_in_chunks(name, array.dtype, (len(rows), *array.shape[1:])):
        array[rows[start : start + len(chunk)]] = chunk
        start += len(chunk)
