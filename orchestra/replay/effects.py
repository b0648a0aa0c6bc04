"""What was recorded of one activation, as a script that the replayed actor is held to.

Outputs (what it told, asked, read from the clock, …) are expected in their order. Inputs (answers, room in a mailbox,
offloaded work that is done) are handed in, in theirs, whenever the actor can do nothing without one.
"""

import asyncio
import builtins
from collections import deque
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, TypeVar

from orchestra import errors
from orchestra.replay.difference import Difference, shown
from orchestra.trace.format.effects import (
    AnswerGiven,
    AnswerReceived,
    AnswerRefused,
    Asked,
    AskRaised,
    Effect,
    MonotonicRead,
    NowRead,
    Offloaded,
    SendCompleted,
    SendFailed,
    Sent,
    Spawned,
    StopRequested,
    TimerCancelled,
    TimerSet,
    Watched,
    Withdrawn,
)
from orchestra.trace.format.records import Activation

E = TypeVar("E", bound=Effect)
Input = SendCompleted | SendFailed | AnswerReceived | AskRaised | Offloaded | Withdrawn
Key = tuple[str, int]
"""What an input is for: `told`, `answer`, `offload` or `withdrawn`, and the number of it."""

Report = Callable[[str, Difference], None]
"""Takes what is not the same, in words, and how."""


class Script:
    """The effects of one activation.

    Args:
        activation: what was recorded.
        strict: whether to report what does not fit; else the actor is humoured: each thing that it does takes the next
            recorded one of its sort, if there is one.
        report: takes the first thing that does not fit; from then on the actor is humoured.
    """

    def __init__(self, activation: Activation, *, strict: bool, report: Report) -> None:
        self.strict = strict
        self.refused: dict[int, SendFailed] = {}
        """Sends that raised at once, by number."""
        self._report = report
        self.inputs: deque[Input] = deque()
        """What is still to be handed in, in order."""
        self._outputs: deque[Effect] = deque()
        self.answers: list[AnswerGiven | AnswerRefused] = []
        """What it answered, or did not."""
        failure = None if activation.handled is None else activation.handled.failure
        self._failure = "" if failure is None else f"{failure.type}: {failure.text}"
        effects = activation.effects
        for before, effect in pairwise(effects):
            if isinstance(effect, SendFailed) and isinstance(before, Sent) and before.number == effect.number:
                self.refused[effect.number] = effect
        for effect in effects:
            if isinstance(effect, AnswerGiven | AnswerRefused):
                self.answers.append(effect)
            elif not isinstance(effect, Input):
                self._outputs.append(effect)
            elif not (isinstance(effect, SendFailed) and effect.number in self.refused):
                self.inputs.append(effect)

    def differs(self, what: str, difference: Difference) -> None:
        """Report that something is not as recorded, once."""
        if self.strict:
            self.strict = False
            self._report(what, difference)

    def take(self, kind: type[E], did: Callable[[], str], fits: Callable[[E], bool] = lambda _: True) -> E | None:
        """Return the recorded effect that the actor's deed is, or None if there is none.

        Args:
            kind: of effect.
            did: puts the deed in words, for the report.
            fits: tells which of the recorded ones it may be, where the actor is humoured.
        """
        if self.strict:
            expected = self._outputs[0] if self._outputs else None
            if isinstance(expected, kind):
                self._outputs.popleft()
                return expected
            self.differs("it did something else", Difference("", told_of(expected, self._failure), did()))
        for index, effect in enumerate(self._outputs):
            if isinstance(effect, kind) and fits(effect):
                del self._outputs[index]
                return effect
        return None

    def input_for(self, key: Key) -> Input | None:
        """Return the input that is still to come for `key`."""
        return next((effect for effect in self.inputs if key_of(effect) == key), None)

    def left(self) -> Effect | None:
        """Return what the actor should have done and has not."""
        return self._outputs[0] if self._outputs else None


def key_of(effect: Input) -> Key:
    """Return what an input is for."""
    match effect:
        case SendCompleted(number=number) | SendFailed(number=number):
            return ("told", number)
        case AnswerReceived(number=number) | AskRaised(number=number):
            return ("answer", number)
        case Offloaded(index=index):
            return ("offload", index)
        case Withdrawn(correlation=correlation):
            return ("withdrawn", correlation)


def deed(verb: str, recipient: str, kind: str, fields: Mapping[str, Any] | None) -> str:
    """Return in words that somebody was told or asked something."""
    return f"{verb} {recipient} {kind}({'…' if fields is None else shown(fields)})"


def told_of(effect: Effect | None, failure: str = "") -> str:
    """Return a recorded output in words; None is the end, by a failure perhaps."""
    match effect:
        case None:
            return f"it failed there: {failure}" if failure else "nothing more"
        case Sent(recipient=recipient, type=kind, fields=fields):
            return deed("told", recipient, kind.name, fields)
        case Asked(recipient=recipient, type=kind, fields=fields):
            return deed("asked", recipient, kind.name, fields)
        case TimerSet(delay=delay, type=kind, fields=fields):
            return deed(f"set a timer of {delay:g} s,", "itself", kind.name, fields)
        case TimerCancelled():
            return "took a timer back"
        case Spawned(address=address, kind=name):
            return f"spawned {address}, a {name}"
        case MonotonicRead() | NowRead():
            return "read the clock"
        case StopRequested(graceful=graceful):
            return "asked to stop" if graceful else "asked to be aborted"
        case Watched(address=address):
            return f"watched {address}"
    return type(effect).__name__


def error_of(kind: str, text: str) -> Exception:
    """Return the exception of this name, as far as its class is known here."""
    found = getattr(errors, kind, None) or getattr(builtins, kind, None) or getattr(asyncio, kind, None)
    if isinstance(found, type) and issubclass(found, Exception):
        return found(text)
    return errors.AskFailed(f"{kind}: {text}")
