"""What is saved comes back as it was, or not at all."""

import os
import re
import signal
import subprocess
import sys
from threading import Thread

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.checkpoints.array_file import CheckpointError, StateArray, write_checkpoint
from components.envs.base import EnvSpec
from components.replay_buffers import (
    EpisodeReplay,
    Episodes,
    EpisodeTable,
    Field,
    FreshEpisodes,
    PrioritizedEpisodeReplay,
    PrioritizedTransitions,
    Transitions,
    TransitionTable,
)
from components.replay_buffers.limiter import SampleToInsertRatio
from components.replay_buffers.selectors import (
    FifoSelector,
    HighestSelector,
    LifoSelector,
    PrioritizedSelector,
    UniformSelector,
)

FIELDS = {"obs": Field(np.float32, (3,)), "reward": Field(np.float32, finite=True), "done": Field(np.bool_)}


def rng(seed=0):
    return np.random.default_rng(seed)


def insert_rows(replay, n):
    serial = (replay.inserted + np.arange(n)).astype(np.float32)
    replay.insert({"obs": serial[:, None] + np.arange(3, dtype=np.float32), "reward": serial, "done": serial % 3 == 2})


class Case:
    """A kind of object that is kept: how one is made, and how it and its like go on."""

    def __init__(self, make, insert):
        self.make, self.insert = make, insert

    def go_on(self, kept, n, seed):
        """Insert, draw and update `n` times, and return what was drawn."""
        generator, drawn = rng(seed), []
        for _ in range(n):
            self.insert(kept, int(generator.integers(1, 4)))
            if isinstance(kept, SampleToInsertRatio):
                continue
            if not len(kept):
                continue
            sampled = kept.sample(min(3, getattr(kept, "fresh", len(kept))), generator)
            obs = sampled.batch["obs"] if isinstance(sampled.batch, dict) else sampled.batch.obs
            drawn.append((sampled.indices.tolist(), sampled.generations.tolist(), obs.tobytes()))
            if hasattr(kept, "update"):
                kept.update(sampled.indices, sampled.generations, generator.random(len(sampled.indices)))
        return drawn


def limit(limiter, n):
    limiter.insert(n)
    limiter.sample(2 * n)
    limiter.delete()


@pytest.fixture(
    params=["rows", "rows by priority", "episodes", "episodes by priority", "fresh episodes", "limiter"], scope="module"
)
def case(request, spec, make_episodes):
    def insert_episodes(replay, n):
        first = replay.inserted
        replay.insert(Episodes(**make_episodes([1 + (first + i) % spec.episode_limit for i in range(n)], first=first)))

    return {
        "rows": Case(lambda: Transitions(FIELDS, 7), insert_rows),
        "rows by priority": Case(lambda: PrioritizedTransitions(FIELDS, 7, normalize="buffer", decay=0.9), insert_rows),
        "episodes": Case(lambda: EpisodeReplay(spec, 5), insert_episodes),
        "episodes by priority": Case(lambda: PrioritizedEpisodeReplay(spec, 5), insert_episodes),
        "fresh episodes": Case(lambda: FreshEpisodes(spec, 5), insert_episodes),
        "table": Case(
            lambda: TransitionTable(
                FIELDS, 7, sampler=PrioritizedSelector(7, 0.5), remover=UniformSelector(7), rng=rng(9)
            ),
            insert_rows,
        ),
        "queue": Case(
            lambda: TransitionTable(FIELDS, 7, sampler=FifoSelector(7), remover=LifoSelector(7), max_times_sampled=1),
            insert_rows,
        ),
        "table of episodes": Case(
            lambda: EpisodeTable(
                spec, 5, sampler=HighestSelector(5), remover=HighestSelector(5), remove_by="times_sampled"
            ),
            insert_episodes,
        ),
        "limiter": Case(lambda: SampleToInsertRatio(2, 3, 4), limit),
    }[request.param]


def assert_same(one, other):
    a, b = one.state(), other.state()
    assert a.keys() == b.keys()
    for name, array in a.items():
        assert (array.dtype, array.shape) == (b[name].dtype, b[name].shape)
        assert array.tobytes() == b[name].tobytes(), name


@pytest.mark.parametrize("n", [0, 1, 3, 20], ids=lambda n: f"after {n}")
@pytest.mark.parametrize("way", ["file", "state"])
def test_what_was_saved_goes_on_as_if_nothing_had_been(case, tmp_path, n, way):
    old, new = case.make(), case.make()
    case.go_on(old, n, 1)
    case.go_on(new, 4, 2)  # whatever it held before
    if way == "file":
        old.save(tmp_path / "a.npz")
        new.load(tmp_path / "a.npz")
        new.save(tmp_path / "b.npz")
        assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
        assert sorted(os.listdir(tmp_path)) == ["a.npz", "b.npz"]
    else:
        new.restore(old.state())
    assert_same(old, new)
    if hasattr(new, "check_valid"):
        assert new.check_valid() == []
    assert case.go_on(old, 20, 3) == case.go_on(new, 20, 3)
    assert_same(old, new)


def test_a_state_is_a_copy_that_a_thread_may_write_while_the_memory_goes_on(case, tmp_path):
    kept, then = case.make(), case.make()
    case.go_on(kept, 20, 1)
    state = kept.state()
    then.restore(state)
    writer = Thread(target=write_checkpoint, args=(tmp_path / "a.npz", state))
    writer.start()
    case.go_on(kept, 20, 2)
    writer.join()
    read = case.make()
    read.load(tmp_path / "a.npz")
    assert_same(read, then)
    then.save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_numpy_reads_a_checkpoint_and_needs_no_pickle(case, tmp_path):
    kept = case.make()
    case.go_on(kept, 3, 1)
    kept.save(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as arrays:
        assert {name: arrays[name].tobytes() for name in arrays} == {n: a.tobytes() for n, a in kept.state().items()}


# Damage ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(case, tmp_path_factory):
    """Return an object of a case, and where it was saved, and another of its kind that holds something else."""
    kept, other = case.make(), case.make()
    case.go_on(kept, 9, 1)
    case.go_on(other, 4, 2)
    path = tmp_path_factory.mktemp("saved") / "a.npz"
    kept.save(path)
    return kept, path.read_bytes(), other.state()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_refused_and_nothing_changes(case, saved, tmp_path_factory, data):
    kept, whole, before = saved
    other, path = case.make(), tmp_path_factory.getbasetemp() / "damaged.npz"
    other.restore(before)
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        path.write_bytes(whole[:at])
    else:
        spoilt = bytearray(whole)
        spoilt[at] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(bytes(spoilt))
    try:
        other.load(path)
    except CheckpointError:
        after = other.state()
        assert all(after[name].tobytes() == array.tobytes() for name, array in before.items())
    else:
        assert_same(other, kept)  # the byte was one that nobody reads, such as a date


def test_whichever_bit_of_an_archive_s_directory_is_wrong_nothing_but_a_refusal_comes_of_it(tmp_path):
    kept, path = SampleToInsertRatio(2.0, 2, 10.0), tmp_path / "a"
    kept.save(path)
    whole, refused = path.read_bytes(), 0
    for at in range(whole.index(b"PK\x01\x02"), len(whole)):
        for bit in range(8):
            spoilt = bytearray(whole)
            spoilt[at] ^= 1 << bit
            path.write_bytes(spoilt)
            try:
                kept.load(path)
            except CheckpointError:
                refused += 1
    assert refused > 1000


def test_damage_deep_inside_a_large_array_is_found_before_anything_changes(tmp_path):
    fields, path = {"x": Field(np.float64, (100,))}, tmp_path / "a.npz"
    kept, other = Transitions(fields, 500), Transitions(fields, 500)
    kept.insert({"x": np.ones((500, 100))})
    other.insert({"x": np.zeros((7, 100))})
    kept.save(path)
    spoilt = bytearray(path.read_bytes())
    spoilt[len(spoilt) // 2] ^= 1
    path.write_bytes(bytes(spoilt))
    with pytest.raises(CheckpointError, match=r"rows/x\.npy does not match its checksum"):
        other.load(path)
    assert len(other) == 7
    assert not other.sample(50, rng()).batch["x"].any()


def test_a_checkpoint_that_is_not_there_is_the_systems_error(case, tmp_path):
    with pytest.raises(FileNotFoundError):
        case.make().load(tmp_path / "a.npz")


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_if_writing_fails_the_file_before_it_stays(case, tmp_path, monkeypatch, failing):
    kept, path = case.make(), tmp_path / "a.npz"
    case.go_on(kept, 3, 1)
    kept.save(path)
    before = path.read_bytes()
    case.go_on(kept, 3, 2)

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="No space left"):
        kept.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.npz"]


DIES = """
import sys
import numpy as np
from components.checkpoints.array_file import StateArray, write_checkpoint

def pieces():
    yield np.ones(100_000)
    print("half", flush=True)
    sys.stdin.read()

write_checkpoint(sys.argv[1], {"x": StateArray(np.dtype(np.float64), (200_000,), pieces())})
"""


def test_a_writer_that_is_killed_leaves_the_file_before_it(tmp_path):
    path, limiter = tmp_path / "a.npz", SampleToInsertRatio(2, 3, 4)
    limiter.insert(5)
    limiter.save(path)
    with subprocess.Popen(
        [sys.executable, "-c", DIES, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout.readline() == "half\n"
        writer.send_signal(signal.SIGKILL)
    assert sorted(os.listdir(tmp_path)) == ["a.npz", "a.npz.partial"]
    read = SampleToInsertRatio(2, 3, 4)
    read.load(path)
    assert read.inserted == 5
    with pytest.raises(CheckpointError, match="expected a whole checkpoint, got a damaged one"):
        read.load(tmp_path / "a.npz.partial")
    limiter.save(path)
    assert os.listdir(tmp_path) == ["a.npz"]


# Another layout -------------------------------------------------------------------------------------------------------

TINY = {"n_agents": 2, "n_actions": 3, "obs_size": 4, "state_size": 5, "episode_limit": 6}


def rows(fields=FIELDS, capacity=7, kind=Transitions, **options):
    return kind(fields, capacity, **options)


def episodes(capacity=5, kind=EpisodeReplay, **sizes):
    return kind(EnvSpec("tiny", **{**TINY, **sizes}), capacity)


@pytest.mark.parametrize(
    ("saved", "loaded", "message"),
    [
        (rows, lambda: rows(capacity=8), "capacity: expected 8, got 7"),
        (rows, lambda: rows({**FIELDS, "obs": Field(np.float32, (4,))}),
         "rows/obs: expected float32 of shape (3, 4), got float32 of shape (3, 3)"),
        (rows, lambda: rows({**FIELDS, "obs": Field(np.float64, (3,))}), "rows/obs: expected float64 of shape (3, 3)"),
        (rows, lambda: rows({**FIELDS, "x": Field(np.bool_)}), "rows/x: expected an array of this name, got ["),
        (lambda: rows({**FIELDS, "x": Field(np.bool_)}), rows, "rows/x: expected no array of this name, but ["),
        (rows, lambda: rows(kind=PrioritizedTransitions), "kind: expected 'PrioritizedTransitions', got 'Transitions'"),
        (lambda: rows(kind=PrioritizedTransitions), lambda: rows(kind=PrioritizedTransitions, alpha=0.7),
         "alpha: expected 0.7, got 0.6"),
        (episodes, lambda: episodes(6), "capacity: expected 6, got 5"),
        (episodes, lambda: episodes(episode_limit=2), "lengths: expected 1 to 2 steps each, got [1 2 3]"),
        (episodes, lambda: episodes(n_agents=3), "items/obs: expected (3, 4), got (2, 4)"),
        (episodes, lambda: episodes(state_size=1), "items/state: expected (1,), got (5,)"),
        (episodes, rows, "kind: expected 'Transitions', got 'EpisodeReplay'"),
        (lambda: SampleToInsertRatio(1, 1, 1), rows, "kind: expected 'Transitions', got 'SampleToInsertRatio'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("way", ["file", "state"])
def test_what_was_saved_of_another_layout_is_refused_by_name(make_episodes, tmp_path, saved, loaded, message, way):
    source, target = saved(), loaded()
    if isinstance(source, EpisodeReplay):
        source.insert(Episodes(**make_episodes([1, 2, 3])))
    elif isinstance(source, Transitions):
        for _ in range(3):
            source.insert_one({name: np.ones(f.shape, f.dtype)[()] for name, f in source.fields.items()})
    with pytest.raises(CheckpointError, match=re.escape(message)):
        if way == "state":
            target.restore(source.state())
        else:
            source.save(tmp_path / "a.npz")
            target.load(tmp_path / "a.npz")
    assert len(target) == target.inserted == 0


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("format", np.array(2), "format: this version reads format 4 only, got format 2"),
        ("inserted", np.array(-1), "inserted: expected 0 to …, got -1"),
        ("inserted", np.array(3.0), "inserted: expected int64 of shape (), got float64"),
        ("capacity", np.array([7]), "capacity: expected 7, got int64 of shape (1,)"),
        ("priorities/weights", np.array([1.0, np.nan, 1.0]), "weights: expected numbers of at least 0 with"),
        ("priorities/weights", np.array([1.0, -1.0, 1.0]), "weights: expected numbers of at least 0"),
        ("priorities/beta", np.array(1.5), "beta: expected a finite number in [0, 1.0], got 1.5"),
        ("priorities/largest", np.array(np.inf), "largest: expected a finite number in [0, inf], got inf"),
    ],
)  # fmt: skip
def test_books_that_cannot_be_are_refused_and_nothing_changes(name, value, message):
    source, target = PrioritizedTransitions(FIELDS, 7), PrioritizedTransitions(FIELDS, 7)
    insert_rows(source, 3)
    insert_rows(target, 2)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        target.restore({**source.state(), name: value})
    assert target.inserted == 2
    assert target.check_valid() == []


def table(sampler=UniformSelector, **options):
    return TransitionTable(FIELDS, 7, sampler=sampler(7, **options), remover=FifoSelector(7))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("slots/generations", np.array([0, 0, 1, -1, -1, -1, -1]), "generations: expected numbers below 3, each once"),
        ("slots/generations", np.array([0, 1, 3, -1, -1, -1, -1]), "generations: expected numbers below 3, each once"),
        ("slots/times_sampled", np.full(7, -1), "times_sampled: expected numbers of at least 0"),
        ("slots/free", np.array([6, 5, 4, 4]), "free: expected the slots without a generation, got [6 5 4 4]"),
        ("slots/rng", np.array([1, 2], np.uint8), "rng: expected the state of a PCG64, got b'"),
        ("slots/sampler/items", np.array([0, 1, 4]), "items: expected those that are there, [0 1 2], got [0 1 4]"),
        ("slots/remover/items", np.array([0, 1, 4]), "items: expected those that are there, [0 1 2], got [0 1 4]"),
        ("slots/remover/keys", np.full(3, np.nan), "keys: expected numbers, got [nan nan nan]"),
        ("slots/remover/ticks", np.array([0, 0, 1]), "ticks: expected numbers of 0 to 2, each once, got [0 0 1]"),
        ("slots/remover/kind", np.array("LifoSelector"), "kind: expected 'FifoSelector', got 'LifoSelector'"),
    ],
)
def test_books_of_a_table_that_cannot_be_are_refused_and_nothing_changes(name, value, message):
    source, target = table(), table()
    insert_rows(source, 3)
    insert_rows(target, 2)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        target.restore({**source.state(), name: value})
    assert len(target) == target.inserted == 2
    assert target.check_valid() == []


def test_weights_made_with_another_exponent_are_refused():
    source, target = table(PrioritizedSelector, exponent=0.5), table(PrioritizedSelector, exponent=0.6)
    with pytest.raises(CheckpointError, match=re.escape("exponent: expected 0.6, got 0.5")):
        target.restore(source.state())
    insert_rows(source, 1)
    with pytest.raises(CheckpointError, match=re.escape("weights: expected finite numbers of at least 0, got [-1.]")):
        source.restore({**source.state(), "slots/sampler/weights": np.array([-1.0])})


def test_what_is_no_plain_memory_is_not_written(tmp_path):
    with pytest.raises(TypeError, match="x: expected a dtype of plain memory, got object"):
        write_checkpoint(tmp_path / "a.npz", {"x": np.array([None])})
    assert os.listdir(tmp_path) == []


def test_an_archive_of_something_else_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    with path.open("wb") as file:
        np.savez(file, allow_pickle=True, x=np.array([None]))
    with pytest.raises(CheckpointError, match="expected a whole checkpoint, got a damaged one"):
        Transitions(FIELDS, 7).load(path)


def test_a_column_may_come_in_pieces(tmp_path):
    parts = [np.arange(6.0).reshape(3, 2), np.zeros((0, 2)), np.ones((1, 2))]
    write_checkpoint(tmp_path / "a.npz", {"x": StateArray.of(*parts)})
    with np.load(tmp_path / "a.npz") as arrays:
        np.testing.assert_array_equal(arrays["x"], np.concatenate(parts))
