"""The effects of one activation of an actor: as recorded, and as replayed.

Recorded effects are outputs or inputs. The replayed actor has to produce the outputs (messages, clock readings, …) in
their recorded order. It is given the inputs (answers, room in a mailbox, results of offloaded work) in their recorded
order, each as soon as the actor cannot go on without one.
"""

import asyncio
import builtins
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

from orchestra import errors
from orchestra.actors.restarts import Halted
from orchestra.trace.analysis.values import ValueDifference, effect_text, message_text
from orchestra.trace.format.effects import (
    AnswerGiven,
    AnswerReceived,
    AnswerRefused,
    Asked,
    AskRaised,
    Effect,
    Offloaded,
    SendCompleted,
    SendFailed,
    Sent,
    Spawned,
    TimerSet,
    Withdrawn,
)
from orchestra.trace.format.records import Activation

E = TypeVar("E", bound=Effect)
Input = SendCompleted | SendFailed | AnswerReceived | AskRaised | Offloaded | Withdrawn
InputKey = tuple[str, int]
"""The action that an input belongs to: `told`, `answer`, `offload` or `withdrawn`, and the number of the action."""
Compare = Callable[[Any, Any], ValueDifference | None]
"""Returns the first difference between a recorded value and a replayed one."""

_ABORTED = frozenset({"Aborted", Halted.__name__})
"""The recorded failure types of an activation that was ended from outside."""


@dataclass(frozen=True, slots=True)
class Output:
    """Something that an actor sent, answered or spawned."""

    verb: str
    recipient: str
    kind: str
    """The message's type."""
    fields: Any
    """The message's fields in the form of a trace; of an answer, its value."""

    def __str__(self) -> str:
        return message_text(self.verb, self.recipient, self.kind, self.fields)

    @property
    def key(self) -> tuple[str, str, str]:
        """Outputs of one key are compared with each other."""
        return (self.verb, self.recipient, self.kind)


@dataclass(slots=True)
class ReplayedActivation:
    """The result of replaying one activation."""

    activation: Activation
    outputs: list[Output] = field(default_factory=list)
    error: Exception | None = None
    """The exception that ended it."""
    difference: tuple[str, ValueDifference, str] | None = None
    """The first difference from the record: a description, the values, and the line of the actor's code."""
    unfinished: bool = False
    """True if the record ends while the actor still waits."""


class RecordedEffects:
    """The recorded effects of one activation; the replayed actor consumes them.

    Args:
        activation: the record.
        strict: whether to report mismatches. Otherwise, and after the first report, mismatches are tolerated: each
            action consumes the next recorded effect of its kind, if there is one.
        compare: compares recorded values with replayed ones.
        report: takes the description and the values of the first mismatch.
    """

    def __init__(
        self, activation: Activation, *, strict: bool, compare: Compare, report: Callable[[str, ValueDifference], None]
    ) -> None:
        self.strict = strict
        self.refused: dict[int, SendFailed] = {}
        """Sends that raised at once, by message number."""
        self.inputs: deque[Input] = deque()
        """Inputs that the actor has not been given yet, in order."""
        self.answers: list[AnswerGiven | AnswerRefused] = []
        """Its answers to requests. They are compared at the end: their order among the outputs is not fixed."""
        self._compare = compare
        self._report = report
        self._outputs: deque[Effect] = deque()
        failure = None if activation.handled is None else activation.handled.failure
        self._failure = "" if failure is None else f"{failure.type}: {failure.text}"
        for before, effect in pairwise((None, *activation.effects)):
            if isinstance(effect, SendFailed) and isinstance(before, Sent) and before.number == effect.number:
                self.refused[effect.number] = effect
            elif isinstance(effect, AnswerGiven | AnswerRefused):
                self.answers.append(effect)
            elif isinstance(effect, Input):
                self.inputs.append(effect)
            elif effect is not None:
                self._outputs.append(effect)

    def differs(self, what: str, difference: ValueDifference) -> None:
        """Report a mismatch, unless one was reported before."""
        if self.strict:
            self.strict = False
            self._report(what, difference)

    def compare(self, what: str, recorded: Any, replayed: Any) -> None:
        """Report the first difference between two values; a recorded None is not compared."""
        if self.strict and recorded is not None and (difference := self._compare(recorded, replayed)) is not None:
            self.differs(what, difference)

    def take(self, kind: type[E], action: Callable[[], str], fits: Callable[[E], bool] = lambda _: True) -> E | None:
        """Consume the recorded effect of an action of the actor, and return it; None if there is none.

        Args:
            kind: the effect's type.
            action: describes the action for the report.
            fits: selects among the recorded effects of this type where mismatches are tolerated.
        """
        if self.strict:
            if self._outputs and isinstance(expected := self._outputs[0], kind):
                self._outputs.popleft()
                return expected
            self.differs("different action", ValueDifference("", self._next_text(), action()))
        for index, effect in enumerate(self._outputs):
            if isinstance(effect, kind) and fits(effect):
                del self._outputs[index]
                return effect
        return None

    def expect(self, effect: Effect, what: str, *names: str) -> None:
        """Consume the recorded counterpart of an effect, and compare the attributes `names`.

        Args:
            effect: the replayed effect.
            what: describes a difference.
            names: the compared attributes. Where mismatches are tolerated, the first one selects the counterpart.
        """
        new = {name: getattr(effect, name) for name in names}
        key = names[:1]
        found = self.take(
            type(effect),
            lambda: effect_text(effect),
            lambda each: all(getattr(each, name) == new[name] for name in key),
        )
        if found is not None:
            self.compare(what, {name: getattr(found, name) for name in names}, new)

    def input_for(self, key: InputKey) -> Input | None:
        """Return the input for `key` if it is still to come."""
        return next((effect for effect in self.inputs if key_of(effect) == key), None)

    def conclude(self) -> None:
        """Report an output that the actor did not produce."""
        if self._outputs:
            self.differs("missing action", ValueDifference("", self._next_text(), "nothing more"))

    def _next_text(self) -> str:
        """Return the output that the actor has to produce next as text."""
        if self._outputs:
            return effect_text(self._outputs[0])
        return f"failed with {self._failure}" if self._failure else "nothing more"


def recorded_outputs(activation: Activation) -> list[Output]:
    """Return what an actor sent, answered and spawned in an activation, by the record."""
    request = "" if activation.delivery is None else activation.delivery.type.name
    outputs = []
    for effect in activation.effects:
        match effect:
            case Sent(recipient=recipient, type=kind, fields=fields):
                outputs.append(Output("told", recipient, kind.name, fields))
            case Asked(recipient=recipient, type=kind, fields=fields):
                outputs.append(Output("asked", recipient, kind.name, fields))
            case TimerSet(delay=delay, type=kind, fields=fields):
                outputs.append(Output(timer_verb(delay), "itself", kind.name, fields))
            case Spawned(address=address, kind=name):
                outputs.append(Output("spawned", address, name, {}))
            case AnswerGiven(request=asked, value=value):
                outputs.append(Output("answered", asked.sender, request, value))
            case AnswerRefused(request=asked, error=error, text=text):
                outputs.append(Output("refused", asked.sender, request, f"{error}: {text}"))
    return outputs


def beginning_of(activation: Activation) -> float:
    """Return when an activation began, in seconds of the node's clock."""
    if activation.handled is not None:
        return activation.handled.time
    return 0.0 if activation.delivery is None else activation.delivery.time


def was_aborted(activation: Activation) -> bool:
    """Return whether an activation did not end by itself: it was aborted, or the record stops within it."""
    handled = activation.handled
    return handled is None or (handled.failure is not None and handled.failure.type in _ABORTED)


def key_of(effect: Input) -> InputKey:
    """Return the action that an input belongs to."""
    match effect:
        case SendCompleted(number=number) | SendFailed(number=number):
            return ("told", number)
        case AnswerReceived(number=number) | AskRaised(number=number):
            return ("answer", number)
        case Offloaded(index=index):
            return ("offload", index)
        case Withdrawn(correlation=correlation):
            return ("withdrawn", correlation)


def target_of(effect: Sent | Asked | TimerSet) -> tuple[str, str]:
    """Return the recipient and the type of a message."""
    return ("itself" if isinstance(effect, TimerSet) else effect.recipient, effect.type.name)


def timer_verb(delay: float) -> str:
    """Return the verb of an output that sets a timer."""
    return f"set a timer of {delay:g} s for"


def error_of(kind: str, text: str) -> Exception:
    """Return a recorded exception. An unknown class becomes `AskFailed` with the class name in its text."""
    found = getattr(errors, kind, None) or getattr(builtins, kind, None) or getattr(asyncio, kind, None)
    if isinstance(found, type) and issubclass(found, Exception):
        return found(text)
    return errors.AskFailed(f"{kind}: {text}")
