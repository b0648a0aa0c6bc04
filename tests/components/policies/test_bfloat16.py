"""Pairs of bfloat16 numbers, against torch's conversion."""

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from components.envs.skirmish.compiling import COMPILED
from components.policies.kernel.bfloat16 import MULTIPLIES_BFLOAT16, evens, odds, pair_neighbours, pair_rows

pytestmark = pytest.mark.skipif(COMPILED and not MULTIPLIES_BFLOAT16, reason="the processor lacks AVX512-BF16")

# Numbers below 2^-126 count as zero in AVX512-BF16, and in torch they do not.
NUMBERS = st.floats(width=32, allow_nan=False, allow_subnormal=False)


@numba.njit
def neighbours(row, out):
    pair_neighbours(row, len(row), out)


@numba.njit
def of_rows(first, second, out):
    pair_rows(first, second, len(first), out)


def halves(numbers):
    """Return the bits of the numbers in bfloat16, as torch rounds them."""
    return torch.from_numpy(numbers).bfloat16().view(torch.int16).numpy().view(np.uint16)


@settings(max_examples=200, deadline=None)
@given(row=st.integers(1, 70).flatmap(lambda n: arrays(np.float32, n, elements=NUMBERS)))
def test_neighbours_are_rounded_to_the_nearest_and_an_odd_last_one_is_paired_with_zero(row):
    out = np.full((len(row) + 1) // 2, np.nan, np.float32)
    neighbours(row, out)
    expected = np.zeros(2 * len(out), np.uint16)
    expected[: len(row)] = halves(row)
    np.testing.assert_array_equal(out.view(np.uint16), expected)


@settings(max_examples=200, deadline=None)
@given(rows=st.integers(1, 70).flatmap(lambda n: arrays(np.float32, (2, n), elements=NUMBERS)))
def test_two_rows_are_paired_element_by_element(rows):
    out = np.full(rows.shape[1], np.nan, np.float32)
    of_rows(rows[0], rows[1], out)
    np.testing.assert_array_equal(out.view(np.uint16)[::2], halves(rows[0]))
    np.testing.assert_array_equal(out.view(np.uint16)[1::2], halves(rows[1]))
    np.testing.assert_array_equal(evens(out), torch.from_numpy(rows[0]).bfloat16().float())
    np.testing.assert_array_equal(odds(out), torch.from_numpy(rows[1]).bfloat16().float())


@pytest.mark.parametrize("n", [3, 40])
def test_infinity_stays_infinite_and_what_is_no_number_stays_none(n):
    row = np.resize(np.array([np.inf, -np.inf, np.nan, 1.0], np.float32), n)
    # The bits of this one are lost where a number is only cut.
    row[2:3].view(np.uint32)[:] = 0x7F800001
    out = np.zeros((n + 1) // 2, np.float32)
    neighbours(row, out)
    found = np.stack([evens(out), odds(out)], 1).ravel()[:n]
    np.testing.assert_array_equal(np.isnan(found), np.isnan(row))
    np.testing.assert_array_equal(found[np.isinf(row)], row[np.isinf(row)])
