"""Matrix products inside of loops that numba compiles, with few rows each; fastest if the operands are in the cache.

A product consists of tiles: `ROWS` rows of the left side by W columns (two vectors) of the right side. All sums of a
tile stay in registers. If the right side is a network's weights, it is packed into panels of W columns, so that a tile
reads it from end to end. From about forty rows on, a product reaches nine tenths of a core's peak rate.

The tile is written in LLVM's instructions, because no loop of numba keeps its sums in registers. The best of four such
loops, of four rows by four summed columns at a time, multiplies at 92 instead of 228 GFLOP/s (48 rows, K = 64, N = 192,
one core with AVX-512). With that loop an update of QMIX takes 1.5 times as long: 28.2 instead of 18.6 ms on 32 episodes
of 8m as played, 67.8 instead of 43.9 ms on 32 of 60 steps (medians of 15 rounds in turn, processor time).

Products of bfloat16 numbers round their operands and sum them in single precision; a tile takes half the time
(`bfloat16.py`). Operands are pairs of numbers at neighbouring places of the summed index.

Sizes: R rows, K summed columns, N columns, P = ⌈N / W⌉ panels.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from components.policies.kernel.bfloat16 import pair_neighbours, pair_rows
from components.policies.kernel.compiling import compiled
from components.policies.kernel.tile import BYTES, ROWS, VECTORS, add_pair_tile, add_tile

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


class Panels(NamedTuple):
    """The right side (K, N) of products, packed for `add`."""

    values: Floats
    """(P, K, W), or pairs (P, ⌈K / 2⌉, W)."""
    paired_left: Floats
    """(GROUP, ⌈K / 2⌉), memory for pairs of the left side; (0, 0) without `bfloat16`."""
    depth: int
    """K."""
    bfloat16: bool
    """True if products round both sides."""


class Outer(NamedTuple):
    """Memory for the operands of `add_outer`."""

    right: Floats
    """`room` for GROUP rows, or pairs of GROUP / 2 rows, of the right side's columns."""
    paired_left: Floats
    """(GROUP / 2, columns of the left side), memory for pairs; (0, 0) without `bfloat16`."""
    zeros: Floats
    """(at least the columns of either side,)."""
    bfloat16: bool
    """True if products round both sides."""


@compiled
def _pair_all_rows(matrix: Floats, start: int, rows: int, columns: int, zeros: Floats, out: Floats) -> None:
    """Fill `out` (⌈rows / 2⌉, …) with pairs of rows of `matrix` from `start`; an odd last row's partner is `zeros`."""
    for i in range(0, rows, 2):
        if i + 1 < rows:
            pair_rows(matrix[start + i], matrix[start + i + 1], columns, out[i // 2])
        else:
            pair_rows(matrix[start + i], zeros, columns, out[i // 2])


@compiled
def panels_of(right: Floats, bfloat16: bool) -> Panels:
    """Return the panels of `right` (K, N).

    Args:
        right: the matrix.
        bfloat16: whether products with them round both sides to bfloat16; only if `MULTIPLIES_BFLOAT16`.
    """
    w = VECTORS * BYTES // right.itemsize
    depth, columns = right.shape
    panels = np.zeros(((columns + w - 1) // w, depth, w), right.dtype)
    for p in range(len(panels)):
        for k in range(depth):
            panel = panels[p, k]
            for j in range(min(w, columns - p * w)):
                panel[j] = right[k, p * w + j]
    n_pairs = (depth + 1) // 2
    if not bfloat16:
        return Panels(panels, np.empty((0, 0), right.dtype), depth, False)
    paired, zeros = np.empty((len(panels), n_pairs, w), right.dtype), np.zeros(w, right.dtype)
    for p in range(len(panels)):
        _pair_all_rows(panels[p], 0, depth, w, zeros, paired[p])
    return Panels(paired, np.empty((GROUP, n_pairs), right.dtype), depth, True)


@compiled
def outer_room(columns: int, others: int, like: Floats, bfloat16: bool) -> Outer:
    """Return memory for `add_outer`, for that many columns of the left and of the right side."""
    zeros, none = np.zeros(max(columns, others), like.dtype), np.empty((0, 0), like.dtype)
    if not bfloat16:
        return Outer(room(GROUP, others, like), none, zeros, False)
    return Outer(room(GROUP // 2, others, like), np.empty((GROUP // 2, columns), like.dtype), zeros, True)


@compiled
def add(left: Floats, start: int, rows: int, panels: Panels, out: Floats, out_start: int) -> None:
    """Add to `rows` rows of `out` from `out_start`: the rows of `left` from `start`, times the matrix of `panels`.

    Args:
        left: (R, at least K).
        start: first row of `left`.
        rows: number of rows, at most GROUP if the panels hold pairs.
        panels: from `panels_of`, of a matrix (K, N).
        out: (…, P W), from `room`. Its next rows, up to a multiple of ROWS, are overwritten with arbitrary values.
        out_start: first row of `out`.
    """
    values, pairs = panels.values, panels.paired_left
    n_panels, depth, w = values.shape
    if panels.bfloat16:
        for i in range(rows):
            pair_neighbours(left[start + i], panels.depth, pairs[i])
        for p in range(n_panels):
            for row in range(0, rows, ROWS):
                add_pair_tile(pairs, row, rows - 1, depth, values[p], out, out_start + row, p * w)
        return
    for p in range(n_panels):
        for row in range(0, rows, ROWS):
            add_tile(left, start + row, start + rows - 1, depth, values[p], out, out_start + row, p * w)


@compiled
def add_outer(
    left: Floats, start: int, columns: int, right: Floats, right_start: int, rows: int, memory: Outer, out: Floats
) -> None:
    """Add to `out` the products of `columns` of `left` with those of `right`, summed over rows: left^T right.

    Args:
        left: (R, at least `columns`).
        start: first row of `left`.
        columns: number of columns of `left`, from the first.
        right: (…, N).
        right_start: first row of `right`.
        rows: number of rows, at most GROUP.
        memory: from `outer_room` for at least these columns of `left` and the N of `right`.
        out: (`columns`, N) and more, from `room`; the padding is overwritten with arbitrary values.
    """
    n, beside, pairs = right.shape[1], memory.right, memory.paired_left
    w = VECTORS * BYTES // left.itemsize
    if memory.bfloat16:
        _pair_all_rows(left, start, rows, columns, memory.zeros, pairs)
        _pair_all_rows(right, right_start, rows, n, memory.zeros, beside)
        turned = pairs.T
        for p in range(0, n, w):
            for row in range(0, columns, ROWS):
                add_pair_tile(turned, row, columns - 1, (rows + 1) // 2, beside[:, p : p + w], out, row, p)
        return
    for i in range(rows):
        for j in range(n):
            beside[i, j] = right[right_start + i, j]
    turned = left[start : start + rows].T
    for p in range(0, n, w):
        for row in range(0, columns, ROWS):
            add_tile(turned, row, columns - 1, rows, beside[:, p : p + w], out, row, p)


@compiled
def fill(left: Floats, panels: Panels, out: Floats) -> None:
    """Fill `out` (R + ROWS, P W) with `left` (R, K) times the matrix of `panels`."""
    for start in range(0, len(left), GROUP):
        rows = min(GROUP, len(left) - start)
        out[start : start + rows] = 0
        add(left, start, rows, panels, out, start)


@compiled
def fill_outer(left: Floats, columns: int, right: Floats, memory: Outer, out: Floats) -> None:
    """Fill `out` with left^T right over all rows; `add_outer` adds that of some rows."""
    out[:] = 0
    for start in range(0, len(left), GROUP):
        add_outer(left, start, columns, right, start, min(GROUP, len(left) - start), memory, out)
