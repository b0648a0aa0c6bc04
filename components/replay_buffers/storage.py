"""Memory for what is kept, ordinary or mapped from files on a disk and so as large as that, and for what is drawn."""

import mmap
import os
from collections.abc import Callable
from math import prod
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

LINE = 64
"""Bytes of a cache line. Memory that is copied from and to begins with one: copying takes a quarter longer else."""

Allocate = Callable[[tuple[int, ...], DTypeLike], NDArray[Any]]
"""Returns an array of a shape and a dtype, its numbers arbitrary: `empty`, or `SharedArena.allocate`."""


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array of that shape and dtype, its numbers arbitrary, that begins with a cache line."""
    n_bytes = prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(n_bytes + LINE, np.uint8)
    first = -memory.ctypes.data % LINE
    return memory[first : first + n_bytes].view(dtype).reshape(shape)


def allocate(shape: tuple[int, ...], dtype: DTypeLike, folder: str | Path | None) -> NDArray[Any]:
    """Return an array of that shape and dtype, its numbers arbitrary; on the disk of `folder` if one is given.

    The file has no name, so it is gone with the last that uses it, however that ends. Its place is taken at once: a
    disk that fills up later would kill the process, not raise an error. What is read and written often stays in memory
    as long as the system has some to spare.

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


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Make `array` and the memory that it views read-only, and return it."""
    memory: Any = array
    while isinstance(memory, np.ndarray):
        memory.flags.writeable = False
        memory = memory.base
    return array


class BatchBuffers:
    """The memory of batches.

    Args:
        n: batches that are valid at a time: the next one overwrites the oldest. With 0 each batch has fresh memory,
            which becomes read-only, so that it can be sent without a copy.
    """

    def __init__(self, n: int) -> None:
        self.fresh = n == 0
        """True where each batch has memory of its own."""
        self._buffers: list[dict[str, NDArray[Any]]] = [{} for _ in range(n)]
        self._next = 0
        self._allocate: Allocate = empty

    def allocate_with(self, allocate: Allocate) -> None:
        """From now on gather batches into arrays that `allocate` returns, in shared memory say.

        It is asked again when a batch is larger than any before; a batch of whole episodes only when there are more of
        them, since room is taken for the longest there can be.
        """
        self._allocate = allocate
        self._buffers = [{} for _ in self._buffers]

    def turn(self) -> dict[str, NDArray[Any]]:
        """Return the buffer for the next batch: arrays by field, which `take` takes from and adds to."""
        if not self._buffers:
            return {}
        buffer = self._buffers[self._next]
        self._next = (self._next + 1) % len(self._buffers)
        return buffer

    def take(
        self, buffer: dict[str, NDArray[Any]], name: str, n: int, source: NDArray[Any], most: int = 0
    ) -> NDArray[Any]:
        """Return room for `n` rows like those of `source`; if there is too little, it is taken for `most` at least."""
        if not self._buffers:
            return self._allocate((n, *source.shape[1:]), source.dtype)
        out = buffer.get(name)
        if out is None or len(out) < n:
            out = buffer[name] = self._allocate((max(n, most), *source.shape[1:]), source.dtype)
        return out[:n] if len(out) > n else out
