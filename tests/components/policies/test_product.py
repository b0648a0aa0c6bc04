"""Products of matrices inside of compiled loops, against numpy's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.policies.kernel.product import (
    GROUP,
    add,
    add_outer_sparse,
    add_sparse,
    any_nonzero,
    fill,
    fill_outer,
    nonzero_columns,
    panels_of,
    room,
    transpose,
)
from components.policies.kernel.scalars import sign
from components.policies.kernel.tile import ROWS

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


def sparse(rng, dtype, rows, columns, share):
    """Return numbers of which about `share` are zeros, and half of the columns and of the rows of tiles only zeros."""
    numbers = normal(rng, dtype, rows, columns) * (rng.random((rows, columns)) >= share)
    numbers[:, rng.random(columns) < 0.5] = 0.0
    numbers[np.repeat(rng.random(-(-rows // ROWS)) < 0.3, ROWS)[:rows]] = 0.0
    return numbers.astype(dtype)


@TYPES
@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, GROUP),
    depth=st.integers(1, 70),
    columns=st.integers(1, 70),
    share=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    seed=st.integers(0, 99),
)
def test_products_of_sparse_rows_are_numpys(dtype, tolerance, rows, depth, columns, share, seed):
    rng = np.random.default_rng(seed)
    left, right = sparse(rng, dtype, rows + 5, depth, share), normal(rng, dtype, depth, columns)
    out = room(rows + 2, columns, left)
    out[:] = 1.0
    add_sparse(left, 5, rows, panels_of(right), np.empty(depth + ROWS, np.int64), out, 2)
    assert (out[:2] == 1.0).all()
    np.testing.assert_allclose(out[2 : 2 + rows, :columns], 1.0 + left[5:] @ right, rtol=0, atol=tolerance)

    beside = room(GROUP, columns, left)
    beside[:rows, :columns] = normal(rng, dtype, rows, columns)
    summed = room(depth, columns, left)
    summed[:] = 1.0
    add_outer_sparse(left, 5, rows, beside, np.empty(depth + ROWS, np.int64), summed)
    expected = 1.0 + left[5:].T @ beside[:rows, :columns]
    np.testing.assert_allclose(summed[:depth, :columns], expected, rtol=0, atol=tolerance)


def test_columns_count_as_zero_only_if_all_their_rows_are():
    left = np.zeros((9, 6), np.float32)
    left[[2, 4, 5, 6], [1, 0, 3, 4]] = [1.0, np.nan, 1e-45, -0.0]
    listed = np.full(6 + ROWS, -1)
    assert nonzero_columns(left, 3, 4, listed) == 2
    assert listed[: 2 + ROWS].tolist() == [0, 3, *range(6, 6 + ROWS)]
    assert nonzero_columns(left, 7, 2, listed) == 0


@TYPES
def test_a_zero_column_has_no_part_in_a_product_whatever_its_weights(dtype, tolerance):
    left = np.zeros((ROWS + 1, 3), dtype)
    left[:ROWS, 0], left[ROWS, 2] = 2.0, 3.0
    right = np.array([[1.0], [np.inf], [np.nan]], dtype)
    out = room(ROWS + 1, 1, left)
    add_sparse(left, 0, ROWS + 1, panels_of(right), np.empty(3 + ROWS, np.int64), out, 0)
    assert (out[:ROWS, 0] == 2.0).all()
    assert np.isnan(out[ROWS, 0])


@pytest.mark.parametrize("other", [1e-45, np.nan, -np.inf])
def test_a_row_of_zeros_has_nothing_else_in_any_place(other):
    assert not any_nonzero(np.array([0.0, -0.0] * 20, np.float32))
    for place in range(40):
        assert any_nonzero(np.where(np.arange(40) == place, other, 0.0).astype(np.float32))


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (5, 3 * ROWS), (2 * ROWS + 1, 2)])
def test_a_transpose_leaves_padding_out(rows, columns):
    matrix = room(columns, rows, np.zeros(0, np.float32))
    matrix[:] = np.random.default_rng(0).random(matrix.shape)
    out = np.zeros((rows, columns), np.float32)
    transpose(matrix, out)
    np.testing.assert_array_equal(out, matrix[:columns, :rows].T)


@pytest.mark.parametrize(("number", "expected"), [(2.5, 1.0), (-1e-30, -1.0), (0.0, 0.0), (-0.0, 0.0), (np.nan, 0.0)])
def test_a_sign_is_one_zero_or_minus_one(number, expected):
    assert sign(np.float32(number)) == expected


def test_what_is_no_number_stays_none_in_its_row():
    left = np.zeros((3, 2), np.float32)
    out = room(3, 2, left)
    left[1] = np.nan
    fill(left, panels_of(np.ones((2, 2), np.float32)), out)
    assert np.isnan(out[:3, :2]).all(1).tolist() == [False, True, False]
