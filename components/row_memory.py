"""Memory for rows of frames. Only written rows use memory of the system."""

import mmap
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class RowMemory:
    """An array (rows, frames, …), zero at first, whose pages are allocated when written, and can be given back.

    NumPy requests pages of 2 MiB for large arrays. If rows are seldom full, such pages are mostly empty.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        itemsize = np.dtype(dtype).itemsize
        self._frame_bytes = prod(shape[2:]) * itemsize
        self._row_bytes = shape[1] * self._frame_bytes
        self._pages = mmap.mmap(-1, max(shape[0] * self._row_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.array: NDArray[Any] = np.frombuffer(self._pages, dtype, prod(shape)).reshape(shape)

    def give_back(self, row: int, frame: int) -> None:
        """Give back the pages that contain only frames of `row` from `frame` on. Their contents are undefined then."""
        begin = row * self._row_bytes + frame * self._frame_bytes
        begin = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (row + 1) * self._row_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        if begin < end:
            self._pages.madvise(mmap.MADV_DONTNEED, begin, end - begin)
