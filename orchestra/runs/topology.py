"""Topology: the plan of a run, as a value: its nodes, their actors, and the refs that each actor is given."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestra.actors.addresses import AGENT, OBSERVER, check_name, node_of
from orchestra.actors.ref import Ref
from orchestra.errors import UsageError
from orchestra.hosts.shape import HEAD, HostShape
from orchestra.runs.planned import PlannedNode


@dataclass(frozen=True, slots=True)
class Requirement:
    """Actors of which a run needs a minimum number."""

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
"""Replicas that a group may have on one host."""
Place = tuple[int, int]
"""The place of a replica: the slot of its host, and its number on that host."""


@dataclass(eq=False)
class Replicas:
    """A group of nodes that differ in their index alone, so that more of them can be planned while a run goes on."""

    name: str
    """The name of the group."""
    plan: Callable[[HostShape, int], Ref[Any]]
    """Plans the node of a host and of a number on it; returns the ref of its actor."""
    at_least: int
    """The number of replicas below which the run fails."""
    counts: dict[HostShape, int]
    """The replicas that the experiment asked for on each host."""
    members: list[PlannedNode] = field(default_factory=list)
    """The nodes, by index."""
    refs: list[Ref[Any]] = field(default_factory=list)
    """The actors of the replicas, by index."""
    places: list[Place] = field(default_factory=list)
    """The places of the replicas, by index."""
    changes: list[Callable[[int, PlannedNode], object]] = field(default_factory=list)
    """The functions given to `each`."""

    def each(self, change: Callable[[int, PlannedNode], object]) -> None:
        """Call `change` with the index and the node of each replica, now and for those that are planned later."""
        self.changes.append(change)
        for index, node in enumerate(self.members):
            change(index, node)

    @property
    def planned(self) -> int:
        """The number of replicas that the experiment asked for."""
        return sum(self.counts.values())

    @property
    def most(self) -> int:
        """The number of replicas that are allowed."""
        return MOST_REPLICAS * len(self.counts)

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes, by index."""
        return [node.name for node in self.members]

    def next_place(self) -> tuple[HostShape, int]:
        """Return the host of the next replica and its number there.

        The hosts take turns until each has the replicas that the experiment asked for, and then go on taking turns.
        """
        have = Counter(slot for slot, _ in self.places)

        def turn(host: HostShape) -> tuple[bool, int, int]:
            more = have[host.slot] - self.counts[host]
            return more >= 0, more if more >= 0 else have[host.slot], host.slot

        host = min(self.counts, key=turn)
        return host, have[host.slot]

    def host(self, slot: int) -> HostShape:
        """Return the host of the group at a slot."""
        return next(host for host in self.counts if host.slot == slot)

    @property
    def requirement(self) -> Requirement:
        """The actors of this group, and how many of them the run requires."""
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
        self._preparations: list[tuple[Callable[[], object], bool]] = []
        self.shipped: list[Path] = []
        """Files and folders that go to other hosts."""
        self.named_files: tuple[Path, ...] = ()
        """Python files that the experiment imported by `import_file` when it was built: those that its flags name."""
        self._required: list[Requirement] = []
        self.groups: dict[str, Replicas] = {}
        """The groups of replicas, by name."""

    def node(
        self, name: str, *, on: HostShape | None = None, cores: int = 0, gpus: int = 0, memory: int = 0
    ) -> PlannedNode:
        """Plan a process.

        Args:
            name: of the node.
            on: the host that runs it; by default the head. The nodes of a host share its unix sockets and its memory.
            cores: the cores that it needs for itself; 0 if it shares those that are left.
            gpus: the GPUs that it needs for itself.
            memory: the bytes that it needs; 0 if unknown.

        Raises:
            UsageError: the name is taken, malformed or reserved, a need is negative, or the root is not on the head.
        """
        if check_name(name, "a node") in self.nodes:
            raise UsageError(f"topology {self.name!r} has a node {name!r} already")
        for prefix, whose in ((OBSERVER, "observers"), (AGENT, "the agents of hosts")):
            if name.startswith(prefix):
                raise UsageError(
                    f"{name!r} cannot name a node: names that begin with {prefix!r} are reserved for {whose}"
                )
        for what, need in (("cores", cores), ("gpus", gpus), ("memory", memory)):
            if need < 0:
                raise UsageError(f"node {name!r} needs {need} {what}; 0 or more are allowed")
        slot = HEAD if on is None else on.slot
        if not self.nodes and slot != HEAD:
            raise UsageError(f"node {name!r} is the root, which runs on the head; it cannot be on host {on}")
        node = self.nodes[name] = PlannedNode(name, slot, cores, gpus, memory)
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
        return self._group_of(name, {HostShape(HEAD): count}, lambda _, number: plan(number), at_least)

    def replicas_on(
        self,
        name: str,
        counts: Mapping[HostShape, int],
        plan: Callable[[HostShape, int], Ref[Any]],
        *,
        at_least: int = 1,
    ) -> Replicas:
        """Plan replicas as `replicas` does, over several hosts. Further replicas go to the hosts in turn.

        Args:
            name: the group's name, in the plural: `workers`.
            counts: the nodes on each host at the start of the run.
            plan: plans the node and the actor of a number on a host and returns the actor's ref. The name and the
                actor depend on the two alone: every process builds the same plan, also if hosts have come since.
            at_least: the number of these actors, over all hosts, below which the run fails and cannot be scaled.

        Raises:
            UsageError: the name is taken or malformed, a number is out of range, or there is no host.
        """
        if not counts:
            raise UsageError(f"topology {self.name!r} has no host for its {name}; at least one host must play")
        return self._group_of(name, counts, plan, at_least)

    def _group_of(
        self, name: str, counts: Mapping[HostShape, int], plan: Callable[[HostShape, int], Ref[Any]], at_least: int
    ) -> Replicas:
        if check_name(name, "a group of replicas") in self.groups:
            raise UsageError(f"topology {self.name!r} has a group {name!r} already")
        if at_least < 1:
            raise UsageError(f"topology {self.name!r} requires {at_least} {name}; at least 1 is allowed")
        group = self.groups[name] = Replicas(name, plan, at_least, dict(counts))
        self.scale(name, group.planned)
        return group

    def scale(self, name: str, count: int) -> tuple[list[str], list[str]]:
        """Change the number of replicas of a group; return the names of the nodes that are new, and that are gone.

        Raises:
            UsageError: there is no such group, or fewer or more replicas are not allowed.
        """
        group = self.group(name)
        if not group.at_least <= count <= group.most:
            raise UsageError(f"{group.name}: {count} is not allowed; {group.at_least} to {group.most} are")
        before = group.nodes
        while len(group.refs) < count:
            self._add_replica(group, *group.next_place())
        gone = before[count:]
        del group.refs[count:], group.members[count:], group.places[count:]
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
            while node not in self.nodes and len(group.refs) < group.most:
                self._add_replica(group, *group.next_place())
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

    def _add_replica(self, group: Replicas, host: HostShape, number: int) -> None:
        index, nodes = len(group.refs), len(self.nodes)
        ref = group.plan(host, number)
        node = list(self.nodes.values())[-1]
        if len(self.nodes) != nodes + 1 or node.name != node_of(ref.address):
            raise UsageError(
                f"topology {self.name!r}: the plan of {group.name!r} must add one node and return the ref of its actor"
            )
        if node.slot != host.slot:
            raise UsageError(
                f"topology {self.name!r}: the plan of {group.name!r} put {node.name!r} on host {node.slot} in place of "
                f"{host.slot}; write topology.node(name, on=host)"
            )
        group.refs.append(ref)
        group.members.append(node)
        group.places.append((host.slot, number))
        for change in group.changes:
            change(index, node)

    def grow(self, grown: "Topology") -> list[str]:
        """Become `grown`, the plan of the same run with further hosts, and return the names of the new nodes.

        Groups that were scaled keep the replicas that they have, and get those of the new hosts behind them.
        """
        before = list(self.nodes)
        for group in grown.groups.values():
            old = self.groups.get(group.name)
            if old is None:
                continue
            known = {host.slot for host in old.counts}
            places = [*old.places, *(place for place in group.places if place[0] not in known)]
            planned = dict(zip(group.places, zip(group.members, group.refs, strict=True), strict=True))
            for node, _ in planned.values():
                del grown.nodes[node.name]
            group.members, group.refs, group.places = [], [], []
            for place in places:
                if place not in planned:
                    grown._add_replica(group, group.host(place[0]), place[1])
                    continue
                node, ref = planned[place]
                grown.nodes[node.name] = node
                group.members.append(node)
                group.refs.append(ref)
                group.places.append(place)
        # The functions of the experiment plan further nodes in `grown`: both share them from now on.
        self.__dict__.update(grown.__dict__)
        return [name for name in self.nodes if name not in before]

    @property
    def requirements(self) -> list[Requirement]:
        """The actors without which the run fails, except for the main actor."""
        return [*self._required, *(group.requirement for group in self.groups.values())]

    def ships(self, path: str | Path) -> None:
        """Send a file or folder of the project to other hosts beside the code: a scenario that an actor reads."""
        self.shipped.append(Path(path))

    def before_start(self, prepare: Callable[[], object], *, everywhere: bool = True) -> None:
        """Call `prepare()` in the first process before anything is started; a dry run does not call it.

        It is for slow work that all processes would otherwise wait for, such as compiling.

        Args:
            prepare: called once.
            everywhere: call it once on each further host of the run, too.
        """
        self._preparations.append((prepare, everywhere))

    def prepare(self, *, everywhere: bool = False) -> None:
        """Call the functions given to `before_start`, in order; only those for `everywhere` if it is given."""
        for prepare, on_all in self._preparations:
            if on_all or not everywhere:
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

    def describe(self, hosts: Sequence[HostShape] = ()) -> str:
        """Return the plan as text: nodes, actors, and the refs that each actor is given.

        Args:
            hosts: of the run. If there are several, each is described, and each node has the slot of its host.
        """
        several = len(hosts) > 1
        lines = [f"topology {self.name!r}", *(f"  host {host}" for host in hosts if several)]
        end = self._until.address if self._until else None
        for node in self.nodes.values():
            lines.append(f"  {node.name}" + (f"   on host {node.slot}" if several else ""))
            for actor in node.actors:
                refs = ", ".join(ref.address for ref in actor.refs())
                ends = "   (the run ends with it)" if f"{node.name}/{actor.name}" == end else ""
                lines.append(f"    {actor.name}: {actor.kind.__name__}{' -> ' + refs if refs else ''}{ends}")
        return "\n".join(lines)
