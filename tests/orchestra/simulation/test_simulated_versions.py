"""Parameters on the simulated network: bytes per host and version, slow hosts, and partitions."""

import asyncio
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from orchestra import Actor, Axes, Lane, Message, Node, Ref, freeze, on
from orchestra.testing import Process, Simulation, each_seed, run_seed

FLOATS = 250_000
NBYTES = 4 * FLOATS
VERSIONS = 12


class VersionMsg(Message):
    """A version of some parameters."""

    lane: ClassVar[Lane] = Lane.LATEST
    version: int
    params: Annotated[NDArray[np.float32], Axes("float32", "parameters")]


class MarkMsg(Message):
    """An ordered message between versions."""

    version: int


class Taker(Actor[VersionMsg | MarkMsg]):
    """Takes versions, each for some time, and passes them on."""

    def __init__(self, taken: list[int], marks: list[tuple[int, int]], seconds: float, below: list[str], node: Node):
        self._taken, self._marks, self._seconds = taken, marks, seconds
        self._below: list[Ref[Any]] = [node.ref(name) for name in below]

    @on(VersionMsg)
    async def take(self, msg: VersionMsg) -> None:
        for each in self._below:
            await each.tell(msg)
        await asyncio.sleep(self._seconds)
        self._taken.append(msg.version)

    @on(MarkMsg)
    def mark(self, msg: MarkMsg) -> None:
        self._marks.append((msg.version, self._taken[-1] if self._taken else 0))


class Run:
    """A head, and hosts whose proxies take its versions and pass them on to workers."""

    def __init__(self, sim: Simulation, hosts: int, workers: int = 0) -> None:
        self.sim = sim
        self.taken: dict[str, list[int]] = {}
        self.marks: dict[str, list[tuple[int, int]]] = {}
        self.seconds: dict[str, float] = {}
        self.head = sim.node("head")
        self.proxies: list[Process] = []
        for host in range(hosts):
            names = [f"worker-{host}-{number}" for number in range(workers)]
            self.proxies.append(self._node(f"proxy-{host}", [f"{name}/taker" for name in names]))
            for name in names:
                self._node(name, [])

    def _node(self, name: str, below: list[str]) -> Process:
        taken, marks = self.taken.setdefault(name, []), self.marks.setdefault(name, [])

        def setup(node: Node) -> None:
            node.spawn("taker", Taker, taken, marks, self.seconds.get(name, 0.0), below, node)

        return self.sim.node(name, setup)

    async def publish(self, versions: range, every_s: float) -> None:
        for version in versions:
            params = freeze(np.full(FLOATS, version, np.float32))
            for proxy in self.proxies:
                await self.head.ref(f"{proxy.name}/taker").tell(VersionMsg(version=version, params=params))
            await asyncio.sleep(every_s)

    def sent(self, proxy: Process) -> int:
        """The bytes from the head to a proxy."""
        return self.sim.network.traffic["head", proxy.name]


@pytest.mark.parametrize("workers", [1, 4, 16])
def test_a_version_crosses_the_network_once_for_a_host_however_many_workers_it_has(workers: int) -> None:
    async def scenario(sim: Simulation) -> None:
        run = Run(sim, 2, workers)
        await sim.start()
        before = [run.sent(proxy) for proxy in run.proxies]
        await run.publish(range(1, VERSIONS + 1), every_s=5.0)
        await sim.until(lambda: all(taken == [*range(1, VERSIONS + 1)] for taken in run.taken.values()))
        for proxy, earlier in zip(run.proxies, before, strict=True):
            assert VERSIONS * NBYTES <= run.sent(proxy) - earlier <= 1.05 * VERSIONS * NBYTES
        assert run.sent(sim.processes["worker-0-0"]) < NBYTES / 10

    run_seed(scenario, 1)


def test_versions_that_nobody_takes_are_not_sent_and_a_slow_host_delays_no_other() -> None:
    async def scenario(sim: Simulation) -> None:
        run = Run(sim, 2)
        slow, quick = run.proxies
        run.seconds[slow.name] = 1e6
        await sim.start()
        before = run.sent(slow)
        since = sim.loop.time()
        await run.publish(range(1, 201), every_s=0.0)
        assert sim.loop.time() - since < 1.0  # nobody was waited for
        await sim.until(lambda: run.taken[quick.name][-1:] == [200])
        # The first one is being handled; the second one is unread. None of the others is sent, or kept by the session.
        assert run.sent(slow) - before < 2.1 * NBYTES
        link: Any = run.head.node.peers.find(slow.name)
        assert link.session.kept_bytes <= 64 << 20

    each_seed(scenario, 10)


def test_a_host_that_was_cut_off_catches_up_with_the_version_on_its_way_and_the_newest() -> None:
    async def scenario(sim: Simulation) -> None:
        run = Run(sim, 2)
        cut_off, other = run.proxies
        await sim.start()
        await run.publish(range(1, 2), every_s=5.0)
        before = run.sent(cut_off)
        sim.partition(run.head, cut_off)
        await run.publish(range(2, 102), every_s=0.05)
        assert run.taken[other.name][-1] >= 99
        sim.heal()
        await sim.until(lambda: run.taken[cut_off.name][-1] == 101)
        assert len(run.taken[cut_off.name]) <= 3
        assert run.sent(cut_off) - before < 3.1 * NBYTES  # the one on its way may be sent twice

    each_seed(scenario, 10)


def test_an_ordered_message_comes_after_the_versions_that_were_told_before_it() -> None:
    async def scenario(sim: Simulation) -> None:
        run = Run(sim, 1)
        (proxy,) = run.proxies
        run.seconds[proxy.name] = 0.2
        await sim.start()
        ref = run.head.ref(f"{proxy.name}/taker")
        for version in range(1, 60):
            await ref.tell(VersionMsg(version=version, params=freeze(np.zeros(10, np.float32))))
            if sim.random.chance(0.3):
                await ref.tell(MarkMsg(version=version))
            if sim.random.chance(0.5):
                await asyncio.sleep(sim.random.uniform(0.0, 0.3))
        await sim.until(lambda: run.taken[proxy.name][-1:] == [59])
        assert run.marks[proxy.name]
        assert all(told <= taken for told, taken in run.marks[proxy.name])
        assert run.taken[proxy.name] == sorted(run.taken[proxy.name])

    each_seed(scenario, 20)


def test_the_newest_version_arrives_whatever_fails_between_two_live_processes() -> None:
    async def scenario(sim: Simulation) -> None:
        run = Run(sim, 2)
        run.seconds["proxy-0"] = 0.3
        await sim.start()
        async with sim.faults(cuts=0.5, partitions=0.3, pauses=0.2):
            await run.publish(range(1, 30), every_s=0.2)
        await sim.until(lambda: all(taken[-1:] == [29] for taken in run.taken.values()))
        assert all(taken == sorted(set(taken)) for taken in run.taken.values())

    each_seed(scenario, 20)
