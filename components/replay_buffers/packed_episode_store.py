"""Episodes that leave in the order of insertion, stored without padding. Shapes are those of `episode_store`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.checkpoints.array_file import ArrayReader, StateArray
from components.envs.base import EnvSpec
from components.experience import ExperienceSchema
from components.growing_array import GrowingArray
from components.replay_buffers.episode_store import EpisodeStore, schema_of
from components.replay_buffers.sparse_ring import SparseRing
from components.replay_buffers.storage import Overwrites

FIRST_EPISODES = 32
"""Number of full-length episodes for which a packed store allocates memory at first."""


class PackedEpisodeStore(EpisodeStore):
    """Memory for episodes that leave in the order of insertion; its size follows their real lengths.

    The frames of all episodes lie back to back in one ring, which is extended by a quarter while it is too small
    for `capacity` episodes. Of sparse fields only bits lie there; a `SparseRing` has the values. On a disk, space for
    `capacity` full-length episodes is allocated at once.

    Args:
        spec: as for `EpisodeStore`.
        capacity: slots.
        folder: as for `allocate`.
    """

    def __init__(self, spec: EnvSpec | ExperienceSchema, capacity: int, *, folder: str | Path | None = None) -> None:
        self._growing: dict[str, GrowingArray] = {}
        first = capacity if folder is not None else min(capacity, FIRST_EPISODES)
        super().__init__(spec, capacity, folder=folder, n_frames=first * (schema_of(spec).limit + 1))

    def _allocate(self, n_frames: int) -> dict[str, NDArray[Any]]:
        if self._folder is not None:
            return super()._allocate(n_frames)
        if not self._growing:
            self._growing = {name: GrowingArray(*stored) for name, stored in self._stored.items()}
        return {name: growing.extended(n_frames) for name, growing in self._growing.items()}

    def release(self) -> None:
        super().release()
        self._growing = {}

    def _sparse_rings(self) -> dict[str, SparseRing]:
        return {
            name: SparseRing(*self.items[name], self.capacity, self.limit + 1, self._folder)
            for name in self.schema.sparse
        }

    def _place(self, slots: Sequence[int], n_frames: Sequence[int]) -> list[int]:
        leaving = self.lengths[slots]
        self._space.give_back(int(leaving.sum()) + int(np.count_nonzero(leaving)))
        needed, size = self._space.used + sum(n_frames), self._space.size
        if needed > size:
            # The head passes over the whole ring, so unneeded frames cost memory, too.
            self.arrays = {}  # with a reference to it, an array would be copied
            size = max(needed, min(size + size // 4, self.capacity * (self.limit + 1)))
            self.arrays = self._allocate(size)
            self._space.extend(size, self.arrays.values())
        return self._space.take(slots, n_frames)

    def _frame_arrays(self, slots: NDArray[np.int64]) -> dict[str, StateArray]:
        used = int(self.lengths[slots].sum()) + len(slots)
        parts = self._space.parts(int(self._space.starts[slots[0]]) if used else 0, used)
        return {
            name: StateArray.of(*(array[part] for part in parts), announced=True) for name, array in self.arrays.items()
        }

    def load_state(self, reader: ArrayReader, slots: NDArray[np.int64], overwrites: Overwrites) -> None:
        self._space.clear()
        super().load_state(reader, slots, overwrites)

    def _loaded_rows(self, slots: NDArray[np.int64]) -> slice:
        return slice(self._space.used)

    def check_valid(self, slots: NDArray[np.int64]) -> list[str]:
        return super().check_valid(slots) + self._space.check_valid(slots, self.lengths[slots].astype(np.int64) + 1)
