"""Contract of an actor class: the messages it lists in `Actor[...]`, its handlers, and that the two agree."""

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Union, get_args, get_origin

from orchestra.actors.message import Lane, Message
from orchestra.actors.system_messages import ChildFailedMsg, StopMsg, TerminatedMsg, WatchMsg
from orchestra.errors import HandlerError


class Contract:
    """The messages an actor class understands and how its cells handle them."""

    def __init__(self, kind: type[Any]) -> None:
        self.understands: frozenset[type[Message]] = frozenset(
            (*kind.handlers, StopMsg, WatchMsg, TerminatedMsg, ChildFailedMsg)
        )
        """All accepted types: its own, and those of the runtime."""
        self.handlers: Mapping[type[Message], tuple[str, bool]] = {
            message: (name, inspect.iscoroutinefunction(getattr(kind, name))) for message, name in kind.handlers.items()
        }
        """Name of the handler, and whether it is a coroutine function, by type."""
        self.handed_over: Mapping[type[Message], Callable[[Message], int] | None] = {
            message: message.wire.weigh
            for message in self.understands
            if message.lane is Lane.ORDERED and message.wire.immutable and not message.wire.array_fields
        }
        """The types that are queued in order and need no copy, with their `Wire.weigh`."""
        self._name = kind.__name__

    def refusal(self, message: type[Message]) -> str:
        """Return the text of the error for a type it does not understand."""
        known = ", ".join(sorted(kind.__name__ for kind in self.handlers)) or "nothing"
        return f"{self._name} got {message.__name__}; it understands {known}"


def handlers_of(cls: type, base: type) -> dict[type[Message], str]:
    """Return the names of the handlers of an actor class, by message type.

    Args:
        cls: the class.
        base: `Actor`, whose type argument lists the messages.

    Raises:
        HandlerError: the handlers and the listed messages disagree.
    """
    handlers: dict[type[Message], str] = {}
    for each in reversed(cls.__mro__):
        for name, member in vars(each).items():
            message = getattr(member, "__orchestra_on__", None)
            if message is None:
                continue
            other = handlers.setdefault(message, name)
            if other != name:
                raise HandlerError(f"{cls.__qualname__} handles {message.__name__} twice: in {other} and in {name}")
    listed = _listed(cls, base)
    if listed is not None:
        handled = {message for message in handlers if message.lane is not Lane.SYSTEM}
        if missing := set(listed) - set(handlers):
            raise HandlerError(f"{cls.__qualname__} promises to handle {_names(missing)}, but has no @on for it")
        if extra := handled - set(listed):
            raise HandlerError(f"{cls.__qualname__} has an @on for {_names(extra)}, which its contract does not list")
    return handlers


def _listed(cls: type, base: type) -> list[type[Message]] | None:
    """Return the messages in `Actor[...]`, or None if the class is generic or inherits them."""
    for each in cls.__mro__:
        for parent in vars(each).get("__orig_bases__", ()):
            origin = get_origin(parent)
            if isinstance(origin, type) and issubclass(origin, base):
                (listed,) = get_args(parent)[:1]
                if isinstance(listed, TypeVar):
                    return None
                arms = get_args(listed) if get_origin(listed) in (Union, types.UnionType) else (listed,)
                return [_message_class(cls, arm) for arm in arms]
    return None


def _message_class(cls: type, arm: Any) -> type[Message]:
    if isinstance(arm, type) and issubclass(arm, Message):
        return arm
    if isinstance(arm, str | typing.ForwardRef):
        raise HandlerError(f"{cls.__qualname__} names the message {arm!r} as a string; name the class itself")
    raise HandlerError(f"{cls.__qualname__} lists {arm!r} among its messages, which is no message class")


def _names(messages: set[type[Message]]) -> str:
    return ", ".join(sorted(message.__name__ for message in messages))
