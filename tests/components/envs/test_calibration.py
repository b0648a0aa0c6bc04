"""Battles go as they do in StarCraft II, as far as public training logs tell."""

import numpy as np
import pytest

from components.envs import Skirmish

# Uniform random play: mean return, mean length. The bands are those of logged runs on the real game, widened by
# what differs between its versions.
BANDS = {
    "3m": ((1.3, 1.9), (22, 31)),
    "8m": ((1.65, 2.3), (29, 41)),
    "5m_vs_6m": ((1.15, 1.7), (22, 31)),
    "2s3z": ((3.5, 4.4), (47, 57)),
    "3s5z": ((3.9, 5.2), (46, 58)),
    "3s5z_vs_3s6z": ((3.2, 4.5), (44, 53)),
    "3s_vs_3z": ((3.8, 5.8), (45, 68)),  # to 65 in the game, in few episodes with half the actions random
    "1c3s5z": ((6.0, 8.8), (48, 60)),
    "6h_vs_8z": ((4.3, 5.9), (20.5, 26)),  # from 21 in the game
    "corridor": ((2.7, 3.7), (30, 39)),  # from 31 in the game
    "25m": ((1.7, 2.6), (33, 43)),
    "MMM": ((2.1, 2.9), (40, 50)),
    "MMM2": ((1.5, 2.2), (36, 48)),  # from 1.6 in the game
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BANDS)
def test_random_play_earns_and_lasts_as_long_as_in_the_real_game(name, play, at_random):
    figures = play(Skirmish(name, 128 if name == "25m" else 256), at_random, each=4)
    (least, most), (shortest, longest) = BANDS[name]
    assert least <= figures["return"].mean() <= most
    assert shortest <= figures["length"].mean() <= longest
    assert figures["won"].mean() < 0.005
    if name == "corridor":
        assert 0.3 <= figures["dead_enemies"].mean() <= 1.3
    if name == "8m":
        assert np.mean(figures["dead_allies"] == 8) >= 0.97
        assert figures["dead_enemies"].mean() < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("ruleset", ["lotv", "liberty"])
def test_random_colossi_earn_and_last_as_in_the_real_game_with_both_rulesets(ruleset, play, at_random):
    figures = play(Skirmish("2c_vs_64zg", 128, ruleset=ruleset), at_random, each=4)
    assert 7.5 <= figures["return"].mean() <= 9.6
    assert 28.7 <= figures["length"].mean() <= 36  # from 29 in the game
    assert figures["dead_enemies"].mean() < 29
    assert figures["won"].mean() < 0.005


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least", "most"), [("8m", 0.7, 1.0), ("2s3z", 0.6, 1.0), ("5m_vs_6m", 0.0, 0.2)])
def test_a_line_that_focuses_its_fire_wins_even_battles_and_loses_uneven_ones(name, least, most, play, lining_up):
    figures = play(Skirmish(name, 64, start_jitter=0.1), lining_up, each=2)
    assert least <= figures["won"].mean() <= most


@pytest.mark.slow
def test_standing_still_is_lost_in_the_time_that_the_game_takes(play, stopping):
    # The lengths are those of an independent prototype of the same rules.
    for name, steps in (("3m", 20.8), ("8m", 21.4), ("5m_vs_6m", 19.0), ("2s3z", 41.4)):
        figures = play(Skirmish(name, 64), stopping, each=2)
        assert figures["return"].max() == 0.0
        assert figures["length"].mean() == pytest.approx(steps, abs=2.0)
