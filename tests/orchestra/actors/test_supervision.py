"""Decisions about failures, as pure functions of their times."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.actors.supervision import (
    AllForOne,
    Escalate,
    OneForOne,
    Restart,
    RestartAfter,
    RestForOne,
    Stop,
    Strategy,
    counted,
    decide,
)

TIMES = st.lists(st.floats(0, 1000), min_size=1).map(sorted)
POLICIES = st.builds(
    Restart,
    limit=st.integers(0, 5),
    within=st.floats(0.1, 200),
    backoff=st.floats(0, 10),
    backoff_max=st.floats(0, 100),
)


@pytest.mark.parametrize("policy", [Stop(), Escalate()])
def test_stop_and_escalate_decide_themselves(policy: Stop | Escalate) -> None:
    assert decide(policy, [1.0], 1.0) is policy


def test_each_failure_in_the_window_doubles_the_wait() -> None:
    policy = Restart(limit=10, within=60, backoff=0.5, backoff_max=100)
    waits = [decide(policy, list(range(1, n + 1)), n) for n in range(1, 5)]
    assert waits == [RestartAfter(0.5), RestartAfter(1.0), RestartAfter(2.0), RestartAfter(4.0)]


def test_the_wait_has_an_upper_bound() -> None:
    assert decide(Restart(limit=50, backoff=1, backoff_max=5), [1.0] * 20, 1.0) == RestartAfter(5)


def test_one_failure_more_than_the_limit_escalates() -> None:
    policy = Restart(limit=3, within=60)
    assert isinstance(decide(policy, [1, 2, 3], 3), RestartAfter)
    assert decide(policy, [1, 2, 3, 4], 4) == Escalate()


def test_failures_before_the_window_are_forgotten() -> None:
    policy = Restart(limit=3, within=60, backoff=0.5)
    assert decide(policy, [1, 2, 3, 100], 100) == RestartAfter(0.5)


def test_a_failure_leaves_the_window_exactly_at_its_end() -> None:
    policy = Restart(limit=1, within=60)
    assert isinstance(decide(policy, [0, 60], 60), RestartAfter)
    assert decide(policy, [0.001, 60], 60) == Escalate()


@given(POLICIES, TIMES)
def test_what_no_longer_counts_changes_no_decision(policy: Restart, failures: list[float]) -> None:
    now = failures[-1]
    kept = counted(policy, failures, now)
    assert decide(policy, kept, now) == decide(policy, failures, now)
    assert len(kept) <= len(failures)


@given(POLICIES, TIMES)
def test_a_restart_is_decided_exactly_while_the_window_holds_no_more_than_the_limit(
    policy: Restart, failures: list[float]
) -> None:
    now = failures[-1]
    decision = decide(policy, failures, now)
    if sum(now - policy.within < failure for failure in failures) > policy.limit:
        assert decision == Escalate()
    else:
        assert isinstance(decision, RestartAfter)
        assert 0 <= decision.delay <= policy.backoff_max


@given(POLICIES, st.integers(1, 2000))
def test_a_further_failure_never_shortens_the_wait(policy: Restart, count: int) -> None:
    patient = Restart(limit=10_000, within=1.0, backoff=policy.backoff, backoff_max=policy.backoff_max)
    first, second = (decide(patient, [0.0] * n, 0.0) for n in (count, count + 1))
    assert isinstance(first, RestartAfter)
    assert isinstance(second, RestartAfter)
    assert second.delay >= first.delay


@given(st.sampled_from([OneForOne(), AllForOne(), RestForOne()]), st.integers(1, 20), st.data())
def test_whoever_failed_starts_anew_and_nobody_who_is_older_unless_all_do(
    strategy: Strategy, count: int, data: st.DataObject
) -> None:
    failed = data.draw(st.integers(0, count - 1))
    again = list(strategy.restarted_with(failed, count))
    assert failed in again
    assert all(0 <= position < count for position in again)
    assert all(one < other for one, other in itertools.pairwise(again)), "in the order of spawning"
    if not isinstance(strategy, AllForOne):
        assert min(again) == failed
    expected = {OneForOne: 1, AllForOne: count, RestForOne: count - failed}[type(strategy)]
    assert len(again) == expected
