"""Functions of one number, float32 or float64, that keep its type."""

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.extending import overload

from components.policies.kernel.compiling import ARITHMETIC, compiled

# float32 constants, which do not widen float32 operands and mix with float64.
ZERO, ONE, TWO = np.float32(0.0), np.float32(1.0), np.float32(2.0)


def exponential(x: Any) -> Any:
    """Return e to the `x`; for float32 with a relative error of 1.2e-7 if |x| < 87, and the value at ±87 beyond."""
    return np.exp(x)


_LOW, _HIGH = np.float32(-87.0), np.float32(87.0)
_ROUNDS = np.float32(1.5 * 2.0**23)  # adding it leaves the integer part in the last bits
_PER_LN_2 = np.float32(1.0 / math.log(2.0))
_LN_2_HEAD, _LN_2_TAIL = np.float32(0.693359375), np.float32(-2.12194440e-4)
# e^r = 1 + r + r² (…) for |r| <= ln(2) / 2: Moshier's coefficients, of the Cephes library's expf.
_C0, _C1, _C2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_C3, _C4, _C5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
_MANTISSA = np.int32(23)


@overload(exponential, jit_options=ARITHMETIC)
def _exponential(x: Any) -> Callable[[Any], Any]:
    def of_double(x: Any) -> Any:
        return math.exp(x)

    def of_single(x: Any) -> Any:
        # No call of the C library and no branch, so the compiler vectorises it. NaN passes max and min.
        x = max(x, _LOW)
        x = min(x, _HIGH)
        shifted = x * _PER_LN_2 + _ROUNDS
        k = shifted - _ROUNDS
        r = x - k * _LN_2_HEAD - k * _LN_2_TAIL
        p = ((((_C0 * r + _C1) * r + _C2) * r + _C3) * r + _C4) * r + _C5
        p = p * (r * r) + r + ONE
        # Times 2^k: k is added to the exponent.
        power = np.float32(shifted).view(np.int32) << _MANTISSA
        return np.int32(np.float32(p).view(np.int32) + power).view(np.float32)

    return of_single if x == numba.types.float32 else of_double


@compiled
def sigmoid(x: Any) -> Any:
    return ONE / (ONE + exponential(-x))


@compiled
def sign(x: Any) -> Any:
    # A difference of two selections, because the compiler does not vectorise a chain of them.
    above = ONE if x > ZERO else ZERO
    below = ONE if x < ZERO else ZERO
    return above - below
