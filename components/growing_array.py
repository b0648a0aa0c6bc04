"""Arrays that are extended without copying."""

import mmap
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class GrowingArray:
    """Rows in memory that can be extended: the system moves the pages, without copying or clearing them again.

    Args:
        item: shape of a row.
        dtype: of a row.
        huge: False for no pages of 2 MiB, of which the last may be mostly empty.
    """

    HUGE = 4 << 20
    """Smallest size in bytes for which pages of 2 MiB are requested, as in NumPy."""

    def __init__(self, item: tuple[int, ...], dtype: DTypeLike, *, huge: bool = True) -> None:
        self._item, self._dtype, self._huge = item, np.dtype(dtype), huge
        self._mapped: mmap.mmap | None = None

    def extended(self, rows: int) -> NDArray[Any]:
        """Return an array of `rows` rows that begins with the rows of the last returned array.

        If anything still refers to the last array, it stays unchanged and its rows are copied. `rows` never decreases.
        """
        n_bytes = max(rows * self._dtype.itemsize * prod(self._item), 1)
        mapped = self._mapped
        if mapped is not None:
            try:
                mapped.resize(n_bytes)
            except (BufferError, SystemError):  # still referenced, or the system cannot move pages
                mapped = None
        if mapped is None:
            mapped = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if self._mapped is not None:
                mapped.write(self._mapped)
        if self._huge and n_bytes >= self.HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            mapped.madvise(mmap.MADV_HUGEPAGE)
        self._mapped = mapped
        whole = np.frombuffer(mapped, np.uint8)
        return whole[: rows * self._dtype.itemsize * prod(self._item)].view(self._dtype).reshape(rows, *self._item)
