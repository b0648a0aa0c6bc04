"""Loggers, which receive the figures of a run: TensorBoard, a tracker such as MLflow, or a class of the user."""

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from orchestra import RunDirectory


@runtime_checkable
class Logger(Protocol):
    """Receives the figures of a run as they come.

    `--track FILE.py:CLASS` makes one by `CLASS(run, resumes_at)`: the directory of the run, and the environment steps
    from which a resumed run continues; None for a new run. Figures of later steps are logged again. The configuration
    is in `run.config()`.

    A thread apart from that of the run makes the logger and calls it, so a call may take long. An error of a call
    becomes a warning in the log, and the run continues.
    """

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Log figures, all finite, by name.

        Args:
            step: environment steps so far.
            figures: such as `test_win_rate`, `learner/loss` or `sync/loads`.
        """

    def close(self) -> None:
        """Close the logger: the run has ended."""


LoggerFactory = Callable[[RunDirectory, int | None], Logger]
"""A function that makes a logger for a run, given the environment steps from which a resumed run continues."""
