"""What the processes of a node leave behind when they end, in whatever session: the agent of a host ends it.

Linux gives the orphans of a process to its nearest ancestor that has asked for them.
"""

import contextlib
import ctypes
import os
import signal
from collections.abc import Collection
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
NODE_VARIABLE = "ORCHESTRA_NODE"
"""The environment variable that tells which node has started a process."""


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


def kill_orphans(known: Collection[int], node: str = "", session: int = 0) -> int:
    """Kill children of this process that it did not start, and all their descendants; return how many were found.

    Args:
        known: the children that it did start.
        node: kill only what this node has left; by default everything.
        session: the session of the node's process.
    """
    count = 0
    for pid in children_of(os.getpid()) - set(known):
        if not node or _session_of(pid) == session or _node_of(pid) == node:
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


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def _node_of(pid: int) -> str:
    """Return the node that has started a process, as its environment says; empty if that is unknown."""
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name == NODE_VARIABLE.encode():
                return value.decode(errors="replace")
    return ""
