"""An observer of a run over a thousand hosts sees all hosts, and asks the nodes of those that it is to show."""

import os
from typing import Any

import pytest

from orchestra import Actor, Node, UsageError, on
from orchestra.actors.statistics import HostStatistics, ProcessStatistics
from orchestra.hosts.messages import HEAD, AskHostMsg, HostStatisticsMsg
from orchestra.monitoring.observer import MOST_HOSTS, connected
from orchestra.runs.join_file import JoinInfo

SECRET = b"s" * 32
HOSTS, PROCESSES = 1000, 17
WRONG = (7, 500, 1000)
"""Slots of hosts that are silent."""


def names(slot: int) -> tuple[str, ...]:
    return (f"host-{slot}", *(f"worker-{slot}-{number}" for number in range(PROCESSES - 1)))


def host(slot: int) -> HostStatistics:
    return HostStatistics(
        slot=slot,
        name=f"node{slot:04}.cluster.example.org",
        state="silent" if slot in WRONG else "playing",
        nodes=names(slot),
        running=PROCESSES,
        agent=f"agent-{slot}-abcd",
        cores_used=float(slot % 64),
    )


class Hosts(Actor[AskHostMsg]):
    """In the place of the head's actor: every host answers."""

    def __init__(self, asked: list[tuple[str, ...]], root: Node) -> None:
        self._asked = asked
        self._root = root

    @on(AskHostMsg)
    def answer(self, msg: AskHostMsg) -> HostStatisticsMsg:
        self._asked.append(msg.nodes)
        own = self._root.accounts.statistics().model_copy(update={"processes": (), "hosts": ()})
        return HostStatisticsMsg(nodes=tuple(own.model_copy(update={"node": name}) for name in msg.nodes))


def test_the_nodes_of_the_worst_hosts_are_asked_or_those_of_one_or_all(run, address_of) -> None:
    asked: list[tuple[str, ...]] = []

    async def main() -> None:
        async with Node("root", listen=address_of("tcp"), secret=SECRET).running() as root:
            root.spawn(HEAD, Hosts, asked, root)
            hosts = tuple(map(host, range(1, HOSTS + 1)))
            processes = tuple(
                ProcessStatistics(node=name, pid=1, running=True, restarts=0, given_up=False)
                for each in hosts
                for name in each.nodes
            )
            root.accounts.hosts = lambda: hosts
            root.processes = lambda: processes

            async def shown(observer: Any, **which: Any) -> list[int]:
                asked.clear()
                status = await observer.status(**which)
                (seen,) = [node.hosts for node in status.answered.values() if node.hosts]
                assert len(seen) == HOSTS
                slots = [int(nodes[0].removeprefix("host-")) for nodes in asked]
                assert set(status.answered) == {"root", *(name for slot in slots for name in names(slot))}
                assert status.hosts_left_out == HOSTS - len(slots)
                return sorted(slots)

            async with connected(JoinInfo(root.listening, SECRET, os.getpid()), answer_s=60.0) as observer:
                worst = await shown(observer)
                assert len(worst) == MOST_HOSTS
                assert set(WRONG) < set(worst)
                assert await shown(observer, slot=321) == [321]
                with pytest.raises(
                    UsageError, match=r"^--host: the run has no host 1001; the slots of its hosts are 1, "
                ):
                    await observer.status(slot=1001)

    run(main())


def test_a_program_gets_the_nodes_of_all_hosts(run, address_of) -> None:
    asked: list[tuple[str, ...]] = []

    async def main() -> None:
        async with Node("root", listen=address_of("tcp"), secret=SECRET).running() as root:
            root.spawn(HEAD, Hosts, asked, root)
            hosts = tuple(map(host, range(1, 41)))
            root.accounts.hosts = lambda: hosts
            async with connected(JoinInfo(root.listening, SECRET, os.getpid()), answer_s=60.0) as observer:
                status = await observer.status(all_hosts=True)
                assert len(asked) == 40
                assert status.hosts_left_out == 0
                assert len(status.answered) == 1 + 40 * PROCESSES

    run(main())
