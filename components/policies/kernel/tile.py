"""One tile of a matrix product, in LLVM's instructions: sums of `ROWS` rows by `VECTORS` vectors stay in registers."""

from typing import Any

import llvmlite.binding
import numba.core.cgutils
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from components.envs.skirmish.compiling import COMPILED
from components.policies.kernel.bfloat16 import MULTIPLIES_BFLOAT16, evens, odds

cgutils: Any = numba.core.cgutils

Floats = NDArray[np.floating[Any]]

_FEATURES = llvmlite.binding.get_host_cpu_features()
BYTES = 64 if _FEATURES.get("avx512f") else 32 if _FEATURES.get("avx") else 16
"""Size of a vector."""
VECTORS = 2
"""Vectors in a row of a tile."""
ROWS = 6 if BYTES == 32 else 12
"""Rows of a tile: two vectors per row, and some for the operands, fill 32 registers; AVX has only 16."""

_BYTES, _INDEX, _LANE = ir.IntType(8).as_pointer(), ir.IntType(64), ir.IntType(32)


def _tile_adder(
    typing: Any, left: Any, start: Any, last: Any, depth: Any, right: Any, out: Any, row: Any, column: Any
) -> Any:
    """Add to the tile of `out` at `row`, `column`: ROWS rows of `left` (…, K) from `start`, times `right` (K, W).

    For rows of `left` after `last`, row `last` is used; `depth` is K, at least 1.
    """
    return _tile(left, right, out, False)


def _pair_tile_adder(
    typing: Any, left: Any, start: Any, last: Any, depth: Any, right: Any, out: Any, row: Any, column: Any
) -> Any:
    """Do the same as `_tile_adder` with pairs of bfloat16 numbers; `depth` is the number of pairs."""
    return _tile(left, right, out, True)


def _tile(left: Any, right: Any, out: Any, paired: bool) -> Any:
    """Return the signature and the code of a function that adds to a tile."""

    def generated(context: Any, builder: Any, _: Any, args: Any) -> Any:
        if paired and not (MULTIPLIES_BFLOAT16 and left.dtype == types.float32):
            return context.get_dummy_value()  # compiled, because one function takes both kinds, but never called
        _, first, final, stop, _, _, row, column = args
        size = left.dtype.bitwidth // 8

        def opened(kind: Any, value: Any) -> tuple[Any, Any, Any]:
            array = context.make_array(kind)(context, builder, value)
            along_rows, along_columns = cgutils.unpack_tuple(builder, array.strides)
            return builder.bitcast(array.data, _BYTES), along_rows, along_columns

        a, b, c = (opened(kind, args[i]) for i, kind in ((0, left), (4, right), (5, out)))
        place = builder.gep(c[0], [builder.add(builder.mul(row, c[1]), builder.mul(column, c[2]))])
        function = _function(builder.module, context.get_data_type(left.dtype), size, paired)
        builder.call(function, [*a, first, final, stop, b[0], b[1], place, c[1]])
        return context.get_dummy_value()

    return types.void(left, types.intp, types.intp, types.intp, right, out, types.intp, types.intp), generated


def _function(module: Any, real: Any, size: int, paired: bool) -> Any:
    """Return the module's function that adds to a tile.

    It is never inlined: loops with many products would take several times as long to compile.

    Args:
        module: where the function is, or will be.
        real: the type of sums.
        size: its size in bytes.
        paired: whether operands are pairs of bfloat16 numbers.
    """
    kind = ir.FunctionType(ir.VoidType(), [_BYTES, *[_INDEX] * 5, _BYTES, _INDEX, _BYTES, _INDEX])
    function = cgutils.get_or_insert_function(module, kind, f"add_tile_{size}_{'pairs' if paired else 'numbers'}")
    if not function.is_declaration:
        return function
    function.linkage = "linkonce_odr"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    a, a_row, a_column, first, final, stop, b, b_row, c, c_row = function.args

    sums = ir.VectorType(real, BYTES // size)
    scalar = _LANE if paired else real
    vector = ir.VectorType(scalar, sums.count)
    multiply_add = ir.InlineAsm(ir.FunctionType(sums, [sums, vector, vector]), "vdpbf16ps $3, $2, $0", "=v,0,v,v")

    def at(start: Any, offset: Any, kind: Any) -> Any:
        return builder.bitcast(builder.gep(start, [offset]), kind.as_pointer())

    def vectors(start: Any, kind: Any) -> list[Any]:
        return [at(start, _INDEX(v * BYTES), kind) for v in range(VECTORS)]

    def load(pointer: Any) -> Any:
        loaded = builder.load(pointer)
        loaded.align = size
        return loaded

    def added(total: Any, factor: Any, term: Any) -> Any:
        if paired:
            return builder.call(multiply_add, [total, factor, term])
        return builder.fadd(total, builder.fmul(factor, term, flags=("contract",)), flags=("contract",))

    rows, tile = [], []
    for i in range(ROWS):
        number = builder.add(first, _INDEX(i))
        number = builder.select(builder.icmp_signed("<", number, final), number, final)
        rows.append(builder.gep(a, [builder.mul(number, a_row)]))
        tile.append(vectors(builder.gep(c, [builder.mul(_INDEX(i), c_row)]), sums))
    zero = ir.Constant(sums, [0.0] * sums.count)

    before = builder.block
    body, after = (builder.append_basic_block(name) for name in ("body", "after"))
    builder.branch(body)
    builder.position_at_end(body)
    k = builder.phi(_INDEX)
    so_far = [[builder.phi(sums) for _ in of_row] for of_row in tile]
    terms = [load(pointer) for pointer in vectors(builder.gep(b, [builder.mul(k, b_row)]), vector)]
    along, raised = builder.mul(k, a_column), []
    for start_of_row, of_row in zip(rows, so_far, strict=True):
        one = builder.insert_element(ir.Constant(vector, ir.Undefined), load(at(start_of_row, along, scalar)), _LANE(0))
        all_lanes = ir.Constant(ir.VectorType(_LANE, vector.count), [0] * vector.count)
        factor = builder.shuffle_vector(one, one, all_lanes)
        raised.append([added(total, factor, term) for total, term in zip(of_row, terms, strict=True)])
    further = builder.add(k, _INDEX(1))
    k.add_incoming(_INDEX(0), before)
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
    builder.ret_void()
    return function


def _add_tile_plainly(
    left: Floats, start: int, last: int, depth: int, right: Floats, out: Floats, row: int, column: int
) -> None:
    """Do the same as the code of `_tile_adder`, in the interpreter."""
    rows = np.minimum(np.arange(start, start + ROWS), last)
    tile = out[row : row + ROWS, column : column + right.shape[1]]
    tile += left[rows, :depth] @ right[:depth]


add_tile: Any = intrinsic(_tile_adder) if COMPILED else _add_tile_plainly


def _add_pair_tile_plainly(
    left: Floats, start: int, last: int, depth: int, right: Floats, out: Floats, row: int, column: int
) -> None:
    """Do the same as the code of `_pair_tile_adder`, in the interpreter."""
    rows = np.minimum(np.arange(start, start + ROWS), last)
    tile = out[row : row + ROWS, column : column + right.shape[1]]
    for half in (evens, odds):
        tile += half(left[rows, :depth]) @ half(right[:depth])


add_pair_tile: Any = intrinsic(_pair_tile_adder) if COMPILED else _add_pair_tile_plainly
