"""What an actor does in `started` and `stopped`, between messages, or very often in one; and replays that tolerate."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from orchestra import Actor, Message, Node, Ref, Request, Restart, Stop, Supervision, on
from orchestra.actors.message import REGISTRY
from orchestra.errors import CannotReplay, ReplayDiverged
from orchestra.replay.replay import Replay
from orchestra.testing import settle
from orchestra.trace.format.records import Kind
from orchestra.trace.reading.run_trace import RunTrace

Recorded = Callable[..., Path]
MANY = 2_600
"""Effects of one activation: more than two LATE records hold."""


class CountMsg(Message):
    number: int


class ReleaseMsg(Message):
    """Let the task go on."""


class ManyMsg(Request[int]):
    """Answered by a task, after the handler has returned."""

    number: int


class Sink(Actor[CountMsg]):
    def __init__(self) -> None:
        self.numbers: list[int] = []

    @on(CountMsg)
    def count(self, msg: CountMsg) -> None:
        self.numbers.append(msg.number)


class Teller(Actor[CountMsg | ManyMsg | ReleaseMsg]):
    """Tells its sink numbers: at its birth, as many as it is told to, from a task, and at its end."""

    supervision: ClassVar[Supervision] = Restart(backoff=0.0, limit=1)
    fail_in: ClassVar[str] = ""
    extra: ClassVar[int] = 0

    def __init__(self, sink: Ref[CountMsg]) -> None:
        self.sink = sink
        self.told = 0
        self.released: asyncio.Future[None] | None = None

    async def started(self) -> None:
        await self.tell(-1)
        if self.fail_in == "started":
            raise ArithmeticError("cannot start")

    async def stopped(self) -> None:
        await self.tell(-2)
        if self.fail_in == "stopped":
            raise ArithmeticError("cannot stop")

    @on(CountMsg)
    async def count(self, msg: CountMsg) -> None:
        for number in range(msg.number):
            await self.tell(number)

    @on(ManyMsg)
    def many(self, msg: ManyMsg) -> asyncio.Task[int]:
        self.released = asyncio.get_running_loop().create_future()
        return asyncio.create_task(self.tell_later(msg.number))

    @on(ReleaseMsg)
    def release(self, msg: ReleaseMsg) -> None:
        assert self.released is not None
        self.released.set_result(None)

    async def tell_later(self, count: int) -> int:
        assert self.released is not None
        await self.released
        for number in range(count):
            await self.tell(number)
        return self.told

    async def tell(self, number: int) -> None:
        self.told += 1
        for _ in range(1 + self.extra):
            await self.sink.tell(CountMsg(number=number))


class Short(Teller):
    supervision: ClassVar[Supervision] = Stop()


async def scene(node: Node, kind: type[Teller] = Teller) -> None:
    teller = node.spawn("teller", kind, node.spawn("sink", Sink))
    await teller.tell(CountMsg(number=3))
    await settle(node)


def teller(folder: Path, kind: type[Teller] = Teller, **options: Any) -> Replay[Any]:
    return Replay(folder, "here/teller", factory=lambda: kind(Ref("here/sink")), **options)


def difference(folder: Path) -> str:
    with teller(folder) as replay, pytest.raises(ReplayDiverged) as caught:
        replay.run()
    return str(caught.value)


# In `started` and `stopped`


def test_a_difference_outside_of_messages_is_placed(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = recorded(scene)

    async def other(self: Teller) -> None:
        await self.tell(-9)

    with monkeypatch.context() as changed:
        changed.setattr(Teller, "started", other)
        said = difference(folder).splitlines()
        assert said[0] == ("here/teller differs in delivery 0, its constructor and `started`: told here/sink CountMsg")
        assert said[1:4] == ["  field     number", "  recorded  -1", "  replayed  -9"]
    monkeypatch.setattr(Teller, "stopped", other)
    said = difference(folder).splitlines()
    assert said[0] == "here/teller differs in delivery 3, `stopped`: told here/sink CountMsg"
    assert said[2:4] == ["  recorded  -2", "  replayed  -9"]


@pytest.mark.parametrize(("where", "text"), [("started", "start"), ("stopped", "stop")])
def test_a_failure_outside_of_messages_is_replayed_and_its_absence_reported(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch, where: str, text: str
) -> None:
    with monkeypatch.context() as failing:
        failing.setattr(Teller, "fail_in", where)
        folder = recorded(lambda node: scene(node, Short))
        with teller(folder, Short) as replay:
            replay.run()
            failure = replay.failure_record
        assert failure is not None
        assert f"{failure.type}: {failure.text}" == f"ArithmeticError: cannot {text}"
        assert failure.file == __file__
    said = difference(folder)
    assert "it does not fail" in said
    assert f"recorded  ArithmeticError: cannot {text}" in said
    assert "replayed  no failure" in said


@pytest.mark.parametrize("where", ["started", "stopped"])
def test_a_new_failure_outside_of_messages_is_reported(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    folder = recorded(scene)
    monkeypatch.setattr(Teller, "fail_in", where)
    said = difference(folder)
    assert ": it fails\n  recorded  no failure\n  replayed  ArithmeticError: cannot " in said
    assert where in said.splitlines()[0]


# Many effects, and effects between messages


def test_an_activation_with_very_many_effects_is_replayed_to_its_last(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(node: Node) -> None:
        spawned = node.spawn("teller", Teller, node.spawn("sink", Sink))
        await spawned.tell(CountMsg(number=MANY))
        await settle(node)
        assert node.cell("here/sink").actor.numbers == [-1, *range(MANY)]

    folder = recorded(play)
    with teller(folder) as replay:
        replay.run()
        assert replay.actor.told == MANY + 2
    with RunTrace(folder) as trace:
        born = trace.incarnation("here/teller")
        activation = trace.activation(born, 1)
        kinds = (Kind.DELIVERY, Kind.LATE, Kind.HANDLED)
        records = [type(record).__name__ for record in trace.records_of(born, *kinds, since=1, until=2)]
    assert records == ["Delivery", "Late", "Late", "Handled"]  # a process that is killed meanwhile leaves the message
    assert activation is not None
    assert len(activation.early) > 2_048
    assert len(activation.effects) == MANY
    assert [effect.fields["number"] for effect in activation.effects] == list(range(MANY))  # type: ignore[union-attr]  # all are Sent

    async def fewer(self: Teller, msg: CountMsg) -> None:
        for number in range(msg.number - 1):
            await self.tell(number)

    fewer.__orchestra_on__ = CountMsg  # type: ignore[attr-defined]  # as `@on` does
    monkeypatch.setattr(Teller, "count", fewer)
    said = difference(folder)
    assert "missing action" in said
    assert f"recorded  told here/sink CountMsg(number={MANY - 1})" in said


@pytest.mark.parametrize("count", [3, MANY])
def test_what_a_task_does_between_messages_is_replayed(recorded: Recorded, count: int) -> None:
    answers: list[int] = []

    async def play(node: Node) -> None:
        spawned = node.spawn("teller", Teller, node.spawn("sink", Sink))
        asking = asyncio.create_task(spawned.ask(ManyMsg(number=count)))
        await asyncio.sleep(0)
        await spawned.tell(ReleaseMsg())
        answers.append(await asking)
        await settle(node)

    folder = recorded(play)
    assert answers == [count + 1]
    with RunTrace(folder) as trace:
        released = trace.activation(trace.incarnation("here/teller"), 2)
    assert released is not None
    assert released.delivery is not None
    assert released.delivery.type.name == "ReleaseMsg"
    assert len(released.late) >= count
    with teller(folder) as replay:
        replay.run()
        assert replay.actor.told == count + 2


# Replays that tolerate differences


def test_an_actor_that_tells_more_than_recorded_is_replayed_to_its_end_if_differences_are_tolerated(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = recorded(scene)
    monkeypatch.setattr(Teller, "extra", 2)
    numbers: list[int] = []
    with teller(folder, strict=False) as replay:
        replay.run(each=lambda replayed: numbers.extend(output.fields["number"] for output in replayed.outputs))
        assert replay.activation is None
        assert replay.failure is None
        assert replay.divergence is None
        assert replay.actor.told == 5
    assert numbers == [number for number in (-1, 0, 1, 2, -2) for _ in range(3)]
    assert "different action" in difference(folder)


def test_an_actor_that_tells_less_than_recorded_is_replayed_to_its_end_if_differences_are_tolerated(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = recorded(scene)
    monkeypatch.setattr(Teller, "extra", -1)
    with teller(folder, strict=False) as replay:
        outputs = 0
        for _ in replay:
            replayed = replay.step()
            assert replayed is not None
            outputs += len(replayed.outputs)
        assert (outputs, replay.actor.told, replay.activation) == (0, 5, None)


def test_a_failure_ends_a_replay_that_tolerates_differences(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = recorded(scene)
    monkeypatch.setattr(Teller, "fail_in", "started")
    with teller(folder, strict=False) as replay:
        assert replay.run() == 1
        assert str(replay.failure) == "cannot start"
        assert replay.activation is None


# Message classes


def test_the_package_of_a_message_class_is_imported_when_the_class_is_unknown(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "late_messages"
    package.mkdir()
    (package / "__init__.py").write_text("from orchestra import Message\n\nclass LateMsg(Message):\n    number: int\n")
    monkeypatch.syspath_prepend(tmp_path)
    from late_messages import LateMsg  # type: ignore[import-not-found]  # written above

    class Late(Actor[LateMsg]):
        @on(LateMsg)
        def take(self, msg: Any) -> None: ...

    async def play(node: Node) -> None:
        await node.spawn("late", Late).tell(LateMsg(number=7))
        await settle(node)

    folder = recorded(play)
    tag = LateMsg.wire.tag

    def forget() -> None:
        del REGISTRY[tag], sys.modules["late_messages"]

    with Replay(folder, Late, factory=Late) as replay:
        replay.seek(1)
        forget()  # as in a process that has not imported it
        message = replay.message
        assert message is not None
        assert (type(message).__name__, message.number) == ("LateMsg", 7)  # type: ignore[attr-defined]  # of a class loaded late
        assert type(message) is not LateMsg
        forget()
        (package / "__init__.py").unlink()
        package.rename(tmp_path / "gone")
        with pytest.raises(CannotReplay, match=r"the message class late_messages\S* does not exist; was it renamed\?"):
            _ = replay.message
