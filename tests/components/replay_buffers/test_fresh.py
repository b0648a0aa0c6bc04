"""A queue of episodes hands out each of them once, in the order in which they came."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.envs.base import EnvSpec
from components.replay_buffers import BufferFull, Episodes, FreshEpisodes, SampleToInsertRatio

SPEC = EnvSpec("corridor", n_agents=2, n_actions=3, obs_size=4, state_size=3, episode_limit=6)
RNG = np.random.default_rng(0)


def insert(replay, *marks, length=2):
    """Episodes whose every number is their mark."""
    steps, frames = length * len(marks), (length + 1) * len(marks)
    per_frame = np.repeat(np.array(marks, np.float32), length + 1)
    replay.insert(
        Episodes(
            obs=np.broadcast_to(per_frame[:, None, None], (frames, 2, 4)).copy(),
            state=np.broadcast_to(per_frame[:, None], (frames, 3)).copy(),
            available=np.ones((frames, 2, 3), np.bool_),
            actions=np.zeros((steps, 2), np.int64),
            reward=np.repeat(np.array(marks, np.float32), length),
            terminated=np.ones(len(marks), np.bool_),
            lengths=np.full(len(marks), length, np.int32),
        )
    )


def draw(replay, count):
    return replay.sample(count, RNG).batch.reward[:, 0].tolist()


def test_each_episode_is_drawn_once_the_oldest_first():
    replay = FreshEpisodes(SPEC, 10)
    insert(replay, 1, 2, 3)
    assert draw(replay, 2) == [1, 2]
    insert(replay, 4)
    assert replay.fresh == 2
    assert draw(replay, 2) == [3, 4]
    assert replay.fresh == 0


def test_more_than_are_fresh_are_refused_and_nothing_is_lost():
    replay = FreshEpisodes(SPEC, 10)
    insert(replay, 1, 2)
    draw(replay, 1)
    with pytest.raises(ValueError, match="expected 1 to 1, the episodes not drawn yet, got 2"):
        replay.sample(2, RNG)
    assert draw(replay, 1) == [2]


def test_a_full_queue_refuses_more_and_drops_nothing():
    replay = FreshEpisodes(SPEC, 3)
    insert(replay, 1, 2)
    with pytest.raises(BufferFull, match="2 of 3 segments wait to be drawn, so that there is no room for 2 more"):
        insert(replay, 3, 4)
    insert(replay, 3)
    assert draw(replay, 1) == [1]
    insert(replay, 4)
    assert draw(replay, 3) == [2, 3, 4]
    assert (replay.fresh, replay.drawn) == (0, 4)


@given(st.lists(st.integers(-4, 4).filter(bool), max_size=40), st.integers(1, 7))
def test_it_is_a_queue_with_a_bound(moves, capacity):
    replay, queue, count, drawn = FreshEpisodes(SPEC, capacity), [], 0, 0
    for move in moves:
        if move > 0:
            marks = [float(count + i) for i in range(move)]
            if len(queue) + move > capacity:
                with pytest.raises(BufferFull):
                    insert(replay, *marks)
                continue
            count += move
            insert(replay, *marks)
            queue += marks
        elif -move <= len(queue):
            assert draw(replay, -move) == queue[:-move]
            queue = queue[-move:]
            drawn -= move
        assert (replay.fresh, replay.drawn) == (len(queue), drawn)


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 9), min_size=4, max_size=4), st.booleans()), max_size=60),
    st.integers(1, 6),
    st.integers(1, 3),
)
def test_the_limiter_keeps_a_queue_from_filling_while_workers_send_what_they_have(turns, batch, n_envs):
    """Four workers stop after the step in which they use their last credit: all that ends in it is sent."""
    limiter = SampleToInsertRatio(1 / batch, min_size=batch, error_buffer=(0.0, 2.0))
    replay = FreshEpisodes(SPEC, 4 * batch + 2 * 4 * n_envs)
    for ended, learner_is_there in turns:
        credit = limiter.insertable()
        shares = [credit // 4 + (i < credit % 4) for i in range(4)]
        sent = sum(min(n, share - 1 + n_envs) for n, share in zip(ended, shares, strict=True) if share)
        if sent:
            limiter.insert(sent)
            insert(replay, *[1.0] * sent)
        while learner_is_there and limiter.may_sample():
            limiter.sample()
            draw(replay, batch)
