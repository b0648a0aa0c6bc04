"""The actors that speak for a node itself: how it is doing, what it shall start or stop, where other nodes listen."""

import asyncio
from typing import TYPE_CHECKING, Any

from orchestra.actors.actor import Actor, on
from orchestra.actors.cell import Cell
from orchestra.actors.system_messages import (
    DeadlockProbeMsg,
    FinalStatisticsMsg,
    LookupMsg,
    NodeStatistics,
    SpawnedMsg,
    SpawnMsg,
    StatisticsMsg,
    StopActorMsg,
    StopNodeMsg,
)

if TYPE_CHECKING:
    from orchestra.nodes.node import Node


class DirectoryActor(Actor[LookupMsg]):
    """Says where other nodes listen."""

    def __init__(self, node: "Node") -> None:
        self._node = node

    @on(LookupMsg)
    def lookup(self, msg: LookupMsg) -> asyncio.Future[str]:
        return self._node.directory.lookup(msg.node)


class SystemActor(Actor[StatisticsMsg | FinalStatisticsMsg | StopNodeMsg | SpawnMsg | StopActorMsg | DeadlockProbeMsg]):
    """Speaks for the node itself: how it is doing, that it shall stop, what it shall start for others."""

    def __init__(self, node: "Node") -> None:
        self._node = node

    @on(StatisticsMsg)
    def statistics(self, msg: StatisticsMsg) -> NodeStatistics:
        return self._node.statistics()

    @on(FinalStatisticsMsg)
    def wind_up(self, msg: FinalStatisticsMsg) -> NodeStatistics:
        self._node.stopping = True
        return self._node.statistics()

    @on(SpawnMsg)
    def start(self, msg: SpawnMsg) -> SpawnedMsg:
        return self._node.spawn_for(msg)

    @on(StopActorMsg)
    def stop_actor(self, msg: StopActorMsg) -> Any:
        cell = self._node.cells.get(msg.address)
        return () if cell is None else self._node.loop.create_task(self._stop(cell))

    async def _stop(self, cell: Cell) -> tuple[str, ...]:
        return tuple(map(str, await self._node.stop_cell(cell)))

    @on(DeadlockProbeMsg)
    def follow(self, msg: DeadlockProbeMsg) -> None:
        self._node.asks.follow(msg)

    @on(StopNodeMsg)
    def stop_node(self, msg: StopNodeMsg) -> None:
        self._node.request_stop("asked to stop")
