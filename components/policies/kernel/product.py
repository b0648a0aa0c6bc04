"""Matrix products inside of loops that numba compiles, with few rows each; fastest if the operands are in the cache.

A product consists of tiles (`tile.py`): `ROWS` rows of the left side by W columns (two vectors) of the right side. If
the right side is a network's weights, it is packed into panels of W columns, so that a tile reads it from end to end.
From about forty rows on, a product reaches nine tenths of a core's peak rate.

Inputs of a network are mostly zeros: an observation has zeros for every unit out of sight, and a state has the last
actions as one-hot vectors. `add_sparse` and `add_outer_sparse` leave out the columns that are zero in a few rows.

Sizes: R rows, K summed columns, N columns, P = ⌈N / W⌉ panels.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.policies.kernel.compiling import compiled
from components.policies.kernel.scalars import ZERO
from components.policies.kernel.tile import (
    BYTES,
    FEW,
    ROWS,
    VECTORS,
    add_small_tile,
    add_tile,
    add_tile_by_column,
    add_tile_by_row,
)

Floats = NDArray[np.floating[Any]]

GROUP = 48
"""Rows of one block of a loop, small enough for the cache: a multiple of ROWS."""


def width(dtype: Any) -> int:
    """Return the number W of columns of a panel for numbers of this dtype."""
    return VECTORS * BYTES // int(np.dtype(dtype).itemsize)


def padded(columns: int, like: Floats) -> int:
    """Return `columns` rounded up to a multiple of W, as in `room`."""
    w = width(like.dtype)
    return -(-columns // w) * w


@compiled
def room(rows: int, columns: int, like: Floats) -> Floats:
    """Return zeros of the type of `like` for a result (rows, columns), with the padding that `add` needs."""
    w = VECTORS * BYTES // like.itemsize
    return np.zeros((rows + ROWS, (columns + w - 1) // w * w), like.dtype)


@compiled
def panels_of(right: Floats) -> Floats:
    """Return the panels (P, K, W) of `right` (K, N)."""
    w = VECTORS * BYTES // right.itemsize
    depth, columns = right.shape
    panels = np.zeros(((columns + w - 1) // w, depth, w), right.dtype)
    for p in range(len(panels)):
        for k in range(depth):
            panel = panels[p, k]
            for j in range(min(w, columns - p * w)):
                panel[j] = right[k, p * w + j]
    return panels


@compiled
def add(left: Floats, start: int, rows: int, panels: Floats, out: Floats, out_start: int) -> None:
    """Add to `rows` rows of `out` from `out_start`: the rows of `left` from `start`, times the matrix of `panels`.

    Args:
        left: (R, at least K).
        start: first row of `left`.
        rows: number of rows.
        panels: (P, K, W), from `panels_of`.
        out: (…, P W), from `room`. Its next rows, up to a multiple of ROWS, are overwritten with arbitrary values.
        out_start: first row of `out`.
    """
    n_panels, depth, w = panels.shape
    for p in range(n_panels):
        row = 0
        while row < rows:
            if rows - row > ROWS - FEW:
                add_tile(left, start + row, start + rows - 1, depth, panels[p], out, out_start + row, p * w)
                row += ROWS
            else:
                add_small_tile(left, start + row, start + rows - 1, depth, panels[p], out, out_start + row, p * w)
                row += FEW


@compiled
def any_nonzero(row: Floats) -> bool:
    """Return whether a number of `row` (K,) is not zero. The whole row is read: that is faster than to stop."""
    found = False
    for j in range(len(row)):
        found |= row[j] != ZERO
    return found


@compiled
def nonzero_columns(left: Floats, start: int, rows: int, columns: NDArray[np.int64]) -> int:
    """Fill `columns` with the columns of `left` that are not zero in all of `rows` rows from `start`; return how many.

    Args:
        left: (R, K).
        start: first row of `left`.
        rows: number of rows.
        columns: (K + ROWS,), filled, and after these with K, K + 1, … for the padding of a result.
    """
    width = left.shape[1]
    used = np.zeros(width, np.bool_)
    for i in range(start, start + rows):
        row = left[i]
        for j in range(width):
            used[j] |= row[j] != ZERO
    n = 0
    for j in range(width):
        columns[n] = j
        n += used[j]
    for j in range(ROWS):
        columns[n + j] = width + j
    return n


@compiled
def add_sparse(
    left: Floats, start: int, rows: int, panels: Floats, columns: NDArray[np.int64], out: Floats, out_start: int
) -> None:
    """Do the same as `add`, for a left side (R, K) with many zeros.

    A column that is zero in all rows of a tile adds nothing to them, even if a weight of it is infinite or no number.

    Args:
        left: as for `add`.
        start: as for `add`.
        rows: as for `add`.
        panels: as for `add`.
        columns: (K + ROWS,), memory.
        out: as for `add`.
        out_start: as for `add`.
    """
    n_panels, w = len(panels), panels.shape[2]
    for row in range(0, rows, ROWS):
        n = nonzero_columns(left, start + row, min(ROWS, rows - row), columns)
        if n > 0:
            for p in range(n_panels):
                add_tile_by_column(
                    left, start + row, start + rows - 1, columns, n, panels[p], out, out_start + row, p * w
                )


@compiled
def add_outer_sparse(
    left: Floats, start: int, rows: int, right: Floats, columns: NDArray[np.int64], out: Floats
) -> None:
    """Add to `out` the products of the columns of `left` with those of `right`, summed over rows: left^T right.

    Args:
        left: (R, K), with many zeros.
        start: first row of `left`.
        rows: number of rows, at most GROUP.
        right: (at least `rows`, P W), from `room`, for these rows.
        columns: (K + ROWS,), memory.
        out: (K, P W), from `room`; the padding is overwritten with arbitrary values.
    """
    n = nonzero_columns(left, start, rows, columns)
    turned, last = left[start : start + rows].T, left.shape[1] - 1
    w = VECTORS * BYTES // left.itemsize
    for p in range(0, right.shape[1], w):
        for first in range(0, n, ROWS):
            add_tile_by_row(turned, columns, first, last, rows, right[:, p : p + w], out, p)


@compiled
def add_outer(
    left: Floats, start: int, columns: int, right: Floats, right_start: int, rows: int, beside: Floats, out: Floats
) -> None:
    """Add to `out` the products of `columns` of `left` with those of `right`, summed over rows: left^T right.

    Args:
        left: (R, at least `columns`).
        start: first row of `left`.
        columns: number of columns of `left`, from the first.
        right: (…, N).
        right_start: first row of `right`.
        rows: number of rows, at most GROUP.
        beside: (GROUP, N) and more, from `room`: memory for a copy of the rows of `right`.
        out: (`columns`, N) and more, from `room`; the padding is overwritten with arbitrary values.
    """
    n = right.shape[1]
    for i in range(rows):
        for j in range(n):
            beside[i, j] = right[right_start + i, j]
    turned = left[start : start + rows].T
    w = VECTORS * BYTES // left.itemsize
    for p in range(0, n, w):
        row = 0
        while row < columns:
            if columns - row > ROWS - FEW:
                add_tile(turned, row, columns - 1, rows, beside[:, p : p + w], out, row, p)
                row += ROWS
            else:
                add_small_tile(turned, row, columns - 1, rows, beside[:, p : p + w], out, row, p)
                row += FEW


@compiled
def fill(left: Floats, panels: Floats, out: Floats) -> None:
    """Fill `out` (R + ROWS, P W) with `left` (R, K) times the matrix of `panels`."""
    for start in range(0, len(left), GROUP):
        rows = min(GROUP, len(left) - start)
        out[start : start + rows] = 0
        add(left, start, rows, panels, out, start)


@compiled
def fill_outer(left: Floats, columns: int, right: Floats, beside: Floats, out: Floats) -> None:
    """Fill `out` with left^T right over all rows; `add_outer` adds that of some rows."""
    out[:] = 0
    for start in range(0, len(left), GROUP):
        add_outer(left, start, columns, right, start, min(GROUP, len(left) - start), beside, out)


@compiled
def transpose(matrix: Floats, out: Floats) -> None:
    """Fill `out` (N, K) with the transpose of `matrix` (K, N), which may have padding; a few columns at a time."""
    n, width = out.shape
    for start in range(0, width, ROWS):
        stop = min(start + ROWS, width)
        for i in range(n):
            row = out[i]
            for k in range(start, stop):
                row[k] = matrix[k, i]
