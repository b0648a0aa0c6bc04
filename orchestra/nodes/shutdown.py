"""The end of a node: its actors stop together, each after its children, within one deadline."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping

from orchestra.actors.cell import Cell
from orchestra.actors.supervisor import STOP_S
from orchestra.actors.system_messages import SYSTEM
from orchestra.errors import ActorFailed
from orchestra.nodes.join_point import DIRECTORY


async def stop_actors(cells: Mapping[str, Cell], deadline: float = STOP_S) -> list[ActorFailed]:
    """Stop all actors of a node; abort those that are left after `deadline` seconds. Return the failures on the way.

    The actors of the runtime stop last, since the others may need them to stop.
    """
    runtime = {address for address in cells if address.partition("/")[2] in (SYSTEM, DIRECTORY)}
    others = [cell for address, cell in cells.items() if address not in runtime]
    failures = await _stop_together(others, deadline)
    return failures + await _stop_together([cells[address] for address in runtime], deadline)


async def _stop_together(cells: list[Cell], deadline: float) -> list[ActorFailed]:
    """Stop `cells` concurrently, each after its children.

    Children have half of the time, grandchildren a third and so on, so that a stuck child leaves its parent time to
    stop gracefully.
    """
    loop = asyncio.get_running_loop()
    begun = loop.time()
    below: dict[str, list[asyncio.Future[str]]] = defaultdict(list)  # by the address of each actor above
    for cell in cells:
        above = cell.address
        while ":" in above:
            above = above.rpartition(":")[0]
            below[above].append(cell.terminated)

    async def stop(cell: Cell) -> list[ActorFailed]:
        end = begun + deadline / (1 + cell.address.count(":"))
        if children := below.get(cell.address):
            await asyncio.wait(children, timeout=max(end - loop.time(), 0.0))
        return await cell.stop(max(end - loop.time(), 0.0))

    stops = [stop(cell) for cell in reversed(cells)]  # the youngest first
    return [failed for failures in await asyncio.gather(*stops) for failed in failures]
