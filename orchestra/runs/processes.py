"""The processes of a run: one for each node but the root. The run fails when too few of its actors are left."""

import asyncio
import signal
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from typing import Literal

from orchestra.actors.addresses import node_of
from orchestra.actors.statistics import FinalStatisticsMsg, HostStatistics, NodeStatistics, ProcessStatistics
from orchestra.actors.supervision import Restart
from orchestra.actors.system_messages import SYSTEM
from orchestra.errors import OrchestraError
from orchestra.hosts.keeper import Keeper
from orchestra.hosts.run_plan import RunPlan
from orchestra.nodes.node import Node
from orchestra.runs.head_addresses import address_here
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.topology import Requirement

ANSWER_S = 5.0
"""A node that does not send its final statistics within this time is left out of `message_counts.json`."""
State = Literal["completed", "stopped", "interrupted", "failed"]
"""The state in which a run ends."""


class RunProcesses:
    """Starts a process for each node, and restarts it when it dies.

    The run fails with `ActorsLost` when too few of the actors that one of `requirements` names are left, or all nodes
    are given up.

    Args:
        root: the node of this process.
        plan: of the run.
        nodes: the nodes that get a process.
        policy: how often a process is started again.
        requirements: without which actors the run fails.
        forks: whether processes are forked from a template where the system allows it.
    """

    def __init__(
        self,
        root: Node,
        plan: RunPlan,
        nodes: Sequence[str],
        policy: Restart | None = None,
        requirements: Sequence[Requirement] = (),
        *,
        forks: bool = False,
    ) -> None:
        self._root = root
        self._nodes = list(nodes)
        self._requirements = requirements
        self._given_up: set[str] = set()
        self._failed = False
        self.keeper = self._keeper(plan, policy, forks=forks)
        """Keeps the processes of this host."""

    def _keeper(self, plan: RunPlan, policy: Restart | None, *, forks: bool) -> Keeper:
        logs = RunDirectory(plan.run_directory).logs
        return Keeper(
            self._root, plan, logs, lambda: address_here(self._root.listening), self._give_up, policy, forks=forks
        )

    async def run(self) -> None:
        """Keep all nodes running until `stop`."""
        await self.keeper.run(self._here(self._nodes))

    def add(self, nodes: Sequence[str], requirements: Sequence[Requirement]) -> None:
        """Start more nodes, and again those of them that were given up.

        Args:
            nodes: their names.
            requirements: those that hold from now on.
        """
        self._requirements = requirements
        self._given_up -= set(nodes)
        for node in nodes:
            self._root.directory.add(node)
            if node not in self._nodes:
                self._nodes.append(node)
        self._start(nodes)

    async def remove(self, nodes: Sequence[str], requirements: Sequence[Requirement], deadline: float = 10.0) -> None:
        """Stop some nodes in order, and expect them no longer. Returns once their processes have ended.

        Args:
            nodes: their names.
            requirements: those that hold from now on.
            deadline: seconds to wait before a process is terminated, and then before it is killed.
        """
        self._requirements = requirements
        self._nodes = [node for node in self._nodes if node not in nodes]
        await self._stop(nodes, deadline)
        self._given_up -= set(nodes)
        for node in nodes:
            self._root.directory.give_up(node, "the run has fewer replicas now")

    def gone(self, node: str) -> bool:
        """Return whether `node` was given up: its process has died too often."""
        return node in self._given_up

    def statistics(self) -> tuple[ProcessStatistics, ...]:
        """Return the state of each process."""
        return self.keeper.statistics()

    async def final_statistics(self, nodes: Collection[str]) -> list[NodeStatistics]:
        """Return the final statistics of `nodes`, as far as they answer; they expect peers to disappear from now on."""
        statistics = []
        for node in nodes:
            if node not in self._root.peers.names:
                continue
            try:
                async with asyncio.timeout(ANSWER_S):
                    statistics.append(await self._root.ref(f"{node}/{SYSTEM}").ask(FinalStatisticsMsg()))
            except (OrchestraError, TimeoutError) as error:
                self._root.log.warning("a node did not say what it did", peer=node, reason=str(error))
        return statistics

    def hosts(self) -> tuple[HostStatistics, ...]:
        """Return the hosts of the run, by slot; none of a run on this host alone."""
        return ()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to each process that has joined. One that has not may not handle the signal yet."""
        self.keeper.signal(number)

    async def stop(self, asked: Collection[str] = (), deadline: float = 10.0, state: State = "failed") -> None:
        """Wait for all processes to end; terminate, then kill a process that does not.

        Args:
            asked: the nodes that were asked to stop. All others had not joined yet, and are terminated at once.
            deadline: seconds to wait before each step.
            state: how the run ends.
        """
        await self.keeper.stop(asked, deadline)

    def _here(self, nodes: Sequence[str]) -> Sequence[str]:
        """Return those nodes that run on this host: all."""
        return nodes

    def _start(self, nodes: Sequence[str]) -> None:
        """Start nodes whose actors begin without a saved state."""
        self.keeper.add(nodes, again=True)

    async def _stop(self, nodes: Sequence[str], deadline: float) -> None:
        """Stop nodes in order, and wait for the end of their processes."""
        await self.keeper.remove(nodes, deadline)

    def _give_up(self, node: str, how: str, cause: OrchestraError | None = None) -> None:
        self._given_up.add(node)
        self._root.directory.give_up(node, how)
        lost = [each.missing(lambda address: node_of(address) in self._given_up) for each in self._requirements]
        if missing := next(filter(None, lost), ""):
            self._fail(f"{missing}; {node} was given up: {how}", cause)
        elif len(self._given_up) == len(self._nodes):
            self._fail(f"every node was given up; the last, {node}: {how}", cause)

    def _last_words(self, node: str) -> Iterable[str]:
        return self.keeper.last_words(node)

    def _fail(self, text: str, cause: OrchestraError | None = None) -> None:
        if not self._failed:
            self._failed = True
            error = ActorsLost(text, list(chain.from_iterable(map(self._last_words, sorted(self._given_up)))))
            error.__cause__ = cause
            self._root.escalate(error)


class ActorsLost(OrchestraError):
    """Too few of the actors that a run requires are left."""

    def __init__(self, text: str, details: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.details = details
        """Lines about the processes that died: the last errors and the last output."""
