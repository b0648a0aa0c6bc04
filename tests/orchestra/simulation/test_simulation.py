"""Simulations: a seed repeats its run, time is virtual, and a hang is reported."""

import asyncio
import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from orchestra import Actor, Escalate, Message, Node, Ref, Request, TerminatedMsg, Unreachable, UsageError, on
from orchestra.errors import NobodyListens
from orchestra.simulation.network import SimulatedConnection
from orchestra.testing import (
    Probe,
    ProcessDied,
    Simulation,
    SimulationStuck,
    check_transport,
    each_seed,
    failing_seed,
    run_seed,
)
from orchestra.wire.transports.registry import transport_for


class NoteMsg(Message):
    """Something to tell."""

    number: int


class SendMsg(Message):
    """Tell somebody the numbers from 0 on."""

    to: Ref[NoteMsg]
    count: int


class DoubleMsg(Request[int]):
    """Twice as much, please."""

    number: int


class BreakMsg(Message):
    """Fail for good."""


class Keeper(Actor[NoteMsg | DoubleMsg | BreakMsg]):
    """Keeps what it is told in a list that outlives it."""

    supervision = Escalate()

    def __init__(self, kept: list[int]) -> None:
        self.kept = kept

    @on(NoteMsg)
    def keep(self, msg: NoteMsg) -> None:
        self.kept.append(msg.number)

    @on(DoubleMsg)
    async def double(self, msg: DoubleMsg) -> int:
        return await self.offload(lambda: 2 * msg.number)

    @on(BreakMsg)
    def fail(self, msg: BreakMsg) -> None:
        raise RuntimeError("broken on purpose")


class Talker(Actor[SendMsg]):
    @on(SendMsg)
    async def send(self, msg: SendMsg) -> None:
        for number in range(msg.count):
            await msg.to.tell(NoteMsg(number=number))


class Watcher(Actor[NoteMsg | TerminatedMsg]):
    """Watches one, and keeps what it hears of its end."""

    def __init__(self, target: Ref[Any], heard: list[str]) -> None:
        self.target, self.heard = target, heard

    async def started(self) -> None:
        self.watch(self.target)

    @on(NoteMsg)
    def note(self, msg: NoteMsg) -> None: ...

    @on(TerminatedMsg)
    def terminated(self, msg: TerminatedMsg) -> None:
        self.heard.append(msg.address)


def keeper(kept: list[int]) -> Callable[[Node], object]:
    return lambda node: node.spawn("keeper", Keeper, kept)


async def conversation(sim: Simulation) -> None:
    """Three processes, tells both ways, an ask, whatever can go wrong, and a death."""
    first: list[int] = []
    second: list[int] = []
    one = sim.node("one", keeper(first))
    sim.node("two", keeper(second))
    three = sim.node("three", lambda node: node.spawn("talker", Talker))
    await sim.start()
    for to in ("one/keeper", "two/keeper"):
        await three.ref("three/talker").tell(SendMsg(to=Ref(to), count=20))
    assert await one.ref("two/keeper").ask(DoubleMsg(number=4)) == 8
    async with sim.faults(cuts=2.0, partitions=0.2, pauses=0.2):
        await asyncio.sleep(5.0)
    await sim.until(lambda: len(first) == len(second) == 20)
    assert first == second == list(range(20))
    three.kill()
    await sim.until(lambda: one.node.statistics().peers == ("two",))


# The seed decides -----------------------------------------------------------------------------------------------------


def test_a_seed_repeats_its_run_and_another_seed_does_not() -> None:
    digests = [run_seed(conversation, seed).digest for seed in range(8)]
    assert digests == [run_seed(conversation, seed).digest for seed in range(8)]
    assert len(set(digests)) == len(digests)


def test_a_seed_repeats_its_run_in_a_process_with_another_hash_seed() -> None:
    here = os.path.abspath(__file__)
    code = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('test_simulation', {here!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "sys.modules['test_simulation'] = module\n"
        "spec.loader.exec_module(module)\n"
        "print(*(module.run_seed(module.conversation, seed).digest for seed in (1, 2, 3)))\n"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        ).stdout
        for hash_seed in ("1", "4321")
    }
    assert len(digests) == 1
    assert len(digests.pop().split()) == 3


def test_callbacks_run_in_order_within_a_process_and_in_seeded_order_between_processes() -> None:
    orders = set()

    async def scenario(sim: Simulation) -> None:
        order: list[str] = []
        processes = [sim.node(name) for name in ("one", "two")]
        await sim.start()

        async def work(name: str) -> None:
            for step in range(3):
                asyncio.get_running_loop().call_soon(order.append, f"{name}{step}")

        await asyncio.gather(*(process.run(work(process.name)) for process in processes))
        await asyncio.sleep(1.0)
        for process in processes:
            assert [step for step in order if step.startswith(process.name)] == [f"{process.name}{n}" for n in range(3)]
        orders.add(tuple(order))

    each_seed(scenario, 20)
    assert len(orders) > 5


@pytest.mark.parametrize("seed", range(5))
def test_the_simulated_network_keeps_the_contract_of_a_transport(seed: int) -> None:
    Simulation(seed).run(check_transport("sim://here"))


def test_an_address_without_a_host_is_refused_and_so_is_one_outside_a_simulation(run: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match="expected an address like sim://learner, got 'sim://'"):
        transport_for("sim://").check("sim://")
    with pytest.raises(UsageError, match="exist only in a simulation"):
        run(transport_for("sim://a").dial("sim://a"))


# Time -----------------------------------------------------------------------------------------------------------------


def test_an_hour_passes_at_once_and_actors_see_it_pass() -> None:
    async def scenario(sim: Simulation) -> None:
        process = sim.node("one")
        await sim.start()
        before, since = process.node.clock.now(), process.node.clock.monotonic()
        await asyncio.sleep(3000.0)
        assert since > 0.0
        assert 3000.0 <= process.node.clock.monotonic() - since < 3001.0
        assert 3000.0 <= (process.node.clock.now() - before).total_seconds() < 3001.0

    run_seed(scenario, 0)


def test_timers_fire_in_the_order_of_their_times() -> None:
    async def scenario(sim: Simulation) -> None:
        fired: list[int] = []
        loop = asyncio.get_running_loop()
        for delay in (3, 1, 2):
            loop.call_later(delay * 1e-6, fired.append, delay)
        loop.call_later(0.5, fired.append, 4).cancel()
        await asyncio.sleep(1.0)
        assert fired == [1, 2, 3]

    each_seed(scenario, 10)


def test_a_paused_process_receives_nothing_until_it_resumes() -> None:
    async def scenario(sim: Simulation) -> None:
        kept: list[int] = []
        one = sim.node("one", keeper(kept))
        two = sim.node("two")
        await sim.start()
        one.pause(10.0)
        await two.ref("one/keeper").tell(NoteMsg(number=1))
        await asyncio.sleep(9.0)
        assert kept == []
        await asyncio.sleep(3.0)
        assert kept == [1]

    each_seed(scenario, 10)


# A hang is a report ---------------------------------------------------------------------------------------------------


def test_a_task_that_waits_forever_is_reported() -> None:
    async def scenario(sim: Simulation) -> None:
        probe = Probe(NoteMsg)
        probe.hold()
        sim.node("one", lambda node: probe.start(node, "stuck"), listen=None)
        await sim.start()
        for number in range(4):
            await sim.processes["one"].ref("one/stuck").tell(NoteMsg(number=number))
        await asyncio.get_running_loop().create_future()

    with pytest.raises(SimulationStuck) as caught:
        run_seed(scenario, 0)
    text = str(caught.value)
    assert "no callback and no timer is left" in text
    assert "main in test_a_task_that_waits_forever_is_reported.<locals>.scenario" in text
    assert "one/stuck: 3 messages" in text
    assert "one/stuck in Probe.take (" in text


def test_an_endless_loop_without_time_passing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestra.simulation.loop.MAX_CALLBACKS_AT_ONCE", 1000)

    async def scenario(sim: Simulation) -> None:
        while sim.seed == 0:  # noqa: ASYNC110 (it never ends: that is tested)
            await asyncio.sleep(0)

    with pytest.raises(SimulationStuck, match="1,000 callbacks have run at one moment of virtual time"):
        run_seed(scenario, 0)


def test_a_run_over_its_limit_is_reported() -> None:
    async def scenario(sim: Simulation) -> None:
        while sim.seed == 0:  # noqa: ASYNC110 (it never ends: that is tested)
            await asyncio.sleep(1.0)

    with pytest.raises(SimulationStuck, match=r"after 10\.000 s, the limit of 10 s is exceeded"):
        run_seed(scenario, 0, limit=10.0)


def test_an_exception_in_a_callback_fails_the_simulation() -> None:
    async def scenario(sim: Simulation) -> None:
        asyncio.get_running_loop().call_later(1.0, lambda: 1 / 0)
        await asyncio.sleep(2.0)

    with pytest.raises(ZeroDivisionError):
        run_seed(scenario, 0)


async def _fail() -> None:
    raise ZeroDivisionError


def test_an_exception_in_the_last_callback_or_in_a_task_that_nobody_awaits_fails_the_simulation() -> None:
    async def in_a_callback(sim: Simulation) -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)

    async def in_a_task(sim: Simulation) -> None:
        kept = asyncio.create_task(_fail())  # and never looked at
        await asyncio.sleep(1.0)
        assert kept.done()

    for scenario in (in_a_callback, in_a_task):
        with pytest.raises(ZeroDivisionError):
            run_seed(scenario, 0)


def test_a_node_that_fails_fails_the_simulation_unless_it_may() -> None:
    async def scenario(sim: Simulation, *, may_fail: bool) -> str:
        process = sim.node("one", keeper([]), may_fail=may_fail)
        await sim.start()
        await process.ref("one/keeper").tell(BreakMsg())
        reason = await process.ended()
        assert len(process.failures) == 1
        return reason

    sim = Simulation(0)
    with pytest.raises(ExceptionGroup, match="node one failed"):
        sim.run(scenario(sim, may_fail=False))
    sim = Simulation(0)
    assert "node one failed" in sim.run(scenario(sim, may_fail=True))


# Death ----------------------------------------------------------------------------------------------------------------


def test_a_killed_process_runs_no_callback() -> None:
    async def scenario(sim: Simulation) -> None:
        ran: list[str] = []
        process = sim.node("one")
        await sim.start()

        async def work() -> None:
            try:
                await asyncio.sleep(1.0)
                ran.append("on")
            finally:
                ran.append("finally")

        working = asyncio.create_task(process.run(work()))
        await asyncio.sleep(0.5)
        process.kill()
        process.kill()  # once is enough
        await asyncio.sleep(10.0)
        assert ran == []
        with pytest.raises(ProcessDied, match="process one has ended: killed"):
            await working
        with pytest.raises(ProcessDied, match="process one does not run"):
            await process.ref("one/x").tell(NoteMsg(number=1))
        assert await process.ended() == "killed"

    each_seed(scenario, 10)


def test_a_restarted_process_has_no_memory_and_can_be_reached() -> None:
    async def scenario(sim: Simulation) -> None:
        lives: list[list[int]] = []

        def setup(node: Node) -> None:
            lives.append([])
            node.spawn("keeper", Keeper, lives[-1])

        one, two = sim.node("one"), sim.node("two", setup)
        await sim.start()
        with pytest.raises(UsageError, match="process two is running"):
            await two.start()
        await one.ref("two/keeper").tell(NoteMsg(number=1))
        await asyncio.sleep(5.0)
        two.kill(silently=sim.random.chance(0.5))
        await asyncio.sleep(60.0)
        await two.start()
        await asyncio.sleep(5.0)
        await one.ref("two/keeper").tell(NoteMsg(number=2))
        await asyncio.sleep(5.0)
        assert lives == [[1], [2]]
        assert two.starts == 2
        await two.stop()
        assert not two.running

    each_seed(scenario, 20)


def test_a_watcher_is_notified_once_of_a_lost_machine() -> None:
    async def scenario(sim: Simulation) -> None:
        heard: list[str] = []
        sim.node("one", lambda node: node.spawn("watcher", Watcher, Ref("two/keeper"), heard))
        two = sim.node("two", keeper([]))
        await sim.start()
        await asyncio.sleep(5.0)
        two.kill(silently=True)
        await asyncio.sleep(10.0)
        assert heard == []
        await asyncio.sleep(60.0)
        assert heard == ["two/keeper"]

    each_seed(scenario, 10)


def test_a_dead_process_refuses_connections_and_a_lost_machine_does_not_answer() -> None:
    async def scenario(sim: Simulation) -> None:
        one, two = sim.node("one"), sim.node("two")
        await sim.start()
        two.kill()
        with pytest.raises(NobodyListens):
            await one.run(transport_for("sim://two").dial("sim://two"))
        await two.start()
        two.kill(silently=True)
        begun = asyncio.get_running_loop().time()
        with pytest.raises(Unreachable, match="no answer from sim://two within 75 s"):
            await one.run(transport_for("sim://two").dial("sim://two"))
        assert asyncio.get_running_loop().time() - begun > 60.0
        await two.start()
        (await one.run(transport_for("sim://two").dial("sim://two"))).abort()

    each_seed(scenario, 5)


# The network ----------------------------------------------------------------------------------------------------------


def test_some_seeds_cut_a_connection_in_the_middle_of_a_frame() -> None:
    torn = set()

    async def scenario(sim: Simulation) -> None:
        one, two = sim.node("one", keeper([]), may_fail=True), sim.node("two", keeper([]))
        await sim.start()
        await one.ref("two/keeper").tell(NoteMsg(number=1))
        ends: list[SimulatedConnection] = list(sim.network.ends)
        await asyncio.sleep(sim.random.uniform(0.0, 0.02))
        sim.cut(one, two)
        torn.update((end.host, end._reader._end > end._reader._start) for end in ends)

    each_seed(scenario, 300)
    assert {unread for _, unread in torn} == {False, True}


def test_packets_of_a_partition_wait_and_a_one_way_partition_lets_the_others_through() -> None:
    async def scenario(sim: Simulation) -> None:
        first: list[int] = []
        second: list[int] = []
        one, two = sim.node("one", keeper(first)), sim.node("two", keeper(second))
        await sim.start()
        sim.partition(one, two, one_way=True)
        await one.ref("two/keeper").tell(NoteMsg(number=1))
        await two.ref("one/keeper").tell(NoteMsg(number=2))
        await asyncio.sleep(10.0)
        assert (first, second) == ([2], [])
        sim.heal(one, two)
        await asyncio.sleep(10.0)
        assert (first, second) == ([2], [1])

    each_seed(scenario, 10)


def test_a_link_can_be_slowed_down() -> None:
    async def scenario(sim: Simulation) -> None:
        one, two = sim.node("one", keeper([])), sim.node("two")
        await sim.start()
        sim.slow_down(one, two, 0.5)
        begun = asyncio.get_running_loop().time()
        await two.ref("one/keeper").ask(DoubleMsg(number=1))
        assert asyncio.get_running_loop().time() - begun > 0.5

    each_seed(scenario, 10)


def test_a_node_cannot_be_planned_twice() -> None:
    sim = Simulation(0)
    sim.node("one")
    with pytest.raises(UsageError, match="already has a node 'one'"):
        sim.node("one")


# Seeds ----------------------------------------------------------------------------------------------------------------


async def fails_with_seven(sim: Simulation) -> None:
    assert sim.seed != 7


def test_a_seed_that_fails_is_named_with_how_to_run_it_alone() -> None:
    with pytest.raises(AssertionError) as caught:
        each_seed(fails_with_seven, 10)
    assert "with seed 7; to run it alone: ORCHESTRA_SEEDS=7 pytest" in caught.value.__notes__[0]
    assert failing_seed(fails_with_seven, 10) == 7
    assert failing_seed(fails_with_seven, 7) is None


@pytest.mark.parametrize(("text", "seeds"), [("7", [7]), ("3:6", [3, 4, 5])])
def test_the_environment_variable_selects_the_seeds(
    text: str, seeds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []

    async def scenario(sim: Simulation) -> None:
        ran.append(sim.seed)

    monkeypatch.setenv("ORCHESTRA_SEEDS", text)
    each_seed(scenario, 100)
    assert ran == seeds


def test_seeds_that_are_no_numbers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRA_SEEDS", "all")
    with pytest.raises(UsageError, match="ORCHESTRA_SEEDS: expected a seed like 123 or a range like 0:5000, got 'all'"):
        each_seed(fails_with_seven, 1)


def test_nothing_is_kept_of_a_simulation_that_is_over() -> None:
    async def scenario(sim: Simulation) -> None:
        sim.node("a", lambda node: node.spawn("keeper", Keeper, []))
        b = sim.node("b")
        await sim.start()
        await b.ref("a/keeper").tell(NoteMsg(number=1))

    world = run_seed(scenario, 1)
    over = [weakref.ref(each) for each in (world.loop, world.network, world.processes["a"].node)]
    del world
    gc.collect()
    assert [each() for each in over] == [None, None, None]
