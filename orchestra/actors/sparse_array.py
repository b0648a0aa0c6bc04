"""Sparse arrays: rows of which most numbers are zero or as in the row before, held as differences."""

from collections.abc import Mapping
from itertools import compress, pairwise
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from orchestra.actors import lazy_numpy as np

GROUP = 16
"""Numbers of a row whose bits are one entry of `SparseArray.bits`."""
_PARTS = ("bits", "values", "shape", "pieces", "counts")


class SparseArray:
    """An array in the place of one of `Arrays`, as the differences between its rows.

    The array consists of pieces, such as episodes: rows that are read without those before them. The first row of a
    piece differs from zeros, each other row from the row before. A difference is the exclusive or of both numbers'
    bits, so that every number is restored bit for bit, -0.0 and NaN, too.

    Args:
        bits: (rows, groups) uint16: bit j of group g tells whether number 16 g + j of a row differs.
        values: (differences,), row after row, in the dtype of the array.
        shape: shape of the array, with its rows.
        pieces: rows of each piece.
        counts: differences of each piece.

    Raises:
        ValueError: a part does not fit the others. The bits are compared with the counts by `dense`.
    """

    __slots__ = ("array", "bits", "counts", "pieces", "shape", "values")

    def __init__(
        self,
        bits: "NDArray[np.uint16]",
        values: "NDArray[Any]",
        shape: tuple[int, ...],
        pieces: tuple[int, ...],
        counts: tuple[int, ...],
    ) -> None:
        self.bits, self.values = bits, values
        self.shape, self.pieces, self.counts = tuple(shape), tuple(pieces), tuple(counts)
        self.array: NDArray[Any] | None = None
        """The array, read-only, if it was made from the differences before. It does not travel."""
        if not (isinstance(bits, np.ndarray) and isinstance(values, np.ndarray) and values.ndim == 1):
            raise ValueError(f"a sparse array: expected arrays of bits and of values, got {bits!r:.40}, {values!r:.40}")
        expected = (self.shape[0], -(-prod(self.shape[1:]) // GROUP)) if self.shape else ()
        if bits.dtype != np.uint16 or bits.shape != expected:
            raise ValueError(
                f"a sparse array of shape {self.shape}: expected bits uint16{expected}, got {bits.dtype}{bits.shape}"
            )
        if min(self.pieces, default=1) < 1 or sum(self.pieces) != len(bits):
            raise ValueError(
                f"a sparse array of {len(bits)} rows: expected as many in pieces of 1 or more, got {self.pieces}"
            )
        if len(self.counts) != len(self.pieces) or min(self.counts, default=0) < 0 or sum(self.counts) != len(values):
            raise ValueError(
                f"a sparse array of {len(self.pieces)} pieces with {len(values)} differences: expected as many in "
                f"counts of 0 or more, got {self.counts}"
            )

    @property
    def dtype(self) -> Any:
        """The dtype of the array."""
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the differences."""
        return int(self.bits.nbytes + self.values.nbytes)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.bits)

    def dense(self) -> "NDArray[Any]":
        """Return the array, read-only; it is made when it is first read.

        Raises:
            ValueError: a piece has fewer or more differences than bits that are set.
        """
        if self.array is not None:
            return self.array
        n, rows = prod(self.shape[1:]), len(self.bits)
        differ = np.unpackbits(np.ascontiguousarray(self.bits).view(np.uint8), axis=1, count=n, bitorder="little")
        ends = np.cumsum(np.array(self.pieces, np.int64))
        told = np.add.reduceat(np.count_nonzero(differ, axis=1), ends - self.pieces).tolist() if rows else []
        if told != list(self.counts):
            raise ValueError(f"expected counts as bits are set in the pieces, {told}, got {self.counts}")
        whole = np.dtype(f"u{self.dtype.itemsize}")
        numbers = np.zeros((rows, n), whole)
        numbers[differ.view(np.bool_)] = np.ascontiguousarray(self.values).view(whole)
        for begin, end in pairwise([0, *ends.tolist()]):
            np.bitwise_xor.accumulate(numbers[begin:end], axis=0, out=numbers[begin:end])
        self.array = numbers.view(self.dtype).reshape(self.shape)
        self.array.flags.writeable = False
        return self.array

    def since(self, piece: int) -> "SparseArray":
        """Return the pieces from number `piece` on."""
        if not piece:
            return self
        first, n = sum(self.pieces[:piece]), sum(self.counts[:piece])
        shape = (len(self) - first, *self.shape[1:])
        return SparseArray(self.bits[first:], self.values[n:], shape, self.pieces[piece:], self.counts[piece:])

    def select(self, pieces: "NDArray[np.bool_]") -> "SparseArray":
        """Return the pieces chosen by a mask, with arrays that are read-only."""
        bits, values = self.bits[np.repeat(pieces, self.pieces)], self.values[np.repeat(pieces, self.counts)]
        bits.flags.writeable = values.flags.writeable = False
        sizes = (tuple(compress(each, pieces.tolist())) for each in (self.pieces, self.counts))
        return SparseArray(bits, values, (len(bits), *self.shape[1:]), *sizes)

    def record(self) -> dict[str, Any]:
        """Return the parts by name, as they travel and as a trace holds them."""
        return {name: getattr(self, name) for name in _PARTS}

    def replaced(self, **parts: Any) -> "SparseArray":
        """Return the same with other parts, such as digests in the place of arrays; nothing is checked."""
        made = object.__new__(SparseArray)
        made.array = None
        for name, part in {**self.record(), **parts}.items():
            setattr(made, name, part)
        return made

    def __repr__(self) -> str:
        return f"SparseArray({self.dtype}{list(self.shape)}, {len(self.values)} differences)"


def is_record(value: Any) -> bool:
    """Return whether a value is what `SparseArray.record` returns."""
    return isinstance(value, Mapping) and len(value) == len(_PARTS) and all(name in value for name in _PARTS)


def opened(value: Any) -> Any:
    """Return a recorded value with arrays in the place of the records of sparse arrays whose parts are there."""
    if is_record(value):
        there = isinstance(value["bits"], np.ndarray) and isinstance(value["values"], np.ndarray)
        return SparseArray(**value).dense() if there else value
    if isinstance(value, dict):
        return {name: opened(item) for name, item in value.items()}
    return type(value)(opened(item) for item in value) if isinstance(value, list | tuple) else value
