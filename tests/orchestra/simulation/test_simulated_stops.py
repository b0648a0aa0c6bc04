"""How a node stops its actors, in virtual time."""

import asyncio
from typing import ClassVar

from orchestra import Actor, Message, Node, Ref, Restart, Supervision, on
from orchestra.testing import Simulation


class WorkMsg(Message):
    """Work for some seconds."""

    seconds: float


class LastWordsMsg(Message):
    """A child has stopped."""


class Child(Actor[WorkMsg]):
    """Works, and tells its parent when it has stopped."""

    def __init__(self, stops: list[tuple[str, float]], parent: Ref[LastWordsMsg] | None = None) -> None:
        self._stops, self._parent = stops, parent

    @on(WorkMsg)
    async def work(self, msg: WorkMsg) -> None:
        await asyncio.sleep(msg.seconds)

    async def stopped(self) -> None:
        self._stops.append((self.me.address, self.clock.monotonic()))
        if self._parent is not None:
            await self._parent.tell(LastWordsMsg())


class Parent(Actor[LastWordsMsg]):
    """Has a child, and notes its last words."""

    def __init__(self, stops: list[tuple[str, float]]) -> None:
        self._stops = stops

    async def started(self) -> None:
        await self.spawn("child", Child, self._stops, self.me).tell(WorkMsg(seconds=0.0))

    @on(LastWordsMsg)
    def last_words(self, msg: LastWordsMsg) -> None:
        self._stops.append(("last words", self.clock.monotonic()))

    async def stopped(self) -> None:
        self._stops.append((self.me.address, self.clock.monotonic()))


def stops_of(names: dict[str, type[Actor[Message]]], work: dict[str, float]) -> tuple[list[tuple[str, float]], float]:
    """Return which actors of a node stopped and when, and how long the node took.

    Args:
        names: its actors.
        work: seconds that actors have to work for when the node stops.
    """
    stops: list[tuple[str, float]] = []

    def setup(node: Node) -> None:
        for name, kind in names.items():
            node.spawn(name, kind, stops)

    async def main(sim: Simulation) -> float:
        here = sim.node("here", setup)
        await sim.start()
        await asyncio.sleep(1.0)
        for name, seconds in work.items():
            await here.ref(f"here/{name}").tell(WorkMsg(seconds=seconds))
        begun = sim.loop.time()
        stops[:] = [("begun", begun)]
        await here.stop()
        return sim.loop.time() - begun

    sim = Simulation(7)
    took = sim.run(main(sim))
    (_, begun), *then = stops
    return [(name.removeprefix("here/"), at - begun) for name, at in then], took


def test_the_actors_of_a_node_stop_together() -> None:
    stops, took = stops_of(dict.fromkeys("abc", Child), {"a": 6.0, "b": 8.0, "c": 7.0})
    assert [name for name, _ in stops] == ["a", "c", "b"]
    assert 8.0 <= took < 9.0


def test_a_node_aborts_all_stuck_actors_after_ten_seconds_in_total() -> None:
    stops, took = stops_of(dict.fromkeys("abcdef", Child), dict.fromkeys("abcde", 1000.0))
    assert [name for name, _ in stops] == ["f"]
    assert 10.0 <= took < 11.0


def test_children_stop_before_their_parents_and_their_last_words_are_heard() -> None:
    stops, took = stops_of({"parent": Parent}, {"parent:child": 2.0})
    assert [name for name, _ in stops] == ["parent:child", "last words", "parent"]
    assert 2.0 <= took < 3.0


def test_a_stuck_child_leaves_its_parent_time_to_stop() -> None:
    stops, took = stops_of({"parent": Parent, "other": Child}, {"parent:child": 1000.0, "other": 9.0})
    assert [name for name, _ in stops] == ["parent", "other"]
    assert 9.0 <= took < 10.0


class Stubborn(Actor[WorkMsg]):
    """Is stuck in its work, and goes on for some seconds when it is aborted."""

    ended: ClassVar[list[float]] = []

    @on(WorkMsg)
    async def work(self, msg: WorkMsg) -> None:
        try:
            await asyncio.sleep(1000.0)
        finally:
            await asyncio.sleep(msg.seconds)
            self.ended.append(self.clock.monotonic())


class Owner(Actor[WorkMsg]):
    """Has a stubborn child on another node; work has it fail and start anew."""

    supervision: ClassVar[Supervision] = Restart(limit=2, within=60, backoff=0.1)
    begun: ClassVar[list[float]] = []

    async def started(self) -> None:
        self.begun.append(self.clock.monotonic())
        if len(self.begun) == 1:
            await (await self.spawn_on("there", "child", Stubborn)).tell(WorkMsg(seconds=6.0))

    @on(WorkMsg)
    def work(self, msg: WorkMsg) -> None:
        raise ValueError("it does not work")


def test_an_actor_that_starts_anew_waits_until_its_child_on_another_node_was_aborted_and_has_ended() -> None:
    Stubborn.ended.clear()
    Owner.begun.clear()

    async def main(sim: Simulation) -> None:
        here, _ = sim.node("here", lambda node: node.spawn("owner", Owner)), sim.node("there")
        await sim.start()
        await sim.until(lambda: Owner.begun)
        await asyncio.sleep(1.0)
        await here.ref("here/owner").tell(WorkMsg(seconds=0.0))
        await sim.until(lambda: len(Owner.begun) == 2)

    sim = Simulation(7)
    sim.run(main(sim))
    first, again = Owner.begun
    (ended,) = Stubborn.ended
    assert again >= ended
    assert 16.0 <= again - first < 19.0
