"""The limit of open files of a process (`ulimit -n`)."""

import resource

from orchestra.errors import UsageError

OF_PROCESS = 64
"""Files that a process of a run has open at most: logs, metrics, traces, sockets, libraries that are being imported."""
OF_NODE = 4
"""Files that the root has open for each other process: a connection, its output, shared memory being set up."""


def check_open_files(others: int) -> None:
    """Check that a run with `others` other processes may open all its files; raise the soft limit if needed.

    Raises:
        UsageError: the hard limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = OF_PROCESS + OF_NODE * others
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UsageError(
            f"this run opens up to {needed} files in one process, and `ulimit -n` allows {hard}; raise the limit, or "
            "use fewer processes"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))  # its processes inherit it


def too_many_files() -> str:
    """Return the sentence about a process that has reached its limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"too many open files: `ulimit -n` allows {soft}; raise it, as in: ulimit -n {max(4096, 2 * soft)}"
