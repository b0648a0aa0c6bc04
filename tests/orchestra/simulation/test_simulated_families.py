"""Supervision under many schedules: exactly the right actors run in the end."""

import asyncio
import contextlib
from typing import Any

from orchestra import (
    Actor,
    AllForOne,
    Message,
    OneForOne,
    Ref,
    Request,
    Restart,
    RestForOne,
    SpawnRefused,
    TerminatedMsg,
    Unreachable,
    on,
)
from orchestra.testing import Simulation, each_seed

PATIENT = Restart(limit=10_000, within=60.0, backoff=0.05, backoff_max=0.4)


class WorkMsg(Message):
    """Work so long; then fail, perhaps."""

    seconds: float
    fail: bool


class WhoMsg(Request[str]):
    """Who are you?"""


# One node -------------------------------------------------------------------------------------------------------------


class World:
    """What the children of one parent are seen to do."""

    def __init__(self, fragile_starts: list[str]) -> None:
        self.newest: dict[str, object] = {}
        """The newest incarnation of each."""
        self.busy: set[str] = set()
        self.fragile_starts = fragile_starts
        """Who fails at its next start, once for each entry."""


class Member(Actor[WorkMsg | WhoMsg]):
    supervision = PATIENT

    def __init__(self, name: str, world: World) -> None:
        self.name, self.world = name, world
        assert name not in world.busy, "the last incarnation is still at work"
        world.newest[name] = self

    async def started(self) -> None:
        await asyncio.sleep(0.01)
        if self.name in self.world.fragile_starts:
            self.world.fragile_starts.remove(self.name)
            raise ValueError("stillborn")

    @on(WorkMsg)
    async def work(self, msg: WorkMsg) -> None:
        assert self.world.newest[self.name] is self, "another incarnation has taken its place"
        self.world.busy.add(self.name)
        try:
            await asyncio.sleep(msg.seconds)
        finally:
            self.world.busy.discard(self.name)
        if msg.fail:
            raise ValueError("worn out")

    @on(WhoMsg)
    def who(self, msg: WhoMsg) -> str:
        assert self.world.newest[self.name] is self
        return self.name


class Head(Actor[WorkMsg]):
    supervision = PATIENT

    def __init__(self, names: str, world: World) -> None:
        self.names, self.world = names, world

    async def started(self) -> None:
        for name in self.names:
            self.spawn(name, Member, name, self.world)

    @on(WorkMsg)
    async def work(self, msg: WorkMsg) -> None:
        await asyncio.sleep(msg.seconds)
        if msg.fail:
            raise ValueError("headache")


async def families_that_fail(sim: Simulation) -> None:
    names = "abcd"[: 1 + sim.random.below(4)]
    strategy = sim.random.choice((OneForOne(), AllForOne(), RestForOne(), AllForOne(PATIENT), RestForOne(PATIENT)))
    world = World([sim.random.choice(names) for _ in range(sim.random.below(3))])
    kind: Any = type("Head", (Head,), {"children_strategy": strategy})
    process = sim.node("a", lambda node: node.spawn("head", kind, names, world))
    await sim.start()
    stopped = set()
    for _ in range(sim.random.below(12)):
        name = sim.random.choice(names)
        match sim.random.below(12):
            case 0:
                world.fragile_starts.append(name)
            case 1:
                await process.ref("a/head").tell(WorkMsg(seconds=sim.random.exponential(0.1), fail=True))
                stopped.clear()  # what it spawns anew is there again
            case 2 if name not in stopped and f"a/head:{name}" in process.node.cells:
                process.node.cell(f"a/head:{name}").request_stop()
                stopped.add(name)
            case _:
                try:
                    work = WorkMsg(seconds=sim.random.exponential(0.1), fail=sim.random.chance(0.5))
                    await process.ref(f"a/head:{name}").tell(work)
                except Unreachable:
                    pass
        if sim.random.chance(0.6):
            await asyncio.sleep(sim.random.exponential(0.2))
    await asyncio.sleep(30.0)
    assert not world.busy
    for name in names:
        if name not in stopped:
            assert await process.ref(f"a/head:{name}").ask(WhoMsg()) == name


def test_a_failed_actor_restarts_with_its_siblings_under_any_schedule() -> None:
    each_seed(families_that_fail, 200)


# Families across nodes ------------------------------------------------------------------------------------------------


class Chief(Actor[WorkMsg | WhoMsg]):
    """Has a child on every other node, and starts lost ones again."""

    supervision = PATIENT

    def __init__(self, nodes: tuple[str, ...]) -> None:
        self.nodes = nodes

    async def started(self) -> None:
        for node in self.nodes:
            await self.start_on(node)

    async def start_on(self, node: str) -> None:
        while True:
            try:
                await self.spawn_on(node, "limb", Limb, self.me)
            except SpawnRefused:
                return  # it is there: the end that was heard of is that of the one before it
            except Unreachable:
                await asyncio.sleep(0.5)
            else:
                return

    @on(WorkMsg)
    async def work(self, msg: WorkMsg) -> None:
        await asyncio.sleep(msg.seconds)
        if msg.fail:
            raise ValueError("headache")

    @on(WhoMsg)
    def who(self, msg: WhoMsg) -> str:
        return self.me.address

    @on(TerminatedMsg)
    async def mourn(self, msg: TerminatedMsg) -> None:
        await self.start_on(msg.address.partition("/")[0])


class Limb(Actor[WorkMsg | WhoMsg]):
    supervision = Restart(limit=1, within=5.0, backoff=0.05)

    def __init__(self, chief: Ref[WorkMsg | WhoMsg]) -> None:
        self.chief = chief

    @on(WorkMsg)
    async def work(self, msg: WorkMsg) -> None:
        await asyncio.sleep(msg.seconds)
        if msg.fail:
            raise ValueError("sprained")

    @on(WhoMsg)
    def who(self, msg: WhoMsg) -> str:
        return self.me.address


async def families_across_nodes(sim: Simulation) -> None:
    a = sim.node("a", lambda node: node.spawn("chief", Chief, ("b", "c")))
    others = {name: sim.node(name) for name in "bc"}
    await sim.start()
    limbs = [f"{name}/a.chief:limb" for name in "bc"]
    await sim.until(lambda: all(limb in others[limb[0]].node.cells for limb in limbs))
    for _ in range(sim.random.below(6)):
        limb = sim.random.choice(limbs)
        match sim.random.below(8):
            case 0:
                await a.ref("a/chief").tell(WorkMsg(seconds=0.01, fail=True))
            case 1 | 2:
                sim.cut(a, others[limb[0]])
            case 3 if limb in others[limb[0]].node.cells:
                others[limb[0]].node.cell(limb).request_stop()
            case _:
                with contextlib.suppress(Unreachable):
                    await a.ref(limb).tell(WorkMsg(seconds=sim.random.exponential(0.05), fail=sim.random.chance(0.6)))
        if sim.random.chance(0.6):
            await asyncio.sleep(sim.random.exponential(0.3))
    end = sim.random.below(3)
    if end == 0:
        a.node.cell("a/chief").request_stop()
    elif end == 1:
        a.node.cell("a/chief").request_stop(graceful=False)
    await asyncio.sleep(120.0)
    for limb in limbs:
        if end < 2:
            assert limb not in others[limb[0]].node.cells, "nobody outlives its parent"
        else:
            assert await a.ref(limb).ask(WhoMsg()) == limb


def test_a_child_on_another_node_stops_with_its_parent_and_not_before() -> None:
    each_seed(families_across_nodes, 150)


async def parents_whose_node_is_killed(sim: Simulation) -> None:
    a = sim.node("a", lambda node: node.spawn("chief", Chief, ("b", "c")))
    others = {name: sim.node(name) for name in "bc"}
    await sim.start()
    await asyncio.sleep(sim.random.exponential(0.05))
    a.kill(silently=sim.random.chance(0.5))
    await asyncio.sleep(120.0)
    for name, process in others.items():
        assert not process.running or f"{name}/a.chief:limb" not in process.node.cells


def test_a_child_does_not_outlive_the_node_of_its_parent() -> None:
    each_seed(parents_whose_node_is_killed, 60)


class Tidy(Actor[WhoMsg]):
    """Does not stop in time, and takes another eight seconds to end once it is aborted."""

    async def stopped(self) -> None:
        try:
            await asyncio.sleep(3600.0)
        finally:
            await asyncio.sleep(8.0)

    @on(WhoMsg)
    def who(self, msg: WhoMsg) -> str:
        return self.me.address


class Owner(Actor[WhoMsg]):
    async def started(self) -> None:
        await self.spawn_on("b", "tidy", Tidy)

    @on(WhoMsg)
    def who(self, msg: WhoMsg) -> str:
        return self.me.address


async def a_child_that_is_slow_to_end(sim: Simulation) -> None:
    a = sim.node("a", lambda node: node.spawn("owner", Owner))
    b = sim.node("b")
    await sim.start()
    await sim.until(lambda: "b/a.owner:tidy" in b.node.cells)
    await a.node.cell("a/owner").stop(60.0)
    assert "b/a.owner:tidy" not in b.node.cells


def test_a_parent_stops_after_its_child_on_another_node_that_has_to_be_aborted() -> None:
    each_seed(a_child_that_is_slow_to_end, 3)
