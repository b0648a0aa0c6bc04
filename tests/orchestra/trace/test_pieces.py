"""An array of pieces is stored as references to the pieces that a trace has, and is read back unchanged."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from trace_files import arrays_of, kinds_of

from orchestra import Axes, Message, freeze
from orchestra.replay.regression import write_trimmed
from orchestra.trace.format import writer as writing
from orchestra.trace.format.array_records import ArrayPlace, composed_record, extents_of, reference_record
from orchestra.trace.format.dedup import LEAST, DedupIndex, Extent
from orchestra.trace.format.layout import preamble
from orchestra.trace.format.records import Delivery, Kind
from orchestra.trace.format.writer import TraceWriter
from orchestra.trace.reading.reader import TraceFile
from orchestra.trace.reading.run_trace import RunTrace

Episode = tuple[int, int]
"""The seed of an episode's numbers, and its length."""
MakeWriter = Callable[..., TraceWriter]
WIDTH = 512


class EpisodesMsg(Message):
    """Episodes, back to back."""

    rows: Annotated[NDArray[np.float32], Axes("float32", "rows", "numbers")]
    lengths: tuple[int, ...]

    def array_pieces(self) -> Iterable[tuple[Any, Any]]:
        yield self.rows, np.array(self.lengths)


def rows_of(episodes: Iterable[Episode]) -> NDArray[np.float32]:
    drawn = [np.random.default_rng(seed).standard_normal((length, WIDTH), np.float32) for seed, length in episodes]
    return freeze(np.concatenate(drawn))


def message(*episodes: Episode) -> EpisodesMsg:
    return EpisodesMsg(rows=rows_of(episodes), lengths=tuple(length for _, length in episodes))


def told(path: Path) -> list[Any]:
    return arrays_of(path, "rows")


@settings(deadline=None)
@given(drawn=st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), min_size=1, max_size=6), max_size=8))
def test_the_extents_of_an_array_are_its_bytes_in_order_and_no_piece_is_new_twice(drawn: list[list[Episode]]) -> None:
    tiles, records, seen = DedupIndex(), dict[int, bytes](), set[Episode]()
    for episodes in drawn:
        rows = rows_of(episodes)
        plan = tiles.plan(rows, np.array([length for _, length in episodes]))
        assert plan is not None
        places = range(100 * len(records), 100 * (len(records) + len(plan.new)), 100)
        records |= dict(zip(places, map(bytes, plan.new), strict=True))
        extents = tiles.settle(plan, list(places))
        assert b"".join(records[record][begin : begin + n] for record, begin, n in extents) == rows.tobytes()
        fresh = set(episodes) - seen
        assert sum(map(len, plan.new)) == 4 * WIDTH * sum(length for _, length in fresh)
        seen |= fresh


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ([3, 2], "a row is in no piece"),
        ([3, 4], "a piece reaches beyond the array"),
        ([6, 0], "a piece is empty"),
        ([8, -2], "a piece has fewer than no rows"),
        ([1] * 6, "the pieces are small"),
        ([], "there is no piece"),
    ],
)
def test_an_array_is_stored_whole_where_its_pieces_are_small_or_are_not_the_array(pieces: list[int], why: str) -> None:
    rows = np.zeros((6, LEAST // 2), np.uint8)
    assert DedupIndex().plan(rows, np.array([2, 3, 1])) is not None
    assert DedupIndex().plan(rows, np.array(pieces, int)) is None, why
    assert DedupIndex().plan(np.zeros((), np.uint8), np.array(pieces, int)) is None


def test_an_episode_that_is_drawn_again_is_written_once(writer: MakeWriter, toy: Any) -> None:
    made = writer()
    messages = [message((1, 20), (2, 9)), message((2, 9), (3, 4), (1, 20)), message((1, 20), (2, 9)), message((3, 4))]
    made.record(toy.delivery_draft(n, each) for n, each in enumerate(messages, 1))
    made.close()
    new = 4 * WIDTH * (20 + 9 + 4)
    assert new < made.nbytes < 1.1 * new
    assert kinds_of(made.paths[0]).count(Kind.COMPOSED) == 2  # the third message has the array of the first
    for rows, each in zip(told(made.paths[0]), messages, strict=True):
        np.testing.assert_array_equal(rows, each.rows)


def test_pieces_of_an_array_that_another_process_has_written_are_not_written_again(
    process: MakeWriter, toy: Any
) -> None:
    sender, learner = process("sender"), process("learner")
    came = [message((1, 20), (2, 9)), message((3, 4), (4, 7))]
    drawn = [message((3, 4), (1, 20), (3, 4)), message((2, 9), (4, 7))]
    for made in (sender, learner):
        made.record(toy.delivery_draft(n, each) for n, each in enumerate(came, 1))
    learner.record(toy.delivery_draft(n, each) for n, each in enumerate(drawn, 3))
    (path,) = learner.paths
    assert not {Kind.BLOB, Kind.PACKED} & set(kinds_of(path))
    assert kinds_of(path).count(Kind.REFERENCE) == kinds_of(path).count(Kind.COMPOSED) == 2
    for rows, each in zip(told(path), [*came, *drawn], strict=True):
        np.testing.assert_array_equal(rows, each.rows)
    # A process that has seen no episode refers to the batch, which consists of parts of a third file.
    trainer = process("trainer")
    trainer.record([toy.delivery_draft(1, drawn[0])])
    assert kinds_of(trainer.paths[0]).count(Kind.REFERENCE) == 1
    np.testing.assert_array_equal(told(trainer.paths[0])[0], drawn[0].rows)


def test_a_trimmed_trace_of_pieces_in_another_file_is_self_contained(
    process: MakeWriter, toy: Any, tmp_path: Path
) -> None:
    came, drawn = message((1, 20), (2, 9)), message((2, 9), (3, 4))
    process("sender").record([toy.delivery_draft(1, came)])
    learner = process("learner")
    learner.record([toy.birth_draft(), toy.delivery_draft(1, came), toy.delivery_draft(2, drawn)])
    learner.close()
    part = tmp_path / "part" / "part.trace"
    part.parent.mkdir()
    with RunTrace(learner.paths[0]) as trace:
        write_trimmed(trace, trace.incarnation("toy/a"), part)
    for rows, each in zip(told(part), (came, drawn), strict=True):
        np.testing.assert_array_equal(rows, each.rows)


@pytest.mark.parametrize(("room", "n_read"), [(1 << 20, 2), (4 * WIDTH * 29, 2), (4 * WIDTH * 29 - 1, 4), (0, 4)])
def test_a_record_with_pieces_of_several_arrays_is_read_once_while_there_is_room(
    writer: MakeWriter, toy: Any, monkeypatch: pytest.MonkeyPatch, room: int, n_read: int
) -> None:
    made = writer()
    messages = [message((1, 20), (2, 9)), message((2, 9), (1, 20)), message((2, 9)), message((1, 20))]
    made.record(toy.delivery_draft(n, each) for n, each in enumerate(messages, 1))
    made.close()
    read: list[int] = []
    stored = TraceFile._stored
    monkeypatch.setattr(TraceFile, "_stored", lambda file, place: read.append(place.offset) or stored(file, place))
    monkeypatch.setattr("orchestra.trace.reading.reader.PARTS_BYTES", room)
    for rows, each in zip(told(made.paths[0]), messages, strict=True):
        np.testing.assert_array_equal(rows, each.rows)
    assert len(read) == n_read  # the first message has the record itself
    assert len(set(read)) == 1


def test_values_are_missing_by_name_where_the_file_of_their_pieces_is_lost(process: MakeWriter, toy: Any) -> None:
    came, drawn = message((1, 20), (2, 9)), message((2, 9), (3, 4))
    sender, learner = process("sender"), process("learner")
    sender.record([toy.delivery_draft(1, came)])
    learner.record([toy.delivery_draft(1, came), toy.delivery_draft(2, drawn), toy.delivery_draft(3, message((3, 4)))])
    sender.paths[0].unlink()
    with TraceFile(learner.paths[0]) as file:
        found = [record for _, record in file.records() if isinstance(record, Delivery)]
        read = [isinstance(record.fields["rows"], np.ndarray) for record in found]
        assert read == [False, False, True]
        assert all("sender.77.000.trace" in damage.what for damage in file.damages)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_array_is_read_back_whatever_the_disks_lose(
    tmp_path_factory: pytest.TempPathFactory, toy: Any, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("traces")
    failing = data.draw(st.sets(st.integers(2, 40)))
    episodes = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=5)
    order = data.draw(st.lists(st.tuples(st.integers(0, 2), episodes), min_size=1, max_size=30))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "TraceOutput", lambda path: toy.BadDisk(path, failing.__contains__))
        patch.setattr(writing, "SEGMENT_BYTES", 60_000)
        made = [toy.process_writer(folder, name) for name in ("a", "b", "c")]
        for n, (which, drawn) in enumerate(order, 1):
            made[which].record([toy.delivery_draft(n, message(*drawn), actor=f"toy/{which}")])
    for each in made:
        each.close()
    with RunTrace(folder) as trace:
        files = [file for recording in trace.recordings for file in recording.files]
        found = [record for file in files for _, record in file.records() if isinstance(record, Delivery)]
        for record in found:
            np.testing.assert_array_equal(trace.resolved(record.fields["rows"]), rows_of(order[record.n - 1][1]))
        assert len(found) >= len(order) - sum(each.dropped for each in made)


def test_an_array_that_consists_of_itself_is_damaged(tmp_path: Path) -> None:
    digest, name = bytes(range(16)), "circle.trace"
    begin = len(preamble())
    after = begin + len(reference_record(digest, ArrayPlace(name, 0)))
    circle = reference_record(digest[::-1], ArrayPlace(name, after))
    content = preamble() + circle + composed_record(digest, [Extent(begin, 0, 8)])
    (tmp_path / name).write_bytes(content)
    with TraceFile(tmp_path / name) as file:
        (place,) = [each for each in file.locations() if each.kind is Kind.COMPOSED]
        assert len(extents_of(memoryview(content)[place.body : place.end])) == 1
        assert file.blob(digest) is None
        (damage,) = file.damages
        assert "consists of itself" in damage.what


def test_the_oldest_pieces_are_forgotten_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestra.trace.format.dedup.MOST_TILES", 4)
    tiles = DedupIndex()
    for n in range(0, 20, 2):
        tiles.note(rows_of([(n, 1), (n + 1, 1)]), np.array([1, 1]), 10 * n)
    plan = tiles.plan(rows_of([(17, 1), (18, 1), (19, 1), (10, 1)]), np.array([1] * 4))
    assert plan is not None
    row = 4 * WIDTH
    assert plan.extents == [Extent(160, row, row), Extent(180, 0, 2 * row), Extent(-1, 0, row)]
    assert [len(part) for part in plan.new] == [row]
