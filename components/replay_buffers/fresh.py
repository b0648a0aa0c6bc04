"""Episodes for algorithms that learn from their present policy: each is drawn once, the oldest first."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from components.checkpoints.array_file import ArrayReader, StateArray
from components.replay_buffers.episodes import EpisodeReplay

if TYPE_CHECKING:  # it brings a compiler along
    from components.envs.base import EnvSpec


class FreshEpisodes(EpisodeReplay):
    """A queue of episodes: a batch is the oldest that have not been drawn yet, and they are all that may be asked for.

    What waits too long is dropped.

    Args:
        spec: sizes of the environment.
        capacity: episodes held at most, drawn or not; the oldest go first.
        folder: as for `EpisodeReplay`.
    """

    state_kind = "FreshEpisodes"

    def __init__(self, spec: "EnvSpec", capacity: int, *, folder: str | Path | None = None) -> None:
        super().__init__(spec, capacity, folder=folder)
        self._next = 0  # how many came before the next to be drawn
        self.dropped = 0
        """Episodes that had to make room before they were drawn."""

    @property
    def fresh(self) -> int:
        """Episodes that have not been drawn yet."""
        return self.inserted - max(self._next, self.inserted - len(self))

    def _pick(self, batch_size: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        if not 1 <= batch_size <= self.fresh:
            raise ValueError(f"batch_size: expected 1 to {self.fresh}, the episodes not drawn yet, got {batch_size}")
        return self._draw(batch_size, rng)

    def _draw(self, batch_size: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        first = self.inserted - self.fresh
        self.dropped += first - self._next
        self._next = first + batch_size
        return (first + np.arange(batch_size)) % self.capacity, np.ones(batch_size, np.float32)

    def _state_arrays(self) -> dict[str, StateArray]:
        books = {"next": StateArray.of(np.array(self._next)), "dropped": StateArray.of(np.array(self.dropped))}
        return super()._state_arrays() | books

    def _check_state(self, reader: ArrayReader) -> None:
        super()._check_state(reader)
        reader.read_count("next", most=reader.read_count("inserted"))
        reader.read_count("dropped")

    def _load_state(self, reader: ArrayReader) -> None:
        super()._load_state(reader)
        self._next, self.dropped = reader.read_count("next"), reader.read_count("dropped")
