"""A request to an idle actor is answered where it arrives, and nothing else about it is different."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import msgpack
import pytest

from orchestra import Actor, AskFailed, Message, Node, Ref, Request, Restart, Supervision, on
from orchestra.actors.cell import BURST
from orchestra.actors.message import REGISTRY
from orchestra.testing import Probe, settle

Run = Callable[..., Any]


class NoteMsg(Message):
    text: str


class AskMsg(Request[int]):
    n: int


class SlowMsg(Request[int]):
    """Answered by a coroutine."""


class Clerk(Actor[NoteMsg | AskMsg | SlowMsg]):
    supervision: ClassVar[Supervision] = Restart(limit=3, backoff=0.0)

    def __init__(self, to: Ref[NoteMsg] | None = None) -> None:
        self.to = to
        self.seen: list[object] = []
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    @on(NoteMsg)
    def note(self, msg: NoteMsg) -> None:
        self.seen.append(msg.text)

    @on(AskMsg)
    def ask(self, msg: AskMsg) -> int:
        self.seen.append(msg.n)
        if msg.n < 0:
            raise ValueError(f"{msg.n} is too little")
        if self.to is not None:
            self.to.tell_nowait(NoteMsg(text=f"asked {msg.n}"))
        return 2 * msg.n

    @on(SlowMsg)
    async def wait(self, msg: SlowMsg) -> int:
        self.seen.append("slow")
        self.begun.set()
        await self.go_on.wait()
        return 0


_numbers = itertools.count()


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Node, Node]]:
    at = f"memory://answering-{next(_numbers)}"
    async with (
        Node("root", listen=at, secret=b"s" * 16).running() as root,
        Node("leaf", listen=f"{at}-leaf", join=at, secret=b"s" * 16).running() as leaf,
    ):
        yield root, leaf


def arrives(root: Node, correlation: int, n: int) -> None:
    """Let a request of the leaf's come, in a frame of its own, as part of the same read as others."""
    tag = sorted(REGISTRY).index(AskMsg.wire.tag)
    fields = ["root/clerk", "leaf/outside", correlation, [], 0, 0, tag, [n]]
    link = root.peers.find("leaf")
    assert link is not None
    link.receiver.message(msgpack.packb(fields), None, 100)


def clerk_of(root: Node) -> Clerk:
    actor = root.cell("root/clerk").actor
    assert isinstance(actor, Clerk)
    return actor


def test_an_idle_actor_answers_where_the_request_arrives(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            root.spawn("clerk", Clerk)
            await settle(root, leaf)
            arrives(root, 1000, 4)
            assert clerk_of(root).seen == [4], "no turn of the loop later"
            cell = root.cell("root/clerk")
            assert cell.idle
            assert cell.statistics().handled == 1
            assert cell.statistics().state == "idle"
            assert cell.delivered.story() == "last deliveries, newest last: AskMsg from leaf/outside"

    run(main())


def test_what_waits_in_front_is_handled_first(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            clerk = root.spawn("clerk", Clerk)
            await settle(root, leaf)
            await clerk.tell(NoteMsg(text="first"))
            arrives(root, 1000, 4)
            assert clerk_of(root).seen == []
            await settle(root, leaf)
            assert clerk_of(root).seen == ["first", 4]

    run(main())


def test_an_actor_that_is_busy_is_not_disturbed(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            clerk = root.spawn("clerk", Clerk)
            await settle(root, leaf)
            slow = asyncio.create_task(leaf.ref("root/clerk").ask(SlowMsg()))
            await clerk_of(root).begun.wait()
            arrives(root, 1000, 4)
            assert clerk_of(root).seen == ["slow"]
            clerk_of(root).go_on.set()
            assert await slow == 0
            assert await clerk.ask(AskMsg(n=5)) == 10
            assert clerk_of(root).seen == ["slow", 4, 5]

    run(main())


def test_others_get_their_turn_after_a_burst(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            root.spawn("clerk", Clerk)
            await settle(root, leaf)
            for n in range(3 * BURST):
                arrives(root, 1000 + n, n)
            assert clerk_of(root).seen == list(range(BURST)), "the others wait for a turn of the actor's own task"
            await settle(root, leaf)
            assert clerk_of(root).seen == list(range(3 * BURST))
            arrives(root, 2000, 7)
            assert clerk_of(root).seen[-1] == 7

    run(main())


def test_a_handler_that_fails_there_fails_its_actor(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            root.spawn("clerk", Clerk)
            clerk = leaf.ref("root/clerk")
            await settle(root, leaf)
            with pytest.raises(AskFailed, match="root/clerk: ValueError: -1 is too little"):
                await clerk.ask(AskMsg(n=-1))
            assert await clerk.ask(AskMsg(n=1)) == 2
            assert root.cell("root/clerk").restarts.count == 1
            failing = clerk_of(root)
            arrives(root, 1000, -2)
            arrives(root, 1001, 3)
            assert failing.seen == [1, -2], "it has failed: what comes now is for the next incarnation"
            assert await clerk.ask(AskMsg(n=5)) == 10
            assert clerk_of(root).seen == [3, 5]
            assert root.cell("root/clerk").restarts.count == 2

    run(main())


def test_an_asker_that_gives_up_after_the_failure_does_not_abort_the_actor(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            root.spawn("clerk", Clerk)
            await settle(root, leaf)
            arrives(root, 1000, -2)
            link = root.peers.find("leaf")
            assert link is not None
            root.delivery.withdraw(link.receiver.unanswered[1000])
            assert await leaf.ref("root/clerk").ask(AskMsg(n=5)) == 10
            assert root.cell("root/clerk").restarts.count == 1

    run(main())


def test_the_handler_speaks_as_its_actor(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            probe = Probe(NoteMsg)
            root.spawn("clerk", Clerk, probe.start(root, "probe"))
            await settle(root, leaf)
            arrives(root, 1000, 4)
            assert await probe.heard(NoteMsg, 1) == [NoteMsg(text="asked 4")]
            assert root.cell("root/probe").delivered.sender == "root/clerk"

    run(main())


def test_credit_for_what_is_answered_where_it_arrives_goes_back(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            root.spawn("clerk", Clerk)
            clerk = leaf.ref("root/clerk")
            for n in range(5000):  # more than there is credit for
                assert await clerk.ask(AskMsg(n=n)) == 2 * n

    run(main())
