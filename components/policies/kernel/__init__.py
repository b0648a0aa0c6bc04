"""The loops of a gradient step, compiled by numba: each makes in one pass over memory what takes torch several.

All take float32 and float64. The GRU and the last layer make their products of matrices themselves (`product.py`);
others are torch's. The first call with either type compiles for some seconds, once on a machine; `prepare` compiles all
of them beforehand.

Sizes: R rows, L living rows, P pairs of last action and agent, A agents, O observation size, H hidden units, N steps, M
units of the mixing layer.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from components.policies.kernel.compiling import CODE
from components.policies.kernel.gru import unroll as unroll
from components.policies.kernel.gru import unroll_back as unroll_back
from components.policies.kernel.head import say as say
from components.policies.kernel.head import say_back as say_back
from components.policies.kernel.inputs import collect as collect
from components.policies.kernel.inputs import rectify as rectify
from components.policies.kernel.inputs import rectify_back as rectify_back
from components.policies.kernel.mixing import mix as mix
from components.policies.kernel.mixing import mix_back as mix_back
from components.policies.kernel.product import GROUP, fill, fill_outer, panels_of, room

_FLOAT32: np.dtype[np.floating[Any]] = np.dtype(np.float32)


def prepare(dtype: np.dtype[np.floating[Any]] = _FLOAT32) -> None:
    """Compile every function for arrays of `dtype`, or load it from the cache.

    Args:
        dtype: float32, which every process of a machine shares a cache for; or float64, which serves tests.
    """
    calls = _calls(dtype)
    if dtype == _FLOAT32:
        CODE.compile_once("the loops of a gradient step", calls)
    for call in calls.values():
        call()


def _calls(dtype: np.dtype[np.floating[Any]]) -> dict[str, Callable[[], object]]:
    """Return a call of each function, with the smallest arrays that it takes."""
    one, four, index = np.zeros((1, 1), dtype), np.zeros((1, 4), dtype), np.zeros(1, np.int64)
    two, three, padded = np.zeros((2, 1), dtype), np.zeros((1, 3), dtype), np.zeros((1, 1, 1), np.float32)
    padded.flags.writeable = False
    hidden, forth, sums = np.zeros((1, 1), np.float32), panels_of(three), room(GROUP, 3, dtype)
    back, (carry, beside, d_w) = panels_of(np.zeros((3, 1), dtype)), [room(rows, 1, dtype) for rows in (1, GROUP, 3)]
    gru_back = (one, four, one.copy(), back, index + 1, index + 1, three, index, carry, beside, d_w)
    d_mix = (one.copy(), three.copy(), one.copy(), one.copy(), one[0].copy())
    return {
        "collect": lambda: collect(
            padded, index, index + 1, index + 1, index - 1, 1, hidden, index.copy(), index.copy()
        ),
        "rectify": lambda: rectify(two, one, index),
        "rectify_back": lambda: rectify_back(two, index, two.copy(), one, one.copy()),
        "fill": lambda: fill(one, forth, sums),
        "unroll": lambda: unroll(three, index, forth, four[0], index + 1, index + 1, one, four, True, sums),
        "unroll_back": lambda: unroll_back(*gru_back),
        "fill_outer": lambda: fill_outer(three, 3, one, beside, d_w),
        "say": lambda: say(one, panels_of(one), one[0], room(GROUP, 1, dtype), one.copy()),
        "say_back": lambda: say_back(one, one.copy(), one.copy(), one.copy(), one.copy(), one[0].copy()),
        "mix": lambda: mix(one, three, one, one, one[0], one.copy(), one.copy()),
        "mix_back": lambda: mix_back(one, one, three, one, one, one[0], one, *d_mix),
    }
