"""Placement: which host runs each node of a topology, and what its processes may use there."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from orchestra.errors import UsageError
from orchestra.hosts.shape import Hosts, HostShape, memory_text
from orchestra.runs.planned import PlannedNode
from orchestra.runs.topology import Topology


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
    if lacking := [row for host in hosts if host.cores for row in _lacking(topology, host, resources)]:
        text = "\n".join(["the nodes of the run need more than their hosts have:", *_table(lacking)])
        if short := [row[0] for row in lacking if row[1] == "GPUs"]:
            there = [host for host in hosts if host.gpus]
            named = ", ".join(f"{host.slot} ({host.name}, {host.gpus})" for host in there)
            text += f"\nthe hosts with GPUs are {named}" if there else "\nno host has a GPU"
            if short[0] == _title(hosts[0]) and there not in ([], [hosts[0]]):
                text += "; --head NAME runs the head, with the learner, on one of them"
        raise UsageError(text)
    return {node.name: node.slot for node in topology.nodes.values()}


def environments(topology: Topology, slot: int) -> dict[str, dict[str, str]]:
    """Return the environment variables of each node of a host, by the node's name.

    Libraries get as many threads as the node has cores of its own, or one if it shares them. A node sees the GPUs that
    it needs and no others: indexes among those of its host, which `visible_gpus` translates there.
    """
    first, found = 0, {}
    for node in topology.nodes.values():
        if node.slot != slot:
            continue
        threads = str(max(node.cores, 1))
        found[node.name] = {
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "CUDA_VISIBLE_DEVICES": ",".join(str(first + number) for number in range(node.gpus)),
        }
        first += node.gpus
    return found


def _lacking(
    topology: Topology, host: HostShape, resources: Sequence[_Resource]
) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield a row for each resource of which the nodes of a host need more than it has."""
    nodes = [node for node in topology.nodes.values() if node.slot == host.slot]
    for each in resources:
        asked, there = sum(map(each.asked, nodes)), each.there(host)
        if asked > there:
            which = ", ".join(node.name for node in nodes if each.asked(node))
            yield _title(host), each.name, each.text(asked), each.text(there), which


def _title(host: HostShape) -> str:
    return f"{host.slot} ({host.name or '?'})"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    lines = [("host", "what", "asked", "there", "by"), *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(5)]
    return ["  " + "  ".join(f"{cell:<{n}}" for cell, n in zip(line, widths, strict=True)).rstrip() for line in lines]
