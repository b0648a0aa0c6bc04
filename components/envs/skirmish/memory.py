"""Snapshots of the memory of a batch of battles."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


class BattleMemory:
    """The changing memory of B battles: attributes that are arrays of numbers or records, first axis battles."""

    n_envs: int
    _changing: tuple[str, ...]
    """Names of these attributes."""

    def snapshot(self) -> dict[str, NDArray[Any]] | None:
        """Return copies of all changing arrays, including the random generators, as arrays of numbers.

        The first axis of each is the battle. Records are given as their bytes, uint8 (B, ...).
        """
        return {name: self._plain(name).copy() for name in self._changing}

    def restore(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        """Continue from a snapshot of an environment with the same scenario, B and options.

        Raises:
            ValueError: the snapshot does not fit this environment; nothing is changed.
        """
        for name in self._changing:
            mine = self._plain(name)
            if name not in snapshot or (snapshot[name].shape, snapshot[name].dtype) != (mine.shape, mine.dtype):
                raise ValueError(f"snapshot does not fit {self!r}: {name} must be {mine.dtype} {mine.shape}")
        for name in self._changing:
            self._plain(name)[...] = snapshot[name]

    def _plain(self, name: str) -> NDArray[Any]:
        """Return an array of this environment as numbers, as a view of the same memory."""
        array: NDArray[Any] = getattr(self, name)
        if array.dtype.names is None:
            return array
        return array.view(np.ndarray).view(np.uint8).reshape(self.n_envs, -1)
