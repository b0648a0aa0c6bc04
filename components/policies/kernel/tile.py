"""Tiles of a matrix product, in LLVM's instructions: some rows by two vectors of columns, whose sums stay in registers.

No loop of numba keeps its sums in registers. The best of four such loops, of four rows by four summed columns at a
time, multiplies at 92 instead of 228 GFLOP/s (48 rows, K = 64, N = 192, one core with AVX-512). With that loop an
update of QMIX takes 1.5 times as long: 28.2 instead of 18.6 ms on 32 episodes of 8m as played, 67.8 instead of 43.9 ms
on 32 of 60 steps (medians of 15 rounds in turn, processor time).

Sizes: K summed columns, W columns of a tile.
"""

from collections.abc import Sequence
from typing import Any

import llvmlite.binding
import numba.core.cgutils
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from components.envs.skirmish.compiling import COMPILED

cgutils: Any = numba.core.cgutils

Floats = NDArray[np.floating[Any]]
Numbers = NDArray[np.int64]

_FEATURES = llvmlite.binding.get_host_cpu_features()
BYTES = 64 if _FEATURES.get("avx512f") else 32 if _FEATURES.get("avx") else 16
"""Bytes of a vector."""
VECTORS = 2
"""Vectors in a row of a tile."""
ROWS = 6 if BYTES == 32 else 12
"""Rows of a tile: two vectors per row, and some for the operands, fill 32 registers; AVX has only 16."""
FEW = 3 if BYTES == 32 else 4
"""Rows of a small tile, for the last rows of a product: still enough sums to use the processor's multipliers."""

_POINTER, _INDEX, _LANE = ir.IntType(8).as_pointer(), ir.IntType(64), ir.IntType(32)


def _tile_adder(
    typing: Any, left: Any, start: Any, last: Any, depth: Any, right: Any, out: Any, row: Any, column: Any
) -> Any:
    """Add to the tile of `out` at `row`, `column`: ROWS rows of `left` (…, K) from `start`, times `right` (K, W).

    For rows of `left` after `last`, row `last` is used; `depth` is K, at least 1.
    """
    return _signed(left, right, out, ROWS)


def _small_tile_adder(
    typing: Any, left: Any, start: Any, last: Any, depth: Any, right: Any, out: Any, row: Any, column: Any
) -> Any:
    """Do the same as `_tile_adder` with FEW rows."""
    return _signed(left, right, out, FEW)


def _signed(left: Any, right: Any, out: Any, rows: int) -> Any:
    def generated(context: Any, builder: Any, _: Any, args: Any) -> Any:
        _, first, final, stop, _, _, row, column = args
        a, b, c = (_opened(context, builder, kind, args[i]) for i, kind in ((0, left), (4, right), (5, out)))
        place = builder.gep(c[0], [builder.add(builder.mul(row, c[1]), builder.mul(column, c[2]))])
        builder.call(_tile(builder.module, left.dtype, rows, ""), [*a, first, final, stop, b[0], b[1], place, c[1]])
        return context.get_dummy_value()

    return types.void(left, types.intp, types.intp, types.intp, right, out, types.intp, types.intp), generated


def _tile_adder_by_column(
    typing: Any,
    left: Any,
    start: Any,
    last: Any,
    columns: Any,
    depth: Any,
    right: Any,
    out: Any,
    row: Any,
    column: Any,
) -> Any:
    """Do the same as `_tile_adder`, for the first `depth` columns of a list only, and the same rows of `right`."""

    def generated(context: Any, builder: Any, _: Any, args: Any) -> Any:
        _, first, final, _, stop, _, _, row, column = args
        a, b, c = (_opened(context, builder, kind, args[i]) for i, kind in ((0, left), (5, right), (6, out)))
        numbers = builder.bitcast(context.make_array(columns)(context, builder, args[3]).data, _POINTER)
        place = builder.gep(c[0], [builder.add(builder.mul(row, c[1]), builder.mul(column, c[2]))])
        function = _tile(builder.module, left.dtype, ROWS, "columns")
        builder.call(function, [*a, first, final, numbers, stop, b[0], b[1], place, c[1]])
        return context.get_dummy_value()

    whole = types.intp
    return types.void(left, whole, whole, columns, whole, right, out, whole, whole), generated


def _tile_adder_by_row(
    typing: Any, left: Any, numbers: Any, first: Any, last: Any, depth: Any, right: Any, out: Any, column: Any
) -> Any:
    """Add ROWS rows of `left` (…, K) times `right` (K, W) to these rows of `out`, from `column` on.

    The rows are `numbers` from `first` on. Those of `left` after `last` are arbitrary.
    """

    def generated(context: Any, builder: Any, _: Any, args: Any) -> Any:
        _, _, first, final, stop, _, _, column = args
        a, b, c = (_opened(context, builder, kind, args[i]) for i, kind in ((0, left), (5, right), (6, out)))
        listed = builder.bitcast(context.make_array(numbers)(context, builder, args[1]).data, _POINTER)
        place = builder.gep(c[0], [builder.mul(column, c[2])])
        function = _tile(builder.module, left.dtype, ROWS, "rows")
        builder.call(function, [*a, first, final, listed, stop, b[0], b[1], place, c[1]])
        return context.get_dummy_value()

    return types.void(left, numbers, types.intp, types.intp, types.intp, right, out, types.intp), generated


def _opened(context: Any, builder: Any, kind: Any, value: Any) -> tuple[Any, Any, Any]:
    """Return an array's first byte and its two strides."""
    array = context.make_array(kind)(context, builder, value)
    along_rows, along_columns = cgutils.unpack_tuple(builder, array.strides)
    return builder.bitcast(array.data, _POINTER), along_rows, along_columns


def _tile(module: Any, dtype: Any, n_rows: int, listed: str) -> Any:
    """Return the module's function that adds to a tile of `n_rows` rows.

    It is never inlined: loops with many products would take several times as long to compile.

    Args:
        module: where the function is, or will be.
        dtype: numba's type of the numbers.
        n_rows: rows of the tile.
        listed: `columns` or `rows` if a list names those of the left side; empty if they follow each other.
    """
    size = dtype.bitwidth // 8
    real = ir.FloatType() if size == 4 else ir.DoubleType()
    arguments = [_POINTER, *[_INDEX] * 4, *([_POINTER] if listed else []), _INDEX, _POINTER, _INDEX, _POINTER, _INDEX]
    kind = ir.FunctionType(ir.VoidType(), arguments)
    name = f"orchestra_tile_{size}_{n_rows}_{listed or 'all'}"
    function = cgutils.get_or_insert_function(module, kind, name)
    if not function.is_declaration:
        return function
    function.linkage = "linkonce_odr"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    a, a_row, a_column, first, final = function.args[:5]
    stop, b, b_row, c, c_row = function.args[-5:]
    vector = ir.VectorType(real, BYTES // size)

    def number_in_list(place: Any) -> Any:
        return _loaded(builder, function.args[5], builder.mul(place, _INDEX(8)), _INDEX)

    rows, tile = [], []
    for i in range(n_rows):
        number = builder.add(first, _INDEX(i))
        to = _INDEX(i)
        if listed == "rows":
            number = to = number_in_list(number)
        number = builder.select(builder.icmp_signed("<", number, final), number, final)
        rows.append(builder.mul(number, a_row))
        tile.append(builder.gep(c, [builder.mul(to, c_row)]))
    number_of = number_in_list if listed == "columns" else None
    totals = _summed(builder, a, rows, a_column, b, b_row, stop, vector, number_of)
    for of_row, of_totals in zip(tile, totals, strict=True):
        for v, total in enumerate(of_totals):
            # Added last: a sum over many groups of rows then adds the groups' sums, with smaller rounding errors.
            before = _loaded(builder, of_row, _INDEX(v * BYTES), vector)
            builder.store(builder.fadd(before, total), before.operands[0]).align = size
    builder.ret_void()
    return function


def _loaded(builder: Any, start: Any, offset: Any, kind: Any) -> Any:
    """Return what is `offset` bytes after `start`: a number, or a vector of them, which need not be aligned."""
    loaded = builder.load(builder.bitcast(builder.gep(start, [offset]), kind.as_pointer()))
    number = kind.element if isinstance(kind, ir.VectorType) else kind
    loaded.align = 4 if isinstance(number, ir.FloatType) else 8
    return loaded


def _summed(
    builder: Any,
    a: Any,
    rows: Sequence[Any],
    a_column: Any,
    b: Any,
    b_row: Any,
    stop: Any,
    vector: Any,
    number_of: Any,
) -> list[list[Any]]:
    """Write the loop over the summed columns, and return the sums of each row.

    Args:
        builder: where to write.
        a: the left side's first number.
        rows: bytes from there to each row.
        a_column: the left side's stride along columns.
        b: the right side's first number.
        b_row: its stride along rows.
        stop: number of the summed columns, at least 1.
        vector: type of a vector.
        number_of: returns the column at a place of the list; None if there is no list.
    """
    all_lanes = ir.Constant(ir.VectorType(_LANE, vector.count), [0] * vector.count)
    # Code that does nothing, before which LLVM moves nothing.
    unmoved = ir.InlineAsm(ir.FunctionType(_POINTER, [_POINTER]), "", "=r,0")

    def places(number: Any) -> tuple[Any, Any, Any]:
        """Return a place in the list of columns, and the first numbers of its column and its row."""
        if number_of is None:
            return number, builder.gep(a, [builder.mul(number, a_column)]), builder.gep(b, [builder.mul(number, b_row)])
        k = number_of(number)
        column, line = builder.gep(a, [builder.mul(k, a_column)]), builder.gep(b, [builder.mul(k, b_row)])
        return number, builder.call(unmoved, [column]), builder.call(unmoved, [line])

    zero = ir.Constant(vector, [0.0] * vector.count)
    entry = places(_INDEX(0))
    before = builder.block
    body, after = (builder.append_basic_block(name) for name in ("body", "after"))
    builder.branch(body)
    builder.position_at_end(body)
    # The next places are found an iteration ahead: LLVM would else load all factors first, and spill sums for them.
    here = [builder.phi(value.type) for value in entry]
    so_far = [[builder.phi(vector) for _ in range(VECTORS)] for _ in rows]
    place, column, line = here
    terms, raised = [_loaded(builder, line, _INDEX(v * BYTES), vector) for v in range(VECTORS)], []
    for row, of_row in zip(rows, so_far, strict=True):
        number = _loaded(builder, column, row, vector.element)
        one = builder.insert_element(ir.Constant(vector, ir.Undefined), number, _LANE(0))
        factor = builder.shuffle_vector(one, one, all_lanes)
        fused = ("contract",)
        raised.append(
            [
                builder.fadd(total, builder.fmul(factor, term, flags=fused), flags=fused)
                for total, term in zip(of_row, terms, strict=True)
            ]
        )
    further = places(builder.add(place, _INDEX(1)))
    for phi, first, following in zip(here, entry, further, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(following, body)
    for of_row, totals in zip(so_far, raised, strict=True):
        for phi, total in zip(of_row, totals, strict=True):
            phi.add_incoming(zero, before)
            phi.add_incoming(total, body)
    builder.cbranch(builder.icmp_signed("<", further[0], stop), body, after)
    builder.position_at_end(after)
    return raised


def _add_plainly(
    n_rows: int, left: Floats, start: int, last: int, depth: int, right: Floats, out: Floats, row: int, column: int
) -> None:
    rows = np.minimum(np.arange(start, start + n_rows), last)
    out[row : row + n_rows, column : column + right.shape[1]] += left[rows, :depth] @ right[:depth]


def _add_tile_plainly(*given: Any) -> None:
    """Do the same as the code of `_tile_adder`, in the interpreter."""
    _add_plainly(ROWS, *given)


def _add_small_tile_plainly(*given: Any) -> None:
    _add_plainly(FEW, *given)


def _add_by_column_plainly(
    left: Floats,
    start: int,
    last: int,
    columns: Numbers,
    depth: int,
    right: Floats,
    out: Floats,
    row: int,
    column: int,
) -> None:
    used = columns[:depth]
    _add_plainly(ROWS, left[:, used], start, last, depth, right[used], out, row, column)


def _add_by_row_plainly(
    left: Floats, numbers: Numbers, first: int, last: int, depth: int, right: Floats, out: Floats, column: int
) -> None:
    rows = numbers[first : first + ROWS]
    out[rows, column : column + right.shape[1]] += left[np.minimum(rows, last), :depth] @ right[:depth]


add_tile: Any = intrinsic(_tile_adder) if COMPILED else _add_tile_plainly
add_small_tile: Any = intrinsic(_small_tile_adder) if COMPILED else _add_small_tile_plainly
add_tile_by_column: Any = intrinsic(_tile_adder_by_column) if COMPILED else _add_by_column_plainly
add_tile_by_row: Any = intrinsic(_tile_adder_by_row) if COMPILED else _add_by_row_plainly
