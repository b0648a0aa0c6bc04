"""Which of LANES numbers differ from those of the frame before, and moves of the differences, in LLVM's instructions.

A difference is the exclusive or of both numbers' bits. With AVX-512 one instruction moves the differences of all lanes:
an observation of 27m_vs_30m takes as long as its copy, 0.3 ns for each number on one core. Other processors select as
often as there are lanes, which takes twice as long.
"""

from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from components.envs.skirmish.compiling import COMPILED
from components.sparse.kernel import LANES

Numbers = NDArray[np.uint32]

_AVX512 = llvmlite.binding.get_host_cpu_features().get("avx512f", False)
_LANE, _INDEX, _BITS = ir.IntType(32), ir.IntType(64), ir.IntType(LANES)
_VECTOR, _MASK = ir.VectorType(_LANE, LANES), ir.VectorType(ir.IntType(1), LANES)
_ZERO = ir.Constant(_VECTOR, [0] * LANES)


def _bits_of(typing: Any, numbers: Any, before: Any, at: Any) -> Any:
    """Return an integer whose bit j tells whether number `at` + j of `numbers` and `before` (n,) differ, for LANES."""

    def generated(context: Any, builder: Any, _: Any, args: Any) -> Any:
        one, other = (
            _loaded(builder, _place(context, builder, kind, array, args[2]), _VECTOR)
            for kind, array in ((numbers, args[0]), (before, args[1]))
        )
        return builder.zext(builder.bitcast(builder.icmp_unsigned("!=", one, other), _BITS), _INDEX)

    return types.int64(numbers, before, types.intp), generated


def _ones(typing: Any, bits: Any) -> Any:
    """Return how many bits of an integer are 1."""

    def generated(context: Any, builder: Any, _: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.int64), generated


def _gather_lanes(typing: Any, numbers: Any, before: Any, at: Any, bits: Any, values: Any, first: Any) -> Any:
    """Write the differences of `numbers` and `before` from `at` on whose bits are 1 to `values`, from `first` on.

    The rest of the LANES values from `first` on is overwritten, with any numbers.
    """

    def generated(context: Any, builder: Any, _: Any, args: Any) -> Any:
        of = _place(context, builder, numbers, args[0], args[2])
        minus = _place(context, builder, before, args[1], args[2])
        to = _place(context, builder, values, args[4], args[5])
        if _AVX512:
            kind = ir.FunctionType(_VECTOR, [_VECTOR, _VECTOR, _MASK])
            compress = _function(builder.module, kind, f"llvm.x86.avx512.mask.compress.v{LANES}i32")
            change = builder.xor(_loaded(builder, of, _VECTOR), _loaded(builder, minus, _VECTOR))
            _store(builder, builder.call(compress, [change, _ZERO, _mask(builder, args[3])]), to)
            return context.get_dummy_value()
        used = _INDEX(0)
        for lane in range(LANES):
            number, old = (_loaded(builder, builder.gep(place, [_INDEX(lane)]), _LANE) for place in (of, minus))
            _store(builder, builder.xor(number, old), builder.gep(to, [used]))
            used = builder.add(used, _bit(builder, args[3], lane))
        return context.get_dummy_value()

    return types.void(numbers, before, types.intp, types.int64, values, types.intp), generated


def _scatter_lanes(typing: Any, values: Any, first: Any, bits: Any, before: Any, out: Any, at: Any) -> Any:
    """Fill LANES numbers of `out` from `at` on: those of `before`, where a bit is 1 with the next difference applied.

    The differences are those of `values` from `first` on. One value after them may be read. `out` may be `before`.
    """

    def generated(context: Any, builder: Any, _: Any, args: Any) -> Any:
        of = _place(context, builder, values, args[0], args[1])
        old = _place(context, builder, before, args[3], args[5])
        to = _place(context, builder, out, args[4], args[5])
        if _AVX512:
            kind = ir.FunctionType(_VECTOR, [of.type, _MASK, _VECTOR])
            expand = _function(builder.module, kind, f"llvm.masked.expandload.v{LANES}i32")
            change = builder.call(expand, [of, _mask(builder, args[2]), _ZERO])
            _store(builder, builder.xor(_loaded(builder, old, _VECTOR), change), to)
            return context.get_dummy_value()
        used = _INDEX(0)
        for lane in range(LANES):
            bit = _bit(builder, args[2], lane)
            value = _loaded(builder, builder.gep(of, [used]), _LANE)
            change = builder.select(builder.trunc(bit, ir.IntType(1)), value, _LANE(0))
            number = builder.xor(_loaded(builder, builder.gep(old, [_INDEX(lane)]), _LANE), change)
            _store(builder, number, builder.gep(to, [_INDEX(lane)]))
            used = builder.add(used, bit)
        return context.get_dummy_value()

    return types.void(values, types.intp, types.int64, before, out, types.intp), generated


def _place(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    """Return a pointer to number `at` of an array (n,)."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), _LANE.as_pointer())


def _loaded(builder: Any, pointer: Any, kind: Any) -> Any:
    value = builder.load(builder.bitcast(pointer, kind.as_pointer()))
    value.align = 4
    return value


def _store(builder: Any, value: Any, pointer: Any) -> None:
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer())).align = 4


def _bit(builder: Any, bits: Any, lane: int) -> Any:
    return builder.and_(builder.lshr(bits, _INDEX(lane)), _INDEX(1))


def _mask(builder: Any, bits: Any) -> Any:
    return builder.bitcast(builder.trunc(bits, _BITS), _MASK)


def _function(module: Any, kind: Any, name: str) -> Any:
    return module.globals.get(name) or ir.Function(module, kind, name)


# In the interpreter ---------------------------------------------------------------------------------------------------


def _bits_of_plainly(numbers: Numbers, before: Numbers, at: int) -> int:
    """Do the same as the code of `_bits_of`."""
    return sum(1 << int(j) for j in np.flatnonzero(numbers[at : at + LANES] != before[at : at + LANES]))


def _ones_plainly(bits: int) -> int:
    return int(bits).bit_count()


def _set(bits: int) -> NDArray[np.int64]:
    """Return the numbers of the bits that are 1."""
    return np.flatnonzero([(int(bits) >> j) & 1 for j in range(LANES)])


def _gather_plainly(numbers: Numbers, before: Numbers, at: int, bits: int, values: Numbers, first: int) -> None:
    """Do the same as the code of `_gather_lanes`, and overwrite no more."""
    picked = at + _set(bits)
    values[first : first + len(picked)] = numbers[picked] ^ before[picked]


def _scatter_plainly(values: Numbers, first: int, bits: int, before: Numbers, out: Numbers, at: int) -> None:
    """Do the same as the code of `_scatter_lanes`."""
    to = _set(bits)
    out[at : at + LANES] = before[at : at + LANES]
    out[at + to] ^= values[first : first + len(to)]


bits_of: Any = intrinsic(_bits_of) if COMPILED else _bits_of_plainly
ones: Any = intrinsic(_ones) if COMPILED else _ones_plainly
gather_lanes: Any = intrinsic(_gather_lanes) if COMPILED else _gather_plainly
scatter_lanes: Any = intrinsic(_scatter_lanes) if COMPILED else _scatter_plainly
