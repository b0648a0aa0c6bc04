"""What an actor class can be told, worked out once per class."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from orchestra.actors.actor import Actor
from orchestra.actors.message import Lane, Message
from orchestra.actors.system_messages import ChildFailedMsg, StopMsg, TerminatedMsg, WatchMsg

_ANY: tuple[type[Message], ...] = (StopMsg, WatchMsg, TerminatedMsg, ChildFailedMsg)
"""What every actor can be told."""


class Contract:
    """What an actor class understands, and how a cell handles it."""

    def __init__(self, kind: type[Actor[Any]]) -> None:
        self.understands: frozenset[type[Message]] = frozenset((*kind.handlers, *_ANY))
        """The types that it can be told."""
        self.handlers: Mapping[type[Message], tuple[str, bool]] = {
            message: (name, inspect.iscoroutinefunction(getattr(kind, name))) for message, name in kind.handlers.items()
        }
        """The name of the handler, and whether it is a coroutine, by type."""
        self.handed_over: Mapping[type[Message], Callable[[Message], int] | None] = {
            message: message.wire.weigh
            for message in self.understands
            if message.lane is Lane.ORDERED and message.wire.immutable and not message.wire.array_fields
        }
        """The types that queue in order and need no copy, with what weighs them, as in `Wire.weigh`."""
        self._name = kind.__name__

    def refusal(self, message: type[Message]) -> str:
        """Say that the class does not handle `message`, and what it does handle."""
        known = ", ".join(sorted(kind.__name__ for kind in self.handlers)) or "nothing"
        return f"{self._name} got {message.__name__}; it understands {known}"


_CONTRACTS: WeakKeyDictionary[type[Actor[Any]], Contract] = WeakKeyDictionary()


def contract_of(kind: type[Actor[Any]]) -> Contract:
    """Return the contract of an actor class."""
    contract = _CONTRACTS.get(kind)
    if contract is None:
        contract = _CONTRACTS[kind] = Contract(kind)
    return contract
