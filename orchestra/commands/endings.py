"""How a command ends: its exit code, and what it says if it fails."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from orchestra import log
from orchestra.errors import OrchestraError, UsageError
from orchestra.launch.local import AllNodesLost
from orchestra.run_directory import RunDirectory

FAILED = 1
MISUSED = 2
ABORTED = 130


@contextmanager
def failures_in_one_line(run: RunDirectory) -> Iterator[None]:
    """Say in one line what failed; the logs have the rest. A misuse stays a `UsageError`."""
    try:
        yield
    except* UsageError as group:
        raise _first(group) from None
    except* (OrchestraError, AllNodesLost) as group:
        error = _first(group)
        cause = f" ({type(error.__cause__).__name__}: {error.__cause__})" if error.__cause__ else ""
        log.get().error("the run failed", exc_info=error)
        print(f"orchestra: the run failed: {error}{cause}; see {run.logs}", file=sys.stderr)


@contextmanager
def looking_into(run: RunDirectory) -> Iterator[None]:
    """Be silent but for one line if `run` cannot be looked into. A misuse stays a `UsageError`."""
    log.configure(None, node="guest", level="critical")
    try:
        yield
    except UsageError:
        raise
    except OrchestraError as error:
        print(f"orchestra: cannot look into the run in {str(run.path)!r}: {error}", file=sys.stderr)
    finally:
        log.close()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
