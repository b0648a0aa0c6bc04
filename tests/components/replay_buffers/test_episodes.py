"""Both replay buffers against a list of episodes."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.replay_buffers import (
    EpisodeReplay,
    Episodes,
    InvalidExperience,
    PrioritizedEpisodeReplay,
    packed_episode_store,
)
from components.replay_buffers.storage import BatchMemory
from orchestra.actors.arrays import is_frozen

FRAME_FIELDS = ("obs", "state", "available")
STEP_FIELDS = ("actions", "reward")


@pytest.fixture(params=[EpisodeReplay, PrioritizedEpisodeReplay], ids=lambda kind: kind.__name__, scope="session")
def kind(request):
    return request.param


def rng(seed=0):
    return np.random.default_rng(seed)


def split(fields):
    """Return one dictionary per episode of what `insert` takes."""
    stops = np.cumsum(fields["lengths"])
    apart = []
    for i, (stop, n) in enumerate(zip(stops.tolist(), fields["lengths"].tolist(), strict=True)):
        one = {name: fields[name][stop - n + i : stop + i + 1] for name in FRAME_FIELDS}
        one |= {name: fields[name][stop - n : stop] for name in STEP_FIELDS}
        apart.append(one | {"terminated": fields["terminated"][i], "length": n})
    return apart


def assert_is(batch, row, episode):
    """The given row of a batch is the episode, and zeros after it."""
    n = episode["length"]
    assert batch.lengths[row] == n
    assert batch.terminated[row] == episode["terminated"]
    for names, real in ((FRAME_FIELDS, n + 1), (STEP_FIELDS, n)):
        for name in names:
            np.testing.assert_array_equal(getattr(batch, name)[row, :real], episode[name])
            assert not getattr(batch, name)[row, real:].any()


@settings(max_examples=60, deadline=None)
@given(
    capacity=st.integers(1, 9),
    inserts=st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=12), min_size=1, max_size=8),
    seed=st.integers(0, 1000),
    first_episodes=st.sampled_from([1, 2, 32]),
)
def test_what_is_held_is_what_a_list_would_hold(kind, spec, make_episodes, capacity, inserts, seed, first_episodes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_episode_store, "FIRST_EPISODES", first_episodes)
        replay = kind(spec, capacity)
    model, generator = [], rng(seed)
    for lengths in inserts:
        fields = make_episodes(lengths, first=replay.inserted)
        replay.insert(Episodes(**fields))
        model = [*model, *split(fields)][-capacity:]
        assert replay.check_valid() == []
        assert len(replay) == len(model)
        first = replay.inserted - len(model)
        size = int(generator.integers(1, len(model) + 1))
        sampled = replay.sample(size, generator)
        assert sampled.batch.obs.shape[1] == sampled.batch.lengths.max() + 1
        assert sampled.batch.reward.shape[1] == sampled.batch.lengths.max()
        for row, serial in enumerate(sampled.generations.tolist()):
            assert sampled.indices[row] == serial % capacity
            assert_is(sampled.batch, row, model[serial - first])


def test_a_batch_has_the_shapes_and_dtypes_that_were_promised(kind, spec, make_episodes):
    replay = kind(spec, 4)
    replay.insert(Episodes(**make_episodes([3, 5, 2])))
    batch = replay.sample(3, rng()).batch
    t = int(batch.lengths.max())
    for name, shape, dtype in (
        ("obs", (3, t + 1, 2, 4), np.float32),
        ("state", (3, t + 1, 5), np.float32),
        ("available", (3, t + 1, 2, 3), np.bool_),
        ("actions", (3, t, 2), np.int64),
        ("reward", (3, t), np.float32),
        ("lengths", (3,), np.int32),
        ("terminated", (3,), np.bool_),
        ("weights", (3,), np.float32),
    ):
        assert getattr(batch, name).shape == shape
        assert getattr(batch, name).dtype == dtype


def test_uniform_draws_repeat_nothing_within_a_batch(spec, make_episodes):
    replay, generator = EpisodeReplay(spec, 10), rng()
    replay.insert(Episodes(**make_episodes([1] * 10)))
    for _ in range(50):
        assert len(set(replay.sample(7, generator).indices.tolist())) == 7
    assert sorted(replay.sample(10, generator).indices.tolist()) == list(range(10))


def test_uniform_draws_are_uniform(spec, make_episodes):
    replay, generator = EpisodeReplay(spec, 8), rng()
    replay.insert(Episodes(**make_episodes([1, 2, 3, 4, 5, 6, 1, 2])))
    counts = np.bincount(np.concatenate([replay.sample(2, generator).indices for _ in range(8000)]), minlength=8)
    assert ((counts - 2000.0) ** 2 / 2000).sum() < 30  # 7 degrees of freedom: p = 1e-4
    assert (replay.sample(8, generator).batch.weights == 1).all()


def test_the_same_generator_draws_the_same_batches(kind, spec, make_episodes):
    replay = kind(spec, 8)
    replay.insert(Episodes(**make_episodes([1, 2, 3, 4, 5, 6])))
    first, second = ([replay.sample(4, g).indices.tolist() for _ in range(5)] for g in (rng(3), rng(3)))
    assert first == second


def test_a_batch_is_frozen_and_stays_as_it_is_for_as_long_as_it_is_used(kind, spec, make_episodes, monkeypatch):
    monkeypatch.setattr(BatchMemory, "LEAST", 1)  # reuse memory of any size
    replay, generator, held = kind(spec, 8), rng(), []
    for first in range(0, 36, 3):
        replay.insert(Episodes(**make_episodes([3, 6, 1], first=first)))
        sampled = replay.sample(3, generator)
        arrays = list(sampled.batch.arrays().values())
        arrays += [sampled.indices, sampled.generations]
        assert all(is_frozen(array) for array in arrays)
        held += [(array, array.copy()) for array in arrays]
        parts = sampled.batch.obs[1:, ::2], sampled.batch.reward.data  # these keep the memory of their arrays
        held += [(part, np.array(part)) for part in parts]
    for array, copy in held:
        np.testing.assert_array_equal(array, copy)


def test_what_was_inserted_may_be_changed_afterwards(kind, spec, make_episodes):
    replay, fields = kind(spec, 3), make_episodes([4])
    expected = split({name: array.copy() for name, array in fields.items()})[0]
    replay.insert(Episodes(**fields))
    for array in fields.values():
        array[:] = 1
    assert_is(replay.sample(1, rng()).batch, 0, expected)


def test_memory_follows_the_real_lengths(spec, make_episodes):
    short, long = EpisodeReplay(spec, 4000), EpisodeReplay(spec, 4000)
    for replay, n in ((short, 1), (long, 6)):
        for _ in range(4):
            replay.insert(Episodes(**make_episodes([n] * 1000)))
    assert short.n_bytes < 0.6 * long.n_bytes
    assert len(short) == len(long) == 4000


def test_more_than_is_held_cannot_be_drawn(kind, spec, make_episodes):
    replay = kind(spec, 8)
    with pytest.raises(ValueError, match="batch_size: expected 1 to 0, the number of items held, got 1"):
        replay.sample(1, rng())
    replay.insert(Episodes(**make_episodes([1, 2])))
    with pytest.raises(ValueError, match="batch_size: expected 1 to 2, the number of items held, got 3"):
        replay.sample(3, rng())
    with pytest.raises(ValueError, match="batch_size: expected 1 to 2, the number of items held, got 0"):
        replay.sample(0, rng())


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        ("obs", lambda a: a[:-1], "obs: expected float32 of shape (9, 2, 4), got float32 of shape (8, 2, 4)"),
        ("obs", lambda a: a.astype(np.float64), "obs: expected float32 of shape (9, 2, 4), got float64"),
        ("state", lambda a: a[:, :2], "state: expected float32 of shape (9, 5), got float32 of shape (9, 2)"),
        ("available", lambda a: a.astype(np.int8), "available: expected bool of shape (9, 2, 3), got int8"),
        ("actions", lambda a: a.astype(np.int32), "actions: expected int64 of shape (7, 2), got int32"),
        ("actions", lambda a: a * 0 + 3, "actions: expected 0 to 2, got 3 to 3"),
        ("actions", lambda a: a * 0 - 1, "actions: expected 0 to 2, got -1 to -1"),
        ("reward", lambda a: np.where(np.arange(7) == 4, np.float32(np.nan), a), "expected finite numbers, got nan"),
        ("reward", lambda a: np.where(np.arange(7) == 4, np.float32(np.inf), a), "got inf at step 4"),
        ("reward", lambda a: a[:, None], "reward: expected float32 of shape (7,), got float32 of shape (7, 1)"),
        ("terminated", lambda a: a.astype(np.int64), "terminated: expected bool of shape (2,), got int64"),
        ("terminated", lambda a: a[:1], "terminated: expected bool of shape (2,), got bool of shape (1,)"),
        ("lengths", lambda a: a.astype(np.int64), "lengths: expected int32 of shape (E,), got int64"),
        ("lengths", lambda a: a * 0, "lengths: expected at least one episode of 1 to 6 steps each, got [0 0]"),
        (
            "lengths",
            lambda a: a + np.int32(4),
            "lengths: expected at least one episode of 1 to 6 steps each, got [7 8]",
        ),
        ("lengths", lambda a: a[::2], "terminated: expected bool of shape (1,), got bool of shape (2,)"),
    ],
)
def test_malformed_episodes_are_refused_and_nothing_changes(kind, spec, make_episodes, field, change, message):
    replay = kind(spec, 4)
    replay.insert(Episodes(**make_episodes([2, 2])))
    bad = make_episodes([3, 4], first=2)
    bad[field] = change(bad[field])
    with pytest.raises(InvalidExperience, match=re.escape(message)):
        replay.insert(Episodes(**bad))
    assert replay.check_valid() == []
    assert (len(replay), replay.inserted) == (2, 2)
    for episode, row in zip(split(make_episodes([2, 2])), np.argsort(replay.sample(2, rng()).indices), strict=True):
        assert_is(replay.sample(2, rng()).batch, row, episode)


def test_no_episodes_are_none_to_insert(kind, spec, make_episodes):
    empty = {name: array[:0] for name, array in make_episodes([1]).items()}
    with pytest.raises(InvalidExperience, match="lengths: expected at least one episode"):
        kind(spec, 4).insert(Episodes(**empty))


@pytest.mark.parametrize(
    ("indices", "generations", "priorities", "message"),
    [
        ([0, 1], [0], [1.0, 1.0], "generations: expected shape (2,), got (1,)"),
        ([4], [0], [1.0], "indices: expected 0 to 3, got [4]"),
        ([-1], [0], [1.0], "indices: expected 0 to 3, got [-1]"),
        ([0], [0], [-0.5], "priorities: expected finite numbers of at least 0, got [-0.5]"),
        ([0], [0], [np.nan], "priorities: expected finite numbers of at least 0, got [nan]"),
        ([0], [0], [np.inf], "priorities: expected finite numbers of at least 0, got [inf]"),
    ],
)
def test_malformed_priorities_are_refused(kind, spec, make_episodes, indices, generations, priorities, message):
    replay = kind(spec, 4)
    replay.insert(Episodes(**make_episodes([1, 2])))
    before = [replay.sample(2, rng(s)).indices.tolist() for s in range(20)]
    with pytest.raises(InvalidExperience, match=re.escape(message)):
        replay.update(np.array(indices), np.array(generations), np.array(priorities, np.float32))
    assert replay.check_valid() == []
    assert [replay.sample(2, rng(s)).indices.tolist() for s in range(20)] == before


def test_a_buffer_of_no_size_is_refused(kind, spec):
    with pytest.raises(ValueError, match="capacity: expected at least 1, got 0"):
        kind(spec, 0)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda store: store.lengths.fill(9), "a length is not in"),
        (lambda store: setattr(store._space, "used", 1), "5 rows are held, but 1 of"),
        (lambda store: store._space.starts.fill(3), "should start at rows"),
        (lambda store: setattr(store._sparse["obs"]._space, "used", 1), "obs: 36 rows are held, but 1 of"),
        (lambda store: store.arrays["obs"].fill(1), r"obs: the bits are those of [2 3] values, [12 24] are held"),
    ],
)
def test_spoilt_books_are_reported(kind, spec, make_episodes, spoil, complaint):
    replay = kind(spec, 4)
    replay.insert(Episodes(**make_episodes([1, 2])))
    spoil(replay._store)
    assert any(complaint in sentence for sentence in replay.check_valid())
