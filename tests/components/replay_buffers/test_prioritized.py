import numpy as np
import pytest

from components.envs.base import EnvSpec
from components.replay_buffers import Episodes, InvalidExperience, PrioritizedEpisodeReplay


def rng(seed=0):
    return np.random.default_rng(seed)


def filled(spec, make_episodes, priorities, **options):
    """Return a replay buffer with one episode per priority."""
    replay = PrioritizedEpisodeReplay(spec, len(priorities), **options)
    replay.insert(Episodes(**make_episodes([1] * len(priorities))))
    n = np.arange(len(priorities))
    replay.update(n, n, np.array(priorities, np.float32))
    return replay


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_episodes_are_drawn_in_proportion_to_their_priority_to_the_power_alpha(spec, make_episodes, alpha):
    priorities = np.array([0.1, 1.0, 4.0, 9.0, 0.5, 2.0])
    replay, generator = filled(spec, make_episodes, priorities, alpha=alpha), rng()
    # A batch of one is a plain draw: strata would make the counts less random than the test assumes.
    counts = np.bincount([replay.sample(1, generator).indices[0] for _ in range(6_000)], minlength=6)
    expected = 6_000 * priorities**alpha / (priorities**alpha).sum()
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
    replay.insert(Episodes(**make_episodes([1, 1])))
    replay.update(np.array([0, 1]), np.array([0, 1]), np.array([9.0, 0.5], np.float32))
    replay.update(np.array([0]), np.array([0]), np.array([0.25], np.float32))
    replay.insert(Episodes(**make_episodes([1], first=2)))
    assert replay.max_priority == 9.0
    generator = rng()
    counts = np.bincount([replay.sample(1, generator).indices[0] for _ in range(4000)], minlength=3)
    expected = 4000 * np.array([0.25, 0.5, 9.0]) / 9.75
    assert ((counts - expected) ** 2 / expected).sum() < 18.5  # 2 degrees of freedom: p = 1e-4


def test_new_episodes_may_bring_a_priority_of_their_own(spec, make_episodes):
    replay = PrioritizedEpisodeReplay(spec, 3, alpha=1.0, epsilon=0.0)
    replay.insert(Episodes(**make_episodes([1, 2, 1])), priorities=np.array([0.5, 4.0, 0.0]))
    assert replay.priorities[np.arange(3)].tolist() == [0.5, 4.0, 0.0]
    assert replay.max_priority == 4.0
    replay.insert(Episodes(**make_episodes([1] * 5, first=3)), priorities=np.arange(1.0, 6.0))  # more than are held
    assert replay.priorities[np.array([5, 6, 7]) % 3].tolist() == [3.0, 4.0, 5.0]
    before = replay.state()
    for bad in (np.array([np.nan]), np.array([1.0, 2.0]), np.array([-1.0])):
        with pytest.raises(InvalidExperience, match="priorities: expected"):
            replay.insert(Episodes(**make_episodes([1], first=8)), priorities=bad)
    with pytest.raises(InvalidExperience, match="reward: expected"):
        replay.insert(Episodes(**(make_episodes([1]) | {"reward": np.zeros(1)})), priorities=np.array([9.0]))
    assert all(before[name].tobytes() == array.tobytes() for name, array in replay.state().items())


def test_a_priority_for_an_overwritten_episode_is_ignored_and_counted(spec, make_episodes):
    replay = PrioritizedEpisodeReplay(spec, 2, alpha=1.0)
    replay.insert(Episodes(**make_episodes([1, 1])))
    old = replay.sample(2, rng())
    replay.insert(Episodes(**make_episodes([1, 1], first=2)))
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
    "options", [{"alpha": -1.0}, {"beta": 1.5}, {"beta": -0.1}, {"epsilon": np.nan}, {"decay": 2.0}], ids=str
)
def test_an_argument_out_of_range_is_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}: expected a"):
        PrioritizedEpisodeReplay(EnvSpec("tiny", 1, 1, 1, 1, 1), 4, **options)


def test_beta_may_be_annealed_but_stays_in_range(spec, make_episodes):
    replay = filled(spec, make_episodes, [1.0, 8.0], alpha=1.0, beta=0.0, normalize="buffer")
    assert (replay.sample(2, rng()).batch.weights == 1.0).all()
    replay.beta = 1.0
    assert (replay.sample(2, rng()).indices == 1).any()
    assert replay.sample(2, rng()).batch.weights.min() == pytest.approx(1 / 8, rel=1e-5)
    with pytest.raises(ValueError, match=r"beta: expected a number in \[0, 1\], got nan"):
        replay.beta = np.nan
    assert replay.beta == 1.0


def test_an_episode_that_was_drawn_decays(spec, make_episodes):
    replay, generator = filled(spec, make_episodes, [1.0] * 5, alpha=1.0, decay=0.0), rng()
    assert sorted(int(replay.sample(1, generator).indices[0]) for _ in range(5)) == list(range(5))
    with pytest.raises(ValueError, match="expected something with weight to draw, got none"):
        replay.sample(1, generator)
