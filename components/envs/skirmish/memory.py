"""The memory of a batch of battles, as a snapshot holds it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


class BattleMemory:
    """What changes in B battles: arrays of numbers and of records, attributes whose first axis is that of battles."""

    n_envs: int
    _changing: tuple[str, ...]
    """Names of these attributes."""

    def snapshot(self) -> dict[str, NDArray[Any]] | None:
        """Return copies of everything that changes, its random generators included, as arrays of numbers.

        The first axis of each is that of the battles. Records are given as their bytes, uint8 (B, ...).
        """
        return {name: self._plain(name).copy() for name in self._changing}

    def restore(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        """Go on from a snapshot of an environment with the same scenario, B and options.

        Raises:
            ValueError: it is the snapshot of something else; nothing has been changed then.
        """
        for name in self._changing:
            mine = self._plain(name)
            if name not in snapshot or (snapshot[name].shape, snapshot[name].dtype) != (mine.shape, mine.dtype):
                raise ValueError(f"snapshot does not fit {self!r}: {name} must be {mine.dtype} {mine.shape}")
        for name in self._changing:
            self._plain(name)[...] = snapshot[name]

    def _plain(self, name: str) -> NDArray[Any]:
        """Return an array of this environment as numbers: the same memory."""
        array: NDArray[Any] = getattr(self, name)
        if array.dtype.names is None:
            return array
        return array.view(np.ndarray).view(np.uint8).reshape(self.n_envs, -1)
