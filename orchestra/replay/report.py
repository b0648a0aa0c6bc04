"""The report of a replay that differs from its record: what differs, in which delivery, and what caused that."""

from dataclasses import dataclass
from pathlib import Path

from orchestra.trace.analysis.values import ValueDifference
from orchestra.trace.format.effects import MessageId
from orchestra.trace.format.records import Activation, Delivery, Failure
from orchestra.trace.reading.run_trace import RunTrace

MAX_CAUSES = 6
"""Links of the causal chain that a report shows."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference between an activation and its record."""

    actor: str
    n: int
    """The activation's number."""
    during: str
    """The activation as text: `BatchTrainingDataMsg from learner/trajectories`."""
    what: str
    """The effect that differs: `told learner/trainer BatchTrainingDataMsg`, `missing action`, …"""
    difference: ValueDifference
    where: str = ""
    """The line of the actor's code: `components/trainer.py:74 in train`."""
    causes: tuple[str, ...] = ()
    """The causes of this delivery, newest first."""

    def __str__(self) -> str:
        difference = self.difference
        lines = [f"{self.actor} differs in delivery {self.n}, {self.during}: {self.what}"]
        if difference.path:
            lines.append(f"  field     {difference.path}")
        lines += [f"  recorded  {difference.left}", f"  replayed  {difference.right}"]
        if self.where:
            lines.append(f"  at        {self.where}")
        lines += [f"  {'because' if not index else '       '}   {cause}" for index, cause in enumerate(self.causes)]
        return "\n".join(lines)


def activation_text(delivery: Delivery | None, phase: str) -> str:
    """Return an activation as text: `BatchTrainingDataMsg from learner/trajectories#3`."""
    if delivery is None:
        return {"start": "its constructor and `started`", "stop": "`stopped`"}.get(phase, "a message that is lost")
    sender = f"its own timer #{delivery.id.serial}" if delivery.timer else str(delivery.id)
    return f"{delivery.type.name} from {sender}"


def compare_failures(
    recorded: Failure | None, replayed: Failure | None, *, class_changed: bool
) -> tuple[str, ValueDifference, str] | None:
    """Return the difference between two failures, or None: a description, the failures, and no line.

    Args:
        recorded: the failure in the record, if there is one.
        replayed: the failure of the replay, if there is one.
        class_changed: whether the actor's source has changed, so that line numbers are not compared.
    """
    if recorded is None and replayed is None:
        return None
    if recorded is None or replayed is None:
        what = "it fails" if recorded is None else "it does not fail"
    else:
        what = "different failure"
        same_line = Path(recorded.file).name == Path(replayed.file).name and recorded.line == replayed.line
        same_error = (recorded.type, recorded.text) == (replayed.type, replayed.text)
        if same_error and (same_line or class_changed):
            return None
    return what, ValueDifference("", _failure_text(recorded), _failure_text(replayed)), ""


def causes_of(trace: RunTrace, delivery: Delivery | None) -> tuple[str, ...]:
    """Return the activations that led to `delivery`, newest first: its sender's, that one's sender's, …"""
    causes: list[str] = []
    while delivery is not None and delivery.id.number and len(causes) < MAX_CAUSES:
        sender = _sending_activation(trace, delivery.id)
        if sender is None:
            causes.append(f"{delivery.id.sender}, whose activation is not in the record")
            break
        during = activation_text(sender.delivery, sender.phase)
        causes.append(f"{delivery.id.sender} sent it in its delivery {sender.n}, {during}")
        delivery = sender.delivery
    return tuple(causes)


def _sending_activation(trace: RunTrace, message: MessageId) -> Activation | None:
    for incarnation in trace.incarnations(message.sender):
        if incarnation.header.generation != message.generation:
            continue
        for index in trace.recording(incarnation).indexes:
            for n, number in index.sent_in(message.sender, message.number):
                if number == incarnation.birth.incarnation:
                    return trace.activation(incarnation, n)
    return None


def _failure_text(failure: Failure | None) -> str:
    if failure is None:
        return "no failure"
    return f"{failure.type}: {failure.text}  ({Path(failure.file).name}:{failure.line})"
