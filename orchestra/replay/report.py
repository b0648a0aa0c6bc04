"""What a replay says when an actor does not do what was recorded."""

from dataclasses import dataclass
from pathlib import Path

from orchestra.replay.difference import Difference
from orchestra.trace.format.effects import MessageId
from orchestra.trace.format.records import Delivery, Failure


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first thing in an activation that is not as it was recorded."""

    actor: str
    n: int
    """Which activation it is."""
    during: str
    """The activation in words: `BatchTrainingDataMsg from learner/trajectories`."""
    what: str
    """What is not the same, in words."""
    difference: Difference
    where: str = ""
    """The line of the actor's code that did it: `components/trainer.py:74 in train`."""
    causes: tuple[str, ...] = ()
    """What led to this delivery, newest first."""

    def __str__(self) -> str:
        difference = self.difference
        lines = [f"{self.actor} differs in delivery {self.n}, {self.during}: {self.what}"]
        if difference.path:
            lines.append(f"  field     {difference.path}")
        lines += [f"  recorded  {difference.recorded}", f"  replayed  {difference.replayed}"]
        if self.where:
            lines.append(f"  at        {self.where}")
        lines += [f"  {'because' if not index else '       '}   {cause}" for index, cause in enumerate(self.causes)]
        return "\n".join(lines)


def named(delivery: Delivery | None, phase: str) -> str:
    """Return an activation in words."""
    if delivery is None:
        return {"start": "its constructor and `started`", "stop": "`stopped`"}.get(phase, "a message that is lost")
    return f"{delivery.type.name} from {whose(delivery.id, timer=delivery.timer)}"


def whose(identity: MessageId, *, timer: bool = False) -> str:
    """Return who sent a message, in words."""
    return f"its own timer #{identity.serial}" if timer else str(identity)


def compared_failures(
    recorded: Failure | None, told: Failure | None, *, other_lines: bool
) -> tuple[str, Difference, str] | None:
    """Return how an activation fails otherwise than it did, if it does: what, the difference, and no line.

    Args:
        recorded: how it failed then, if it did.
        told: how it fails now.
        other_lines: whether the code has changed, so that its lines have other numbers.
    """
    if recorded is None and told is None:
        return None
    if recorded is not None and told is not None and (recorded.type, recorded.text) == (told.type, told.text):
        same_line = Path(recorded.file).name == Path(told.file).name and recorded.line == told.line
        if same_line or other_lines:
            return None
    return "it fails otherwise" if recorded and told else "it fails", Difference("", _said(recorded), _said(told)), ""


def _said(failure: Failure | None) -> str:
    if failure is None:
        return "it did not fail"
    return f"{failure.type}: {failure.text}  ({Path(failure.file).name}:{failure.line})"
