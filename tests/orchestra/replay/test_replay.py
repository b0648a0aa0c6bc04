"""A replayed actor repeats every kind of action."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from orchestra import Actor, Axes, Message, Node, Ref, Request, Restart, Supervision, TerminatedMsg, on
from orchestra.errors import AskFailed, CannotReplay, MailboxFull, OrchestraError, ReplayDiverged
from orchestra.replay.replay import Replay
from orchestra.testing import ManualClock, settle
from orchestra.trace.recording.settings import TraceSettings

Recorded = Callable[..., Path]


class NumbersMsg(Message):
    values: Annotated[NDArray[np.float64], Axes("float64", "n")]


class DoMsg(Message):
    what: str


class TickMsg(Message):
    count: int


class DoubleMsg(Request[int]):
    number: int


class ReadyMsg(Request[bool]):
    """Answered when everything before it is done."""


class SlowMsg(Request[dict[str, int]]):
    number: int


class Helper(Actor[DoubleMsg | SlowMsg | NumbersMsg]):
    """Answers: at once, or when it is told something else."""

    mailbox_capacity: ClassVar[int] = 1
    supervision: ClassVar[Supervision] = Restart(backoff=0.0, limit=10)

    def __init__(self) -> None:
        self.parked: list[tuple[int, asyncio.Future[dict[str, int]]]] = []
        self.sum = 0.0

    @on(DoubleMsg)
    def double(self, msg: DoubleMsg) -> int:
        if msg.number < 0:
            raise ValueError(f"{msg.number} cannot be doubled")
        return 2 * msg.number

    @on(SlowMsg)
    def slow(self, msg: SlowMsg) -> asyncio.Future[dict[str, int]]:
        future: asyncio.Future[dict[str, int]] = asyncio.get_running_loop().create_future()
        self.parked.append((msg.number, future))
        return future

    @on(NumbersMsg)
    def numbers(self, msg: NumbersMsg) -> None:
        self.sum += float(msg.values.sum())
        while self.parked:
            number, future = self.parked.pop()
            future.set_result({"n": number})


class Child(Actor[TickMsg]):
    def __init__(self, factor: int, *, to: Ref[NumbersMsg], plan: Any = None) -> None:
        self.factor = factor
        self.to = to
        self.plan = plan
        self.total = 0.0

    @on(TickMsg)
    async def tick(self, msg: TickMsg) -> None:
        self.total += self.factor * msg.count + self.rng.random()
        await self.to.tell(NumbersMsg(values=np.full(16, self.total)))


class Plan:
    """Something that cannot be written down."""

    def __init__(self, steps: int) -> None:
        self.steps = steps


class Doer(Actor[DoMsg | TickMsg | ReadyMsg]):
    """Does what it is told to, and remembers what came of it."""

    supervision: ClassVar[Supervision] = Restart(backoff=0.0, limit=10)

    def __init__(self, helper: Ref[Any], start: float = 0.5) -> None:
        self.helper = helper
        self.born = self.clock.now()
        self.seen: list[Any] = [start, self.rng.random()]

    async def started(self) -> None:
        await self.helper.tell(NumbersMsg(values=self.rng.random(20)))

    async def stopped(self) -> None:
        await self.helper.tell(NumbersMsg(values=np.arange(3.0)))

    @on(DoMsg)
    async def do(self, msg: DoMsg) -> None:
        self.seen.append(await getattr(self, f"_{msg.what}")())

    @on(TickMsg)
    def tick(self, msg: TickMsg) -> None:
        self.seen.append(("tick", msg.count, self.clock.monotonic()))

    @on(ReadyMsg)
    def ready(self, msg: ReadyMsg) -> bool:
        return True

    @on(TerminatedMsg)
    def gone(self, msg: TerminatedMsg) -> None:
        self.seen.append((msg.address, msg.reason))

    async def _tell(self) -> int:
        for length in (1, 7, 100):
            await self.helper.tell(NumbersMsg(values=self.rng.normal(size=length)))
        return 3

    async def _flood(self) -> str:
        try:
            for _ in range(9):
                self.helper.tell_nowait(NumbersMsg(values=np.zeros(1)))
        except MailboxFull as error:
            return str(error)
        return "no end"

    async def _ask(self) -> int:
        return await self.helper.ask(DoubleMsg(number=21))

    async def _ask_in_vain(self) -> str:
        try:
            return str(await self.helper.ask(DoubleMsg(number=-1)))
        except AskFailed as error:
            return str(error)

    async def _ask_many(self) -> list[int]:
        found = await asyncio.gather(*(self.helper.ask(DoubleMsg(number=n)) for n in range(3)))
        asked = [asyncio.create_task(self.helper.ask(DoubleMsg(number=n))) for n in (7, 8)]
        return [*found, *[await first for first in asyncio.as_completed(asked)]]

    async def _ask_late(self) -> Any:
        asked = asyncio.create_task(self.helper.ask(SlowMsg(number=5)))
        await asyncio.sleep(0)
        await self.helper.tell(NumbersMsg(values=np.ones(1)))
        return await asked

    async def _time_out(self) -> str:
        try:
            async with asyncio.timeout(0.02):
                return str(await self.helper.ask(SlowMsg(number=6)))
        except TimeoutError:
            return "timed out"

    async def _timers(self) -> int:
        self.after(1.0, TickMsg(count=1))
        self.after(2.0, TickMsg(count=2)).cancel()
        self.after(3.0, TickMsg(count=3))
        return 3

    async def _spawn(self) -> str:
        child = self.spawn("plain", Child, 3, to=self.helper)
        other = self.spawn("planned", Child, 5, to=self.helper, plan=Plan(len(self.seen)))
        self.watch(child)
        await child.tell(TickMsg(count=1))
        await other.tell(TickMsg(count=1))
        return child.address

    async def _offload(self) -> float:
        numbers = self.rng.random(50)
        return await self.offload(lambda: float(np.sort(numbers).sum()))

    async def _offload_in_vain(self) -> str:
        try:
            return str(await self.offload(int, "x"))
        except ValueError as error:
            return str(error)

    async def _misdirect(self) -> str:
        try:
            await Ref[Any]("here/nobody").tell(TickMsg(count=0))
        except OrchestraError as error:
            return f"{type(error).__name__}: {error}"
        return "it went somewhere"

    async def _fail(self) -> None:
        self.seen.append(self.rng.random())
        raise ZeroDivisionError("on purpose")

    async def _stop(self) -> None:
        self.stop()


def deeds(*what: str, advance: float = 0.0) -> Callable[[Node], Any]:
    async def scene(node: Node) -> None:
        helper = node.spawn("helper", Helper)
        doer = node.spawn("doer", Doer, helper, start=2.5)
        for each in what:
            await doer.tell(DoMsg(what=each))
            await settle(node)
            if isinstance(node.clock, ManualClock):
                node.clock.advance(0.0)  # what has failed starts anew
            if each != "stop":
                assert await doer.ask(ReadyMsg())
            await settle(node)
        if advance:
            assert isinstance(node.clock, ManualClock)
            node.clock.advance(advance)
            await settle(node)

    return scene


def doer(folder: Path, **options: Any) -> Replay[Doer]:
    return Replay(folder, Doer, factory=lambda: Doer(Ref("here/helper"), start=2.5), **options)


EVERYTHING = [
    *("tell", "flood", "ask", "ask_in_vain", "ask_many", "ask_late", "timers", "spawn"),
    *("offload", "offload_in_vain", "misdirect"),
]


@pytest.mark.parametrize("what", EVERYTHING)
def test_every_kind_of_action_is_replayed(recorded: Recorded, what: str) -> None:
    folder = recorded(deeds(what, "tell", advance=5.0))
    with doer(folder) as replay:
        assert replay.run() > 5  # its birth, two deeds and a question after each, the stop
        assert len(replay.actor.seen) >= 4
        assert replay.activation is None


def test_a_replay_ends_in_the_recorded_state(recorded: Recorded) -> None:
    states: list[Any] = []

    async def scene(node: Node) -> None:
        await deeds(*EVERYTHING, advance=5.0)(node)
        states.append(node.cell("here/doer").actor)

    folder = recorded(scene)
    with doer(folder) as replay:
        replay.run()
        (was,) = states
        assert replay.actor is not was
        assert replay.actor.seen == was.seen
        assert replay.actor.born == was.born
        assert replay.actor.rng.bit_generator.state == was.rng.bit_generator.state
    with Replay(folder, Helper) as helper:
        helper.run()
        assert helper.actor.sum == pytest.approx(0.0, abs=1e9)
        assert helper.actor.parked == []


def test_threads_and_timeouts_of_a_real_clock_are_replayed(recorded: Recorded) -> None:
    from orchestra.clock import RealClock

    folder = recorded(
        deeds("offload", "time_out", "ask_late", "offload_in_vain"), clock=RealClock(), deterministic=False
    )
    with doer(folder) as replay:
        replay.run()
        assert "timed out" in replay.actor.seen


def test_a_later_answer_is_compared_and_a_withdrawn_one_dropped(recorded: Recorded) -> None:
    from orchestra.clock import RealClock

    folder = recorded(deeds("time_out", "ask_late"), clock=RealClock())
    with Replay(folder, Helper) as helper:
        helper.run()
        assert helper.actor.parked == []


def test_a_restart_has_its_own_random_numbers(recorded: Recorded) -> None:
    folder = recorded(deeds("tell", "fail", "tell", "offload"))
    with doer(folder) as first, doer(folder, incarnation=1) as second:
        first.run()
        assert isinstance(first.failure, ZeroDivisionError)
        second.run()
        assert second.failure is None
        assert first.actor.seen[1] != second.actor.seen[1]


def test_a_failure_is_replayed_at_the_same_line(recorded: Recorded) -> None:
    folder = recorded(deeds("tell", "fail"))
    with doer(folder) as replay:
        replay.run()
        failure = replay.failure
    assert isinstance(failure, ZeroDivisionError)
    assert failure.__traceback__ is not None


def test_children_are_rebuilt_from_their_arguments_or_by_their_parent(recorded: Recorded) -> None:
    folder = recorded(deeds("tell", "spawn"))
    with Replay(folder, "here/doer:plain") as plain:
        plain.run()
        assert plain.actor.factor == 3
    # This one was given a Plan, so its parent is replayed until it spawns it; and the parent must be made by hand.
    with Replay(folder, "here/doer:planned", factory=lambda: Child(5, to=Ref("here/helper"), plan=Plan(3))) as planned:
        planned.run()
        assert planned.actor.total > 5


def test_a_stop_from_within_is_replayed(recorded: Recorded) -> None:
    folder = recorded(deeds("ask", "stop"))
    with doer(folder) as replay:
        replay.run()
        assert replay.actor.seen[2] == 42


# Finding one's way


def test_seeking_by_number_type_and_predicate(recorded: Recorded) -> None:
    folder = recorded(deeds("tell", "timers", "ask", advance=5.0))
    with doer(folder) as replay:
        assert replay.delivery is None
        delivery = replay.seek(3)
        assert (delivery.n, delivery.type.name) == (3, "DoMsg")
        assert replay.message == DoMsg(what="timers")
        assert len(replay.actor.seen) == 3
        tick = replay.seek(TickMsg)
        assert tick.timer
        assert replay.message == TickMsg(count=1)
        replay.step()
        assert replay.actor.seen[-1][:2] == ("tick", 1)
        assert replay.seek(lambda each: each.fields is not None and each.fields.get("count") == 3).n == tick.n + 1
        back = replay.seek(1)
        assert back.n == 1
        assert len(replay.actor.seen) == 2  # it has been born anew
        assert replay.seek("TickMsg").n == tick.n
        with pytest.raises(CannotReplay, match=r"here/doer got no delivery 99; its record has \d+ deliveries"):
            replay.seek(99)


def test_iterating_yields_each_delivery_before_it_is_handled(recorded: Recorded) -> None:
    folder = recorded(deeds("tell", "ask"))
    with doer(folder) as replay:
        seen = [(delivery.n, len(replay.actor.seen)) for delivery in replay if delivery.type.name == "DoMsg"]
    assert seen == [(1, 2), (3, 3)]


def test_a_step_taken_by_the_body_of_the_loop_is_not_taken_twice(recorded: Recorded) -> None:
    folder = recorded(deeds("tell", "ask", "tell"))
    with doer(folder) as replay:
        numbers = []
        for delivery in replay:
            numbers.append(delivery.n)
            if delivery.n == 1:
                replay.step()
    assert numbers == sorted(set(numbers))


def test_a_replay_runs_inside_a_running_loop(recorded: Recorded, run: Callable[..., Any]) -> None:
    folder = recorded(deeds("ask", "ask_many"))

    async def notebook() -> list[Any]:
        with doer(folder) as replay:
            replay.run()
            return replay.actor.seen

    assert run(notebook())[2] == 42


class SaveStateMsg(Request[str]):
    name: str


class Saver(Actor[SaveStateMsg]):
    @on(SaveStateMsg)
    def save(self, msg: SaveStateMsg) -> str:
        assert self.run_directory is not None
        path = self.run_directory / "checkpoints" / msg.name
        path.write_text("saved")
        return str(path)


def test_a_replay_touches_nothing_of_the_run(recorded: Recorded, tmp_path: Path) -> None:
    run_directory = tmp_path / "the-run"
    (run_directory / "checkpoints").mkdir(parents=True)

    async def scene(node: Node) -> None:
        assert await node.spawn("saver", Saver).ask(SaveStateMsg(name="x.pt")) == str(
            run_directory / "checkpoints" / "x.pt"
        )

    folder = recorded(scene, run_directory=run_directory)
    (run_directory / "checkpoints" / "x.pt").unlink()
    with Replay(folder, Saver, factory=Saver) as replay:
        replay.run()  # what it answers names the folder of the run, not the scratch folder
        assert list((run_directory / "checkpoints").iterdir()) == []
        scratch = replay.actor.run_directory
        assert (scratch / "checkpoints" / "x.pt").read_text() == "saved"
    assert not scratch.exists()


def test_the_first_difference_ends_a_replay(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = recorded(deeds("ask", "tell"))

    async def otherwise(self: Doer) -> int:
        return await self.helper.ask(DoubleMsg(number=22))

    monkeypatch.setattr(Doer, "_ask", otherwise)
    with doer(folder) as replay, pytest.raises(ReplayDiverged, match="delivery 1, DoMsg from here/outside"):
        replay.run()


class PlanMsg(Message):
    steps: int
    weights: Annotated[NDArray[np.float64], Axes("float64", "n")]


class FarChild(Actor[TickMsg]):
    """Was given what would come back from a record as something else, did its constructor not say what it is."""

    def __init__(self, plan: PlanMsg, factors: tuple[int, ...], *, to: Ref[NumbersMsg]) -> None:
        self.plan, self.factors, self.to = plan, factors, to

    @on(TickMsg)
    async def tick(self, msg: TickMsg) -> None:
        total = msg.count * self.plan.weights * sum(self.factors) * self.rng.random()
        await self.to.tell(NumbersMsg(values=total))


class Settler(Actor[DoMsg]):
    """Starts a child on another node."""

    def __init__(self, helper: Ref[NumbersMsg]) -> None:
        self.helper = helper

    @on(DoMsg)
    async def do(self, msg: DoMsg) -> None:
        plan = PlanMsg(steps=3, weights=np.arange(400.0))
        child = await self.spawn_on("there", "child", FarChild, plan, (1, 2), to=self.helper)
        await child.tell(TickMsg(count=2))


def test_a_child_on_another_node_needs_no_factory(tmp_path: Path, run: Callable[..., Any]) -> None:
    clock, address = ManualClock(), f"memory://{tmp_path.name}"

    async def main() -> None:
        options: dict[str, Any] = {"secret": b"s" * 32, "clock": clock, "deterministic": True, "seed": 11}
        recorders = {
            name: TraceSettings("full").recorder(name, tmp_path, clock=clock, seed=11) for name in ("here", "there")
        }
        here = Node("here", listen=f"{address}-here", recorder=recorders["here"], **options)
        there = Node("there", listen=f"{address}-there", join=f"{address}-here", recorder=recorders["there"], **options)
        async with here.running(), there.running():
            settler = here.spawn("settler", Settler, here.spawn("helper", Helper))
            await settler.tell(DoMsg(what="settle"))
            await settle(here, there)

    run(main())
    with Replay(tmp_path, "there/here.settler:child") as replay:
        replay.seek(TickMsg)
        replay.run()
        assert replay.failure is None
        assert replay.actor.plan == PlanMsg(steps=3, weights=replay.actor.plan.weights)
        assert replay.actor.factors == (1, 2)
