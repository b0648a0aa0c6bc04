"""Which units meet: one vector instruction tests LANES of them.

The test is written in LLVM's instructions, because numba's loops stay scalar here. In crowds, the processor often
mispredicts the branches of a scalar loop.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from ..compiling import COMPILED
from .constants import LANES

_VECTOR = ir.VectorType(ir.DoubleType(), LANES)
_BYTE, _INDEX = ir.IntType(8), ir.IntType(32)


def _met_by(typing: Any, places: Any, unit: Any, first: Any, margin: Any) -> Any:
    """Return an integer whose bit k is 1 if `unit` meets the unit `first` + k.

    Two units meet if they touch, or if they are nearer than `margin` to touching, one walks towards the other, and
    their headings differ by at least a right angle.

    Args:
        places: (6, P), a column for each unit: x, y, separation, the heading's x and y, and the stride. P is a multiple
            of LANES. No unit meets one whose x is NaN.
        unit: number of a unit.
        first: number of the first of LANES units, a multiple of LANES.
        margin: in cells.
    """

    def generated(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array, (_, number, start, extra) = context.make_array(places)(context, builder, args[0]), args
        stride = builder.extract_value(array.strides, 0)

        def at(row: int, column: Any, kind: Any) -> Any:
            begin = builder.bitcast(builder.gep(array.data, [column]), _BYTE.as_pointer())
            pointer = builder.gep(begin, [builder.mul(stride, stride.type(row))])
            loaded = builder.load(builder.bitcast(pointer, kind.as_pointer()))
            loaded.align = 8
            return loaded

        def repeated(value: Any) -> Any:
            one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, _INDEX(0))
            return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_INDEX, LANES), [0] * LANES))

        def dot(one: Sequence[Any], other: Sequence[Any]) -> Any:
            return builder.fadd(builder.fmul(one[0], other[0]), builder.fmul(one[1], other[1]))

        def less(one: Any, other: Any) -> Any:
            return builder.fcmp_ordered("<", one, other)

        x, y, separation, *heading, steps = (repeated(at(row, number, ir.DoubleType())) for row in range(6))
        its_x, its_y, its_separation, *its_heading, its_steps = (at(row, start, _VECTOR) for row in range(6))
        zero = ir.Constant(_VECTOR, [0.0] * LANES)
        way = builder.fsub(its_x, x), builder.fsub(its_y, y)
        squared, touch = dot(way, way), builder.fadd(separation, its_separation)
        reach = builder.fadd(touch, repeated(extra))
        towards = builder.and_(less(zero, dot(heading, way)), less(zero, steps))
        back = builder.and_(less(dot(its_heading, way), zero), less(zero, its_steps))
        crossing = builder.fcmp_ordered("<=", dot(heading, its_heading), zero)
        swerve = builder.and_(
            builder.and_(crossing, builder.or_(towards, back)), less(squared, builder.fmul(reach, reach))
        )
        met = builder.or_(swerve, less(squared, builder.fmul(touch, touch)))
        return builder.zext(builder.bitcast(met, ir.IntType(LANES)), ir.IntType(64))

    return types.int64(places, types.intp, types.intp, types.float64), generated


def _lowest(typing: Any, bits: Any) -> Any:
    """Return the number of the lowest bit of an integer, other than 0, that is 1."""

    def generated(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.IntType(1)(1))

    return types.int64(types.int64), generated


def _met_by_plainly(places: NDArray[np.float64], unit: int, first: int, margin: float) -> int:
    """Do the same as the code of `_met_by`, in the interpreter."""
    x, y, separation, heading_x, heading_y, steps = places[:, unit].tolist()
    its_x, its_y, its_separation, its_heading_x, its_heading_y, its_steps = places[:, first : first + LANES]
    way_x, way_y = its_x - x, its_y - y
    squared, touch = way_x * way_x + way_y * way_y, separation + its_separation
    reach = touch + margin
    towards = (heading_x * way_x + heading_y * way_y > 0.0) & (steps > 0.0)
    back = (its_heading_x * way_x + its_heading_y * way_y < 0.0) & (its_steps > 0.0)
    crossing = heading_x * its_heading_x + heading_y * its_heading_y <= 0.0
    met = (crossing & (towards | back) & (squared < reach * reach)) | (squared < touch * touch)
    return sum(1 << k for k in np.flatnonzero(met).tolist())


def _lowest_plainly(bits: int) -> int:
    """Do the same as the code of `_lowest`, in the interpreter."""
    return (int(bits) & -int(bits)).bit_length() - 1


met_by: Any = intrinsic(_met_by) if COMPILED else _met_by_plainly
lowest: Any = intrinsic(_lowest) if COMPILED else _lowest_plainly
