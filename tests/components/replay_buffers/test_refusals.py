"""Whatever is wrong with what comes in, it is named, and the memory is to the byte what it was."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.replay_buffers import (
    EpisodeReplay,
    Episodes,
    EpisodeTable,
    Field,
    PrioritizedEpisodeReplay,
    PrioritizedTransitions,
    Transitions,
    TransitionTable,
)
from components.replay_buffers.invalid import InvalidExperience
from components.replay_buffers.selectors import FifoSelector, PrioritizedSelector, UniformSelector

FIELDS = {
    "obs": Field(np.float32, (3,)),
    "action": Field(np.int64),
    "reward": Field(np.float32, finite=True),
    "done": Field(np.bool_),
}
MEMORIES = {
    "rows": lambda spec: Transitions(FIELDS, 7),
    "rows by priority": lambda spec: PrioritizedTransitions(FIELDS, 7, alpha=1.0),
    "table": lambda spec: TransitionTable(FIELDS, 7, sampler=PrioritizedSelector(7), remover=UniformSelector(7)),
    "episodes": lambda spec: EpisodeReplay(spec, 7),
    "episodes by priority": lambda spec: PrioritizedEpisodeReplay(spec, 7, alpha=1.0),
    "table of episodes": lambda spec: EpisodeTable(spec, 7, sampler=FifoSelector(7), remover=FifoSelector(7)),
}
SPOIL = {
    "another dtype": lambda a: a.astype(np.int16 if a.dtype != np.int16 else np.int8),
    "one more axis": lambda a: a[..., None],
    "a scalar": lambda a: a[0] if a.ndim == 1 else a.reshape(-1)[0],
    "a list": lambda a: a.tolist(),
    "nothing": lambda a: None,
    "one too many": lambda a: np.concatenate([a, a[:1]]),
}
SPOIL_NUMBERS = {"NaN": np.nan, "infinite": np.inf, "minus infinite": -np.inf}
SPOIL_PRIORITIES = {**SPOIL_NUMBERS, "negative": -1e-9, "so large that sums overflow": 1.7e308}


@pytest.fixture(params=list(MEMORIES), scope="module")
def kept(request, spec, make_episodes):
    """Return a memory that holds something, and a function that makes what it takes."""
    replay = MEMORIES[request.param](spec)

    def make(n):
        if "episodes" in request.param:
            return make_episodes([1 + i % 6 for i in range(n)])
        serial = np.arange(n)
        return {
            "obs": np.ones((n, 3), np.float32),
            "action": serial,
            "reward": serial.astype(np.float32),
            "done": serial % 2 == 0,
        }

    def insert(made, **options):
        if "episodes" in request.param:
            replay.insert(Episodes(**made), **options)
        else:
            replay.insert(made, **options)

    insert(make(5))
    return replay, make, insert


def draws_by_priority(replay):
    return hasattr(replay, "priorities") or isinstance(replay, TransitionTable)


def assert_refused(replay, call, names):
    before = {name: array.tobytes() for name, array in replay.state().items()}
    with pytest.raises(InvalidExperience) as caught:
        call()
    assert any(str(caught.value).startswith(name) for name in names), caught.value
    assert "expected" in str(caught.value)
    assert {name: array.tobytes() for name, array in replay.state().items()} == before
    assert replay.check_valid() == []


@settings(max_examples=60, deadline=None)
@given(data=st.data(), n=st.integers(2, 4))
def test_what_is_malformed_is_refused_by_name_and_nothing_changes(kept, data, n):
    replay, make, insert = kept
    made = make(n)
    field = data.draw(st.sampled_from(sorted(made)))
    how = data.draw(st.sampled_from(sorted(SPOIL)))
    made[field] = SPOIL[how](made[field])
    # With one too many of it, a field is as long as another is expected to be; either is named.
    others = list(made) if how in ("one too many", "a scalar") else [field]
    assert_refused(replay, lambda: insert(made), others)


@settings(max_examples=30, deadline=None)
@given(data=st.data(), how=st.sampled_from(sorted(SPOIL_NUMBERS)), n=st.integers(1, 4))
def test_a_reward_that_is_no_number_is_refused_and_nothing_changes(kept, data, how, n):
    replay, make, insert = kept
    made = make(n)
    made["reward"][data.draw(st.integers(0, len(made["reward"]) - 1))] = SPOIL_NUMBERS[how]
    assert_refused(replay, lambda: insert(made), ["reward"])


def test_large_finite_rewards_are_taken_although_their_squares_overflow(kept):
    replay, make, insert = kept
    made, held = make(2), replay.inserted
    made["reward"][:] = np.finfo(np.float32).max
    insert(made)
    assert replay.inserted == held + 2


@settings(max_examples=60, deadline=None)
@given(data=st.data(), n=st.integers(1, 4))
def test_a_malformed_update_is_refused_by_name_and_nothing_changes(kept, data, n):
    replay = kept[0]
    if not hasattr(replay, "update"):
        return  # rows that are drawn uniformly have no priorities
    sampled = replay.sample(n, np.random.default_rng(0))
    given_arrays = {
        "indices": sampled.indices,
        "generations": sampled.generations,
        "priorities": np.linspace(0.5, 1.5, n),
    }
    field = data.draw(st.sampled_from(sorted(given_arrays)))
    kinds = sorted(SPOIL) + (sorted(SPOIL_PRIORITIES) if field == "priorities" else ["too large", "negative"])
    how = data.draw(st.sampled_from(kinds))
    array = given_arrays[field] = given_arrays[field].copy()
    if how in SPOIL and not (how == "another dtype" and field != "priorities"):
        given_arrays[field] = SPOIL[how](array)
    elif field == "priorities" and (how != "so large that sums overflow" or draws_by_priority(replay)):
        array[-1] = SPOIL_PRIORITIES[how]
    elif field == "indices":
        array[-1] = {"too large": 7, "negative": -1, "another dtype": 99}[how]
    else:
        return  # a generation that never was is stale, as is any other, and integers may be narrow
    assert_refused(replay, lambda: replay.update(**given_arrays), list(given_arrays))
