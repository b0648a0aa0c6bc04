"""Products of matrices inside of compiled loops, against numpy's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.policies.kernel.product import GROUP, ROWS, add, fill, fill_outer, panels_of, room

TYPES = pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-4), (np.float64, 1e-12)])


def normal(rng, dtype, *shape):
    return rng.standard_normal(shape).astype(dtype)


@TYPES
@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 3 * GROUP), depth=st.integers(1, 70), columns=st.integers(1, 70), seed=st.integers(0, 99))
def test_a_product_is_numpys(dtype, tolerance, rows, depth, columns, seed):
    rng = np.random.default_rng(seed)
    left, right = normal(rng, dtype, rows, depth), normal(rng, dtype, depth, columns)
    out = room(rows, columns, left)
    out[:] = np.nan
    fill(left, panels_of(right), out)
    np.testing.assert_allclose(out[:rows, :columns], left @ right, rtol=0, atol=tolerance)
    assert not out[:rows, columns:].any()


@TYPES
@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 3 * GROUP), columns=st.integers(1, 40), others=st.integers(1, 70), seed=st.integers(0, 99))
def test_a_sum_over_rows_is_numpys(dtype, tolerance, rows, columns, others, seed):
    rng = np.random.default_rng(seed)
    left, right = normal(rng, dtype, rows, columns + 3), normal(rng, dtype, rows, others)
    out = room(columns, others, left)
    fill_outer(left, columns, right, room(GROUP, others, left), out)
    expected = left[:, :columns].T @ right
    np.testing.assert_allclose(out[:columns, :others], expected, rtol=0, atol=tolerance)


def test_a_product_is_added_to_what_is_there_and_leaves_what_is_before():
    out = room(3 * ROWS, 5, np.zeros(0))
    out[:] = 1.0
    left, right = np.arange(40.0).reshape(10, 4), np.ones((4, 5))
    add(left, 3, 2, panels_of(right), out, ROWS)
    assert (out[:ROWS] == 1.0).all()
    assert (out[ROWS : ROWS + 2, :5] == 1.0 + left[3:5].sum(1, keepdims=True)).all()


def test_what_is_no_number_stays_none_in_its_row():
    left = np.zeros((3, 2), np.float32)
    out = room(3, 2, left)
    left[1] = np.nan
    fill(left, panels_of(np.ones((2, 2), np.float32)), out)
    assert np.isnan(out[:3, :2]).all(1).tolist() == [False, True, False]
