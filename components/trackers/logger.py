"""What receives the figures of a run: TensorBoard's events, a tracker such as MLflow, or a class of the user's."""

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from orchestra import RunDirectory


@runtime_checkable
class Logger(Protocol):
    """Receives the figures of a run as they come.

    `--track FILE.py:CLASS` makes one by `CLASS(run, resumes_at)`: the directory of the run, and the environment steps
    from which a resumed run goes on, None for a run that begins. What was logged of later steps comes again. The
    configuration is in `run.config()`.

    One thread makes it and calls it, which is not that of the run: a call may take its time. An error of a call is a
    warning in the log, and the run goes on.
    """

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Take figures, all finite, by name.

        Args:
            step: environment steps so far.
            figures: such as `test_win_rate`, `learner/loss` or `sync/loads`.
        """

    def close(self) -> None:
        """Finish: the run has ended."""


LoggerFactory = Callable[[RunDirectory, int | None], Logger]
"""Makes a logger for a run, given the environment steps from which a resumed one goes on."""
