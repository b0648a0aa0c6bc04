"""A ticket office, and a property: no seat is sold twice, whatever fails."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from orchestra import Actor, AskFailed, Node, Request, Unreachable, on
from orchestra.testing import Process, Scenario, Simulation, each_seed, failing_seed


class BookMsg(Request[int]):
    """A request for a seat; the answer is its number."""


class Office(Actor[BookMsg]):
    """Sells each seat once."""

    def __init__(self, ledger: list[int]) -> None:
        self._sold = ledger  # stands for a disk: it outlives the process

    @on(BookMsg)
    async def book(self, msg: BookMsg) -> int:
        seat = await self.offload(len, self._sold)
        self._sold.append(seat)
        return seat


async def passenger(process: Process, seats: list[int]) -> None:
    """Book four seats, and record the confirmed ones."""
    office = process.ref("office/desk")
    for _ in range(4):
        with suppress(AskFailed, Unreachable, TimeoutError):  # the office may be down
            async with asyncio.timeout(30.0):
                seats.append(await office.ask(BookMsg()))
        await asyncio.sleep(0.5)


def bookings(desk: Callable[[list[int]], Callable[[Node], object]]) -> Scenario:
    """Two passengers book at an office that is killed and restarted, over links that hang."""

    async def scenario(sim: Simulation) -> None:
        ledger: list[int] = []
        seats: list[int] = []
        sim.node("station")
        sim.node("office", desk(ledger), auto_restart=True)
        passengers = [sim.node(name) for name in ("ada", "ben")]
        await sim.start()
        async with sim.faults(kills=0.5, partitions=0.3, pauses=0.3):
            await asyncio.gather(*(passenger(process, seats) for process in passengers))
        assert len(set(seats)) == len(seats), f"a seat was sold twice: {seats}"

    return scenario


def with_a_ledger(ledger: list[int]) -> Callable[[Node], object]:
    """Start the office with its earlier sales."""
    return lambda node: node.spawn("desk", Office, ledger)


def with_a_new_ledger(ledger: list[int]) -> Callable[[Node], object]:
    """Start the office without its earlier sales: the bug."""
    return lambda node: node.spawn("desk", Office, [])


def test_no_seat_is_sold_twice() -> None:
    each_seed(bookings(with_a_ledger), 50)


def test_the_simulation_finds_an_office_that_forgets() -> None:
    assert failing_seed(bookings(with_a_new_ledger), 50) is not None
