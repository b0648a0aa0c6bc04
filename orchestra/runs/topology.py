"""Topology: the plan of a run, as a value. Which nodes, which actors, who holds whose ref."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

from orchestra.actors.actor import Actor, actor_class
from orchestra.actors.addresses import GUEST, check_name, is_guest
from orchestra.actors.message import Message
from orchestra.actors.ref import Ref
from orchestra.errors import UsageError

P = ParamSpec("P")
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class PlannedActor:
    """An actor to be: its class and what its constructor will be given."""

    name: str
    kind: type[Actor[Any]]
    factory: partial[Actor[Any]]

    def refs(self) -> list[Ref[Any]]:
        """Return the refs that it is handed, in order, each once."""
        found = [*_refs_in(self.factory.args), *_refs_in(self.factory.keywords)]
        return list(dict.fromkeys(found))


@dataclass(slots=True)
class PlannedNode:
    """A process to be."""

    name: str
    actors: list[PlannedActor] = field(default_factory=list)

    def spawn(self, name: str, kind: Callable[P, Actor[M]], *args: P.args, **kwargs: P.kwargs) -> Ref[M]:
        """Plan the actor `kind(*args, **kwargs)` and return its ref. Passing a ref on draws an edge.

        Raises:
            UsageError: the name is taken, or no name.
        """
        if any(actor.name == check_name(name, "an actor") for actor in self.actors):
            raise UsageError(f"node {self.name!r} has an actor {name!r} already")
        factory: partial[Actor[Any]] = partial(kind, *args, **kwargs)
        self.actors.append(PlannedActor(name, actor_class(kind), factory))
        return Ref(f"{self.name}/{name}")

    def replace(self, name: str, kind: type[Actor[Any]], **more: Any) -> None:
        """Have the planned actor `name` be a `kind` instead: made with what was planned, but for what `more` names.

        Refs to it, and the order in which actors start, stay as they are.

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


class Topology:
    """A plan: nodes, their actors, and which actor's end is the end of the run.

    The first node is the root: it is the process of `orchestra run` itself, it keeps the directory, and all others end
    when it does. Building a topology starts nothing; every process of a run builds the same one.
    """

    def __init__(self, name: str) -> None:
        self.name = check_name(name, "a topology")
        self.nodes: dict[str, PlannedNode] = {}
        self._until: Ref[Any] | None = None
        self._preparations: list[Callable[[], object]] = []

    def node(self, name: str) -> PlannedNode:
        """Plan a process.

        Raises:
            UsageError: the name is taken, or no name.
        """
        if check_name(name, "a node") in self.nodes:
            raise UsageError(f"topology {self.name!r} has a node {name!r} already")
        if is_guest(name):
            raise UsageError(f"{name!r} cannot name a node: names that begin with {GUEST!r} are kept for guests")
        node = self.nodes[name] = PlannedNode(name)
        return node

    def until(self, actor: Ref[Any]) -> None:
        """Say that the run ends when `actor`, of the root, has stopped."""
        self._until = actor

    def before_start(self, prepare: Callable[[], object]) -> None:
        """Have `prepare()` called in the first process before anything is started, and not where nothing is.

        It is for what all processes would wait for, and what takes long, as compiling does.
        """
        self._preparations.append(prepare)

    def prepare(self) -> None:
        """Do what `before_start` was given, in order; a run begins so."""
        for prepare in self._preparations:
            prepare()

    @property
    def root(self) -> PlannedNode:
        """The first node."""
        return next(iter(self.nodes.values()))

    def main_actor(self) -> str:
        """Return the address of the actor whose end is the end of the run.

        Raises:
            UsageError: the plan has no node, or names no such actor of the root.
        """
        if not self.nodes:
            raise UsageError(f"topology {self.name!r} has no node")
        if self._until is None:
            raise UsageError(f"topology {self.name!r} does not say when the run ends: call until(ref)")
        root = self.root
        addresses = [f"{root.name}/{actor.name}" for actor in root.actors]
        if self._until.address not in addresses:
            raise UsageError(
                f"topology {self.name!r} ends with {self._until.address}, which is no actor of its first node; "
                f"these are {', '.join(addresses) or 'none'}"
            )
        return self._until.address

    def describe(self) -> str:
        """Return the plan as text: nodes, actors, who holds whose ref."""
        lines = [f"topology {self.name!r}"]
        end = self._until.address if self._until else None
        for node in self.nodes.values():
            lines.append(f"  {node.name}")
            for actor in node.actors:
                refs = ", ".join(ref.address for ref in actor.refs())
                ends = "   (the run ends with it)" if f"{node.name}/{actor.name}" == end else ""
                lines.append(f"    {actor.name}: {actor.kind.__name__}{' -> ' + refs if refs else ''}{ends}")
        return "\n".join(lines)


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
