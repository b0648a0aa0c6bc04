"""The exit codes of every command, in one table."""

import errno
from typing import TYPE_CHECKING

from orchestra.errors import (
    AuthenticationFailed,
    CannotWrite,
    HostsMissing,
    QueueStopped,
    UsageError,
    VersionMismatch,
    causes,
)

if TYPE_CHECKING:  # slow to import, and every command imports this module
    from orchestra.runs.result import RunFailed, RunResult

FINISHED = 0
"""The command did what was asked; a run reached its goal."""

FAILED = 1
"""The command ran and failed; stderr says why."""

MISUSED = 2
"""A flag, a file or an experiment is wrong; nothing was started."""

HOSTS_MISSING = 69
"""Hosts that a run needs did not come in time, or a host did not find its run."""

CANNOT_WRITE = 74
"""A file cannot be written: the disk is full, or the folder is read-only."""

STOPPED = 75
"""SIGTERM or SIGHUP stopped the run, and `--resume` continues it; or a queue, and the same command continues it."""

OTHER_VERSION = 76
"""Two processes have other versions of the protocol or of the code; another attempt would fail likewise."""

NOT_LET_IN = 77
"""A secret, a certificate or a join token is that of another run, or has expired."""

INTERRUPTED = 130
"""Ctrl-C ended the command."""

_NOT_WRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}


def of_run(ended: "RunResult | RunFailed") -> int:
    """Return the exit code of a run that began.

    A stopped run that has saved no state cannot be continued, and counts as failed.
    """
    if isinstance(ended, BaseException):
        return of_error(ended)
    resumable = ended.directory.resume_command is not None
    codes = {"completed": FINISHED, "interrupted": INTERRUPTED, "stopped": STOPPED if resumable else FAILED}
    return codes[ended.state]


def of_error(error: BaseException) -> int:
    """Return the exit code of a command that `error` ended; the first of its causes that is in the table decides."""
    for cause in causes(error):
        match cause:
            case UsageError():
                return MISUSED
            case KeyboardInterrupt():
                return INTERRUPTED
            case HostsMissing():
                return HOSTS_MISSING
            case AuthenticationFailed():
                return NOT_LET_IN
            case VersionMismatch():
                return OTHER_VERSION
            case QueueStopped():
                return STOPPED
            case CannotWrite():
                return CANNOT_WRITE
            case OSError() if cause.errno in _NOT_WRITABLE:
                return CANNOT_WRITE
    return FAILED
