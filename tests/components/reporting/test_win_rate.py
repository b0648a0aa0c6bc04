"""Solved means to stay solved, and a win rate comes with the interval in which the true one lies."""

import pytest

from components.reporting.win_rate import solved_at, wilson_interval, win_rate_text


@pytest.mark.parametrize(
    ("rates", "first"),
    [
        ([0.0, 1.0, 1.0, 0.9, 0.8, 0.8], 1),  # the mean of the five from the second on is 0.9
        ([0.8, 1.0, 0.9, 0.9, 0.9], 0),  # so it is here, though binary numbers add up to a little less
        ([0.0, 1.0, 0.0, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0], 3),  # one lucky test, and one unlucky one
        ([1.0] * 5 + [0.0] + [1.0] * 5, 6),  # lost and won again
        ([0.9] * 5, 0),
        ([0.0, 1.0, 1.0, 1.0, 1.0], None),  # not yet five that say so
        ([1.0] * 5 + [0.0], None),  # lost again
        ([1.0] * 4, None),
        ([], None),
    ],
)
def test_solved_is_the_first_test_from_which_every_five_in_succession_average_nine_tenths(
    rates: list[float], first: int | None
) -> None:
    assert solved_at(rates) == first


@pytest.mark.parametrize(
    ("won", "episodes", "interval"),
    [
        # p = 0.8, z²/n = 0.38415: (0.8 + 0.19207 ± 1.96 √(0.016 + 0.0096036)) / 1.38415 = (0.99207 ± 0.31361) / 1.38415
        (8, 10, (0.49016, 0.94331)),
        # p = 0: the upper bound is z²/n / (1 + z²/n) = 0.38415 / 1.38415
        (0, 10, (0.0, 0.27753)),
        (10, 10, (0.72247, 1.0)),
        # p = 1, n = 256: 1 / (1 + 3.84146 / 256)
        (256, 256, (0.98522, 1.0)),
        # p = 1/2: the centre is 1/2, the half width 1.96 √(0.0025 + 0.000096036) / 1.0384146
        (50, 100, (0.40383, 0.59617)),
    ],
)
def test_the_interval_is_wilson_s(won: int, episodes: int, interval: tuple[float, float]) -> None:
    assert wilson_interval(won, episodes) == pytest.approx(interval, abs=1e-5)


def test_a_share_of_nothing_or_of_less_is_refused() -> None:
    for won, episodes in ((0, 0), (3, 2), (-1, 2)):
        with pytest.raises(ValueError, match="expected 0 to"):
            wilson_interval(won, episodes)


def test_a_win_rate_is_told_with_its_interval() -> None:
    assert win_rate_text(8, 10) == "80.0% (95% interval 49.0% to 94.3%; 8 of 10 greedy episodes)"
