"""Memory that several processes of one machine see, for batches that one gathers and another reads.

It has no name. The kernel frees it when the last process that has it is gone, however that went, so nothing can be left
behind. It is Linux's alone.
"""

import fcntl
import mmap
import os
from math import prod
from socket import recv_fds, send_fds, socket
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from components.replay_buffers.closed import Closable
from components.replay_buffers.storage import LINE


class Place(NamedTuple):
    """Where an array lies, in plain values that any message can carry."""

    offset: int
    dtype: str
    shape: tuple[int, ...]


class SharedArena(Closable):
    """One piece of shared memory, out of which arrays are handed one after another.

    Once it is closed, arrays that were handed out stay valid for as long as they are used.

    Whoever makes it writes, and hands its socket's other end the arena; who receives it can but read. Both agree by
    messages of their own on when an array may be read, and when it may be written again.

    Args:
        n_bytes: its size, at least 1; memory that is never written costs nothing.

    Raises:
        ValueError: `n_bytes` is below 1.
    """

    def __init__(self, n_bytes: int) -> None:
        if n_bytes < 1:
            raise ValueError(f"n_bytes: expected at least 1, got {n_bytes}")
        fd = os.memfd_create("replay", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, n_bytes)
            # A file that shrinks would kill whoever reads past its end.
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        except BaseException:
            os.close(fd)
            raise
        self._map(fd, mmap.PROT_READ | mmap.PROT_WRITE)

    def _map(self, fd: int, access: int) -> None:
        self._fd = fd
        self._bytes = np.frombuffer(mmap.mmap(fd, os.fstat(fd).st_size, prot=access), np.uint8)
        self._begin = self._bytes.ctypes.data
        self._taken = 0

    @property
    def n_bytes(self) -> int:
        """Its size."""
        return len(self._bytes)

    @property
    def taken(self) -> int:
        """Bytes that arrays have been given."""
        return self._taken

    def allocate(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return an array of that shape and dtype in this memory, its numbers arbitrary.

        Raises:
            MemoryError: there is no room for it; the message has the arithmetic.
        """
        n_bytes = prod(shape) * np.dtype(dtype).itemsize
        if self._taken + n_bytes > self.n_bytes:
            raise MemoryError(
                f"expected room for {np.dtype(dtype)} of shape {shape}, {n_bytes:,} bytes, "
                f"but {self._taken:,} of {self.n_bytes:,} are taken"
            )
        array = self._bytes[self._taken : self._taken + n_bytes].view(dtype).reshape(shape)
        self._taken = min(-(-(self._taken + n_bytes) // LINE) * LINE, self.n_bytes)
        return array

    def place_of(self, array: NDArray[Any]) -> Place:
        """Return where an array lies that is contiguous and in this memory.

        Raises:
            ValueError: it is not.
        """
        offset = array.ctypes.data - self._begin
        if not (array.flags.c_contiguous and 0 <= offset <= self.n_bytes - array.nbytes):
            raise ValueError(f"expected a contiguous array in this memory, got {array.dtype} of shape {array.shape}")
        return Place(offset, array.dtype.str, array.shape)

    def at(self, place: Place) -> NDArray[Any]:
        """Return the array at a place, read-only where this arena was received.

        Raises:
            ValueError: the place is not within this memory, or not one of plain numbers.
        """
        dtype, n = np.dtype(place.dtype), prod(place.shape)
        stop = place.offset + n * dtype.itemsize
        if dtype.hasobject or place.offset < 0 or min(place.shape, default=0) < 0 or stop > self.n_bytes:
            raise ValueError(f"expected a place within {self.n_bytes:,} bytes, got {place}")
        return self._bytes[place.offset : stop].view(dtype).reshape(place.shape)

    def send(self, to: socket) -> None:
        """Hand this memory to the process at the other end of a unix socket, which calls `receive`."""
        send_fds(to, [b"\0"], [self._fd])

    @classmethod
    def receive(cls, source: socket) -> Self:
        """Return the memory that the process at the other end of a unix socket has sent, to read only.

        Raises:
            ConnectionError: the other end has closed, or has sent something else.
        """
        _, fds, _, _ = recv_fds(source, 1, 1)
        if len(fds) != 1:
            raise ConnectionError("expected to be handed a piece of memory, got none")
        arena = cls.__new__(cls)
        arena._map(fds[0], mmap.PROT_READ)
        return arena

    def _release(self) -> None:  # arrays that were handed out keep the memory, which needs no file
        os.close(self._fd)

    def __repr__(self) -> str:
        return f"<SharedArena {self._taken:,} of {self.n_bytes:,} bytes>"
