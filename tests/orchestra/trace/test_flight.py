"""The flight recorder: the newest records of a node, written after a failure."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestra import Actor, Message, Node, Stop, on
from orchestra.testing import ManualClock, settle
from orchestra.trace.format.records import Birth, Delivery, Gap, Record
from orchestra.trace.format.writer import TraceWriter
from orchestra.trace.reading.reader import TraceFile
from orchestra.trace.reading.run_trace import RunTrace
from orchestra.trace.recording.flight import MAX_FAILURES, FlightRing
from orchestra.trace.recording.settings import TraceSettings

Run = Callable[..., Any]


class CountMsg(Message):
    number: int


class Counter(Actor[CountMsg]):
    supervision = Stop()

    @on(CountMsg)
    def count(self, msg: CountMsg) -> None:
        if msg.number == 7:
            raise ValueError("seven")


@pytest.fixture
def ring(writer: Callable[..., TraceWriter]) -> Callable[..., tuple[FlightRing, list[TraceWriter]]]:
    def made(**options: Any) -> tuple[FlightRing, list[TraceWriter]]:
        writers: list[TraceWriter] = []

        def open_one(number: int, reason: str) -> TraceWriter:
            writers.append(writer())
            writers[-1]._stem = f"toy.77.flight-{number}"
            return writers[-1]

        return FlightRing(open_one, **options), writers

    return made


def records(path: Path) -> list[Record]:
    with TraceFile(path) as file:
        return [record for _, record in file.records()]


def test_the_newest_records_are_kept_and_the_births_of_all(ring: Any, toy: Any) -> None:
    made, writers = ring(limit=10_000)
    made.put(toy.birth_draft())
    for n in range(1, 200):
        made.put(toy.delivery_draft(n))
    made.dump("because")
    made.close()
    (path,) = writers[0].paths
    told = records(path)
    assert isinstance(told[0], Gap)
    assert isinstance(told[1], Birth)
    numbers = [record.n for record in told if isinstance(record, Delivery)]
    assert numbers == list(range(numbers[0], 200))
    assert 20 < len(numbers) < 60
    assert told[0].count == 199 - len(numbers)
    assert "keeps 0 MiB" in told[0].reason


def test_arrays_are_kept_by_value(ring: Any, toy: Any) -> None:
    made, writers = ring()
    made.put(toy.delivery_draft(1, toy.FrameMsg(step=1, pixels=toy.frame(5))))
    made.dump("because")
    made.close()
    told = records(writers[0].paths[0])[0]
    assert isinstance(told, Delivery)
    np.testing.assert_array_equal(told.fields["pixels"], toy.frame(5))


def test_a_node_without_failures_writes_nothing_unless_at_end_is_set(ring: Any, toy: Any) -> None:
    made, writers = ring()
    made.put(toy.delivery_draft(1))
    made.close()
    assert writers == []
    made, writers = ring(at_end=True)
    made.put(toy.delivery_draft(1))
    made.close()
    assert len(records(writers[0].paths[0])) == 2


def test_repeated_failures_do_not_fill_the_disk(ring: Any, toy: Any) -> None:
    made, writers = ring()
    made.put(toy.delivery_draft(1))
    for _ in range(3 * MAX_FAILURES):
        made.dump("again", failure=True)
    made.close()
    assert len(writers) == MAX_FAILURES


def test_a_failure_writes_a_flight_record(tmp_path: Path, run: Run) -> None:
    async def test() -> None:
        clock = ManualClock()
        recorder = TraceSettings().recorder("here", tmp_path, clock=clock, seed=0)
        async with Node("here", clock=clock, recorder=recorder).running() as node:
            counter = node.spawn("counter", Counter)
            for number in range(10):
                await counter.tell(CountMsg(number=number))
            await settle(node)

    run(test())
    (path,) = tmp_path.glob("*.trace")
    assert path.name == f"here.{int(ManualClock().now().timestamp())}.flight-0.000.trace"
    with RunTrace(tmp_path) as trace:
        assert trace.recordings[0].header.reason == "here/counter failed: ValueError: seven"
        *_, last = trace.activations(trace.incarnation("here/counter"))
    assert (last.delivery.fields, last.handled.failure.text) == ({"number": 7}, "seven")


def test_the_newest_flight_record_of_a_process_is_opened(tmp_path: Path, run: Run) -> None:
    async def test() -> None:
        clock = ManualClock()
        recorder = TraceSettings().recorder("here", tmp_path, clock=clock, seed=0)
        async with Node("here", clock=clock, recorder=recorder).running() as node:
            counter = node.spawn("counter", Counter)
            await settle(node)
            recorder.dump("once")
            clock.advance(1.0)
            await counter.tell(CountMsg(number=1))
            await settle(node)
            recorder.dump("twice")

    run(test())
    assert len(list(tmp_path.glob("*.trace"))) == 2
    with RunTrace(tmp_path) as trace:
        assert len(trace.recordings) == 1
        assert trace.recordings[0].header.reason == "twice"
        assert len(list(trace.activations(trace.incarnation("here/counter")))) == 2
        (older,) = trace.older
        assert older.name.endswith("flight-0.000.trace")
