"""A linear schedule runs from its start to its end, and stays there."""

import pytest

from components.schedule import Interval, LinearSchedule


def test_it_runs_in_a_straight_line_and_is_constant_after() -> None:
    schedule = LinearSchedule(1.0, 0.0, over=8)
    assert [schedule(steps) for steps in (0, 2, 4, 8, 9, 1_000_000)] == [1.0, 0.75, 0.5, 0.0, 0.0, 0.0]


def test_before_the_first_step_it_is_at_its_start() -> None:
    assert LinearSchedule(0.25, 1.0, over=4)(-3) == 0.25


def test_it_ends_exactly_at_its_end() -> None:
    assert LinearSchedule(1.0, 0.05, over=3)(3) == pytest.approx(0.05, abs=1e-15)


def test_a_schedule_over_no_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one step to run over, got over=0"):
        LinearSchedule(1.0, 0.0, over=0)


def test_an_interval_is_due_at_every_multiple_and_skips_the_missed_ones() -> None:
    interval = Interval(10, next=10)
    assert not interval.due(9)
    assert interval.due(10)
    interval.advance(10)
    assert interval.next == 20
    interval.advance(47)
    assert interval.next == 50
    interval.advance(43)  # ahead of its time
    assert interval.next == 50
