"""A queue of episodes hands out each of them once, in the order in which they came."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.envs.base import EnvSpec
from components.replay_buffers import Episodes, FreshEpisodes

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


def test_what_waits_too_long_makes_room_and_is_counted():
    replay = FreshEpisodes(SPEC, 3)
    insert(replay, 1, 2, 3, 4, 5)
    assert replay.fresh == 3
    assert draw(replay, 3) == [3, 4, 5]
    assert replay.dropped == 2


@given(st.lists(st.integers(-4, 4).filter(bool), max_size=40), st.integers(1, 7))
def test_it_is_a_queue_with_a_bound(moves, capacity):
    replay, queue, count, dropped = FreshEpisodes(SPEC, capacity), [], 0, 0
    for move in moves:
        if move > 0:
            marks = [float(count + i) for i in range(move)]
            count += move
            insert(replay, *marks)
            queue += marks
            dropped += max(len(queue) - capacity, 0)
            queue = queue[-capacity:]
        elif -move <= len(queue):
            assert draw(replay, -move) == queue[:-move]
            queue = queue[-move:]
            assert replay.dropped == dropped
        assert replay.fresh == len(queue)
