"""Topology: the plan of a run, as a value: its nodes, their actors, and the refs that each actor is given."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

from orchestra.actors.actor import Actor, actor_class
from orchestra.actors.addresses import OBSERVER, check_name, is_observer, node_of
from orchestra.actors.message import Message
from orchestra.actors.ref import Ref
from orchestra.errors import UsageError

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
    """A planned process."""

    name: str
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


@dataclass(frozen=True, slots=True)
class Requirement:
    """Actors of which a run needs some."""

    actors: tuple[str, ...]
    """Their addresses."""
    at_least: int
    """The number of them below which the run fails."""

    def missing(self, lost: Callable[[str], bool]) -> str:
        """Return what is missing, in words, if the actors whose address is `lost` are; else an empty text."""
        left = sum(not lost(address) for address in self.actors)
        if left >= self.at_least:
            return ""
        if len(self.actors) == 1:
            return f"{self.actors[0]} is required and lost"
        return f"{left} of {len(self.actors)} actors are left ({self._named()}), and at least {self.at_least} required"

    def _named(self) -> str:
        more = len(self.actors) - 2
        return ", ".join(self.actors) if more < 2 else f"{self.actors[0]}, {self.actors[1]} and {more} more"


MOST_REPLICAS = 1024
"""Replicas that a group may have."""


@dataclass(eq=False)
class Replicas:
    """A group of nodes that differ in their index alone, so that more of them can be planned while a run goes on."""

    name: str
    """The name of the group."""
    plan: Callable[[int], Ref[Any]]
    """Plans the node of an index; returns the ref of its actor."""
    at_least: int
    """The number of replicas below which the run fails."""
    members: list[PlannedNode] = field(default_factory=list)
    """The nodes, by index."""
    refs: list[Ref[Any]] = field(default_factory=list)
    """The actors of the replicas, by index."""
    planned: int = 0
    """The number of replicas that the experiment asked for."""
    changes: list[Callable[[int, PlannedNode], object]] = field(default_factory=list)
    """The functions given to `each`."""

    def each(self, change: Callable[[int, PlannedNode], object]) -> None:
        """Call `change` with the index and the node of each replica, now and for those that are planned later."""
        self.changes.append(change)
        for index, node in enumerate(self.members):
            change(index, node)

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes, by index."""
        return [node.name for node in self.members]

    @property
    def requirement(self) -> Requirement:
        """What the run requires of this group."""
        return Requirement(tuple(ref.address for ref in self.refs), self.at_least)


class Topology:
    """A plan: nodes, their actors, and the main actor, with which the run ends.

    The first node is the root: the process of `orchestra run` itself. It keeps the directory of nodes, and all other
    processes end with it. Building a topology starts nothing; every process of a run builds the same one.
    """

    def __init__(self, name: str) -> None:
        self.name = check_name(name, "a topology")
        self.nodes: dict[str, PlannedNode] = {}
        self._until: Ref[Any] | None = None
        self._preparations: list[Callable[[], object]] = []
        self._required: list[Requirement] = []
        self.groups: dict[str, Replicas] = {}
        """The groups of replicas, by name."""

    def node(self, name: str) -> PlannedNode:
        """Plan a process.

        Raises:
            UsageError: the name is taken, malformed or reserved for observers.
        """
        if check_name(name, "a node") in self.nodes:
            raise UsageError(f"topology {self.name!r} has a node {name!r} already")
        if is_observer(name):
            raise UsageError(
                f"{name!r} cannot name a node: names that begin with {OBSERVER!r} are reserved for observers"
            )
        node = self.nodes[name] = PlannedNode(name)
        return node

    def until(self, actor: Ref[Any]) -> None:
        """Make `actor`, which runs in the root, the main actor: the run ends when it has stopped."""
        self._until = actor

    def require(self, *actors: Ref[Any], at_least: int | None = None) -> None:
        """Make the run fail once fewer than `at_least` of `actors` are left, by default once one of them is lost.

        An actor is lost when it has ended before the run, or its process has died too often.

        Raises:
            UsageError: there are fewer actors, or one of them is not planned.
        """
        addresses = tuple(actor.address for actor in actors)
        planned = {f"{node.name}/{actor.name}" for node in self.nodes.values() for actor in node.actors}
        if strangers := [address for address in addresses if address not in planned]:
            raise UsageError(f"topology {self.name!r} requires {strangers[0]}, which is not planned")
        count = len(addresses) if at_least is None else at_least
        if not 1 <= count <= len(addresses):
            raise UsageError(
                f"topology {self.name!r} requires {count} of {len(addresses)} actors; 1 to {len(addresses)} are allowed"
            )
        for each in [addresses] if at_least is not None else [(address,) for address in addresses]:
            self._required.append(Requirement(each, len(each) if at_least is None else at_least))

    def replicas(self, name: str, count: int, plan: Callable[[int], Ref[Any]], *, at_least: int = 1) -> Replicas:
        """Plan `count` nodes with one actor each, of which `orchestra scale` may add and remove some during the run.

        Args:
            name: the group's name, in the plural: `workers`.
            count: nodes at the start of the run.
            plan: plans the node and the actor of an index and returns its ref. It is called for 0, 1, 2 and so on, in
                every process of the run, and later for further indexes. The indexes of removed replicas are the last.
            at_least: the number of these actors below which the run fails, and below which it cannot be scaled.

        Raises:
            UsageError: the name is taken or malformed, or a number is out of range.
        """
        if check_name(name, "a group of replicas") in self.groups:
            raise UsageError(f"topology {self.name!r} has a group {name!r} already")
        if at_least < 1:
            raise UsageError(f"topology {self.name!r} requires {at_least} {name}; at least 1 is allowed")
        group = self.groups[name] = Replicas(name, plan, at_least)
        self.scale(name, count)
        group.planned = count
        return group

    def scale(self, name: str, count: int) -> tuple[list[str], list[str]]:
        """Change the number of replicas of a group; return the names of the nodes that are new, and that are gone.

        Raises:
            UsageError: there is no such group, or fewer or more replicas are not allowed.
        """
        group = self.group(name)
        if not group.at_least <= count <= MOST_REPLICAS:
            raise UsageError(f"{group.name}: {count} is not allowed; {group.at_least} to {MOST_REPLICAS} are")
        before = group.nodes
        while len(group.refs) < count:
            self._add_replica(group)
        gone = before[count:]
        del group.refs[count:], group.members[count:]
        for node in gone:
            del self.nodes[node]
        return group.nodes[len(before) :], gone

    def find(self, node: str) -> PlannedNode:
        """Return the planned node of this name. Replicas are planned as far as it takes: a scaled run has more.

        Raises:
            UsageError: no node has this name, however many replicas there are.
        """
        counts = {group.name: len(group.refs) for group in self.groups.values()}
        for group in self.groups.values():
            while node not in self.nodes and len(group.refs) < MOST_REPLICAS:
                self._add_replica(group)
            if node not in self.nodes:
                self.scale(group.name, counts[group.name])
        if node not in self.nodes:
            raise UsageError(f"topology {self.name!r} has no node {node!r}; its nodes are {', '.join(self.nodes)}")
        return self.nodes[node]

    def group(self, name: str) -> Replicas:
        """Return a group of replicas.

        Raises:
            UsageError: there is no such group.
        """
        if name not in self.groups:
            known = f"; its groups are {', '.join(self.groups)}" if self.groups else ", so it cannot be scaled"
            raise UsageError(f"topology {self.name!r} has no group of replicas {name!r}{known}")
        return self.groups[name]

    def _add_replica(self, group: Replicas) -> None:
        index, nodes = len(group.refs), len(self.nodes)
        ref = group.plan(index)
        node = list(self.nodes.values())[-1]
        if len(self.nodes) != nodes + 1 or node.name != node_of(ref.address):
            raise UsageError(
                f"topology {self.name!r}: the plan of {group.name!r} must add one node and return the ref of its actor"
            )
        group.refs.append(ref)
        group.members.append(node)
        for change in group.changes:
            change(index, node)

    @property
    def requirements(self) -> list[Requirement]:
        """Without which actors the run fails, the main actor excepted."""
        return [*self._required, *(group.requirement for group in self.groups.values())]

    def before_start(self, prepare: Callable[[], object]) -> None:
        """Call `prepare()` in the first process before anything is started; a dry run does not call it.

        It is for slow work that all processes would otherwise wait for, such as compiling.
        """
        self._preparations.append(prepare)

    def prepare(self) -> None:
        """Call the functions given to `before_start`, in order."""
        for prepare in self._preparations:
            prepare()

    @property
    def root(self) -> PlannedNode:
        """The first node."""
        return next(iter(self.nodes.values()))

    def main_actor(self) -> str:
        """Return the address of the main actor.

        Raises:
            UsageError: the plan has no node or no main actor, or the main actor does not run in the root.
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
        """Return the plan as text: nodes, actors, and the refs that each actor is given."""
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
