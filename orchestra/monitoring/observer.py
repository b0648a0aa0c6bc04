"""An observer: a node that joins a run from outside, asks the others for their statistics, and may scale the run."""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestra.actors.addresses import OBSERVER
from orchestra.actors.ref import Ref
from orchestra.actors.statistics import HostStatistics, NodeStatistics, StatisticsMsg
from orchestra.actors.system_messages import SYSTEM
from orchestra.errors import OrchestraError, Unreachable, UsageError
from orchestra.hosts.messages import HEAD, AskHostMsg, LeaveHostMsg
from orchestra.monitoring.hosts_view import host_rows
from orchestra.nodes.node import Node
from orchestra.runs.join_file import JoinInfo
from orchestra.runs.scaling import LAUNCHER, ScaledMsg, ScaleMsg
from orchestra.wire.credentials import Credentials, folder_of_environment

ANSWER_S = 2.0
"""Deadline for an answer; a node that misses it is shown as silent."""
HOSTS_ANSWER_S = 10.0
"""Deadline for the answer about the nodes of another host; the head waits for its agent."""
HOSTS_AT_ONCE = 32
"""Hosts that are asked at the same time."""
MOST_HOSTS = 12
"""Hosts whose nodes are shown unless the user says which: a run may have a thousand."""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The statistics of every node of a run, taken at about the same time."""

    nodes: dict[str, NodeStatistics | str]
    """By name, the root first: the statistics, or the reason why there are none."""
    hosts_left_out: int = 0
    """Hosts whose nodes were not asked."""

    @property
    def answered(self) -> dict[str, NodeStatistics]:
        """The nodes that answered."""
        return {name: node for name, node in self.nodes.items() if isinstance(node, NodeStatistics)}


class Observer:
    """Asks the nodes of a run for their statistics, and its root to scale it. `connected` makes it."""

    def __init__(self, node: Node, answer_s: float = ANSWER_S) -> None:
        self._node = node
        self._answer_s = answer_s

    @property
    def left(self) -> "asyncio.Future[str]":
        """Done, with the reason, once the run is over."""
        return self._node.stop_requested

    async def status(self, *, slot: int | None = None, all_hosts: bool = False) -> ClusterStatus:
        """Return the statistics of the root, the other nodes of its host, and those of some hosts.

        Args:
            slot: the only host whose nodes are asked; by default at most `MOST_HOSTS` hosts, the worst or busiest.
            all_hosts: whether the nodes of all hosts are asked.

        Raises:
            UsageError: the run has no such host.
        """
        root = await self._ask(self._node.root)
        if isinstance(root, str):
            return ClusterStatus({self._node.root: root})
        hosts = _chosen(root, slot, all_hosts=all_hosts)
        of_hosts = {name for host in root.hosts if host.agent for name in host.nodes}
        known = {*of_hosts, *(host.agent for host in root.hosts)}  # an agent is shown as its host
        everyone = dict.fromkeys([*(process.node for process in root.processes), *root.peers])
        others = [name for name in everyone if name not in known]
        found, answers = await asyncio.gather(self._ask_hosts(hosts), asyncio.gather(*map(self._ask, others)))
        left_out = sum(bool(host.agent) for host in root.hosts) - len(hosts)
        return ClusterStatus({self._node.root: root, **dict(zip(others, answers, strict=True)), **found}, left_out)

    async def scale(self, group: str, replicas: int) -> ScaledMsg:
        """Change the number of replicas of a group, the only one if `group` is empty; return once that is done.

        Raises:
            UsageError: the root refuses.
            DeliveryError, AskFailed: the run ended meanwhile.
        """
        launcher: Ref[ScaleMsg] = self._node.ref(f"{self._node.root}/{LAUNCHER}")
        answer = await launcher.ask(ScaleMsg(group=group, replicas=replicas))
        if answer.refusal:
            raise UsageError(answer.refusal)
        return answer

    async def _ask_hosts(self, hosts: Sequence[HostStatistics]) -> dict[str, NodeStatistics | str]:
        """Return the statistics of the nodes of other hosts, by one question for each host."""
        limit = asyncio.Semaphore(HOSTS_AT_ONCE)

        async def of(host: HostStatistics) -> dict[str, NodeStatistics | str]:
            async with limit:
                return await self._ask_host(host.nodes)

        found: dict[str, NodeStatistics | str] = {}
        for answers in await asyncio.gather(*map(of, hosts)):
            found |= answers
        return found

    async def _ask_host(self, nodes: Sequence[str]) -> dict[str, NodeStatistics | str]:
        """Return the statistics of the nodes of a host, which the head has its agent ask."""
        if not nodes:
            return {}
        head: Ref[AskHostMsg] = self._node.ref(f"{self._node.root}/{HEAD}")
        try:
            async with asyncio.timeout(HOSTS_ANSWER_S):
                answer = await head.ask(AskHostMsg(nodes=tuple(nodes)))
        except TimeoutError:
            return dict.fromkeys(nodes, f"no answer of its host within {HOSTS_ANSWER_S:g} s")
        except OrchestraError as error:
            return dict.fromkeys(nodes, str(error))
        silent: dict[str, NodeStatistics | str] = dict.fromkeys(nodes, "no answer")
        return silent | {node.node: node for node in answer.nodes}

    async def leave(self, slot: int) -> None:
        """Have a host leave the run; return once its agent has ended.

        Raises:
            UsageError: there is no such host.
            DeliveryError, AskFailed: the run ended meanwhile, or is on one host.
        """
        head: Ref[LeaveHostMsg] = self._node.ref(f"{self._node.root}/{HEAD}")
        answer = await head.ask(LeaveHostMsg(slot=slot))
        if answer.refusal:
            raise UsageError(answer.refusal)

    async def _ask(self, name: str) -> NodeStatistics | str:
        try:
            async with asyncio.timeout(self._answer_s):
                answer: NodeStatistics = await self._node.ref(f"{name}/{SYSTEM}").ask(StatisticsMsg())
                return answer
        except TimeoutError:
            return f"no answer within {self._answer_s:g} s"
        except OrchestraError as error:
            return str(error)


def _chosen(root: NodeStatistics, slot: int | None, *, all_hosts: bool) -> list[HostStatistics]:
    """Return the hosts with an agent whose nodes are asked.

    Raises:
        UsageError: the run has no host with this slot.
    """
    if slot is not None and all(host.slot != slot for host in root.hosts):
        known = ", ".join(str(host.slot) for host in root.hosts) or "none, as it is on one machine"
        raise UsageError(f"--host: the run has no host {slot}; the slots of its hosts are {known}")
    rows = [row for row in host_rows(root) if row.now.agent and slot in (None, row.now.slot)]
    if not all_hosts:
        worst = {row.now.slot for row in sorted(rows, key=lambda row: row.sort_key)[:MOST_HOSTS]}
        rows = [row for row in rows if row.now.slot in worst]
    return [row.now for row in rows]


@asynccontextmanager
async def connected(info: JoinInfo, *, answer_s: float = ANSWER_S) -> AsyncIterator[Observer]:
    """Connect to a run while the block runs, under a name that no other observer has.

    Over TLS the observer presents the certificate of the run itself, unless the environment names another.

    Raises:
        Unreachable: no process answers at the run's address.
        HandshakeError: the process that answers belongs to another run.
    """
    name = f"{OBSERVER}{os.getpid()}-{secrets.token_hex(4)}"
    tls_dir = folder_of_environment() or (Path(info.tls_dir) if info.tls_dir else None)
    tls = None if tls_dir is None else Credentials.of_folder(tls_dir)
    node = Node(name, join=info.address, secret=info.secret, tls=tls, unencrypted=True)  # as the run
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(2 * answer_s):
                await stack.enter_async_context(node.running())
        except TimeoutError:
            raise Unreachable(
                f"its process does not answer within {2 * answer_s:g} s; `kill -USR1 {info.pid}` makes it write into "
                "its log what it is doing"
            ) from None
        yield Observer(node, answer_s)
