"""What a host has played: its steps, their rate over the last seconds, and the lag of its newest experience."""

import pytest

from orchestra.runs.host_figures import RATE_S, HostFigures


def test_the_rate_is_that_of_the_last_seconds() -> None:
    figures = HostFigures()
    assert figures.per_s(500.0) == 0.0
    for second in range(41):
        figures.note(500.0 + second, 100 * min(second, 20) + 1000, 3)
    assert (figures.env_steps, figures.policy_lag) == (3000, 3)
    assert figures.per_s(520.0 + RATE_S) == 0.0
    other = HostFigures()
    for second in range(21):
        other.note(500.0 + second, 100 * second + 1000, None)
    assert other.per_s(520.0) == pytest.approx(100.0)
    assert other.per_s(527.5) == pytest.approx(50.0, rel=0.1)  # it has sent nothing for half of the time


def test_steps_of_a_run_before_count_and_are_not_of_the_rate() -> None:
    figures = HostFigures()
    figures.note(10.0, 1_000_000, 0)
    assert figures.per_s(10.0) == 0.0
    figures.note(12.0, 1_000_200, 0)
    assert figures.per_s(12.0) == 100.0


def test_news_that_comes_often_is_counted_at_once_and_kept_rarely() -> None:
    figures = HostFigures()
    for step in range(10_000):
        figures.note(10.0 + step / 1000, step, 1)
    assert figures.env_steps == 9_999
    assert figures.per_s(20.0) == pytest.approx(1000.0, rel=0.01)
    assert len(figures._counts) <= 21
