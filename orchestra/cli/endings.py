"""How a command ends: its exit code, and what it says if it fails."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestra import log
from orchestra.errors import ActorFailed, OrchestraError, UsageError
from orchestra.runs.processes import AllNodesLost
from orchestra.runs.run_directory import RunDirectory


@contextmanager
def failures_in_one_line(what: str, log_file: Path) -> Iterator[None]:
    """Say in one line why `what` failed; the log has the traceback. A misuse stays a `UsageError`."""
    try:
        yield
    except* UsageError as group:
        raise _first(group) from None
    except* (OrchestraError, AllNodesLost) as group:
        error = _first(group)
        log.get().error(f"{what} failed", exc_info=error, quiet=True)
        print(f"orchestra: {what} failed: {error}{_cause(error)}; traceback in {log_file}", file=sys.stderr)


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


def _cause(error: BaseException) -> str:
    """What an actor failed of: behind the text that says which one, and what it had been told."""
    cause = error.__cause__
    return f" ({type(cause).__name__}: {cause})" if isinstance(error, ActorFailed) and cause is not None else ""


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
