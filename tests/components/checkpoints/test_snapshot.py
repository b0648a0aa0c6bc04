"""Snapshots: of one moment, whatever is overwritten while they are read, and by whom."""

import re
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.checkpoints import snapshot
from components.checkpoints.array_file import StateArray
from components.checkpoints.snapshot import Snapshot
from components.replay_buffers import (
    Episodes,
    Field,
    PrioritizedEpisodeReplay,
    PrioritizedTransitions,
    Transitions,
    open_checkpoint,
)

FIELDS = {"x": Field(np.float32, (3,)), "none": Field(np.float32, (0,)), "y": Field(np.int64), "z": Field(np.bool_)}


def rng(seed=0):
    return np.random.default_rng(seed)


def put_rows(memory, generator, n):
    n = n % (2 * memory.capacity)
    memory.insert({name: generator.integers(0, 2, (n, *f.shape)).astype(f.dtype) for name, f in FIELDS.items()})


def put_one(memory, generator, _):
    memory.insert_one({name: generator.integers(0, 2, f.shape).astype(f.dtype) for name, f in FIELDS.items()})


def put_episodes(make_episodes, memory, generator, n):
    memory.insert(
        Episodes(**make_episodes(generator.integers(1, 7, 1 + n % 5).tolist(), first=int(generator.integers(90))))
    )


def touch(memory, generator, n):
    """Change priorities, and draw, which makes them decay."""
    if len(memory):
        index = np.array([n % len(memory)])
        memory.update(index, memory._index.generations_of(index), generator.random(1))
        memory.sample(1, generator)


actions = st.lists(st.tuples(st.sampled_from(["read", "put", "one", "touch"]), st.integers(0, 30)), max_size=60)


@settings(deadline=None, max_examples=150)
@given(
    kind=st.sampled_from(["rows", "ranks", "episodes"]),
    capacity=st.sampled_from([1, 2, 7, 40]),
    size=st.sampled_from([1, 16, 100, 1 << 20]),
    filled=st.integers(0, 12),
    acts=actions,
    seed=st.integers(0, 99),
)
def test_a_snapshot_is_of_the_moment_it_was_made_in(spec, make_episodes, kind, capacity, size, filled, acts, seed):
    generator = rng(seed)
    put, one = put_rows, put_one
    if kind == "episodes":
        memory = PrioritizedEpisodeReplay(spec, capacity, decay=0.5)

        def put(memory, generator, n):
            put_episodes(make_episodes, memory, generator, n)

        one = put
    else:
        memory = PrioritizedTransitions(FIELDS, capacity, variant="rank" if kind == "ranks" else "proportional")
    for i in range(filled):
        put(memory, generator, 5 + i)
    expected = memory.state()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(snapshot, "PIECE", size)
        taken = Snapshot(memory.state_arrays(), [memory])
    read = {name: [] for name in expected}
    pieces = ((name, piece) for name, column in taken.arrays.items() for piece in column.pieces)
    for act, n in acts:
        if act == "read":
            for name, piece in islice(pieces, n):
                read[name].append(piece)
        else:
            {"put": put, "one": one, "touch": touch}[act](memory, generator, n)
    for name, piece in pieces:
        read[name].append(piece)
    for name, array in expected.items():
        column = taken.arrays[name]
        assert (column.dtype, column.shape) == (array.dtype, array.shape)
        assert b"".join(piece.tobytes() for piece in read[name]) == array.tobytes(), name


def test_only_what_is_overwritten_is_copied_and_only_until_it_is_read(monkeypatch):
    monkeypatch.setattr(snapshot, "PIECE", 80)
    memory = Transitions({"y": Field(np.int64)}, 100)
    memory.insert({"y": np.arange(100)})
    taken = Snapshot(memory.state_arrays(), [memory])
    pieces = taken._pieces
    assert len(pieces) == 10
    assert not any(piece.own for piece in pieces), "so far it has cost no memory"
    memory.insert({"y": np.arange(100, 125)})
    assert [piece.own for piece in pieces] == [True] * 3 + [False] * 7
    kept = list(taken.arrays["rows/y"].pieces)
    assert np.concatenate(kept).tolist() == list(range(100))
    memory.insert({"y": np.arange(125, 200)})
    assert [piece.rows for piece in pieces] == [None] * 10
    assert np.concatenate(kept).tolist() == list(range(100))


def test_what_is_put_back_from_a_checkpoint_is_announced_too(spec, make_episodes):
    of_rows = PrioritizedTransitions(FIELDS, 8)
    put_rows(of_rows, rng(), 8)
    of_episodes = PrioritizedEpisodeReplay(spec, 8)
    of_episodes.insert(Episodes(**make_episodes([3, 6, 1])))
    for memory in (of_rows, of_episodes):
        expected = memory.state()
        taken = Snapshot(memory.state_arrays(), [memory])
        memory.restore({name: array if array.ndim < 2 else array[::-1] for name, array in expected.items()})
        for name, array in expected.items():
            assert b"".join(piece.tobytes() for piece in taken.arrays[name].pieces) == array.tobytes()


def test_what_was_written_is_what_save_writes_and_nobody_is_told_any_more(tmp_path):
    memory = PrioritizedTransitions(FIELDS, 8)
    put_rows(memory, rng(), 13)
    memory.save(tmp_path / "a")
    taken = Snapshot(memory.state_arrays(), [memory])
    assert memory.overwrites == taken.keep
    put_rows(memory, rng(1), 5)
    taken.write(tmp_path / "b")
    assert memory.overwrites is None
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with open_checkpoint(tmp_path / "b") as reader:
        assert reader.read_count("inserted") == 13
    with pytest.raises(RuntimeError, match="a snapshot is written once"):
        taken.write(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_memory_that_is_announced_lies_in_one_piece():
    column = StateArray.of(np.zeros((4, 4))[:, :2], announced=True)
    with pytest.raises(ValueError, match=re.escape("pieces: expected contiguous memory where it is announced")):
        Snapshot({"x": column}, [])
