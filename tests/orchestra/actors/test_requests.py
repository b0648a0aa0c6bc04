"""Asks that are given up, asks that would wait for themselves, and work in threads that nobody waits for any longer."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar

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
    Supervision,
    Unreachable,
    offload_cancelled,
    on,
)
from orchestra.actors.system_messages import DeadlockProbeMsg
from orchestra.testing import settle

Run = Callable[..., Any]


class NoteMsg(Message):
    n: int


class NotesMsg(Request[tuple[int, ...]]):
    """What have you noted?"""


class HoldMsg(Request[str]):
    """Be busy until the gate opens, then answer."""


class StubbornMsg(Request[str]):
    """As `HoldMsg`, and answer even when told to give up."""


class TouchyMsg(Request[str]):
    """As `HoldMsg`, and fail when told to give up."""


class ParkMsg(Request[str]):
    """Answer later."""


class WorkMsg(Request[str]):
    """Compute in a thread."""


class PassMsg(Request[str]):
    """Ask the next one to hold."""


class Desk(Actor[NoteMsg | NotesMsg | HoldMsg | StubbornMsg | TouchyMsg | ParkMsg | WorkMsg | PassMsg]):
    supervision: ClassVar[Supervision] = Restart(limit=0)
    mailbox_capacity = 2

    def __init__(self, to: Ref[Any] | None = None, work: Any = None) -> None:
        self.notes: list[int] = []
        self.parked: list[asyncio.Future[str]] = []
        self.held = asyncio.Event()
        self.ended: list[str] = []
        self.to = to
        self.work = work

    @on(NoteMsg)
    def note(self, msg: NoteMsg) -> None:
        self.notes.append(msg.n)

    @on(NotesMsg)
    def tell_notes(self, msg: NotesMsg) -> tuple[int, ...]:
        return tuple(self.notes)

    @on(HoldMsg)
    async def hold(self, msg: HoldMsg) -> str:
        self.held.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.ended.append("broken off")
            raise
        return "never"

    @on(StubbornMsg)
    async def hold_on(self, msg: StubbornMsg) -> str:
        self.held.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "all the same"

    @on(TouchyMsg)
    async def hold_touchily(self, msg: TouchyMsg) -> str:
        self.held.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("not with me") from None
        return "never"

    @on(ParkMsg)
    def park(self, msg: ParkMsg) -> Any:
        self.parked.append(asyncio.get_running_loop().create_future())
        return self.parked[-1]

    @on(WorkMsg)
    async def compute(self, msg: WorkMsg) -> str:
        self.held.set()
        return str(await self.offload(self.work))

    @on(PassMsg)
    async def pass_on(self, msg: PassMsg) -> str:
        assert self.to is not None
        return await self.to.ask(HoldMsg())


_numbers = itertools.count()


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Node, Node]]:
    at = f"memory://requests-{next(_numbers)}"
    async with (
        Node("root", listen=at, secret=b"s" * 16).running() as root,
        Node("leaf", listen=f"{at}-leaf", join=at, secret=b"s" * 16).running() as leaf,
    ):
        yield root, leaf


def desk_of(node: Node, name: str = "desk") -> Any:
    return node.cell(f"{node.name}/{name}").actor


def withdrawn(node: Node, name: str = "desk") -> int:
    return node.cell(f"{node.name}/{name}").statistics().withdrawn


async def turns_until(done: Callable[[], bool]) -> None:
    for _ in range(1000):
        if done():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came about")


async def give_up(asking: "asyncio.Task[Any]") -> None:
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


@pytest.mark.parametrize("far", [False, True])
def test_a_handler_whose_asker_gives_up_is_broken_off_and_the_actor_goes_on(run: Run, far: bool) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            root.spawn("desk", Desk)
            desk = (leaf if far else root).ref("root/desk")
            await desk.tell(NoteMsg(n=1))
            asking = asyncio.create_task(desk.ask(HoldMsg()))
            await turns_until(lambda: desk_of(root) is not None and desk_of(root).held.is_set())
            await desk.tell(NoteMsg(n=2))
            await give_up(asking)
            assert await desk.ask(NotesMsg()) == (1, 2), "the same incarnation"
            assert desk_of(root).ended == ["broken off"]
            assert withdrawn(root) == 1

    run(main())


@pytest.mark.parametrize("far", [False, True])
def test_a_handler_that_fails_of_being_broken_off_fails_its_actor_once(run: Run, far: bool) -> None:
    class Patient(Desk):
        supervision: ClassVar[Supervision] = Restart(limit=1, backoff=0.0)

    async def main() -> None:
        async with pair() as (root, leaf):
            root.spawn("desk", Patient)
            desk = (leaf if far else root).ref("root/desk")
            asking = asyncio.create_task(desk.ask(TouchyMsg()))
            await turns_until(lambda: desk_of(root) is not None and desk_of(root).held.is_set())
            failing = desk_of(root)
            await give_up(asking)
            await turns_until(lambda: desk_of(root) is not failing)
            again = asyncio.create_task(desk.ask(StubbornMsg()))
            await turns_until(lambda: desk_of(root).held.is_set())
            task = root.cell("root/desk").task
            assert task is not None
            assert task.cancelling() == 0
            await give_up(again)
            async with asyncio.timeout(5):
                assert await desk.ask(NotesMsg()) == ()
            assert withdrawn(root) == 2

    run(main())


@pytest.mark.parametrize("far", [False, True])
def test_a_request_whose_asker_gives_up_before_it_is_read_is_dropped(run: Run, far: bool) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            root.spawn("desk", Desk)
            desk = (leaf if far else root).ref("root/desk")
            first = asyncio.create_task(root.ref("root/desk").ask(HoldMsg()))
            await turns_until(lambda: desk_of(root) is not None and desk_of(root).held.is_set())
            desk_of(root).held.clear()
            second = asyncio.create_task(desk.ask(HoldMsg()))
            await turns_until(lambda: len(root.cell("root/desk").mailbox) == 1)
            await give_up(second)
            await settle_far(root, leaf, lambda: withdrawn(root) == 1)
            await give_up(first)
            assert await desk.ask(NotesMsg()) == ()
            assert not desk_of(root).held.is_set(), "it was never handled"
            assert root.statistics().dead_letters == 0

    run(main())


async def settle_far(root: Node, leaf: Node, done: Callable[[], bool]) -> None:
    await turns_until(done)
    assert root.statistics().dead_letters == leaf.statistics().dead_letters == 0


@pytest.mark.parametrize("far", [False, True])
def test_a_parked_answer_that_nobody_waits_for_is_cancelled(run: Run, far: bool) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            root.spawn("desk", Desk)
            asking = asyncio.create_task((leaf if far else root).ref("root/desk").ask(ParkMsg()))
            await turns_until(lambda: desk_of(root) is not None and bool(desk_of(root).parked))
            await give_up(asking)
            await turns_until(lambda: desk_of(root).parked[0].cancelled())

    run(main())


def test_a_deadline_is_a_way_of_giving_up(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, _):
            desk = root.spawn("desk", Desk)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await desk.ask(HoldMsg())
            assert await desk.ask(NotesMsg()) == ()
            assert desk_of(root).ended == ["broken off"]

    run(main())


def test_giving_up_goes_on_to_whomever_the_handler_asks_across_nodes(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            leaf.spawn("desk", Desk)
            root.spawn("desk", Desk, Ref("leaf/desk"))
            asking = asyncio.create_task(leaf.ref("root/desk").ask(PassMsg()))
            await turns_until(lambda: desk_of(leaf) is not None and desk_of(leaf).held.is_set())
            await give_up(asking)
            await turns_until(lambda: desk_of(leaf).ended == ["broken off"])
            assert await root.ref("leaf/desk").ask(NotesMsg()) == ()
            assert await leaf.ref("root/desk").ask(NotesMsg()) == ()

    run(main())


def test_a_handler_that_answers_though_it_should_give_up_harms_nobody(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, _):
            desk = root.spawn("desk", Desk)
            asking = asyncio.create_task(desk.ask(StubbornMsg()))
            await turns_until(lambda: desk_of(root) is not None and desk_of(root).held.is_set())
            await give_up(asking)
            assert await desk.ask(NotesMsg()) == ()
            cell = root.cell("root/desk")
            await cell.stop()
            assert cell.terminated.result() == "stopped"

    run(main())


def test_an_actor_that_is_aborted_while_its_asker_gives_up_is_aborted(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, _):
            desk = root.spawn("desk", Desk)
            asking = asyncio.create_task(desk.ask(HoldMsg()))
            await turns_until(lambda: desk_of(root) is not None and desk_of(root).held.is_set())
            asking.cancel()
            cell = root.cell("root/desk")
            cell.request_stop(graceful=False)
            assert await cell.terminated == "aborted"
            with pytest.raises((asyncio.CancelledError, ActorStopped)):
                await asking

    run(main())


def test_an_asker_that_gives_up_while_the_mailbox_is_full_leaves_nothing(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, _):
            desk = root.spawn("desk", Desk)
            first = asyncio.create_task(desk.ask(HoldMsg()))
            await turns_until(lambda: desk_of(root) is not None and desk_of(root).held.is_set())
            for n in range(2):
                await desk.tell(NoteMsg(n=n))
            waiting = asyncio.create_task(desk.ask(HoldMsg()))
            await turns_until(lambda: root.cell("root/desk").statistics().mailbox.waiting == 1)
            await give_up(waiting)
            await give_up(first)
            assert await desk.ask(NotesMsg()) == (0, 1)

    run(main())


def test_requests_of_a_node_that_is_lost_are_given_up(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            root.spawn("desk", Desk)
            asking = asyncio.create_task(leaf.ref("root/desk").ask(HoldMsg()))
            await turns_until(lambda: desk_of(root) is not None and desk_of(root).held.is_set())
            link = leaf.peers.find("root")
            assert link is not None
            link.end(Unreachable("pulled"))
            await turns_until(lambda: desk_of(root).ended == ["broken off"])
            with pytest.raises(Unreachable):
                await asking

    run(main())


# Threads -------------------------------------------------------------------------------------------------------------


def test_work_in_a_thread_is_told_and_waited_for_before_the_next_message(run: Run) -> None:
    begun, seen = threading.Event(), threading.Event()
    order: list[str] = []

    def work() -> str:
        begun.set()
        while not offload_cancelled():
            seen.wait(0.001)
        order.append("work ended")
        return "nobody listens"

    async def main() -> None:
        async with pair() as (root, _):
            desk = root.spawn("desk", Desk, None, work)
            asking = asyncio.create_task(desk.ask(WorkMsg()))
            await asyncio.get_running_loop().run_in_executor(None, begun.wait)
            await give_up(asking)
            await desk.ask(NotesMsg())
            order.append("next message")
            assert order == ["work ended", "next message"]
        assert not offload_cancelled(), "outside of such work there is nothing to give up"

    run(main())


def test_an_abort_waits_for_no_thread(run: Run) -> None:
    begun, told = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        while not offload_cancelled():
            told.wait(0.001)
        told.set()

    async def main() -> None:
        async with pair() as (root, _):
            desk = root.spawn("desk", Desk, None, work)
            asking = asyncio.create_task(desk.ask(WorkMsg()))
            await asyncio.get_running_loop().run_in_executor(None, begun.wait)
            cell = root.cell("root/desk")
            cell.request_stop(graceful=False)
            assert await cell.terminated == "aborted"
            with pytest.raises(ActorStopped):
                await asking
            await asyncio.get_running_loop().run_in_executor(None, told.wait)

    run(main())


def test_work_that_has_not_begun_never_begins(run: Run) -> None:
    async def main() -> None:
        from concurrent.futures import ThreadPoolExecutor

        begun, go = threading.Event(), threading.Event()
        ran: list[int] = []
        with ThreadPoolExecutor(max_workers=1) as executor:

            def block() -> None:
                begun.set()
                go.wait()

            blocking = executor.submit(block)
            async with pair() as (root, _):
                root._executor = executor
                desk = root.spawn("desk", Desk, None, lambda: ran.append(1))
                asking = asyncio.create_task(desk.ask(WorkMsg()))
                await turns_until(lambda: desk_of(root) is not None and desk_of(root).held.is_set())
                await asyncio.get_running_loop().run_in_executor(None, begun.wait)
                await give_up(asking)
                assert await desk.ask(NotesMsg()) == (), "it does not wait for what has not begun"
                go.set()
                blocking.result()
        assert ran == []

    run(main())


# Asks that outlive nobody, and cycles --------------------------------------------------------------------------------


class GoMsg(Message):
    """Begin."""


class Dreamer(Actor[GoMsg]):
    """Asks in a task of its own."""

    def __init__(self, to: Ref[Any]) -> None:
        self.to = to
        self.asking: asyncio.Task[Any] | None = None

    @on(GoMsg)
    def go(self, msg: GoMsg) -> None:
        self.asking = asyncio.create_task(self.to.ask(ParkMsg()))


@pytest.mark.parametrize("graceful", [True, False])
def test_no_ask_outlives_the_actor_that_asks_in_a_task_of_its_own(run: Run, graceful: bool) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            leaf.spawn("desk", Desk)
            dreamer = root.spawn("dreamer", Dreamer, Ref("leaf/desk"))
            await dreamer.tell(GoMsg())
            await turns_until(lambda: desk_of(leaf) is not None and bool(desk_of(leaf).parked))
            cell = root.cell("root/dreamer")
            asking = desk_of(root, "dreamer").asking
            cell.request_stop(graceful=graceful)
            with pytest.raises(ActorStopped, match="root/dreamer, which asked, has stopped or failed"):
                await asking
            await turns_until(lambda: desk_of(leaf).parked[0].cancelled())

    run(main())


class Circle(Actor[GoMsg | ParkMsg | PassMsg | HoldMsg]):
    """Parks, and asks on: in its handlers and in tasks."""

    supervision: ClassVar[Supervision] = Restart(limit=5, backoff=0.0, backoff_max=0.0)

    def __init__(self, to: Ref[Any]) -> None:
        self.to = to
        self.parked: list[Any] = []
        self.said: list[str] = []

    @on(ParkMsg)
    def park(self, msg: ParkMsg) -> Any:
        self.parked.append(asyncio.get_running_loop().create_future())
        return self.parked[-1]

    @on(GoMsg)
    async def go(self, msg: GoMsg) -> None:
        try:
            self.said.append(await self.to.ask(HoldMsg()))
        except Exception as error:
            self.said.append(f"{type(error).__name__}: {error}")
        for future in self.parked:
            future.set_result("unparked")

    @on(PassMsg)
    def ask_in_a_task(self, msg: PassMsg) -> Any:
        return asyncio.create_task(self.to.ask(PassMsg()))

    @on(HoldMsg)
    def hold(self, msg: HoldMsg) -> str:
        return "held"


class Caller(Actor[GoMsg | HoldMsg]):
    """Waits for a parked answer in its handler."""

    def __init__(self, to: Ref[Any], said: list[str]) -> None:
        self.to = to
        self.said = said

    @on(GoMsg)
    async def go(self, msg: GoMsg) -> None:
        self.said.append(await self.to.ask(ParkMsg()))

    @on(HoldMsg)
    def hold(self, msg: HoldMsg) -> str:
        return "held"


@pytest.mark.parametrize("far", [False, True])
def test_asking_who_waits_for_a_parked_answer_of_mine_is_a_cycle(run: Run, far: bool) -> None:
    async def main() -> None:
        said: list[str] = []
        async with pair() as (root, leaf):
            other = leaf if far else root
            root.spawn("circle", Circle, Ref(f"{other.name}/caller"))
            caller = other.spawn("caller", Caller, Ref("root/circle"), said)
            await caller.tell(GoMsg())
            await turns_until(lambda: desk_of(root, "circle") is not None and bool(desk_of(root, "circle").parked))
            await root.ref("root/circle").tell(GoMsg())
            await turns_until(lambda: bool(said))
            assert said == ["unparked"]
            name = f"{other.name}/caller"
            assert desk_of(root, "circle").said == [
                f"AskCycle: {name} → root/circle → {name}: this ask would wait for itself"
            ]

    run(main())


def test_a_cycle_through_parked_tasks_is_found_across_nodes(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            root.spawn("one", Circle, Ref("leaf/two"))
            leaf.spawn("two", Circle, Ref("root/one"))
            with pytest.raises(AskFailed, match="root/one → leaf/two → root/one: this ask would wait for itself"):
                await root.ref("root/one").ask(PassMsg())

    run(main())


def test_a_probe_that_follows_what_is_answered_already_finds_nothing(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, _):
            root.spawn("far", Desk)
            desk = root.spawn("desk", Desk, Ref("root/far"))
            asking = asyncio.create_task(desk.ask(PassMsg()))
            await turns_until(lambda: desk_of(root, "far") is not None and desk_of(root, "far").held.is_set())
            held = len(root.asks._waiting) and max(root.asks._waiting)
            stale = DeadlockProbeMsg(askers=("root/desk", "root/gone"), asks=(held, 99), recipient="root/desk")
            root.asks.probes.follow(stale)
            await settle_turns()
            assert not asking.done()
            await give_up(asking)

    run(main())


async def settle_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_task_parked_as_an_answer_is_no_cycle_with_what_its_actor_asks_meanwhile(run: Run) -> None:
    class Slow(Actor[PassMsg | GoMsg]):
        def __init__(self, to: Ref[Any], said: list[str]) -> None:
            self.to = to
            self.said = said
            self.gate = asyncio.Event()

        async def later(self) -> str:
            await self.gate.wait()
            return "later"

        @on(PassMsg)
        def park(self, msg: PassMsg) -> Any:
            return asyncio.create_task(self.later())

        @on(GoMsg)
        async def go(self, msg: GoMsg) -> None:
            asking = asyncio.create_task(self.to.ask(HoldMsg()))
            self.gate.set()
            self.said.append(await asking)
            self.said.append(await self.to.ask(HoldMsg()))

    class Patient(Actor[GoMsg | HoldMsg]):
        def __init__(self, to: Ref[Any], said: list[str]) -> None:
            self.to = to
            self.said = said

        @on(GoMsg)
        async def go(self, msg: GoMsg) -> None:
            self.said.append(await self.to.ask(PassMsg()))

        @on(HoldMsg)
        def hold(self, msg: HoldMsg) -> str:
            return "held"

    async def main() -> None:
        said: list[str] = []
        async with pair() as (root, _):
            slow = root.spawn("slow", Slow, Ref("root/patient"), said)
            patient = root.spawn("patient", Patient, Ref("root/slow"), said)
            await patient.tell(GoMsg())
            await turns_until(lambda: root.cell("root/slow").statistics().handled == 1)
            await slow.tell(GoMsg())
            await settle(root)
            assert said == ["later", "held", "held"]

    run(main())
