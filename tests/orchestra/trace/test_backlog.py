"""The queue before the file: a stalled disk delays nothing, and costs whole records that are counted."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestra.trace.format.records import Close, Delivery, Gap
from orchestra.trace.format.writer import TraceOutput, TraceWriter
from orchestra.trace.reading.reader import TraceFile
from orchestra.trace.recording.backlog import Backlog

MakeWriter = Callable[..., TraceWriter]
PATIENCE_S = 20.0


class StuckDisk:
    """A file that takes nothing while its gate is shut."""

    def __init__(self, path: Path) -> None:
        self._file = TraceOutput(path)
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()

    def write(self, data: bytes | memoryview, /) -> int | None:
        self.reached.set()
        assert self.gate.wait(PATIENCE_S)
        return self._file.write(data)

    def truncate(self, size: int, /) -> int:
        return self._file.truncate(size)

    def seek(self, offset: int, /) -> int:
        return self._file.seek(offset)

    def close(self) -> None:
        self._file.close()


def told(path: Path) -> tuple[list[int], list[Gap], list[Close]]:
    with TraceFile(path) as file:
        records = [record for _, record in file.records()]
    numbers = [record.n for record in records if isinstance(record, Delivery)]
    gaps = [record for record in records if isinstance(record, Gap)]
    return numbers, gaps, [record for record in records if isinstance(record, Close)]


def test_closing_writes_all_queued_records(writer: MakeWriter, toy: Any) -> None:
    made = writer()
    backlog = Backlog(made)
    for n in range(1, 2001):
        backlog.put(toy.delivery_draft(n))
    backlog.close()
    numbers, gaps, (end,) = told(made.paths[0])
    assert (numbers, gaps, end.dropped) == (list(range(1, 2001)), [], 0)


def test_a_stalled_disk_costs_records_and_no_time(writer: MakeWriter, toy: Any) -> None:
    disks: list[StuckDisk] = []

    def stuck(path: Path) -> StuckDisk:
        disks.append(StuckDisk(path))
        return disks[-1]

    made = writer(open_file=stuck)
    backlog = Backlog(made, limit=2000)
    backlog.put(toy.delivery_draft(1))
    backlog.dump("now")
    while not disks:
        threading.Event().wait(0.001)
    (disk,) = disks
    assert disk.reached.wait(PATIENCE_S)
    disk.gate.clear()
    for n in range(2, 502):  # were one of these to wait for the disk, all would
        backlog.put(toy.delivery_draft(n))
    disk.gate.set()
    backlog.close()
    numbers, gaps, (end,) = told(made.paths[0])
    assert 1 < len(numbers) < 400
    assert len(numbers) + sum(gap.count for gap in gaps) == 501
    assert gaps[0].reason == "the disk was too slow"
    assert gaps[0].actors == {"toy/a": gaps[0].count}
    assert end.dropped == sum(gap.count for gap in gaps)


def test_an_empty_queue_accepts_a_record_larger_than_its_limit(writer: MakeWriter, toy: Any) -> None:
    made = writer()
    backlog = Backlog(made, limit=10)
    backlog.put(toy.delivery_draft(1, toy.FrameMsg(step=1, pixels=toy.frame(1, 5000))))
    backlog.close()
    assert told(made.paths[0])[0] == [1]


def test_a_failing_writer_is_reported_and_later_records_are_dropped(writer: MakeWriter, toy: Any, capsys: Any) -> None:
    made = writer(open_file=lambda path: 1 / 0)
    backlog = Backlog(made)
    backlog.put(toy.delivery_draft(1))
    backlog.dump("now")
    backlog._thread.join(PATIENCE_S)
    for n in range(2, 100):
        backlog.put(toy.delivery_draft(n))
    assert len(backlog._waiting) == 0
    backlog.close()
    assert "recording ends here" in capsys.readouterr().out
