"""Parts of episodes, each with steps before it that only warm a recurrent net up."""

import numpy as np
import pytest

from components.replay_buffers import (
    EpisodeReplay,
    Episodes,
    EpisodeTable,
    FifoSelector,
    FreshEpisodes,
    PrioritizedEpisodeReplay,
    UniformSelector,
)


def rng(seed=0):
    return np.random.default_rng(seed)


def make(kind, spec, capacity=8):
    if kind is EpisodeTable:
        return EpisodeTable(spec, capacity, sampler=UniformSelector(capacity), remover=FifoSelector(capacity))
    return kind(spec, capacity)


KINDS = pytest.mark.parametrize("kind", [EpisodeReplay, PrioritizedEpisodeReplay, EpisodeTable])


@KINDS
@pytest.mark.parametrize(("length", "burn_in"), [(1, 0), (3, 0), (3, 2), (4, 1), (6, 5), (50, 3)])
def test_rollouts_are_parts_of_their_episodes(spec, make_episodes, kind, length, burn_in):
    replay, generator, seen = make(kind, spec), rng(1), set()
    for first in range(0, 30, 3):  # often round the ring
        replay.insert(Episodes(**make_episodes([6, 1, 3], first=first)))
    whole = dict(zip(range(22, 30), [1, 3] + [6, 1, 3] * 2, strict=True))
    for _ in range(150):
        sampled = replay.sample_rollouts(5, length, generator, burn_in=burn_in)
        batch, longest = sampled.batch, int(sampled.batch.lengths.max())
        assert batch.obs.shape[:2] == (5, longest + 1)
        assert batch.reward.shape == sampled.learn.shape == (5, longest)
        for e, first in enumerate(sampled.firsts.tolist()):
            n, frames = int(batch.lengths[e]), batch.obs[e, :, 0, 0]
            episode = int(frames[0] + 1e-3)  # its frames are its number and tenths
            np.testing.assert_allclose(frames[: n + 1], episode + (first + np.arange(n + 1)) / 10, rtol=1e-6)
            np.testing.assert_allclose(batch.reward[e, :n], episode + (first + np.arange(n)) / 10 + 0.5, rtol=1e-6)
            np.testing.assert_array_equal(batch.actions[e, :n, 0], (10 * episode + first + np.arange(n)) % 3)
            assert not batch.obs[e, n + 1 :].any()
            assert not batch.reward[e, n:].any()
            learnt = np.flatnonzero(sampled.learn[e])
            assert len(learnt) == min(length - burn_in, whole[episode])
            assert learnt[0] == min(first + learnt[0], burn_in), "as much burn-in as there is"
            assert learnt[-1] == n - 1
            ends = first + n == whole[episode]
            assert batch.terminated[e] == (ends and episode % 2 == 0)
            seen.add((episode, first + int(learnt[0])))
    places = {(i, k) for i, n in whole.items() for k in range(max(n - (length - burn_in), 0) + 1)}
    assert seen == places


def test_every_place_of_an_episode_is_as_likely(spec, make_episodes):
    replay, generator = EpisodeReplay(spec, 1), rng(2)
    replay.insert(Episodes(**make_episodes([6])))
    begins = []
    for _ in range(2_000):
        sampled = replay.sample_rollouts(1, 3, generator, burn_in=1)
        begins.append(int(sampled.firsts[0] + sampled.learn[0].argmax()))
    counts = np.bincount(begins, minlength=5)
    assert len(counts) == 5
    assert ((counts - 400) ** 2 / 400).sum() < 24  # 4 degrees of freedom: p = 1e-4


def test_priorities_say_whose_rollouts_are_drawn_and_find_their_way_back(spec, make_episodes):
    replay = PrioritizedEpisodeReplay(spec, 4, alpha=1.0, epsilon=0.0, normalize="buffer")
    replay.insert(Episodes(**make_episodes([6, 6])), priorities=np.array([1.0, 3.0]))
    sampled = replay.sample_rollouts(2, 2, rng())
    np.testing.assert_allclose(sampled.batch.weights, np.where(sampled.indices == 1, (1 / 3) ** 0.4, 1.0), rtol=1e-6)
    replay.update(sampled.indices, sampled.generations, np.where(sampled.indices == 1, 0.0, 1.0))
    assert set(replay.sample_rollouts(2, 2, rng()).indices.tolist()) <= {0, 1}
    replay.update(np.array([1]), np.array([1]), np.array([0.0]))
    assert set(replay.sample_rollouts(2, 2, rng()).indices.tolist()) == {0}


def test_episodes_that_are_drawn_once_are(spec, make_episodes):
    replay = FreshEpisodes(spec, 4)
    replay.insert(Episodes(**make_episodes([6, 6, 6])))
    assert replay.sample_rollouts(2, 3, rng()).indices.tolist() == [0, 1]
    with pytest.raises(ValueError, match="expected 1 to 1, the episodes not drawn yet, got 2"):
        replay.sample_rollouts(2, 3, rng())


@pytest.mark.parametrize(("length", "burn_in"), [(0, 0), (3, 3), (3, -1)])
def test_lengths_that_make_no_sense(spec, make_episodes, length, burn_in):
    replay = EpisodeReplay(spec, 4)
    replay.insert(Episodes(**make_episodes([6])))
    with pytest.raises(ValueError, match="expected length of at least 1 and burn_in of 0 to length - 1"):
        replay.sample_rollouts(1, length, rng(), burn_in=burn_in)
    with pytest.raises(ValueError, match="batch_size: expected 1 to 1"):
        replay.sample_rollouts(2, 3, rng())
