"""The parts of a topology: planned nodes, and the planned actors in them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

from orchestra.actors.actor import Actor, actor_class
from orchestra.actors.addresses import check_name
from orchestra.actors.message import Message
from orchestra.actors.ref import Ref
from orchestra.errors import UsageError
from orchestra.hosts.shape import HEAD

P = ParamSpec("P")
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class PlannedActor:
    """A planned actor: its class and the arguments of its constructor."""

    name: str
    kind: type[Actor[Any]]
    factory: partial[Actor[Any]]

    def refs(self) -> list[Ref[Any]]:
        """Return the refs among its arguments, in order, each once."""
        found = [*_refs_in(self.factory.args), *_refs_in(self.factory.keywords)]
        return list(dict.fromkeys(found))


@dataclass(slots=True)
class PlannedNode:
    """A planned process, and what its host must have for it."""

    name: str
    slot: int = HEAD
    """The host on which it runs."""
    cores: int = 0
    """The cores that it needs for itself; 0 if it shares those that are left."""
    gpus: int = 0
    memory: int = 0
    """The bytes that it needs; 0 if unknown."""
    actors: list[PlannedActor] = field(default_factory=list)

    def spawn(self, name: str, kind: Callable[P, Actor[M]], *args: P.args, **kwargs: P.kwargs) -> Ref[M]:
        """Plan the actor `kind(*args, **kwargs)` and return its ref, which other actors take as an argument.

        Raises:
            UsageError: the name is taken or malformed.
        """
        if any(actor.name == check_name(name, "an actor") for actor in self.actors):
            raise UsageError(f"node {self.name!r} has an actor {name!r} already")
        factory: partial[Actor[Any]] = partial(kind, *args, **kwargs)
        self.actors.append(PlannedActor(name, actor_class(kind), factory))
        return Ref(f"{self.name}/{name}")

    def replace(self, name: str, kind: type[Actor[Any]], **more: Any) -> None:
        """Replace the class of the planned actor `name` by `kind`, and those of its keywords that `more` names.

        Refs to it and the order in which actors start do not change.

        Raises:
            UsageError: no such actor is planned.
        """
        for index, actor in enumerate(self.actors):
            if actor.name == name:
                planned = actor.factory
                factory: partial[Actor[Any]] = partial(actor_class(kind), *planned.args, **{**planned.keywords, **more})
                self.actors[index] = PlannedActor(name, kind, factory)
                return
        known = ", ".join(actor.name for actor in self.actors) or "none"
        raise UsageError(f"node {self.name!r} has no actor {name!r} to replace; its actors are {known}")


def _refs_in(value: Any) -> Iterator[Ref[Any]]:
    match value:
        case Ref():
            yield value
        case partial():
            yield from _refs_in(value.args)
            yield from _refs_in(value.keywords)
        case Mapping():
            for entry in value.values():
                yield from _refs_in(entry)
        case list() | tuple() | set() | frozenset():
            for entry in value:
                yield from _refs_in(entry)
        case _ if is_dataclass(value) and not isinstance(value, type):
            for entry in fields(value):
                yield from _refs_in(getattr(value, entry.name))
