"""Asks under many schedules: every ask completes, deadlocks are found, and withdrawn requests are not handled."""

import asyncio
import contextlib
from typing import Any, ClassVar

import pytest

from orchestra import (
    Actor,
    ActorStopped,
    AskFailed,
    Message,
    Node,
    Ref,
    Request,
    Restart,
    on,
)
from orchestra.testing import Process, Simulation, each_seed

PATIENT = Restart(limit=10_000, within=60.0, backoff=0.05, backoff_max=0.4)


class WhoMsg(Request[str]):
    """Who are you?"""


class AskMsg(Request[int]):
    """Wait, park, fail, or ask the next ones, as the numbers say."""

    path: tuple[str, ...]
    """Whom to ask on."""
    seconds: float
    parks: bool


class Station(Actor[AskMsg | WhoMsg]):
    """Passes asks on."""

    supervision = PATIENT
    under_way: ClassVar[set[object]] = set()

    @on(AskMsg)
    async def ask(self, msg: AskMsg) -> Any:
        if msg.parks:
            return asyncio.create_task(self.answer(msg))
        return await self.answer(msg)

    async def answer(self, msg: AskMsg) -> int:
        token = object()
        self.under_way.add(token)
        try:
            await asyncio.sleep(msg.seconds)
            if not msg.path:
                return 1
            to: Ref[AskMsg] = Ref(msg.path[0])
            return 1 + await to.ask(AskMsg(path=msg.path[1:], seconds=msg.seconds, parks=msg.parks))
        finally:
            self.under_way.discard(token)

    @on(WhoMsg)
    def who(self, msg: WhoMsg) -> str:
        return self.me.address


async def stations(sim: Simulation) -> tuple[list[Process], list[str]]:
    """Start three nodes with two stations each."""

    def spawn(node: Node) -> None:
        for name in ("one", "two"):
            node.spawn(name, Station)

    processes = [sim.node(name, spawn) for name in "abc"]
    await sim.start()
    return processes, [f"{name}/{actor}" for name in "abc" for actor in ("one", "two")]


async def asks_that_are_given_up(sim: Simulation) -> None:
    Station.under_way.clear()

    processes, addresses = await stations(sim)

    async def ask() -> None:
        path = tuple(sim.random.choice(addresses) for _ in range(1 + sim.random.below(4)))
        request = AskMsg(path=path[1:], seconds=sim.random.exponential(0.05), parks=sim.random.chance(0.4))
        try:
            async with asyncio.timeout(sim.random.exponential(0.3)):
                assert await sim.random.choice(processes).ref(path[0]).ask(request) == len(path)
        except TimeoutError:
            pass
        except (AskFailed, ActorStopped):
            pass  # it, or one on the path, would have waited for itself; which fails it, and what it had parked

    async with asyncio.timeout(300.0):
        for _ in range(4):
            await asyncio.gather(*(ask() for _ in range(5)))
    await asyncio.sleep(5.0)
    assert not Station.under_way, "what nobody waits for is not worked at"
    for process in processes:
        assert not process.node.asks._waiting
        for link in process.node.peers._links.values():
            assert not link.receiver.unanswered
        for address in addresses:
            if address.startswith(process.name):
                assert await process.ref(address).ask(WhoMsg()) == address


def test_cancelled_asks_leave_nothing_behind() -> None:
    each_seed(asks_that_are_given_up, 150)


async def asks_in_all_directions(sim: Simulation) -> None:
    processes, addresses = await stations(sim)

    async def ask() -> None:
        path = tuple(sim.random.choice(addresses) for _ in range(1 + sim.random.below(4)))
        request = AskMsg(path=path[1:], seconds=sim.random.exponential(0.3), parks=sim.random.chance(0.3))
        with contextlib.suppress(AskFailed, ActorStopped):  # somebody would have waited for itself
            assert await sim.random.choice(processes).ref(path[0]).ask(request) == len(path)

    async with asyncio.timeout(200.0):
        await asyncio.gather(*(ask() for _ in range(12)))


def test_asks_in_all_directions_complete_without_a_deadline() -> None:
    each_seed(asks_in_all_directions, 150)


async def asks_in_one_direction(sim: Simulation) -> None:
    processes, addresses = await stations(sim)

    async def ask() -> None:
        path = tuple(address for address in addresses if sim.random.chance(0.5)) or (addresses[0],)
        request = AskMsg(path=path[1:], seconds=sim.random.exponential(1.0), parks=sim.random.chance(0.3))
        assert await sim.random.choice(processes).ref(path[0]).ask(request) == len(path)

    async with asyncio.timeout(1000.0):
        await asyncio.gather(*(ask() for _ in range(12)))


def test_asks_that_form_no_circle_are_never_reported_as_a_deadlock() -> None:
    each_seed(asks_in_one_direction, 100)


class GoMsg(Message):
    """Ask the next one, and say what came of it."""


class Neighbour(Actor[GoMsg | WhoMsg]):
    def __init__(self, to: Ref[WhoMsg], said: dict[str, str]) -> None:
        self.to, self.said = to, said

    @on(GoMsg)
    async def go(self, msg: GoMsg) -> None:
        await asyncio.sleep(0.5)  # until all others are busy with theirs
        try:
            self.said[self.me.address] = await self.to.ask(WhoMsg())
        except Exception as error:
            self.said[self.me.address] = f"{type(error).__name__}: {error}"

    @on(WhoMsg)
    def who(self, msg: WhoMsg) -> str:
        return self.me.address


@pytest.mark.parametrize(
    "ring", [("a/x", "a/y"), ("a/x", "b/y"), ("b/x", "a/y", "c/z"), ("c/x", "c/y", "a/z", "b/w")], ids=" ".join
)
def test_a_circle_of_asks_is_found_and_one_ask_fails(ring: tuple[str, ...]) -> None:
    async def main(sim: Simulation) -> None:
        said: dict[str, str] = {}

        def spawn(node: Node) -> None:
            for here, there in zip(ring, ring[1:] + ring[:1], strict=True):
                if here.startswith(node.name):
                    node.spawn(here[2:], Neighbour, Ref(there), said)

        processes = {name: sim.node(name, spawn) for name in "abc"}
        await sim.start()
        for address in ring:
            await processes[address[0]].ref(address).tell(GoMsg())
        await sim.until(lambda: len(said) == len(ring), within=10.0)
        first = min(ring)
        turned = ring[ring.index(first) :] + ring[: ring.index(first)]
        circle = " → ".join((*turned, first))
        assert said.pop(first) == f"AskCycle: {circle}: each waits for an answer of the next"
        assert said == {here: there for here, there in zip(ring, ring[1:] + ring[:1], strict=True) if here != first}

    each_seed(main, 10)


class Broker(Neighbour):
    """Has a task ask the next one, and answers with what that says."""

    @on(WhoMsg)
    def who(self, msg: WhoMsg) -> Any:
        return asyncio.create_task(self.find_out())

    async def find_out(self) -> str:
        return f"{self.me.address} heard of {await self.to.ask(WhoMsg())}"


def test_a_circle_through_a_parked_task_is_found_though_its_actor_is_free() -> None:
    async def main(sim: Simulation) -> None:
        said: dict[str, str] = {}
        nodes = sim.random.choice(("aaa", "aba", "abc"))
        x, y, z = (f"{node}/{name}" for node, name in zip(nodes, "xyz", strict=True))

        def spawn(node: Node) -> None:
            for here, kind, there in ((x, Neighbour, y), (y, Broker, z), (z, Neighbour, x)):
                if here.startswith(node.name):
                    node.spawn(here[2:], kind, Ref(there), said)

        processes = {name: sim.node(name, spawn) for name in "abc"}
        await sim.start()
        for address in (x, z):
            await processes[address[0]].ref(address).tell(GoMsg())
        await sim.until(lambda: len(said) == 2, within=10.0)
        assert said == {x: f"AskCycle: {x} → {y} → {z} → {x}: each waits for an answer of the next", z: x}

    each_seed(main, 20)
