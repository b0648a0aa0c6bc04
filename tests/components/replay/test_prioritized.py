import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.envs.base import EnvSpec
from components.replay import PrioritizedEpisodeReplay
from components.replay.sums import SumTree


def rng(seed=0):
    return np.random.default_rng(seed)


def filled(spec, make_episodes, priorities, **options):
    """Return a replay buffer with one episode per priority."""
    replay = PrioritizedEpisodeReplay(spec, len(priorities), **options)
    replay.insert(**make_episodes([1] * len(priorities)))
    n = np.arange(len(priorities))
    replay.update(n, n, np.array(priorities, np.float32))
    return replay


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_episodes_are_drawn_in_proportion_to_their_priority_to_the_power_alpha(spec, make_episodes, alpha):
    priorities = np.array([0.1, 1.0, 4.0, 9.0, 0.5, 2.0])
    replay, generator = filled(spec, make_episodes, priorities, alpha=alpha), rng()
    # A batch of one is a plain draw: strata would make the counts less random than the test assumes.
    counts = np.bincount([replay.sample(1, generator).indices[0] for _ in range(12_000)], minlength=6)
    expected = 12_000 * priorities**alpha / (priorities**alpha).sum()
    assert ((counts - expected) ** 2 / expected).sum() < 26  # 5 degrees of freedom: p = 1e-4


def test_each_stratum_gives_one_episode(spec, make_episodes):
    replay, generator = filled(spec, make_episodes, [1, 1, 1, 1, 4], alpha=1.0), rng()
    for _ in range(30):
        counts = np.bincount(
            replay.sample(8, generator).indices
            if len(replay) >= 8
            else np.concatenate([replay.sample(4, generator).indices]),
            minlength=5,
        )
        assert counts[4] == 2  # half of the sum, so half of the strata
        assert counts[:4].sum() == 2


def test_importance_weights_undo_the_preference_up_to_their_maximum(spec, make_episodes):
    priorities = np.array([1.0, 2.0, 4.0, 8.0])
    for beta in (0.0, 0.4, 1.0):
        replay = filled(spec, make_episodes, priorities, alpha=1.0, beta=beta)
        sampled = replay.sample(4, rng())
        chance = priorities[sampled.indices] / priorities.sum()
        expected = (4 * chance) ** -beta
        np.testing.assert_allclose(sampled.batch.weights, expected / expected.max(), rtol=1e-5)


def test_with_beta_one_a_weighted_mean_is_that_of_uniform_draws(spec, make_episodes):
    priorities, values = np.array([1.0, 2.0, 4.0, 8.0]), np.array([3.0, -1.0, 5.0, 2.0])
    replay, generator = filled(spec, make_episodes, priorities, alpha=0.7, beta=1.0), rng()
    total = weight = 0.0
    for _ in range(4000):
        sampled = replay.sample(4, generator)
        # Undo the scaling by the batch's maximum, which differs from batch to batch.
        weights = sampled.batch.weights * (priorities[sampled.indices] ** -0.7).max()
        total += (weights * values[sampled.indices]).sum()
        weight += weights.sum()
    assert total / weight == pytest.approx(values.mean(), abs=0.05)


def test_new_episodes_enter_with_the_largest_priority_so_far(spec, make_episodes):
    replay = PrioritizedEpisodeReplay(spec, 4, alpha=1.0)
    replay.insert(**make_episodes([1, 1]))
    replay.update(np.array([0, 1]), np.array([0, 1]), np.array([9.0, 0.5], np.float32))
    replay.update(np.array([0]), np.array([0]), np.array([0.25], np.float32))
    replay.insert(**make_episodes([1], first=2))
    assert replay.max_priority == 9.0
    generator = rng()
    counts = np.bincount([replay.sample(1, generator).indices[0] for _ in range(4000)], minlength=3)
    expected = 4000 * np.array([0.25, 0.5, 9.0]) / 9.75
    assert ((counts - expected) ** 2 / expected).sum() < 18.5  # 2 degrees of freedom: p = 1e-4


def test_a_priority_for_an_overwritten_episode_is_ignored_and_counted(spec, make_episodes):
    replay = PrioritizedEpisodeReplay(spec, 2, alpha=1.0)
    replay.insert(**make_episodes([1, 1]))
    old = replay.sample(2, rng())
    replay.insert(**make_episodes([1, 1], first=2))
    replay.update(old.indices, old.generations, np.array([100.0, 100.0], np.float32))
    assert replay.stale_updates == 2
    assert replay.max_priority == 1.0
    generator = rng()
    counts = np.bincount([replay.sample(1, generator).indices[0] for _ in range(1000)])
    assert abs(counts[0] - 500) < 80


def test_of_a_priority_given_twice_the_last_one_stays(spec, make_episodes):
    replay = filled(spec, make_episodes, [1.0, 1.0], alpha=1.0)
    replay.update(np.array([0, 0]), np.array([0, 0]), np.array([50.0, 1.0], np.float32))
    assert replay.check_valid() == []
    generator = rng()
    counts = np.bincount([replay.sample(1, generator).indices[0] for _ in range(1000)])
    assert abs(counts[0] - 500) < 80


def test_an_episode_without_error_stays_within_reach(spec, make_episodes):
    replay = filled(spec, make_episodes, [0.0, 0.0, 0.0], alpha=0.6)
    generator = rng()
    assert len({int(replay.sample(1, generator).indices[0]) for _ in range(200)}) == 3


@pytest.mark.parametrize(
    "options", [{"alpha": -1.0}, {"beta": 1.5}, {"beta": -0.1}, {"epsilon": 0.0}], ids=lambda o: next(iter(o))
)
def test_an_argument_out_of_range_is_refused(options):
    with pytest.raises(ValueError, match=r"expected alpha of at least 0, beta in \[0, 1\] and epsilon above 0, got"):
        PrioritizedEpisodeReplay(EnvSpec("tiny", 1, 1, 1, 1, 1), 4, **options)


weights_of = st.lists(st.sampled_from([0.0, 1e-12, 0.1, 1.0, 3.0, 1e9]), min_size=1, max_size=200)


@settings(max_examples=100, deadline=None)
@given(weights=weights_of, shares=st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_a_share_finds_the_item_at_which_the_running_sum_passes_it(weights, shares):
    weights = np.array(weights)
    if not weights.any():
        weights[-1] = 1.0
    tree = SumTree(len(weights))
    tree[np.arange(len(weights))] = weights
    shares = np.array([*shares, 0.0, 1.0])  # drawing can round to 1
    found = tree.find(shares)
    assert tree.check_valid() == []
    assert tree.total == pytest.approx(weights.sum())
    assert (weights[found] > 0).all()
    ends, slack = np.cumsum(weights), 1e-12 * weights.sum()
    assert (shares * weights.sum() <= ends[found] + slack).all()
    assert (shares * weights.sum() >= ends[found] - weights[found] - slack).all()


def test_items_without_weight_are_passed_over_at_either_end():
    tree = SumTree(200)
    tree[np.array([71, 130])] = 2.0  # the first block and the last have no weight at all
    assert tree.find(np.array([0.0, 0.49, 0.5, 0.51, 1.0])).tolist() == [71, 71, 130, 130, 130]


def test_rounding_never_lifts_a_share_past_the_last_item_with_weight():
    # A sum and a running sum of the same numbers differ in their last digits; among so many some differ either way.
    for seed in range(50):
        tree, weights = SumTree(60), np.random.default_rng(seed).random(50)
        tree[np.arange(50)] = weights
        assert tree.find(np.array([np.nextafter(1.0, 0.0), 1.0])).tolist() == [49, 49]


def test_rounding_never_puts_a_share_on_the_first_item_of_a_block_without_weight():
    for seed in range(50):
        generator = np.random.default_rng(seed)
        tree, weights = SumTree(300), generator.random(300) * 10.0 ** generator.uniform(-3, 3, 300)
        weights[::64] = 0.0
        tree[np.arange(300)] = weights
        ends = np.cumsum(tree._blocks)
        borders = np.clip(np.concatenate([ends, np.nextafter(ends, 0.0)]) / ends[-1], 0.0, 1.0)
        assert weights[tree.find(borders)].all()


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 150),
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.floats(0, 100)), min_size=1, max_size=60),
)
def test_weights_are_what_was_last_set(size, changes):
    tree, model = SumTree(size), np.zeros(size)
    for start in range(0, len(changes), 7):
        part = changes[start : start + 7]
        items = np.array([i % size for i, _ in part])
        tree[items] = np.array([w for _, w in part])
        for i, (_, w) in zip(items, part, strict=True):
            model[i] = w
        np.testing.assert_array_equal(tree[np.arange(size)], model)
        assert tree.check_valid() == []


def test_a_spoilt_tree_is_reported():
    tree = SumTree(3)
    tree[np.array([1])] = 2.0
    tree._leaves[0, 2] = -1.0
    assert tree.check_valid() == ["a weight is negative or not finite", "the sum of a block is not that of its leaves"]
    tree._leaves[0, 2:4] = 0.0, 5.0
    assert "there is weight beyond the last item" in tree.check_valid()
