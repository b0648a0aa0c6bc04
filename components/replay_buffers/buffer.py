"""Replay buffers: a store of items, and an index of its slots that selects items to draw and to remove."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from components.checkpoints.array_file import ArrayReader, Checkpointed, StateArray
from components.replay_buffers.closed import Closable
from components.replay_buffers.episode_store import EpisodeStore
from components.replay_buffers.federated import ClientSample
from components.replay_buffers.priorities import Priorities, WeightOptions
from components.replay_buffers.ranks import RankedPriorities
from components.replay_buffers.ring import PrioritizedRing, Ring
from components.replay_buffers.rows import RowStore
from components.replay_buffers.slots import Slots

StoreT = TypeVar("StoreT", bound=RowStore | EpisodeStore)
IndexT = TypeVar("IndexT", bound=Ring | Slots)

Read = Callable[[NDArray[np.int64], NDArray[np.int64]], dict[str, NDArray[Any]]]
"""A function that returns copies of the items in some slots (n,), of some generations (n,), by field."""

Variant = Literal["proportional", "rank"]
"""Source of an item's weight: its priority, or the rank of its priority among all."""


class Buffer(Closable, Checkpointed, Generic[StoreT, IndexT]):
    """A store and an index of the same slots.

    Args:
        index: selects the slots to fill, to draw and to empty.
        store: memory of the items.
    """

    def __init__(self, index: IndexT, store: StoreT) -> None:
        self._index: IndexT = index
        self._store: StoreT = store
        self.capacity = index.capacity
        """Largest number of items held."""

    def __len__(self) -> int:
        """Return the number of items held."""
        return len(self._index)

    @property
    def inserted(self) -> int:
        """Items inserted so far, removed ones included."""
        return self._index.inserted

    @property
    def stale_updates(self) -> int:
        """Items that were passed to `update` or `remove` after they had left the buffer; they are ignored."""
        return self._index.stale_updates

    @property
    def n_bytes(self) -> int:
        """Bytes of memory for items; the system provides only the part that has been written."""
        return self._store.n_bytes

    def update(
        self,
        indices: NDArray[np.int64],  # (B,)
        generations: NDArray[np.int64],  # (B,)
        priorities: NDArray[np.floating[Any]],  # (B,)
    ) -> None:
        """Set the priorities of sampled items; for an item named twice the last one counts. Uniform draws ignore them.

        Items that are gone, or whose window is partly overwritten, are left out and counted in `stale_updates`.

        Raises:
            InvalidExperience: a shape or dtype is wrong, an index is out of range, or a priority is negative, not
                finite, or so large that sums would overflow. Nothing has changed then.
        """
        self._index.update(indices, generations, priorities)

    @property
    @abstractmethod
    def _slots(self) -> Any:
        """Slots that hold an item, in the form that the store needs for a checkpoint."""

    def _state_arrays(self) -> dict[str, StateArray]:
        capacity = {"capacity": StateArray.of(np.array(self.capacity, np.int64))}
        return capacity | self._index.state_arrays() | self._store.state_arrays(self._slots)

    def _check_state(self, reader: ArrayReader) -> None:
        reader.expect_value("capacity", self.capacity)
        self._store.check_state(reader, self._index.held_in(reader))
        self._index.check_state(reader)

    def _load_state(self, reader: ArrayReader) -> None:
        self._index.load_state(reader)
        try:
            self._store.load_state(reader, self._slots, self.overwrites)
        except BaseException:
            self._index.clear()  # partly read items are not held
            raise

    def _release(self) -> None:
        self._store.release()

    def check_valid(self) -> list[str]:
        """Return one sentence for each inconsistency; none if all is well."""
        return self._index.check_valid()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self)}/{self.capacity} items>"


# Drawn by priority ----------------------------------------------------------------------------------------------------


class PriorityOptions(WeightOptions, total=False):
    """Keywords of the buffers that draw by priority."""

    variant: Variant


def make_priorities(
    capacity: int, *, variant: Variant = "proportional", **options: Unpack[WeightOptions]
) -> Priorities:
    """Return `Priorities`, or `RankedPriorities` for the variant `rank`, which has no `epsilon` and a `decay` of 1.

    Raises:
        ValueError: an argument is out of its range.
    """
    if variant not in ("proportional", "rank"):
        raise ValueError(f"variant: expected proportional or rank, got {variant!r}")
    if variant == "proportional":
        return Priorities(capacity, **options)
    if (decay := options.get("decay", 1.0)) != 1.0:
        raise ValueError(f"decay: expected 1 with ranks, which a draw does not change, got {decay}")
    alpha, beta = options.get("alpha", 0.6), options.get("beta", 0.4)
    return RankedPriorities(capacity, alpha=alpha, beta=beta, normalize=options.get("normalize", "batch"))


class Prioritized:
    """Additional methods of buffers that draw by priority: `priorities`, and samples for a `FederatedReplay`."""

    _index: PrioritizedRing

    @property
    def priorities(self) -> Priorities:
        """Weights by which items are drawn."""
        return self._index.priorities

    @property
    def beta(self) -> float:
        """Strength of the correction by importance weights, in [0, 1]; it may be set between two samples."""
        return self.priorities.beta

    @beta.setter
    def beta(self, beta: float) -> None:
        if not 0.0 <= beta <= 1.0:
            raise ValueError(f"beta: expected a number in [0, 1], got {beta}")
        self.priorities.beta = beta

    @property
    def max_priority(self) -> float:
        """Largest priority given so far, with which new items enter; 1 until one is larger."""
        return self.priorities.largest

    def share(self, size: int, rng: np.random.Generator) -> ClientSample:
        """Draw `size` items in proportion to their weights, to be pushed to a `FederatedReplay`.

        With no weight left, or a `size` of 0, the sample has no items and only says how much is held.

        Raises:
            ValueError: `size` is negative.
        """
        return self._share(size, rng, self._read)

    def _share(self, size: int, rng: np.random.Generator, read: Read) -> ClientSample:
        if size < 0:
            raise ValueError(f"size: expected at least 0, got {size}")
        self.priorities.refresh()
        index = self._index
        total, held = self.priorities.total, len(index)
        if not (total > 0 and size):
            none = np.zeros(0, np.int64)
            return ClientSample({}, none, none, np.zeros(0), total, held, index.inserted)
        slots, _, weights = self.priorities.draw(size, rng)
        # Strata come in order. Shuffled, so that the first items alone are also drawn by weight.
        order = rng.permutation(size)
        slots, weights = slots[order], weights[order]
        generations = index.generations_of(slots)
        return ClientSample(read(slots, generations), slots, generations, weights, total, held, index.inserted)

    @abstractmethod
    def _read(self, slots: NDArray[np.int64], generations: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return copies of the items in `slots` (n,), of `generations` (n,), by field."""


# Tables ---------------------------------------------------------------------------------------------------------------


class Table:
    """Additional methods of tables: `slots`, and removal of items."""

    _index: Slots

    @property
    def slots(self) -> Slots:
        """The slots: which hold an item, and how often each was drawn."""
        return self._index

    def remove(self, indices: NDArray[np.int64], generations: NDArray[np.int64]) -> None:
        """Remove sampled items (B,); items already removed are counted in `stale_updates`.

        Raises:
            InvalidExperience: a shape or dtype is wrong, or an index is out of range. Nothing has changed then.
        """
        self.slots.remove(indices, generations)
