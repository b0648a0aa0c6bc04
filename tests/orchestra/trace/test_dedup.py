"""Deduplication: an array is stored as references to the rows that the file holds, and is read back unchanged."""

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.replay.regression import write_trimmed
from orchestra.trace.format import writer as writing
from orchestra.trace.format.dedup import TILE, DedupIndex
from orchestra.trace.format.records import Close, Delivery, Gap, Kind
from orchestra.trace.format.writer import TraceWriter
from orchestra.trace.reading.reader import TraceFile
from orchestra.trace.reading.run_trace import RunTrace

MakeWriter = Callable[..., TraceWriter]


def episode(n: int, steps: int, most: int) -> np.ndarray[Any, Any]:
    """Some steps of 512 random numbers, and padding."""
    rows = np.zeros((most, 512), np.float32)
    rows[:steps] = np.random.default_rng(n).standard_normal((steps, 512), np.float32)
    return rows


def batch(*episodes: tuple[int, int], most: int = 20) -> np.ndarray[Any, Any]:
    found = np.stack([episode(n, steps, most) for n, steps in episodes])
    found.flags.writeable = False
    return found


@settings(deadline=None)
@given(
    rows=st.lists(st.lists(st.sampled_from([b"a", b"b", b"\0"]), min_size=1, max_size=6), min_size=1, max_size=6),
    arrays=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=5), min_size=1, max_size=6),
    tail=st.integers(0, TILE - 1),
)
def test_the_extents_of_an_array_are_its_bytes_in_order(
    rows: list[list[bytes]], arrays: list[list[int]], tail: int
) -> None:
    length = TILE * max(map(len, rows)) + tail
    wide = [b"".join(letter * TILE for letter in row).ljust(length, b"z") for row in rows]
    tiles, records = DedupIndex(), dict[int, bytes]()
    for chosen in arrays:
        told = b"".join(wide[each % len(wide)] for each in chosen)
        plan = tiles.plan(np.frombuffer(told, np.uint8).reshape(len(chosen), length))
        assert plan is not None
        places = range(100 * len(records), 100 * (len(records) + len(plan.new)), 100)
        records |= dict(zip(places, map(bytes, plan.new), strict=True))
        extents = tiles.settle(plan, list(places))
        assert b"".join(records[record][begin : begin + n] for record, begin, n in extents) == told
        assert all(extent.length for extent in extents)
    again = tiles.plan(np.frombuffer(told, np.uint8).reshape(len(chosen), length))
    assert again is not None
    assert again.new == []


def test_tiles_beyond_the_limit_are_forgotten_and_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestra.trace.format.dedup.MOST_TILES", 4)
    tiles = DedupIndex()
    wide = [np.full((1, TILE), n, np.uint8) for n in range(6)]
    for record, array in enumerate(wide):
        plan = tiles.plan(array)
        assert plan is not None
        tiles.settle(plan, [record])
    kept = tiles.plan(wide[2])
    assert kept is not None
    assert tiles.settle(kept, []) == [(2, 0, TILE)]
    gone = tiles.plan(wide[0])  # the sixth made room for itself
    assert gone is not None
    assert [len(part) for part in gone.new] == [TILE]
    assert tiles.settle(gone, [10]) == [(10, 0, TILE)]


def test_rows_shorter_than_a_tile_are_not_deduplicated() -> None:
    assert DedupIndex().plan(np.zeros((9, TILE - 1), np.uint8)) is None
    assert DedupIndex().plan(np.zeros(9 * TILE, np.uint8)) is None
    assert DedupIndex().plan(np.zeros((0, TILE), np.uint8)) is None


def test_repeated_episodes_are_written_once(writer: MakeWriter, toy: Any, tmp_path: Path) -> None:
    made = writer()
    first, second = batch((1, 20), (2, 9), (3, 4)), batch((3, 4), (4, 5), (1, 20), (2, 9))
    longer = batch((2, 9), (4, 5), most=31)  # padded to another length
    for n, pixels in enumerate([first, second, first, longer], 1):
        made.write([toy.delivery(n, [n, pixels], kind=2)])
    made.close()
    new = 4 * 512 * (20 + 9 + 4 + 5)
    assert new < made.nbytes < new + 8 * TILE
    with TraceFile(made.paths[0]) as file:
        composed = [place for place in file.locations() if place.kind is Kind.COMPOSED]
    assert len(composed) == 3  # the third message has the array of the first
    with RunTrace(tmp_path) as trace:
        told = [record for _, record in trace.recordings[0].files[0].records() if isinstance(record, Delivery)]
        for record, pixels in zip(told, [first, second, first, longer], strict=True):
            np.testing.assert_array_equal(record.fields["pixels"], pixels)
        assert not told[1].fields["pixels"].flags.writeable


def test_a_trimmed_trace_is_self_contained(writer: MakeWriter, toy: Any, tmp_path: Path) -> None:
    made = writer()
    first, second = batch((1, 20), (2, 9)), batch((2, 9), (1, 20), (3, 4))
    made.write([toy.birth("toy/b"), toy.delivery(1, [1, first], actor="toy/b", kind=2)])
    made.write([toy.birth(), toy.delivery(1, [1, second], kind=2), toy.handled(1)])
    made.close()
    part = tmp_path / "part" / "part.trace"
    part.parent.mkdir()
    with RunTrace(tmp_path) as trace:
        assert write_trimmed(trace, trace.incarnation("toy/a"), part) == part.stat().st_size
    with TraceFile(part) as file:
        (told,) = [record for _, record in file.records() if isinstance(record, Delivery)]
    assert told.actor == "toy/a"
    np.testing.assert_array_equal(told.fields["pixels"], second)


def test_each_file_of_a_series_is_self_contained(writer: MakeWriter, toy: Any) -> None:
    made = writer(segment_bytes=80_000)
    for n in range(1, 9):
        made.write([toy.delivery(n, [n, batch((1, 20), (n, 9), (3, 4))], kind=2)])
    made.close()
    assert len(made.paths) > 1
    for path in made.paths:
        with TraceFile(path) as file:
            for _, record in file.records():
                if isinstance(record, Delivery):
                    np.testing.assert_array_equal(record.fields["pixels"], batch((1, 20), (record.n, 9), (3, 4)))


@pytest.mark.parametrize("every", [2, 3, 5])
def test_no_reference_points_to_data_that_was_not_written(writer: MakeWriter, toy: Any, every: int) -> None:
    made = writer(open_file=lambda path: toy.BadDisk(path, lambda write: write > 1 and write % every == 0))
    for n in range(1, 30):
        made.write([toy.delivery(n, [n, batch((n % 3, 9), (n % 5, 7))], kind=2)])
    made.close()
    with TraceFile(made.paths[0]) as file:
        told = [record for _, record in file.records()]
        assert file.damages == []
    assert any(isinstance(record, Gap) for record in told)
    kept = [record for record in told if isinstance(record, Delivery)]
    assert kept
    for record in kept:
        np.testing.assert_array_equal(record.fields["pixels"], batch((record.n % 3, 9), (record.n % 5, 7)))


def test_a_damaged_composed_record_costs_its_array_alone(writer: MakeWriter, toy: Any, tmp_path: Path) -> None:
    made = writer()
    made.write([toy.delivery(n, [n, batch((1, 9), (n, 7))], kind=2) for n in range(2, 4)])
    made.close()
    content = made.paths[0].read_bytes()
    with TraceFile(made.paths[0]) as file:
        last = [place for place in file.locations() if place.kind is Kind.COMPOSED][-1]
        whole = sum(isinstance(record, Delivery | Close) for _, record in file.records())
    for at in range(last.offset, last.end):
        damaged = bytearray(content)
        damaged[at] ^= 0x41
        hurt = tmp_path / "hurt.trace"
        hurt.write_bytes(damaged)
        with TraceFile(hurt) as file:
            told = [record for _, record in file.records()]
            assert [damage.offset for damage in file.damages] == [last.offset], at
            assert len(told) == whole
            first, second = [record for record in told if isinstance(record, Delivery)]
            np.testing.assert_array_equal(first.fields["pixels"], batch((1, 9), (2, 7)))
            assert not isinstance(second.fields["pixels"], np.ndarray)


def test_damage_to_a_part_costs_the_arrays_that_consist_of_it_alone(
    writer: MakeWriter, toy: Any, tmp_path: Path
) -> None:
    made = writer()
    both = batch((1, 9), (2, 7))
    made.write([toy.delivery(n, [n, batch((n, 7), (n, 7))], kind=2) for n in (1, 2)])
    made.write([toy.delivery(3, [3, both], kind=2), toy.delivery(4, [4, batch((1, 7), (1, 7))], kind=2)])
    made.close()
    content = bytearray(made.paths[0].read_bytes())
    with TraceFile(made.paths[0]) as file:
        parts = [place for place in file.locations() if place.kind in (Kind.BLOB, Kind.PACKED)]
    content[parts[1].body + 5000] ^= 0x41
    made.paths[0].write_bytes(content)
    with TraceFile(made.paths[0]) as file:
        told = [record for _, record in file.records() if isinstance(record, Delivery)]
    read = [isinstance(record.fields["pixels"], np.ndarray) for record in told]
    assert read == [True, False, False, True]


def test_written_pages_are_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "WINDOW", 1000)
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda file, begin, length, _: asked.append((begin, begin + length)))
    made = writing.TraceOutput(tmp_path / "some.trace")
    for n in range(40):
        made.write(bytes([n]) * 300)
    made.truncate(11_000)
    made.seek(11_000)
    made.write(b"!" * 1500)
    made.close()
    assert (tmp_path / "some.trace").stat().st_size == 12_500
    assert asked[0] == (0, 1200)
    assert all(later[0] <= earlier[1] for earlier, later in pairwise(asked)), "something was left out"
    assert max(end - begin for begin, end in asked) <= (writing.BEHIND + 3) * 1000
    assert asked[-1][1] == 12_500
