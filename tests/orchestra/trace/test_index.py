"""The index beside a trace file: built once, extended, rebuilt when it does not match."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestra.trace.format.index_tables import beside
from orchestra.trace.format.records import Delivery, Kind
from orchestra.trace.format.writer import LostRecords, TraceWriter
from orchestra.trace.reading.index import TraceIndex
from orchestra.trace.reading.reader import TraceFile
from orchestra.trace.reading.run_trace import RunTrace

MakeWriter = Callable[..., TraceWriter]


@pytest.fixture
def made(writer: MakeWriter, toy: Any) -> TraceWriter:
    made = writer()
    made.write([toy.birth(), toy.birth("toy/b")])
    for n in range(1, 50):
        made.write([toy.delivery(n, [n, toy.frame(n % 5)], kind=2), toy.handled(n), toy.delivery(n, actor="toy/b")])
    return made


def test_the_index_of_a_closed_file_equals_that_of_a_scan(
    writer: MakeWriter, toy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = writer(segment_bytes=8_000)
    for n in range(1, 90):
        sent = [1, 0.0, n, "toy/c", 2, None, False]
        made.write([toy.delivery(n, [n, toy.frame(n % 5)], kind=2), toy.handled(n, [sent], types=(2,))])
        if n % 30 == 0:
            lost = LostRecords("for a test")
            lost.add("toy/a", 100, 2 * n)
            made.lose(lost)
    made.close()
    assert len(made.paths) > 2
    written = [beside(path).read_bytes() for path in made.paths]
    for path, content in zip(made.paths, written, strict=True):
        beside(path).unlink()
        with TraceFile(path) as file:
            TraceIndex.of(file)
        assert beside(path).read_bytes() == content
    monkeypatch.setattr(TraceFile, "locations", no_scan)
    with RunTrace(made.paths[0].parent) as trace:  # the first question reads nothing whole
        assert len(trace.recordings[0].indexes) == len(made.paths)
        assert sum(len(index.gaps) for index in trace.recordings[0].indexes) == 2


def test_a_file_has_a_limited_number_of_records(writer: MakeWriter, toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestra.trace.format.writer.SEGMENT_RECORDS", 10)
    made = writer()
    for n in range(1, 36):
        made.write([toy.delivery(n)])
    made.close()
    assert len(made.paths) == 4


def no_scan(self: TraceFile, start: int = 0) -> Any:
    """Replaces `TraceFile.locations`: only the header may be read from the begin of the file."""
    assert start != 0 or not hasattr(self, "header"), "scanned"
    return REAL(self, start)


REAL = TraceFile.locations


def test_a_record_is_found_without_a_scan(made: TraceWriter, monkeypatch: pytest.MonkeyPatch, toy: Any) -> None:
    made.close()
    with TraceFile(made.paths[0]) as file:
        rows = TraceIndex.of(file).rows(Kind.DELIVERY, actor="toy/a")
        assert len(rows) == 49
    monkeypatch.setattr(TraceFile, "locations", no_scan)
    with TraceFile(made.paths[0]) as file:
        index = TraceIndex.of(file)
        record = index.record(int(index.rows(Kind.DELIVERY, actor="toy/a")[30]))
        assert isinstance(record, Delivery)
        assert (record.n, record.type.name) == (31, "FrameMsg")
        np.testing.assert_array_equal(record.fields["pixels"], toy.frame(1))
        assert file.closed


def test_an_index_is_extended_when_the_file_has_grown(made: TraceWriter, toy: Any) -> None:
    with TraceFile(made.paths[0]) as file:
        index = TraceIndex.of(file)
        assert not index.refresh()
        made.write([toy.delivery(50), toy.delivery(51, [51, toy.frame(99)], kind=2)])
        assert not index.refresh()  # the file was not looked at anew
        assert file.refresh()
        assert index.refresh()
        assert len(index.rows(Kind.DELIVERY, actor="toy/a")) == 51
    made.write([toy.delivery(52)])
    with TraceFile(made.paths[0]) as file:
        index = TraceIndex.of(file)
        rows = index.rows(Kind.DELIVERY, actor="toy/a")
        assert [index.record(int(row)).n for row in rows[-3:]] == [50, 51, 52]
        np.testing.assert_array_equal(index.record(int(rows[-2])).fields["pixels"], toy.frame(99))
    made.close()


def test_following_a_run_saves_its_index_rarely(made: TraceWriter, toy: Any) -> None:
    path = made.paths[0]
    kept = []
    with TraceFile(path) as file:
        index = TraceIndex.of(file)
        for n in range(50, 150):
            made.write([toy.delivery(n)])
            file.refresh()
            index.refresh()
            assert index.rows(Kind.DELIVERY, actor="toy/a")[-1] == len(index.entries) - 1
            kept.append(beside(path).read_bytes())
        assert 2 <= len(set(kept)) <= 12
        made.close()
        file.refresh()
        index.refresh()
    with TraceFile(path) as file:
        assert TraceIndex.of(file).file.closed
        assert beside(path).read_bytes() not in kept


def test_the_activation_that_sent_a_message_is_found(made: TraceWriter, toy: Any) -> None:
    made.write(
        [toy.handled(50, [[1, 0.0, 9, "toy/c", 2, None, False], [1, 0.0, 10, "toy/c", 2, None, False]], types=(2,))]
    )
    made.close()
    with TraceFile(made.paths[0]) as file:
        index = TraceIndex.of(file)
        assert (index.sent_in("toy/a", 10), index.sent_in("toy/a", 11), index.sent_in("toy/z", 10)) == (
            [(50, 0)],
            [],
            [],
        )


def test_an_activation_is_read_alone(made: TraceWriter, toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made.write([toy.birth(), toy.delivery(7, [7, toy.frame(7)], kind=2)])
    made.close()
    with RunTrace(made.paths[0]) as trace:
        life = trace.incarnation("toy/a")
        whole = {activation.n: activation for activation in trace.activations(life)}
        looked: list[int] = []
        monkeypatch.setattr(
            TraceFile, "location_at", lambda file, offset: looked.append(offset) or LOCATION_AT(file, offset)
        )
        for n in (1, 30, 49):
            looked.clear()
            found = trace.activation(life, n)
            assert found is not None
            assert found.handled == whole[n].handled
            assert len(looked) <= 3
        assert [each.n for each in trace.activations(life, since=40, until=43)] == [40, 41, 42]
        assert trace.activation(life, 50) is None
        last = trace.activation(life)
        assert last is not None
        assert last.n == 49


LOCATION_AT = TraceFile.location_at


def test_what_was_sent_is_indexed(writer: MakeWriter, toy: Any) -> None:
    made = writer()
    made.write([toy.handled(1, [[1, 0.0, 9, "toy/c", 2, None, False], [2, 0.0, 9]], types=(2,))])
    made.close()
    with TraceFile(made.paths[0]) as file:
        index = TraceIndex.of(file)
        (sent,) = index.sends
        assert (int(sent["number"]), index.addresses[sent["actor"]], index.addresses[sent["recipient"]]) == (
            *(9, "toy/a"),
            "toy/c",
        )
        assert file.types[int(sent["type"])].name == "FrameMsg"


@pytest.mark.parametrize("damage", ["garbage", "cut", "other file", "flipped"])
def test_an_index_that_does_not_match_is_rebuilt(made: TraceWriter, damage: str, toy: Any, writer: MakeWriter) -> None:
    made.close()
    path = made.paths[0]
    with TraceFile(path) as file:
        TraceIndex.of(file)
    beside = path.with_name(path.name + ".index")
    content = bytearray(beside.read_bytes())
    match damage:
        case "garbage":
            beside.write_bytes(b"something else entirely")
        case "cut":
            beside.write_bytes(content[: len(content) // 2])
        case "flipped":
            content[40] ^= 1
            beside.write_bytes(content)
        case _:
            path.unlink()
            other = writer()
            other.write([toy.delivery(1, actor="toy/other")])
            other.close()
    with TraceFile(path) as file:
        index = TraceIndex.of(file)
        expected = 1 if damage == "other file" else 49
        assert len(index.rows(Kind.DELIVERY)) == (1 if damage == "other file" else 98)
        assert len(index.rows(Kind.DELIVERY, actor="toy/other" if expected == 1 else "toy/a")) == expected


def test_an_unwritable_folder_has_no_index_file(made: TraceWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    made.close()
    beside(made.paths[0]).unlink()

    def refuse(self: Path, *args: Any, **kwargs: Any) -> Any:
        if args and "w" in args[0]:
            raise PermissionError(13, "Permission denied")
        return real(self, *args, **kwargs)

    real = Path.open
    monkeypatch.setattr(Path, "open", refuse)
    with RunTrace(made.paths[0]) as trace:
        assert trace.actors() == ["toy/a", "toy/b"]
    assert [path.suffix for path in made.paths[0].parent.iterdir()] == [".trace"]
