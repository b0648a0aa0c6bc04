"""Memory that two processes of one host share: one writes into it, the other looks at it where it lies. No protocol.

It is an anonymous file of the kernel (`memfd_create`), so there is no name that a sudden end could leave behind, and no
`/dev/shm` that could be too small. Whoever made it tells its process, its descriptor and its name, sixteen random
bytes; the other side opens it in `/proc`. That succeeds only on the same kernel, among processes that see each other,
for the same user, and the name says whether it is the file that was meant. It is sealed: it cannot shrink under the
eyes of who reads it, which would be a SIGBUS.
"""

import bisect
import contextlib
import fcntl
import mmap
import os
import stat
import sys

import numpy as np

from orchestra.actors.codec import Buffer
from orchestra.actors.message import AnyArray
from orchestra.errors import OrchestraError, UsageError

CAPACITY = 128 << 20
"""Bytes of the arena of one direction of a link, unless a node is told otherwise: twice what may be on its way to one
mailbox. Memory is taken as it is needed, up to that."""
MIB_VARIABLE = "ORCHESTRA_SHARED_MEMORY"
"""MiB of an arena, for nodes that are not told; 0 for none. What a run launches inherits it."""
MOST_MIB = 1 << 20
PAGE = 4096
"""Blocks begin at pages, so that what is written into one leaves the others' alone."""
NAME_BYTES = 16

_PREFIX = "orchestra-"
_POPULATE_WRITE = 23
"""Linux's MADV_POPULATE_WRITE, which Python 3.11 has no name for."""


class NotShared(OrchestraError):
    """There is no common memory; the text says why."""


def capacity_wanted() -> int:
    """Return the bytes of an arena, as the environment says or by default.

    Raises:
        UsageError: what it says is no number.
    """
    text = os.environ.get(MIB_VARIABLE, "")
    if not text:
        return CAPACITY
    if not text.isascii() or not text.isdecimal() or len(text) > 7 or int(text) > MOST_MIB:
        raise UsageError(f"{MIB_VARIABLE} is {text!r}: it must be a number of MiB from 0, for none, to {MOST_MIB}")
    return int(text) << 20


def checked(capacity: int) -> int:
    """Return `capacity` if an arena can have so many bytes.

    Raises:
        UsageError: it cannot.
    """
    if capacity < 0 or capacity % PAGE:
        raise UsageError(f"shared_memory is {capacity}: it must be a multiple of {PAGE} bytes, or 0 for none")
    return capacity


class Blocks:
    """Which parts of an arena are taken. The lowest that is free is taken first: it was used before, and is warm."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        """Bytes that are taken."""
        self._free: list[tuple[int, int]] = [(0, capacity)] if capacity else []
        """Begin and end of what is free, in order; no two of them touch."""
        self._taken: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, nbytes: int) -> int | None:
        """Return where a block of so many bytes begins, or None if there is no room."""
        size = -(-nbytes // PAGE) * PAGE
        for place, (begin, end) in enumerate(self._free):
            if end - begin >= size:
                if end - begin == size:
                    del self._free[place]
                else:
                    self._free[place] = (begin + size, end)
                self._taken[begin] = size
                self.used += size
                return begin
        return None

    def give_back(self, begin: int) -> bool:
        """Take note that a block is free again; return whether there was one that begins there."""
        size = self._taken.pop(begin, None)
        if size is None:
            return False
        self.used -= size
        end = begin + size
        free = self._free
        place = bisect.bisect(free, (begin, end))
        if place < len(free) and free[place][0] == end:
            end = free.pop(place)[1]
        if place and free[place - 1][1] == begin:
            place -= 1
            begin = free.pop(place)[0]
        free.insert(place, (begin, end))
        return True

    def check_valid(self) -> str:
        """Return what is wrong with the account; empty if nothing is."""
        spans = sorted([*self._free, *((begin, begin + size) for begin, size in self._taken.items())])
        if [begin for begin, _ in spans] != [0, *(end for _, end in spans[:-1])] or spans[-1][1] != self.capacity:
            return f"free and taken do not cover 0 to {self.capacity} once: {spans}"
        if any(one[1] == other[0] for one, other in zip(self._free, self._free[1:], strict=False)):
            return f"two that are free touch: {self._free}"
        return "" if self.used == sum(self._taken.values()) else f"{self.used} bytes are not what is taken"


class Arena:
    """The memory that one side of a link writes into.

    Args:
        capacity: bytes that it may grow to; a multiple of `PAGE`.
        name: random, and nobody else's.

    Raises:
        NotShared: this system makes no such memory.
    """

    def __init__(self, capacity: int, name: bytes) -> None:
        if sys.platform != "linux":
            raise NotShared(f"{sys.platform} has no memfd_create")
        self.name = name
        self.blocks = Blocks(capacity)
        self._backed = 0
        """Bytes from the beginning for which the system has given memory. Writing beyond it could be a SIGBUS."""
        try:
            self.descriptor = os.memfd_create(_label(name), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise NotShared(f"memfd_create: {error.strerror}") from error
        try:
            os.fchmod(self.descriptor, 0o600)
            os.ftruncate(self.descriptor, capacity)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._memory = mmap.mmap(self.descriptor, capacity)
        except (OSError, ValueError) as error:
            os.close(self.descriptor)
            raise NotShared(f"{capacity:,} bytes of it: {getattr(error, 'strerror', None) or error}") from error
        self._bytes: AnyArray = np.frombuffer(self._memory, np.uint8)

    def write(self, pieces: list[Buffer], nbytes: int) -> int | None:
        """Copy `pieces`, together so many bytes, into a block; return where it begins, or None if there is no room."""
        begin = self.blocks.take(nbytes)
        if begin is None:
            return None
        if begin + nbytes > self._backed and not self._back(begin + nbytes):
            self.blocks.give_back(begin)
            return None
        end = begin
        for piece in pieces:
            start, end = end, end + len(piece)
            self._bytes[start:end] = np.frombuffer(piece, np.uint8)
        return begin

    def close(self) -> None:
        """Leave the memory to whoever still looks at it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _back(self, end: int) -> bool:
        """Have the system give memory up to `end`, or say that it has none."""
        end = -(-end // PAGE) * PAGE
        try:
            os.posix_fallocate(self.descriptor, self._backed, end - self._backed)
        except OSError:
            return False
        with contextlib.suppress(OSError):  # before Linux 5.14
            # All pages at once: a fault for each takes longer than to fill it.
            self._memory.madvise(_POPULATE_WRITE, self._backed, end - self._backed)
        self._backed = end
        return True


class ArenaView:
    """The memory of a peer, to look at.

    Args:
        process, descriptor, name, capacity: what the peer said of it.

    Raises:
        NotShared: there is no such memory here.
    """

    def __init__(self, process: int, descriptor: int, name: bytes, capacity: int) -> None:
        self.capacity = capacity
        path = f"/proc/{process}/fd/{descriptor}"
        try:
            # Looked at before it is opened: among processes that do not see each other it could be anything.
            if os.readlink(path) != f"/memfd:{_label(name)} (deleted)":
                raise NotShared("the peer's memory is not in reach from here")
            opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise NotShared(f"the peer's memory is not in reach from here: {error.strerror}") from error
        try:
            facts = os.fstat(opened)
            sealed = fcntl.fcntl(opened, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or not sealed:
                raise NotShared("the peer's memory is another user's, or could shrink")
            if facts.st_size != capacity:
                raise NotShared(f"the peer's memory has {facts.st_size:,} bytes, not {capacity:,}")
            self._memory = memoryview(mmap.mmap(opened, capacity, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise NotShared(f"the peer's memory cannot be mapped: {error}") from error
        finally:
            os.close(opened)

    def at(self, begin: int, nbytes: int) -> AnyArray:
        """Return the bytes there, read-only. All views of them refer to the array that is returned."""
        return np.frombuffer(self._memory, np.uint8, nbytes, begin)


def _label(name: bytes) -> str:
    return f"{_PREFIX}{name.hex()}"
