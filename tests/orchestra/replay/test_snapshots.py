"""Snapshots in flight records: a replay begins with one if the record no longer holds the actor's birth."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from orchestra import Actor, Axes, Message, Node, Ref, Request, Restart, State, Stop, Supervision, on
from orchestra.errors import CannotReplay
from orchestra.replay.replay import Replay
from orchestra.testing import ManualClock, settle
from orchestra.trace.reading.run_trace import RunTrace

Recorded = Callable[..., Path]
RING = 1 << 16


class AddMsg(Message):
    values: Annotated[NDArray[np.float64], Axes("float64", "n")]


class NoteMsg(Message):
    text: str


class LaterMsg(Request[int]):
    """Answered by the next `NoteMsg`."""


class Summer(Actor[AddMsg | NoteMsg | LaterMsg]):
    """Sums what it is told and random numbers, and fails when it is told nothing."""

    supervision: ClassVar[Supervision] = Restart(backoff=0.0, limit=10)

    def __init__(self, to: Ref[AddMsg]) -> None:
        self.to = to
        self.total = np.zeros(8)
        self.note = NoteMsg(text="")
        self.asked = 0
        self.parked: list[asyncio.Future[int]] = []

    async def started(self) -> None:
        self.total += self.rng.random(8)

    def snapshot(self) -> State | None:
        self.asked += 1
        return {"total": self.total, "note": self.note, "to": self.to, "asked": self.asked}

    def restore(self, state: State) -> None:
        self.total = state["total"].copy()
        self.note = NoteMsg.model_validate(state["note"])
        self.to = state["to"]
        self.asked = state["asked"]

    @on(AddMsg)
    async def add(self, msg: AddMsg) -> None:
        if not len(msg.values):
            raise ArithmeticError(f"{self.total.sum()!r} {self.note.text}")
        self.total += msg.values[:8] * self.rng.random()
        await self.to.tell(AddMsg(values=self.total))

    @on(NoteMsg)
    def remember(self, msg: NoteMsg) -> None:
        self.note = msg
        while self.parked:
            self.parked.pop().set_result(self.asked)

    @on(LaterMsg)
    def later(self, msg: LaterMsg) -> asyncio.Future[int]:
        self.parked.append(asyncio.get_running_loop().create_future())
        return self.parked[-1]


class Sink(Actor[AddMsg]):
    @on(AddMsg)
    def add(self, msg: AddMsg) -> None: ...


class Silent(Summer):
    """Cannot say its state."""

    def snapshot(self) -> State | None:
        self.asked += 1
        return None


class Huge(Summer):
    def snapshot(self) -> State | None:
        self.asked += 1
        return {"zeros": np.zeros(RING)}


class Confused(Summer):
    def snapshot(self) -> State | None:
        self.asked += 1
        raise LookupError("where was I?")


class Opaque(Summer):
    def snapshot(self) -> State | None:
        self.asked += 1
        return {"itself": self}


class Slow(Summer):
    """Needs a second for each snapshot, by the clock of its node."""

    def __init__(self, to: Ref[AddMsg], clock: ManualClock) -> None:
        super().__init__(to)
        self.time = clock

    def snapshot(self) -> State | None:
        self.time.advance(1.0)
        return super().snapshot()


class Brief(Summer):
    supervision: ClassVar[Supervision] = Stop()


async def tell(node: Node, summer: Ref[Any], count: int, values: int = 100) -> None:
    for number in range(count):
        await summer.tell(AddMsg(values=np.full(values, float(number))))
    await settle(node)


def flight(recorded: Recorded, scene: Callable[[Node], Any]) -> Path:
    return recorded(scene, mode="flight", flight_bytes=RING)


def summer(folder: Path, kind: type[Summer] = Summer, **options: Any) -> Replay[Summer]:
    return Replay(folder, "here/summer", factory=lambda: kind(Ref("here/sink")), **options)


@pytest.mark.parametrize("before", [10, 200, 1000])
def test_a_failure_is_replayed_from_a_snapshot_after_any_number_of_deliveries(recorded: Recorded, before: int) -> None:
    async def scene(node: Node) -> None:
        actor = node.spawn("summer", Summer, node.spawn("sink", Sink))
        await actor.tell(NoteMsg(text="remember me"))
        await tell(node, actor, before)
        await tell(node, actor, 1, values=0)

    with summer(flight(recorded, scene)) as replay:
        assert (replay.first > 0) == (before > 10)
        assert replay.run() < 200
        failure = replay.failure_record
    assert failure is not None
    assert (failure.type, failure.text.split()[1:]) == ("ArithmeticError", ["remember", "me"])


def test_seeking_before_the_snapshot_is_refused(recorded: Recorded) -> None:
    async def scene(node: Node) -> None:
        await tell(node, node.spawn("summer", Summer, node.spawn("sink", Sink)), 400)
        assert node.recorder is not None
        node.recorder.dump("now")

    with summer(flight(recorded, scene)) as replay:
        first = replay.first
        assert any(f"begins with a snapshot of here/summer before delivery {first}" in note for note in replay.notes)
        assert replay.actor.total.sum() > 0  # it is alive at once
        assert replay.seek(first + 3).n == first + 3
        assert replay.seek(first).n == first  # from the state again
        with pytest.raises(CannotReplay, match=f"begins with a snapshot before delivery {first:,}"):
            replay.seek(first - 1)


def test_a_snapshot_belongs_to_its_incarnation(recorded: Recorded) -> None:
    async def scene(node: Node) -> None:
        actor = node.spawn("summer", Summer, node.spawn("sink", Sink))
        await tell(node, actor, 400)
        await tell(node, actor, 1, values=0)
        node.clock.advance(0.0)  # type: ignore[attr-defined]  # a ManualClock: what has failed starts anew
        await settle(node)
        await tell(node, actor, 10)
        await tell(node, actor, 1, values=0)

    folder = flight(recorded, scene)
    with summer(folder, incarnation=1) as replay:
        assert replay.first == 0  # the second is young: its birth is there
        replay.run()
        assert isinstance(replay.failure, ArithmeticError)
    older = min(folder.glob("*.trace"))
    with summer(older) as replay:
        assert replay.first > 0
        replay.run()
        assert isinstance(replay.failure, ArithmeticError)


def test_no_snapshot_is_taken_while_an_answer_is_outstanding(recorded: Recorded, turns: Callable[[int], Any]) -> None:
    answers: list[int] = []

    async def scene(node: Node) -> None:
        actor = node.spawn("summer", Summer, node.spawn("sink", Sink))
        asking = asyncio.create_task(actor.ask(LaterMsg()))
        await turns(3)  # it never settles: an ask is under way
        for number in range(400):
            await actor.tell(AddMsg(values=np.full(100, float(number))))
        await actor.tell(NoteMsg(text="now"))
        answers.append(await asking)
        await tell(node, actor, 400)
        answers.append(node.cell("here/summer").actor.asked)

    flight(recorded, scene)
    assert answers[0] == 0
    assert answers[1] > 0


def test_snapshots_take_at_most_a_hundredth_of_the_time(recorded: Recorded) -> None:
    asked: list[int] = []
    clock = ManualClock()

    async def scene(node: Node) -> None:
        actor = node.spawn("summer", Slow, node.spawn("sink", Sink), clock)
        for wait in (0.0, 98.0, 2.0):  # one slow snapshot may have been interrupted: two count
            clock.advance(wait)
            await tell(node, actor, 400)
            asked.append(node.cell("here/summer").actor.asked)

    recorded(scene, mode="flight", flight_bytes=RING, clock=clock)
    assert asked == [2, 2, 3]


@pytest.mark.parametrize(
    ("kind", "said", "times"),
    [
        (Silent, "", range(4, 1000)),
        (Huge, "its snapshot takes 524,", range(1, 2)),
        (Confused, "LookupError", range(1, 2)),
        (Opaque, "TypeError", range(1, 2)),
    ],
)
def test_an_actor_whose_snapshot_fails_continues_and_its_replay_is_refused(
    recorded: Recorded, capsys: pytest.CaptureFixture[str], kind: type[Summer], said: str, times: range
) -> None:
    async def scene(node: Node) -> None:
        actor = node.spawn("summer", kind, node.spawn("sink", Sink))
        await tell(node, actor, 400)
        asked = node.cell("here/summer").actor.asked
        assert asked in times
        await tell(node, actor, 1, values=0)

    folder = flight(recorded, scene)
    told = "".join(capsys.readouterr())
    assert said in told
    assert ("no snapshots of this actor" in told) == bool(said)
    with pytest.raises(CannotReplay, match="cannot be replayed from its birth: the record begins at "):
        summer(folder, kind)


def test_a_class_without_snapshots_is_named(recorded: Recorded) -> None:
    async def scene(node: Node) -> None:
        await tell(node, node.spawn("summer", Summer, node.spawn("sink", Sink)), 400)
        assert node.recorder is not None
        node.recorder.dump("now")

    with pytest.raises(CannotReplay, match=r"or implement Sink.snapshot \(see Actor.snapshot\)"):
        Replay(flight(recorded, scene), "here/sink")


def test_a_snapshot_is_read_as_it_was_recorded(recorded: Recorded) -> None:
    async def scene(node: Node) -> None:
        await tell(node, node.spawn("summer", Summer, node.spawn("sink", Sink)), 400)
        assert node.recorder is not None
        node.recorder.dump("now")

    with RunTrace(flight(recorded, scene)) as trace:
        snapshot = trace.snapshot(trace.incarnation("here/summer"))
    assert snapshot is not None
    assert snapshot.state["note"] == {"text": ""}
    assert snapshot.state["to"] == Ref("here/sink")
    assert snapshot.state["total"].shape == (8,)
    assert "PCG64DXSM" in snapshot.random


def test_full_traces_hold_no_snapshots(recorded: Recorded) -> None:
    async def scene(node: Node) -> None:
        await tell(node, node.spawn("summer", Summer, node.spawn("sink", Sink)), 400)
        assert node.cell("here/summer").actor.asked == 0

    with RunTrace(recorded(scene)) as trace:
        assert trace.snapshot(trace.incarnation("here/summer")) is None


def test_a_stop_is_no_failure(recorded: Recorded) -> None:
    async def scene(node: Node) -> None:
        actor = node.spawn("summer", Brief, node.spawn("sink", Sink))
        await tell(node, actor, 400)
        node.cell("here/summer").request_stop()
        await settle(node)

    with summer(recorded(scene, mode="flight", flight_bytes=RING, at_end=True), Brief) as replay:
        replay.run()
        assert replay.failure is None
