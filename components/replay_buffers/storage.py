"""Storage for items, in memory or in files mapped from a disk, and memory for batches."""

import mmap
import os
import sys
from collections.abc import Callable, Iterable
from math import prod
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

LINE = 64
"""Bytes of a cache line. Copied arrays are aligned to it: otherwise copying takes a quarter longer."""


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array of that shape and dtype with arbitrary contents, aligned to a cache line."""
    n_bytes = prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(n_bytes + LINE, np.uint8)
    first = -memory.ctypes.data % LINE
    return memory[first : first + n_bytes].view(dtype).reshape(shape)


def allocate(shape: tuple[int, ...], dtype: DTypeLike, folder: str | Path | None) -> NDArray[Any]:
    """Return an array of that shape and dtype with arbitrary contents; on the disk of `folder` if one is given.

    The file is unnamed, so it disappears with the last process that uses it. Its space is allocated at once: a disk
    that fills up later would kill the process instead of raising an error. The system keeps pages in memory while it
    has free memory.

    Raises:
        OSError: there is no such folder, or too little space in it; the message says how much is needed.
    """
    if folder is None:
        return empty(shape, dtype)
    n_bytes = max(prod(shape) * np.dtype(dtype).itemsize, 1)
    with TemporaryFile(dir=folder) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, n_bytes)
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror}: {n_bytes:,} bytes are needed", str(folder)) from error
        mapped = mmap.mmap(file.fileno(), n_bytes)
    return np.frombuffer(mapped, np.uint8)[: prod(shape) * np.dtype(dtype).itemsize].view(dtype).reshape(shape)


Overwrites = Callable[[NDArray[Any]], None] | None
"""The function that is called before memory is overwritten, or None; see `Checkpointed.overwrites`."""

Block = tuple[NDArray[np.uint8], int]
"""Memory, and the index of its first byte that is aligned to a cache line."""


def announce(overwrites: Callable[[NDArray[Any]], None], arrays: Iterable[NDArray[Any]], *rows: slice) -> None:
    """Tell `overwrites` which rows of arrays will be overwritten next; see `Checkpointed.overwrites`."""
    for array in arrays:
        for part in rows:
            overwrites(array[part])


def _references(blocks: list[Block], i: int) -> int:
    block = blocks[i][0]
    return sys.getrefcount(block)


IDLE = _references([(np.empty(1, np.uint8), 0)], 0)
"""Reference count of a block to which only a `BatchMemory` refers."""


class BatchMemory:
    """Memory for the arrays of batches. A large block is reused once nothing refers to the batch in it.

    The system clears new pages, which takes about as long as filling them. Views of an array and all other objects that
    share its memory refer to its block, so no object can see a block that is reused.
    """

    LEAST = 128 << 10
    """Smallest size in bytes of an array whose memory is reused."""
    MOST = 4
    """Largest number of blocks kept for one field."""

    def __init__(self) -> None:
        self._blocks: dict[str, list[Block]] = {}

    def empty(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], room: int = 0) -> NDArray[Any]:
        """Return an array with arbitrary contents for the field `name`, in a block of at least `room` bytes."""
        n_bytes = prod(shape) * dtype.itemsize
        if n_bytes < self.LEAST:
            return np.empty(shape, dtype)
        blocks = self._blocks.setdefault(name, [])
        for i in range(len(blocks)):
            block, first = blocks[i]
            if len(block) >= n_bytes + LINE and _references(blocks, i) == IDLE + 1:  # `block` is one
                block.setflags(write=True)
                break
        else:
            block = np.empty(max(n_bytes, room) + LINE, np.uint8)
            first = -block.ctypes.data % LINE
            busy = [it for i, it in enumerate(blocks) if _references(blocks, i) > IDLE]  # the rest is too small
            blocks[:] = [*busy[1 - self.MOST :], (block, first)]
        return np.ndarray(shape, dtype, block, first)

    def gather(self, name: str, source: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return some rows of `source`, which are in range, as (*rows.shape, *source.shape[1:]), read-only."""
        # Without a mode, NumPy would gather into a temporary buffer and copy that.
        if rows.size * source.strides[0] < self.LEAST:
            out = source.take(rows, 0, None, "clip")
            out.setflags(write=False)
            return out
        out = self.empty(name, (*rows.shape, *source.shape[1:]), source.dtype)
        return freeze(source.take(rows, 0, out, "clip"))


def freeze(array: NDArray[Any]) -> NDArray[Any]:
    """Make an array read-only, and the array that it is a view of: a message may refer to it without a copy."""
    array.setflags(write=False)
    if array.base is not None:
        array.base.setflags(write=False)
    return array
