"""Pairs of bfloat16 numbers, the operands of an instruction that adds two products to each sum (AVX512-BF16).

A bfloat16 number is the upper half of a float32: it has the same exponent and 8 bits of precision instead of 24. A
float32 is rounded to the nearest, ties to even. A pair fills 32 bits, the first number the lower half. An array of
pairs has the dtype float32, but its numbers have no meaning as such.
"""

from collections.abc import Callable
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

_FEATURES = llvmlite.binding.get_host_cpu_features()
MULTIPLIES_BFLOAT16 = bool(_FEATURES.get("avx512f") and _FEATURES.get("avx512bf16"))
"""True if this processor has the instruction."""
if MULTIPLIES_BFLOAT16 and COMPILED:
    llvmlite.binding.initialize_native_asmparser()

_LANES = 16
_FLOATS, _HALVES = ir.VectorType(ir.FloatType(), _LANES), ir.VectorType(ir.IntType(16), _LANES)
_PAIRS = ir.VectorType(ir.IntType(32), _LANES)
_NARROW = ir.InlineAsm(ir.FunctionType(_HALVES, [_FLOATS]), "vcvtneps2bf16 $1, $0", "=v,v")


class _Row:
    """A contiguous row of an array, in code that is being generated."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
        self._builder = builder
        data = context.make_array(kind)(context, builder, value).data
        self._data = builder.bitcast(data, ir.IntType(8).as_pointer())

    def at(self, index: Any, size: int, kind: Any) -> Any:
        """Return a pointer to elements of `kind`; `index` counts elements of `size` bytes."""
        offset = self._builder.mul(index, index.type(size))
        return self._builder.bitcast(self._builder.gep(self._data, [offset]), kind.as_pointer())

    def load(self, index: Any, kind: Any) -> Any:
        loaded = self._builder.load(self.at(index, 4, kind))
        loaded.align = 4
        return loaded

    def store(self, value: Any, index: Any, size: int) -> None:
        self._builder.store(value, self.at(index, size, value.type)).align = size


def _for_lanes(builder: Any, n: Any, step: Callable[[Any, Any], None]) -> None:
    """Call `step(start, kind)` for vectors that cover `n` elements, the last two overlapping; one by one if n < 16."""
    zero, lanes = n.type(0), n.type(_LANES)
    with builder.if_else(builder.icmp_signed("<", n, lanes)) as (few, many):
        with few, cgutils.for_range(builder, n) as loop:
            step(loop.index, ir.FloatType())
        with many:
            with cgutils.for_range(builder, builder.sdiv(n, lanes)) as loop:
                step(builder.mul(loop.index, lanes), _FLOATS)
            with builder.if_then(builder.icmp_signed(">", builder.srem(n, lanes), zero)):
                step(builder.sub(n, lanes), _FLOATS)


def _narrow(builder: Any, value: Any) -> Any:
    """Return a float or a vector of them as bfloat16 numbers, which LLVM has as 16-bit integers."""
    if value.type == _FLOATS:
        return builder.call(_NARROW, [value])
    vector = builder.insert_element(ir.Constant(_FLOATS, None), value, ir.IntType(32)(0))
    return builder.extract_element(builder.call(_NARROW, [vector]), ir.IntType(32)(0))


def _neighbours_pairing(typing: Any, row: Any, n: Any, out: Any) -> Any:
    """Fill `out` (⌈n / 2⌉,) with the pairs of neighbours of `row` (n,); the last is paired with 0 if `n` is odd."""

    def generated(context: Any, builder: Any, _: Any, args: Any) -> Any:
        if MULTIPLIES_BFLOAT16 and row.dtype == types.float32:
            numbers, pairs = (_Row(context, builder, kind, value) for kind, value in ((row, args[0]), (out, args[2])))
            _for_lanes(
                builder,
                args[1],
                lambda start, kind: pairs.store(_narrow(builder, numbers.load(start, kind)), start, 2),
            )
            one = args[1].type(1)
            with builder.if_then(builder.icmp_signed("==", builder.and_(args[1], one), one)):
                pairs.store(ir.IntType(16)(0), args[1], 2)
        return context.get_dummy_value()

    return types.void(row, types.intp, out), generated


def _rows_pairing(typing: Any, first: Any, second: Any, n: Any, out: Any) -> Any:
    """Fill `out` (n,) with the pairs of `first` (n,) and `second` (n,)."""

    def generated(context: Any, builder: Any, _: Any, args: Any) -> Any:
        if MULTIPLIES_BFLOAT16 and first.dtype == types.float32:
            low, high, pairs = (
                _Row(context, builder, kind, args[i]) for i, kind in ((0, first), (1, second), (3, out))
            )

            def step(start: Any, kind: Any) -> None:
                wide = _PAIRS if kind == _FLOATS else ir.IntType(32)
                halves = [builder.zext(_narrow(builder, row.load(start, kind)), wide) for row in (low, high)]
                shift = ir.Constant(wide, [16] * _LANES if kind == _FLOATS else 16)
                pairs.store(builder.or_(halves[0], builder.shl(halves[1], shift)), start, 4)

            _for_lanes(builder, args[2], step)
        return context.get_dummy_value()

    return types.void(first, second, types.intp, out), generated


def _narrow_plainly(numbers: Floats) -> NDArray[np.uint32]:
    """Do the same as `_narrow`, in the interpreter."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32).astype(np.uint64)
    rounded = np.where(np.isnan(numbers), bits | 0x400000, bits + 0x7FFF + (bits >> 16 & 1))
    return (rounded >> 16).astype(np.uint32)


def _pair_neighbours_plainly(row: Floats, n: int, out: Floats) -> None:
    """Do the same as the code of `_neighbours_pairing`, in the interpreter."""
    halves = np.zeros(n + n % 2, np.uint32)
    halves[:n] = _narrow_plainly(row[:n])
    out[: len(halves) // 2] = (halves[::2] | halves[1::2] << 16).view(np.float32)


def _pair_rows_plainly(first: Floats, second: Floats, n: int, out: Floats) -> None:
    """Do the same as the code of `_rows_pairing`, in the interpreter."""
    out[:n] = (_narrow_plainly(first[:n]) | _narrow_plainly(second[:n]) << 16).view(np.float32)


def evens(pairs: Floats) -> Floats:
    """Return the first numbers of `pairs` as float32."""
    return (np.ascontiguousarray(pairs, np.float32).view(np.uint32) << 16).view(np.float32)


def odds(pairs: Floats) -> Floats:
    """Return the second numbers of `pairs` as float32."""
    return (np.ascontiguousarray(pairs, np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


pair_neighbours: Any = intrinsic(_neighbours_pairing) if COMPILED else _pair_neighbours_plainly
pair_rows: Any = intrinsic(_rows_pairing) if COMPILED else _pair_rows_plainly
