"""The lock of a run directory: one process at a time runs in it.

`lock.json` names the holder, and the operating system holds the lock itself (`flock`). So the lock of a process that
died is stale at once, also if its process id is in use again. Hosts that share a folder share its locks where the file
system passes them on, as NFS does.
"""

import contextlib
import errno
import fcntl
import json
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from orchestra.errors import CannotWrite, UsageError
from orchestra.runs.run_directory import RunDirectory

_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
"""Errors of a file system without locks."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock, or held it when it died."""

    host: str
    pid: int
    boot: str = field(default="", compare=False)
    """The boot of its host; empty if unknown."""

    @property
    def dead(self) -> bool:
        """True if the process ran on this host and is gone. Processes of other hosts cannot be seen."""
        if self.host != platform.node():
            return False
        return (bool(self.boot) and self.boot != _boot_id()) or not psutil.pid_exists(self.pid)


@contextlib.contextmanager
def locked(run: RunDirectory) -> Iterator[Holder | None]:
    """While the block runs, hold the lock of a run directory; yield the dead holder of a stale lock that it replaces.

    Raises:
        UsageError: another process holds it. Nothing was changed.
        CannotWrite: the lock file cannot be written.
    """
    try:
        descriptor, stale = _acquire(run)
    except OSError as error:
        raise CannotWrite(f"cannot lock the run: {str(run.lock)!r}: {error.strerror}") from error
    try:
        yield stale
    finally:
        run.lock.unlink(missing_ok=True)  # before the lock is released: no other process holds it meanwhile
        os.close(descriptor)


def holder_of(run: RunDirectory) -> Holder | None:
    """Return the process that the lock file names, which may be dead; None if there is no lock."""
    return _read(run.lock)


def _acquire(run: RunDirectory) -> tuple[int, Holder | None]:
    while True:
        descriptor = os.open(run.lock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            earlier = _read(run.lock)
            if not _lock(descriptor):
                raise _held(run, earlier)
            if not _is_at(descriptor, run.lock):
                os.close(descriptor)  # its holder has just removed it
                continue
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(_this_process()).encode(), 0)
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            raise
        return descriptor, earlier


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        holder = _parsed(os.pread(descriptor, 4096, 0))
        return holder is None or holder.dead
    return True


def _held(run: RunDirectory, holder: Holder | None) -> UsageError:
    who = "another process" if holder is None else f"process {holder.pid} on {holder.host}"
    return UsageError(
        f"{who} runs in {str(run.path)!r} (see {run.lock.name}); wait for its end, or stop it, before resuming"
    )


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _read(path: Path) -> Holder | None:
    try:
        return _parsed(path.read_bytes())
    except OSError:
        return None


def _parsed(content: bytes) -> Holder | None:
    try:
        found: Any = json.loads(content)
    except ValueError:
        return None
    match found:
        case {"host": str(host), "pid": int(pid), **more}:
            return Holder(host, pid, str(more.get("boot", "")))
        case _:
            return None


def _this_process() -> dict[str, Any]:
    return {"host": platform.node(), "pid": os.getpid(), "boot": _boot_id()}


def _boot_id() -> str:
    """Return a text that changes when the machine starts again; empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
