"""The records of a node's actors."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from orchestra import Actor, Axes, Message, Node, Ref, Request, Restart, Stop, Supervision, freeze, on
from orchestra.errors import AskFailed, MailboxFull
from orchestra.testing import ManualClock, settle
from orchestra.trace.format.effects import (
    GENERATION_SHIFT,
    AnswerGiven,
    AnswerReceived,
    AnswerRefused,
    Asked,
    AskRaised,
    MonotonicRead,
    NowRead,
    Offloaded,
    SendCompleted,
    SendFailed,
    Sent,
    Spawned,
    StopRequested,
    TimerCancelled,
    TimerSet,
    Watched,
)
from orchestra.trace.format.records import Activation, Delivery, Digest
from orchestra.trace.reading.run_trace import RunTrace
from orchestra.trace.recording.settings import TraceSettings

Traced = Callable[..., AbstractAsyncContextManager[Node]]


class PokeMsg(Message):
    what: str


class NoteMsg(Message):
    text: str
    numbers: Annotated[NDArray[np.float32], Axes("float32", "n")]


class TagsMsg(Message):
    tags: dict[str, int]


class SumMsg(Request[dict[str, int]]):
    tags: dict[str, int]


class Answerer(Actor[SumMsg | NoteMsg]):
    mailbox_capacity: ClassVar[int] = 1
    supervision: ClassVar[Supervision] = Stop()

    def __init__(self, factor: int = 1) -> None:
        self.factor = factor
        self.parked: list[asyncio.Future[dict[str, int]]] = []

    @on(SumMsg)
    def sum(self, msg: SumMsg) -> Any:
        if "fail" in msg.tags:
            raise ValueError("no sum today")
        if "later" in msg.tags:
            self.parked.append(asyncio.get_running_loop().create_future())
            return self.parked[-1]
        return {"sum": self.factor * sum(msg.tags.values())}

    @on(NoteMsg)
    def note(self, msg: NoteMsg) -> None:
        for future in self.parked:
            future.set_result({"sum": -1})


class Doer(Actor[PokeMsg]):
    """Performs every kind of effect."""

    supervision: ClassVar[Supervision] = Restart(backoff=0.0)

    def __init__(self, other: Ref[Any]) -> None:
        self.other = other
        self.timer: Any = None
        self.clock.monotonic()

    async def started(self) -> None:
        await self.me.tell(PokeMsg(what="begin"))

    async def stopped(self) -> None:
        self.clock.now()

    @on(PokeMsg)
    async def poke(self, msg: PokeMsg) -> None:
        match msg.what:
            case "tell":
                await self.other.tell(NoteMsg(text="hi", numbers=freeze(np.arange(600, dtype=np.float32))))
            case "ask":
                assert (await self.other.ask(SumMsg(tags={"a": 1, "b": 2})))["sum"] == 3
            case "ask in vain":
                with pytest.raises(AskFailed):
                    await self.other.ask(SumMsg(tags={"fail": 1}))
            case "ask for later":
                await self.other.ask(SumMsg(tags={"later": 1}))
            case "flood":
                numbers = freeze(np.zeros(1, np.float32))
                self.other.tell_nowait(NoteMsg(text="one", numbers=numbers))
                with pytest.raises(MailboxFull):
                    self.other.tell_nowait(NoteMsg(text="two", numbers=numbers))
                await self.other.tell(NoteMsg(text="three", numbers=numbers))
            case "time":
                self.clock.monotonic()
                self.clock.now()
                self.timer = self.after(5.0, PokeMsg(what="rang"))
                self.after(9.0, PokeMsg(what="never")).cancel()
            case "work":
                await self.offload(sum, [1, 2])
            case "spawn":
                child = self.spawn("child", Answerer, factor=2)
                self.watch(child)
            case "fail":
                raise RuntimeError("on purpose")
            case "stop":
                self.stop()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def traced(tmp_path: Path, clock: ManualClock) -> Traced:
    @asynccontextmanager
    async def running(name: str = "here", **options: Any) -> AsyncIterator[Node]:
        settings = TraceSettings(**{"mode": "full", **options})
        planned = frozenset({f"{name}/doer"})
        recorder = settings.recorder(name, tmp_path, clock=clock, seed=0, deterministic=True, planned=planned)
        async with Node(name, clock=clock, deterministic=True, recorder=recorder).running() as node:
            yield node

    return running


def run(test: Callable[[], Any]) -> Any:
    return asyncio.run(test())


def activations(folder: Path, actor: str, incarnation: int = 0) -> list[Activation]:
    with RunTrace(folder) as trace:
        return list(trace.activations(trace.incarnation(actor, incarnation=incarnation)))


async def do(node: Node, *pokes: str) -> None:
    other = node.spawn("other", Answerer)
    doer = node.spawn("doer", Doer, other)
    for poke in pokes:
        await settle(node)
        await doer.tell(PokeMsg(what=poke))
    await settle(node)


def of(folder: Path, traced: Traced, *pokes: str, **options: Any) -> list[Activation]:
    """The activations of a Doer after its start and its first poke."""

    async def test() -> None:
        async with traced(**options) as node:
            await do(node, *pokes)

    run(test)
    return activations(folder, "here/doer")


def test_an_actor_is_recorded_from_its_birth_to_its_end(tmp_path: Path, traced: Traced) -> None:
    told = of(tmp_path, traced, "tell")
    assert [each.phase for each in told] == ["start", "message", "message", "message", "stop"]
    with RunTrace(tmp_path) as trace:
        life = trace.incarnation("here/doer")
        assert (life.birth.origin, life.birth.incarnation) == ("planned", 0)
        assert life.birth.kind.endswith(":Doer")
        assert len(life.birth.source) == 64
        assert life.end is not None
        assert (life.end.reason, life.end.final) == ("stopped", True)
        assert trace.incarnation("here/other").birth.origin == "outside"
        assert trace.actors() == ["here/doer", "here/other"]  # the runtime's own actors are not recorded
    begin = told[0]
    assert [type(effect) for effect in begin.effects] == [MonotonicRead, Sent]
    assert [type(effect) for effect in told[-1].effects] == [NowRead]


def test_a_delivery_names_its_cause_and_has_its_values(tmp_path: Path, traced: Traced) -> None:
    told = of(tmp_path, traced, "tell")
    (sent,) = told[2].effects
    assert isinstance(sent, Sent)
    assert isinstance(sent.fields["numbers"], Digest)
    note = activations(tmp_path, "here/other")[1].delivery
    assert note is not None
    assert (note.id.sender, note.id.number, note.id.serial) == ("here/doer", sent.number, 2)
    np.testing.assert_array_equal(note.fields["numbers"], np.arange(600, dtype=np.float32))
    handled = told[2].handled
    assert handled is not None
    assert told[2].delivery.clock < note.clock
    assert note.nbytes > 2400


def test_an_ask_is_recorded_on_both_sides(tmp_path: Path, traced: Traced) -> None:
    told = of(tmp_path, traced, "ask", "ask in vain")
    asked, answered = told[2].effects
    assert isinstance(asked, Asked)
    assert asked.fields == {"tags": {"a": 1, "b": 2}}
    assert answered == AnswerReceived(answered.at, asked.number)
    assert told[2].answers[asked.number].value == {"sum": 3}
    _, failed = told[3].effects
    assert isinstance(failed, AskRaised)
    assert (failed.error, failed.text) == ("AskFailed", "here/other: ValueError: no sum today")
    other = activations(tmp_path, "here/other")
    (given,) = other[1].effects
    assert isinstance(given, AnswerGiven)
    assert (given.request.sender, given.request.number, given.value) == ("here/doer", asked.number, {"sum": 3})
    assert other[2].handled.failure.type == "ValueError"
    assert other[2].handled.failure.file == __file__
    (refused,) = other[2].effects
    assert isinstance(refused, AnswerRefused)


def test_an_answer_given_later_belongs_to_the_activation_begun_last(tmp_path: Path, traced: Traced) -> None:
    async def test() -> None:
        async with traced() as node:
            other = node.spawn("other", Answerer)
            doer = node.spawn("doer", Doer, other)
            await settle(node)
            await doer.tell(PokeMsg(what="ask for later"))
            for _ in range(20):  # it never settles: an ask is under way
                await asyncio.sleep(0)
            await node.ref("here/other").tell(NoteMsg(text="now", numbers=np.zeros(1, np.float32)))
            await settle(node)

    run(test)
    other = activations(tmp_path, "here/other")
    assert other[1].effects == ()
    (given,) = other[2].late
    assert isinstance(given, AnswerGiven)
    assert given.value == {"sum": -1}
    asked = activations(tmp_path, "here/doer")[2]
    assert next(iter(asked.answers.values())).value == {"sum": -1}


def test_a_full_mailbox_and_the_wait_for_it_are_recorded(tmp_path: Path, traced: Traced) -> None:
    told = of(tmp_path, traced, "flood")
    one, two, full, three, through = told[2].effects
    assert [type(each) for each in (one, two, full, three, through)] == [Sent, Sent, SendFailed, Sent, SendCompleted]
    assert (full.number, full.error) == (two.number, "MailboxFull")
    assert (one.nowait, three.nowait, through.number) == (True, False, three.number)


def test_clock_readings_are_recorded(tmp_path: Path, traced: Traced, clock: ManualClock) -> None:
    async def test() -> None:
        async with traced() as node:
            clock.advance(2.5)
            await do(node, "time")
            clock.advance(20.0)
            await settle(node)

    run(test)
    told = activations(tmp_path, "here/doer")
    monotonic, now, timer, other, cancelled = told[2].effects
    assert isinstance(monotonic, MonotonicRead)
    assert monotonic.value == ManualClock().monotonic() + 2.5
    assert isinstance(now, NowRead)
    assert (now.value - ManualClock().now()).total_seconds() == 2.5
    assert isinstance(timer, TimerSet)
    assert (timer.delay, timer.fields) == (5.0, {"what": "rang"})
    assert isinstance(other, TimerSet)
    assert cancelled == TimerCancelled(cancelled.at, other.number)
    rang = told[3].delivery
    assert (rang.timer, rang.id.number, rang.fields) == (True, timer.number, {"what": "rang"})
    assert not told[2].delivery.timer


def test_a_message_of_another_actor_with_a_timers_number_is_no_timer(tmp_path: Path, traced: Traced) -> None:
    class Setter(Actor[PokeMsg | NoteMsg]):
        @on(PokeMsg)
        def poke(self, msg: PokeMsg) -> None:
            self.after(5.0, msg)

        @on(NoteMsg)
        def note(self, msg: NoteMsg) -> None: ...

    class Teller(Actor[PokeMsg]):
        def __init__(self, to: Ref[Any]) -> None:
            self.to = to

        @on(PokeMsg)
        async def poke(self, msg: PokeMsg) -> None:
            await self.to.tell(NoteMsg(text="", numbers=np.zeros(1, np.float32)))

    async def test() -> None:
        async with traced() as node:
            setter = node.spawn("setter", Setter)
            await setter.tell(PokeMsg(what=""))
            await node.spawn("teller", Teller, setter).tell(PokeMsg(what=""))
            await settle(node)

    run(test)
    note = activations(tmp_path, "here/setter")[2].delivery
    assert (note.type.name, note.id.serial, note.timer) == ("NoteMsg", 1, False)


def test_offloads_children_and_stop_requests_are_recorded(tmp_path: Path, traced: Traced) -> None:
    told = of(tmp_path, traced, "work", "spawn", "stop")
    assert [(type(each), each.index) for each in told[2].effects] == [(Offloaded, 1)]
    spawned, watched = told[3].effects
    assert isinstance(spawned, Spawned)
    assert spawned.address == "here/doer:child"
    assert watched == Watched(watched.at, "here/doer:child")
    assert told[4].effects == (StopRequested(told[4].effects[0].at, True),)
    with RunTrace(tmp_path) as trace:
        birth = trace.incarnation("here/doer:child").birth
    assert (birth.origin, birth.parent, birth.parent_n) == ("child", "here/doer", 3)
    assert (birth.args, birth.kwargs) == ((), {"factor": 2})


def test_a_failure_is_recorded_and_the_next_incarnation_continues_the_count(
    tmp_path: Path, traced: Traced, clock: ManualClock
) -> None:
    async def test() -> None:
        async with traced() as node:
            await do(node, "fail")
            clock.advance(1.0)
            await settle(node)
            await node.ref("here/doer").tell(PokeMsg(what="tell"))
            await settle(node)

    run(test)
    told = activations(tmp_path, "here/doer")
    failure = told[2].handled.failure
    assert (failure.type, failure.text, failure.file) == ("RuntimeError", "on purpose", __file__)
    assert Path(__file__).read_text().splitlines()[failure.line - 1].strip() == 'raise RuntimeError("on purpose")'
    with RunTrace(tmp_path) as trace:
        first, second = trace.incarnations("here/doer")
        assert (first.end.reason, first.end.final) == ("RuntimeError: on purpose", False)
        assert (second.birth.incarnation, second.birth.sent & 0xFFFFFFFF) == (1, 1)
        assert second.end.final
        numbers = [
            effect.number & 0xFFFFFFFF
            for life in (first, second)
            for each in trace.activations(life)
            for effect in each.effects
            if isinstance(effect, Sent)
        ]
    assert numbers == [1, 2, 3]  # each incarnation pokes itself, and the second tells


def test_a_value_that_changes_after_sending_is_recorded_as_sent(tmp_path: Path, traced: Traced) -> None:
    class Fickle(Actor[PokeMsg]):
        def __init__(self, to: Ref[Any]) -> None:
            self.to = to

        @on(PokeMsg)
        async def poke(self, msg: PokeMsg) -> None:
            tags, numbers = {"a": 1}, np.zeros(3, np.float32)
            await self.to.tell(TagsMsg(tags=tags))
            await self.to.tell(NoteMsg(text="", numbers=numbers))
            tags["a"] = 2
            numbers[:] = 7.0

    class Sponge(Actor[TagsMsg | NoteMsg]):
        @on(TagsMsg)
        def tags(self, msg: TagsMsg) -> None:
            msg.tags.clear()

        @on(NoteMsg)
        def note(self, msg: NoteMsg) -> None: ...

    async def test() -> None:
        async with traced() as node:
            fickle = node.spawn("fickle", Fickle, node.spawn("sponge", Sponge))
            await fickle.tell(PokeMsg(what=""))
            await settle(node)

    run(test)
    tags, note = activations(tmp_path, "here/fickle")[1].effects
    assert tags.fields == {"tags": {"a": 1}}
    np.testing.assert_array_equal(note.fields["numbers"], np.zeros(3, np.float32))
    assert activations(tmp_path, "here/sponge")[1].delivery.fields == {"tags": {"a": 1}}


def test_filters_leave_out_actors_and_the_fields_of_types(tmp_path: Path, traced: Traced) -> None:
    told = of(tmp_path, traced, "tell", exclude=("here/o*", "Note*"))
    with RunTrace(tmp_path) as trace:
        assert trace.actors() == ["here/doer"]
    assert told[2].delivery.fields == {"what": "tell"}
    (sent,) = told[2].effects
    assert (sent.type.name, sent.fields) == ("NoteMsg", None)


def test_only_what_is_included_is_recorded(tmp_path: Path, traced: Traced) -> None:
    of(tmp_path, traced, "tell", include=("*/doer", "Note*"))
    with RunTrace(tmp_path) as trace:
        assert trace.actors() == ["here/doer"]
        told = list(trace.activations(trace.incarnation("here/doer")))
    assert told[2].delivery.fields is None
    assert told[2].effects[0].fields["text"] == "hi"


def test_lamport_clocks_order_causes_across_nodes(tmp_path: Path, clock: ManualClock) -> None:
    async def test() -> None:
        settings = TraceSettings(mode="full")
        secret = b"s" * 32
        recorders = [settings.recorder(name, tmp_path, clock=clock, seed=0) for name in ("left", "right")]
        left = Node(
            "left", listen="memory://left", secret=secret, clock=clock, deterministic=True, recorder=recorders[0]
        )
        right = Node(
            "right",
            listen="memory://right",
            join="memory://left",
            secret=secret,
            clock=clock,
            deterministic=True,
            recorder=recorders[1],
        )
        async with left.running(), right.running():
            far = right.spawn("other", Answerer)
            busy = right.spawn("busy", Doer, far)  # its node's clock runs ahead
            for _ in range(20):
                await busy.tell(PokeMsg(what="time"))
            await settle(left, right)
            doer = left.spawn("doer", Doer, Ref("right/other"))
            await doer.tell(PokeMsg(what="ask"))
            await doer.tell(PokeMsg(what="tell"))
            await settle(left, right)

    run(test)
    deliveries: dict[Any, Delivery] = {}
    with RunTrace(tmp_path) as trace:
        told = {actor: list(trace.activations(trace.incarnation(actor))) for actor in ("left/doer", "right/other")}
    for each in told["right/other"]:
        if each.delivery is not None:
            deliveries[each.delivery.id.number] = each.delivery
    checked = 0
    for each in told["left/doer"]:
        for effect in each.effects:
            if isinstance(effect, Asked | Sent) and effect.number in deliveries:
                assert each.delivery.clock < deliveries[effect.number].clock
                checked += 1
        for answer in each.answers.values():
            assert deliveries[answer.number].clock < answer.clock
            checked += 1
    assert checked == 3


class Founder(Actor[PokeMsg]):
    """Starts a child on another node."""

    @on(PokeMsg)
    async def poke(self, msg: PokeMsg) -> None:
        await self.spawn_on("right", "child", Answerer, factor=3)


def test_a_child_on_another_node_names_its_parent(tmp_path: Path, clock: ManualClock) -> None:
    async def test() -> None:
        secret, address = b"s" * 32, f"memory://{tmp_path.name}"
        recorders = {
            name: TraceSettings(mode="full").recorder(name, tmp_path, clock=clock, seed=0) for name in ("left", "right")
        }
        options: dict[str, Any] = {"secret": secret, "clock": clock, "deterministic": True}
        left = Node("left", listen=f"{address}-left", recorder=recorders["left"], **options)
        right = Node("right", listen=f"{address}-right", join=f"{address}-left", recorder=recorders["right"], **options)
        async with left.running(), right.running():
            await left.spawn("founder", Founder).tell(PokeMsg(what=""))
            await settle(left, right)

    run(test)
    with RunTrace(tmp_path) as trace:
        (child,) = [actor for actor in trace.actors() if actor.startswith("right/")]
        birth = trace.incarnation(child).birth
        assert (birth.origin, birth.parent) == ("child", "left/founder")
        asked, watched = [
            effect
            for each in trace.activations(trace.incarnation("left/founder"))
            for effect in each.effects
            if isinstance(effect, Asked | Watched)
        ]
    assert (asked.recipient, asked.type.name) == ("right/system", "SpawnMsg")
    assert watched.address == child


@pytest.mark.parametrize("ending", ["trace", "sent"])
def test_a_process_that_starts_in_the_second_of_an_earlier_one_has_message_numbers_of_its_own(
    tmp_path: Path, ending: str
) -> None:
    clock = ManualClock()
    second = int(clock.now().timestamp())
    (tmp_path / f"here.{second}.000.{ending}").touch()  # the earlier one's, here or on its way to another host
    recorder = TraceSettings("full").recorder("here", tmp_path, clock=clock, seed=0)
    assert recorder is not None
    assert recorder.base == (second + 1) << GENERATION_SHIFT
