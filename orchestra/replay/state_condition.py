"""Conditions on the state of a live actor, as in `--until "state.env_steps > 1000"`."""

from collections.abc import Iterator, Mapping
from typing import Any

from orchestra.actors.actor import Actor
from orchestra.actors.ref import Ref
from orchestra.errors import UsageError
from orchestra.replay.state import plain_value
from orchestra.trace.reading.where import Where

_LEFT_OUT = frozenset({"_context"})


class StateCondition:
    """A condition on the attributes of an actor, in the language of `Where`.

    `state.env_steps` is the attribute `env_steps`, or `_env_steps` if there is none of that name. Attributes of
    attributes, and items, are named in the same way: `state.counters.episodes`, `state.scores['a']`. A condition that
    names an attribute which does not exist does not hold.

    Raises:
        UsageError: the text is not a condition, or does not name `state`.
    """

    def __init__(self, text: str) -> None:
        try:
            self._where = Where(text)
        except UsageError as error:
            raise UsageError(str(error).replace("--where", "--until", 1)) from error
        if not self._where.may_hold({"state"}):
            raise UsageError(
                f"--until: {text!r} names something else than the state; write it as in 'state.env_steps > 1000'"
            )
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __call__(self, actor: Actor[Any]) -> bool:
        """Return whether the condition holds for the state of `actor`."""
        return self._where({"state": _Attributes(actor)})


def attribute_names(actor: Actor[Any]) -> list[str]:
    """Return the names by which a condition can refer to the attributes of `actor`."""
    return sorted(name.removeprefix("_") for name in vars(actor) if name not in _LEFT_OUT)


class _Attributes(Mapping[str, Any]):
    """The attributes of an object as a mapping."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def __getitem__(self, name: str) -> Any:
        for each in (name, f"_{name}"):
            if hasattr(self._owner, each):
                value = plain_value(getattr(self._owner, each))
                is_object = hasattr(value, "__dict__") or hasattr(value, "__slots__")
                return _Attributes(value) if is_object and not isinstance(value, Mapping | Ref) else value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self._owner))

    def __len__(self) -> int:
        return len(self._owner)
