"""The compiled loops' own arithmetic."""

import numba
import numpy as np
import pytest

from components.policies.kernel.scalars import exponential


@numba.njit
def exponentials(x):
    out = np.empty_like(x)
    for i in range(len(x)):
        out[i] = exponential(x[i])
    return out


def test_the_exponential_of_a_single_is_right_to_its_last_digits():
    x = np.concatenate([np.linspace(-87, 87, 1_000_001), np.linspace(-1e-6, 1e-6, 101)]).astype(np.float32)
    np.testing.assert_allclose(exponentials(x), np.exp(x.astype(np.float64)), rtol=1.5e-7)


def test_the_exponential_of_a_double_is_the_c_librarys():
    x = np.linspace(-700, 700, 10_001)
    np.testing.assert_allclose(exponentials(x), np.exp(x), rtol=1e-15)


@pytest.mark.parametrize(("x", "as_at"), [(-1e9, -87), (-np.inf, -87), (88, 87), (np.inf, 87)])
def test_beyond_its_range_a_single_stays_finite(x, as_at):
    got, expected = exponentials(np.array([x, as_at], np.float32))
    assert got == expected


def test_what_is_no_number_has_no_exponential():
    assert np.isnan(exponentials(np.array([np.nan], np.float32))).all()
    assert np.isnan(exponentials(np.array([np.nan]))).all()
