"""Matrix products inside of loops that numba compiles, with few rows each; fastest if the operands are in the cache.

A product consists of tiles: `ROWS` rows of the left side by W columns (two vectors) of the right side. All sums of a
tile stay in registers. If the right side is a network's weights, it is packed into panels of W columns, so that a tile
reads it from end to end. From about forty rows on, a product reaches nine tenths of a core's peak rate.

The tile is written in LLVM's instructions, because no loop of numba keeps its sums in registers. The best of four such
loops, of four rows by four summed columns at a time, multiplies at 92 instead of 228 GFLOP/s (48 rows, K = 64, N = 192,
one core with AVX-512). With that loop an update of QMIX takes 1.5 times as long: 28.2 instead of 18.6 ms on 32 episodes
of 8m as played, 67.8 instead of 43.9 ms on 32 of 60 steps (medians of 15 rounds in turn, processor time).

Sizes: R rows, K summed columns, N columns, P = ⌈N / W⌉ panels.
"""

from typing import Any

import llvmlite.binding
import numba.core.cgutils
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from components.envs.skirmish.compiling import COMPILED
from components.policies.kernel.compiling import compiled

cgutils: Any = numba.core.cgutils

Floats = NDArray[np.floating[Any]]

_FEATURES = llvmlite.binding.get_host_cpu_features()
_BYTES = 64 if _FEATURES.get("avx512f") else 32 if _FEATURES.get("avx") else 16
_VECTORS = 2
ROWS = 6 if _BYTES == 32 else 12
"""Rows of a tile: two vectors per row, and some for the operands, fill 32 registers; AVX has only 16."""
GROUP = 48
"""Rows of one block of a loop, small enough for the cache: a multiple of ROWS."""


def width(dtype: Any) -> int:
    """Return the number W of columns of a panel for numbers of this dtype."""
    return _VECTORS * _BYTES // int(np.dtype(dtype).itemsize)


def padded(columns: int, like: Floats) -> int:
    """Return `columns` rounded up to a multiple of W, as in `room`."""
    w = width(like.dtype)
    return -(-columns // w) * w


@compiled
def room(rows: int, columns: int, like: Floats) -> Floats:
    """Return zeros of the type of `like` for a result (rows, columns), with the padding that `add` needs."""
    w = _VECTORS * _BYTES // like.itemsize
    return np.zeros((rows + ROWS, (columns + w - 1) // w * w), like.dtype)


@compiled
def panels_of(right: Floats) -> Floats:
    """Return the panels (P, K, W) of `right` (K, N)."""
    w = _VECTORS * _BYTES // right.itemsize
    depth, columns = right.shape
    panels = np.zeros(((columns + w - 1) // w, depth, w), right.dtype)
    for p in range(len(panels)):
        for k in range(depth):
            panel = panels[p, k]
            for j in range(min(w, columns - p * w)):
                panel[j] = right[k, p * w + j]
    return panels


def _tile_adder(
    typing: Any, left: Any, start: Any, last: Any, depth: Any, right: Any, out: Any, row: Any, column: Any
) -> Any:
    """Add to the tile of `out` at `row`, `column`: ROWS rows of `left` (…, K) from `start`, times `right` (K, W).

    For rows of `left` after `last`, row `last` is used; `depth` is K, at least 1.
    """
    size = left.dtype.bitwidth // 8

    def emit(context: Any, builder: Any, _: Any, args: Any) -> None:
        _, first, final, stop, _, _, at_row, at_column = args
        index, scalar = first.type, context.get_data_type(left.dtype)
        vector = ir.VectorType(scalar, _BYTES // size)
        bytes_, lane = ir.IntType(8).as_pointer(), ir.IntType(32)

        def opened(kind: Any, value: Any) -> tuple[Any, list[Any]]:
            array = context.make_array(kind)(context, builder, value)
            strides = list(cgutils.unpack_tuple(builder, array.strides))
            if kind.layout in "CF":
                strides[1 if kind.layout == "C" else 0] = index(size)
            return builder.bitcast(array.data, bytes_), strides

        (a, a_strides), (b, b_strides), (c, c_strides) = (
            opened(kind, args[i]) for i, kind in ((0, left), (4, right), (5, out))
        )

        def at(start: Any, offset: Any, kind: Any) -> Any:
            return builder.bitcast(builder.gep(start, [offset]), kind.as_pointer())

        def vectors(start: Any) -> list[Any]:
            return [at(start, index(v * _BYTES), vector) for v in range(_VECTORS)]

        def load(pointer: Any) -> Any:
            loaded = builder.load(pointer)
            loaded.align = size
            return loaded

        rows, tile = [], []
        for i in range(ROWS):
            number = builder.add(first, index(i))
            number = builder.select(builder.icmp_signed("<", number, final), number, final)
            rows.append(builder.gep(a, [builder.mul(number, a_strides[0])]))
            offset = builder.mul(builder.add(at_row, index(i)), c_strides[0])
            tile.append(vectors(builder.gep(c, [builder.add(offset, builder.mul(at_column, c_strides[1]))])))
        zero = ir.Constant(vector, [0.0] * vector.count)

        before = builder.block
        body, after = (builder.append_basic_block(name) for name in ("body", "after"))
        builder.branch(body)
        builder.position_at_end(body)
        k = builder.phi(index)
        so_far = [[builder.phi(vector) for _ in of_row] for of_row in tile]
        terms = [load(pointer) for pointer in vectors(builder.gep(b, [builder.mul(k, b_strides[0])]))]
        along, raised = builder.mul(k, a_strides[1]), []
        for start_of_row, of_row in zip(rows, so_far, strict=True):
            one = builder.insert_element(
                ir.Constant(vector, ir.Undefined), load(at(start_of_row, along, scalar)), lane(0)
            )
            all_lanes = ir.Constant(ir.VectorType(lane, vector.count), [0] * vector.count)
            factor = builder.shuffle_vector(one, one, all_lanes)
            fused = ("contract",)
            raised.append(
                [
                    builder.fadd(total, builder.fmul(factor, term, flags=fused), flags=fused)
                    for total, term in zip(of_row, terms, strict=True)
                ]
            )
        further = builder.add(k, index(1))
        k.add_incoming(index(0), before)
        k.add_incoming(further, body)
        for of_row, totals in zip(so_far, raised, strict=True):
            for phi, total in zip(of_row, totals, strict=True):
                phi.add_incoming(zero, before)
                phi.add_incoming(total, body)
        builder.cbranch(builder.icmp_signed("<", further, stop), body, after)

        builder.position_at_end(after)
        for of_row, totals in zip(tile, raised, strict=True):
            for pointer, total in zip(of_row, totals, strict=True):
                # Added last: a sum over many groups of rows then adds the groups' sums, with smaller rounding errors.
                builder.store(builder.fadd(load(pointer), total), pointer).align = size

    def generated(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit(context, builder, signature, args)
        return context.get_dummy_value()

    return types.void(left, types.intp, types.intp, types.intp, right, out, types.intp, types.intp), generated


def _add_tile_plainly(
    left: Floats, start: int, last: int, depth: int, right: Floats, out: Floats, row: int, column: int
) -> None:
    """Do the same as the code of `_tile_adder`, in the interpreter."""
    rows = np.minimum(np.arange(start, start + ROWS), last)
    tile = out[row : row + ROWS, column : column + right.shape[1]]
    tile += left[rows, :depth] @ right[:depth]


_add_tile: Any = intrinsic(_tile_adder) if COMPILED else _add_tile_plainly


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
        for row in range(0, rows, ROWS):
            _add_tile(left, start + row, start + rows - 1, depth, panels[p], out, out_start + row, p * w)


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
    w = _VECTORS * _BYTES // left.itemsize
    for p in range(0, n, w):
        for row in range(0, columns, ROWS):
            _add_tile(turned, row, columns - 1, rows, beside[:, p : p + w], out, row, p)


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
