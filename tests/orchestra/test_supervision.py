"""Decisions about failures, as pure functions of their times."""

import pytest

from orchestra.supervision import Escalate, Restart, RestartAfter, Stop, decide


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
