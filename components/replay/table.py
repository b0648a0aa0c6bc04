"""Transitions in a table: one object says which rows are drawn, another which make room (Cassirer et al. 2021)."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from components.replay.invalid import InvalidExperience, check_indices, check_priorities
from components.replay.selectors import Selector
from components.replay.transitions import Field, SampledTransitions, Transitions


class TransitionTable(Transitions):
    """Up to `capacity` transitions, of which any may go at any time.

    With two `FifoSelector`s and `max_times_sampled` of 1 this is a queue, with two `LifoSelector`s a stack; a
    `UniformSelector` and a `FifoSelector` make it the ring that `Transitions` is, only slower.

    Args:
        fields: by name, what a row holds.
        capacity: rows held at most.
        sampler: says which rows are drawn; made for `capacity` items, and told of nothing so far.
        remover: says which rows make room for new ones; another such object.
        remove_by: what `remover` is given for a row's priority: its priority, or how often it was sampled.
        max_times_sampled: a row goes at the end of the batch in which it is drawn for the so-manieth time; 0 keeps it.
        rng: what `remover` draws with, should it draw; by default one of seed 0.
        slabs: as for `Transitions`.

    Raises:
        ValueError: as for `Transitions`; or `max_times_sampled` is below 0, or both selectors are one object.
    """

    def __init__(
        self,
        fields: Mapping[str, Field],
        capacity: int,
        *,
        sampler: Selector,
        remover: Selector,
        remove_by: Literal["priority", "times_sampled"] = "priority",
        max_times_sampled: int = 0,
        rng: np.random.Generator | None = None,
        slabs: int = 2,
    ) -> None:
        super().__init__(fields, capacity, slabs=slabs)
        if sampler is remover:
            raise ValueError("sampler and remover: expected two objects, as each is told of every change")
        if max_times_sampled < 0:
            raise ValueError(f"max_times_sampled: expected at least 0, got {max_times_sampled}")
        if remove_by not in ("priority", "times_sampled"):
            raise ValueError(f"remove_by: expected priority or times_sampled, got {remove_by!r}")
        self.sampler, self.remover = sampler, remover
        self.remove_by, self.max_times_sampled = remove_by, max_times_sampled
        self._rng = np.random.default_rng(0) if rng is None else rng
        self.stale_updates = 0
        """Rows that `update` and `remove` were to change after they had gone, and ignored."""
        self._free = np.arange(capacity - 1, -1, -1)  # the first `_n_free` of these slots hold nothing
        self._n_free = capacity
        self._generations = np.full(
            capacity, -1, np.int64
        )  # how many rows were inserted before; -1 where there is none
        self._times_sampled = np.zeros(capacity, np.int64)

    def __len__(self) -> int:
        """Return how many rows are held."""
        return self.capacity - self._n_free

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
        n = self._check_rows(rows)
        if n > self.capacity:
            raise InvalidExperience(f"expected at most {self.capacity} rows, the capacity, got {n}")
        if priorities is None:
            priorities = np.ones(n)
        check_priorities(priorities, n)
        self._make_room(n)
        self._n_free -= n
        slots = self._free[self._n_free : self._n_free + n][::-1].copy()
        for name, array in self._ring.items():
            array[slots] = rows[name]
        self._generations[slots] = self.inserted + np.arange(n)
        self._times_sampled[slots] = 0
        self.inserted += n
        numbers = priorities.astype(np.float64)
        self.sampler.insert(slots, numbers)
        self.remover.insert(slots, numbers if self.remove_by == "priority" else np.zeros(n))

    def insert_one(self, row: Mapping[str, Any], priority: float = 1.0) -> None:
        """Add one row; see `Transitions.insert_one` and `insert`.

        Raises:
            InvalidExperience: as for `insert`.
        """
        values = self._check_row(row)
        rows = {name: np.asarray(value)[None] for name, value in values.items()}
        self.insert(rows, np.array([priority], np.float64))

    def _make_room(self, n: int) -> None:
        while self._n_free < n:
            # What draws with repetition may name one twice; then fewer go at a time, but always one.
            self._remove(np.unique(self.remover.select(n - self._n_free, self._rng)))

    def _remove(self, slots: NDArray[np.int64]) -> None:
        self._generations[slots] = -1
        self._free[self._n_free : self._n_free + len(slots)] = slots
        self._n_free += len(slots)
        self.sampler.delete(slots)
        self.remover.delete(slots)

    def sample(self, batch_size: int, rng: np.random.Generator) -> SampledTransitions:
        """Draw `batch_size` rows, B, as the sampler says; all weights are 1.

        The arrays of the batch are this object's memory: see `slabs`.

        Raises:
            ValueError: fewer rows are held, or `batch_size` is below 1.
        """
        if not 1 <= batch_size <= len(self):
            raise ValueError(f"batch_size: expected 1 to {len(self)}, the rows held, got {batch_size}")
        slots = self.sampler.select(batch_size, rng)
        generations = self._generations[slots]
        sampled = SampledTransitions(
            self._gather(slots, generations), slots, generations, np.ones(batch_size, np.float32)
        )
        once, times = np.unique(slots, return_counts=True)
        self._times_sampled[once] += times
        if self.remove_by == "times_sampled":
            self.remover.update(once, self._times_sampled[once].astype(np.float64))
        if self.max_times_sampled:
            self._remove(once[self._times_sampled[once] >= self.max_times_sampled])
        return sampled

    def update(
        self,
        indices: NDArray[np.int64],  # (B,)
        generations: NDArray[np.int64],  # (B,)
        priorities: NDArray[np.floating[Any]],  # (B,)
    ) -> None:
        """Set the priorities of rows that `sample` named; of one named twice the last stays.

        A row that has gone since is left out, and counted in `stale_updates`.

        Raises:
            InvalidExperience: an array's shape or dtype is another, an index is none, or a priority is negative or not
                finite. Nothing is changed then.
        """
        check_indices(indices, generations, self.capacity)
        check_priorities(priorities, len(indices))
        current = self._current(indices, generations)
        # Of the array turned round, the first of each.
        slots, last = np.unique(indices[current][::-1], return_index=True)
        numbers = priorities[current][::-1][last].astype(np.float64)
        self.sampler.update(slots, numbers)
        if self.remove_by == "priority":
            self.remover.update(slots, numbers)

    def remove(self, indices: NDArray[np.int64], generations: NDArray[np.int64]) -> None:
        """Drop rows (B,) that `sample` named. One that has gone before is counted in `stale_updates`.

        Raises:
            InvalidExperience: an array's shape or dtype is another, or an index is none. Nothing is changed then.
        """
        check_indices(indices, generations, self.capacity)
        self._remove(np.unique(indices[self._current(indices, generations)]))

    def _current(self, indices: NDArray[np.int64], generations: NDArray[np.int64]) -> NDArray[np.bool_]:
        current: NDArray[np.bool_] = (self._generations[indices] == generations) & (generations >= 0)
        self.stale_updates += int((~current).sum())
        return current

    def check_valid(self) -> list[str]:
        wrong = super().check_valid()
        free = self._free[: self._n_free]
        if not np.array_equal(np.sort(free), np.flatnonzero(self._generations < 0)):
            wrong.append(f"slots {np.sort(free)} should be free, generations are {self._generations}")
        return wrong
