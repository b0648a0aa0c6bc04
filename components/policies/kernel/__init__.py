"""The loops of a gradient step that numba compiles: what torch would do in many passes over memory, done in one.

All take float32 and float64. The GRU and the last layer make their products of matrices themselves (`product.py`);
others are torch's. The first call with either type compiles for some seconds, once on a machine; `compile_all` does so
before anyone waits.

Sizes: R rows, L living rows, P pairs of last action and agent, A agents, O observation size, H hidden units, N steps, M
units of the mixing layer.
"""

from typing import Any

import numpy as np

from components.policies.kernel.gru import unroll, unroll_back
from components.policies.kernel.head import say, say_back
from components.policies.kernel.inputs import collect, rectify, rectify_back
from components.policies.kernel.mixing import mix, mix_back
from components.policies.kernel.product import GROUP, ROWS, add, add_outer, fill, fill_outer, panels_of, room
from components.policies.kernel.scalars import exponential

__all__ = [
    "GROUP",
    "ROWS",
    "add",
    "add_outer",
    "collect",
    "compile_all",
    "exponential",
    "fill",
    "fill_outer",
    "mix",
    "mix_back",
    "panels_of",
    "rectify",
    "rectify_back",
    "room",
    "say",
    "say_back",
    "unroll",
    "unroll_back",
]


def compile_all(dtype: np.dtype[np.floating[Any]]) -> None:
    """Compile everything for arrays of that type, or load it if that has been done on this machine."""
    one, four, index = np.zeros((1, 1), dtype), np.zeros((1, 4), dtype), np.zeros(1, np.int64)
    three, padded = np.zeros((1, 3), dtype), np.zeros((1, 1, 1), np.float32)
    padded.flags.writeable = False
    collect(padded, index, index + 1, index + 1, index - 1, 1, np.zeros((1, 1), np.float32), index.copy(), index.copy())
    rectify(np.zeros((2, 1), dtype), one, index)
    rectify_back(np.zeros((2, 1), dtype), index, np.zeros((2, 1), dtype), one, one.copy())
    panels, sums = panels_of(np.zeros((1, 3), dtype)), room(GROUP, 3, dtype)
    fill(one, panels, sums)
    unroll(three, index, panels, four[0], index + 1, index + 1, one, four, True, sums)
    panels, (carry, beside, d_w) = panels_of(np.zeros((3, 1), dtype)), (room(rows, 1, dtype) for rows in (1, GROUP, 3))
    unroll_back(one, four, one.copy(), panels, index + 1, index + 1, three, index, carry, beside, d_w)
    fill_outer(three, 3, one, beside, d_w)
    say(one, panels_of(one), one[0], room(GROUP, 1, dtype), one.copy())
    say_back(one, one.copy(), one.copy(), one.copy(), one.copy(), one[0].copy())
    mix(one, three, one, one, one[0], one.copy(), one.copy())
    mix_back(one, one, three, one, one, one[0], one, one.copy(), three.copy(), one.copy(), one.copy(), one[0].copy())
