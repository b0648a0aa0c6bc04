"""Items are drawn by where their priority stands among all."""

import numpy as np
import pytest

from components.replay_buffers import (
    CheckpointError,
    Episodes,
    Field,
    InvalidExperience,
    PrioritizedEpisodeReplay,
    PrioritizedTransitions,
    RankedPriorities,
)
from components.replay_server import Layout

FIELDS = {"item": Field(np.int64)}


def rng(seed=0):
    return np.random.default_rng(seed)


def weights_of(priorities, alpha):
    """What the paper says, the plain way; of equals the lower slot first."""
    order = sorted(range(len(priorities)), key=lambda i: (-priorities[i], i))
    weights = np.zeros(len(priorities))
    for rank, i in enumerate(order, 1):
        weights[i] = (1 / rank) ** alpha
    return weights


def replay_of(priorities, capacity=None, **options):
    replay = PrioritizedTransitions(FIELDS, capacity or len(priorities), variant="rank", **options)
    replay.insert({"item": np.arange(len(priorities))}, np.asarray(priorities, np.float64))
    return replay


@pytest.mark.parametrize("n", [1, 2, 17, 500])
def test_weights_are_those_of_the_paper(n):
    priorities = rng(n).integers(0, max(n // 2, 1), n).astype(np.float64)  # with equals, and zeros
    ranked = RankedPriorities(n, alpha=0.7)
    ranked.set(np.arange(n), ranked.to_weights(priorities, n))
    slots, importance, drawn = ranked.draw(64, rng())
    expected = weights_of(priorities, 0.7)
    np.testing.assert_allclose(ranked[np.arange(n)], expected, rtol=1e-12)
    np.testing.assert_allclose(drawn, expected[slots], rtol=1e-12)
    np.testing.assert_allclose(importance, (drawn.min() / drawn) ** 0.5, rtol=1e-6)
    assert ranked.total == pytest.approx(expected.sum())
    assert ranked.check_valid() == []


def test_draws_follow_the_weights_and_an_outlier_is_worth_no_more_than_its_rank():
    priorities = np.array([1.0, 1e300, 3.0, 0.0, 2.0, 0.5])
    replay = replay_of(priorities, alpha=1.0)
    counts = np.zeros(6)
    generator = rng(3)
    for _ in range(400):
        items, times = np.unique(replay.sample(32, generator).batch["item"], return_counts=True)
        counts[items] += times
    expected = weights_of(priorities, 1.0) / weights_of(priorities, 1.0).sum() * counts.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 5 + 4 * np.sqrt(10)


def test_what_changes_gets_the_rank_it_would_have_had_until_many_have_changed():
    n = 200
    priorities = np.arange(n, dtype=np.float64)
    replay = replay_of(priorities, alpha=1.0)
    first = replay.sample(8, rng())
    ladder = weights_of(priorities, 1.0)
    replay.update(np.array([0, 1]), np.array([0, 1]), np.array([1e6, 99.5]))
    replay.sample(8, rng())
    np.testing.assert_allclose(replay.priorities[np.arange(4)], [1.0, 1 / 101, ladder[2], ladder[3]])
    changed = np.arange(n // 8)
    replay.update(changed, changed, 1000.0 + changed)
    replay.sample(8, rng())
    now = np.concatenate([1000.0 + changed, priorities[n // 8 :]])
    np.testing.assert_allclose(replay.priorities[np.arange(n)], weights_of(now, 1.0))
    assert len(first.indices) == 8
    assert replay.check_valid() == []


def test_new_items_stand_at_the_top_and_overwritten_ones_nowhere():
    replay = replay_of([5.0, 1.0, 2.0], capacity=4, alpha=1.0)
    replay.insert({"item": np.array([3, 4])})  # item 0 is gone
    replay.sample(4, rng())
    assert replay.priorities[np.arange(4)].tolist() == [1.0, 0.25, 1 / 3, 0.5]
    assert set(replay.sample(256, rng()).batch["item"].tolist()) == {1, 2, 3, 4}
    half = RankedPriorities(4)
    half.add(2, 2)
    assert set(half.draw(64, rng())[0].tolist()) == {2, 3}
    half.clear(2, 1)
    assert set(half.draw(64, rng())[0].tolist()) == {3}
    half.clear(0, 4)
    with pytest.raises(ValueError, match="something with weight"):
        half.draw(1, rng())


@pytest.mark.parametrize("normalize", ["batch", "buffer"])
def test_a_checkpoint_brings_back_the_same_draws(tmp_path, normalize):
    replay = replay_of(rng().random(50), capacity=64, normalize=normalize)
    replay.sample(8, rng())
    replay.update(np.arange(3), np.arange(3), np.array([9.0, 0.0, 0.5]))
    replay.save(tmp_path / "replay")
    again = PrioritizedTransitions(FIELDS, 64, variant="rank", normalize=normalize)
    again.load(tmp_path / "replay")
    for _ in range(3):
        one, other = replay.sample(16, rng(1)), again.sample(16, rng(1))
        np.testing.assert_array_equal(one.indices, other.indices)
        np.testing.assert_array_equal(one.weights, other.weights)
    assert again.check_valid() == []
    with pytest.raises(CheckpointError, match=r"numbers: expected no array|weights: expected an array"):
        PrioritizedTransitions(FIELDS, 64, alpha=0.7, epsilon=0.0).load(tmp_path / "replay")
    state = replay.state()
    state["priorities/numbers"] = state["priorities/numbers"] - 5.0
    with pytest.raises(CheckpointError, match="numbers: expected priorities of at least 0"):
        again.restore(state)


def test_a_share_says_what_all_that_is_held_weighs_by_the_ranks_it_was_drawn_by():
    replay = replay_of([1.0, 2.0, 3.0], alpha=1.0)
    share = replay.share(8, rng())
    assert share.total == pytest.approx(1 + 1 / 2 + 1 / 3)
    np.testing.assert_allclose(share.weights, np.array([1 / 3, 1 / 2, 1.0])[share.indices])


def test_episodes_and_layouts_have_ranks_too(spec, make_episodes):
    replay = PrioritizedEpisodeReplay(spec, 8, variant="rank", alpha=1.0)
    replay.insert(Episodes(**make_episodes([2, 3, 4])), priorities=np.array([1.0, 3.0, 2.0]))
    replay.sample(2, rng())
    assert replay.priorities[np.arange(3)].tolist() == [1 / 3, 1.0, 0.5]
    layout = Layout(FIELDS, 64, variant="rank")
    assert Layout.from_plain(layout.to_plain()) == layout
    assert isinstance(layout.new_buffer().priorities, RankedPriorities)


def test_what_makes_no_sense():
    with pytest.raises(ValueError, match="variant: expected proportional or rank, got 'order'"):
        PrioritizedTransitions(FIELDS, 8, variant="order")
    with pytest.raises(ValueError, match="decay: expected 1 with ranks"):
        PrioritizedTransitions(FIELDS, 8, variant="rank", decay=0.5)
    replay = replay_of([1.0, 2.0])
    for wrong in (np.array([-1.0, 1.0]), np.array([np.nan, 1.0]), np.ones(3)):
        with pytest.raises(InvalidExperience, match="priorities"):
            replay.update(np.arange(2), np.arange(2), wrong)
