"""Parents and siblings of a failing actor are replayed: the runtime's decisions are not in an actor's record."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from orchestra import Actor, AllForOne, Message, Node, OneForOne, Ref, Restart, Strategy, on
from orchestra.clock import RealClock
from orchestra.replay.replay import Replay
from orchestra.testing import ManualClock, settle

Recorded = Callable[..., Path]


class WorkMsg(Message):
    number: int
    fail: bool = False
    hang: bool = False


class DoneMsg(Message):
    number: int


class Child(Actor[WorkMsg]):
    """Reports its work to its parent, and reads the clock and its random numbers for that."""

    hanging: ClassVar[asyncio.Event]
    born: ClassVar[list[str]] = []

    def __init__(self, parent: Ref[DoneMsg]) -> None:
        self.parent = parent
        self.born.append(self.me.address)

    @on(WorkMsg)
    async def work(self, msg: WorkMsg) -> None:
        if msg.fail:
            raise ArithmeticError(f"number {msg.number} cannot be done")
        if msg.hang:
            self.hanging.set()
            await asyncio.get_running_loop().create_future()
        await self.parent.tell(DoneMsg(number=msg.number + int(self.clock.monotonic()) + int(9 * self.rng.random())))


class Parent(Actor[WorkMsg | DoneMsg]):
    """Hands work to its two children."""

    def __init__(self) -> None:
        self.done: list[tuple[int, float]] = []
        self.children = [self.spawn(name, Child, self.me) for name in ("one", "two")]

    @on(WorkMsg)
    async def work(self, msg: WorkMsg) -> None:
        chosen = self.children[:1] if msg.fail else self.children[1:] if msg.hang else self.children
        for child in chosen:
            await child.tell(msg)

    @on(DoneMsg)
    def finish(self, msg: DoneMsg) -> None:
        self.done.append((msg.number, self.clock.monotonic()))


class LoneParent(Parent):
    children_strategy: ClassVar[Strategy] = OneForOne(Restart(backoff=0.0, limit=10))


class JointParent(Parent):
    children_strategy: ClassVar[Strategy] = AllForOne(Restart(backoff=0.0, limit=10))


async def scene(node: Node, kind: type[Parent]) -> None:
    parent = node.spawn("parent", kind)
    assert isinstance(node.clock, ManualClock)
    for number in range(4):
        await parent.tell(WorkMsg(number=number))
        await settle(node)
        await parent.tell(WorkMsg(number=number, fail=True))
        await settle(node)
        node.clock.advance(1.0)  # restarts what has failed
        await settle(node)


@pytest.mark.parametrize("kind", [LoneParent, JointParent])
@pytest.mark.parametrize("mode", ["full", "digest"])
def test_a_parent_whose_child_fails_is_replayed(recorded: Recorded, kind: type[Parent], mode: str) -> None:
    parents: list[Any] = []

    async def play(node: Node) -> None:
        await scene(node, kind)
        parents.append(node.cell("here/parent").actor)

    with Replay(recorded(play, mode=mode), "here/parent") as replay:
        replay.run()
        assert replay.failure is None
        assert replay.actor.done == parents[0].done
        assert len(replay.actor.done) == 8


@pytest.mark.parametrize("incarnation", range(5))
def test_an_actor_that_a_siblings_failure_ends_is_replayed(recorded: Recorded, incarnation: int) -> None:
    folder = recorded(lambda node: scene(node, JointParent))
    with Replay(folder, "here/parent:two", incarnation=incarnation) as replay:
        assert replay.run() >= 2
        assert replay.failure is None
    with Replay(folder, "here/parent:one", incarnation=incarnation) as replay:
        replay.run()
        assert isinstance(replay.failure, ArithmeticError) == (incarnation < 4)


def test_an_actor_that_a_siblings_failure_interrupts_is_replayed(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestra.actors.supervisor.STOP_S", 0.01)

    async def play(node: Node) -> None:
        Child.hanging = asyncio.Event()
        Child.born.clear()
        parent = node.spawn("parent", JointParent)
        await parent.tell(WorkMsg(number=1))
        await parent.tell(WorkMsg(number=2, hang=True))
        await Child.hanging.wait()
        await parent.tell(WorkMsg(number=3, fail=True))
        while Child.born.count("here/parent:two") < 2:  # noqa: ASYNC110 (what ends the first incarnation is a timeout)
            await asyncio.sleep(0.001)
        await settle(node)

    folder = recorded(play, clock=RealClock())
    with Replay(folder, "here/parent:two") as replay:
        assert replay.run() == 3  # its birth, its work, and the message with which it hangs
        assert replay.failure is None
