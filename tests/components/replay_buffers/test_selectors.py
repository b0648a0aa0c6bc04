"""Every selector against a dictionary of what is there."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.checkpoints.array_file import ArrayReader, CheckpointError
from components.replay_buffers.selectors import (
    FifoSelector,
    HighestSelector,
    LifoSelector,
    LowestSelector,
    PrioritizedSelector,
    UniformSelector,
)

ORDERED = {
    FifoSelector: lambda came, touched, priority: came,
    LifoSelector: lambda came, touched, priority: -came,
    LowestSelector: lambda came, touched, priority: (priority, touched),
    HighestSelector: lambda came, touched, priority: (-priority, touched),
}
DRAWING = (UniformSelector, PrioritizedSelector)
CHI_SQUARED = 27.9
"""What a sum of six squared normal numbers exceeds once in 10 000 times."""


def churn(selector, capacity, seed, n_changes=40):
    """Tell a selector of random changes, and yield what is there after each: when it came, was touched, its priority.

    A generator of random numbers comes along, to draw with.
    """
    rng, model, tick = np.random.default_rng(seed), {}, 0
    for _ in range(n_changes):
        absent = np.setdiff1d(np.arange(capacity), list(model))
        what = rng.choice(["insert", "update", "delete"], p=[0.5, 0.3, 0.2])
        pool = absent if what == "insert" else np.array(list(model), np.int64)
        items = rng.permutation(pool)[: int(rng.integers(0, 6))]
        priorities = rng.choice([0.0, 0.5, 1.0, 3.0], len(items))
        if what == "delete":
            selector.delete(items)
        else:
            getattr(selector, what)(items, priorities)
        for item, priority in zip(items.tolist(), priorities.tolist(), strict=True):
            if what == "delete":
                del model[item]
            else:
                model[item] = (model[item][0] if item in model else tick, tick, priority)
                tick += 1
        yield model, rng


@settings(max_examples=60, deadline=None)
@given(capacity=st.sampled_from([1, 2, 7, 10, 16]), seed=st.integers(0, 10_000), kind=st.sampled_from(list(ORDERED)))
def test_an_order_is_kept_through_every_change(capacity, seed, kind):
    selector = kind(capacity)
    for model, rng in churn(selector, capacity, seed):
        n = int(rng.integers(0, len(model) + 1))
        expected = sorted(model, key=lambda item, model=model: ORDERED[kind](*model[item]))[:n]
        assert selector.select(n, rng).tolist() == expected
        assert len(selector._heap) <= 2 * capacity + 70  # what is outdated does not pile up


@settings(max_examples=60, deadline=None)
@given(capacity=st.sampled_from([1, 2, 7, 10, 16]), seed=st.integers(0, 10_000), kind=st.sampled_from(DRAWING))
def test_only_what_is_there_and_has_weight_is_drawn(capacity, seed, kind):
    selector = kind(capacity)
    for model, rng in churn(selector, capacity, seed):
        if model:
            drawn = set(selector.select(20, rng).tolist())
            wanted = {item for item, (_, _, priority) in model.items() if priority > 0}
            assert drawn <= (wanted if wanted and kind is PrioritizedSelector else set(model))


@pytest.mark.parametrize("kind", DRAWING)
def test_draws_are_distributed_as_they_should_be_after_updates_and_removals(kind):
    rng, selector = np.random.default_rng(0), kind(10)
    selector.insert(np.arange(10), np.arange(10.0))
    selector.delete(np.array([9, 2, 0]))
    selector.update(np.array([1, 5]), np.array([8.0, 0.5]))
    there = np.array([1, 3, 4, 5, 6, 7, 8])
    weights = np.array([8.0, 3, 4, 0.5, 6, 7, 8]) if kind is PrioritizedSelector else np.ones(7)
    counts = np.bincount(selector.select(20_000, rng), minlength=10)
    expected = 20_000 * weights / weights.sum()
    assert counts[there].sum() == 20_000
    assert ((counts[there] - expected) ** 2 / expected).sum() < CHI_SQUARED


def test_the_exponent_bends_priorities_and_leaves_zero_alone():
    rng = np.random.default_rng(0)
    selector = PrioritizedSelector(4, 0.5)
    selector.insert(np.arange(4), np.array([0.0, 1.0, 4.0, 9.0]))
    counts = np.bincount(selector.select(3000, rng), minlength=4)
    assert counts[0] == 0
    expected = np.array([500, 1000, 1500])
    assert ((counts[1:] - expected) ** 2 / expected).sum() < 18.5  # two degrees of freedom, once in 10 000 times
    flat = PrioritizedSelector(2, 0.0)
    flat.insert(np.arange(2), np.array([0.0, 5.0]))
    assert set(flat.select(50, rng).tolist()) == {1}


def test_if_no_item_has_priority_all_are_drawn():
    selector = PrioritizedSelector(3)
    selector.insert(np.arange(3), np.zeros(3))
    assert set(selector.select(100, np.random.default_rng(0)).tolist()) == {0, 1, 2}


@pytest.mark.parametrize("exponent", [-1.0, np.nan, np.inf])
def test_an_exponent_out_of_range_is_refused(exponent):
    with pytest.raises(ValueError, match="exponent: expected a finite number of at least 0, got"):
        PrioritizedSelector(3, exponent)


@pytest.mark.parametrize("kind", [*ORDERED, UniformSelector])
@pytest.mark.parametrize("items", [[0, 1, 3], [0, 1, 1], [2, 1, 0]])
def test_a_state_with_other_items_than_are_there_is_refused(kind, items):
    selector = kind(8)
    selector.insert(np.arange(3), np.ones(3))
    arrays = {name: np.asarray(next(iter(array.pieces))) for name, array in selector.state_arrays().items()}
    reader = ArrayReader({**arrays, "items": np.array(items)})
    if sorted(items) == [0, 1, 2]:
        kind(8).check_state(reader, np.arange(3))
        return
    with pytest.raises(CheckpointError, match="items: expected those that are there"):
        kind(8).check_state(reader, np.arange(3))
