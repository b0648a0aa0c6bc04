"""A guest: a process that joins a run to ask its nodes how they are doing, and does nothing else."""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from orchestra.actors.envelope import GUEST
from orchestra.actors.system_messages import SYSTEM, NodeStatistics, StatisticsMsg
from orchestra.errors import OrchestraError, Unreachable
from orchestra.nodes.node import Node
from orchestra.runs.join_file import JoinInfo

ANSWER_S = 2.0
"""A node that does not answer within this is shown as one that does not."""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """What the nodes of a run said of themselves, or why one did not, at about one moment. The root comes first."""

    nodes: dict[str, NodeStatistics | str]

    @property
    def answered(self) -> dict[str, NodeStatistics]:
        """Those that did."""
        return {name: node for name, node in self.nodes.items() if isinstance(node, NodeStatistics)}


class Observer:
    """A node that is no part of the run it has joined."""

    def __init__(self, node: Node, answer_s: float = ANSWER_S) -> None:
        self._node = node
        self._answer_s = answer_s

    @property
    def left(self) -> "asyncio.Future[str]":
        """Done, with the reason, once the run is over."""
        return self._node.stop_requested

    async def look(self) -> ClusterStatus:
        """Ask every node how it is doing."""
        root = await self._ask(self._node.root)
        if isinstance(root, str):
            return ClusterStatus({self._node.root: root})
        others = list(dict.fromkeys([*(process.node for process in root.processes), *root.peers]))
        answers = await asyncio.gather(*map(self._ask, others))
        return ClusterStatus({self._node.root: root, **dict(zip(others, answers, strict=True))})

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
async def joined(door: JoinInfo, *, answer_s: float = ANSWER_S) -> AsyncIterator[Observer]:
    """Be a guest of a run while the block runs, under a name that no other guest has.

    Raises:
        Unreachable, HandshakeError: nothing answers at the door, or it is another run's.
    """
    name = f"{GUEST}{os.getpid()}-{secrets.token_hex(4)}"
    node = Node(name, join=door.address, secret=door.secret)
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(2 * answer_s):
                await stack.enter_async_context(node.running())
        except TimeoutError:
            raise Unreachable(
                f"its process does not answer within {2 * answer_s:g} s; `kill -USR1 {door.pid}` makes it write into "
                "its log what it is doing"
            ) from None
        yield Observer(node, answer_s)
