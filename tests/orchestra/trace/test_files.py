"""Trace files are read back: whole, cut off, damaged, or written to a failing disk."""

import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from orchestra.errors import NotATrace, TraceVersion, ValuesMissing
from orchestra.testing import ManualClock
from orchestra.trace.format.effects import MessageId, SendCompleted, Sent
from orchestra.trace.format.layout import MAGIC, PREAMBLE, READABLE, VERSION, header_body, header_of
from orchestra.trace.format.records import Birth, Close, Delivery, Digest, Gap, Handled, Kind, Record
from orchestra.trace.format.writer import TraceWriter
from orchestra.trace.reading.reader import TraceFile
from orchestra.trace.reading.run_trace import RunTrace

MakeWriter = Callable[..., TraceWriter]


def records(path: Path) -> list[Record]:
    with TraceFile(path) as file:
        return [record for _, record in file.records()]


def test_what_was_written_is_read(writer: MakeWriter, toy: Any) -> None:
    made = writer()
    sent = [1, 0.5, 9, "toy/c", 2, [4, toy.frame(7)], False]
    made.write([toy.birth(), toy.delivery(1), toy.handled(1, [sent, [2, 0.75, 9]], types=(2,))])
    made.close()
    (path,) = made.paths
    with TraceFile(path) as file:
        assert (file.header.node, file.header.experiment, file.header.mode) == ("toy", toy.HEADER.experiment, "full")
        born, told, done, end = [record for _, record in file.records()]
        assert file.closed
        assert file.damages == []
    assert isinstance(born, Birth)
    assert (born.actor, born.kind, born.args) == ("toy/a", "toys:Toy", None)
    assert isinstance(told, Delivery)
    assert told.id == MessageId("toy/b", 1)
    assert (told.type, told.fields) == (toy.TYPES[1], {"count": 1, "note": "note 1"})
    assert isinstance(done, Handled)
    first, second = done.effects
    assert isinstance(first, Sent)
    assert (first.number, first.recipient, first.type.name) == (9, "toy/c", "FrameMsg")
    assert second == SendCompleted(at=0.75, number=9)
    assert isinstance(end, Close)
    assert (end.records, end.dropped) == (3, 0)
    assert made.nbytes == path.stat().st_size


def test_input_arrays_are_stored_and_sent_arrays_have_digests(writer: MakeWriter, toy: Any) -> None:
    made = writer()
    pixels = toy.frame(1)
    made.write(
        [
            toy.delivery(1, [1, pixels], kind=2),
            toy.handled(1, [[1, 0.0, 1, "x", 2, [1, toy.frame(2)], False]], types=(2,)),
        ]
    )
    made.close()
    told, done, _ = records(made.paths[0])
    assert isinstance(told, Delivery)
    assert told.fields is not None
    np.testing.assert_array_equal(told.fields["pixels"], pixels)
    assert isinstance(done, Handled)
    (sent,) = done.effects
    assert isinstance(sent, Sent)
    assert sent.fields is not None
    assert isinstance(sent.fields["pixels"], Digest)
    assert (sent.fields["pixels"].dtype, sent.fields["pixels"].shape) == (np.float32, (512,))


def test_a_repeated_array_is_written_once_and_resolves_sent_digests(
    writer: MakeWriter, toy: Any, tmp_path: Path
) -> None:
    made = writer()
    big = toy.frame(1, 10_000)
    made.write([toy.delivery(n, [n, big], kind=2) for n in range(1, 6)])
    made.write([toy.handled(5, [[1, 0.0, 1, "x", 2, [1, toy.frame(1, 10_000)], False]], types=(2,))])
    made.close()
    assert made.nbytes < 2 * big.nbytes
    with RunTrace(tmp_path) as trace:
        *told, done = [record for _, record in trace.recordings[0].files[0].records() if not isinstance(record, Close)]
        assert all(np.array_equal(record.fields["pixels"], big) for record in told if isinstance(record, Delivery))
        assert isinstance(done, Handled)
        (sent,) = done.effects
        assert isinstance(sent, Sent)
        np.testing.assert_array_equal(trace.resolved(sent.fields)["pixels"], big)


def test_a_digest_without_values_raises_values_missing(writer: MakeWriter, toy: Any, tmp_path: Path) -> None:
    made = writer(values=False)
    made.write([toy.delivery(1, [1, toy.frame(1)], kind=2), toy.delivery(2, [2, toy.frame(1, 4)], kind=2)])
    made.close()
    with RunTrace(tmp_path) as trace:
        (_, large), (_, small), _ = trace.recordings[0].files[0].records()
        assert isinstance(large, Delivery)
        assert isinstance(small, Delivery)
        with pytest.raises(ValuesMissing, match=r"float32\[512\] \w+ were not recorded.*--trace full"):
            trace.resolved(large.fields)
        np.testing.assert_array_equal(trace.resolved(small.fields)["pixels"], toy.frame(1, 4))


def test_a_full_file_is_followed_by_a_self_contained_one(writer: MakeWriter, toy: Any) -> None:
    made = writer(segment_bytes=2000)
    for n in range(1, 30):
        made.write([toy.delivery(n, [n, toy.frame(0)], kind=2)])
    made.close()
    assert len(made.paths) > 2
    assert [path.name for path in made.paths[:2]] == ["toy.77.000.trace", "toy.77.001.trace"]
    told = [record for path in made.paths for record in records(path)]
    numbers = [record.n for record in told if isinstance(record, Delivery)]
    assert numbers == list(range(1, 30))
    for record in records(made.paths[1]):
        if isinstance(record, Delivery):
            assert record.type == toy.TYPES[2]
            assert isinstance(record.fields["pixels"], np.ndarray)


def small_trace(writer: MakeWriter, toy: Any) -> tuple[Path, list[Record]]:
    made = writer()
    made.write(
        [
            toy.birth(),
            toy.delivery(1),
            toy.handled(1),
            toy.delivery(2, [2, toy.frame(1)], kind=2),
            toy.handled(2),
            toy.delivery(3),
        ]
    )
    made.close()
    return made.paths[0], records(made.paths[0])


def telling(path: Path) -> list[int]:
    """The offsets of all bytes of a file, except for most of those inside large arrays."""
    with TraceFile(path) as file:
        blobs = [place for place in file.locations() if place.kind is Kind.BLOB]
    inside = {at for blob in blobs for at in range(blob.offset + 60, blob.end - 20)}
    return [at for at in range(path.stat().st_size) if at not in inside or at % 97 == 0]


def comparable(told: list[Record]) -> list[str]:
    return [repr(record) for record in told]


def test_a_trace_cut_off_at_any_byte_is_read_up_to_there(writer: MakeWriter, toy: Any, tmp_path: Path) -> None:
    path, whole = small_trace(writer, toy)
    content = path.read_bytes()
    cut = tmp_path / "toy.77.cut.trace"
    reached = set()
    for size in telling(path):
        cut.write_bytes(content[:size])
        if size < PREAMBLE.size:
            with pytest.raises(NotATrace, match=r"cut off|is no trace"):
                TraceFile(cut)
            continue
        with TraceFile(cut) as file:
            told = [record for _, record in file.records()]
            assert not file.closed
            ends = [place.end for place in file.locations()]
            left = size - (ends[-1] if ends else PREAMBLE.size)
            assert [damage.length for damage in file.damages] == ([left] if left else [])
            assert all("cut off" in str(damage) for damage in file.damages)
        assert comparable(told) == comparable(whole[: len(told)])
        reached.add(len(told))
    assert reached == set(range(len(whole)))


def test_a_damaged_byte_costs_its_record_only(writer: MakeWriter, toy: Any, tmp_path: Path) -> None:
    path, whole = small_trace(writer, toy)
    content = path.read_bytes()
    with TraceFile(path) as file:
        starts = [place.offset for place in file.locations()]
    hurt = tmp_path / "hurt.trace"
    for at in telling(path):
        damaged = bytearray(content)
        damaged[at] ^= 0x41
        hurt.write_bytes(damaged)
        if at < len(MAGIC):
            with pytest.raises(NotATrace, match="is no trace"):
                TraceFile(hurt)
            continue
        with TraceFile(hurt) as file:
            told = [record for _, record in file.records()]
            assert file.damages, f"byte {at} went unnoticed"
            start = max([0, *(start for start in starts if start <= at)])
            assert file.damages[0].offset == start
        # One record of an actor is lost at most; a lost TYPE or BLOB makes others less clear, but keeps them.
        assert len(told) >= len(whole) - 1


def test_other_files_and_other_versions_are_refused(tmp_path: Path, writer: MakeWriter, toy: Any) -> None:
    other = tmp_path / "other.trace"
    other.write_bytes(b"PK\x03\x04 and so on, for some time")
    with pytest.raises(NotATrace, match="is no trace: it begins with"):
        TraceFile(other)
    with pytest.raises(NotATrace, match="No such file"):
        TraceFile(tmp_path / "missing.trace")
    with pytest.raises(NotATrace, match="there is no run or trace"):
        RunTrace(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotATrace, match="holds no trace"):
        RunTrace(tmp_path / "empty")
    (tmp_path / "empty" / "config.json").write_text("{}")
    with pytest.raises(NotATrace, match="it ran with --trace off"):
        RunTrace(tmp_path / "empty")
    other.unlink()
    path, _ = small_trace(writer, toy)
    died = path.with_name("died-1.000.trace")
    died.touch()  # by a process that ended before it wrote anything
    with RunTrace(path.parent) as trace:
        assert trace.empty == [died]
        assert trace.actors()
    with pytest.raises(NotATrace, match="cut off before the first record"):
        RunTrace(died)
    died.unlink()
    for version in (1, READABLE[0] - 1, VERSION + 1):
        begin = PREAMBLE.pack(MAGIC, version, 0, 0)[:-4]
        other.write_bytes(begin + zlib.crc32(begin).to_bytes(4, "little") + path.read_bytes()[PREAMBLE.size :])
        expected = f"has trace format version {version}; this version of orchestra reads only 4, 5 and 6$"
        with pytest.raises(TraceVersion, match=expected):
            TraceFile(other)


def test_the_format_depends_on_no_attribute_name(toy: Any) -> None:
    header = replace(toy.HEADER, wall=2.5, run_directory="runs/1")
    assert header.experiment is not None
    header = replace(
        header, experiment=replace(header.experiment, hosts=((0, "here", 2, 0, 1 << 40, True),), code="c0de")
    )
    row = msgpack.unpackb(header_body(header))
    assert row == [
        *("toy", 77, "full", 0, 2.5, header.monotonic, 3, False, 1, "here", {"python": "3"}),
        *(["toys.py", "ab" * 32, ["--size=3"], [[0, "here", 2, 0, 1 << 40, True]], "c0de"], "recorded", "runs/1", ""),
    ]
    assert header_of(header_body(header)) == header


@pytest.mark.parametrize("every", [2, 3, 5])
def test_a_disk_that_fails_costs_whole_records_that_are_counted(writer: MakeWriter, toy: Any, every: int) -> None:
    made = writer(open_file=lambda path: toy.BadDisk(path, lambda write: write > 1 and write % every == 0))
    for n in range(1, 41):
        made.write([toy.delivery(n, [n, toy.frame(n)], kind=2)])
    made.close()
    told = records(made.paths[0])
    numbers = [record.n for record in told if isinstance(record, Delivery)]
    lost = sum(record.count for record in told if isinstance(record, Gap))
    assert 0 < len(numbers) < 40
    assert numbers == sorted(numbers)
    tail = 40 - max(numbers)  # what fails last may find no later record to tell of it
    assert len(numbers) + lost == 40 or (lost < 40 - len(numbers) <= lost + tail + 1)
    assert made.dropped >= 40 - len(numbers)
    gap = next(record for record in told if isinstance(record, Gap))
    assert gap.reason == "No space left on device"
    assert gap.actors == {"toy/a": gap.count}
    assert all(record.type == toy.TYPES[2] for record in told if isinstance(record, Delivery))


def test_an_unwritable_folder_costs_the_trace_only(writer: MakeWriter, toy: Any) -> None:
    def refuse(path: Path) -> Any:
        raise PermissionError(13, "Permission denied")

    made = writer(open_file=refuse)
    made.write([toy.delivery(n) for n in range(1, 4)])
    made.close()
    assert (made.paths, made.dropped) == ([], 3)


def test_a_trace_leaves_free_space_on_the_disk(writer: MakeWriter, toy: Any) -> None:
    room, clock = [1 << 40], ManualClock()
    made = writer(free=lambda: room[0], clock=clock)
    for n in range(1, 10):
        room[0] = 1000 if 3 < n < 7 else 1 << 40
        clock.advance(0.5)
        made.write([toy.delivery(n)])
    made.close()
    told = records(made.paths[0])
    assert [record.n for record in told if isinstance(record, Delivery)] == [1, 2, 3, 7, 8, 9]
    (gap,) = [record for record in told if isinstance(record, Gap)]
    assert (gap.count, gap.reason) == (3, "less than 512 MiB were left on the disk")


def test_a_growing_file_is_read_further(writer: MakeWriter, toy: Any) -> None:
    made = writer()
    made.write([toy.delivery(1)])
    with TraceFile(made.paths[0]) as file:
        (place,) = [place for place in file.locations() if place.kind.name == "DELIVERY"]
        assert not file.refresh()
        made.write([toy.delivery(2)])
        assert file.refresh()
        (more,) = file.records(place.end)
        assert isinstance(more[1], Delivery)
        assert more[1].n == 2
    made.close()


def test_activations_are_assembled_from_records(writer: MakeWriter, toy: Any, tmp_path: Path) -> None:
    made = writer()
    made.write(
        [
            toy.birth(),
            toy.handled(0),
            toy.birth("toy/b"),
            toy.delivery(1),
            toy.delivery(1, actor="toy/b"),
            toy.handled(1),
            toy.delivery(2),
        ]
    )
    made.close()
    with RunTrace(tmp_path) as trace:
        assert trace.actors() == ["toy/a", "toy/b"]
        life = trace.incarnation("toy/a")
        assert [(each.n, each.phase, each.handled is not None) for each in trace.activations(life)] == [
            (0, "start", True),
            (1, "message", True),
            (2, "message", False),
        ]
        assert trace.recordings[0].closed
