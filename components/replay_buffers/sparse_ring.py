"""Memory for one field of frames of which most numbers are zero, or as in the frame before: a ring of the differences.

The bits that tell which numbers of a frame differ lie beside the other arrays of frames (`components/sparse`).

Shapes: F frames, G groups of bits of a frame, V values, E segments.
"""

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.checkpoints.array_file import ArrayReader, CheckpointError, StateArray
from components.growing_array import GrowingArray
from components.replay_buffers.ring_space import RingSpace
from components.replay_buffers.segments import begins, copy_segments
from components.replay_buffers.storage import Overwrites, allocate, announce
from components.sparse import Encoder, loops
from components.sparse.kernel import LANES
from orchestra import SparseArray

Bits = NDArray[np.uint16]


class SparseRing:
    """The differences between frames of one field, for the episodes of a buffer, which leave in the order of insertion.

    Memory follows their number: it is extended by a quarter while it is too small. On a disk, space for full-length
    episodes in which every number changes is allocated at once.

    Args:
        item: shape of a frame.
        dtype: of a number, 4 bytes wide.
        slots: number of episodes.
        frames: frames of the longest episode.
        folder: as for `allocate`.
    """

    def __init__(
        self, item: tuple[int, ...], dtype: np.dtype[Any], slots: int, frames: int, folder: str | Path | None
    ) -> None:
        self.item, self.dtype, self._n = item, dtype, prod(item)
        self._encoder = Encoder(item, dtype)
        self.groups = self._encoder.groups
        """G."""
        self._most = slots * frames * self._n
        self._growing = None if folder is not None else GrowingArray((), dtype)
        first = self._most if folder is not None else frames * self._n
        self.values = self._allocate(first, folder)
        """The ring, (V,)."""
        self._space = RingSpace(slots, first)
        self._counts = np.zeros(slots, np.int64)
        self._before = np.zeros(self._n, np.uint32)

    def _allocate(self, n: int, folder: str | Path | None = None) -> NDArray[Any]:
        return allocate((n,), self.dtype, folder) if self._growing is None else self._growing.extended(n)

    def write(
        self,
        slots: Sequence[int],
        frames: NDArray[Any] | SparseArray,
        counts: Sequence[int],
        overwrites: Overwrites,
    ) -> Bits:
        """Write episodes to slots, in place of the oldest ones, which those slots have; return their bits (F, G).

        Args:
            slots: the slots.
            frames: (F, *item), back to back.
            counts: the frames of each episode.
            overwrites: as for `EpisodeStore.write`.
        """
        if isinstance(frames, SparseArray):
            self._append(slots, frames.values, np.array(frames.counts, np.int64), overwrites)
            return frames.bits
        bits = np.empty((len(frames), self.groups), np.uint16)
        n_frames = np.array(counts, np.int64)
        for some, values, n_values in self._encoder.encode(frames, begins(n_frames), n_frames, bits):
            self._append(slots[some], values, n_values, overwrites)
        return bits

    def _append(
        self, slots: Sequence[int], values: NDArray[Any], n_values: NDArray[np.int64], overwrites: Overwrites
    ) -> None:
        """Copy the values (V,) of new episodes to the ring, so many of each."""
        start = self._take(slots, n_values.tolist())[0]
        parts = self._space.parts(start, len(values))
        if overwrites is not None:
            announce(overwrites, [self.values], *parts)
        copied = 0
        for part in parts:
            into = self.values[part]
            into[:] = values[copied : copied + len(into)]
            copied += len(into)

    def _take(self, slots: Sequence[int], counts: Sequence[int]) -> list[int]:
        """Take places for `counts` values of the new episodes of slots; return the first of each.

        The ring is extended if it has not as many places.
        """
        self._space.give_back(int(self._counts[slots].sum()))
        self._counts[slots] = counts
        needed, size = self._space.used + sum(counts), self._space.size
        if needed > size:
            self.values = np.empty(0, self.dtype)  # with a reference to it, the array would be copied
            self.values = self._allocate(max(needed, min(size + size // 4, self._most)))
            self._space.extend(len(self.values), [self.values])
        return self._space.take(slots, counts)

    def read(
        self,
        bits: Bits,
        starts: NDArray[np.int64],
        slots: NDArray[np.int64],
        firsts: NDArray[np.int64],
        counts: NDArray[np.int64],
        to: NDArray[np.int64],
        out: NDArray[Any],
    ) -> None:
        """Fill rows of `out` with frames of episodes.

        Args:
            bits: (…, G), the bits of all frames, a ring.
            starts: (E,), rows of `bits` where the episodes begin.
            slots: (E,), their slots.
            firsts: (E,), the first frame wanted of each.
            counts: (E,), how many frames are wanted.
            to: (E,), the first row of each in `out`.
            out: (…, *item), contiguous.
        """
        kernel, segments = loops(), np.array([to, starts, self._space.starts[slots], firsts, counts]).T
        numbers = out.reshape(len(out), self._n).view(np.uint32)
        values = kernel.read_only(self.values).view(np.uint32)
        kernel.decode(kernel.read_only(bits), values, np.ascontiguousarray(segments), self._before, numbers)

    def copy(self, slots: NDArray[np.int64], counts: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Fill `out` (V,) with the first `counts` (E,) values of the episodes in `slots` (E,), back to back."""
        copy_segments(self.values, out, self._space.corners(self._space.starts[slots], counts, begins(counts)))

    # Checkpoints ----------------------------------------------------------------------------------------------------

    def state_array(self, slots: NDArray[np.int64]) -> StateArray:
        """Return the values of the episodes in `slots` (n,), which were inserted in this order."""
        with_values = slots[self._counts[slots] > 0]
        start = int(self._space.starts[with_values[0]]) if len(with_values) else 0
        parts = self._space.parts(start, int(self._counts[slots].sum()))
        return StateArray.of(*(self.values[part] for part in parts), announced=True)

    def check_state(self, reader: ArrayReader, name: str, bits: Bits) -> None:
        """Raise `CheckpointError` unless an array could come from `state_array`, of frames with these `bits` (F, G)."""
        if (bits[:, -1].astype(np.int64) >> (self._n - (self.groups - 1) * LANES)).any():
            raise CheckpointError(f"{name}: expected no bits beyond the {self._n} numbers of a frame")
        reader.expect(name, self.dtype, (int(np.bitwise_count(bits).sum(dtype=np.int64)),))

    def load_state(
        self,
        reader: ArrayReader,
        name: str,
        slots: NDArray[np.int64],
        counts: NDArray[np.int64],
        overwrites: Overwrites,
    ) -> None:
        """Load a checked array into `slots` (n,), of `counts` (n,) values each; all other episodes are gone."""
        self._space.clear()
        self._counts[:] = 0
        self._take(slots.tolist(), counts.tolist())
        used = self._space.used
        if overwrites is not None:
            announce(overwrites, [self.values], slice(used))
        self.values[:used] = reader.read(name, self.dtype, (used,))

    def check_valid(self, slots: NDArray[np.int64], counts: NDArray[np.int64]) -> list[str]:
        """Return one sentence for each inconsistency of the episodes in `slots` (n,), oldest first.

        Args:
            slots: all slots that hold an episode.
            counts: (n,), the number of values of each according to its bits.
        """
        wrong = self._space.check_valid(slots, self._counts[slots])
        if (self._counts[slots] != counts).any():
            wrong.append(f"the bits are those of {counts} values, {self._counts[slots]} are held")
        return wrong
