"""Memories that were closed say so, whatever is asked of them, and hold nothing any more."""

import gc
import weakref

import numpy as np
import pytest

from components.checkpoints.array_file import ArrayReader
from components.replay_buffers import (
    Closed,
    EpisodeReplay,
    Episodes,
    EpisodeTable,
    Field,
    FifoSelector,
    FreshEpisodes,
    PrioritizedEpisodeReplay,
    PrioritizedTransitions,
    Transitions,
    TransitionTable,
    UniformSelector,
)

FIELDS = {"item": Field(np.int64)}
ROWS = {"item": np.arange(3)}


def table(kind, *args):
    return kind(*args, 8, sampler=UniformSelector(8), remover=FifoSelector(8))


@pytest.fixture(params=["rows", "prioritised rows", "row table"])
def transitions(request):
    kinds = {
        "rows": lambda: Transitions(FIELDS, 8),
        "prioritised rows": lambda: PrioritizedTransitions(FIELDS, 8),
        "row table": lambda: table(TransitionTable, FIELDS),
    }
    return kinds[request.param]()


@pytest.fixture(params=[EpisodeReplay, PrioritizedEpisodeReplay, FreshEpisodes, EpisodeTable])
def episodes(request, spec):
    return table(EpisodeTable, spec) if request.param is EpisodeTable else request.param(spec, 8)


def refuses_all(replay, path, calls):
    names = {name for name in dir(type(replay)) if not name.startswith("_") and callable(getattr(type(replay), name))}
    calls |= {
        "sample": (1, np.random.default_rng(0)),
        "sample_rollouts": (1, 2, np.random.default_rng(0)),
        "update": (np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1)),
        "remove": (np.zeros(1, np.int64), np.zeros(1, np.int64)),
        "share": (1, np.random.default_rng(0)),
        "restore_from": (ArrayReader({}),),
        "state_arrays": (),
        "part_arrays": (range(1),),
        "rest_arrays": (),
        "rows_of": ("reward", np.ones(1, np.int32)),
        "share_rollouts": (1, 2, np.random.default_rng(0)),
        "state": (),
        "restore": ({},),
        "save": (path,),
        "load": (path,),
        "check_valid": (),
    }
    assert names - calls.keys() == {"close"}, "every public method is called below"
    for name in names - {"close"}:
        with pytest.raises(Closed, match=f"{type(replay).__name__}: expected one that is open, it was closed"):
            getattr(replay, name)(*calls[name])
    with pytest.raises(Closed), replay:
        pass
    replay.close()
    assert replay.closed
    assert not path.exists()


def test_rows_of_what_is_closed(transitions, tmp_path):
    with transitions:
        transitions.insert(ROWS)
        batch = transitions.sample(2, np.random.default_rng(0)).batch["item"]
        before = batch.copy()
    calls = {"insert": (ROWS,), "insert_one": ({"item": 1},)}
    refuses_all(transitions, tmp_path / "replay", calls)
    np.testing.assert_array_equal(batch, before)
    with pytest.raises(Closed):
        transitions.insert_one(row={"item": 1})


def test_episodes_of_what_is_closed(episodes, make_episodes, tmp_path):
    with episodes:
        episodes.insert(Episodes(**make_episodes([2])))
    refuses_all(episodes, tmp_path / "replay", {"insert": (Episodes(**make_episodes([2])),)})


def test_what_was_held_is_let_go_of():
    replay = Transitions(FIELDS, 8)
    ring = weakref.ref(replay._store.arrays["item"])
    replay.close()
    gc.collect()
    assert ring() is None
