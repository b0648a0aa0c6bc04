"""Ends the processes that the nodes of a host leave behind, in any session, when the host's agent ends.

Linux gives the orphans of a process to its nearest ancestor that has asked for them.
"""

import contextlib
import ctypes
import os
import signal
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make this process the parent of all its descendants that lose theirs."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot adopt orphans: {os.strerror(number)}")


def children_of(pid: int) -> set[int]:
    """Return the process ids of the children of a process, those that have ended and were not waited for included."""
    found: set[int] = set()
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            found.update(map(int, tasks.read_text().split()))
    return found


def kill_orphans() -> int:
    """Kill all children of this process and their descendants; return how many were found."""
    count = 0
    for pid in children_of(os.getpid()):
        count += _kill_all(pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return count


def _kill_all(pid: int) -> int:
    """Kill a process and its descendants; return how many."""
    count = 1
    below = children_of(pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    for child in below:
        count += _kill_all(child)
    return count
