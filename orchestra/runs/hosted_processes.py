"""The processes of a run over several hosts: those of this host, and those that agents keep on the others."""

import asyncio
import os
import signal
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace

from orchestra.actors.ref import Ref
from orchestra.actors.statistics import HostStatistics, NodeStatistics, ProcessStatistics
from orchestra.actors.system_messages import SYSTEM, StopNodeMsg
from orchestra.errors import OrchestraError
from orchestra.hosts.bundle import UnpackedCode
from orchestra.hosts.fork_server import Base
from orchestra.hosts.keeper import Keeper
from orchestra.hosts.messages import HostedNode
from orchestra.hosts.run_plan import RunPlan
from orchestra.hosts.shape import HEAD, Hosts
from orchestra.hosts.transfer import FilePieceMsg, send_file
from orchestra.nodes.node import Node
from orchestra.runs.head import Head
from orchestra.runs.head_addresses import address_here
from orchestra.runs.placement import environments
from orchestra.runs.plan import PlannedRun
from orchestra.runs.processes import RunProcesses, State
from orchestra.runs.run_directory import RunDirectory

STATE = "state"
DONE = 0
START_AGAIN = 75
"""Exit codes of agents at the end of a run: whether their hosts may be asked for again."""


class HostedProcesses(RunProcesses):
    """Keeps the processes of this host, and has agents keep the others. Implements `Hosted` for the head.

    Args:
        root: the node of this process.
        planned: the run over the hosts that have come.
        plan: of the run.
        head: of the run.
        code: what the processes of this host import, so that they run the same as all others.
    """

    def __init__(self, root: Node, planned: PlannedRun, plan: RunPlan, head: Head, code: UnpackedCode) -> None:
        topology = self._topology = planned.topology
        others = [name for name in topology.nodes if name != topology.root.name]
        self._planned = planned
        self._plan = plan
        self._head = head
        self._code = code
        self._ever: set[str] = set()
        """Nodes that have been started: later processes load no saved state."""
        super().__init__(root, plan, others, requirements=topology.requirements, forks=True)

    def _keeper(self, plan: RunPlan, policy: object, *, forks: bool) -> Keeper:
        logs = RunDirectory(plan.run_directory).logs
        return Keeper(
            self._root,
            replace(plan, experiment=self._code.experiment),
            logs,
            lambda: address_here(self._root.listening),
            self.given_up,
            forks=forks,
            environment=lambda node: environments(self._topology, HEAD).get(node, {}),
            base=Base(self._code.environment(os.environ)),
        )

    async def run(self) -> None:
        self._head.begin(self)
        await super().run()

    def statistics(self) -> tuple[ProcessStatistics, ...]:
        others = [state for slot in self._head.slots.values() for state in slot.nodes.values()]
        return (*self.keeper.statistics(), *others)

    def hosts(self) -> tuple[HostStatistics, ...]:
        nodes = {slot: tuple(name for name in self._nodes if self._slot_of(name) == slot) for slot in self._head.slots}
        head = next(host for host in self._plan.hosts if host.slot == HEAD)
        running = {state.node for state in self.statistics() if state.running}
        own = tuple(name for name, node in self._topology.nodes.items() if node.slot == HEAD)
        here = HostStatistics(
            **{**asdict(head), "nodes": own, "running": 1 + len(running.intersection(own)), "state": "playing"}
        )
        return (here, *(slot.statistics(self._root, nodes[slot.slot]) for slot in self._head.slots.values()))

    def signal(self, number: signal.Signals) -> None:
        self.keeper.signal(number)
        self._head.signal(number, self._root.peers.names)

    async def stop(self, asked: Collection[str] = (), deadline: float = 10.0, state: State = "failed") -> None:
        code = START_AGAIN if state in ("stopped", "interrupted") else DONE
        await asyncio.gather(
            self.keeper.stop(asked, deadline), self._head.end(code, f"the run is over: {state}", deadline)
        )

    async def final_statistics(self, nodes: Collection[str]) -> list[NodeStatistics]:
        here = [node for node in nodes if node in {state.node for state in self.keeper.statistics()}]
        there = self._head.statistics([] if set(nodes) >= set(self._root.peers.names) else nodes, final=True)
        return [*await super().final_statistics(here), *await there]

    # Hosted

    def plan_for(self, slot: int) -> str:
        return self._plan.text()

    def nodes_on(self, slot: int) -> Sequence[HostedNode]:
        variables = environments(self._topology, slot)
        nodes = self._nodes_of(slot)
        hosted = tuple(
            HostedNode(name=name, environment=variables.get(name, {}), again=name in self._ever) for name in nodes
        )
        self._ever.update(nodes)
        return hosted

    def given_up(self, node: str, how: str) -> None:
        self._give_up(node, how)

    def host_joined(self, slot: int) -> None:
        if all(host.slot != slot for host in self._plan.hosts):
            self._grow()
        self._given_up -= set(self._nodes_of(slot))
        for node in self._nodes_of(slot):
            self._root.directory.add(node)

    def host_lost(self, slot: int, how: str, cause: OrchestraError | None = None) -> None:
        for node in self._nodes_of(slot):
            self._give_up(node, how, cause)

    def fail(self, text: str, cause: OrchestraError | None = None) -> None:
        self._fail(text, cause)

    def host_leaves(self, slot: int) -> None:
        self._ask_to_stop(node for node in self._root.peers.names if node in self._nodes_of(slot))

    async def send_state(self, slot: int, files: Ref[FilePieceMsg]) -> None:
        if (folder := self._plan.resume_from) is None:
            return
        for node in self._nodes_of(slot):
            for path in sorted(folder.glob(f"{node}.*")):
                await send_file(files, path, f"{STATE}/{folder.name}/{path.name}", asyncio.to_thread)

    # Inside

    def _grow(self) -> None:
        """Plan the nodes of hosts that were not there at the start."""
        known = {host.slot for host in self._plan.hosts}
        new = [slot.shape for slot in self._head.slots.values() if slot.present and slot.slot not in known]
        grown = self._planned.over(Hosts([*self._plan.hosts, *filter(None, new)]))
        self._plan = replace(self._plan, hosts=grown.shapes)
        nodes = self._topology.grow(grown.topology)
        self._requirements = self._topology.requirements
        self._nodes += nodes
        self._ever.update(nodes)

    def _nodes_of(self, slot: int) -> list[str]:
        return [name for name in self._nodes if self._slot_of(name) == slot]

    def _slot_of(self, node: str) -> int:
        return self._topology.nodes[node].slot

    def _here(self, nodes: Sequence[str]) -> Sequence[str]:
        return [node for node in nodes if self._slot_of(node) == HEAD]

    def _start(self, nodes: Sequence[str]) -> None:
        self.keeper.add(self._here(nodes), again=True)
        self._ever.update(nodes)
        for slot in self._head.slots:
            mine = [hosted for hosted in self.nodes_on(slot) if hosted.name in nodes]
            if mine:
                self._head.start_nodes(slot, mine)

    async def _stop(self, nodes: Sequence[str], deadline: float) -> None:
        mine = {state.node for state in self.keeper.statistics()}  # the topology has forgotten them
        here = [node for node in nodes if node in mine]
        there = [node for node in nodes if node not in here]
        self._head.stop_nodes(there)
        await asyncio.gather(self.keeper.remove(here, deadline), self._head.until_ended(there))

    def _ask_to_stop(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            with suppress(OrchestraError):  # it is gone, as it should be
                self._root.ref(f"{node}/{SYSTEM}").tell_nowait(StopNodeMsg())

    def _last_words(self, node: str) -> Iterable[str]:
        for slot in self._head.slots.values():
            if node in slot.last_words:
                return slot.last_words[node]
        return super()._last_words(node) if self._slot_of(node) == HEAD else ()
