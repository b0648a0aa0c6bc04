from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.policies.packing import Packing
from components.policies.returns import lambda_returns


def packed(lengths, terminated=True):
    return Packing.of(np.array(lengths, np.int32), np.broadcast_to(terminated, len(lengths)))


def places(rows, counts):
    """Return the episode and the time of some rows, where episodes of so many rows lie one after the other."""
    every = [(e, t) for e, n in enumerate(counts) for t in range(n)]
    return [every[row] for row in rows.tolist()]


def of_frames(rows, lengths):
    return places(rows, [n + 1 for n in lengths])


lengths_of = st.lists(st.integers(1, 8), min_size=1, max_size=6)


@given(lengths=lengths_of)
def test_every_frame_and_step_is_packed_once_in_order_of_time(lengths):
    packing = packed(lengths)
    frames, steps = of_frames(packing.frames, lengths), places(packing.steps, lengths)
    assert sorted(frames) == [(e, t) for e, n in enumerate(lengths) for t in range(n + 1)]
    assert sorted(steps) == [(e, t) for e, n in enumerate(lengths) for t in range(n)]
    assert [t for _, t in frames] == [t for t, block in enumerate(packing.frame_blocks) for _ in range(block)]
    assert [t for _, t in steps] == [t for t, block in enumerate(packing.step_blocks) for _ in range(block)]


@given(lengths=lengths_of)
def test_a_step_knows_its_frames_its_episode_and_whether_it_is_the_last(lengths):
    packing = packed(lengths)
    frames = of_frames(packing.frames, lengths)
    for k, (episode, t) in enumerate(places(packing.steps, lengths)):
        assert packing.episode[k] == episode
        assert frames[packing.departs[k]] == (episode, t)
        assert frames[k + len(lengths)] == (episode, t + 1)
        assert (packing.last[episode] == k) == (t == lengths[episode] - 1)


@given(data=st.data(), lengths=lengths_of)
def test_all_frames_are_asked_for_but_those_where_the_battle_is_over(data, lengths):
    terminated = np.array(data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths))))
    packing = packed(lengths, terminated)
    start, asked = 0, []
    for block, of_them in zip(packing.frame_blocks, packing.asked_blocks, strict=True):
        asked += of_frames(packing.frames[start : start + of_them], lengths)
        start += block
    assert sorted(asked) == [(e, t) for e, n in enumerate(lengths) for t in range(n + 1 - terminated[e])]


@given(lengths=lengths_of)
def test_row_i_of_a_block_goes_on_in_row_i_of_the_next(lengths):
    packing = packed(lengths)
    episodes = [episode for episode, _ in of_frames(packing.frames, lengths)]
    start = 0
    for here, after in zip(packing.frame_blocks[:-1], packing.frame_blocks[1:], strict=True):
        assert episodes[start : start + after] == episodes[start + here : start + here + after]
        start += here


@given(lengths=lengths_of, td_lambda=st.sampled_from([0.0, 0.5, 0.9, 1.0]), seed=st.integers(0, 99))
def test_returns_follow_their_recursion_in_each_episode(lengths, td_lambda, seed):
    packing = packed(lengths)
    rng = np.random.default_rng(seed)
    reward, value = rng.standard_normal((len(packing.steps), 1)), rng.standard_normal((len(packing.steps), 2))
    got = lambda_returns(reward, value, packing.step_blocks, gamma=0.9, td_lambda=td_lambda)
    for episode, length in enumerate(lengths):
        rows = np.flatnonzero(packing.episode == episode)
        expected = reward[rows[-1]] + 0.9 * value[rows[-1]]
        np.testing.assert_allclose(got[rows[-1]], expected, atol=1e-12)
        for t in reversed(range(length - 1)):
            expected = reward[rows[t]] + 0.9 * ((1 - td_lambda) * value[rows[t]] + td_lambda * expected)
            np.testing.assert_allclose(got[rows[t]], expected, atol=1e-12)


def test_returns_of_three_steps_worked_out_by_hand():
    reward, value = np.array([[1.0], [2.0], [4.0]]), np.array([[10.0], [20.0], [40.0]])
    # λ = 0.5, gamma = 0.5: G_2 = 4 + 20 = 24; G_1 = 2 + 0.5 (10 + 12) = 13; G_0 = 1 + 0.5 (5 + 6.5) = 6.75.
    got = lambda_returns(reward, value, (1, 1, 1), gamma=0.5, td_lambda=0.5)
    assert got.ravel().tolist() == [6.75, 13.0, 24.0]


@pytest.mark.parametrize("lengths", [[], [0], [5, 0], [-1]])
def test_lengths_out_of_range_are_refused(lengths):
    with pytest.raises(ValueError, match="lengths: expected at least one episode of 1 or more steps each"):
        packed(lengths)


@given(lengths=lengths_of, n_parts=st.integers(1, 5))
def test_parts_are_whole_episodes_of_about_equally_many_frames(lengths, n_parts):
    packing = packed(lengths)
    bounds = packing.parted(n_parts)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, len(lengths), n_parts + 1)
    assert list(bounds) == sorted(bounds)
    falling = sorted((n + 1 for n in lengths), reverse=True)
    frames = [sum(falling[first:last]) for first, last in pairwise(bounds)]
    assert packing.frames_between(bounds).tolist() == frames
    assert max(frames) <= sum(falling) / n_parts + max(falling)
