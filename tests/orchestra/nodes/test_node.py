"""Actors on live nodes: order, answers, failures, ends. Nodes are connected in memory, frames and all."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from orchestra import (
    Actor,
    ActorStopped,
    AskCycle,
    AskFailed,
    Axes,
    Escalate,
    MailboxFull,
    Message,
    Node,
    NotUnderstood,
    Ref,
    Request,
    Restart,
    Stop,
    Supervision,
    TerminatedMsg,
    Unreachable,
    UsageError,
    on,
)
from orchestra.actors.cell import ActorFailed
from orchestra.testing import ManualClock, settle

Run = Callable[..., Any]


class NoteMsg(Message):
    n: int


class NotesMsg(Request[tuple[int, ...]]):
    """What have you noted?"""


class FailMsg(Message):
    """Fail."""


class FailAskMsg(Request[int]):
    """Fail, though an answer is awaited."""


class ParkMsg(Request[int]):
    """Answer later."""


class ReleaseMsg(Message):
    """Answer those who wait."""


class HoldMsg(Message):
    """Be busy until the gate opens."""


class Notebook(Actor[NoteMsg | NotesMsg | FailMsg | FailAskMsg | ParkMsg | ReleaseMsg | HoldMsg]):
    supervision: ClassVar[Supervision] = Restart(limit=2, within=60, backoff=1)
    mailbox_capacity = 4

    def __init__(self, log: list[str] | None = None, gate: asyncio.Event | None = None) -> None:
        self.notes: list[int] = []
        self.waiting: list[asyncio.Future[int]] = []
        self.gate = gate or asyncio.Event()
        self.log_ = log if log is not None else []
        self.log_.append(f"made {self.me.address}")

    async def started(self) -> None:
        self.log_.append("started")

    async def stopped(self) -> None:
        self.log_.append(f"stopped with {self.notes}")

    @on(NoteMsg)
    def note(self, msg: NoteMsg) -> None:
        self.notes.append(msg.n)

    @on(NotesMsg)
    def tell_notes(self, msg: NotesMsg) -> tuple[int, ...]:
        return tuple(self.notes)

    @on(FailMsg)
    def fail(self, msg: FailMsg) -> None:
        raise ValueError("spilt the ink")

    @on(FailAskMsg)
    def fail_ask(self, msg: FailAskMsg) -> int:
        raise ValueError("no idea")

    @on(ParkMsg)
    def park(self, msg: ParkMsg) -> Any:
        self.waiting.append(asyncio.get_running_loop().create_future())
        return self.waiting[-1]

    @on(ReleaseMsg)
    def release(self, msg: ReleaseMsg) -> None:
        for n, future in enumerate(self.waiting):
            future.set_result(n)

    @on(HoldMsg)
    async def hold(self, msg: HoldMsg) -> None:
        await self.gate.wait()


class StepMsg(Message):
    """Go on."""


class Mourner(Actor[StepMsg]):
    def __init__(self, target: Ref[Any], heard: list[TerminatedMsg]) -> None:
        self.target = target
        self.heard = heard

    async def started(self) -> None:
        self.watch(self.target)

    @on(StepMsg)
    def step(self, msg: StepMsg) -> None: ...

    @on(TerminatedMsg)
    def mourn(self, msg: TerminatedMsg) -> None:
        self.heard.append(msg)


@asynccontextmanager
async def alone(**options: Any) -> AsyncIterator[Node]:
    async with Node("here", **options).running() as node:
        yield node


@asynccontextmanager
async def pair(**options: Any) -> AsyncIterator[tuple[Node, Node]]:
    secret = b"s" * 32
    async with (
        Node("root", listen="memory://root", secret=secret, **options).running() as root,
        Node("leaf", listen="memory://leaf", join="memory://root", secret=secret, **options).running() as leaf,
    ):
        yield root, leaf


# Telling and asking --------------------------------------------------------------------------------------------------


def test_messages_of_one_sender_are_handled_in_order(run: Run) -> None:
    async def main() -> None:
        async with alone() as node:
            book = node.spawn("book", Notebook)
            for n in range(100):
                await book.tell(NoteMsg(n=n))
            assert await book.ask(NotesMsg()) == tuple(range(100))

    run(main())


def test_order_is_kept_between_nodes_too(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            root.spawn("book", Notebook)
            book = leaf.ref("root/book")
            for n in range(100):
                await book.tell(NoteMsg(n=n))
            assert await book.ask(NotesMsg()) == tuple(range(100))

    run(main())


def test_one_message_is_handled_at_a_time(run: Run) -> None:
    async def main() -> None:
        gate = asyncio.Event()
        async with alone() as node:
            book = node.spawn("book", Notebook, gate=gate)
            await book.tell(HoldMsg())
            await book.tell(NoteMsg(n=1))
            asking = asyncio.create_task(book.ask(NotesMsg()))
            await asyncio.sleep(0)
            assert not asking.done()
            gate.set()
            assert await asking == (1,)

    run(main())


def test_tell_waits_while_the_mailbox_is_full_and_tell_nowait_raises(run: Run) -> None:
    async def main() -> None:
        gate = asyncio.Event()
        async with alone() as node:
            book = node.spawn("book", Notebook, gate=gate)
            await book.tell(HoldMsg())
            await settle_started(node)
            for n in range(4):
                book.tell_nowait(NoteMsg(n=n))
            with pytest.raises(MailboxFull, match="here/book has 4 messages waiting"):
                book.tell_nowait(NoteMsg(n=4))
            telling = asyncio.create_task(book.tell(NoteMsg(n=4)))
            await asyncio.sleep(0)
            assert not telling.done()
            gate.set()
            await telling
            assert await book.ask(NotesMsg()) == (0, 1, 2, 3, 4)

    run(main())


def test_what_waits_for_room_when_an_actor_stops_is_a_dead_letter_and_no_failure_of_its_sender(run: Run) -> None:
    async def main() -> None:
        gate = asyncio.Event()
        async with alone() as node:
            book = node.spawn("book", Notebook, gate=gate)
            await book.tell(HoldMsg())
            await settle_started(node)
            for n in range(4):
                book.tell_nowait(NoteMsg(n=n))
            telling = asyncio.create_task(book.tell(NoteMsg(n=4)))
            await asyncio.sleep(0)
            node.cell("here/book").request_stop()
            await telling
            assert node.statistics().dead_letters == 1
            gate.set()

    run(main())


async def settle_started(node: Node) -> None:
    """Let the first message of a notebook be taken."""
    await turns_until(lambda: node.cell("here/book").statistics().handled > 0)


async def turns_until(done: Callable[[], bool]) -> None:
    """Let the loop turn until something has come about, as messages in memory make it."""
    for _ in range(1000):
        if done():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came about")


def test_telling_what_is_not_understood_is_an_error_at_the_sender(run: Run) -> None:
    async def main() -> None:
        async with alone() as node:
            book = node.spawn("book", Notebook)
            with pytest.raises(NotUnderstood) as caught:
                await book.tell(StepMsg())  # type: ignore[arg-type]  # the point of the test
            assert str(caught.value) == (
                "Notebook got StepMsg; it understands "
                "FailAskMsg, FailMsg, HoldMsg, NoteMsg, NotesMsg, ParkMsg, ReleaseMsg"
            )

    run(main())


def test_asking_what_is_not_understood_fails_across_nodes_too(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            root.spawn("mourner", Mourner, Ref("root/nobody"), [])
            with pytest.raises(NotUnderstood, match="Mourner got NotesMsg; it understands StepMsg, TerminatedMsg"):
                await leaf.ref("root/mourner").ask(NotesMsg())

    run(main())


def test_asking_nobody_is_an_error_here_and_elsewhere(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            with pytest.raises(Unreachable, match="there is no actor at root/nobody"):
                await root.ref("root/nobody").ask(NotesMsg())
            with pytest.raises(Unreachable, match="there is no actor at root/nobody"):
                await leaf.ref("root/nobody").ask(NotesMsg())

    run(main())


def test_who_has_lost_the_root_finds_nobody_any_more_and_does_not_wait(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            await root.stop()
            assert "the root is gone" in await leaf.stop_requested
            for address in ("root/book", "elsewhere/book"):
                with pytest.raises(Unreachable, match="cannot be found: the root is gone"):
                    await leaf.ref(address).tell(NoteMsg(n=1))
                with pytest.raises(Unreachable, match="cannot be found: the root is gone"):
                    await leaf.ref(address).ask(NotesMsg())

    run(main())


def test_telling_nobody_on_another_node_is_a_dead_letter_there(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            await leaf.ref("root/nobody").tell(NoteMsg(n=1))
            await settle(root, leaf)
            assert root.statistics().dead_letters == 1

    run(main())


def test_an_answer_may_come_later_without_holding_up_the_mailbox(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            root.spawn("book", Notebook)
            book = leaf.ref("root/book")
            asking = [asyncio.create_task(book.ask(ParkMsg())) for _ in range(3)]
            await settle(root, leaf)
            await book.tell(NoteMsg(n=7))
            assert await book.ask(NotesMsg()) == (7,)
            assert not any(task.done() for task in asking)
            await book.tell(ReleaseMsg())
            assert await asyncio.gather(*asking) == [0, 1, 2]

    run(main())


def test_a_ref_of_a_plan_cannot_be_used_outside_of_actors(run: Run) -> None:
    async def main() -> None:
        with pytest.raises(Unreachable, match="<Ref a/b> belongs to a plan"):
            await Ref[NoteMsg]("a/b").tell(NoteMsg(n=1))

    run(main())


class RelayMsg(Request[int]):
    """Ask the next one."""


class Relay(Actor[RelayMsg]):
    def __init__(self, to: Ref[RelayMsg]) -> None:
        self.to = to

    @on(RelayMsg)
    async def relay(self, msg: RelayMsg) -> int:
        return await self.to.ask(msg)


def test_a_cycle_of_asks_is_an_error_not_a_hang(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            root.spawn("one", Relay, Ref("leaf/two"))
            leaf.spawn("two", Relay, Ref("root/one"))
            with pytest.raises(AskFailed) as caught:
                await root.ref("root/one").ask(RelayMsg())
            assert "root/one → leaf/two → root/one: this ask would wait for itself" in str(caught.value)

    run(main())


def test_an_actor_that_asks_itself_is_told_so(run: Run) -> None:
    async def main() -> None:
        async with alone() as node:
            one = node.spawn("one", Relay, Ref("here/one"))
            with pytest.raises(AskFailed, match="AskCycle: here/one → here/one"):
                await one.ask(RelayMsg())

    run(main())
    assert issubclass(AskCycle, Exception)


class TrackMsg(Message):
    track: Annotated[NDArray[np.float64], Axes("float64", "steps")]


class Keeper(Actor[TrackMsg]):
    def __init__(self, kept: list[NDArray[np.float64]]) -> None:
        self.kept = kept

    @on(TrackMsg)
    def keep(self, msg: TrackMsg) -> None:
        self.kept.append(msg.track)


@pytest.mark.parametrize("far", [False, True])
def test_what_a_sender_does_to_its_array_later_does_not_reach_the_receiver(run: Run, far: bool) -> None:
    async def main() -> None:
        kept: list[NDArray[np.float64]] = []
        async with pair() as (root, leaf):
            root.spawn("keeper", Keeper, kept)
            array = np.arange(3.0)
            await (leaf if far else root).ref("root/keeper").tell(TrackMsg(track=array))
            array[:] = -1
            await settle(root, leaf)
            assert [track.tolist() for track in kept] == [[0, 1, 2]]
            assert not kept[0].flags.writeable

    run(main())


# Failures ------------------------------------------------------------------------------------------------------------


def test_a_failing_handler_fails_the_ask_and_the_actor_starts_anew(run: Run) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with alone(clock=clock) as node:
            book = node.spawn("book", Notebook)
            await book.tell(NoteMsg(n=1))
            with pytest.raises(AskFailed, match="here/book: ValueError: no idea"):
                await book.ask(FailAskMsg())
            await book.tell(NoteMsg(n=2))
            await settle(node)
            assert node.cell("here/book").statistics().handled == 2, "it waits before it starts anew"
            clock.advance(1)
            assert await book.ask(NotesMsg()) == (2,), "a new actor, with the same mailbox"
            assert node.cell("here/book").statistics().restarts == 1

    run(main())


def test_an_actor_that_fails_too_often_fails_its_node_and_tells_its_story(run: Run) -> None:
    async def main() -> None:
        clock = ManualClock()
        with pytest.raises(ExceptionGroup) as caught:
            async with alone(clock=clock) as node:
                book = node.spawn("book", Notebook)
                for _ in range(3):
                    await book.tell(NoteMsg(n=1))
                    await book.tell(FailMsg())
                    await settle(node)
                    clock.advance(10)
                await asyncio.Event().wait()
        (error,) = caught.value.exceptions
        assert isinstance(error, ActorFailed)
        assert str(error).startswith(
            "here/book (Notebook) failed; last deliveries, newest last: NoteMsg from here/outside"
        )
        assert isinstance(error.__cause__, ValueError)

    run(main())


class Fragile(Notebook):
    supervision: ClassVar[Supervision] = Stop()


class Vital(Notebook):
    supervision: ClassVar[Supervision] = Escalate()


def test_an_actor_may_be_left_dead_while_the_rest_goes_on(run: Run) -> None:
    async def main() -> None:
        heard: list[TerminatedMsg] = []
        async with alone() as node:
            book, other = node.spawn("book", Fragile), node.spawn("other", Notebook)
            node.spawn("mourner", Mourner, book, heard)
            await settle(node)
            await book.tell(FailMsg())
            await settle(node)
            assert await other.ask(NotesMsg()) == ()
            with pytest.raises(Unreachable, match="there is no actor at here/book"):
                await book.tell(NoteMsg(n=1))
            assert [(msg.address, msg.reason, msg.graceful) for msg in heard] == [
                ("here/book", "ValueError: spilt the ink", False)
            ]

    run(main())


def test_an_escalated_failure_ends_the_node_at_once(run: Run) -> None:
    async def main() -> None:
        with pytest.raises(ExceptionGroup):
            async with alone() as node:
                await node.spawn("book", Vital).tell(FailMsg())
                await asyncio.Event().wait()

    run(main())


def test_a_failing_constructor_is_a_failure_like_any_other(run: Run) -> None:
    class Stillborn(Vital):
        def __init__(self) -> None:
            raise OSError("no paper")

    async def main() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            async with alone() as node:
                node.spawn("book", Stillborn)
                await asyncio.Event().wait()
        assert "it had handled nothing yet" in str(caught.value.exceptions[0])

    run(main())


# Ends ----------------------------------------------------------------------------------------------------------------


def test_a_graceful_stop_handles_what_is_queued_and_then_calls_stopped(run: Run) -> None:
    async def main() -> None:
        log: list[str] = []
        gate = asyncio.Event()
        async with alone() as node:
            book = node.spawn("book", Notebook, log=log, gate=gate)
            await book.tell(HoldMsg())
            await book.tell(NoteMsg(n=1))
            await book.tell(NoteMsg(n=2))
            await settle_started(node)
            stopping = asyncio.create_task(node.cell("here/book").stop())
            await asyncio.sleep(0)
            gate.set()
            await stopping
        assert log == ["made here/book", "started", "stopped with [1, 2]"]

    run(main())


def test_a_node_stops_its_actors_the_youngest_first(run: Run) -> None:
    class Named(Notebook):
        async def stopped(self) -> None:
            self.log_.append(self.me.address)

    async def main() -> None:
        log: list[str] = []
        async with alone() as node:
            for name in "abc":
                node.spawn(name, Named, log=log)
            await settle(node)
            log.clear()
        assert log == ["here/c", "here/b", "here/a"]

    run(main())


def test_an_actor_that_does_not_stop_in_time_is_aborted(run: Run) -> None:
    async def main() -> None:
        log: list[str] = []
        async with alone() as node:
            book = node.spawn("book", Notebook, log=log)
            await book.tell(HoldMsg())
            await settle_started(node)
            cell = node.cell("here/book")
            await cell.stop(deadline=0.01)
            assert cell.terminated.result() == "aborted"
        assert log == ["made here/book", "started"]

    run(main())


@pytest.mark.parametrize("far", [False, True])
def test_a_stopped_actor_answers_everyone_still_waiting(run: Run, far: bool) -> None:
    async def main() -> None:
        gate = asyncio.Event()
        async with pair() as (root, leaf):
            root.spawn("book", Notebook, gate=gate)
            book = (leaf if far else root).ref("root/book")
            parked = asyncio.create_task(book.ask(ParkMsg()))
            await settle(root, leaf)
            await book.tell(HoldMsg())
            await turns_until(lambda: root.cell("root/book").statistics().handled == 2)
            queued = asyncio.create_task(book.ask(NotesMsg()))
            await turns_until(lambda: len(root.cell("root/book").mailbox) > 0)
            root.cell("root/book").request_stop(graceful=False)
            for asking in (parked, queued):
                with pytest.raises(ActorStopped, match=r"root/book stopped before it answered \(aborted\)"):
                    await asking

    run(main())


def test_what_an_aborted_actor_leaves_in_its_mailbox_is_counted_as_dead_letters(run: Run) -> None:
    async def main() -> None:
        async with alone() as node:
            book = node.spawn("book", Notebook)
            await book.tell(HoldMsg())
            await settle_started(node)
            await book.tell(NoteMsg(n=1))
            await book.tell(NoteMsg(n=2))
            cell = node.cell("here/book")
            cell.request_stop(graceful=False)
            await cell.terminated
            assert node.statistics().dead_letters == 2

    run(main())


def test_a_message_to_an_actor_that_is_stopping_is_a_dead_letter(run: Run) -> None:
    async def main() -> None:
        gate = asyncio.Event()
        async with alone() as node:
            book = node.spawn("book", Notebook, gate=gate)
            await book.tell(HoldMsg())
            await settle_started(node)
            node.cell("here/book").request_stop()
            await book.tell(NoteMsg(n=1))
            assert node.statistics().dead_letters == 1
            with pytest.raises(ActorStopped):
                await book.ask(NotesMsg())
            gate.set()

    run(main())


def test_children_stop_with_their_parent(run: Run) -> None:
    class Parent(Actor[StepMsg]):
        async def started(self) -> None:
            self.child = self.spawn("child", Notebook)

        @on(StepMsg)
        async def step(self, msg: StepMsg) -> None:
            await self.child.tell(NoteMsg(n=1))

    async def main() -> None:
        async with alone() as node:
            parent = node.spawn("parent", Parent)
            await parent.tell(StepMsg())
            await settle(node)
            child = node.cell("here/parent:child")
            assert child.statistics().handled == 1
            await node.cell("here/parent").stop()
            assert await child.terminated == "stopped"

    run(main())


@pytest.mark.parametrize("far", [False, True])
def test_a_watcher_hears_once_of_a_graceful_end(run: Run, far: bool) -> None:
    async def main() -> None:
        heard: list[TerminatedMsg] = []
        async with pair() as (root, leaf):
            root.spawn("book", Notebook)
            (leaf if far else root).spawn("mourner", Mourner, Ref("root/book"), heard)
            await settle(root, leaf)
            await root.cell("root/book").stop()
            await settle(root, leaf)
            assert [(msg.address, msg.graceful) for msg in heard] == [("root/book", True)]

    run(main())


@pytest.mark.parametrize("far", [False, True])
def test_watching_somebody_who_is_gone_is_answered_at_once(run: Run, far: bool) -> None:
    async def main() -> None:
        heard: list[TerminatedMsg] = []
        async with pair() as (root, leaf):
            (leaf if far else root).spawn("mourner", Mourner, Ref("root/nobody"), heard)
            await settle(root, leaf)
            assert [(msg.address, msg.graceful) for msg in heard] == [("root/nobody", False)]

    run(main())


def test_a_watcher_hears_when_the_whole_node_is_lost(run: Run) -> None:
    async def main() -> None:
        heard: list[TerminatedMsg] = []
        async with pair() as (root, leaf):
            leaf.spawn("book", Notebook)
            root.spawn("mourner", Mourner, Ref("leaf/book"), heard)
            await settle(root, leaf)
            for link in list(leaf.peers._links.values()):
                link.end(ConnectionResetError("cut"))
            await settle(root)
            assert [msg.address for msg in heard] == ["leaf/book"]
            assert not heard[0].graceful
            assert leaf.stop_requested.result().startswith("the root is gone")

    run(main())


# Time, chance, work --------------------------------------------------------------------------------------------------


def test_timers_are_messages_and_can_be_taken_back(run: Run) -> None:
    class Timed(Actor[NoteMsg | NotesMsg]):
        def __init__(self) -> None:
            self.notes: list[int] = []

        async def started(self) -> None:
            for n in (3, 1, 2):
                self.after(n, NoteMsg(n=n))
            self.after(1.5, NoteMsg(n=99)).cancel()

        @on(NoteMsg)
        def note(self, msg: NoteMsg) -> None:
            self.notes.append(msg.n)

        @on(NotesMsg)
        def tell_notes(self, msg: NotesMsg) -> tuple[int, ...]:
            return tuple(self.notes)

    async def main() -> None:
        clock = ManualClock()
        async with alone(clock=clock) as node:
            timed = node.spawn("timed", Timed)
            await settle(node)
            clock.advance(2)
            assert await timed.ask(NotesMsg()) == (1, 2)
            clock.advance(10)
            assert await timed.ask(NotesMsg()) == (1, 2, 3)

    run(main())


class DrawMsg(Request[tuple[float, ...]]):
    """Draw three numbers."""


class Gambler(Actor[DrawMsg | FailMsg]):
    @on(DrawMsg)
    def draw(self, msg: DrawMsg) -> tuple[float, ...]:
        return tuple(self.rng.random(3).tolist())

    @on(FailMsg)
    def fail(self, msg: FailMsg) -> None:
        raise ValueError("lost")


def test_random_numbers_come_from_seed_address_and_incarnation(run: Run) -> None:
    async def draw(seed: int, name: str = "gambler", failures: int = 0) -> tuple[float, ...]:
        clock = ManualClock()
        async with alone(seed=seed, clock=clock) as node:
            gambler = node.spawn(name, Gambler)
            for _ in range(failures):
                await gambler.tell(FailMsg())
                await settle(node)
                clock.advance(10)
            drawn = await gambler.ask(DrawMsg())
            assert isinstance(drawn, tuple)
            return drawn

    async def main() -> None:
        first = await draw(1)
        assert await draw(1) == first
        assert await draw(2) != first
        assert await draw(1, "other") != first
        assert await draw(1, failures=1) != first

    run(main())


class WorkMsg(Request[str]):
    """Work elsewhere."""


class Worker(Actor[WorkMsg | StepMsg]):
    @on(WorkMsg)
    async def work(self, msg: WorkMsg) -> str:
        import threading

        return await self.offload(lambda: threading.current_thread().name)

    @on(StepMsg)
    def step(self, msg: StepMsg) -> None: ...


@pytest.mark.parametrize(("deterministic", "where"), [(False, "here-offload"), (True, "MainThread")])
def test_offloaded_work_runs_in_a_thread_unless_the_node_is_inline(run: Run, deterministic: bool, where: str) -> None:
    async def main() -> None:
        async with alone(deterministic=deterministic) as node:
            assert (await node.spawn("worker", Worker).ask(WorkMsg())).startswith(where)

    run(main())


# Names and accounts --------------------------------------------------------------------------------------------------


def test_a_name_is_taken_once(run: Run) -> None:
    async def main() -> None:
        async with alone() as node:
            node.spawn("book", Notebook)
            with pytest.raises(UsageError, match="there is an actor at here/book already"):
                node.spawn("book", Notebook)
            with pytest.raises(UsageError, match="'a/b' cannot name an actor"):
                node.spawn("a/b", Notebook)

    run(main())


def test_a_node_counts_who_told_whom_what(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            root.spawn("book", Notebook)
            await leaf.ref("root/book").tell(NoteMsg(n=1))
            await leaf.ref("root/book").tell(NoteMsg(n=2))
            await root.ref("root/book").ask(NotesMsg())
            await settle(root, leaf)
            await root.cell("root/book").stop()
            message_counts = {(f.sender, f.type, f.recipient): f.count for f in root.statistics().message_counts}
            assert message_counts["leaf/outside", "NoteMsg", "root/book"] == 2
            assert message_counts["root/outside", "NotesMsg", "root/book"] == 1

    run(main())


def test_a_planned_ref_works_once_an_actor_uses_it(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            leaf.spawn("book", Notebook)
            root.spawn("relay", Pusher, Ref("leaf/book"))
            await root.ref("root/relay").tell(StepMsg())
            await settle(root, leaf)
            assert await leaf.ref("leaf/book").ask(NotesMsg()) == (5,)

    run(main())


class Pusher(Actor[StepMsg]):
    def __init__(self, to: Ref[NoteMsg]) -> None:
        self.to = to

    @on(StepMsg)
    async def step(self, msg: StepMsg) -> None:
        await self.to.tell(NoteMsg(n=5))


def test_a_node_that_is_not_planned_cannot_be_reached(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            root.directory.expect(["root", "leaf"])
            with pytest.raises(Unreachable, match="there is no node 'moon'; the nodes of this run are leaf, root"):
                await leaf.ref("moon/rock").tell(NoteMsg(n=1))
            with pytest.raises(Unreachable, match="there is no node 'moon'"):
                await root.ref("moon/rock").tell(NoteMsg(n=1))

    run(main())


def test_who_asks_for_a_node_that_is_still_to_come_waits_for_it(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with Node("root", listen="memory://root", secret=b"s" * 16).running() as root:
            telling = asyncio.create_task(root.ref("late/book").tell(NoteMsg(n=3)))
            await settle(root)
            assert not telling.done()
            async with Node("late", listen="memory://late", join="memory://root", secret=b"s" * 16).running() as late:
                late.spawn("book", Notebook)
                await telling
                await settle(root, late)
                assert await late.ref("late/book").ask(NotesMsg()) == (3,)

    run(main())
