"""Rings: slots of the last inserted items, in which new items replace the oldest; and the draws from them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.checkpoints.array_file import ArrayReader, StateArray, prefixed
from components.replay_buffers.invalid import BufferFull, check_indices, check_priorities
from components.replay_buffers.priorities import Priorities
from components.replay_buffers.windows import Window, reach_of

Placement = tuple[slice | NDArray[np.int64], slice]
"""Slots, and the items of an insertion that are written to them."""
EVERY = slice(None)
"""All items of an insertion."""


class Ring:
    """The last `capacity` items, drawn uniformly: the item with serial number i is in slot i modulo `capacity`.

    Args:
        capacity: items held at most.
        distinct: True if a batch has no item twice, and so at most as many as are held; else draws are independent.
        window: rows that are sampled together. An item is not drawn if its window may need overwritten rows.

    Raises:
        ValueError: `capacity` is below 1.
    """

    stale_updates = 0

    def __init__(self, capacity: int, *, distinct: bool = False, window: Window | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"capacity: expected at least 1, got {capacity}")
        self.capacity, self.inserted = capacity, 0
        self._distinct = distinct
        self._reach = 0 if window is None else reach_of(window)
        self._padded = window is not None and window.padded

    def __len__(self) -> int:
        """Return the number of items held."""
        return min(self.inserted, self.capacity)

    @property
    def used(self) -> slice:
        """Slots that hold an item."""
        return slice(min(self.inserted, self.capacity))

    @property
    def order(self) -> NDArray[np.int64]:
        """Slots that hold an item, the oldest item first."""
        return (self.oldest + np.arange(len(self))) % self.capacity

    @property
    def oldest(self) -> int:
        """Serial number of the oldest item."""
        return max(self.inserted - self.capacity, 0)

    @property
    def lead(self) -> int:
        """Number of the oldest items that are not drawn, because their windows would begin before the oldest row."""
        if not self._reach or (self._padded and self.inserted <= self.capacity):
            return 0
        return self._reach

    # Inserting ------------------------------------------------------------------------------------------------------

    def put(self, n: int, priorities: NDArray[np.floating[Any]] | None = None) -> list[Placement]:
        """Return the slots of `n` new items, of which the oldest beyond `capacity` have none.

        Raises:
            InvalidExperience: `priorities` are not n floats that are finite and at least 0.
        """
        if priorities is not None:
            check_priorities(priorities, n)
        start = self.inserted % self.capacity
        if start + n <= self.capacity:
            self.inserted += n
            return [(slice(start, start + n), EVERY)]
        surplus = max(n - self.capacity, 0)
        start = (self.inserted + surplus) % self.capacity
        until_end = min(n - surplus, self.capacity - start)
        self.inserted += n
        placed: list[Placement] = [(slice(start, start + until_end), slice(surplus, surplus + until_end))]
        if surplus + until_end < n:
            placed.append((slice(n - surplus - until_end), slice(surplus + until_end, n)))
        return placed

    def put_one(self, priority: float | None = None) -> int:
        """Return the slot of one new item.

        Raises:
            InvalidExperience: as for `put`.
        """
        if priority is not None:
            check_priorities(np.array([priority], np.float64), 1)
        slot = self.inserted % self.capacity
        self.inserted += 1
        return slot

    # Drawing --------------------------------------------------------------------------------------------------------

    def draw(self, batch_size: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the slots (B,) of a batch and their importance weights (B,).

        Raises:
            ValueError: there is nothing to draw, or `batch_size` is out of range.
        """
        held, lead = self._check(batch_size)
        weights = np.ones(batch_size, np.float32)
        if self._distinct:
            return rng.choice(held, batch_size, replace=False), weights
        slots = rng.integers(lead, held, batch_size)
        if lead:  # the oldest come first only when they are counted from there
            slots = (self.oldest + slots) % self.capacity
        return slots, weights

    def _check(self, batch_size: int) -> tuple[int, int]:
        """Return the number of items held, and how many of these are not drawn."""
        held, lead = min(self.inserted, self.capacity), self.lead
        n = held - lead
        if self._distinct and not 1 <= batch_size <= n:
            raise ValueError(f"batch_size: expected 1 to {n}, the number of items held, got {batch_size}")
        if batch_size < 1 or n < 1:
            raise ValueError(
                f"batch_size: expected at least 1, and items to draw from, got {batch_size} and {max(n, 0)} items"
            )
        return held, lead

    def drew(self, slots: NDArray[np.int64]) -> None:
        """Note that a batch of `slots` (B,) was drawn and gathered."""

    def generations_of(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the serial numbers (B,) of the items in `slots` (B,); below 0 for an empty slot."""
        newest = self.inserted - 1
        return newest - (newest - slots) % self.capacity

    def update(
        self, indices: NDArray[np.int64], generations: NDArray[np.int64], priorities: NDArray[np.floating[Any]]
    ) -> None:
        """Check new priorities, which uniform draws ignore."""
        check_indices(indices, generations, self.capacity)
        check_priorities(priorities, len(indices))

    # Checkpoints ----------------------------------------------------------------------------------------------------

    def state_arrays(self) -> dict[str, StateArray]:
        """Return the arrays of a checkpoint."""
        return {"inserted": StateArray.of(np.array(self.inserted, np.int64))}

    def held_in(self, reader: ArrayReader) -> int:
        """Return the number of items held by a checkpoint."""
        return min(reader.read_count("inserted"), self.capacity)

    def check_state(self, reader: ArrayReader) -> None:
        """Raise `CheckpointError` unless the arrays could come from `state_arrays`."""

    def load_state(self, reader: ArrayReader) -> None:
        """Load checked arrays."""
        self.inserted = reader.read_count("inserted")

    def clear(self) -> None:
        """Forget all items."""
        self.inserted = 0

    def check_valid(self) -> list[str]:
        """Return one sentence for each inconsistency; none if all is well."""
        return []


class PrioritizedRing(Ring):
    """A ring whose items are drawn by priority, in strata: one item from each of `batch_size` equal shares of the sum.

    Args:
        priorities: priorities of `capacity` items.
        distinct: a batch has at most as many items as are held. An item may still be drawn twice.
        window: as for `Ring`.
    """

    def __init__(self, priorities: Priorities, *, distinct: bool = False, window: Window | None = None) -> None:
        super().__init__(priorities.capacity, distinct=distinct, window=window)
        self.priorities = priorities
        self.stale_updates = 0

    def put(self, n: int, priorities: NDArray[np.floating[Any]] | None = None) -> list[Placement]:
        weights = None if priorities is None else self.priorities.to_weights(priorities, n)
        placed = super().put(n)
        self._add(n, weights)
        if priorities is not None:
            self.priorities.note_max(priorities)
        return placed

    def put_one(self, priority: float | None = None) -> int:
        if priority is not None:
            self.put(1, np.array([priority], np.float64))
        else:
            self.inserted += 1
            self._add(1, None)
        return (self.inserted - 1) % self.capacity

    def _add(self, n: int, weights: NDArray[np.float64] | None) -> None:
        """Give the `n` newest items their weights (n,), or all of them the weight of the largest priority."""
        held = min(n, self.capacity)
        start = (self.inserted - held) % self.capacity
        if weights is None:
            self.priorities.add(start, held)
        else:
            self.priorities.set((start + np.arange(held)) % self.capacity, weights[n - held :])
        self._retire()

    def _retire(self) -> None:
        """Set the weights of items that are no longer drawn to 0."""
        if lead := self.lead:
            self.priorities.clear(self.oldest % self.capacity, min(lead, len(self)))

    def draw(self, batch_size: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        self._check(batch_size)
        slots, importance, _ = self.priorities.draw(batch_size, rng)
        return slots, importance

    def update(
        self, indices: NDArray[np.int64], generations: NDArray[np.int64], priorities: NDArray[np.floating[Any]]
    ) -> None:
        """Set the priorities of items that are still held and drawn; the others are counted in `stale_updates`."""
        check_indices(indices, generations, self.capacity)
        weights = self.priorities.to_weights(priorities, len(indices))
        current = (generations == self.generations_of(indices)) & (generations >= self.oldest + self.lead)
        if not current.all():
            self.stale_updates += int((~current).sum())
            indices, weights, priorities = indices[current], weights[current], priorities[current]
        if len(indices):
            self.priorities.note_max(priorities)
            self.priorities.set(indices, weights)

    def state_arrays(self) -> dict[str, StateArray]:
        stale = {"stale_updates": StateArray.of(np.array(self.stale_updates))}
        return super().state_arrays() | prefixed("priorities", self.priorities.state_arrays(len(self)) | stale)

    def check_state(self, reader: ArrayReader) -> None:
        part = reader.part("priorities")
        part.read_count("stale_updates")
        self.priorities.check_state(part, self.held_in(reader))

    def load_state(self, reader: ArrayReader) -> None:
        super().load_state(reader)
        part = reader.part("priorities")
        self.stale_updates = part.read_count("stale_updates")
        self.priorities.load_state(part, len(self))
        self._retire()

    def clear(self) -> None:
        super().clear()
        self.priorities.clear(0, self.capacity)

    def check_valid(self) -> list[str]:
        wrong = self.priorities.check_valid()
        weights = self.priorities[np.arange(self.capacity)]
        if weights[len(self) :].any():
            wrong.append(f"there is weight beyond the {len(self)} items held: {weights}")
        return wrong


class QueueRing(Ring):
    """A ring as a queue: a batch has the oldest items not drawn yet. Only drawn items make room."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.drawn = 0
        """Number of items that have been drawn, each once; also the serial number of the next one."""

    @property
    def fresh(self) -> int:
        """Items that have not been drawn yet."""
        return self.inserted - self.drawn

    def put(self, n: int, priorities: NDArray[np.floating[Any]] | None = None) -> list[Placement]:
        if self.fresh + n > self.capacity:
            raise BufferFull(
                f"{self.fresh} of {self.capacity} segments wait to be drawn, so that there is no room for {n} more"
            )
        return super().put(n, priorities)

    def draw(self, batch_size: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        if not 1 <= batch_size <= self.fresh:
            raise ValueError(f"batch_size: expected 1 to {self.fresh}, the episodes not drawn yet, got {batch_size}")
        first = self.drawn
        self.drawn += batch_size
        return (first + np.arange(batch_size)) % self.capacity, np.ones(batch_size, np.float32)

    def state_arrays(self) -> dict[str, StateArray]:
        return super().state_arrays() | {"drawn": StateArray.of(np.array(self.drawn))}

    def check_state(self, reader: ArrayReader) -> None:
        reader.read_count("drawn", most=reader.read_count("inserted"))

    def load_state(self, reader: ArrayReader) -> None:
        super().load_state(reader)
        self.drawn = reader.read_count("drawn")
