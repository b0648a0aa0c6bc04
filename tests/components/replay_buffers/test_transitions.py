"""Both rings of transitions against a dictionary by serial number, and what they draw against what they should."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.replay_buffers import Field, FrameStack, NStep, PrioritizedTransitions, RolloutWindow, Transitions
from components.replay_buffers import segment_tree as sums_module
from components.replay_buffers.invalid import InvalidExperience
from components.replay_buffers.segment_tree import SegmentTree, SumTree
from components.replay_buffers.storage import BatchMemory
from orchestra.actors.arrays import is_frozen

FIELDS = {
    "obs": Field(np.float32, (3,)),
    "next_obs": Field(np.float32, (3,)),
    "action": Field(np.int64),
    "reward": Field(np.float32, finite=True),
    "done": Field(np.bool_),
}
CHI_SQUARED = {1: 15.2, 3: 21.2, 6: 27.9, 9: 33.8, 15: 44.3}
"""What a sum of so many squared normal numbers exceeds once in 10 000 times."""


@pytest.fixture(params=[Transitions, PrioritizedTransitions], ids=lambda kind: kind.__name__, scope="session")
def kind(request):
    return request.param


def rng(seed=0):
    return np.random.default_rng(seed)


def make_rows(n, *, first=0):
    """Return rows whose every number tells which they are; every third ends its episode."""
    serial = first + np.arange(n)
    return {
        "obs": (serial[:, None] + np.arange(3) / 10).astype(np.float32),
        "next_obs": (serial[:, None] + 1 + np.arange(3) / 10).astype(np.float32),
        "action": serial,
        "reward": (serial + 0.5).astype(np.float32),
        "done": serial % 3 == 2,
    }


def chi_squared(counts, chances):
    expected = np.asarray(chances) * counts.sum()
    assert not counts[expected == 0].any()
    return float(((counts - expected)[expected > 0] ** 2 / expected[expected > 0]).sum())


def draws(replay, n_batches, size=4, seed=0):
    """Return how often each slot was drawn."""
    generator = rng(seed)
    drawn = np.concatenate([replay.sample(size, generator).indices for _ in range(n_batches)])
    return np.bincount(drawn, minlength=replay.capacity)


capacities = st.sampled_from([1, 2, 7, 10, 16])


@settings(max_examples=80, deadline=None)
@given(capacity=capacities, inserts=st.lists(st.integers(0, 20), min_size=1, max_size=12), seed=st.integers(0, 1000))
def test_what_is_held_is_what_a_dictionary_would_hold(kind, capacity, inserts, seed):
    replay, generator, n = kind(FIELDS, capacity), rng(seed), 0
    for count in inserts:
        rows = make_rows(count, first=n)
        if count == 1:
            replay.insert_one({name: array[0] for name, array in rows.items()})
        else:
            replay.insert(rows)
        n += count
        assert replay.check_valid() == []
        assert (replay.inserted, len(replay)) == (n, min(n, capacity))
        if not n:
            continue
        sampled = replay.sample(int(generator.integers(1, 9)), generator)
        assert (sampled.generations >= n - len(replay)).all()
        assert (sampled.generations < n).all()
        np.testing.assert_array_equal(sampled.indices, sampled.generations % capacity)
        for name, array in make_rows(n).items():
            np.testing.assert_array_equal(sampled.batch[name], array[sampled.generations])
            assert sampled.batch[name].dtype == FIELDS[name].dtype


operations = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.integers(1, 20), st.booleans()),
        st.tuples(st.just("update"), st.integers(1, 8), st.integers(0, 12)),
        st.tuples(st.just("sample"), st.integers(1, 8), st.just(0)),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=120, deadline=None)
@given(
    capacity=capacities,
    operations=operations,
    decay=st.sampled_from([1.0, 0.5, 0.0]),
    normalize=st.sampled_from(["batch", "buffer"]),
    seed=st.integers(0, 1000),
    top=st.sampled_from([1, 2, 4096]),
)
def test_priorities_are_what_a_dictionary_would_say(capacity, operations, decay, normalize, seed, top):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums_module, "TOP", top)
        replay = PrioritizedTransitions(FIELDS, capacity, alpha=0.6, epsilon=1e-3, decay=decay, normalize=normalize)
    generator, model, largest, stale = rng(seed), {}, 1.0, 0  # by serial number, the weight
    for what, n, option in operations:
        if what == "insert":
            given_priorities = generator.choice([0.0, 0.5, 3.0], n) if option else None
            first = replay.inserted
            replay.insert(make_rows(n, first=first), given_priorities)
            for i in range(n):
                priority = largest if given_priorities is None else given_priorities[i]
                model[first + i] = (priority + 1e-3) ** 0.6
            largest = largest if given_priorities is None else max(largest, given_priorities.max())
            model = {serial: model[serial] for serial in sorted(model)[-capacity:]}
        elif what == "update":
            serials = replay.inserted - 1 - option + generator.integers(0, 6, n)  # of the past, held, and to come
            priorities = generator.choice([0.0, 0.1, 9.0], n).astype(np.float32)
            replay.update(serials % capacity, serials, priorities)
            for serial, priority in zip(serials.tolist(), priorities.tolist(), strict=True):
                if serial in model:
                    model[serial], largest = (priority + 1e-3) ** 0.6, max(largest, priority)
                else:
                    stale += 1
        elif not sum(model.values()) > 0:
            with pytest.raises(ValueError, match="expected"):
                replay.sample(n, generator)
        else:
            sampled = replay.sample(n, generator)
            drawn = np.array([model[serial] for serial in sampled.generations.tolist()])
            assert (drawn > 0).all()
            least = drawn.min() if normalize == "batch" else min(w for w in model.values() if w > 0)
            np.testing.assert_allclose(sampled.weights, (least / drawn) ** 0.4, rtol=1e-5)
            for serial in sampled.generations.tolist():
                model[serial] *= decay
        assert replay.check_valid() == []
        assert (replay.max_priority, replay.stale_updates) == (pytest.approx(largest), stale)
        slots = np.array([serial % capacity for serial in model], np.int64)
        np.testing.assert_allclose(replay.priorities[slots], list(model.values()), rtol=1e-6)


@pytest.mark.parametrize("capacity", [2, 7, 10, 16])
def test_draws_are_uniform_before_and_after_the_ring_wraps(capacity):
    replay = Transitions(FIELDS, capacity)
    replay.insert(make_rows(capacity - 1))
    for held in (capacity - 1, capacity, capacity):
        counts = draws(replay, 3000)
        chances = np.arange(capacity) < held
        assert chi_squared(counts, chances / held) < CHI_SQUARED[capacity - 1]
        replay.insert(make_rows(capacity // 2 + 1, first=replay.inserted))


@pytest.mark.parametrize("capacity", [2, 7, 10, 16])
@pytest.mark.parametrize("top", [1, 4096])
def test_draws_follow_priorities_after_updates_and_the_ring_wrapping(capacity, top, monkeypatch):
    monkeypatch.setattr(sums_module, "TOP", top)
    replay = PrioritizedTransitions(FIELDS, capacity, alpha=0.7, epsilon=0.0)
    replay.insert(make_rows(capacity))
    slots = np.arange(capacity)
    priorities = rng(1).random(capacity) + 0.1
    priorities[0] = 0.0  # never to be drawn
    replay.update(slots, slots, priorities)
    expected = priorities**0.7
    assert chi_squared(draws(replay, 4000, size=1), expected / expected.sum()) < CHI_SQUARED[capacity - 1]
    replay.insert(make_rows(capacity // 2, first=capacity), np.full(capacity // 2, 2.0))
    expected[: capacity // 2] = 2.0**0.7
    assert chi_squared(draws(replay, 4000, size=1), expected / expected.sum()) < CHI_SQUARED[capacity - 1]
    # In strata, counts vary less than of independent draws: the marginal has to be right all the same.
    assert chi_squared(draws(replay, 2000, size=8), expected / expected.sum()) < CHI_SQUARED[capacity - 1]


def test_a_weighted_mean_is_that_of_uniform_draws_in_either_form():
    for normalize in ("batch", "buffer"):
        replay, generator = PrioritizedTransitions(FIELDS, 7, beta=1.0, normalize=normalize), rng()
        replay.insert(make_rows(7), np.array([0.1, 1.0, 2.0, 4.0, 0.5, 3.0, 8.0]))
        total = weight = 0.0
        for _ in range(4000):
            sampled = replay.sample(8, generator)
            # Undo the scaling, which differs from batch to batch in one form.
            scale = 1.0 if normalize == "buffer" else 1.0 / replay.priorities[sampled.indices].min()
            total += (sampled.weights * scale * sampled.batch["reward"]).sum()
            weight += (sampled.weights * scale).sum()
        assert total / weight == pytest.approx(3.5, abs=0.1)


def test_with_beta_zero_every_weight_is_one_and_with_alpha_zero_draws_are_uniform():
    replay = PrioritizedTransitions(FIELDS, 7, alpha=0.0, beta=0.0)
    replay.insert(make_rows(7), np.arange(7.0))
    assert (replay.sample(8, rng()).weights == 1.0).all()
    assert chi_squared(draws(replay, 4000, size=1), np.full(7, 1 / 7)) < CHI_SQUARED[6]


def test_decay_zero_draws_everything_once_and_then_says_so():
    replay, generator = PrioritizedTransitions(FIELDS, 10, decay=0.0), rng()
    replay.insert(make_rows(10))
    assert sorted(int(replay.sample(1, generator).indices[0]) for _ in range(10)) == list(range(10))
    with pytest.raises(ValueError, match="expected something with weight to draw, got none"):
        replay.sample(1, generator)
    replay.update(np.array([3]), np.array([3]), np.array([1.0]))
    assert replay.sample(1, generator).indices.tolist() == [3]


def test_the_same_generator_draws_the_same_batches(kind):
    replay = kind(FIELDS, 8)
    replay.insert(make_rows(6))
    first, second = ([replay.sample(4, g).indices.tolist() for _ in range(5)] for g in (rng(3), rng(3)))
    assert first == second


@pytest.mark.parametrize(
    "options", [{}, {"n_step": NStep(3, 0.9), "window": FrameStack(2)}, {"window": RolloutWindow(3)}]
)
def test_a_batch_is_frozen_and_stays_as_it_is_for_as_long_as_it_is_used(kind, monkeypatch, options):
    monkeypatch.setattr(BatchMemory, "LEAST", 1)  # reuse memory of any size
    replay, generator, held = kind(FIELDS, 16, **options), rng(), []
    for first in range(0, 64, 8):
        replay.insert(make_rows(8, first=first))
        batch = replay.sample(8, generator).batch
        assert all(is_frozen(array) for array in batch.values())
        held += [(array, array.copy()) for array in batch.values()]
    for array, copy in held:
        np.testing.assert_array_equal(array, copy)


# n-step -------------------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(
    capacity=capacities,
    count=st.integers(1, 40),
    n=st.integers(1, 5),
    stride=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_n_steps_follow_their_episode_and_no_further(kind, capacity, count, n, stride, seed):
    generator = rng(seed)
    rows = make_rows(count)
    rows["done"] = generator.random(count) < 0.2
    replay = kind(FIELDS, capacity, n_step=NStep(n, 0.9, stride=stride))
    for start in range(0, count, 7):
        replay.insert({name: array[start : start + 7] for name, array in rows.items()})
    sampled = replay.sample(16, generator)
    for row, serial in enumerate(sampled.generations.tolist()):
        reward, last, m = 0.0, serial, 0
        for m in range(n):
            last = serial + m * stride
            reward += 0.9**m * rows["reward"][last]
            if rows["done"][last] or last + stride >= count:
                break
        assert sampled.batch["reward"][row] == pytest.approx(reward, rel=1e-6)
        assert sampled.batch["discount"][row] == pytest.approx(0.9 ** (m + 1))
        assert sampled.batch["action"][row] == serial
        np.testing.assert_array_equal(sampled.batch["obs"][row], rows["obs"][serial])
        np.testing.assert_array_equal(sampled.batch["next_obs"][row], rows["next_obs"][last])
        assert sampled.batch["done"][row] == rows["done"][last]
    assert sampled.batch["reward"].dtype == sampled.batch["discount"].dtype == np.float32


@pytest.mark.parametrize(
    ("n_step", "message"),
    [
        (NStep(2, 0.9, reward="score"), "n_step: expected the names of fields, "),
        (NStep(2, 0.9, reward="action"), "n_step: expected action to be scalar floats, it is int64 of shape ()"),
        (NStep(2, 0.9, end="obs"), "n_step: expected obs to be scalar bools, it is float32 of shape (3,)"),
        (NStep(2, 0.9, arrival=("state",)), "got 'state'"),
    ],
)
def test_n_steps_of_other_fields_are_refused(kind, n_step, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        kind(FIELDS, 4, n_step=n_step)


def test_n_steps_out_of_range_are_refused():
    for bad in ((0, 0.9, 1), (1, 1.1, 1), (1, 0.9, 0)):
        with pytest.raises(ValueError, match="expected n and stride of at least 1 and gamma in"):
            NStep(bad[0], bad[1], stride=bad[2])
    with pytest.raises(ValueError, match="expected no field named discount"):
        Transitions(FIELDS | {"discount": Field(np.float32)}, 4, n_step=NStep(2, 0.9))


# What is refused ----------------------------------------------------------------------------------------------------


def assert_unchanged(replay, n):
    """The ring holds the first `n` rows that `make_rows` makes, and nothing is amiss."""
    assert replay.check_valid() == []
    assert replay.inserted == n
    sampled = replay.sample(16, rng())
    for name, array in make_rows(n).items():
        np.testing.assert_array_equal(sampled.batch[name], array[sampled.generations])


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        ("obs", lambda a: a[:1], "next_obs: expected float32 of shape (1, 3), got float32 of shape (2, 3)"),
        ("next_obs", lambda a: a[:1], "next_obs: expected float32 of shape (2, 3), got float32 of shape (1, 3)"),
        ("obs", lambda a: a.astype(np.float64), "obs: expected float32 of shape (2, 3), got float64"),
        ("obs", lambda a: a[:, :2], "obs: expected float32 of shape (2, 3), got float32 of shape (2, 2)"),
        ("action", lambda a: a.astype(np.int32), "action: expected int64 of shape (2,), got int32"),
        ("action", lambda a: a.tolist(), "action: expected an array of int64, got list"),
        ("reward", lambda a: a * np.float32(np.nan), "reward: expected finite numbers, got nan in row 0"),
        (
            "reward",
            lambda a: a + np.array([0, np.inf], np.float32),
            "reward: expected finite numbers, got inf in row 1",
        ),
        ("done", lambda a: a.astype(np.int8), "done: expected bool of shape (2,), got int8"),
        ("obs", None, "expected the fields ['obs', 'next_obs', 'action', 'reward', 'done'], got ['next_obs'"),
    ],
)
@pytest.mark.parametrize("earlier", [(5,), (3, 2)], ids=["after others", "after as many"])
def test_malformed_rows_are_refused_and_nothing_changes(kind, field, change, message, earlier):
    replay = kind(FIELDS, 7)
    for n in earlier:
        replay.insert(make_rows(n, first=replay.inserted))
    rows = make_rows(2, first=5)
    if change is None:
        del rows[field]
    else:
        rows[field] = change(rows[field])
    with pytest.raises(InvalidExperience, match=re.escape(message)):
        replay.insert(rows)
    assert_unchanged(replay, 5)


def test_fields_that_are_missing_unknown_or_renamed_are_refused_before_and_after_rows_are_held(kind):
    replay = kind(FIELDS, 7)
    with pytest.raises(InvalidExperience, match="expected the fields"):
        replay.insert({})
    replay.insert(make_rows(2))
    rows = make_rows(2, first=2)
    renamed = {"seen" if name == "obs" else name: array for name, array in rows.items()}
    for wrong in ({}, rows | {"more": rows["done"]}, renamed):
        with pytest.raises(InvalidExperience, match="expected the fields"):
            replay.insert(wrong)
    assert_unchanged(replay, 2)


ONE = {"obs": np.zeros(3, np.float32), "next_obs": np.zeros(3, np.float32), "action": 1, "reward": 0.5, "done": False}
SCALARS = ONE | {"action": np.int64(1), "reward": np.float32(0.5), "done": np.bool_(False)}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("obs", np.zeros(2, np.float32), "obs: expected float32 of shape (3,), got float32 of shape (2,)"),
        ("obs", [0.0] * 3, "obs: expected float32 of shape (3,), got list"),
        ("action", 1.0, "action: expected int64 of shape (), got float"),
        ("action", True, "action: expected int64 of shape (), got bool"),
        ("action", 2**70, "action: expected int64 of shape (), got 1180591620717411303424, which does not fit"),
        ("action", np.int32(1), "action: expected int64 of shape (), got int32 of shape ()"),
        ("reward", np.nan, "reward: expected finite numbers, got nan"),
        ("reward", np.float32(np.nan), "reward: expected finite numbers, got nan"),
        ("reward", np.array(np.inf, np.float32), "reward: expected finite numbers, got inf"),
        ("reward", np.zeros(1, np.float32), "reward: expected float32 of shape (), got float32 of shape (1,)"),
        ("obs", np.float32(0), "obs: expected float32 of shape (3,), got float32 of shape ()"),
        ("obs", np.zeros(3), "obs: expected float32 of shape (3,), got float64 of shape (3,)"),
        ("reward", "1", "reward: expected float32 of shape (), got str"),
        ("done", 1, "done: expected bool of shape (), got int"),
    ],
)
def test_a_malformed_row_is_refused_and_nothing_changes(kind, field, value, message):
    replay = kind(FIELDS, 7)
    replay.insert(make_rows(5))
    for row in (ONE, SCALARS):
        with pytest.raises(InvalidExperience, match=re.escape(message)):
            replay.insert_one(row | {field: value})
        assert_unchanged(replay, 5)


def test_python_numbers_make_a_row(kind):
    replay = kind(FIELDS, 2)
    replay.insert_one(ONE)
    batch = replay.sample(1, rng()).batch
    assert (batch["action"][0], batch["reward"][0], batch["done"][0]) == (1, 0.5, False)


@pytest.mark.parametrize(
    ("priorities", "message"),
    [
        (np.array([1.0, -0.5]), "priorities: expected finite numbers of at least 0, got [ 1.  -0.5]"),
        (np.array([1.0, np.nan]), "priorities: expected finite numbers of at least 0, got [ 1. nan]"),
        (np.array([1.0, np.inf]), "priorities: expected finite numbers of at least 0, got [ 1. inf]"),
        (np.array([1.0]), "priorities: expected floats of shape (2,), got float64 of shape (1,)"),
        (np.array([1, 2]), "priorities: expected floats of shape (2,), got int64 of shape (2,)"),
        ([1.0, 2.0], "priorities: expected floats of shape (2,), got list"),
    ],
)
def test_malformed_priorities_are_refused_and_nothing_changes(priorities, message):
    replay = PrioritizedTransitions(FIELDS, 7)
    replay.insert(make_rows(5))
    before, indices = replay.priorities[np.arange(7)], np.array([0, 1])
    with pytest.raises(InvalidExperience, match=re.escape(message)):
        replay.update(indices, indices, priorities)
    with pytest.raises(InvalidExperience, match=re.escape(message)):
        replay.insert(make_rows(2, first=5), priorities)
    with pytest.raises(InvalidExperience, match="priorities: expected finite numbers of at least 0"):
        replay.insert_one(ONE, -1.0)
    assert_unchanged(replay, 5)
    np.testing.assert_array_equal(replay.priorities[np.arange(7)], before)
    assert replay.max_priority == 1.0


def test_a_sum_that_would_overflow_is_refused():
    replay = PrioritizedTransitions(FIELDS, 7, alpha=2.0)
    with pytest.raises(
        InvalidExperience, match=re.escape("expected a sum that is finite when they are raised to the power 2.0")
    ):
        replay.insert(make_rows(1), np.array([1e200]))
    assert len(replay) == 0


@pytest.mark.parametrize(
    ("indices", "generations", "message"),
    [
        (np.array([7]), np.array([0]), "indices: expected 0 to 6, got [7]"),
        (np.array([-1]), np.array([0]), "indices: expected 0 to 6, got [-1]"),
        (np.array([0.0]), np.array([0]), "indices: expected signed integers of shape (B,), got float64"),
        (np.array([0]), [0], "generations: expected signed integers of shape (B,), got list"),
        (np.array([0]), np.array([0, 1]), "generations: expected shape (1,), got (2,)"),
    ],
)
def test_malformed_indices_are_refused(indices, generations, message):
    replay = PrioritizedTransitions(FIELDS, 7)
    replay.insert(make_rows(5))
    with pytest.raises(InvalidExperience, match=re.escape(message)):
        replay.update(indices, generations, np.ones(1))
    assert_unchanged(replay, 5)


def test_what_makes_no_ring_is_refused(kind):
    for fields, capacity, message in (
        (FIELDS, 0, "capacity: expected at least 1, got 0"),
        ({}, 1, "fields: expected at least one"),
        ({"obs": Field(object)}, 1, "obs: expected a dtype of plain memory, got object"),
    ):
        with pytest.raises(ValueError, match=message):
            kind(fields, capacity)
    replay = kind(FIELDS, 1)
    with pytest.raises(ValueError, match="at least 1, and items to draw from, got 1 and 0 items"):
        replay.sample(1, rng())
    replay.insert(make_rows(1))
    with pytest.raises(ValueError, match="at least 1, and items to draw from, got 0 and 1 items"):
        replay.sample(0, rng())


@pytest.mark.parametrize(
    "options",
    [{"alpha": -1.0}, {"alpha": np.inf}, {"beta": 1.5}, {"epsilon": np.nan}, {"decay": 1.1}, {"normalize": "all"}],
    ids=str,
)
def test_an_argument_out_of_range_is_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}: expected"):
        PrioritizedTransitions(FIELDS, 4, **options)


def test_spoilt_sums_are_reported(monkeypatch):
    monkeypatch.setattr(sums_module, "TOP", 2)
    replay = PrioritizedTransitions(FIELDS, 7, normalize="buffer")
    replay.insert(make_rows(5))
    replay.priorities._sums._flat[0][[0, 5, 6]] = 9.0, -1.0, -1.0
    replay.priorities._sums._flat[0][7:] = 1.0
    wrong = " ".join(replay.check_valid())
    for complaint in (
        "level 1 is not what",
        "weight is negative",
        "beyond the 5 items",
        "beyond the last",
        "the least",
    ):
        assert complaint in wrong


# The tree -----------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    weights=st.lists(st.sampled_from([0.0, 5e-324, 1e-12, 0.1, 1.0, 3.0, 1e9]), min_size=1, max_size=100),
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=20),
    top=st.sampled_from([1, 3, 4096]),
)
def test_a_share_finds_the_item_at_which_the_running_sum_passes_it(weights, shares, top):
    weights = np.array(weights)
    if not weights.any():
        weights[-1] = 1.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums_module, "TOP", top)
        tree = SumTree(len(weights))
    tree[np.arange(len(weights))] = weights
    ends, total = np.cumsum(weights), weights.sum()
    shares = np.array([*shares, 0.0, 1.0, *np.clip(ends / total, 0, 1)])
    found, slack = tree.find(shares), 1e-12 * total
    assert tree.check_valid() == []
    assert tree.folded == pytest.approx(total)
    assert (weights[found] > 0).all()
    assert (shares * total <= ends[found] + slack).all()
    assert (shares * total >= ends[found] - weights[found] - slack).all()


@pytest.mark.parametrize("top", [1, 3, 64])
@pytest.mark.parametrize("noise", [0.0, 1e-13], ids=["as it is here", "as it may be elsewhere"])
def test_rounding_never_puts_a_share_on_what_has_no_weight(monkeypatch, top, noise):
    monkeypatch.setattr(sums_module, "TOP", top)
    # How products are rounded is up to the library that makes them: running sums may even fall a little.
    for name in ("RUNNING", "BEFORE"):
        sums = getattr(sums_module, name)
        monkeypatch.setattr(sums_module, name, sums * (1 + noise * rng().standard_normal(sums.shape)))
    for seed in range(50):
        generator = np.random.default_rng(seed)
        tree, weights = SumTree(700), generator.random(700) * 10.0 ** generator.uniform(-3, 3, 700)
        weights[generator.random(700) < 0.4] = 0.0
        weights[::16] = 0.0
        tree[np.arange(700)] = weights
        ends = np.cumsum(weights)
        borders = np.concatenate([ends, np.nextafter(ends, 0.0), np.nextafter(ends, np.inf)])
        found = tree.find(np.clip(borders / ends[-1], 0.0, 1.0))
        assert weights[found].all()
        assert (np.abs(found - np.tile(np.arange(700), 3)) <= 20).all()  # those without weight lie between


def test_items_without_weight_are_passed_over_at_either_end(monkeypatch):
    monkeypatch.setattr(sums_module, "TOP", 2)
    tree = SumTree(200)
    tree[np.array([71, 130])] = 2.0  # the first block and the last have no weight at all
    assert tree.find(np.array([0.0, 0.49, 0.5, 0.51, 1.0])).tolist() == [71, 71, 130, 130, 130]


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 100),
    runs=st.lists(st.tuples(st.integers(0, 99), st.integers(1, 40), st.floats(0, 9)), min_size=1, max_size=10),
    top=st.sampled_from([1, 3, 4096]),
)
def test_a_run_is_filled_as_if_each_were_named(size, runs, top):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums_module, "TOP", top)
        filled, named = SegmentTree(size, np.minimum, np.inf), SegmentTree(size, np.minimum, np.inf)
    for start, n, number in runs:
        start %= size
        stop = min(start + n, size)
        filled.fill(start, stop, number)
        named[np.arange(start, stop)] = number
        assert filled.check_valid() == named.check_valid() == []
        assert filled.folded == named.folded == named[np.arange(size)].min()
