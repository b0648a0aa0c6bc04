"""Tries before a run begins whether its hosts can dial each other where actors are planned to talk."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from orchestra.actors.ref import Ref
from orchestra.errors import OrchestraError, UsageError
from orchestra.hosts.reach import DialledMsg, DialMsg, ListenMsg, Reach, ReachableMsg
from orchestra.hosts.shape import HEAD
from orchestra.nodes.node import Node
from orchestra.runs.placement import Edge, edges_between_hosts, title_of
from orchestra.runs.plan import PlannedRun

Agent = Ref[Any]


class _Side(Protocol):
    """A host, as it is asked to listen and to dial."""

    async def listen(self, msg: ListenMsg) -> ReachableMsg: ...

    async def dial(self, msg: DialMsg) -> DialledMsg: ...


@dataclass(frozen=True, slots=True)
class _AgentSide:
    root: Node
    agent: Agent

    async def listen(self, msg: ListenMsg) -> ReachableMsg:
        answer: ReachableMsg = await self.root.ref(self.agent.address).ask(msg)
        return answer

    async def dial(self, msg: DialMsg) -> DialledMsg:
        answer: DialledMsg = await self.root.ref(self.agent.address).ask(msg)
        return answer


@dataclass(slots=True)
class _Trial:
    """Tries pairs of hosts. Each host listens once, however many others dial it."""

    sides: Mapping[int, _Side]
    address: str
    """The address at which nodes listen for other hosts."""
    listening: dict[int, "asyncio.Task[ReachableMsg]"] = field(default_factory=dict)

    async def swapped(self, edge: Edge) -> bool | str:
        """Return whether the default dialler of an edge must listen instead, or why neither side can dial the other."""
        listener, dialler = edge.slots()
        try:
            if not (one := await self._failure(dialler, listener)):
                return False
            other = await self._failure(listener, dialler)
        except OrchestraError:
            return False  # an agent is gone meanwhile: the head knows, and the run may do without its host
        return (
            f"from host {dialler} to {listener}: {one}; from host {listener} to {dialler}: {other}" if other else True
        )

    async def _failure(self, dialler: int, listener: int) -> str:
        """Return why one host cannot dial another one; empty if it can."""
        if listener not in self.listening:
            self.listening[listener] = asyncio.create_task(self.sides[listener].listen(ListenMsg(address=self.address)))
        reachable = await self.listening[listener]
        if reachable.error:
            return reachable.error
        return (await self.sides[dialler].dial(DialMsg(address=reachable.address))).error


async def swapped_pairs(
    planned: PlannedRun, root: Node, agents: Mapping[int, Agent], address: str
) -> frozenset[tuple[int, int]]:
    """Return the pairs of hosts, by `Edge.slots`, whose second host cannot dial the first, while the first can dial it.

    Only pairs between which actors are planned to talk are tried, all at once.

    Args:
        planned: the run over the hosts that have come.
        root: the node of this process.
        agents: the actors of the agents, by slot.
        address: where nodes listen for other hosts.

    Raises:
        UsageError: two hosts cannot reach each other. The text names both, the addresses tried, and what to do.
    """
    edges: dict[tuple[int, int], Edge] = {}
    for edge in edges_between_hosts(planned.topology):
        edges.setdefault(edge.slots(), edge)
    here = Reach(root, planned.hosts.advertise if planned.hosts is not None else ())
    trial = _Trial({HEAD: here} | {slot: _AgentSide(root, agent) for slot, agent in agents.items()}, address)
    pairs = [pair for pair in edges if set(pair) <= set(trial.sides)]
    try:
        found = await asyncio.gather(*(trial.swapped(edges[pair]) for pair in pairs))
    finally:
        await here.close()
    for pair, why in zip(pairs, found, strict=True):
        if isinstance(why, str):
            edge = edges[pair]
            one, other = (title_of(planned.shapes, slot) for slot in (edge.sender_slot, edge.recipient_slot))
            raise UsageError(
                f"{edge.sender} on {one} cannot reach {edge.recipient} on {other}: {why}. Let connections through "
                "between these hosts (--port A-B has all nodes listen at ports of a range, --advertise names the "
                "head's address), or place both actors on one host"
            )
    return frozenset(pair for pair, swapped in zip(pairs, found, strict=True) if swapped)
