"""Arenas: memory that one process writes and another process of the same host reads in place. No protocol.

An arena is an anonymous file of the kernel (`memfd_create`), so a crash leaves no name behind, and `/dev/shm` cannot be
too small. Its owner sends its process id, its descriptor and its name, sixteen random bytes; the reader opens it in
`/proc`. That succeeds only on the same kernel, between processes that see each other, for the same user, and the name
identifies the file. The file is sealed: it cannot shrink while it is read, which would cause a SIGBUS.
"""

import bisect
import contextlib
import fcntl
import mmap
import os
import stat
import sys

from orchestra.actors import lazy_numpy as np
from orchestra.actors.axes import AnyArray
from orchestra.actors.codec import Buffer
from orchestra.errors import OrchestraError, UsageError

PAGE = 4096
"""Bytes at whose multiples blocks begin."""
NAME_BYTES = 16
PERIOD = 32
"""Blocks that are taken before an arena returns memory that it has not needed since. A heartbeat ends a period, too."""
SURPLUS = 1 << 20
"""Bytes of such memory from which on a system call is worth its cost."""

_POPULATE_WRITE = 23
"""Linux's MADV_POPULATE_WRITE, which Python 3.11 has no name for."""


class NotShared(OrchestraError):
    """Memory cannot be shared; the text gives the reason."""


def checked(capacity: int) -> int:
    """Return `capacity` if it is a possible size of an arena, or 0.

    Raises:
        UsageError: it is neither.
    """
    if capacity < 0 or capacity % PAGE:
        raise UsageError(f"shared_memory is {capacity}: it must be a multiple of {PAGE} bytes, or 0 for none")
    return capacity


class Blocks:
    """Allocates the blocks of an arena. The lowest free one goes first, because its pages have been used before."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        """Bytes of all taken blocks."""
        self._free: list[tuple[int, int]] = [(0, capacity)] if capacity else []
        """Begin and end of each free span, in order; no two are adjacent."""
        self._taken: dict[int, int] = {}

    @property
    def end(self) -> int:
        """The end of the last taken block."""
        begin, end = self._free[-1] if self._free else (0, 0)
        return begin if end == self.capacity else self.capacity

    def take(self, nbytes: int) -> int | None:
        """Take a block of `nbytes`; return the place where it begins, or None if there is no room."""
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
        """Free the block that begins there; return False if there is none."""
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


class Arena:
    """Memory that one side of a link writes.

    Args:
        capacity: its bytes, a multiple of `PAGE`. The system provides the memory as it is used. What lies beyond all
            blocks of the last two periods is returned.
        name: random bytes that identify it.

    Raises:
        NotShared: the system provides no such memory.
    """

    def __init__(self, capacity: int, name: bytes) -> None:
        if sys.platform != "linux":
            raise NotShared(f"{sys.platform} has no memfd_create")
        self.name = name
        self.blocks = Blocks(capacity)
        self.process = os.getpid()
        self.capacity = capacity
        self.retired = False
        """True once it is not written to any more."""
        self._backed = 0
        """Bytes from the beginning that the system has provided. A write beyond them could cause a SIGBUS."""
        self._taken = 0
        """Blocks taken in this period."""
        self._reached = [0, 0]
        """The end of the farthest block that was taken in the period before, and in this one."""
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

    def take(self, nbytes: int) -> int | None:
        """Take a block of `nbytes`; return where it begins, or None if there is no room."""
        begin = self.blocks.take(nbytes)
        if begin is None:
            return None
        end = begin + nbytes
        if end > self._backed and not self._back(end):
            self.blocks.give_back(begin)
            return None
        self._taken += 1
        self._reached[1] = max(self._reached[1], end)
        if self._taken == PERIOD:
            self.end_period()
        return begin

    def at(self, begin: int, nbytes: int) -> AnyArray:
        """Return the bytes there as a writable array of uint8. All views of them refer to that array."""
        return np.frombuffer(self._memory, np.uint8, nbytes, begin)

    def write(self, pieces: list[Buffer], nbytes: int) -> int | None:
        """Copy `pieces`, of `nbytes` together, into a block; return where it begins, or None if there is no room."""
        begin = self.take(nbytes)
        if begin is None:
            return None
        end = begin
        for piece in pieces:
            start, end = end, end + len(piece)
            self._bytes[start:end] = np.frombuffer(piece, np.uint8)
        return begin

    def close(self) -> None:
        """Close the file. Views keep the memory."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def end_period(self) -> None:
        """Begin a period; return the memory beyond the blocks of the last two, and of those that are still taken."""
        needed = -(-max(*self._reached, self.blocks.end) // PAGE) * PAGE
        self._taken, self._reached = 0, [self._reached[1], 0]
        if self._backed - needed >= SURPLUS:
            self._memory.madvise(mmap.MADV_REMOVE, needed, self._backed - needed)
            self._backed = needed

    def _back(self, end: int) -> bool:
        """Have the system provide memory up to `end`; return False if it has none."""
        end = -(-end // PAGE) * PAGE
        try:
            os.posix_fallocate(self.descriptor, self._backed, end - self._backed)
        except OSError:
            return False
        with contextlib.suppress(OSError):  # before Linux 5.14
            # All pages at once: a page fault takes longer than to fill the page.
            self._memory.madvise(_POPULATE_WRITE, self._backed, end - self._backed)
        self._backed = end
        return True


class ArenaView:
    """A peer's arena, mapped for reading.

    Args:
        process, descriptor, name, capacity: the arena, as the peer describes it.

    Raises:
        NotShared: there is no such arena in reach.
    """

    def __init__(self, process: int, descriptor: int, name: bytes, capacity: int) -> None:
        self.capacity = capacity
        path = f"/proc/{process}/fd/{descriptor}"
        try:
            # Checked before it is opened: between processes that do not see each other it could be any file.
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
        """Return the bytes there as a read-only array of uint8. All views of them refer to that array."""
        return np.frombuffer(self._memory, np.uint8, nbytes, begin)


def _label(name: bytes) -> str:
    return f"orchestra-{name.hex()}"
