"""The processes of a host write each array of a run once, and every one of them is read back, whatever fails."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_files import arrays_of, kinds_of

from orchestra.errors import ValuesMissing
from orchestra.replay.regression import write_trimmed
from orchestra.testing import ManualClock
from orchestra.trace.format import writer as writing
from orchestra.trace.format.array_records import ArrayPlace, reference_record
from orchestra.trace.format.layout import digest_of, preamble
from orchestra.trace.format.records import Delivery, Kind
from orchestra.trace.format.shared_arrays import SharedArrays
from orchestra.trace.format.writer import TraceWriter
from orchestra.trace.reading.reader import TraceFile
from orchestra.trace.reading.run_trace import RunTrace
from orchestra.trace.recording.settings import TraceSettings

MakeWriter = Callable[[str], TraceWriter]


def noise(n: int, size: int = 4096) -> np.ndarray[Any, Any]:
    pixels = np.random.default_rng(n).standard_normal(size, np.float32)
    pixels.flags.writeable = False
    return pixels


def pixels_of(path: Path) -> list[Any]:
    return arrays_of(path, "pixels")


def test_an_array_that_another_process_has_written_is_referred_to(process: MakeWriter, toy: Any) -> None:
    sender, receiver = process("sender"), process("receiver")
    for n in range(1, 4):
        entry = toy.delivery(n, [n, noise(n)], kind=2)
        for each in (sender, receiver) if n % 2 else (receiver, sender):
            each.write([entry])
    (first,), (second,) = sender.paths, receiver.paths
    assert kinds_of(first).count(Kind.BLOB) == 2
    assert kinds_of(second).count(Kind.BLOB) == 1
    assert kinds_of(first).count(Kind.REFERENCE) == 1
    assert kinds_of(second).count(Kind.REFERENCE) == 2
    for path in (first, second):  # one file is at hand, and neither process has ended
        for n, pixels in enumerate(pixels_of(path), 1):
            np.testing.assert_array_equal(pixels, noise(n))


def test_the_sender_may_be_killed(process: MakeWriter, toy: Any, tmp_path: Path) -> None:
    sender = process("sender")
    sender.write([toy.delivery(1, [1, noise(1)], kind=2)])
    with sender.paths[0].open("ab") as file:
        file.write(b"half a record")
    receiver = process("receiver")
    receiver.write([toy.delivery(n, [n, noise(n)], kind=2) for n in (1, 2)])
    receiver.close()
    np.testing.assert_array_equal(pixels_of(receiver.paths[0])[0], noise(1))
    assert Kind.REFERENCE in kinds_of(receiver.paths[0])


@pytest.mark.parametrize("whole", [False, True])
def test_values_in_a_file_that_is_lost_are_missing_by_name(
    process: MakeWriter, toy: Any, tmp_path: Path, whole: bool
) -> None:
    sender, receiver = process("sender"), process("receiver")
    for each in (sender, receiver):
        each.write([toy.delivery(n, [n, noise(n)], kind=2) for n in (1, 2)])
    if whole:
        sender.paths[0].unlink()
    else:  # cut off within the second array
        content = sender.paths[0].read_bytes()
        sender.paths[0].write_bytes(content[:-10_000])
    with RunTrace(receiver.paths[0]) as trace:
        told = [record for _, record in trace.recordings[0].files[0].records() if isinstance(record, Delivery)]
        assert [record.n for record in told] == [1, 2]
        with pytest.raises(ValuesMissing, match=r"are in sender\.77\.000\.trace, which is missing or damaged"):
            trace.resolved(told[1].fields["pixels"])
        if not whole:
            np.testing.assert_array_equal(trace.resolved(told[0].fields["pixels"]), noise(1))
    later = process("later")  # of a resumed run
    later.write([toy.delivery(1, [1, noise(1)], kind=2)])
    assert (Kind.REFERENCE in kinds_of(later.paths[0])) is not whole


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_process_refers_to_what_another_could_not_write(
    tmp_path_factory: pytest.TempPathFactory, toy: Any, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("traces")
    failing = data.draw(st.sets(st.integers(2, 40)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "TraceOutput", lambda path: toy.BadDisk(path, failing.__contains__))
        patch.setattr(writing, "SEGMENT_BYTES", 60_000)
        made = [toy.process_writer(folder, name) for name in ("a", "b", "c")]
        order = data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), min_size=1, max_size=40))
        for count, (which, n) in enumerate(order, 1):
            made[which].write([toy.delivery(count, [n, noise(n)], actor=f"toy/{which}", kind=2)])
    for each in made:
        each.close()
    with RunTrace(folder) as trace:
        read = 0
        for recording in trace.recordings:
            for file in recording.files:
                for _, record in file.records():
                    if isinstance(record, Delivery):
                        np.testing.assert_array_equal(
                            trace.resolved(record.fields["pixels"]), noise(record.fields["step"])
                        )
                        read += 1
        assert read >= len(order) - sum(each.dropped for each in made)


def test_nothing_is_referred_to_that_was_written_before_the_system_was_started(
    process: MakeWriter, toy: Any, tmp_path: Path
) -> None:
    process("sender").write([toy.delivery(1, [1, noise(1)], kind=2)])
    (tmp_path / "boot_id").write_text("another-boot\n")
    receiver = process("receiver")
    receiver.write([toy.delivery(1, [1, noise(1)], kind=2)])
    assert Kind.REFERENCE not in kinds_of(receiver.paths[0])


def test_each_process_writes_all_arrays_where_there_is_no_boot_id_or_no_permission(
    process: MakeWriter, toy: Any, tmp_path: Path
) -> None:
    (tmp_path / "boot_id").unlink()
    for name in ("sender", "receiver"):
        made = process(name)
        made.write([toy.delivery(1, [1, noise(1)], kind=2)])
        made.close()
        assert Kind.BLOB in kinds_of(made.paths[0])
    table = SharedArrays(tmp_path / "missing")
    table.note(digest_of(noise(1)), ArrayPlace("some.trace", 0))
    assert table.find(digest_of(noise(1))) is None


def test_a_slot_that_is_written_by_two_at_once_is_not_used(process: MakeWriter, toy: Any, tmp_path: Path) -> None:
    process("sender").write([toy.delivery(1, [1, noise(1)], kind=2)])
    (path,) = (tmp_path / "traces").glob("*.table")
    table, digest = SharedArrays(path.parent), digest_of(noise(1))
    assert table.find(digest) is not None
    content = bytearray(path.read_bytes())
    content[content.index(digest) + 20] ^= 1
    path.write_bytes(content)
    assert table.find(digest) is None
    table.close()


def test_a_reference_leads_to_no_other_folder(tmp_path: Path, process: MakeWriter, toy: Any) -> None:
    made = process("sender")
    made.write([toy.delivery(1, [1, noise(1)], kind=2)])
    with TraceFile(made.paths[0]) as file:
        (place,) = [each for each in file.locations() if each.kind is Kind.BLOB]
        digest = file.digest_at(place)
    for name in ("../traces/sender.77.000.trace", "other.trace"):
        other = made.paths[0].with_name("other.trace")
        offset = place.offset if "/" in name else len(preamble())  # of itself: a reference to a reference
        other.write_bytes(preamble() + reference_record(digest, ArrayPlace(name, offset)))
        with TraceFile(other) as file:
            assert file.blob(digest) is None
            assert len(file.damages) == 1


def test_a_trimmed_trace_of_a_receiver_is_self_contained(process: MakeWriter, toy: Any, tmp_path: Path) -> None:
    entries = [toy.birth(), toy.delivery(1, [1, noise(1)], kind=2), toy.handled(1)]
    made = [process(name) for name in ("sender", "receiver")]
    for each in made:
        each.write(entries)
        each.close()
    assert Kind.REFERENCE in kinds_of(made[1].paths[0])
    part = tmp_path / "part" / "part.trace"
    part.parent.mkdir()
    with RunTrace(made[1].paths[0]) as trace:
        write_trimmed(trace, trace.incarnation("toy/a"), part)
    np.testing.assert_array_equal(pixels_of(part)[0], noise(1))


def test_only_full_recorders_share_and_the_root_removes_the_table(tmp_path: Path) -> None:
    for mode, n_tables in (("full", 1), ("digest", 0), ("flight", 0)):
        folder = tmp_path / mode
        recorders = [
            TraceSettings(mode).recorder(name, folder, clock=ManualClock(), seed=0, root=name == "root")
            for name in ("root", "worker")
        ]
        for recorder in recorders:
            assert recorder is not None
            pixels = noise(1)
            row = ["toy/a", 0, 1, 0.0, "toys:Toy", "", "planned", 0, "", 0, 0, [pixels], None]
            recorder.sink.put((Kind.BIRTH, "toy/a", 1, 100, *row))
            recorder.dump("wanted")
            recorder.close() if recorder is recorders[1] else None
        assert len(list(folder.glob("*.table"))) == n_tables
        assert recorders[0] is not None
        recorders[0].close()
        assert not list(folder.glob("*.table"))


def test_traces_of_the_version_before_are_read(tmp_path: Path) -> None:
    content = gzip.decompress((Path(__file__).parent / "version_4.trace.gz").read_bytes())
    path = tmp_path / "old.77.000.trace"
    path.write_bytes(content)
    *batches, last = pixels_of(path)
    for pixels, begins in zip(batches, [(1, 2), (2, 1), (1, 3)], strict=True):
        np.testing.assert_array_equal(pixels, [np.arange(n, n + 2048, dtype=np.float32) for n in begins])
    np.testing.assert_array_equal(last, np.arange(600, dtype=np.float32))
    assert {Kind.DEDUP, Kind.BLOB} <= set(kinds_of(path))
