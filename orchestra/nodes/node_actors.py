"""The actors that every node runs: one controls the node itself, the other speaks for its directory."""

import asyncio
from collections.abc import Container
from typing import Any, ClassVar, Protocol

from orchestra.actors.actor import Actor, on
from orchestra.actors.asks import PendingAsks
from orchestra.actors.ref import Ref
from orchestra.actors.statistics import FinalStatisticsMsg, NodeStatistics, StatisticsMsg
from orchestra.actors.system_messages import (
    CollectFilesMsg,
    DeadlockProbeMsg,
    SpawnedMsg,
    SpawnMsg,
    StopActorMsg,
    StopNodeMsg,
)
from orchestra.nodes.directory import NodeEntry
from orchestra.nodes.join_point import AnnounceMsg, DialBackMsg, EntriesMsg, JoinPoint, LookupMsg, SubscribeMsg


class NodeControl(Protocol):
    """A node, as the `SystemActor` controls it."""

    name: str
    asks: PendingAsks
    stopping: bool
    """True while the run ends, so that lost peers are expected."""

    @property
    def cells(self) -> Container[str]:
        """The addresses of its actors."""

    def statistics(self) -> NodeStatistics:
        """Return the statistics of the node."""

    def spawn_for(self, message: SpawnMsg) -> SpawnedMsg:
        """Start an actor at the request of another node."""

    async def stop_actor(self, address: str) -> tuple[str, ...]:
        """Stop an actor, if it is still there; return the failures on the way."""

    def request_stop(self, reason: str) -> None:
        """Ask for the node's end."""


class DirectoryActor(Actor[LookupMsg | AnnounceMsg | SubscribeMsg | EntriesMsg | DialBackMsg]):
    """Answers where nodes listen, and exchanges entries with the join points above and below."""

    recorded: ClassVar[bool] = False

    def __init__(self, join_point: JoinPoint) -> None:
        self._join_point = join_point

    @on(LookupMsg)
    def lookup(self, msg: LookupMsg) -> asyncio.Future[NodeEntry]:
        return self._join_point.lookup(msg.node)

    @on(AnnounceMsg)
    def announced(self, msg: AnnounceMsg) -> None:
        self._join_point.announced(msg)

    @on(SubscribeMsg)
    def subscribe(self, msg: SubscribeMsg) -> None:
        self._join_point.subscribe(msg)

    @on(EntriesMsg)
    def entries(self, msg: EntriesMsg) -> None:
        self._join_point.entries(msg)

    @on(DialBackMsg)
    def dial_back(self, msg: DialBackMsg) -> Any:
        return asyncio.create_task(self._join_point.dial_back(msg))


COLLECTOR = "collector"
"""The name of the actor of the root that collects files of other hosts, in a run that has any."""


class SystemActor(
    Actor[
        StatisticsMsg | FinalStatisticsMsg | StopNodeMsg | SpawnMsg | StopActorMsg | DeadlockProbeMsg | CollectFilesMsg
    ]
):
    """Controls the node: reports statistics, starts and stops actors for other nodes, stops the node."""

    recorded: ClassVar[bool] = False

    def __init__(self, node: NodeControl) -> None:
        self._node = node

    @on(StatisticsMsg)
    def statistics(self, msg: StatisticsMsg) -> NodeStatistics:
        return self._node.statistics()

    @on(FinalStatisticsMsg)
    def final_statistics(self, msg: FinalStatisticsMsg) -> NodeStatistics:
        self._node.stopping = True
        return self._node.statistics()

    @on(SpawnMsg)
    def start(self, msg: SpawnMsg) -> SpawnedMsg:
        return self._node.spawn_for(msg)

    @on(StopActorMsg)
    def stop_actor(self, msg: StopActorMsg) -> Any:
        return asyncio.create_task(self._node.stop_actor(msg.address))

    @on(DeadlockProbeMsg)
    def follow(self, msg: DeadlockProbeMsg) -> None:
        self._node.asks.probes.follow(msg)

    @on(CollectFilesMsg)
    def collect_files(self, msg: CollectFilesMsg) -> Any:
        collector: Ref[CollectFilesMsg] = Ref(f"{self._node.name}/{COLLECTOR}")
        return asyncio.create_task(collector.ask(msg)) if collector.address in self._node.cells else ""

    @on(StopNodeMsg)
    def stop_node(self, msg: StopNodeMsg) -> None:
        self._node.request_stop("asked to stop")
