"""Ten million operations against dictionaries, and then the odds; a batch of n rows is n operations."""

from operator import itemgetter

import numpy as np
import pytest

from components.replay_buffers import Field, PrioritizedTransitions, TransitionTable
from components.replay_buffers.selectors import PrioritizedSelector, UniformSelector

FIELDS = {"serial": Field(np.int64), "reward": Field(np.float32, finite=True)}
ALPHA, EPSILON = 0.6, 1e-3


def make_rows(first, n):
    serial = np.arange(first, first + n)
    return {"serial": serial, "reward": serial.astype(np.float32)}


def looked_up(model, serials):
    """Return what a dictionary says of serials, of which there are at least two."""
    return np.array(itemgetter(*serials.tolist())(model))


def assert_drawn_in_proportion(counts, weights):
    """The counts are no further from the weights than four standard deviations of chi-squared."""
    expected = weights / weights.sum() * counts.sum()
    assert not counts[expected == 0].any()
    there = expected > 0
    degrees = there.sum() - 1
    statistic = ((counts - expected)[there] ** 2 / expected[there]).sum()
    assert statistic < degrees + 4 * np.sqrt(2 * degrees)


@pytest.mark.slow
@pytest.mark.parametrize(("capacity", "decay", "seed"), [(20_011, 1.0, 1), (5_000, 0.5, 2)])
def test_rows_and_priorities_are_what_a_dictionary_says_for_millions_of_operations(capacity, decay, seed):
    replay = PrioritizedTransitions(FIELDS, capacity, alpha=ALPHA, epsilon=EPSILON, decay=decay)
    generator, model, done, largest, stale = np.random.default_rng(seed), {}, 0, 1.0, 0
    while done < 4_000_000:
        n, what = int(generator.integers(2, 4096)), generator.integers(3)
        done += n
        if what == 0 or not model:
            first, given = replay.inserted, generator.random(n) * 3 if generator.random() < 0.5 else None
            replay.insert(make_rows(first, n), given)
            priorities = np.full(n, largest) if given is None else given
            largest = max(largest, float(priorities.max()))
            weights = (priorities + EPSILON) ** ALPHA
            model.update(zip(range(first, first + n), weights.tolist(), strict=True))
            for gone in range(min(model), first + n - capacity):
                del model[gone]
        elif what == 1:
            serials = generator.integers(max(replay.inserted - capacity - 2000, 0), replay.inserted, n)
            priorities = generator.random(n) * 5
            replay.update(serials % capacity, serials, priorities)
            kept = serials >= replay.inserted - capacity
            stale += int((~kept).sum())
            if kept.any():
                largest = max(largest, float(priorities[kept].max()))
            weights = (priorities[kept] + EPSILON) ** ALPHA
            model.update(zip(serials[kept].tolist(), weights.tolist(), strict=True))
        else:
            sampled = replay.sample(n, generator)
            np.testing.assert_array_equal(sampled.batch["serial"], sampled.generations)
            np.testing.assert_array_equal(sampled.batch["reward"], sampled.generations.astype(np.float32))
            weights = looked_up(model, sampled.generations)
            np.testing.assert_allclose(sampled.weights, (weights.min() / weights) ** 0.4, rtol=1e-5)
            if decay != 1.0:
                once, times = np.unique(sampled.generations, return_counts=True)
                model.update(zip(once.tolist(), (looked_up(model, once) * decay**times).tolist(), strict=True))
        assert len(replay) == len(model)
    assert replay.check_valid() == []
    assert (replay.max_priority, replay.stale_updates) == (largest, stale)
    assert replay.inserted > 20 * capacity  # around and around
    everything = np.arange(replay.inserted - len(model), replay.inserted)
    weights = looked_up(model, everything)
    np.testing.assert_allclose(replay.priorities[everything % capacity], weights, rtol=1e-12)
    if decay == 1.0:
        drawn = np.concatenate([replay.sample(100, generator).generations for _ in range(5000)])
        assert_drawn_in_proportion(np.bincount(drawn - everything[0], minlength=len(weights)), weights)


@pytest.mark.slow
def test_a_table_is_what_a_dictionary_says_for_millions_of_operations():
    capacity, generator, model, done = 9_973, np.random.default_rng(3), {}, 0
    table = TransitionTable(
        FIELDS, capacity, sampler=PrioritizedSelector(capacity, 0.5), remover=UniformSelector(capacity)
    )
    slots, stale = {}, 0
    while done < 2_000_000:
        n, what = int(generator.integers(2, 2048)), generator.integers(4)
        if what == 0 or len(model) < 2:
            n = min(n, capacity - len(model))
            first, priorities = table.inserted, generator.integers(0, 4, n).astype(np.float64)
            table.insert(make_rows(first, n), priorities)
            model.update(zip(range(first, first + n), priorities.tolist(), strict=True))
            used = table.slots.used
            slots = dict(zip(table.slots.generations[used].tolist(), used.tolist(), strict=True))
            assert slots.keys() == model.keys()
        elif what == 1:
            n = min(n, len(model))
            sampled = table.sample(n, generator)
            np.testing.assert_array_equal(sampled.batch["serial"], sampled.generations)
            assert all(model[serial] > 0 for serial in sampled.generations.tolist()) or not any(model.values())
        else:
            known = generator.choice(np.fromiter(slots, np.int64, len(slots)), n)
            at = looked_up(slots, known)
            here = np.array([serial in model for serial in known.tolist()])
            stale += int((~here).sum())
            if what == 2:
                priorities = generator.integers(0, 4, n).astype(np.float64)
                table.update(at, known, priorities)
                model.update(zip(known[here].tolist(), priorities[here].tolist(), strict=True))
            else:
                table.remove(at, known)
                for serial in known[here].tolist():
                    model.pop(serial, None)
        done += n
        assert (len(table), table.stale_updates) == (len(model), stale)
    assert table.check_valid() == []
    drawn = np.concatenate([table.sample(len(model), generator).generations for _ in range(200)])
    serials = np.array(sorted(model))
    counts = np.bincount(np.searchsorted(serials, drawn), minlength=len(serials))
    assert_drawn_in_proportion(counts, looked_up(model, serials) ** 0.5)
