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
from orchestra.actors.statistics import NodeStatistics, StatisticsMsg
from orchestra.actors.system_messages import SYSTEM
from orchestra.errors import OrchestraError, Unreachable, UsageError
from orchestra.hosts.messages import HEAD, AskHostMsg, LeaveHostMsg
from orchestra.nodes.node import Node
from orchestra.runs.join_file import JoinInfo
from orchestra.runs.scaling import LAUNCHER, ScaledMsg, ScaleMsg
from orchestra.wire.credentials import Credentials, folder_of_environment

ANSWER_S = 2.0
"""Deadline for an answer; a node that misses it is shown as silent."""
HOSTS_ANSWER_S = 10.0
"""Deadline for the answer about the nodes of other hosts; the head waits for all agents."""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The statistics of every node of a run, taken at about the same time."""

    nodes: dict[str, NodeStatistics | str]
    """By name, the root first: the statistics, or the reason why there are none."""

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

    async def status(self) -> ClusterStatus:
        """Return the statistics of every node."""
        root = await self._ask(self._node.root)
        if isinstance(root, str):
            return ClusterStatus({self._node.root: root})
        of_hosts = [name for host in root.hosts if host.agent for name in host.nodes]
        known = {*of_hosts, *(host.agent for host in root.hosts)}  # an agent is shown as its host
        everyone = dict.fromkeys([*(process.node for process in root.processes), *root.peers])
        others = [name for name in everyone if name not in known]
        found, answers = await asyncio.gather(self._ask_hosts(of_hosts), asyncio.gather(*map(self._ask, others)))
        return ClusterStatus({self._node.root: root, **dict(zip(others, answers, strict=True)), **found})

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

    async def _ask_hosts(self, nodes: Sequence[str]) -> dict[str, NodeStatistics | str]:
        """Return the statistics of nodes of other hosts: the head asks each agent once, however many they are."""
        if not nodes:
            return {}
        head: Ref[AskHostMsg] = self._node.ref(f"{self._node.root}/{HEAD}")
        try:
            async with asyncio.timeout(HOSTS_ANSWER_S):
                answer = await head.ask(AskHostMsg(nodes=()))
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
