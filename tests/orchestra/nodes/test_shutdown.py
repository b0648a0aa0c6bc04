"""Tests of the end of a node. Those of its order and deadlines are in `simulation/test_simulated_stops.py`."""

import asyncio
from typing import Any, cast

from orchestra.nodes.shutdown import stop_actors


class CountedCell:
    """A cell that stops at once, and counts how often its address is read."""

    reads = 0

    def __init__(self, address: str) -> None:
        self._address = address
        self.terminated: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def address(self) -> str:
        CountedCell.reads += 1
        return self._address

    async def stop(self, deadline: float) -> list[Any]:
        self.terminated.set_result("stopped")
        return []


def test_the_work_of_stopping_grows_with_the_number_of_actors_and_not_with_its_square() -> None:
    async def main() -> list[Any]:
        cells = {address: CountedCell(address) for n in range(500) for address in (f"one/a{n}", f"one/a{n}:child")}
        return await stop_actors(cast("Any", cells))

    CountedCell.reads = 0
    assert asyncio.run(main()) == []
    assert 0 < CountedCell.reads < 10 * 1000
