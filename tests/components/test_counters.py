"""The counters of a run: how old the parameters were that acted, and which episodes are too old to learn from."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from components.counters import LAGS, RunCounters
from components.replay_buffers.limiter import SampleToInsertRatio
from messages import InsertTransitionMsg, LoadParamsMsg
from orchestra import Arrays, freeze
from orchestra.actors.arrays import is_frozen

Episodes = Callable[..., InsertTransitionMsg]
some_episodes = st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=6)


def counters(drop_stale: int | None = None) -> RunCounters:
    limiter = SampleToInsertRatio(1.0, min_size=1, error_buffer=1e9)
    return RunCounters(limiter, 10, 10, drop_stale=drop_stale)


def newest(version: int) -> LoadParamsMsg:
    return LoadParamsMsg(version=version, params=np.zeros(1, np.float32), env_steps=None)


def of_versions(episodes: Episodes, *lengths: int, versions: list[int]) -> InsertTransitionMsg:
    """Return episodes whose state holds the number of the episode, and that acted with `versions` at each step."""
    made = episodes(*lengths)
    marks = np.repeat(np.arange(len(lengths), dtype=np.float32), np.array(lengths) + 1)
    seen = Arrays({**made.per_frame, "state": freeze(np.repeat(marks[:, None], 3, 1))})
    return made.model_copy(update={"versions": freeze(np.array(versions, np.int32)), "per_frame": seen})


def shown(run: RunCounters) -> Any:
    return run.progress(None, 100, 1)


def test_the_lag_of_every_step_is_counted(episodes: Episodes) -> None:
    run = counters()
    run.count(of_versions(episodes, 3, 2, versions=[10, 9, 8, 7, 0]), newest(10))
    run.count(of_versions(episodes, 1, versions=[-90]), newest(10))
    assert shown(run).params_lags == (1, 1, 2, 0, 1, 0, 1)
    assert shown(run).params_lag == 100


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**31 - 1))
def test_a_lag_is_in_the_bin_between_its_bounds(episodes: Episodes, lag: int) -> None:
    run = counters()
    run.count(of_versions(episodes, 1, versions=[0]), newest(lag))
    (place,) = np.flatnonzero(shown(run).params_lags)
    assert LAGS[place] <= lag
    assert place == len(LAGS) - 1 or lag < LAGS[place + 1]


def test_the_steps_of_each_node_add_up_to_those_of_the_run_also_when_it_goes_on(episodes: Episodes) -> None:
    run = counters()
    assert run.played(now=True) is None
    of_host = of_versions(episodes, 3, 2, versions=[10, 9, 8, 7, 6]).model_copy(update={"source": "host-1/proxy"})
    run.count(of_host.model_copy(update={"sender": "proxies-1/proxy"}), newest(10))
    run.count(of_versions(episodes, 1, versions=[10]).model_copy(update={"sender": "worker-2-0/worker"}), newest(12))
    run.count(of_host, newest(20))
    told = run.played(now=True)
    assert told is not None
    assert told.nodes == (("host-1", 10, 14), ("worker-2-0", 1, 2))
    later = counters()
    later.load(run.values())
    later.count(of_host, newest(20))
    told = later.played(now=True)
    assert told is not None
    assert sum(steps for _, steps, _ in told.nodes) == later.env_steps == 16


@pytest.mark.parametrize("nodes", [1, 3, 200])
def test_what_each_node_has_played_is_told_once_in_as_many_messages(episodes: Episodes, nodes: int) -> None:
    run = counters()
    told = 0
    for number in range(10 * nodes):
        run.count(episodes(1, sender=f"host-{number % nodes}/proxy"), newest(0))
        told += run.played() is not None
    assert 9 <= told <= 10 + nodes.bit_length(), "more often while nodes come for the first time"


def test_before_the_first_parameters_there_is_no_lag(episodes: Episodes) -> None:
    run = counters()
    message = of_versions(episodes, 2, versions=[0, 0])
    assert run.count(message, None) is message
    assert (shown(run).params_lag, sum(shown(run).params_lags)) == (None, 0)


def test_nothing_is_dropped_unless_it_is_allowed(episodes: Episodes) -> None:
    run = counters()
    message = of_versions(episodes, 2, 1, versions=[0, 0, 0])
    fresh = run.count(message, newest(1_000_000))
    assert fresh is not None
    assert fresh.newest_version == 1_000_000
    assert all(getattr(fresh, name) is getattr(message, name) for name in message.wire.array_fields)
    assert (shown(run).dropped_episodes, run.limiter.inserted) == (0, 2)


def test_an_episode_with_a_step_of_too_large_a_lag_is_dropped_and_counted(episodes: Episodes) -> None:
    run = counters(drop_stale=2)
    message = of_versions(episodes, 2, 1, 3, versions=[8, 8, 7, 9, 7, 9])
    fresh = run.count(message, newest(10))
    assert fresh is not None
    assert fresh.lengths.tolist() == [2]
    assert fresh["state"][:, 0].tolist() == [0.0] * 3
    assert fresh.versions.tolist() == [8, 8]
    assert all(is_frozen(getattr(fresh, name)) for name in fresh.wire.array_fields)
    assert run.count(of_versions(episodes, 1, versions=[1]), newest(10)) is None
    assert (shown(run).dropped_episodes, shown(run).episodes, shown(run).env_steps) == (3, 4, 7)
    assert run.limiter.inserted == 1  # only what is inserted lets the learner go on
    assert sum(shown(run).params_lags) == 7  # the histogram is of all that was played


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some_episodes.filter(lambda drawn: any(keeps for _, keeps in drawn)))
def test_chosen_episodes_are_those_of_the_message_in_their_order(
    episodes: Episodes, drawn: list[tuple[int, bool]]
) -> None:
    lengths = [length for length, _ in drawn]
    message = of_versions(episodes, *lengths, versions=list(range(sum(lengths))))
    chosen = message.select(np.array([keeps for _, keeps in drawn]))
    places = [place for place, (_, keeps) in enumerate(drawn) if keeps]
    assert chosen.lengths.tolist() == [lengths[place] for place in places]
    assert chosen["state"][:, 0].tolist() == [float(place) for place in places for _ in range(lengths[place] + 1)]
    begins = np.cumsum([0, *lengths])
    assert chosen.versions.tolist() == [s for place in places for s in range(begins[place], begins[place + 1])]


def test_what_was_counted_goes_on_after_a_checkpoint(episodes: Episodes) -> None:
    run, resumed = counters(drop_stale=5), counters(drop_stale=5)
    run.count(of_versions(episodes, 2, 1, versions=[9, 8, 0]), newest(10))
    resumed.load(run.values())
    assert shown(resumed) == shown(run).model_copy(update={"state": shown(resumed).state})
    assert shown(resumed).dropped_episodes == 1


@pytest.mark.parametrize("drop_stale", [None, 0])
def test_experience_of_the_newest_parameters_is_never_stale(episodes: Episodes, drop_stale: int | None) -> None:
    run = counters(drop_stale)
    assert run.count(of_versions(episodes, 1, versions=[3]), newest(3)) is not None
    assert run.count(of_versions(episodes, 1, versions=[4]), newest(3)) is not None  # of a learner that went back
    assert shown(run).params_lags[0] == 2
