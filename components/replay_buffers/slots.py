"""Slots of a table: which hold an item, which are drawn, and which are emptied (Cassirer et al. 2021)."""

from typing import Any, Literal, Required, TypedDict

import numpy as np
from numpy.typing import NDArray

from components.checkpoints.array_file import ArrayReader, CheckpointError, StateArray, generator_array, prefixed
from components.replay_buffers.invalid import InvalidExperience, check_indices, check_priorities
from components.replay_buffers.ring import Placement
from components.replay_buffers.selectors import Selector

RemoveBy = Literal["priority", "times_sampled"]


class TableOptions(TypedDict, total=False):
    """Keywords of tables."""

    sampler: Required[Selector]
    remover: Required[Selector]
    remove_by: RemoveBy
    max_times_sampled: int
    rng: np.random.Generator | None


class Slots:
    """Slots whose items may be removed in any order.

    Args:
        capacity: number of slots.
        sampler: selects the slots that are drawn; made for `capacity` items, still empty.
        remover: selects the slots to empty for new items; another such object.
        remove_by: number that `remover` uses as the priority of a slot: its priority, or how often it was sampled.
        max_times_sampled: a slot is emptied once it has been sampled this many times; 0 disables.
        rng: generator for draws of `remover`; by default one of seed 0.

    Raises:
        ValueError: `capacity` is below 1, `max_times_sampled` below 0, both selectors are one object, or `remove_by` is
            unknown.
    """

    oldest = 0

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
        if capacity < 1:
            raise ValueError(f"capacity: expected at least 1, got {capacity}")
        if sampler is remover:
            raise ValueError("sampler and remover: expected two objects, because each receives every change")
        if max_times_sampled < 0:
            raise ValueError(f"max_times_sampled: expected at least 0, got {max_times_sampled}")
        if remove_by not in ("priority", "times_sampled"):
            raise ValueError(f"remove_by: expected priority or times_sampled, got {remove_by!r}")
        self.capacity, self.sampler, self.remover = capacity, sampler, remover
        self.remove_by, self.max_times_sampled = remove_by, max_times_sampled
        self.inserted = 0
        """Items inserted so far, removed ones included."""
        self.stale_updates = 0
        """Items passed to `update` or `remove` after they had been removed; they are ignored."""
        self.generations = np.full(capacity, -1, np.int64)
        """Serial number of the item in each slot; -1 for an empty slot."""
        self._rng = np.random.default_rng(0) if rng is None else rng
        self._free = np.arange(capacity - 1, -1, -1)  # the first `_n_free` of these are empty
        self._n_free = capacity
        self._times_sampled = np.zeros(capacity, np.int64)

    def __len__(self) -> int:
        """Return the number of slots that hold an item."""
        return self.capacity - self._n_free

    @property
    def used(self) -> NDArray[np.int64]:
        """Slots that hold an item, in order."""
        return np.flatnonzero(self.generations >= 0)

    order = used

    def generations_of(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the serial numbers (B,) of the items in `slots` (B,); -1 for an empty slot."""
        return self.generations[slots]

    def _check_priorities(self, priorities: NDArray[np.floating[Any]], n: int) -> None:
        check_priorities(priorities, n)
        limit = min(self.sampler.limit, self.remover.limit)
        if n and not priorities.max() < limit:
            raise InvalidExperience(
                f"priorities: expected numbers below {limit:.3g}, so that sums are finite, got {priorities}"
            )

    def put(self, n: int, priorities: NDArray[np.floating[Any]] | None = None) -> list[Placement]:
        """Return slots for `n` new items with `priorities` (n,), or 1 each; the remover empties slots for them.

        Raises:
            InvalidExperience: n is above `capacity`, or `priorities` are not n floats that are finite and at least 0.
        """
        if n > self.capacity:
            raise InvalidExperience(f"expected at most {self.capacity} at a time, the capacity, got {n}")
        if priorities is not None:
            self._check_priorities(priorities, n)
        while self._n_free < n:
            # A selector that draws with repetition may return a slot twice; then fewer are emptied, but at least one.
            self._empty(np.unique(self.remover.select(n - self._n_free, self._rng)))
        self._n_free -= n
        slots = self._free[self._n_free : self._n_free + n][::-1].copy()
        self.generations[slots] = self.inserted + np.arange(n)
        self._times_sampled[slots] = 0
        self.inserted += n
        numbers = np.ones(n) if priorities is None else priorities.astype(np.float64)
        self.sampler.insert(slots, numbers)
        self.remover.insert(slots, numbers if self.remove_by == "priority" else np.zeros(n))
        return [(slots, slice(0, n))]

    def put_one(self, priority: float | None = None) -> int:
        """Return the slot of one new item.

        Raises:
            InvalidExperience: as for `put`.
        """
        self.put(1, None if priority is None else np.array([priority], np.float64))
        return int(self._free[self._n_free])

    def _empty(self, slots: NDArray[np.int64]) -> None:
        self.generations[slots] = -1
        self._free[self._n_free : self._n_free + len(slots)] = slots
        self._n_free += len(slots)
        self.sampler.delete(slots)
        self.remover.delete(slots)

    def draw(self, batch_size: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the slots (B,) that the sampler selects, and weights (B,) of 1.

        Raises:
            ValueError: fewer slots hold an item, or `batch_size` is below 1.
        """
        if not 1 <= batch_size <= len(self):
            raise ValueError(f"batch_size: expected 1 to {len(self)}, the number of items held, got {batch_size}")
        return self.sampler.select(batch_size, rng), np.ones(batch_size, np.float32)

    def drew(self, slots: NDArray[np.int64]) -> None:
        """Count the draws of a gathered batch, `slots` (B,), and empty slots drawn `max_times_sampled` times."""
        once, times = np.unique(slots, return_counts=True)
        self._times_sampled[once] += times
        if self.remove_by == "times_sampled":
            self.remover.update(once, self._times_sampled[once].astype(np.float64))
        if self.max_times_sampled:
            self._empty(once[self._times_sampled[once] >= self.max_times_sampled])

    def update(
        self, indices: NDArray[np.int64], generations: NDArray[np.int64], priorities: NDArray[np.floating[Any]]
    ) -> None:
        """Set the priorities of drawn items that are still held; the others are counted in `stale_updates`."""
        check_indices(indices, generations, self.capacity)
        self._check_priorities(priorities, len(indices))
        current = self._current(indices, generations)
        # For an item named twice the last priority counts: in reverse order, the first one.
        slots, last = np.unique(indices[current][::-1], return_index=True)
        numbers = priorities[current][::-1][last].astype(np.float64)
        self.sampler.update(slots, numbers)
        if self.remove_by == "priority":
            self.remover.update(slots, numbers)

    def remove(self, indices: NDArray[np.int64], generations: NDArray[np.int64]) -> None:
        """Empty the slots of drawn items that are still held; the others are counted in `stale_updates`."""
        check_indices(indices, generations, self.capacity)
        self._empty(np.unique(indices[self._current(indices, generations)]))

    def _current(self, indices: NDArray[np.int64], generations: NDArray[np.int64]) -> NDArray[np.bool_]:
        current: NDArray[np.bool_] = (self.generations[indices] == generations) & (generations >= 0)
        self.stale_updates += int((~current).sum())
        return current

    # Checkpoints ----------------------------------------------------------------------------------------------------

    def state_arrays(self) -> dict[str, StateArray]:
        """Return the arrays of a checkpoint."""
        arrays = {
            "inserted": StateArray.of(np.array(self.inserted)),
            "stale_updates": StateArray.of(np.array(self.stale_updates)),
            "generations": StateArray.of(self.generations),
            "times_sampled": StateArray.of(self._times_sampled),
            "free": StateArray.of(self._free[: self._n_free]),
            "rng": generator_array(self._rng),
        }
        for name, selector in (("sampler", self.sampler), ("remover", self.remover)):
            kind = {"kind": StateArray.of(np.array(type(selector).__name__))}
            arrays |= prefixed(name, kind | selector.state_arrays())
        return prefixed("slots", arrays)

    def held_in(self, reader: ArrayReader) -> int:
        """Return the number of items held by a checkpoint."""
        return int((reader.read("slots/generations", np.int64, (self.capacity,)) >= 0).sum())

    def check_state(self, reader: ArrayReader) -> None:
        """Raise `CheckpointError` unless the arrays could come from `state_arrays`."""
        reader = reader.part("slots")
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

    def load_state(self, reader: ArrayReader) -> None:
        """Load checked arrays."""
        reader = reader.part("slots")
        self.inserted, self.stale_updates = reader.read_count("inserted"), reader.read_count("stale_updates")
        reader.read_into("generations", self.generations)
        reader.read_into("times_sampled", self._times_sampled)
        self._n_free = reader.length("free")
        reader.read_into("free", self._free[: self._n_free])
        self._rng = reader.read_generator("rng", self._rng)
        for name, selector in (("sampler", self.sampler), ("remover", self.remover)):
            selector.load_state(reader.part(name), len(self))

    def clear(self) -> None:
        """Empty all slots."""
        self._empty(self.used)

    def check_valid(self) -> list[str]:
        """Return one sentence for each inconsistency; none if all is well."""
        free = self._free[: self._n_free]
        if not np.array_equal(np.sort(free), np.flatnonzero(self.generations < 0)):
            return [f"slots {np.sort(free)} should be free, generations are {self.generations}"]
        return []
