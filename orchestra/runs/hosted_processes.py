"""The processes of a run over several hosts: those of this host, and those that agents keep on the others."""

import asyncio
import os
import signal
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace

from orchestra.actors.ref import Ref
from orchestra.actors.statistics import HostStatistics, NodeStatistics, ProcessStatistics
from orchestra.actors.system_messages import SYSTEM, StopNodeMsg
from orchestra.errors import OrchestraError, UsageError
from orchestra.hosts.bundle import UnpackedCode
from orchestra.hosts.fork_server import Base
from orchestra.hosts.keeper import Keeper
from orchestra.hosts.messages import HostedNode
from orchestra.hosts.run_plan import RunPlan
from orchestra.hosts.shape import HEAD, Hosts, HostShape
from orchestra.hosts.transfer import FilePieceMsg, send_file
from orchestra.hosts.use import ProcessorUse
from orchestra.nodes.node import Node
from orchestra.runs.head import Head
from orchestra.runs.head_addresses import address_beyond, address_here
from orchestra.runs.placement import by_host, edges_between_hosts, environments
from orchestra.runs.plan import PlannedRun
from orchestra.runs.planned import PlannedNode
from orchestra.runs.processes import RunProcesses, State
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.topology import Topology

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
        swapped: pairs of hosts that cannot dial each other as they do by default, but the other way; see `Edge`.
    """

    def __init__(
        self,
        root: Node,
        planned: PlannedRun,
        plan: RunPlan,
        head: Head,
        code: UnpackedCode,
        swapped: Collection[tuple[int, int]] = (),
    ) -> None:
        topology = self._topology = planned.topology
        others = [name for name in topology.nodes if name != topology.root.name]
        self._planned = planned
        self._plan = plan
        self._head = head
        self._code = code
        self._ever: set[str] = set()
        """Nodes that have been started: later processes load no saved state."""
        self._use = ProcessorUse()
        self._swapped = swapped
        self._dialled = _dialled(topology, swapped)
        self._names: list[str] = []
        self._by_host: Mapping[int, Sequence[PlannedNode]] = defaultdict(list)
        super().__init__(root, plan, others, requirements=topology.requirements, forks=True)

    def _keeper(self, plan: RunPlan, policy: object, *, forks: bool) -> Keeper:
        logs, hosts = RunDirectory(plan.run_directory).logs, self._planned.hosts
        advertise = () if hosts is None else hosts.advertise
        return Keeper(
            self._root,
            replace(plan, experiment=self._code.experiment, advertise=advertise),
            logs,
            lambda: address_here(self._root.listening),
            self.given_up,
            forks=forks,
            environment=lambda node: environments(self._placed()[HEAD]).get(node, {}),
            beyond=self._beyond,
            base=Base(self._code.environment(os.environ)),
        )

    async def run(self) -> None:
        self._head.begin(self)
        await super().run()

    def statistics(self) -> tuple[ProcessStatistics, ...]:
        others = [state for slot in self._head.slots.values() for state in slot.nodes.values()]
        return (*self.keeper.statistics(), *others)

    def hosts(self) -> tuple[HostStatistics, ...]:
        head = next(host for host in self._plan.hosts if host.slot == HEAD)
        running = {state.node for state in self.statistics() if state.running}
        now, kept = self._root.clock.monotonic(), [state.pid for state in self.keeper.statistics() if state.running]
        played = self._head.here
        placed = self._placed()
        own = tuple(node.name for node in placed[HEAD])
        here = HostStatistics(
            **asdict(head),
            nodes=own,
            running=1 + len(running.intersection(own)),
            state="playing",
            cores_used=self._use.measured(now, kept, [os.getpid()]),
            env_steps=played.env_steps,
            env_steps_per_s=played.per_s(now),
            policy_lag=played.policy_lag,
        )
        return (
            here,
            *(
                slot.statistics(self._root, tuple(node.name for node in placed[number]))
                for number, slot in self._head.slots.items()
            ),
        )

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
        variables = environments(self._placed()[slot])
        nodes = self._nodes_of(slot)
        hosted = tuple(
            HostedNode(
                name=name, environment=variables.get(name, {}), again=name in self._ever, beyond=self._beyond(name)
            )
            for name in nodes
        )
        self._ever.update(nodes)
        return hosted

    def given_up(self, node: str, how: str) -> None:
        self._give_up(node, how)

    def host_joined(self, shape: HostShape) -> str:
        if all(host.slot != shape.slot for host in self._plan.hosts):
            try:
                self._grow(shape)
            except UsageError as error:
                return str(error)
        nodes = self._nodes_of(shape.slot)
        self._given_up -= set(nodes)
        for node in nodes:
            self._root.directory.add(node)
        return ""

    def host_lost(self, slot: int, how: str, cause: OrchestraError | None = None) -> None:
        for node in self._nodes_of(slot):
            self._give_up(node, how, cause)

    def fail(self, text: str, cause: OrchestraError | None = None) -> None:
        self._fail(text, cause)

    def host_leaves(self, slot: int) -> None:
        self._ask_to_stop(node for node in self._root.peers.names if node in self._nodes_of(slot))

    def slot_of(self, node: str) -> int | None:
        planned = self._topology.nodes.get(node)
        return None if planned is None else planned.slot

    async def send_state(self, slot: int, files: Ref[FilePieceMsg]) -> None:
        if (folder := self._plan.resume_from) is None:
            return
        for node in self._nodes_of(slot):
            for path in sorted(folder.glob(f"{node}.*")):
                await send_file(files, path, f"{STATE}/{folder.name}/{path.name}", asyncio.to_thread)

    # Inside

    def _grow(self, shape: HostShape) -> None:
        """Plan the nodes of a host that was not there at the start.

        Raises:
            UsageError: the run cannot be laid out over it, too.
        """
        grown = self._planned.over(Hosts([*self._plan.hosts, shape]))
        self._plan = replace(self._plan, hosts=grown.shapes)
        nodes = self._topology.grow(grown.topology)
        self._requirements = self._topology.requirements
        self._nodes += nodes
        self._dialled = _dialled(self._topology, self._swapped)
        self.keeper.add(self._here(nodes), again=True)
        self._ever.update(nodes)
        placement = {name: node.slot for name, node in self._topology.nodes.items()}
        try:
            RunDirectory(self._plan.run_directory).write_hosts(grown.shapes, placement)
        except OSError as error:
            self._root.log.warning("a late host is not recorded", host=shape.name, error=repr(error))

    def _nodes_of(self, slot: int) -> list[str]:
        """Return the nodes of a host that have a process."""
        return [node.name for node in self._placed()[slot] if node is not self._topology.root]

    def _beyond(self, node: str) -> str:
        """Return where a node listens for nodes of other hosts; an empty text if none of them dials it."""
        options = self._planned.hosts
        if options is None or node not in self._dialled:
            return ""
        return address_beyond(options, encrypted=not self._plan.unencrypted)

    def _placed(self) -> Mapping[int, Sequence[PlannedNode]]:
        """Return the nodes of each host; the root is among those of the head."""
        names = list(self._topology.nodes)
        if names != self._names:
            self._names, self._by_host = names, by_host(self._topology)
        return self._by_host

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


def _dialled(topology: Topology, swapped: Collection[tuple[int, int]]) -> frozenset[str]:
    """Return the nodes that are dialled from another host."""
    return frozenset(edge.listener(swapped) for edge in edges_between_hosts(topology))
