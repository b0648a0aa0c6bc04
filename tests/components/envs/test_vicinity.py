"""Units that meet are found several at a time, the same ones as one at a time."""

import numpy as np
import pytest
from numba import njit

from components.envs import SCENARIOS
from components.envs.skirmish.kernel.constants import LANES
from components.envs.skirmish.kernel.vicinity import lowest, met_by
from components.envs.skirmish.tables import places_table


@njit
def found_by(places, unit, first, margin):
    return met_by(places, unit, first, margin)


@njit
def lowest_of(bits):
    return lowest(bits)


def meet(one, other, margin):
    """Whether two units meet, by the words of `met_by`."""
    way = other[:2] - one[:2]
    far, touch = np.hypot(*way), one[2] + other[2]
    towards = one[5] > 0 and one[3:5] @ way > 0
    back = other[5] > 0 and other[3:5] @ way < 0
    return far < touch or (far < touch + margin and one[3:5] @ other[3:5] <= 0 and (towards or back))


def crowd(rng):
    """Units close together, of which a third stand still and a fifth are dead."""
    places = rng.uniform(0, 4, (6, 3 * LANES))
    places[2] = rng.uniform(0.2, 0.6, 3 * LANES)
    angles = rng.uniform(0, 2 * np.pi, 3 * LANES)
    places[3], places[4] = np.cos(angles), np.sin(angles)
    places[5] *= rng.random(3 * LANES) > 1 / 3
    places[0, rng.random(3 * LANES) < 1 / 5] = np.nan
    return places


@pytest.mark.parametrize("seed", range(20))
def test_units_that_meet_are_found_together_as_one_by_one(seed):
    places = crowd(np.random.default_rng(seed))
    touching = swerving = 0
    for unit in range(3 * LANES):
        for first in range(0, 3 * LANES, LANES):
            expected = [meet(places[:, unit], places[:, first + k], 0.6) for k in range(LANES)]
            assert found_by(places, unit, first, 0.6) == sum(1 << k for k, met in enumerate(expected) if met)
            near = [meet(places[:, unit], places[:, first + k], 0.0) for k in range(LANES)]
            touching, swerving = touching + sum(near), swerving + sum(expected) - sum(near)
    assert min(touching, swerving) > 5


def test_units_that_exactly_touch_do_not_meet():
    places = np.full((6, LANES), np.nan)
    places[:, 0] = 1.0, 2.0, 0.5, 1.0, 0.0, 0.25
    places[:, 1] = 2.0, 2.0, 0.5, 1.0, 0.0, 0.25
    assert found_by(places, 0, 0, 0.5) == 0b01  # itself, and not the one ahead, which walks the same way
    places[3, 1] = -1.0
    assert found_by(places, 0, 0, 0.5) == 0b11
    places[5, :2] = 0.0
    assert found_by(places, 0, 0, 0.5) == 0b01


@pytest.mark.parametrize("bit", [0, 1, 31, 62, 63])
def test_the_lowest_bit_is_numbered_from_zero(bit):
    assert lowest_of(np.int64(-1 << bit)) == bit


@pytest.mark.parametrize("scenario", ["3m", "2c_vs_64zg"])
def test_the_table_has_a_column_for_each_unit_and_whole_vectors_of_none_at_first(scenario):
    units = len(SCENARIOS[scenario].allies) + len(SCENARIOS[scenario].enemies)
    table = places_table(SCENARIOS[scenario])
    rows, columns = table.shape
    assert rows == 6
    assert columns % LANES == 0
    assert units <= columns < units + LANES
    assert np.isnan(table).all()  # no unit meets those after the last one
