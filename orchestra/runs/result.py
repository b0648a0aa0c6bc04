"""The result of a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestra.errors import ActorFailed, CannotWrite, OrchestraError
from orchestra.runs.processes import State
from orchestra.runs.run_directory import Picture, RunDirectory


class RunFiles:
    """The files that a run has written so far."""

    __slots__ = ()
    directory: RunDirectory
    """The directory with the files of the run."""

    @property
    def checkpoint(self) -> Path | None:
        """The newest checkpoint, or None if there is none yet."""
        return self.directory.newest_checkpoint()

    def metrics(self) -> list[dict[str, Any]]:
        """Return the records of `metrics.jsonl`, in order; none if the run has written no such file."""
        return self.directory.read_metrics()

    def plot(self) -> Picture:
        """Return the learning curve as drawn last, which a notebook displays.

        Raises:
            UsageError: the run has drawn none.
        """
        return self.directory.plot()


@dataclass(frozen=True, slots=True)
class RunResult(RunFiles):
    """The end of a run, and its files."""

    state: State
    """The cause of the end of the run.

    - `completed`: its main actor stopped by itself.
    - `stopped`: `RunHandle.stop`, SIGTERM or SIGHUP asked it to.
    - `interrupted`: Ctrl-C asked it to.
    - `failed`: an actor failed for good, or all processes were lost. Such a result comes with a `RunFailed`.
    """
    reason: str
    """`stopped`: in order, with everything saved. `aborted`: nothing was saved. Of a failed run, the error."""
    directory: RunDirectory

    @property
    def completed(self) -> bool:
        """True if the run ended by itself."""
        return self.state == "completed"


class RunFailed(OrchestraError):
    """A run began, and failed. The text is the one that `orchestra run` prints."""

    def __init__(self, text: str, result: RunResult) -> None:
        super().__init__(text)
        self.result = result
        """Its state is `failed`; its directory has the logs."""


def failure_text(error: BaseException) -> str:
    """Return the error's text, and for an actor's failure its cause."""
    cause = error.__cause__
    if isinstance(error, ActorFailed) and isinstance(cause, CannotWrite):
        return str(cause)  # says all: which actor wrote does not matter
    if isinstance(error, ActorFailed) and cause is not None:
        return f"{error} ({type(cause).__name__}: {cause})"
    return str(error)
