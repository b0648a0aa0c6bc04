"""Small traces, made by hand."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from orchestra import Actor, Axes, Message, Node, Ref, on
from orchestra.actors.codec import Encoder
from orchestra.testing import ManualClock, settle
from orchestra.trace.format import shared_arrays
from orchestra.trace.format import writer as writing
from orchestra.trace.format.effects import MessageType
from orchestra.trace.format.encoding import PendingRecord, RecordEncoder
from orchestra.trace.format.layout import Entry
from orchestra.trace.format.records import Experiment, Header, Kind
from orchestra.trace.format.shared_arrays import SharedArrays
from orchestra.trace.format.writer import TraceOutput, TraceWriter
from orchestra.trace.recording.settings import TraceSettings

TYPES = {
    1: MessageType("toys.CountMsg", b"12345678", ("count", "note"), request=False),
    2: MessageType("toys.FrameMsg", b"87654321", ("step", "pixels"), request=False),
}
BEGIN = ManualClock().monotonic()
"""When the recorded node began, by its clock in seconds."""
HEADER = Header(
    node="toy",
    generation=77,
    segment=0,
    mode="full",
    wall=0.0,
    monotonic=BEGIN,
    seed=3,
    deterministic=False,
    pid=1,
    host="here",
    versions={"python": "3"},
    experiment=Experiment("toys.py", "ab" * 32, ("--size=3",)),
    reason="recorded",
)


def entry(kind: Kind, row: Sequence[Any], types: Sequence[int] = ()) -> Entry:
    header, arrays = Encoder().encode(list(row))
    nbytes = len(header) + sum(array.nbytes for array in arrays)
    clock = int(row[3]) if kind is Kind.DELIVERY else 0
    return Entry(kind, header, arrays, types, nbytes, str(row[0]), clock, row)


class CountMsg(Message):
    count: int
    note: str


class FrameMsg(Message):
    step: int
    pixels: Annotated[NDArray[np.float32], Axes("float32", "n")]


def draft(kind: Kind, row: Sequence[Any], nbytes: int = 100) -> PendingRecord:
    return (kind, str(row[0]), int(row[2]), nbytes, *row)


def birth_draft(actor: str = "toy/a") -> PendingRecord:
    return draft(Kind.BIRTH, [actor, 0, 1, BEGIN + 0.5, "toys:Toy", "", "planned", 0, "", 0, 0, None, None])


def delivery_draft(n: int, message: Message | None = None, actor: str = "toy/a") -> PendingRecord:
    message = CountMsg(count=n, note=f"note {n}") if message is None else message
    kind, row = Kind.DELIVERY, (actor, 0, n, 2 * n, BEGIN + n, BEGIN + n - 0.25, "toy/b", n, message, 0, 128, False)
    return (kind, actor, 2 * n, 300, *row)


def birth(actor: str = "toy/a") -> Entry:
    row = [actor, 0, 1, BEGIN + 0.5, "toys:Toy", "", "planned", 0, "", 0, 0, None, None]
    return entry(Kind.BIRTH, row)


def delivery(
    n: int, values: Sequence[Any] | None = None, actor: str = "toy/a", kind: int = 1, sender: str = "toy/b"
) -> Entry:
    values = [n, f"note {n}"] if values is None else list(values)
    row = [actor, 0, n, 2 * n, BEGIN + n, 0.25, sender, n, kind, 0, 128, False, values]
    return entry(Kind.DELIVERY, row, (kind,))


def handled(n: int, effects: Sequence[Any] = (), actor: str = "toy/a", types: Sequence[int] = ()) -> Entry:
    return entry(Kind.HANDLED, [actor, 0, n, 1 if n else 0, 2 * n + 1, BEGIN + n, 0.125, list(effects), None], types)


def frame(n: int, size: int = 512) -> np.ndarray[Any, Any]:
    pixels = np.arange(n, n + size, dtype=np.float32)
    pixels.flags.writeable = False
    return pixels


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TraceWriter]:
    """Makes a writer; optional are the size of a full file, what opens a file, and what returns the free bytes."""

    def made(
        *,
        segment_bytes: int = writing.SEGMENT_BYTES,
        open_file: Callable[[Path], Any] = TraceOutput,
        free: Callable[[], int] = lambda: 1 << 40,
        **options: Any,
    ) -> TraceWriter:
        monkeypatch.setattr(writing, "SEGMENT_BYTES", segment_bytes)
        monkeypatch.setattr(writing, "TraceOutput", open_file)
        monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=free()))
        options = {"clock": ManualClock(), "values": True, **options}
        return TraceWriter(tmp_path, "toy.77", HEADER, RecordEncoder(types=TYPES), **options)

    return made


def process_writer(folder: Path, name: str) -> TraceWriter:
    """Return the writer of one process of a host, whose arrays are shared with the others."""
    header, encoder = replace(HEADER, node=name), RecordEncoder(types=TYPES)
    shared = SharedArrays(folder)
    return TraceWriter(folder, f"{name}.77", header, encoder, clock=ManualClock(), values=True, shared=shared)


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], TraceWriter]]:
    """Makes the writer of one process of a host, by its name."""
    boot = tmp_path / "boot_id"
    boot.write_text("12345678-90ab\n")
    monkeypatch.setattr(shared_arrays, "BOOT_ID", boot)
    writers: list[TraceWriter] = []

    def made(name: str) -> TraceWriter:
        writers.append(process_writer(tmp_path / "traces", name))
        return writers[-1]

    yield made
    for writer in writers:
        writer.close()


class BadDisk:
    """A file whose writes fail at times, some after half the bytes."""

    def __init__(self, path: Path, fails: Callable[[int], bool]) -> None:
        self._file = TraceOutput(path)
        self._fails = fails
        self.writes = 0

    def write(self, data: bytes | memoryview, /) -> int:
        self.writes += 1
        if self._fails(self.writes):
            self._file.write(data[: len(data) // 2])
            raise OSError(28, os.strerror(28))
        return self._file.write(data)

    def truncate(self, size: int, /) -> int:
        return self._file.truncate(size)

    def seek(self, offset: int, /) -> int:
        return self._file.seek(offset)

    def close(self) -> None:
        self._file.close()


@pytest.fixture
def toy() -> Any:
    """The functions of this file, by name."""
    return sys.modules[__name__]


class SkewedClock(ManualClock):
    """A wall clock that is wrong by hours."""

    def __init__(self, hours: float) -> None:
        super().__init__()
        self.hours = hours

    def now(self) -> datetime:
        return super().now() + timedelta(hours=self.hours)


class BallMsg(Message):
    name: str
    throws: int


class Player(Actor[BallMsg]):
    """Passes a ball to the next player until its throws are used up."""

    def __init__(self, to: Ref[BallMsg]) -> None:
        self.to = to

    @on(BallMsg)
    async def catch(self, msg: BallMsg) -> None:
        if msg.throws:
            await self.to.tell(BallMsg(name=msg.name, throws=msg.throws - 1))


@pytest.fixture
def played(tmp_path: Path) -> Path:
    """Three nodes, one an hour ahead and one two hours behind, pass two balls around."""

    async def play() -> None:
        names = {"left": 0.0, "middle": 1.0, "right": -2.0}
        nodes = []
        for name, hours in names.items():
            clock = SkewedClock(hours)
            recorder = TraceSettings("full").recorder(name, tmp_path, clock=clock, seed=0)
            nodes.append(
                Node(
                    name,
                    listen=f"memory://{tmp_path.name}-{name}",
                    join=None if name == "left" else f"memory://{tmp_path.name}-left",
                    secret=b"s" * 32,
                    clock=clock,
                    deterministic=True,
                    recorder=recorder,
                )
            )
        left, middle, right = nodes
        async with left.running(), middle.running(), right.running():
            balls = left.spawn("player", Player, Ref("middle/player"))
            middle.spawn("player", Player, Ref("right/player"))
            right.spawn("player", Player, Ref("left/player"))
            await balls.tell(BallMsg(name="red", throws=7))
            await balls.tell(BallMsg(name="blue", throws=2))
            await settle(*nodes)

    asyncio.run(play())
    return tmp_path
