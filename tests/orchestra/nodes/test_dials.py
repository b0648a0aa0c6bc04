"""Which nodes a node can reach, and which task answers which of its requests."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from orchestra import Actor, Message, Node, Request, Unreachable, on
from orchestra.actors.addresses import node_of
from orchestra.testing import Probe

SECRET = b"s" * 16
Run = Callable[..., Any]
_numbers = itertools.count()


class NoteMsg(Message):
    n: int


class LaterMsg(Request[int]):
    """Answered by a task of its own."""

    n: int


class Desk(Actor[LaterMsg]):
    """Answers when the gate opens."""

    def __init__(self, gate: asyncio.Event) -> None:
        self.gate = gate

    @on(LaterMsg)
    def answer_later(self, msg: LaterMsg) -> Any:
        return asyncio.create_task(self.answer(msg.n))

    async def answer(self, n: int) -> int:
        await self.gate.wait()
        return n


def node(name: str, address: str, *, listens: bool = True) -> Node:
    join = None if name == "root" else f"{address}-root"
    return Node(name, listen=f"{address}-{name}" if listens else None, join=join, secret=SECRET)


def test_a_node_that_is_alone_says_so(run: Run) -> None:
    async def main() -> None:
        async with Node("here").running() as here:
            asking = asyncio.create_task(here.ref("there/actor").ask(LaterMsg(n=1)))
            for _ in range(10):
                await asyncio.sleep(0)
            assert asking.done()
            with pytest.raises(Unreachable, match="there is no node 'there': here is alone"):
                await asking

    run(main())


def test_a_node_that_does_not_listen_reaches_others_through_the_root(run: Run) -> None:
    async def main() -> None:
        address = f"memory://dials-{next(_numbers)}"
        probe = Probe(NoteMsg)
        async with (
            node("root", address).running(),
            node("other", address).running() as other,
            node("leaf", address, listens=False).running() as leaf,
        ):
            ref = probe.start(other, "probe")
            await leaf.ref(ref.address).tell(NoteMsg(n=1))
            assert await probe.heard(NoteMsg) == [NoteMsg(n=1)]

    run(main())


def test_the_root_waits_for_a_node_that_has_yet_to_come(run: Run) -> None:
    async def main() -> None:
        address = f"memory://dials-{next(_numbers)}"
        probe = Probe(NoteMsg)
        async with node("root", address).running() as root:
            root.directory.expect(["root", "late"])
            telling = asyncio.create_task(root.ref("late/probe").tell(NoteMsg(n=1)))
            await asyncio.sleep(0)
            assert not telling.done()
            async with node("late", address).running() as late:
                probe.start(late, "probe")
                await telling
                assert await probe.heard(NoteMsg) == [NoteMsg(n=1)]

    run(main())


def test_each_request_is_answered_by_its_own_task_whoever_has_asked(run: Run) -> None:
    async def main() -> None:
        address, gate = f"memory://dials-{next(_numbers)}", asyncio.Event()
        async with (
            node("root", address).running() as root,
            node("a", address).running() as a,
            node("b", address).running() as b,
        ):
            cell = root.cell(root.spawn("desk", Desk, gate).address)
            asking = [
                asyncio.create_task(each.ref("root/desk").ask(LaterMsg(n=n))) for n in range(3) for each in (a, b)
            ]
            replies: Any = cell.replies
            while len(replies._parked) < len(asking):
                assert not any(each.done() for each in asking)
                await asyncio.sleep(0)
            for future, envelope in replies._parked.values():
                assert replies.answering_task(node_of(envelope.sender), envelope.correlation) is future
            assert replies.answering_task("c", 1) is cell.task
            gate.set()
            assert await asyncio.gather(*asking) == [0, 0, 1, 1, 2, 2]

    run(main())
