"""The edges of an actor's life: what a failed incarnation leaves to the next, and what its end leaves to others."""

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from orchestra import (
    Actor,
    ActorStopped,
    AskFailed,
    Message,
    Node,
    Ref,
    Request,
    Restart,
    StatisticsMsg,
    Stop,
    Supervision,
    TerminatedMsg,
    on,
)
from orchestra.actors.system_messages import StopMsg
from orchestra.testing import ManualClock, Probe, settle

Run = Callable[..., Any]


class PingMsg(Message):
    n: int = 0


class TickMsg(Message):
    """Time has passed."""


class BreakMsg(Message):
    """Fail."""


class LaterMsg(Request[int]):
    """Answered some time."""


class NowMsg(Request[int]):
    """Answered at once, with whatever `answer` is."""


class WaitMsg(Message):
    """Wait for what the test holds."""


class Clerk(Actor[PingMsg | TickMsg | BreakMsg | LaterMsg | NowMsg | WaitMsg]):
    supervision: ClassVar[Supervision] = Restart(limit=2, within=60, backoff=1)

    def __init__(self, to: Ref[Any] | None = None, answer: Any = None, hold: Any = None) -> None:
        self.to = to
        self.answer = answer
        self.hold = hold
        self.parked: list[asyncio.Future[Any]] = []

    async def started(self) -> None:
        self.after(10, TickMsg())

    @on(PingMsg)
    async def pass_on(self, msg: PingMsg) -> None:
        assert self.to is not None
        await self.to.tell(msg)

    @on(TickMsg)
    async def tick(self, msg: TickMsg) -> None:
        self.after(10, TickMsg())
        if self.to is not None:
            await self.to.tell(msg)

    @on(BreakMsg)
    def fail(self, msg: BreakMsg) -> None:
        raise ValueError("broken")

    @on(LaterMsg)
    def later(self, msg: LaterMsg) -> Any:
        self.parked.append(asyncio.get_running_loop().create_future())
        return self.parked[-1]

    @on(NowMsg)
    def now(self, msg: NowMsg) -> Any:
        return self.answer

    @on(WaitMsg)
    async def wait(self, msg: WaitMsg) -> None:
        await self.hold


class Brittle(Clerk):
    supervision: ClassVar[Supervision] = Stop()


def alone(**options: Any) -> Any:
    return Node("here", **options).running()


def test_an_incarnation_that_fails_answers_those_it_left_waiting(run: Run) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with alone(clock=clock) as node:
            clerk = node.spawn("clerk", Clerk)
            asking = asyncio.create_task(clerk.ask(LaterMsg()))
            await settle(node)
            await clerk.tell(BreakMsg())
            await settle(node)
            with pytest.raises(ActorStopped, match="here/clerk failed before it answered"):
                await asking

    run(main())


def test_timers_do_not_outlive_the_incarnation_that_set_them(run: Run) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with alone(clock=clock) as node:
            listener = Probe(TickMsg)
            clerk = node.spawn("clerk", Clerk, listener.start(node, "listener"))
            await settle(node)
            clock.advance(5)
            await clerk.tell(BreakMsg())
            await settle(node)
            clock.advance(1)  # it starts anew, at 6
            for expected in (0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1):  # the old timer would ring at 10
                await settle(node)
                clock.advance(1)
                await settle(node)
                assert len(listener.messages) == expected

    run(main())


class Parent(Actor[BreakMsg | PingMsg]):
    supervision: ClassVar[Supervision] = Restart(limit=2, within=60, backoff=1)

    def __init__(self, to: Ref[Any]) -> None:
        self.to = to

    async def started(self) -> None:
        self.child = self.spawn("child", Clerk, self.to)

    @on(BreakMsg)
    def fail(self, msg: BreakMsg) -> None:
        raise ValueError("broken")

    @on(PingMsg)
    async def pass_on(self, msg: PingMsg) -> None:
        await self.child.tell(msg)


def test_a_parent_that_starts_anew_has_new_children_of_the_same_names(run: Run) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with alone(clock=clock) as node:
            listener = Probe(PingMsg)
            parent = node.spawn("parent", Parent, listener.start(node, "listener"))
            await settle(node)
            first = node.cell("here/parent:child")
            await parent.tell(BreakMsg())
            await settle(node)
            assert first.terminated.done()
            clock.advance(1)
            await parent.tell(PingMsg(n=7))
            assert await listener.heard(PingMsg) == [PingMsg(n=7)]
            assert node.cell("here/parent:child") is not first

    run(main())


def test_a_watch_that_comes_while_the_actor_ends_is_answered(run: Run) -> None:
    async def main() -> None:
        async with alone() as node:
            hold = asyncio.get_running_loop().create_future()
            clerk = node.spawn("clerk", Brittle, None, None, hold)
            watcher = Probe(TerminatedMsg)
            watcher.start(node, "watcher")
            await clerk.tell(WaitMsg())
            await asyncio.sleep(0)
            node.cell("here/watcher").context.watch(clerk)  # it lies in the mailbox of one that will not read on
            hold.set_exception(ValueError("broken"))
            (end,) = await watcher.heard(TerminatedMsg)
            assert end.reason == "ValueError: broken"

    run(main())


class Leaver(Actor[PingMsg]):
    def __init__(self, gate: asyncio.Event) -> None:
        self.gate = gate

    async def stopped(self) -> None:
        await self.gate.wait()

    @on(PingMsg)
    def ping(self, msg: PingMsg) -> None:
        """Not needed here."""


def test_a_watch_that_comes_while_stopped_runs_is_answered(run: Run) -> None:
    async def main() -> None:
        async with alone() as node:
            gate = asyncio.Event()
            leaver = node.spawn("leaver", Leaver, gate)
            watcher = Probe(TerminatedMsg)
            watcher.start(node, "watcher")
            node.cell(leaver.address).request_stop()
            for _ in range(3):
                await asyncio.sleep(0)
            node.cell("here/watcher").context.watch(leaver)
            gate.set()
            (end,) = await watcher.heard(TerminatedMsg)
            assert end == TerminatedMsg(address="here/leaver", reason="stopped", graceful=True)

    run(main())


def test_a_request_on_the_system_lane_is_answered_when_the_actor_ends_before_it_reads_it(run: Run) -> None:
    async def main() -> None:
        async with alone() as node:
            system = node.cell("here/system")
            system.request_stop(graceful=False)
            asking = asyncio.create_task(node.ref("here/system").ask(StatisticsMsg()))
            with pytest.raises(ActorStopped, match="here/system"):
                await asking

    run(main())


@pytest.mark.parametrize(("answer", "error"), [(object(), "TypeError"), (["many"], "ValidationError")])
def test_an_answer_that_cannot_be_given_fails_the_ask_and_the_actor(run: Run, answer: Any, error: str) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with alone(clock=clock) as node:
            clerk = node.spawn("clerk", Clerk, None, answer)
            with pytest.raises(AskFailed, match=f"here/clerk: {error}"):
                await clerk.ask(NowMsg())
            clock.advance(1)
            assert (await node.ref("here/system").ask(StatisticsMsg())).cells[-1].restarts == 1

    run(main())


def test_a_parked_answer_that_cannot_be_given_fails_the_ask(run: Run) -> None:
    async def main() -> None:
        async with alone() as node:
            clerk = node.spawn("clerk", Clerk)
            asking = asyncio.create_task(clerk.ask(LaterMsg()))
            await settle(node)
            node.cell("here/clerk").actor.parked[0].set_result(object())
            with pytest.raises(AskFailed, match="a object cannot travel"):
                await asking

    run(main())


@pytest.mark.parametrize(
    ("end", "error", "text"),
    [
        (lambda future: future.set_exception(ValueError("no")), AskFailed, "here/clerk: ValueError: no"),
        (lambda future: future.cancel(), ActorStopped, "here/clerk gave up the answer"),
    ],
)
def test_a_parked_answer_that_fails_or_is_given_up_fails_the_ask(run: Run, end: Any, error: Any, text: str) -> None:
    async def main() -> None:
        async with alone() as node:
            clerk = node.spawn("clerk", Clerk)
            asking = asyncio.create_task(clerk.ask(LaterMsg()))
            await settle(node)
            end(node.cell("here/clerk").actor.parked[0])
            with pytest.raises(error, match=text):
                await asking

    run(main())


def test_an_actor_that_failed_once_and_recovered_stops_gracefully_in_the_end(run: Run) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with alone(clock=clock) as node:
            clerk = node.spawn("clerk", Clerk)
            await clerk.tell(BreakMsg())
            await settle(node)
            clock.advance(1)
            await settle(node)
            cell = node.cell("here/clerk")
            cell.request_stop()
            assert await cell.terminated == "stopped"

    run(main())


def test_awaiting_what_somebody_else_cancelled_is_a_failure_not_an_abort(run: Run) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with alone(clock=clock) as node:
            hold = asyncio.get_running_loop().create_future()
            listener = Probe(PingMsg)
            clerk = node.spawn("clerk", Clerk, listener.start(node, "listener"), None, hold)
            await clerk.tell(WaitMsg())
            await asyncio.sleep(0)
            hold.cancel()
            await clerk.tell(PingMsg(n=1))
            await settle(node)
            clock.advance(1)
            assert await listener.heard(PingMsg) == [PingMsg(n=1)]

    run(main())


def test_an_actor_that_is_aborted_before_its_first_step_is_gone_at_once(run: Run) -> None:
    async def main() -> None:
        async with alone() as node:
            clerk = node.spawn("clerk", Clerk)
            asking = asyncio.create_task(clerk.ask(LaterMsg()))
            cell = node.cell("here/clerk")
            cell.request_stop(graceful=False)
            assert await cell.terminated == "aborted"
            with pytest.raises(ActorStopped):
                await asking
            assert "here/clerk" not in [cell.address for cell in node.statistics().cells]

    run(main())


def test_a_timer_that_rings_while_the_actor_is_aborted_is_nobody_s_business(run: Run) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with alone(clock=clock) as node:
            clerk = node.spawn("clerk", Clerk)
            await settle(node)
            node.cell(clerk.address).request_stop(graceful=False)
            clock.advance(100)
            assert node.statistics().dead_letters == 0

    run(main())


def test_a_stop_message_stops_an_actor_also_from_elsewhere(run: Run) -> None:
    async def main() -> None:
        async with alone() as node:
            clerk, other = node.spawn("clerk", Clerk), node.spawn("other", Clerk)
            ends = [node.cell(ref.address).terminated for ref in (clerk, other)]
            await clerk.tell(StopMsg())  # type: ignore[arg-type]  # every actor understands it, none lists it
            await other.tell(StopMsg(graceful=False))  # type: ignore[arg-type]  # as above
            assert await asyncio.gather(*ends) == ["stopped", "aborted"]

    run(main())


class TableMsg(Message):
    rows: dict[str, Any]


class BlobMsg(Message):
    blob: bytes


class TextMsg(Message):
    text: str


@pytest.mark.parametrize(
    "message",
    [TableMsg(rows={"a": np.zeros(1000)}), BlobMsg(blob=bytes(8000)), TextMsg(text="x" * 8000)],
    ids=["copied", "bytes", "text"],
)
def test_a_mailbox_weighs_what_waits_in_it(run: Run, message: Message) -> None:
    async def main() -> None:
        async with alone() as node:
            probe = Probe(TableMsg, BlobMsg, TextMsg)
            probe.hold()
            ref = probe.start(node, "probe")
            for _ in range(3):
                await ref.tell(message)
            await asyncio.sleep(0)  # one is in its hands
            assert 16_000 <= node.cell("here/probe").statistics().mailbox.nbytes < 17_000
            probe.release()

    run(main())


class AgainMsg(Message):
    """Tell yourself so many."""

    count: int


class Talker(Actor[AgainMsg | PingMsg]):
    supervision: ClassVar[Supervision] = Stop()
    mailbox_capacity = 1

    def __init__(self, heard: list[int], gate: asyncio.Event) -> None:
        self.heard = heard
        self.gate = gate

    @on(AgainMsg)
    async def go_on(self, msg: AgainMsg) -> None:
        await self.gate.wait()
        for n in range(msg.count):
            await self.me.tell(PingMsg(n=n))

    @on(PingMsg)
    def ping(self, msg: PingMsg) -> None:
        self.heard.append(msg.n)


def test_an_actor_whose_mailbox_is_full_may_still_tell_itself_what_comes_next(run: Run) -> None:
    async def main() -> None:
        heard: list[int] = []
        gate = asyncio.Event()
        async with alone() as node:
            talker = node.spawn("talker", Talker, heard, gate)
            await talker.tell(AgainMsg(count=1))
            await asyncio.sleep(0)
            await talker.tell(PingMsg(n=7))
            gate.set()
            await settle(node)
            assert heard == [7, 0]

    run(main())


def test_an_actor_that_floods_itself_fails_at_once_instead_of_waiting_for_itself(run: Run) -> None:
    async def main() -> None:
        gate = asyncio.Event()
        gate.set()
        async with alone() as node:
            talker = node.spawn("talker", Talker, [], gate)
            watcher = Probe(TerminatedMsg)
            watcher.start(node, "watcher")
            node.cell("here/watcher").context.watch(talker)
            await talker.tell(AgainMsg(count=3))
            (end,) = await watcher.heard(TerminatedMsg)
            assert end.reason.startswith("MailboxFull: here/talker cannot send itself a PingMsg")
            assert end.reason.endswith("waiting for room would deadlock")

    run(main())
