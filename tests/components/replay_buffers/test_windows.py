"""Stacks of frames and sequences, against what walking back through the rows one by one gives."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.replay_buffers import Field, FrameStack, NStep, PrioritizedTransitions, RolloutWindow, Transitions
from components.replay_buffers.federated import FederatedReplay

FIELDS = {
    "obs": Field(np.float32, (2,)),
    "next_obs": Field(np.float32, (2,)),
    "action": Field(np.int64),
    "reward": Field(np.float32, finite=True),
    "done": Field(np.bool_),
}


@pytest.fixture(params=[Transitions, PrioritizedTransitions], ids=lambda kind: kind.__name__, scope="session")
def kind(request):
    return request.param


def make_rows(done, first, n):
    """Return rows of which every number tells which they are."""
    serial = first + np.arange(n)
    obs = np.stack([serial, -serial], axis=1).astype(np.float32)
    return {
        "obs": obs,
        "next_obs": obs + 0.5,
        "action": serial,
        "reward": serial.astype(np.float32),
        "done": done[first : first + n],
    }


def filled(replay, done):
    for first in range(0, len(done), 5):
        replay.insert(make_rows(done, first, min(5, len(done) - first)))
        if isinstance(replay, PrioritizedTransitions):
            assert replay.check_valid() == []
    return replay


def walk_back(serial, n, stride, done):
    """Return the rows of the window that ends with one, and which are real; an episode ends only where `done` says."""
    real = [serial]
    while len(real) < n and real[0] >= stride and not done[real[0] - stride]:
        real.insert(0, real[0] - stride)
    missing = n - len(real)
    return [real[0]] * missing + real, [False] * missing + [True] * len(real)


rings = {
    "capacity": st.sampled_from([7, 10, 16, 40]),
    "count": st.integers(1, 60),
    "n": st.integers(1, 4),
    "stride": st.integers(1, 2),
    "chance": st.sampled_from([0.0, 0.2, 0.7, 1.0]),
    "seed": st.integers(0, 1000),
}


@settings(max_examples=80, deadline=None)
@given(**rings, burn_in=st.integers(0, 3))
def test_a_sequence_stays_in_its_episode_and_repeats_its_first_row(
    kind, capacity, count, n, stride, chance, seed, burn_in
):
    burn_in = min(burn_in, n - 1)
    generator = np.random.default_rng(seed)
    done = generator.random(count) < chance
    replay = filled(kind(FIELDS, capacity, window=RolloutWindow(n, burn_in, stride=stride)), done)
    held = min(count, capacity)
    first = count - held + ((n - 1) * stride if count > capacity else 0)
    seen = set()
    for _ in range(4):
        sampled = replay.sample(24, generator)
        seen |= set(sampled.generations.tolist())
        for row, serial in enumerate(sampled.generations.tolist()):
            assert sampled.indices[row] == serial % capacity
            expected, real = walk_back(serial, n, stride, done)
            assert min(expected) >= count - held
            assert sampled.batch["action"][row].tolist() == expected
            assert sampled.batch["real"][row].tolist() == real
            assert sampled.batch["learn"][row].tolist() == [r and i >= burn_in for i, r in enumerate(real)]
            np.testing.assert_array_equal(sampled.batch["obs"][row, :, 1], np.negative(expected))
            np.testing.assert_array_equal(sampled.batch["done"][row], done[expected])
    assert min(seen) >= first
    if count - first <= 4:
        assert seen == set(range(first, count))
    for name, field in replay.batch_fields.items():
        assert sampled.batch[name].shape == (24, *field.shape)
        assert sampled.batch[name].dtype == field.dtype
    assert replay.batch_fields.keys() == sampled.batch.keys()


@settings(max_examples=60, deadline=None)
@given(**rings)
def test_a_sequence_that_is_not_padded_runs_across_episodes(kind, capacity, count, n, stride, chance, seed):
    generator = np.random.default_rng(seed)
    done, reach = generator.random(count) < chance, (n - 1) * stride
    replay = filled(kind(FIELDS, capacity, window=RolloutWindow(n, padded=False, stride=stride)), done)
    if count <= reach:
        with pytest.raises(ValueError, match=r"expected .* to draw from, got"):
            replay.sample(24, generator)
        return
    sampled = replay.sample(24, generator)
    oldest = max(count - capacity, 0)
    for row, serial in enumerate(sampled.generations.tolist()):
        expected = list(range(serial - reach, serial + 1, stride))
        assert expected[0] >= oldest
        assert sampled.batch["action"][row].tolist() == expected
        assert sampled.batch["real"][row].all()


@settings(max_examples=80, deadline=None)
@given(**rings, steps=st.integers(0, 3))
def test_frames_are_stacked_before_and_after_the_step(kind, capacity, count, n, stride, chance, seed, steps):
    generator = np.random.default_rng(seed)
    done = generator.random(count) < chance
    n_step = NStep(steps, 0.9, stride=stride) if steps else None
    replay = filled(kind(FIELDS, capacity, n_step=n_step, window=FrameStack(n, stride=stride)), done)
    sampled = replay.sample(24, generator)
    for row, serial in enumerate(sampled.generations.tolist()):
        last = serial
        for _ in range(steps - 1):
            if done[last] or last + stride >= count:
                break
            last += stride
        before, _ = walk_back(serial, n, stride, done)
        at_last, _ = walk_back(last, n, stride, done)
        assert sampled.batch["obs"][row, :, 0].tolist() == before
        assert sampled.batch["next_obs"][row, :, 0].tolist() == [*at_last[1:], last + 0.5]
        assert sampled.batch["action"][row] == serial
        assert sampled.batch["done"][row] == done[last]
    assert replay.batch_fields.keys() == sampled.batch.keys()
    for name, field in replay.batch_fields.items():
        assert sampled.batch[name].shape == (24, *field.shape)


def test_every_row_that_may_be_drawn_is_as_likely_as_another(kind):
    done = np.arange(25) % 6 == 5
    replay = filled(kind(FIELDS, 10, window=RolloutWindow(3)), done)
    generator = np.random.default_rng(0)
    drawn = [int(replay.sample(1, generator).generations[0]) for _ in range(8000)]
    counts = np.bincount(drawn, minlength=25)
    assert not counts[:17].any()  # of rows 15 to 24 the first two have lost the rows before them
    assert ((counts[17:] - 1000.0) ** 2 / 1000).sum() < 29.9  # 7 degrees of freedom: p = 1e-4


def test_a_priority_for_a_row_whose_window_has_gone_is_ignored_and_counted():
    replay = PrioritizedTransitions(FIELDS, 10, window=RolloutWindow(3))
    filled(replay, np.zeros(25, np.bool_))
    serials = np.array([14, 15, 16, 17])
    replay.update(serials % 10, serials, np.full(4, 9.0))
    assert replay.stale_updates == 3
    assert replay.priorities[np.array([5, 6])].tolist() == [0.0, 0.0]
    assert replay.check_valid() == []


def test_what_was_saved_without_a_window_may_be_drawn_with_one(tmp_path):
    done = np.zeros(25, np.bool_)
    filled(PrioritizedTransitions(FIELDS, 10), done).save(tmp_path / "a.npz")
    replay = PrioritizedTransitions(FIELDS, 10, window=RolloutWindow(3))
    replay.load(tmp_path / "a.npz")
    assert replay.sample(64, np.random.default_rng(0)).generations.min() >= 17


def test_sequences_are_shared_by_clients_too():
    client = filled(PrioritizedTransitions(FIELDS, 10, window=RolloutWindow(3, 1)), np.arange(25) % 6 == 5)
    server, generator = FederatedReplay(client.share_fields), np.random.default_rng(0)
    server.join("a")
    server.add("a", client.share(8, generator))
    sampled = server.sample(8, generator)
    np.testing.assert_array_equal(sampled.batch["action"][:, -1], sampled.generations)
    assert sampled.batch["learn"].shape == (8, 3)


@pytest.mark.parametrize(
    ("window", "message"),
    [
        (
            lambda: RolloutWindow(0),
            "expected length and stride of at least 1 and burn_in of 0 to length - 1, got 0, 1 and 0",
        ),
        (lambda: RolloutWindow(3, 3), "burn_in of 0 to length - 1, got 3, 1 and 3"),
        (lambda: FrameStack(2, stride=0), "expected frames and stride of at least 1, got 2 and 0"),
        (lambda: RolloutWindow(6, stride=2), "be below the capacity, got (6 - 1) * 2 = 10 and 10"),
        (
            lambda: RolloutWindow(2, end="over"),
            "window: expected the names of fields, ['obs', 'next_obs', 'action', 'reward'",
        ),
        (
            lambda: RolloutWindow(2, end="reward"),
            "window: expected reward to be scalar bools, it is float32 of shape ()",
        ),
        (lambda: FrameStack(2, ("image",)), "window: expected the names of fields"),
        (lambda: FrameStack(2, arrival={"action": "obs"}), "window: expected action to be like obs, got"),
    ],
)
def test_a_window_that_makes_no_sense_is_refused(kind, window, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        kind(FIELDS, 10, window=window())


def test_names_that_batches_have_already_are_refused():
    with pytest.raises(ValueError, match="window: expected no field named learn, as batches get one of that name"):
        Transitions({**FIELDS, "learn": Field(np.bool_)}, 10, window=RolloutWindow(2))
    with pytest.raises(ValueError, match="window: expected no n_step beside a RolloutWindow"):
        Transitions(FIELDS, 10, window=RolloutWindow(2), n_step=NStep(2, 0.9))
