"""Deadlines of a run: how long its Orchestrator waits for other actors."""

from typing import Literal

from orchestra import Message

RETURN_S = 60.0
"""Seconds that a resumed run waits for its workers."""
INTERRUPTED_S = 20.0
"""Seconds that an interrupted run waits for its checkpoint; after that only the policy is saved."""
LAST_EVALUATION_S = 60.0
"""Seconds that the last evaluation may take before the run ends without it. The final one may take longer."""


class TimeoutMsg(Message):
    """A wait has taken too long: for the workers of a resumed run, for a checkpoint, or for a last evaluation."""

    waited_for: Literal["workers", "checkpoint", "evaluation", "final evaluation"]
