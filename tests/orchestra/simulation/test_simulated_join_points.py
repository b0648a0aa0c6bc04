"""Nodes that join at the agent of their host: the head has few connections, and loss and return are known as before."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from orchestra import Actor, Message, Node, Request, TerminatedMsg, Unreachable, on
from orchestra.errors import HandshakeError, OrchestraError
from orchestra.nodes.join_point import JoinPoint
from orchestra.testing import Process, Simulation, each_seed, failing_seed, run_seed

SEEDS = 20


class NumberMsg(Message):
    """The number-th message of a sender."""

    number: int


class WhoMsg(Request[bytes]):
    """Return the incarnation of the recipient's node."""


class WatchThisMsg(Message):
    """Watch the actor at this address."""

    address: str


class Member(Actor[NumberMsg | WhoMsg | WatchThisMsg]):
    """Writes down the numbers and the ends that it is told, and says which incarnation of its node it runs in."""

    def __init__(self, node: Node, numbers: list[int], ends: list[TerminatedMsg]) -> None:
        self._node, self._numbers, self._ends = node, numbers, ends

    @on(NumberMsg)
    def number(self, msg: NumberMsg) -> None:
        self._numbers.append(msg.number)

    @on(WhoMsg)
    def who(self, msg: WhoMsg) -> bytes:
        return incarnation(self._node)

    @on(WatchThisMsg)
    def begin(self, msg: WatchThisMsg) -> None:
        self.watch(self._node.ref(msg.address))

    @on(TerminatedMsg)
    def ended(self, msg: TerminatedMsg) -> None:
        self._ends.append(msg)


def incarnation(node: Node) -> bytes:
    return node.peers._settings.incarnation


class Hosts:
    """A head, and hosts with an agent each, at which the host's other nodes join."""

    def __init__(self, sim: Simulation, hosts: int, nodes: int, *, auto_restart: bool = False, depth: int = 1) -> None:
        self.sim = sim
        self.numbers: dict[str, list[int]] = {}
        self.ends: dict[str, list[TerminatedMsg]] = {}
        self.head = sim.node("head", self._setup("head"))
        self.agents: list[Process] = []
        self.nodes: list[list[Process]] = []
        for host in range(hosts):
            above = f"sim://agent-{host - 1}" if depth > 1 and host else "sim://head"
            options: dict[str, Any] = {"auto_restart": auto_restart, "may_fail": True}
            self.agents.append(
                sim.node(f"agent-{host}", self._setup(f"agent-{host}"), join=above, joinable=True, **options)
            )
            self.nodes.append(
                [
                    sim.node(name, self._setup(name), join=f"sim://agent-{host}", **options)
                    for name in (f"node-{host}-{number}" for number in range(nodes))
                ]
            )

    def _setup(self, name: str) -> Any:
        numbers, ends = self.numbers.setdefault(name, []), self.ends.setdefault(name, [])
        return lambda node: node.spawn("member", Member, node, numbers, ends)

    @property
    def all(self) -> list[Process]:
        return [self.head, *self.agents, *(node for nodes in self.nodes for node in nodes)]

    async def start(self) -> None:
        await self.head.start()
        for agent in self.agents:
            await agent.start()
        await asyncio.gather(*(node.start() for nodes in self.nodes for node in nodes))

    def expect_all(self) -> None:
        self.head.node.directory.expect(process.name for process in self.all)


def connections(sim: Simulation, process: Process) -> Counter[str]:
    """The hosts at the other end of the connections of a process, with their number."""
    return Counter(end.peer_host for end in sim.network.ends if end.host == process.name)


@pytest.mark.parametrize("workers", [1, 8, 64])
def test_the_head_has_two_connections_for_each_host_however_many_nodes_it_has(workers: int) -> None:
    async def scenario(sim: Simulation) -> None:
        it = Hosts(sim, 2, 1 + workers)
        await it.start()
        for proxy, *others in it.nodes:
            for each in others:
                await each.ref(f"{proxy.name}/member").tell(NumberMsg(number=1))
            await proxy.ref("head/member").tell(NumberMsg(number=2))
        await sim.until(lambda: it.numbers["head"] == [2, 2])
        assert connections(sim, it.head) == dict.fromkeys(("agent-0", "agent-1", "node-0-0", "node-1-0"), 1)
        assert set(it.head.node.directory.entries) == {process.name for process in it.all} - {"head"}

    run_seed(scenario, 1)


def test_a_node_reaches_nodes_of_other_hosts_and_agents_join_at_agents() -> None:
    async def scenario(sim: Simulation) -> None:
        it = Hosts(sim, 3, 2, depth=3)
        await it.start()
        for one in it.all:
            for other in it.all:
                if other is not one:
                    assert await one.ref(f"{other.name}/member").ask(WhoMsg()) == incarnation(other.node)
        assert [each.node.peers.upstream for each in it.agents] == ["head", "agent-0", "agent-1"]
        assert {each.node.root for each in it.all} == {"head"}
        assert {each.node.peers.host for each in it.nodes[2]} == {"agent-2"}

    each_seed(scenario, SEEDS)


def test_a_node_that_is_no_join_point_refuses_who_would_join() -> None:
    async def scenario(sim: Simulation) -> None:
        it = Hosts(sim, 1, 1)
        stray = sim.node("stray", join="sim://node-0-0", may_fail=True)
        await it.start()
        with pytest.raises(OrchestraError, match="stray"):
            await stray.start()
        (failure,) = stray.failures
        assert isinstance(failure, HandshakeError)
        assert "node-0-0 is no join point; join at agent-0" in str(failure)

    run_seed(scenario, 1)


def test_a_look_up_waits_for_a_node_of_another_host_and_fails_once_that_is_given_up() -> None:
    async def scenario(sim: Simulation) -> None:
        it = Hosts(sim, 2, 2)
        late = sim.node("late", it._setup("late"), join="sim://agent-1")
        await it.start()
        it.expect_all()
        it.head.node.directory.add("late")
        it.head.node.directory.add("lost")
        one, other = it.nodes[0]
        asks = [asyncio.create_task(each.ref("late/member").ask(WhoMsg())) for each in (one, other)]
        lost = [asyncio.create_task(each.ref("lost/member").ask(WhoMsg())) for each in (one, other)]
        with pytest.raises(Unreachable, match="there is no node 'moon'; the nodes of this run are agent-0"):
            await one.ref("moon/member").ask(WhoMsg())
        await asyncio.sleep(5.0)
        assert not any(task.done() for task in (*asks, *lost))
        await late.start()
        assert [await task for task in asks] == 2 * [incarnation(late.node)]
        it.head.node.directory.give_up("lost", "its process died, 4 times")
        for task in lost:
            with pytest.raises(Unreachable, match="node 'lost' is gone: its process died, 4 times"):
                await task
        it.head.node.directory.add("lost")  # as `orchestra scale` does
        again = asyncio.create_task(one.ref("lost/member").ask(WhoMsg()))
        await asyncio.sleep(5.0)
        assert not again.done()
        it.head.node.directory.close()
        with pytest.raises(Unreachable, match="node 'lost' is gone: the run is over"):
            await again

    each_seed(scenario, SEEDS)


def test_watchers_on_all_hosts_hear_of_a_killed_node_and_know_its_next_incarnation() -> None:
    async def scenario(sim: Simulation) -> None:
        it = Hosts(sim, 2, 2)
        await it.start()
        victim = it.nodes[1][0]
        watchers = [it.head, it.agents[1], it.nodes[1][1], it.nodes[0][0], it.nodes[0][1]]
        for each in watchers:
            await each.ref(f"{each.name}/member").tell(WatchThisMsg(address=f"{victim.name}/member"))
            await each.ref(f"{victim.name}/member").ask(WhoMsg())
        before = incarnation(victim.node)
        victim.kill()
        await sim.until(lambda: all(it.ends[each.name] for each in watchers), within=30.0)
        assert all(it.ends[each.name][0].lost for each in watchers)
        await victim.start()
        for each in (*watchers, it.agents[0]):
            assert await each.ref(f"{victim.name}/member").ask(WhoMsg()) == incarnation(victim.node) != before
        assert all(len(it.ends[each.name]) == 1 for each in watchers)

    each_seed(scenario, SEEDS)


def test_the_head_knows_a_restarted_node_at_once_although_it_cannot_check_the_old_one() -> None:
    async def scenario(sim: Simulation) -> None:
        it = Hosts(sim, 1, 1)
        node = it.nodes[0][0]
        sim.forbid(it.head, node)
        await it.start()
        await node.ref("head/member").tell(NumberMsg(number=1))
        await sim.until(lambda: it.numbers["head"] == [1])
        await it.head.ref("head/member").tell(WatchThisMsg(address=f"{node.name}/member"))
        await asyncio.sleep(1.0)
        sim.partition(it.head, node)  # its connection to the head hangs, that of the agent does not
        node.kill()
        await node.start()
        since = sim.loop.time()
        await sim.until(lambda: bool(it.ends["head"]))
        assert sim.loop.time() - since < 2.0
        assert "another process took the place of node-0-0" in it.ends["head"][0].reason

    each_seed(scenario, SEEDS)


def test_the_head_hears_at_once_that_a_node_has_died_that_it_cannot_check() -> None:
    async def scenario(sim: Simulation) -> None:
        it = Hosts(sim, 1, 1)
        node = it.nodes[0][0]
        sim.forbid(it.head, node)
        await it.start()
        await node.ref("head/member").tell(NumberMsg(number=1))
        await sim.until(lambda: it.numbers["head"] == [1])
        await it.head.ref("head/member").tell(WatchThisMsg(address=f"{node.name}/member"))
        await asyncio.sleep(1.0)
        node.kill()
        since = sim.loop.time()
        await sim.until(lambda: bool(it.ends["head"]))
        assert sim.loop.time() - since < 8.0  # and not the 14 s after which a silent peer is dead
        assert it.ends["head"][0].lost

    each_seed(scenario, SEEDS)


def test_what_a_node_has_sent_before_it_stops_arrives_although_its_end_is_known_before() -> None:
    known_before = 0

    async def scenario(sim: Simulation) -> None:
        it = Hosts(sim, 1, 1)
        node = it.nodes[0][0]
        await it.start()
        await node.ref("head/member").tell(NumberMsg(number=0))
        await sim.until(lambda: it.numbers["head"] == [0])
        sim.slow_down(node, it.head, 0.5)
        for number in range(1, 50):
            await node.ref("head/member").tell(NumberMsg(number=number))
        stopping = asyncio.create_task(node.stop())
        await sim.until(lambda: node.name not in it.head.node.directory.entries)
        nonlocal known_before
        known_before += it.numbers["head"] != list(range(50))
        await stopping
        await sim.until(lambda: it.numbers["head"] == list(range(50)))

    each_seed(scenario, SEEDS)
    assert known_before > SEEDS // 4


def test_the_nodes_of_a_lost_agent_end_and_join_again_at_its_next_incarnation() -> None:
    async def scenario(sim: Simulation) -> None:
        it = Hosts(sim, 2, 2, auto_restart=True)
        await it.start()
        it.expect_all()
        watched = [node.name for node in it.nodes[0]]
        before = {node.name: incarnation(node.node) for nodes in it.nodes for node in nodes}
        for name in watched:
            await it.head.ref("head/member").tell(WatchThisMsg(address=f"{name}/member"))
            await it.head.ref(f"{name}/member").ask(WhoMsg())
        it.agents[0].kill(silently=sim.random.chance(0.5))
        await sim.until(lambda: len(it.ends["head"]) == 2, within=60.0)
        assert sorted(end.address for end in it.ends["head"]) == [f"{name}/member" for name in watched]
        await sim.until(lambda: all(each.running and each._ended for each in it.all), within=60.0)
        for name in watched:
            async with asyncio.timeout(60.0):
                assert await it.nodes[1][0].ref(f"{name}/member").ask(WhoMsg()) != before[name]
        assert [incarnation(node.node) for node in it.nodes[1]] == [before[node.name] for node in it.nodes[1]]

    each_seed(scenario, SEEDS)


def test_a_node_that_cannot_dial_another_host_is_dialled_from_there() -> None:
    async def scenario(sim: Simulation) -> None:
        it = Hosts(sim, 2, 2)
        one, other = it.nodes[0][0], it.nodes[1][0]
        sim.forbid(one, other)
        await it.start()
        assert await one.ref(f"{other.name}/member").ask(WhoMsg()) == incarnation(other.node)
        assert connections(sim, it.head) == {"agent-0": 1, "agent-1": 1}

    each_seed(scenario, SEEDS)


def test_hosts_that_cannot_reach_each_other_are_named_with_both_reasons() -> None:
    async def scenario(sim: Simulation) -> None:
        it = Hosts(sim, 2, 1)
        one, other = it.nodes[0][0], it.nodes[1][0]
        sim.forbid(one, other)
        sim.forbid(other, one)
        await it.start()
        with pytest.raises(Unreachable) as caught:
            await one.ref(f"{other.name}/member").ask(WhoMsg())
        assert str(caught.value) == (
            "node-0-0 (host agent-0) and node-1-0 (host agent-1) cannot connect: "
            "node-0-0 → node-1-0: no route from node-0-0 to sim://node-1-0; "
            "node-1-0 → node-0-0: no route from node-1-0 to sim://node-0-0"
        )

    each_seed(scenario, 5)


async def directories_agree(sim: Simulation) -> None:
    """Nodes and agents die, connections break and hang; then every directory is right and everybody is reached."""
    it = Hosts(sim, 2, 2, auto_restart=True)
    await it.start()
    it.expect_all()
    processes = it.all

    async def talk(process: Process) -> None:
        for _ in range(12):
            await asyncio.sleep(0.5)
            to = sim.random.choice([each for each in processes if each is not process])
            try:
                async with asyncio.timeout(20.0):
                    await process.ref(f"{to.name}/member").ask(WhoMsg())
            except (OrchestraError, TimeoutError):
                await asyncio.sleep(0.2)
            except asyncio.CancelledError:  # the node stopped while it was dialling
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise

    async with sim.faults(kills=0.1, cuts=0.3, partitions=0.2, pauses=0.1):
        await asyncio.gather(*(talk(process) for process in processes))
    await sim.until(lambda: all(process.running for process in processes), within=120.0)
    await asyncio.sleep(40.0)
    assert all(process.running for process in processes)
    now = {process.name: incarnation(process.node) for process in processes}
    known = {name: entry.incarnation for name, entry in it.head.node.directory.entries.items()}
    assert known == {name: each for name, each in now.items() if name != "head"}
    for agent in it.agents:
        copies = {name: entry.incarnation for name, entry in agent.node.directory.entries.items()}
        assert copies == {name: now[name] for name in copies}
    for one in processes:
        for other in processes:
            if one is not other:
                async with asyncio.timeout(60.0):
                    assert await one.ref(f"{other.name}/member").ask(WhoMsg()) == now[other.name]


def test_directories_agree_after_any_faults() -> None:
    each_seed(directories_agree, SEEDS)


def test_a_join_point_that_keeps_an_older_entry_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    take = JoinPoint._take

    def forgetful(self: JoinPoint, ended: Any, joined: Any, *, via: str) -> None:
        take(self, (), [entry for entry in joined if entry.node not in self.directory.entries], via=via)

    monkeypatch.setattr(JoinPoint, "_take", forgetful)
    assert failing_seed(directories_agree, SEEDS) is not None
