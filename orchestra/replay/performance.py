"""What a replayed actor does in one activation, and what it said to others then, by the record."""

from dataclasses import dataclass, field
from typing import Any

from orchestra.replay.difference import Difference
from orchestra.replay.effects import deed
from orchestra.trace.format.effects import AnswerGiven, AnswerRefused, Asked, Sent, Spawned, TimerSet
from orchestra.trace.format.records import Activation


@dataclass(frozen=True, slots=True)
class Said:
    """Something that a replayed actor said to somebody."""

    verb: str
    recipient: str
    kind: str
    """The message's type."""
    fields: Any
    """As they travel; of an answer, its value."""

    def __str__(self) -> str:
        return deed(self.verb, self.recipient, self.kind, self.fields)


@dataclass(slots=True)
class Performance:
    """One activation, replayed."""

    activation: Activation
    said: list[Said] = field(default_factory=list)
    error: Exception | None = None
    """What it raised."""
    difference: tuple[str, Difference, str] | None = None
    """The first thing that was not as recorded: what, how, and at which line."""
    unfinished: bool = False
    """Whether it was still waiting when the record ended."""


def recorded_said(activation: Activation) -> list[Said]:
    """Return what an actor said to others in an activation, by the record."""
    said = []
    for effect in activation.effects:
        match effect:
            case Sent(recipient=recipient, type=kind, fields=fields):
                said.append(Said("told", recipient, kind.name, fields))
            case Asked(recipient=recipient, type=kind, fields=fields):
                said.append(Said("asked", recipient, kind.name, fields))
            case TimerSet(delay=delay, type=kind, fields=fields):
                said.append(Said(f"set a timer of {delay:g} s,", "itself", kind.name, fields))
            case Spawned(address=address, kind=name):
                said.append(Said("spawned", address, name, {}))
            case AnswerGiven(request=request, value=value):
                said.append(Said("answered", request.sender, _type_of_request(activation), value))
            case AnswerRefused(request=request, error=error, text=text):
                said.append(Said("refused", request.sender, _type_of_request(activation), f"{error}: {text}"))
    return said


def _type_of_request(activation: Activation) -> str:
    return "" if activation.delivery is None else activation.delivery.type.name
