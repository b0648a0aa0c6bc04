"""Which slots of a table hold something, which are drawn, and which make room (Cassirer et al. 2021)."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from components.checkpoints.array_file import (
    ArrayReader,
    CheckpointError,
    StateArray,
    generator_array,
    prefixed,
)
from components.replay_buffers.invalid import InvalidExperience, check_indices, check_priorities
from components.replay_buffers.selectors import Selector

RemoveBy = Literal["priority", "times_sampled"]


class Slots:
    """The books of a table: what is where, and how often it was drawn. What there is to hold, its owner holds.

    Args:
        capacity: slots there are.
        sampler: says which slots are drawn; made for `capacity` items, and told of nothing so far.
        remover: says which slots make room for what is new; another such object.
        remove_by: what `remover` is given for a slot's priority: its priority, or how often it was sampled.
        max_times_sampled: a slot is emptied when it has been drawn so often; 0 keeps it.
        rng: what `remover` draws with, should it draw; by default one of seed 0.

    Raises:
        ValueError: `max_times_sampled` is below 0, both selectors are one object, or `remove_by` is none of the two.
    """

    def __init__(
        self,
        capacity: int,
        *,
        sampler: Selector,
        remover: Selector,
        remove_by: RemoveBy = "priority",
        max_times_sampled: int = 0,
        rng: np.random.Generator | None = None,
    ) -> None:
        if sampler is remover:
            raise ValueError("sampler and remover: expected two objects, as each is told of every change")
        if max_times_sampled < 0:
            raise ValueError(f"max_times_sampled: expected at least 0, got {max_times_sampled}")
        if remove_by not in ("priority", "times_sampled"):
            raise ValueError(f"remove_by: expected priority or times_sampled, got {remove_by!r}")
        self.capacity, self.sampler, self.remover = capacity, sampler, remover
        self.remove_by, self.max_times_sampled = remove_by, max_times_sampled
        self.inserted = 0
        """How many were put in so far, those that are gone included."""
        self.stale_updates = 0
        """What `update` and `remove` were to change after it had gone, and ignored."""
        self.generations = np.full(capacity, -1, np.int64)
        """How many were put in before what is in a slot; -1 where there is nothing."""
        self._rng = np.random.default_rng(0) if rng is None else rng
        self._free = np.arange(capacity - 1, -1, -1)  # the first `_n_free` of these hold nothing
        self._n_free = capacity
        self._times_sampled = np.zeros(capacity, np.int64)

    def __len__(self) -> int:
        """Return how many slots hold something."""
        return self.capacity - self._n_free

    @property
    def used(self) -> NDArray[np.int64]:
        """The slots that hold something, in order."""
        return np.flatnonzero(self.generations >= 0)

    def check(self, n: int, priorities: NDArray[np.floating[Any]] | None) -> None:
        """Raise `InvalidExperience` unless `n` fit, and these are as many priorities, or none."""
        if n > self.capacity:
            raise InvalidExperience(f"expected at most {self.capacity} at a time, the capacity, got {n}")
        if priorities is not None:
            self._check_priorities(priorities, n)

    def _check_priorities(self, priorities: NDArray[np.floating[Any]], n: int) -> None:
        check_priorities(priorities, n)
        limit = min(self.sampler.limit, self.remover.limit)
        if n and not priorities.max() < limit:
            raise InvalidExperience(
                f"priorities: expected numbers below {limit:.3g}, as sums would overflow else, got {priorities}"
            )

    def put(self, n: int, priorities: NDArray[np.floating[Any]] | None) -> NDArray[np.int64]:
        """Return slots (n,) for what is new, with `priorities` (n,) or 1 each; what was in the way has gone."""
        self._make_room(n)
        self._n_free -= n
        slots = self._free[self._n_free : self._n_free + n][::-1].copy()
        self.generations[slots] = self.inserted + np.arange(n)
        self._times_sampled[slots] = 0
        self.inserted += n
        numbers = np.ones(n) if priorities is None else priorities.astype(np.float64)
        self.sampler.insert(slots, numbers)
        self.remover.insert(slots, numbers if self.remove_by == "priority" else np.zeros(n))
        return slots

    def _make_room(self, n: int) -> None:
        while self._n_free < n:
            # What draws with repetition may name one twice; then fewer go at a time, but always one.
            self._empty(np.unique(self.remover.select(n - self._n_free, self._rng)))

    def _empty(self, slots: NDArray[np.int64]) -> None:
        self.generations[slots] = -1
        self._free[self._n_free : self._n_free + len(slots)] = slots
        self._n_free += len(slots)
        self.sampler.delete(slots)
        self.remover.delete(slots)

    def draw(self, batch_size: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the slots (B,) that the sampler says, and their generations (B,).

        Raises:
            ValueError: fewer hold something, or `batch_size` is below 1.
        """
        if not 1 <= batch_size <= len(self):
            raise ValueError(f"batch_size: expected 1 to {len(self)}, what is held, got {batch_size}")
        slots = self.sampler.select(batch_size, rng)
        return slots, self.generations[slots]

    def drew(self, slots: NDArray[np.int64]) -> None:
        """Count what was drawn, `slots` (B,), and let go of what was drawn often enough."""
        once, times = np.unique(slots, return_counts=True)
        self._times_sampled[once] += times
        if self.remove_by == "times_sampled":
            self.remover.update(once, self._times_sampled[once].astype(np.float64))
        if self.max_times_sampled:
            self._empty(once[self._times_sampled[once] >= self.max_times_sampled])

    def update(
        self,
        indices: NDArray[np.int64],  # (B,)
        generations: NDArray[np.int64],  # (B,)
        priorities: NDArray[np.floating[Any]],  # (B,)
    ) -> None:
        """Set the priorities of what `draw` named; of one named twice the last stays.

        What has gone since is left out, and counted in `stale_updates`.

        Raises:
            InvalidExperience: an array's shape or dtype is another, an index is none, or a priority is negative or not
                finite. Nothing is changed then.
        """
        check_indices(indices, generations, self.capacity)
        self._check_priorities(priorities, len(indices))
        current = self._current(indices, generations)
        # Of the array turned round, the first of each.
        slots, last = np.unique(indices[current][::-1], return_index=True)
        numbers = priorities[current][::-1][last].astype(np.float64)
        self.sampler.update(slots, numbers)
        if self.remove_by == "priority":
            self.remover.update(slots, numbers)

    def remove(self, indices: NDArray[np.int64], generations: NDArray[np.int64]) -> None:
        """Let go of what `draw` named. What has gone before is counted in `stale_updates`.

        Raises:
            InvalidExperience: an array's shape or dtype is another, or an index is none. Nothing is changed then.
        """
        check_indices(indices, generations, self.capacity)
        self._empty(np.unique(indices[self._current(indices, generations)]))

    def _current(self, indices: NDArray[np.int64], generations: NDArray[np.int64]) -> NDArray[np.bool_]:
        current: NDArray[np.bool_] = (self.generations[indices] == generations) & (generations >= 0)
        self.stale_updates += int((~current).sum())
        return current

    # Checkpoints ----------------------------------------------------------------------------------------------------

    def state_arrays(self) -> dict[str, StateArray]:
        """Return what a checkpoint keeps."""
        books = {
            "inserted": StateArray.of(np.array(self.inserted)),
            "stale_updates": StateArray.of(np.array(self.stale_updates)),
            "generations": StateArray.of(self.generations),
            "times_sampled": StateArray.of(self._times_sampled),
            "free": StateArray.of(self._free[: self._n_free]),
            "rng": generator_array(self._rng),
        }
        for name, selector in (("sampler", self.sampler), ("remover", self.remover)):
            kind = {"kind": StateArray.of(np.array(type(selector).__name__))}
            books |= prefixed(name, kind | selector.state_arrays())
        return books

    def check_state(self, reader: ArrayReader) -> NDArray[np.int64]:
        """Return the slots in use; raise `CheckpointError` unless the arrays could come from `state_arrays`."""
        inserted = reader.read_count("inserted")
        reader.read_count("stale_updates")
        generations = reader.read("generations", np.int64, (self.capacity,))
        times = reader.read("times_sampled", np.int64, (self.capacity,))
        used = np.flatnonzero(generations >= 0)
        if generations.max(initial=-1) >= inserted or len(np.unique(generations[used])) != len(used):
            raise CheckpointError(f"generations: expected numbers below {inserted}, each once, got {generations}")
        if times.min(initial=0) < 0:
            raise CheckpointError(f"times_sampled: expected numbers of at least 0, got {times}")
        free = reader.read("free", np.int64, (self.capacity - len(used),))
        if not np.array_equal(np.sort(free), np.flatnonzero(generations < 0)):
            raise CheckpointError(f"free: expected the slots without a generation, got {free}")
        reader.read_generator("rng", self._rng)
        for name, selector in (("sampler", self.sampler), ("remover", self.remover)):
            part = reader.part(name)
            part.expect_value("kind", type(selector).__name__)
            selector.check_state(part, used)
        return used

    def load_state(self, reader: ArrayReader) -> None:
        """Take over arrays that have been checked."""
        self.inserted, self.stale_updates = reader.read_count("inserted"), reader.read_count("stale_updates")
        reader.read_into("generations", self.generations)
        reader.read_into("times_sampled", self._times_sampled)
        self._n_free = reader.length("free")
        reader.read_into("free", self._free[: self._n_free])
        self._rng = reader.read_generator("rng", self._rng)
        for name, selector in (("sampler", self.sampler), ("remover", self.remover)):
            selector.load_state(reader.part(name), len(self))

    def check_valid(self) -> list[str]:
        """Return what is wrong with the books, one sentence each; nothing if all is well."""
        free = self._free[: self._n_free]
        if not np.array_equal(np.sort(free), np.flatnonzero(self.generations < 0)):
            return [f"slots {np.sort(free)} should be free, generations are {self.generations}"]
        return []
