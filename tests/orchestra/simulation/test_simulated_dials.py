"""Nodes that dial each other at once settle on one link, and no message is lost or duplicated meanwhile."""

import asyncio
import contextlib
from collections import Counter
from typing import Any

import pytest

from orchestra import Actor, Message, Node, Ref, Unreachable, on
from orchestra.errors import NobodyListens
from orchestra.nodes.dialling import dial
from orchestra.nodes.failure_detection import REFUSALS
from orchestra.testing import Simulation, each_seed, failing_seed, run_seed
from orchestra.wire.handshake import Dial

NAMES = ("a", "b", "c", "d")


class CountedMsg(Message):
    """The number-th thing that somebody tells somebody."""

    sender: str
    number: int


class TalkMsg(Message):
    """Tell each of these so many things."""

    to: tuple[Ref[CountedMsg], ...]
    count: int


Heard = dict[tuple[str, str], list[int]]


class Hearer(Actor[CountedMsg]):
    """Writes down what it hears."""

    def __init__(self, name: str, heard: Heard) -> None:
        self.name, self.heard = name, heard

    @on(CountedMsg)
    def hear(self, msg: CountedMsg) -> None:
        self.heard.setdefault((msg.sender, self.name), []).append(msg.number)


class Teller(Actor[TalkMsg]):
    """Tells several at once."""

    def __init__(self, name: str) -> None:
        self.name = name

    @on(TalkMsg)
    async def talk(self, msg: TalkMsg) -> None:
        async with asyncio.TaskGroup() as group:
            for to in msg.to:
                group.create_task(self.tell(to, msg.count))

    async def tell(self, to: Ref[CountedMsg], count: int) -> None:
        for number in range(count):
            await to.tell(CountedMsg(sender=self.name, number=number))


def _spawner(name: str, heard: Heard) -> Any:
    def spawn(node: Node) -> None:
        node.spawn("hearer", Hearer, name, heard)
        node.spawn("teller", Teller, name)

    return spawn


async def everybody_dials_everybody(sim: Simulation, *, cuts: float = 0.0) -> Counter[int]:
    """Four nodes, of which three know each other by name only, tell each other something at the same moment.

    Returns how many sessions each two have in the end.
    """
    heard: Heard = {}
    for name in NAMES:
        sim.node(name, _spawner(name, heard))
    await sim.start()
    to = tuple(Ref[CountedMsg](f"{name}/hearer") for name in NAMES)
    async with sim.faults(cuts=cuts):
        for name in NAMES:
            await sim.processes[name].ref(f"{name}/teller").tell(TalkMsg(to=to, count=5))
            await asyncio.sleep(sim.random.choice((0.0, 0.0, 1e-4, 1e-3)))
        if cuts:
            await asyncio.sleep(0.3)
    await sim.until(lambda: len(heard) == 16 and all(len(numbers) >= 5 for numbers in heard.values()))
    await asyncio.sleep(10.0)
    assert heard == {(one, other): list(range(5)) for one in NAMES for other in NAMES}
    assert not [line for line in sim.log if "peer gone" in line]
    return Counter(len(_sessions(sim, one, other)) for one in NAMES for other in NAMES if one != other)


def _sessions(sim: Simulation, one: str, other: str) -> list[bytes]:
    return [link.session_id for link in sim.processes[one].node.peers._sessions.values() if link.peer == other]


async def dials_at_once(sim: Simulation) -> None:
    assert await everybody_dials_everybody(sim) == {1: 12}
    for one in NAMES:
        for other in NAMES:
            assert _sessions(sim, one, other) == _sessions(sim, other, one)


async def dials_that_are_cut(sim: Simulation) -> None:
    assert await everybody_dials_everybody(sim, cuts=sim.random.choice((20.0, 100.0))) == {1: 12}


def test_two_that_dial_each_other_at_once_settle_on_one_link() -> None:
    each_seed(dials_at_once, 80)


def test_two_that_dial_each_other_settle_on_one_link_although_connections_are_cut() -> None:
    each_seed(dials_that_are_cut, 80)


@pytest.mark.parametrize(
    ("name", "broken"), [("greeted", property(lambda _: False)), ("give_up", lambda *_: None)], ids=["hello", "abort"]
)
def test_a_node_that_does_not_settle_is_found(name: str, broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dial, name, broken)
    assert failing_seed(dials_that_are_cut, 300) is not None


async def dials_of_one_that_dies(sim: Simulation) -> None:
    """Two tell each other things while one dies now and then: who comes back is dialled, and dials."""
    heard: list[Heard] = []

    def live(node: Node) -> None:
        heard.append({})
        _spawner("c", heard[-1])(node)

    there: Heard = {}
    sim.node("a")
    b, c = sim.node("b", _spawner("b", there)), sim.node("c", live, auto_restart=True)
    await sim.start()

    async def tell(source: Any, target: str, sender: str) -> None:
        for number in range(15):
            with contextlib.suppress(Unreachable, TimeoutError):
                async with asyncio.timeout(30.0):
                    await source.ref(f"{target}/hearer").tell(CountedMsg(sender=sender, number=number))
            await asyncio.sleep(sim.random.exponential(0.2))

    async def talk_back() -> None:
        for _ in range(8):
            with contextlib.suppress(Exception):
                await c.ref("c/teller").tell(TalkMsg(to=(Ref("b/hearer"),), count=1))
            await asyncio.sleep(sim.random.exponential(0.3))

    async with sim.faults(kills=0.3, cuts=sim.random.choice((0.0, 3.0)), partitions=0.1):
        await asyncio.gather(tell(b, "c", "b"), talk_back())
    await sim.until(lambda: c.running)
    await asyncio.sleep(60.0)
    for numbers in (numbers for life in heard for numbers in life.values()):
        assert numbers == sorted(set(numbers))
    await b.ref("c/hearer").tell(CountedMsg(sender="b", number=99))
    await sim.until(lambda: heard[-1].get(("b", "c"), [0])[-1] == 99)
    assert len(_sessions(sim, "b", "c")) == 1
    assert _sessions(sim, "b", "c") == _sessions(sim, "c", "b")


def test_a_restarted_process_has_one_link_again() -> None:
    each_seed(dials_of_one_that_dies, 50)


def test_a_peer_is_dead_after_four_refusals_and_no_loop_lags_in_virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []

    async def counted(settings: Any, address: str) -> Any:
        try:
            return await dial(settings, address)
        except NobodyListens:
            refused.append(address)
            raise

    monkeypatch.setattr("orchestra.nodes.dialling.dial", counted)

    async def scenario(sim: Simulation) -> None:
        a, b = sim.node("a"), sim.node("b")
        await sim.start()
        await sim.until(lambda: "b" in a.node.statistics().peers)
        await asyncio.sleep(20.0)
        assert a.node.statistics().lag_s < 1.0
        b.kill()
        await sim.until(lambda: "b" not in a.node.statistics().peers)
        assert len(refused) == REFUSALS == 4

    run_seed(scenario, 0)
