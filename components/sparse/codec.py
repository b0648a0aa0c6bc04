"""Sparse arrays of the frames of segments, made and read by compiled loops.

Shapes: E segments, F frames of all of them, G groups of bits of a frame, V values.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.sparse.kernel import LANES
from orchestra import SparseArray

Bits = NDArray[np.uint16]
AT_A_TIME = 1 << 19
"""Numbers that are encoded at a time, 2 MiB: their differences stay in the cache until they are copied."""


@cache
def loops() -> Any:
    """Return the module with the loops of sparse fields, compiled: now, if they were not on this machine yet."""
    from components.sparse.kernel import loops as compiled  # numba, which the plan of a run does not import

    compiled.prepare()
    return compiled


def counts(bits: Bits, pieces: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of differences (E,) of pieces of so many rows, (E,), according to their bits (F, G)."""
    kernel, found = loops(), np.empty(len(pieces), np.int64)
    kernel.count(kernel.read_only(bits), pieces, found)
    return found


def dense(
    array: SparseArray, empty: Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]] = np.empty
) -> NDArray[Any]:
    """Return the same as `SparseArray.dense`, for numbers of 4 bytes, and faster.

    Args:
        array: the sparse array.
        empty: returns an array of that shape and dtype with arbitrary contents, which is filled.

    Raises:
        ValueError: a piece has fewer or more differences than bits that are set.
    """
    if array.array is not None:
        return array.array
    kernel, n, rows = loops(), prod(array.shape[1:]), np.array(array.pieces, np.int64)
    n_values = counts(array.bits, rows)
    if (told := tuple(n_values.tolist())) != array.counts:
        raise ValueError(f"expected counts as bits are set in the pieces, {told}, got {array.counts}")
    out, first = empty(array.shape, array.dtype), np.cumsum(rows) - rows
    segments = np.array([first, first, np.cumsum(n_values) - n_values, np.zeros_like(first), rows], np.int64).T
    kernel.decode(
        kernel.read_only(array.bits),
        kernel.read_only(array.values).view(np.uint32),
        np.ascontiguousarray(segments),
        np.zeros(n, np.uint32),
        out.reshape(len(out), n).view(np.uint32),
    )
    out.flags.writeable = False
    array.array = out
    return out


def mismatch(array: SparseArray, shape: tuple[int, ...], dtype: np.dtype[Any], pieces: tuple[int, ...]) -> str:
    """Return what is expected and was given if an array has another shape, dtype or pieces; empty if it has these.

    Bits and values have to fit each other, too.
    """
    if array.shape != shape or array.dtype != dtype:
        return f"expected {dtype} of shape {shape}, got {array.dtype} of shape {array.shape}"
    if array.pieces != pieces:
        return f"expected pieces of {pieces} rows, as the segments, got {array.pieces}"
    if (told := tuple(counts(array.bits, np.array(pieces, np.int64)).tolist())) != array.counts:
        return f"expected counts as bits are set in the pieces, {told}, got {array.counts}"
    if (n := prod(shape[1:])) % LANES and (array.bits[:, -1] >> n % LANES).any():
        return f"expected no bits beyond the {n} numbers of a row"
    return ""


class Encoder:
    """Makes the differences of the frames of a field.

    Args:
        item: shape of a frame.
        dtype: of a number, 4 bytes wide.
    """

    def __init__(self, item: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.item, self.dtype = item, dtype
        self._n = prod(item)
        self.groups = -(-self._n // LANES)
        """G."""
        self._values = np.empty(0, np.uint32)
        self._nothing = np.zeros(self._n, np.uint32)
        self._nothing.flags.writeable = False

    def encode(
        self, frames: NDArray[Any], first: NDArray[np.int64], counts: NDArray[np.int64], bits: Bits
    ) -> Iterator[tuple[slice, NDArray[Any], NDArray[np.int64]]]:
        """Fill `bits` with those of segments, some segments at a time.

        Args:
            frames: (…, *item), contiguous.
            first: (E,), the first frame of each segment.
            counts: (E,), its frames.
            bits: (F, G), filled.

        Yields:
            which segments, their values (V,), valid until the next ones, and the number of values of each (E,).
        """
        kernel = loops()
        numbers = kernel.read_only(frames).reshape(-1, self._n).view(np.uint32)
        for some, rows in self._chunks(counts.tolist()):
            if len(self._values) < (room := (rows.stop - rows.start) * self._n + LANES):
                self._values = np.empty(room, np.uint32)
            items = np.array([first[some], counts[some]]).T.copy()
            kernel.encode(numbers, items, self._nothing, bits[rows], self._values)
            n_values = items[:, 1]
            yield some, self._values[: int(n_values.sum())].view(self.dtype), n_values

    def _chunks(self, counts: Sequence[int]) -> Iterator[tuple[slice, slice]]:
        """Return which segments are encoded at a time, and their frames: `AT_A_TIME` numbers, or one segment."""
        begin = first = row = 0
        for i, n in enumerate(counts):
            if i > begin and (row + n - first) * self._n > AT_A_TIME:
                yield slice(begin, i), slice(first, row)
                begin, first = i, row
            row += n
        yield slice(begin, len(counts)), slice(first, row)
