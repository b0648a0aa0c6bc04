"""Fields of which most numbers are zero or do not change: what comes back is what went in, and needs less memory."""

import itertools
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.checkpoints.array_file import CheckpointError
from components.checkpoints.part_files import PartFiles
from components.checkpoints.snapshot import Snapshot
from components.envs.base import EnvSpec
from components.envs.skirmish.compiling import COMPILED
from components.experience import ExperienceSchema, FieldSpec
from components.replay_buffers import (
    EpisodeReplay,
    Episodes,
    EpisodeTable,
    FifoSelector,
    InvalidExperience,
    PrioritizedEpisodeReplay,
    UniformSelector,
    open_checkpoint,
    packed_episode_store,
)
from components.replay_buffers.sparse_ring import SparseRing
from components.sparse import codec
from components.sparse.kernel import LANES
from components.sparse.kernel import loops as kernel
from orchestra import SparseArray

LIMIT = 5


def rng(seed=0):
    return np.random.default_rng(seed)


def some_zeros(generator, shape, share):
    """Return frames of numbers of any bits, about a share of them not zero; half of all are as in the frame before."""
    bits = generator.integers(1, 1 << 32, shape, dtype=np.uint32)
    numbers = np.where(generator.random(shape) < share, bits, np.uint32(0))
    for before, frame in itertools.pairwise(numbers):
        np.copyto(frame, before, where=generator.random(frame.shape) < 0.5)
    return numbers


def encode(numbers, bits, values, counts=None):
    """Encode items of `counts` frames, by default one; return the number of values of each."""
    nothing = kernel.read_only(np.zeros(numbers.shape[1], np.uint32))
    n_frames = np.array([len(numbers)] if counts is None else counts)
    items = np.array([np.cumsum(n_frames) - n_frames, n_frames]).T.copy()
    kernel.encode(kernel.read_only(numbers), items, nothing, bits, values)
    return items[:, 1]


def row(n):
    """Return memory for a frame, with any numbers in it."""
    return np.full(n, 5, np.uint32)


# The code -------------------------------------------------------------------------------------------------------------

seeds = st.integers(0, 99)
shapes = st.tuples(st.integers(1, 6), st.sampled_from([1, 2, LANES - 1, LANES, LANES + 1, 3 * LANES, 3 * LANES + 5]))


@settings(max_examples=100, deadline=None)
@given(shape=shapes, share=st.sampled_from([0.0, 0.1, 0.5, 1.0]), skipped=st.integers(0, 5), seed=st.integers(0, 99))
def test_numbers_that_were_encoded_are_decoded_from_anywhere_in_the_rings(shape, share, skipped, seed):
    generator, (frames, n), groups = rng(seed), shape, -(-shape[1] // LANES)
    numbers = some_zeros(generator, shape, share)
    bits, values = np.zeros((frames, groups), np.uint16), np.zeros(numbers.size + LANES, np.uint32)
    (n_values,) = encode(numbers, bits, values)

    changes = numbers.copy()
    changes[1:] ^= numbers[:-1]
    told = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")[:, :n] != 0
    np.testing.assert_array_equal(told, changes != 0)
    np.testing.assert_array_equal(values[:n_values], changes[changes != 0])
    begin, start = generator.integers(0, n_values + 3), generator.integers(0, frames + 2)
    values_ring, bits_ring = np.full(n_values + 3, 7, np.uint32), np.full((frames + 2, groups), 7, np.uint16)
    values_ring[(begin + np.arange(n_values)) % len(values_ring)] = values[:n_values]
    bits_ring[(start + np.arange(frames)) % len(bits_ring)] = bits
    before = min(skipped, frames)
    out = np.full((frames - before + 2, n), 9, np.uint32)
    rings = kernel.read_only(bits_ring), kernel.read_only(values_ring)
    kernel.decode(*rings, np.array([[1, start, begin, before, frames - before]]), row(n), out)
    np.testing.assert_array_equal(out[1:-1], numbers[before:])
    assert (out[[0, -1]] == 9).all(), "no other row is written"


def test_a_full_ring_is_read_to_its_last_value():
    numbers, bits = np.arange(1, LANES + 1, dtype=np.uint32)[None], np.zeros((1, 1), np.uint16)
    values = np.zeros(2 * LANES, np.uint32)
    assert encode(numbers, bits, values).tolist() == [LANES]
    out = np.zeros((1, LANES), np.uint32)
    full = kernel.read_only(values[:LANES].copy())
    kernel.decode(kernel.read_only(bits), full, np.array([[0, 0, 0, 0, 1]]), row(LANES), out)
    np.testing.assert_array_equal(out, numbers)


@given(counts=st.lists(st.integers(1, 4), min_size=1, max_size=5), n=st.sampled_from([3, LANES + 1]), seed=seeds)
def test_items_are_encoded_together_as_each_alone(counts, n, seed):
    numbers, groups = some_zeros(rng(seed), (sum(counts), n), 0.5), -(-n // LANES)
    bits, values = np.zeros((sum(counts), groups), np.uint16), np.zeros(numbers.size + LANES, np.uint32)
    n_values = encode(numbers, bits, values, counts)
    items, its_bits = (np.split(array, np.cumsum(counts)[:-1]) for array in (numbers, bits))
    place = 0
    for item, own_bits, n_own in zip(items, its_bits, n_values.tolist(), strict=True):
        alone, own = np.zeros_like(own_bits), np.zeros(item.size + LANES, np.uint32)
        assert encode(item, alone, own).tolist() == [n_own]
        np.testing.assert_array_equal(own_bits, alone)
        np.testing.assert_array_equal(values[place : place + n_own], own[:n_own])
        place += n_own


# Buffers --------------------------------------------------------------------------------------------------------------


def schema(obs=(2, 9), *, sparse=True, limit=LIMIT):
    return ExperienceSchema(
        obs[0],
        limit,
        (
            ("obs", FieldSpec(obs[1:], "float32", "frame", agents=True, sparse=sparse)),
            ("count", FieldSpec((3,), "int32", "frame", sparse=sparse)),
            ("reward", FieldSpec()),
        ),
    )


def made(generator, lengths, obs=(2, 9), share=0.4):
    frames, steps = sum(lengths) + len(lengths), sum(lengths)
    return {
        "obs": some_zeros(generator, (frames, *obs), share).view(np.float32),
        "count": some_zeros(generator, (frames, 3), share).view(np.int32),
        "reward": generator.normal(size=steps).astype(np.float32),
        "terminated": generator.random(len(lengths)) < 0.5,
        "lengths": np.array(lengths, np.int32),
    }


def by_episode(arrays, name):
    ends = np.cumsum(arrays["lengths"].astype(int) + 1)
    return np.split(arrays[name], ends[:-1])


lengths = st.lists(st.lists(st.integers(1, LIMIT), min_size=1, max_size=6), min_size=1, max_size=8)


@settings(max_examples=80, deadline=None)
@given(
    capacity=st.integers(1, 7),
    inserts=lengths,
    share=st.sampled_from([0.0, 0.1, 0.9]),
    rollout=st.integers(1, LIMIT + 1),
    at_a_time=st.sampled_from([0, codec.AT_A_TIME]),
    seed=seeds,
)
def test_a_buffer_returns_sparse_fields_bit_for_bit(capacity, inserts, share, rollout, at_a_time, seed):
    generator = rng(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_episode_store, "FIRST_EPISODES", 1)
        patch.setattr(codec, "AT_A_TIME", at_a_time)
        replay = PrioritizedEpisodeReplay(schema(), capacity)
    held = {"obs": [], "count": []}
    for some in inserts:  # often round the ring, which grows meanwhile; some episodes have no value at all
        arrays = made(generator, some, share=generator.choice([0.0, share]))
        replay.insert(Episodes(**arrays))
        held = {name: [*held[name], *by_episode(arrays, name)][-capacity:] for name in held}
        assert replay.check_valid() == []
    oldest = replay.inserted - len(replay)
    drawn = replay.sample_rollouts(len(replay), rollout, generator)
    for i, (serial, first) in enumerate(zip(drawn.generations.tolist(), drawn.firsts.tolist(), strict=True)):
        n = int(drawn.batch.lengths[i]) + 1
        for name, episodes in held.items():
            expected = episodes[serial - oldest][first : first + n]
            assert drawn.batch[name][i, :n].tobytes() == expected.tobytes()
            assert not drawn.batch[name][i, n:].view(np.uint32).any()
    other = PrioritizedEpisodeReplay(schema(), capacity)
    other.restore(replay.state())
    assert other.check_valid() == []
    for name, array in replay.state().items():
        assert other.state()[name].tobytes() == array.tobytes()


def table(spec, capacity):
    return EpisodeTable(spec, capacity, sampler=UniformSelector(capacity), remover=FifoSelector(capacity))


def differences(array, lengths):
    """Return the frames of episodes as a sparse array."""
    counts = np.array(lengths, np.int64) + 1
    encoder = codec.Encoder(array.shape[1:], array.dtype)
    bits, values, sizes = np.empty((len(array), encoder.groups), np.uint16), [], []
    for _, some, n_values in encoder.encode(array, np.cumsum(counts) - counts, counts, bits):
        values.append(some.copy())
        sizes += n_values.tolist()
    return SparseArray(bits, np.concatenate(values), array.shape, tuple(counts.tolist()), tuple(sizes))


@settings(max_examples=80, deadline=None)
@given(some=st.lists(st.integers(1, LIMIT), min_size=1, max_size=6), share=st.sampled_from([0.0, 0.4]), seed=seeds)
def test_a_sparse_array_is_read_by_compiled_loops_as_by_numpy(some, share, seed):
    arrays = made(rng(seed), some, share=share)
    for name in ("obs", "count"):
        one, other = (differences(arrays[name], some) for _ in range(2))
        assert one.dense().tobytes() == codec.dense(other).tobytes() == arrays[name].tobytes()
        assert codec.dense(other) is codec.dense(other), "it is made once"
        assert not codec.dense(other).flags.writeable
        assert codec.counts(one.bits, np.array(one.pieces)).tolist() == list(one.counts)


@pytest.mark.parametrize("make", [partial(EpisodeReplay, capacity=7), partial(table, capacity=7)])
def test_sparse_arrays_are_inserted_as_the_arrays_themselves(make):
    generator, twins = rng(), [make(schema()) for _ in range(2)]
    for some in ([2, 5], [1], [3, 3, 4], [5, 1, 2, 2, 4, 1, 3]):
        arrays = made(generator, some)
        sparse = {name: differences(arrays[name], some) for name in ("obs", "count")}
        twins[0].insert(Episodes(**arrays))
        twins[1].insert(Episodes(**arrays | sparse))
        for name, array in twins[0].state().items():
            assert twins[1].state()[name].tobytes() == array.tobytes()
    batches = [twin.sample(5, rng(1)).batch for twin in twins]
    assert batches[0]["obs"].tobytes() == batches[1]["obs"].tobytes()


def test_of_more_episodes_than_there_is_room_for_the_last_are_kept():
    some = [2, 5, 1, 3, 4]
    arrays = made(rng(), some)
    replay = EpisodeReplay(schema(), 2)
    replay.insert(Episodes(**arrays | {"obs": differences(arrays["obs"], some)}))
    assert replay.state()["lengths"].tolist() == [3, 4]
    drawn = replay.sample_rollouts(2, LIMIT, rng(), burn_in=0)
    for i, serial in enumerate(drawn.generations.tolist()):
        episode = by_episode(arrays, "obs")[serial]
        assert drawn.batch["obs"][i, : len(episode)].tobytes() == episode.tobytes()


def test_whole_episodes_are_drawn_as_sparse_arrays_on_demand():
    replay = EpisodeReplay(schema(), 8)
    replay.insert(Episodes(**made(rng(), [5] * 8)))
    held = replay.sample(4, rng(1), sparse=True).batch.held("obs")
    assert isinstance(held, SparseArray)
    assert (held.array, held.pieces) == (None, (6,) * 4)
    dense, sparse = replay.sample(4, rng(1)).batch, replay.sample(4, rng(1), sparse=True).batch
    assert isinstance(dense.held("obs"), np.ndarray)
    assert sparse["obs"].tobytes() == dense["obs"].tobytes(), "padded"
    assert sparse.frames("obs").tobytes() == dense.frames("obs").tobytes()
    assert sparse.frames("obs") is sparse.frames("obs") is sparse.held("obs").array


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"shape": (7, 18)}, r"expected float32 of shape \(7, 2, 9\), got float32 of shape \(7, 18\)"),
        ({"pieces": (3, 4)}, r"expected pieces of \(4, 3\) rows, as the segments, got \(3, 4\)"),
        ({"counts": None}, r"expected counts as bits are set in the pieces, \(\d+, \d+\), got \(\d+, \d+\)"),
        ({"bits": None}, "expected no bits beyond the 18 numbers of a row"),
        ({"values": None}, r"expected float32 of shape \(7, 2, 9\), got int32 of shape \(7, 2, 9\)"),
    ],
)
def test_a_sparse_array_that_does_not_fit_is_refused_and_nothing_changes(changed, said):
    arrays = made(rng(), [3, 2])
    sparse = differences(arrays["obs"], [3, 2])
    if "counts" in changed:
        changed = {"counts": (sparse.counts[0] + 1, sparse.counts[1] - 1)}
    if "bits" in changed:  # one number of a row less, one beyond its end more
        bits = sparse.bits.copy()
        (row,) = np.flatnonzero(bits[:, 0])[:1]
        bits[row, 0] &= bits[row, 0] - 1
        bits[row, 1] |= 1 << 2
        changed = {"bits": bits}
    if "values" in changed:
        changed = {"values": sparse.values.view(np.int32)}
    wrong = SparseArray(**sparse.record() | changed)
    replay = EpisodeReplay(schema(), 3)
    with pytest.raises(InvalidExperience, match=f"^obs: {said}"):
        replay.insert(Episodes(**arrays | {"obs": wrong}))
    assert len(replay) == 0
    with pytest.raises(InvalidExperience, match="obs: expected float32 of shape"):
        EpisodeReplay(schema(sparse=False), 3).insert(Episodes(**arrays | {"obs": sparse}))


def test_numbers_of_a_sparse_array_are_checked_as_all_others():
    fields = (
        ("obs", FieldSpec((9,), "float32", "frame", agents=True, sparse=True, finite=True)),
        ("reward", FieldSpec()),
    )
    arrays = made(rng(), [2])
    del arrays["count"]
    arrays["obs"][:] = 1.0
    arrays["obs"][1, 0, 3] = np.nan
    replay = EpisodeReplay(ExperienceSchema(2, LIMIT, fields), 3)
    with pytest.raises(InvalidExperience, match=r"(?s)obs: expected finite numbers, got .* at frame 1"):
        replay.insert(Episodes(**arrays | {"obs": differences(arrays["obs"], [2])}))


def test_an_oldest_episode_without_values_is_saved_with_those_after_it():
    ring = SparseRing((1,), np.dtype(np.int32), 3, 4, None)
    for slot, changes, unit in (0, 4, 1), (1, 0, 1), (2, 2, 10), (0, 1, 7):  # it grows where slot 1 begins
        frames = (unit * np.minimum(np.arange(1, 5), changes)).astype(np.int32)[:, None]
        ring.write([slot], frames, [4], None)
    saved = ring.state_array(np.array([1, 2, 0]))
    assert np.concatenate(list(saved.pieces)).tolist() == [10, 10 ^ 20, 7]
    assert ring.check_valid(np.array([1, 2, 0]), np.array([0, 2, 1])) == []


def test_a_saved_episode_has_no_step_after_its_last_frame():
    replay = EpisodeReplay(schema(), 3)
    for seed in range(4):  # episodes of other lengths lay in the same rows before
        replay.insert(Episodes(**made(rng(seed), [3, 1 + seed % 3, 2])))
    state = replay.state()
    ends = np.cumsum(state["lengths"] + 1) - 1
    is_last = np.isin(np.arange(len(state["frames/reward"])), ends)
    np.testing.assert_array_equal(state["frames/reward"] == 0, is_last)


def test_minus_zero_nan_and_subnormal_numbers_are_kept():
    arrays = made(rng(), [1])
    arrays["obs"][:] = np.array([-0.0, np.nan, 1e-42, 0.0, -np.inf, 1.0, 0.0, 0.0, -1e-45], np.float32)
    replay = EpisodeReplay(schema(), 2)
    replay.insert(Episodes(**arrays))
    assert replay.sample(1, rng()).batch["obs"].tobytes() == arrays["obs"].tobytes()


def test_memory_is_that_of_the_numbers_that_change():
    replays = [EpisodeReplay(schema((8, 64), sparse=sparse, limit=20), 64) for sparse in (True, False)]
    for i in range(20):
        arrays = made(rng(i), [20] * 10, (8, 64), share=0.25)
        for replay in replays:
            replay.insert(Episodes(**arrays))
    changed = 0.5 * (1 - 0.75**2)  # half are kept, and of the others those are equal that are zero twice
    sparse, dense = (replay.n_bytes for replay in replays)
    assert changed + 1 / 32 < sparse / dense < 1.25 * (changed + 1 / 32)


def test_a_buffer_on_a_disk_and_one_in_memory_load_each_other_s_states(tmp_path):
    generator = rng()
    one, other = EpisodeReplay(schema(), 4), EpisodeReplay(schema(), 4, folder=tmp_path)
    for some in ([3, 5], [2, 1, 4], [5]):
        one.insert(Episodes(**made(generator, some)))
    one.save(tmp_path / "state", packed=True)
    other.load(tmp_path / "state")
    assert other.check_valid() == []
    for name, array in one.state().items():
        assert other.state()[name].tobytes() == array.tobytes()
    batches = [replay.sample(4, rng(1)).batch for replay in (one, other)]
    assert batches[0]["obs"].tobytes() == batches[1]["obs"].tobytes()
    other.insert(Episodes(**made(generator, [4, 4])))
    assert other.check_valid() == []


def test_a_snapshot_keeps_values_that_are_overwritten_meanwhile(tmp_path):
    generator = rng()
    replay = EpisodeReplay(schema(), 3)
    replay.insert(Episodes(**made(generator, [3, 4, 5])))
    before = replay.state()
    snapshot = Snapshot(replay.state_arrays(), [replay])
    for _ in range(4):
        replay.insert(Episodes(**made(generator, [5, 2, 1])))
    snapshot.write(tmp_path / "state")
    with open_checkpoint(tmp_path / "state") as reader:
        for name, array in before.items():
            assert reader.read(name, array.dtype, array.shape).tobytes() == array.tobytes()


def _bits_beyond(state):
    state["frames/count"][0] |= 1 << 3


def _one_value_less(state):
    state["values/obs"] = state["values/obs"][:-1]


def _another_shape(state):
    state["items/obs"] = np.array([9, 2])


def _no_bits(state):
    del state["frames/obs"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_bits_beyond, r"values/count: expected no bits beyond the 3 numbers of a frame"),
        (_one_value_less, r"values/obs: expected float32 of shape \(\d+,\), got float32 of shape \(\d+,\)"),
        (_another_shape, r"items/obs: expected \(2, 9\), got \(9, 2\)"),
        (_no_bits, r"frames/obs: expected an array of this name"),
    ],
)
def test_a_state_that_cannot_be_is_refused_and_nothing_changes(spoil, message):
    replay = EpisodeReplay(schema(), 3)
    replay.insert(Episodes(**made(rng(), [3, 4])))
    state = replay.state()
    spoil(state)
    other = EpisodeReplay(schema(), 3)
    other.insert(Episodes(**made(rng(1), [2])))
    before = other.state()
    with pytest.raises(CheckpointError, match=message):
        other.restore(state)
    assert {name: array.tobytes() for name, array in other.state().items()} == {
        name: array.tobytes() for name, array in before.items()
    }


def test_parts_with_a_field_that_is_not_sparse_here_are_refused_by_name(tmp_path):
    replay = EpisodeReplay(schema(), 3)
    replay.insert(Episodes(**made(rng(), [3, 4])))
    PartFiles(replay).save(tmp_path / "state")
    with pytest.raises(CheckpointError, match=r"values/(obs|count): expected no array of this name, but those of \[\]"):
        PartFiles(EpisodeReplay(schema(sparse=False), 3)).load(tmp_path / "state")


@pytest.mark.skipif(not COMPILED, reason="nothing is compiled")
def test_a_buffer_calls_the_loops_with_the_types_that_were_compiled_ahead_of_time(tmp_path):
    arrays = made(rng(), [3, 4])
    for folder, writeable in (None, True), (tmp_path, False):
        for array in arrays.values():
            array.flags.writeable = writeable  # not in a message
        replay = EpisodeReplay(schema(), 3, folder=folder)
        replay.insert(Episodes(**arrays))
        replay.sample(2, rng())
        replay.save(tmp_path / "state", packed=True)
        replay.load(tmp_path / "state")
        assert replay.check_valid() == []
    assert [len(function.signatures) for function in (kernel.encode, kernel.decode)] == [1, 1]


def test_observations_and_states_of_a_team_are_sparse():
    spec = EnvSpec("tiny", n_agents=2, n_actions=3, obs_size=4, state_size=5, episode_limit=6)
    assert [name for name, field in spec.schema.fields if field.sparse] == ["obs", "state"]
    assert set(EpisodeReplay(spec, 2)._store._sparse) == {"obs", "state"}
    table = EpisodeTable(spec, 2, sampler=UniformSelector(2), remover=FifoSelector(2))
    assert table._store._sparse == {}, "episodes of a table leave in any order"


@pytest.mark.parametrize(("dtype", "per"), [("float64", "frame"), ("uint8", "frame"), ("float32", "step")])
def test_a_sparse_field_has_four_bytes_a_number_and_belongs_to_frames(dtype, per):
    with pytest.raises(ValueError, match=f"sparse: expected False for {dtype} per {per}, got True"):
        FieldSpec((3,), dtype, per, sparse=True)
