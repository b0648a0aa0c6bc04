"""Before a run begins its hosts try whether they can dial each other, and the run is told who cannot."""

import asyncio
import re
import socket
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from orchestra import Actor, Hosts, HostShape, Node, Ref, Topology, UsageError, on
from orchestra.hosts import reach
from orchestra.hosts.reach import DialMsg, ListenMsg, Reach, ReachableMsg
from orchestra.runs import reached_hosts
from orchestra.runs.placement import edges_between_hosts
from orchestra.runs.reached_hosts import swapped_pairs

Run = Callable[..., Any]
SECRET = bytes(range(32))
ANY_PORT = "tcp://127.0.0.1:0"


def node(name: str, **more: Any) -> Any:
    return Node(name, secret=SECRET, shared_memory=0, **more).running()


def test_a_host_is_reached_while_it_listens_and_no_longer(run: Run) -> None:
    async def main() -> None:
        async with node("here") as here, node("there") as there:
            one, other = Reach(here), Reach(there)
            told = await one.listen(ListenMsg(address=ANY_PORT))
            assert told.error == ""
            assert re.fullmatch(r"tcp://127\.0\.0\.1:\d+", told.address)
            assert (await other.dial(DialMsg(address=told.address))).error == ""
            await one.close()
            assert "onnect" in (await other.dial(DialMsg(address=told.address))).error

    run(main())


def test_a_host_of_another_run_is_not_reached(run: Run) -> None:
    async def main() -> None:
        async with node("here") as here, Node("there", secret=bytes(32), shared_memory=0).running() as there:
            one = Reach(here)
            told = await one.listen(ListenMsg(address=ANY_PORT))
            assert (await Reach(there).dial(DialMsg(address=told.address))).error
            await one.close()

    run(main())


def test_a_host_says_why_it_cannot_listen(run: Run) -> None:
    async def main() -> None:
        async with node("here") as here:
            with socket.create_server(("127.0.0.1", 0)) as taken:
                port = taken.getsockname()[1]
                told = await Reach(here).listen(ListenMsg(address=f"tcp://127.0.0.1:{port}"))
            assert told.address == ""
            assert str(port) in told.error

    run(main())


def test_a_host_that_never_answers_is_given_up(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "REACH_S", 0.05)

    async def main() -> None:
        async with node("here") as here:
            with socket.create_server(("127.0.0.1", 0)) as silent:
                address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
                told = await Reach(here).dial(DialMsg(address=address))
            assert told.error == f"no answer from {address} within 0.05 s"

    run(main())


# Hosts of a run -------------------------------------------------------------------------------------------------------


class Talker(Actor[ListenMsg]):
    def __init__(self, *to: Ref[Any]) -> None: ...

    @on(ListenMsg)
    def listen(self, msg: ListenMsg) -> ReachableMsg:
        return ReachableMsg()


class AgentOf(Actor[ListenMsg | DialMsg]):
    """The agent of a host which may lie behind a firewall: what others are told of it is then a port that is closed."""

    def __init__(self, reach: Reach, closed: str) -> None:
        self._reach, self._closed = reach, closed

    @on(ListenMsg)
    def listen(self, msg: ListenMsg) -> Any:
        return asyncio.create_task(self._listen(msg))

    async def _listen(self, msg: ListenMsg) -> ReachableMsg:
        told = await self._reach.listen(msg)
        return ReachableMsg(address=self._closed) if self._closed else told

    @on(DialMsg)
    def dial(self, msg: DialMsg) -> Any:
        return asyncio.create_task(self._reach.dial(msg))


def talking() -> Any:
    """A run whose node on host 2 talks to one on host 1, and one on host 1 to one beside the head."""
    shapes = Hosts([HostShape(0, "boss"), HostShape(1, "cpu1"), HostShape(2, "cpu2")])
    topology = Topology("talking")
    root = topology.node("root").spawn("boss", Talker)
    beside = topology.node("a").spawn("talker", Talker, root)
    there = topology.node("b", on=shapes[1]).spawn("talker", Talker, root, beside)
    topology.node("c", on=shapes[2]).spawn("talker", Talker, there)
    topology.until(root)
    return SimpleNamespace(topology=topology, shapes=shapes, hosts=SimpleNamespace(advertise=()))


def tried(run: Run, planned: Any, firewalls: Mapping[int, str]) -> frozenset[tuple[int, int]]:
    found: list[frozenset[tuple[int, int]]] = []

    async def main() -> None:
        async with AsyncExitStack() as stack:
            root = await stack.enter_async_context(node("root", listen=ANY_PORT))
            agents = {}
            for slot in (1, 2):
                there = await stack.enter_async_context(node(f"agent-{slot}", join=root.listening))
                own = Reach(there)
                stack.push_async_callback(own.close)
                agents[slot] = there.spawn("agent", AgentOf, own, firewalls.get(slot, ""))
            found.append(await swapped_pairs(planned, root, agents, ANY_PORT))

    run(main())
    return found[0]


@pytest.fixture
def closed() -> Any:
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"tcp://127.0.0.1:{server.getsockname()[1]}"


def test_hosts_that_reach_each_other_are_dialled_as_planned(run: Run) -> None:
    planned = talking()
    assert tried(run, planned, {}) == frozenset()
    assert [edge.listener() for edge in edges_between_hosts(planned.topology)] == ["a", "b"]


def test_a_host_behind_a_firewall_dials_where_it_would_be_dialled(run: Run, closed: str) -> None:
    """Host 1 reaches host 2, which it would wait for."""
    planned = talking()
    swapped = tried(run, planned, {1: closed})
    assert swapped == {(1, 2)}
    assert [edge.listener(swapped) for edge in edges_between_hosts(planned.topology)] == ["a", "c"]


def test_a_run_of_which_two_hosts_cannot_reach_each_other_is_refused_with_their_names(run: Run, closed: str) -> None:
    with pytest.raises(UsageError) as caught:
        tried(run, talking(), {1: closed, 2: closed})
    said = str(caught.value)
    assert said.startswith("c/talker on host 2 (cpu2) cannot reach b/talker on host 1 (cpu1): from host 2 to 1: ")
    assert "; from host 1 to 2: " in said
    assert said.count(closed.removeprefix("tcp://")) >= 2
    assert said.endswith("or place both actors on one host")


def test_a_host_that_is_gone_meanwhile_refuses_no_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head knows it, and the run may do without that host."""

    class Gone:
        async def listen(self, msg: ListenMsg) -> ReachableMsg:
            raise reached_hosts.OrchestraError("agent-1 is gone")

        dial = listen

    monkeypatch.setattr(reached_hosts, "_AgentSide", lambda root, agent: Gone())
    assert tried(run, talking(), {}) == frozenset()
