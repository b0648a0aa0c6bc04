"""The flight recorder: the newest records of a node, written after a failure."""

import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from orchestra import Actor, Axes, Message, MessageArrays, Node, Ref, Request, Stop, freeze, on
from orchestra.testing import ManualClock, settle
from orchestra.trace.format.effects import Sent
from orchestra.trace.format.layout import digest_of
from orchestra.trace.format.records import Birth, Delivery, Digest, Gap, Record
from orchestra.trace.format.writer import TraceWriter
from orchestra.trace.reading.reader import TraceFile
from orchestra.trace.reading.run_trace import RunTrace
from orchestra.trace.recording.capture import digested
from orchestra.trace.recording.flight import MAX_FAILURES, FlightRing
from orchestra.trace.recording.recorder import SNAPSHOTS_PER_RING
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


@pytest.mark.parametrize(
    ("settings", "root", "limit"),
    [
        ({}, True, 16 << 20),
        ({}, False, 4 << 20),
        ({"flight_bytes": 3 << 20}, True, 3 << 20),
        ({"flight_bytes": 5}, False, 5),
    ],
)
def test_the_root_has_a_larger_ring_unless_one_is_chosen_for_all(settings, root, limit, tmp_path: Path) -> None:
    recorder = TraceSettings(**settings).recorder("here", tmp_path, clock=ManualClock(), seed=0, root=root)
    assert recorder is not None
    assert recorder.sink.snapshot_every * SNAPSHOTS_PER_RING == limit
    recorder.sink.close()


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


class PixelsMsg(Message):
    pixels: Annotated[NDArray[np.float32], Axes("float32", "n")]
    few: Annotated[NDArray[np.float32], Axes("float32", "m")]


class PixelsOfMsg(Request[list[float]]):
    number: int


def pixels(number: int) -> NDArray[np.float32]:
    return freeze(np.full(1 << 16, number, np.float32))


class Camera(Actor[CountMsg | PixelsOfMsg]):
    """Makes pixels."""

    def __init__(self, to: Ref[PixelsMsg]) -> None:
        self._to = to

    @on(CountMsg)
    async def count(self, msg: CountMsg) -> None:
        few = freeze(np.zeros(3, np.float32))
        await self._to.tell(PixelsMsg(pixels=pixels(msg.number), few=few))

    @on(PixelsOfMsg)
    def answer(self, msg: PixelsOfMsg) -> list[float]:
        return [float(msg.number)] * 1000


class Relay(Actor[PixelsMsg]):
    """Sends on what it gets."""

    def __init__(self, to: Ref[PixelsMsg]) -> None:
        self._to = to

    @on(PixelsMsg)
    async def pass_on(self, msg: PixelsMsg) -> None:
        await self._to.tell(msg.model_copy())


class Screen(Actor[PixelsMsg]):
    @on(PixelsMsg)
    def show(self, msg: PixelsMsg) -> None:
        pass


class Viewer(Actor[CountMsg]):
    """Asks for pixels."""

    def __init__(self, of: Ref[PixelsOfMsg]) -> None:
        self._of = of

    @on(CountMsg)
    async def count(self, msg: CountMsg) -> None:
        await self._of.ask(PixelsOfMsg(number=msg.number))


def large_arrays(value: Any) -> Iterator[NDArray[Any]]:
    """Yield the arrays of 2 KiB and more in a record that is not written yet."""
    match value:
        case np.ndarray():
            if value.nbytes >= 2048:
                yield value
        case Message():
            yield from large_arrays(list(vars(value).values()))
        case list() | tuple():
            for each in value:
                yield from large_arrays(each)


async def relayed(folder: Path) -> tuple[dict[str, list[NDArray[Any]]], dict[str, int]]:
    """Send three messages from node `a` over `b` to `c`; return the large arrays and the bytes in their recorders."""
    clock, names = ManualClock(), ("a", "b", "c")
    recorders = {name: TraceSettings(at_end=True).recorder(name, folder, clock=clock, seed=0) for name in names}
    address = f"memory://{folder.name}"
    nodes = [
        Node(
            name,
            listen=f"{address}-{name}",
            join=None if name == "a" else f"{address}-a",
            secret=b"s" * 32,
            clock=clock,
            deterministic=True,
            recorder=recorders[name],
        )
        for name in names
    ]
    async with nodes[0].running(), nodes[1].running(), nodes[2].running():
        nodes[2].spawn("screen", Screen)
        nodes[1].spawn("relay", Relay, Ref("c/screen"))
        camera = nodes[0].spawn("camera", Camera, Ref("b/relay"))
        for number in range(3):
            await camera.tell(CountMsg(number=number))
        await settle(*nodes)
        rings: dict[str, Any] = {name: recorder.sink for name, recorder in recorders.items() if recorder is not None}
        held = {name: [array for each in ring._ring for array in large_arrays(each)] for name, ring in rings.items()}
        totals = {name: ring.total for name, ring in rings.items()}
    return held, totals


def sent(folder: Path, actor: str) -> list[Sent]:
    with RunTrace(folder) as trace:
        told = list(trace.activations(trace.incarnation(actor)))
    return [effect for each in told for effect in each.effects if isinstance(effect, Sent)]


def test_of_large_arrays_sent_to_another_node_the_flight_recorder_keeps_digests_alone(tmp_path: Path, run: Run) -> None:
    held, totals = run(relayed(tmp_path))
    assert held["a"] == []
    assert totals["a"] < pixels(0).nbytes
    effects = sent(tmp_path, "a/camera")
    assert [effect.fields["pixels"] for effect in effects] == [
        Digest(np.dtype("f4"), (1 << 16,), digest_of(pixels(number))) for number in range(3)
    ]
    for effect in effects:
        np.testing.assert_array_equal(effect.fields["few"], np.zeros(3))


def test_small_arrays_of_larger_memory_are_copied_and_do_not_keep_it() -> None:
    made = MessageArrays({"pixels": ((1 << 16,), np.float32), "few": ((3,), np.float32)}, lambda nbytes: None)
    made.arrays["pixels"][:], made.arrays["few"][:] = 1.0, 2.0
    message = PixelsMsg(**made.freeze())
    memory = weakref.ref(message.few.base)
    kept, nbytes = digested(message, None)
    del message, made
    assert memory() is None
    assert nbytes < 4096
    np.testing.assert_array_equal(kept.few, np.full(3, 2.0))


def test_arrays_that_are_sent_on_are_kept_and_counted_once(tmp_path: Path, run: Run) -> None:
    held, totals = run(relayed(tmp_path))
    assert (len(held["b"]), len({id(array) for array in held["b"]})) == (6, 3)  # delivered and sent
    assert 3 * pixels(0).nbytes < totals["b"] < 4 * pixels(0).nbytes
    digests = [effect.fields["pixels"].digest for effect in sent(tmp_path, "b/relay")]
    assert digests == [digest_of(pixels(number)) for number in range(3)]
    with RunTrace(tmp_path) as trace:
        told = [each.delivery for each in trace.activations(trace.incarnation("b/relay")) if each.delivery is not None]
    shown = [each.fields["pixels"][0] for each in told if each.type.name == "PixelsMsg"]
    np.testing.assert_array_equal(shown, range(3))


def test_answers_count_towards_the_memory_of_the_flight_recorder(tmp_path: Path, run: Run) -> None:
    async def test() -> tuple[int, int]:
        clock = ManualClock()
        recorder = TraceSettings().recorder("here", tmp_path, clock=clock, seed=0)
        assert recorder is not None
        async with Node("here", clock=clock, deterministic=True, recorder=recorder).running() as node:
            camera = node.spawn("camera", Camera, Ref("here/nobody"))
            viewer = node.spawn("viewer", Viewer, camera)
            await settle(node)
            before = recorder.sink.total
            await viewer.tell(CountMsg(number=1))
            await settle(node)
            return before, recorder.sink.total

    before, after = run(test())
    assert after - before > 2 * 1000 * 64  # a list of so many numbers, which was given and received
