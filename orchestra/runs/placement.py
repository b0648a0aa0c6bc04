"""Placement: which host runs each node of a topology, and what its processes may use there."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from orchestra.actors.addresses import node_of
from orchestra.errors import UsageError
from orchestra.hosts.shape import HEAD, Hosts, HostShape, memory_text
from orchestra.runs.planned import PlannedNode
from orchestra.runs.topology import Topology
from orchestra.wire.addresses import names_port


@dataclass(frozen=True, slots=True)
class _Resource:
    name: str
    asked: Callable[[PlannedNode], int]
    there: Callable[[HostShape], int]
    text: Callable[[int], str]


_RESOURCES = (
    _Resource("cores", lambda node: node.cores, lambda host: host.cores, str),
    _Resource("GPUs", lambda node: node.gpus, lambda host: host.gpus, str),
    _Resource("memory", lambda node: node.memory, lambda host: host.memory, memory_text),
)


def place(topology: Topology, hosts: Hosts, *, ignored: Sequence[str] = ()) -> dict[str, int]:
    """Return the slot of each node, in the order of the topology.

    A node runs where the experiment has put it. The result does not depend on the order in which hosts have joined.

    Args:
        topology: of the run, built for these hosts.
        hosts: of the run. A host whose cores are unknown, because it has not reported yet, has whatever is needed.
        ignored: resources that are not checked: `cores`, `GPUs`, `memory`.

    Raises:
        UsageError: the nodes of a host need more than it has. The text is a table of what was asked and what is there.
    """
    slots = {host.slot for host in hosts}
    for node in topology.nodes.values():
        if node.slot not in slots:
            known = ", ".join(map(str, sorted(slots)))
            raise UsageError(f"node {node.name!r} is on host {node.slot}, but the hosts of the run are {known}")
    resources = [each for each in _RESOURCES if each.name not in ignored]
    placed = by_host(topology)
    if lacking := [row for host in hosts if host.cores for row in _lacking(placed[host.slot], host, resources)]:
        text = "\n".join(["the nodes of the run need more than their hosts have:", *_table(lacking)])
        if short := [row[0] for row in lacking if row[1] == "GPUs"]:
            there = [host for host in hosts if host.gpus]
            named = ", ".join(f"{host.slot} ({host.name}, {host.gpus})" for host in there)
            text += f"\nthe hosts with GPUs are {named}" if there else "\nno host has a GPU"
            if short[0] == _title(hosts[0]) and there not in ([], [hosts[0]]):
                text += "; --head NAME runs the head, with the learner, on one of them"
        raise UsageError(text)
    return {node.name: node.slot for node in topology.nodes.values()}


def environments(nodes: Iterable[PlannedNode]) -> dict[str, dict[str, str]]:
    """Return the environment variables of each of the `nodes` of a host, by the node's name.

    Libraries get as many threads as the node has cores of its own, or one if it shares them. A node sees the GPUs that
    it needs and no others: indexes among those of its host, which `visible_gpus` translates there.
    """
    first, found = 0, {}
    for node in nodes:
        threads = str(max(node.cores, 1))
        found[node.name] = {
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "CUDA_VISIBLE_DEVICES": ",".join(str(first + number) for number in range(node.gpus)),
        }
        first += node.gpus
    return found


@dataclass(frozen=True, slots=True)
class Edge:
    """A ref of an actor to an actor of another host, neither of which is in the root node."""

    sender: str
    """The address of the actor that has the ref."""
    sender_slot: int
    recipient: str
    recipient_slot: int

    def slots(self) -> tuple[int, int]:
        """Return the host that is dialled, and the one that dials it. The head is dialled: it may be unable to dial."""
        here, there = self.sender_slot, self.recipient_slot
        return (here, there) if here == HEAD else (there, here)

    def listener(self, swapped: Collection[tuple[int, int]] = ()) -> str:
        """Return the node that the other one dials. If `swapped` has the `slots`, it is the one on the second host."""
        of_sender = (self.sender_slot == HEAD) is not (self.slots() in swapped)
        return node_of(self.sender if of_sender else self.recipient)


def edges_between_hosts(topology: Topology) -> list[Edge]:
    """Return the refs with which actors are planned to reach nodes of other hosts, but for those of and to the root.

    A host reaches the root through its agent, so only these refs need a node to be dialled from another host.
    """
    found = []
    for node in topology.nodes.values():
        if node is topology.root:
            continue
        for actor in node.actors:
            for ref in actor.refs():
                other = topology.nodes.get(node_of(ref.address))
                if other is not None and other is not topology.root and other.slot != node.slot:
                    found.append(Edge(f"{node.name}/{actor.name}", node.slot, ref.address, other.slot))
    return found


def check_edges(topology: Topology, hosts: Hosts, *, tunnel: bool, advertise: Sequence[str] = ()) -> None:
    """Check that the settings let actors reach the nodes of other hosts that they are planned to reach.

    Args:
        topology: of the run.
        hosts: of the run.
        tunnel: whether hosts reach the head through ssh alone, which leads to the root.
        advertise: `HOST` or `HOST:PORT`, where hosts reach the head. A port leads to the root alone, too.

    Raises:
        UsageError: they cannot.
    """
    port = next(filter(names_port, advertise), "")
    if not (tunnel or port) or len(hosts) == 1:
        return
    for edge in edges_between_hosts(topology):
        if not tunnel and HEAD not in edge.slots():
            continue
        option = "--tunnel" if tunnel else f"--advertise {port}"
        instead = "leave out --tunnel" if tunnel else "write --advertise HOST, without a port"
        one, other = (title_of(hosts, slot) for slot in (edge.sender_slot, edge.recipient_slot))
        raise UsageError(
            f"{edge.sender} on {one} cannot reach {edge.recipient} on {other}: with {option} the hosts reach the node "
            f"{topology.root.name!r} alone; {instead}"
        )


def by_host(topology: Topology) -> defaultdict[int, list[PlannedNode]]:
    """Return the nodes of each host by its slot, in the order of the topology."""
    found = defaultdict[int, list[PlannedNode]](list)
    for node in topology.nodes.values():
        found[node.slot].append(node)
    return found


def _lacking(
    nodes: Sequence[PlannedNode], host: HostShape, resources: Sequence[_Resource]
) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield a row for each resource of which the nodes of a host need more than it has."""
    for each in resources:
        asked, there = sum(map(each.asked, nodes)), each.there(host)
        if asked > there:
            which = ", ".join(node.name for node in nodes if each.asked(node))
            yield _title(host), each.name, each.text(asked), each.text(there), which


def title_of(hosts: Hosts, slot: int) -> str:
    """Return what people call a host: `host 1 (cpu1)`."""
    return f"host {_title(hosts.at(slot) or HostShape(slot))}"


def _title(host: HostShape) -> str:
    return f"{host.slot} ({host.name or '?'})"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    lines = [("host", "what", "asked", "there", "by"), *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(5)]
    return ["  " + "  ".join(f"{cell:<{n}}" for cell, n in zip(line, widths, strict=True)).rstrip() for line in lines]
