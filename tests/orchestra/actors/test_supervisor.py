"""Children: who starts anew with whom, in which order, and what a parent hears of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from structlog.testing import capture_logs

from orchestra import (
    Actor,
    ActorFailed,
    AllForOne,
    Escalate,
    Message,
    Node,
    OneForOne,
    Ref,
    Request,
    Restart,
    RestForOne,
    Stop,
    Strategy,
    Supervision,
    TerminatedMsg,
    on,
)
from orchestra.testing import ManualClock, Probe, settle
from orchestra.trace.recording.recorder import NodeRecorder
from orchestra.trace.recording.settings import TraceSettings

Run = Callable[..., Any]


class NoteMsg(Message):
    n: int


class BreakMsg(Message):
    """Fail."""


class CountMsg(Request[int]):
    """How many notes has this incarnation seen?"""


class HoldMsg(Message):
    """Be busy until the gate opens."""


class Child(Actor[NoteMsg | BreakMsg | CountMsg | HoldMsg]):
    supervision: ClassVar[Supervision] = Restart(limit=2, within=60, backoff=1)

    def __init__(self, name: str, log: list[str], gates: dict[str, Any] | None = None) -> None:
        self.name = name
        self.log_ = log
        self.gates = {} if gates is None else gates
        self.count = 0

    async def started(self) -> None:
        self.log_.append(f"+{self.name}")
        if self.gates.get("broken") == self.name:
            del self.gates["broken"]
            raise ValueError("stillborn")
        if (gate := self.gates.get(f"start {self.name}")) is not None:
            await gate.wait()

    async def stopped(self) -> None:
        self.log_.append(f"-{self.name}")
        if self.gates.get("sore") == self.name:
            raise ValueError("sore loser")

    @on(NoteMsg)
    def note(self, msg: NoteMsg) -> None:
        self.count += 1

    @on(BreakMsg)
    def fail(self, msg: BreakMsg) -> None:
        raise ValueError(f"{self.name} broke")

    @on(CountMsg)
    def tell_count(self, msg: CountMsg) -> int:
        return self.count

    @on(HoldMsg)
    async def hold(self, msg: HoldMsg) -> None:
        try:
            await self.gates["hold"].wait()
        finally:
            self.gates.setdefault("held", asyncio.Event()).set()


class Parent(Actor[NoteMsg]):
    supervision: ClassVar[Supervision] = Restart(limit=1, within=60, backoff=1)
    child: ClassVar[type[Child]] = Child

    def __init__(self, log: list[str], names: str = "abc", gates: dict[str, Any] | None = None) -> None:
        self.log_ = log
        self.names = names
        self.gates = gates

    async def started(self) -> None:
        self.log_.append("parent up")
        for name in self.names:
            self.spawn(name, self.child, name, self.log_, self.gates)

    @on(NoteMsg)
    async def note(self, msg: NoteMsg) -> None:
        if self.gates is not None:
            await self.gates["parent"].wait()


class Ones(Parent):
    children_strategy: ClassVar[Strategy] = OneForOne()


class Alls(Parent):
    children_strategy: ClassVar[Strategy] = AllForOne()


class Rests(Parent):
    children_strategy: ClassVar[Strategy] = RestForOne()


class Family:
    """A parent with its children, on a node whose clock stands still."""

    def __init__(self, node: Node, clock: ManualClock, log: list[str]) -> None:
        self.node, self.clock, self.log = node, clock, log

    def ref(self, name: str) -> Ref[Any]:
        return self.node.ref(f"here/parent:{name}" if name else "here/parent")

    def restarts(self, name: str) -> int:
        return self.node.cell(self.ref(name).address).statistics().restarts

    async def tell(self, name: str, message: Message) -> None:
        await self.ref(name).tell(message)
        await settle(self.node)

    async def advance(self, seconds: float) -> list[str]:
        """Let time pass, and return what happened since the last time."""
        await settle(self.node)
        self.clock.advance(seconds)
        await settle(self.node)
        happened = list(self.log)
        self.log.clear()
        return happened


@asynccontextmanager
async def family(kind: type[Parent], *args: Any, recorder: NodeRecorder | None = None) -> AsyncIterator[Family]:
    clock, log = ManualClock(), list[str]()
    async with Node("here", clock=clock, recorder=recorder).running() as node:
        node.spawn("parent", kind, log, *args)
        await settle(node)
        log.clear()
        yield Family(node, clock, log)


@pytest.mark.parametrize(
    ("kind", "failing", "happened"),
    [
        (Ones, "b", ["+b"]),
        (Alls, "b", ["-c", "-a", "+a", "+b", "+c"]),
        (Alls, "a", ["-c", "-b", "+a", "+b", "+c"]),
        (Rests, "a", ["-c", "-b", "+a", "+b", "+c"]),
        (Rests, "b", ["-c", "+b", "+c"]),
        (Rests, "c", ["+c"]),
    ],
)
def test_the_strategy_says_who_starts_anew_youngest_ends_first_oldest_starts_first(
    run: Run, kind: type[Parent], failing: str, happened: list[str]
) -> None:
    async def main() -> None:
        async with family(kind) as scene:
            await scene.tell(failing, BreakMsg())
            stops = [entry for entry in happened if entry.startswith("-")]
            assert scene.log == stops, "the others end at once; nobody starts before the backoff"
            assert await scene.advance(1) == happened
            again = {entry[1:] for entry in happened if entry.startswith("+")}
            assert {name for name in "abc" if scene.restarts(name)} == again

    run(main())


def test_mailboxes_and_refs_outlive_a_round(run: Run) -> None:
    async def main() -> None:
        async with family(Alls) as scene:
            await scene.tell("a", NoteMsg(n=1))
            await scene.tell("b", BreakMsg())
            for name in "abc":
                await scene.tell(name, NoteMsg(n=2))
            await scene.advance(1)
            assert [await scene.ref(name).ask(CountMsg()) for name in "abc"] == [1, 1, 1]

    run(main())


def test_a_sibling_ends_after_the_message_in_hand(run: Run) -> None:
    async def main() -> None:
        gates = {"hold": asyncio.Event()}
        async with family(Alls, "abc", gates) as scene:
            await scene.ref("a").tell(HoldMsg())
            await scene.ref("a").tell(NoteMsg(n=1))
            await scene.ref("b").tell(BreakMsg())
            for _ in range(10):
                await asyncio.sleep(0)
            assert scene.log == ["-c"]
            gates["hold"].set()
            await settle(scene.node)
            assert scene.log == ["-c", "-a"]
            await scene.advance(1)
            assert await scene.ref("a").ask(CountMsg()) == 1, "what was queued is the next incarnation's"

    run(main())


def test_a_sibling_that_does_not_end_in_time_is_broken_off_and_starts_anew(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestra.actors.supervisor.STOP_S", 0.01)

    async def main() -> None:
        gates = {"hold": asyncio.Event(), "held": asyncio.Event()}
        async with family(Alls, "ab", gates) as scene:
            await scene.ref("a").tell(HoldMsg())
            await scene.ref("b").tell(BreakMsg())
            await gates["held"].wait()
            assert await scene.advance(1) == ["+a", "+b"], "broken off, it has no chance to say that it stopped"
            assert await scene.ref("a").ask(CountMsg()) == 0

    run(main())


@pytest.mark.parametrize("busy", [False, True])
def test_a_sibling_that_ends_for_a_restart_has_not_failed(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, busy: bool
) -> None:
    monkeypatch.setattr("orchestra.actors.supervisor.STOP_S", 0.01)

    async def main() -> None:
        gates = {"hold": asyncio.Event(), "held": asyncio.Event()}
        recorder = TraceSettings().recorder("here", tmp_path, clock=ManualClock(), seed=0)
        async with family(Alls, "ab", gates, recorder=recorder) as scene:
            if busy:
                await scene.ref("a").tell(HoldMsg())
            await scene.ref("b").tell(BreakMsg())
            if busy:
                await gates["held"].wait()
            assert "+a" in await scene.advance(1)

    with capture_logs() as lines:
        run(main())
    assert [line["actor"] for line in lines if "actor failed" in line["event"]] == ["here/parent:b"] * 2
    assert len(list(tmp_path.glob("*.trace"))) == 1, "the flight record of the one that failed"


def test_each_starts_once_the_one_before_has_started(run: Run) -> None:
    async def main() -> None:
        gates: dict[str, Any] = {}
        async with family(Alls, "abc", gates) as scene:
            await scene.tell("c", BreakMsg())
            gates["start b"] = asyncio.Event()
            scene.clock.advance(1)
            for _ in range(10):
                await asyncio.sleep(0)
            assert scene.log == ["-b", "-a", "+a", "+b"]
            gates["start b"].set()
            await settle(scene.node)
            assert scene.log == ["-b", "-a", "+a", "+b", "+c"]

    run(main())


def test_one_that_fails_as_it_starts_takes_back_those_that_were_up(run: Run) -> None:
    async def main() -> None:
        gates: dict[str, Any] = {}
        async with family(Alls, "abc", gates) as scene:
            await scene.tell("a", BreakMsg())
            gates["broken"] = "b"
            assert await scene.advance(1) == ["-c", "-b", "+a", "+b", "-a"]
            assert await scene.advance(1) == ["+a", "+b", "+c"]

    run(main())


def test_two_that_fail_at_once_start_anew_once(run: Run) -> None:
    async def main() -> None:
        async with family(Alls) as scene:
            for name in "ab":
                await scene.ref(name).tell(BreakMsg())
            assert await scene.advance(0) == ["-c"]
            assert await scene.advance(1) == ["+a", "+b", "+c"]
            assert [scene.restarts(name) for name in "abc"] == [1, 1, 1]

    run(main())


def test_an_older_one_that_fails_joins_the_round_of_the_younger(run: Run) -> None:
    async def main() -> None:
        async with family(Rests) as scene:
            await scene.tell("b", BreakMsg())
            await scene.tell("a", BreakMsg())
            assert await scene.advance(1) == ["-c", "+a", "+b", "+c"]
            assert [scene.restarts(name) for name in "abc"] == [1, 1, 1]

    run(main())


def test_a_child_that_is_stopped_in_a_round_holds_up_nobody(run: Run) -> None:
    async def main() -> None:
        async with family(Alls) as scene:
            await scene.tell("b", BreakMsg())
            await scene.node.cell("here/parent:a").stop()
            await scene.node.cell("here/parent:b").stop()
            assert await scene.advance(1) == ["-c", "-a", "+c"]

    run(main())


def test_a_parent_that_stops_in_a_round_ends_all(run: Run) -> None:
    async def main() -> None:
        async with family(Alls) as scene:
            await scene.tell("b", BreakMsg())
            await scene.node.cell("here/parent").stop()
            assert [cell.address for cell in scene.node.statistics().cells] == ["here/system", "here/directory"]

    run(main())


def test_a_child_that_fails_too_often_fails_its_parent_which_starts_anew_with_new_children(run: Run) -> None:
    async def main() -> None:
        async with family(Ones) as scene:
            for _ in range(3):
                await scene.tell("b", BreakMsg())
                happened = await scene.advance(10)
            assert happened == ["-c", "-a", "parent up", "+a", "+b", "+c"]
            assert scene.restarts("") == 1
            assert scene.restarts("b") == 0

    run(main())


class Strict(Child):
    supervision: ClassVar[Supervision] = Escalate()


class Proud(Alls):
    supervision: ClassVar[Supervision] = Escalate()
    child: ClassVar[type[Child]] = Strict


def test_a_failure_goes_up_to_the_node_and_names_everyone_on_its_way(run: Run) -> None:
    async def main() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            async with family(Proud) as scene:
                await scene.ref("b").tell(NoteMsg(n=1))
                await scene.ref("b").tell(NoteMsg(n=2))
                await scene.ref("b").tell(BreakMsg())
                await asyncio.Event().wait()
        (parent,) = caught.value.exceptions
        child = parent.__cause__
        assert str(parent).startswith("here/parent (Proud) failed; last deliveries, newest last: ChildFailedMsg from")
        assert isinstance(child, ActorFailed)
        assert child.address == "here/parent:b"
        assert str(child) == (
            "here/parent:b (Strict) failed; last deliveries, newest last: "
            "NoteMsg from here/outside, 2 times; BreakMsg from here/outside"
        )
        assert str(child.__cause__) == "b broke"

    run(main())


def test_a_parent_finishes_the_message_in_hand_before_it_fails_with_its_child(run: Run) -> None:
    async def main() -> None:
        gates = {"parent": asyncio.Event()}
        with contextlib.suppress(ExceptionGroup):
            async with family(Proud, "a", gates) as scene:
                await scene.ref("").tell(NoteMsg(n=1))
                await scene.ref("a").tell(BreakMsg())
                child = scene.node.cell("here/parent:a")
                await child.terminated
                assert not scene.node.cell("here/parent").terminated.done()
                gates["parent"].set()
                await scene.node.cell("here/parent").terminated

    run(main())


class Together(Parent):
    children_strategy: ClassVar[Strategy] = OneForOne(Restart(limit=2, within=60, backoff=1))
    supervision: ClassVar[Supervision] = Stop()


class Careless(Parent):
    children_strategy: ClassVar[Strategy] = AllForOne(Stop())


def test_a_strategy_with_a_policy_counts_the_failures_of_all_children_together(run: Run) -> None:
    async def main() -> None:
        async with family(Together) as scene:
            for name in "abc":
                await scene.tell(name, BreakMsg())
                await scene.advance(10)
            assert "here/parent" not in scene.node.cells, "the third failure is one too many, whoever fails"

    run(main())


def test_a_policy_of_the_parent_goes_before_that_of_the_child(run: Run) -> None:
    async def main() -> None:
        async with family(Careless) as scene:
            watcher = Probe(TerminatedMsg)
            watcher.start(scene.node, "watcher")
            scene.node.cell("here/watcher").context.watch(scene.ref("b"))
            await scene.tell("b", BreakMsg())
            assert await scene.advance(10) == [], "it stops; its siblings are not concerned"
            (end,) = await watcher.heard(TerminatedMsg)
            assert end.reason == "ValueError: b broke"

    run(main())


# Ends ----------------------------------------------------------------------------------------------------------------


def test_children_stop_before_their_parent_has_stopped_the_youngest_first(run: Run) -> None:
    class Last(Parent):
        async def stopped(self) -> None:
            self.log_.append("parent down")

    async def main() -> None:
        async with family(Last) as scene:
            await scene.node.cell("here/parent").stop()
            assert scene.log == ["-c", "-b", "-a", "parent down"]

    run(main())


@pytest.mark.parametrize("whose", ["node", "parent"])
def test_children_that_fail_as_they_are_stopped_are_in_the_group_of_the_node(run: Run, whose: str) -> None:
    async def main() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            async with family(Ones, "abc", {"sore": "b", "parent": asyncio.Event()}) as scene:
                if whose == "parent":
                    scene.node.cell("here/parent").request_stop()
                    failed = await scene.node.cell("here/parent").stop()
                    raise ExceptionGroup("as the node does", failed)
        (error,) = caught.value.exceptions
        assert isinstance(error, ActorFailed)
        assert str(error).startswith("here/parent:b (Child) failed; last deliveries")
        assert str(error.__cause__) == "sore loser"

    run(main())


def test_children_that_fail_as_their_failed_parent_stops_them_are_in_its_group(run: Run) -> None:
    class Loud(Ones):
        supervision: ClassVar[Supervision] = Escalate()

        @on(NoteMsg)
        async def note(self, msg: NoteMsg) -> None:
            raise OSError("parent broke")

    async def main() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            async with family(Loud, "ab", {"sore": "b"}) as scene:
                await scene.ref("").tell(NoteMsg(n=1))
                await asyncio.Event().wait()
        (parent,) = caught.value.exceptions
        group = parent.__cause__
        assert isinstance(group, ExceptionGroup)
        assert [type(error) for error in group.exceptions] == [OSError, ActorFailed]
        assert str(group.exceptions[1]).startswith("here/parent:b (Child) failed")

    run(main())
