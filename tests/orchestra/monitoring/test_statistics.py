"""Whoever asks a node how it is doing learns what every actor does and waits for, and is not seen in the answer."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from orchestra import Actor, Message, Node, Ref, Request, Restart, Supervision, UsageError, on
from orchestra.actors.statistics import CellStatistics, StatisticsMsg
from orchestra.runs.topology import Topology
from orchestra.testing import ManualClock, Probe, settle

SECRET = b"s" * 32


class GoMsg(Message):
    """Begin."""


class CountMsg(Request[int]):
    """How many?"""


class Busy(Actor[GoMsg]):
    """Does one thing when it is told to."""

    supervision: ClassVar[Supervision] = Restart(limit=3, within=60.0, backoff=5.0)
    mailbox_capacity: ClassVar[int] = 1

    def __init__(self, do: Callable[["Busy"], Any]) -> None:
        self._do = do

    @on(GoMsg)
    async def go(self, msg: GoMsg) -> None:
        await self._do(self)


def cell(node: Node, name: str) -> CellStatistics:
    (found,) = [entry for entry in node.statistics().cells if entry.address == f"{node.name}/{name}"]
    return found


def facts(node: Node, name: str) -> tuple[Any, ...]:
    found = cell(node, name)
    return found.state, found.message, found.sender, found.waits_for


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 (what a node says of itself comes with no event)
        await asyncio.sleep(0)


def test_an_actor_without_a_message_is_idle_and_one_in_a_handler_says_since_when(run) -> None:
    async def main() -> None:
        clock, gate = ManualClock(), asyncio.Event()

        async def do(_: Busy) -> None:
            await gate.wait()

        async with Node("here", clock=clock).running() as node:
            busy = node.spawn("busy", Busy, do)
            await settle(node)
            assert facts(node, "busy") == ("idle", "", "", ())
            clock.advance(100.0)
            await busy.tell(GoMsg())
            await until(lambda: cell(node, "busy").state != "idle")
            clock.advance(3.0)
            assert facts(node, "busy") == ("handling", "GoMsg", "here/outside", ())
            assert (cell(node, "busy").for_s, cell(node, "busy").busy_s) == (3.0, 3.0)
            gate.set()
            await settle(node)
            clock.advance(50.0)
            assert (cell(node, "busy").for_s, cell(node, "busy").busy_s) == (0.0, 3.0)

    run(main())


def test_it_says_whose_answer_whose_room_or_which_work_it_waits_for(run) -> None:
    async def main() -> None:
        async with Node("here").running() as node:
            other = Probe(CountMsg, GoMsg)
            other.hold()
            ref: Ref[Any] = other.start(node, "other")
            begun, may_end = threading.Event(), threading.Event()

            def compute() -> None:
                begun.set()
                may_end.wait()

            full = node.spawn("full", Busy, lambda _: asyncio.get_running_loop().create_future())
            deeds: dict[str, Callable[[Busy], Any]] = {
                "asks": lambda _: ref.ask(CountMsg()),
                "computes": lambda actor: actor.offload(compute),
                "tells": lambda _: full.tell(GoMsg()),
            }
            await full.tell(GoMsg())
            await until(lambda: cell(node, "full").state != "idle")
            await full.tell(GoMsg())  # its mailbox holds no more than one
            for name, do in deeds.items():
                await node.spawn(name, Busy, do).tell(GoMsg())
            await until(lambda: all(cell(node, name).state == "waiting" for name in deeds) and begun.is_set())
            assert cell(node, "asks").waits_for == ("asks here/other",)
            assert cell(node, "tells").waits_for == ("waits for room at here/full",)
            (computing,) = cell(node, "computes").waits_for
            assert computing.startswith("in a thread: ")
            assert computing.endswith("compute")
            may_end.set()
            other.release()
            for name in ("full", "tells"):
                node.cell(f"here/{name}").request_stop(graceful=False)

    run(main())


def test_an_actor_between_two_incarnations_is_restarting(run) -> None:
    async def main() -> None:
        async def fail(_: Busy) -> None:
            raise ValueError("no")

        async with Node("here", clock=ManualClock()).running() as node:
            await node.spawn("busy", Busy, fail).tell(GoMsg())
            await settle(node)
            assert facts(node, "busy") == ("restarting", "", "", ())
            assert cell(node, "busy").restarts == 1

    run(main())


def test_a_node_says_what_its_process_uses(run) -> None:
    async def main() -> None:
        async with Node("here").running() as node:
            before = node.statistics()
            assert before.pid > 0
            assert before.rss > 1 << 20
            assert before.tasks >= 3  # this one, and those of two actors
            assert before.lag_s == 0.0
            sum(range(200_000))
            after = node.statistics()
            assert after.at_s > before.at_s
            assert after.cpu_s > before.cpu_s

    run(main())


@pytest.mark.parametrize("scheme", ["memory", "tcp"])
def test_both_ends_of_a_link_say_what_went_by_it(run, address_of, scheme: str) -> None:
    async def main() -> None:
        async with (
            Node("root", listen=address_of(scheme), secret=SECRET).running() as root,
            Node("peer", listen=address_of(scheme), join=root.listening, secret=SECRET).running() as peer,
        ):
            there = Probe(GoMsg, CountMsg, answers={CountMsg: 3})
            there.start(root, "there")
            ref: Ref[Any] = peer.ref("root/there")
            assert [link.round_trip_s for link in peer.statistics().links] == [None]
            for _ in range(5):
                await ref.tell(GoMsg())
            assert await ref.ask(CountMsg()) == 3
            (mine,), (theirs,) = peer.statistics().links, root.statistics().links
            assert (mine.peer, mine.sent, mine.received, mine.state) == ("root", 6, 1, "open")
            assert (theirs.peer, theirs.sent, theirs.received) == ("peer", 1, 6)
            assert mine.sent_bytes == theirs.received_bytes > 6 * 10
            assert theirs.sent_bytes == mine.received_bytes > 0
            assert (mine.in_flight, mine.credit_used, mine.waiting) == (
                6,
                6 / 4096,
                0,
            )  # less than a quarter of the credit: not given back yet
            link = peer.peers.find("root")
            assert link is not None
            link.ping()
            await until(lambda: (peer.statistics().links[0].round_trip_s or 0.0) > 0.0)

    run(main())


@pytest.mark.parametrize("scheme", ["memory", "tcp"])
def test_an_observer_is_no_part_of_what_a_node_says_of_the_run(run, address_of, scheme: str) -> None:
    async def main() -> None:
        async with Node("root", listen=address_of(scheme), secret=SECRET).running() as root:
            async with Node("observer-1", join=root.listening, secret=SECRET).running() as observer:
                seen = await observer.ref("root/system").ask(StatisticsMsg())
                again = await observer.ref("root/system").ask(StatisticsMsg())
            for statistics in (seen, again, root.statistics()):
                assert statistics.peers == ()
                assert statistics.links == ()
                assert statistics.message_counts == ()

    run(main())


def test_a_topology_cannot_name_a_node_like_an_observer() -> None:
    with pytest.raises(UsageError, match="names that begin with 'observer-' are reserved for observers"):
        Topology("t").node("observer-1")
