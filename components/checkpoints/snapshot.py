"""Snapshots: the state of buffers at one moment, written by one thread while others use the buffers."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from numpy.typing import NDArray

from components.checkpoints.array_file import Checkpointed, StateArray, write_checkpoint

PIECE = 1 << 20
"""Bytes copied at a time; an owner that overwrites memory waits for at most one such copy."""


@dataclass(slots=True, eq=False)
class _Piece:
    """Consecutive rows of an array."""

    rows: NDArray[Any] | None
    """None once the rows have been read."""
    own: bool = False
    """True once the rows are a copy."""


class Snapshot:
    """Arrays with the contents that they have when the snapshot is made.

    Announced arrays are copied lazily, piece by piece: one thread may write the snapshot while another uses the owners,
    and the first of the two to reach a piece copies it. All other arrays are copied at once.

    Args:
        arrays: arrays of `owners`, and perhaps others.
        owners: buffers that announce the memory they overwrite. No other snapshot of them is being written.
    """

    def __init__(self, arrays: Mapping[str, StateArray], owners: Sequence[Checkpointed]) -> None:
        self._lock = Lock()
        found: list[tuple[int, int, _Piece]] = []
        self.arrays = {name: self._cut(array, found) for name, array in arrays.items()}
        """The arrays to write, once."""
        found.sort(key=lambda it: it[:2])
        self._begins, self._ends = [it[0] for it in found], [it[1] for it in found]  # addresses; pieces do not overlap
        self._pieces = [it[2] for it in found]
        self._owners, self._over = owners, False
        for owner in owners:
            owner.overwrites = self.keep

    def _cut(self, array: StateArray, found: list[tuple[int, int, _Piece]]) -> StateArray:
        if not array.announced:
            return StateArray(array.dtype, array.shape, [piece.copy() for piece in array.pieces])
        pieces = []
        for memory in array.pieces:
            if not memory.flags.c_contiguous:
                raise ValueError(f"pieces: expected contiguous memory where it is announced, got {memory.strides}")
            step = max(PIECE // max(memory[:1].nbytes, 1), 1)
            for start in range(0, len(memory), step):
                rows = memory[start : start + step]
                pieces.append(_Piece(rows))
                if rows.nbytes:
                    found.append((rows.ctypes.data, rows.ctypes.data + rows.nbytes, pieces[-1]))
        return StateArray(array.dtype, array.shape, self._read(pieces))

    def _read(self, pieces: list[_Piece]) -> Iterator[NDArray[Any]]:
        for piece in pieces:
            with self._lock:
                rows, piece.rows = piece.rows, None
                assert rows is not None
                if not piece.own:
                    rows = rows.copy()
            yield rows

    def keep(self, array: NDArray[Any]) -> None:
        """Copy the unread pieces that share memory with the contiguous `array`."""
        begin = array.ctypes.data
        first, last = bisect_right(self._ends, begin), bisect_left(self._begins, begin + array.nbytes)
        for piece in self._pieces[first:last]:
            with self._lock:
                if piece.rows is not None and not piece.own:
                    piece.rows, piece.own = piece.rows.copy(), True

    def write(self, path: str | Path) -> None:
        """Write the snapshot to a file as `write_checkpoint` does, once; a failed write counts too.

        Raises:
            OSError: the file cannot be written; the file at `path` is unchanged.
            RuntimeError: the snapshot was written before.
        """
        if self._over:
            raise RuntimeError("expected a snapshot that was not written yet; a snapshot is written once")
        self._over = True
        try:
            write_checkpoint(path, self.arrays)
        finally:
            for owner in self._owners:
                if owner.overwrites == self.keep:
                    owner.overwrites = None
