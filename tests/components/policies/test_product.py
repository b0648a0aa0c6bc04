"""Products of matrices inside of compiled loops, against numpy's."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from components.envs.skirmish.compiling import COMPILED
from components.policies.kernel.bfloat16 import MULTIPLIES_BFLOAT16
from components.policies.kernel.product import GROUP, add, fill, fill_outer, outer_room, panels_of, room
from components.policies.kernel.tile import ROWS

BFLOAT16 = pytest.param(
    np.float32,
    True,
    1e-4,
    marks=pytest.mark.skipif(COMPILED and not MULTIPLIES_BFLOAT16, reason="the processor lacks AVX512-BF16"),
    id="bfloat16",
)
KINDS = pytest.mark.parametrize(
    ("dtype", "bfloat16", "tolerance"),
    [(np.float32, False, 1e-4), (np.float64, False, 1e-12), BFLOAT16],
)


def normal(rng, dtype, *shape):
    return rng.standard_normal(shape).astype(dtype)


def rounded(array, bfloat16):
    """Return the array, rounded by torch to bfloat16 where products do so."""
    return torch.from_numpy(array.copy()).bfloat16().float().numpy() if bfloat16 else array


@KINDS
@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 3 * GROUP), depth=st.integers(1, 70), columns=st.integers(1, 70), seed=st.integers(0, 99))
def test_a_product_is_numpys(dtype, bfloat16, tolerance, rows, depth, columns, seed):
    rng = np.random.default_rng(seed)
    left, right = normal(rng, dtype, rows, depth), normal(rng, dtype, depth, columns)
    out = room(rows, columns, left)
    out[:] = np.nan
    fill(left, panels_of(right, bfloat16), out)
    expected = rounded(left, bfloat16) @ rounded(right, bfloat16)
    np.testing.assert_allclose(out[:rows, :columns], expected, rtol=0, atol=tolerance)
    assert not out[:rows, columns:].any()


@KINDS
@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 3 * GROUP), columns=st.integers(1, 40), others=st.integers(1, 70), seed=st.integers(0, 99))
def test_a_sum_over_rows_is_numpys(dtype, bfloat16, tolerance, rows, columns, others, seed):
    rng = np.random.default_rng(seed)
    left, right = normal(rng, dtype, rows, columns + 3), normal(rng, dtype, rows, others)
    out = room(columns, others, left)
    fill_outer(left, columns, right, outer_room(columns, others, left, bfloat16), out)
    expected = rounded(left[:, :columns], bfloat16).T @ rounded(right, bfloat16)
    np.testing.assert_allclose(out[:columns, :others], expected, rtol=0, atol=tolerance)


def test_a_product_is_added_to_what_is_there_and_leaves_what_is_before():
    out = room(3 * ROWS, 5, np.zeros(0))
    out[:] = 1.0
    left, right = np.arange(40.0).reshape(10, 4), np.ones((4, 5))
    add(left, 3, 2, panels_of(right, False), out, ROWS)
    assert (out[:ROWS] == 1.0).all()
    assert (out[ROWS : ROWS + 2, :5] == 1.0 + left[3:5].sum(1, keepdims=True)).all()


@KINDS
def test_what_is_no_number_stays_none_in_its_row(dtype, bfloat16, tolerance):
    left = np.zeros((3, 2), dtype)
    out = room(3, 2, left)
    left[1] = np.nan
    fill(left, panels_of(np.ones((2, 2), dtype), bfloat16), out)
    assert np.isnan(out[:3, :2]).all(1).tolist() == [False, True, False]
