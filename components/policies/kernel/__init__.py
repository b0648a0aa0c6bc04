"""The loops of a gradient step, compiled by numba: each needs one pass over memory where torch needs several.

All take float32 and float64, and compute their matrix products themselves (`product.py`). The first call with either
type compiles for some seconds, once on a machine; `prepare` compiles all of them in advance. The loop of acting
(`acting.py`) takes float32 alone; workers compile it separately.

Sizes: R rows, L living rows, P pairs of last action and agent, A agents, O observation size, H hidden units, N steps, M
units of the mixing layer.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from components.policies.kernel.agent import backward as backward
from components.policies.kernel.agent import forward as forward
from components.policies.kernel.agent import packed as packed
from components.policies.kernel.agent import packed_back as packed_back
from components.policies.kernel.compiling import CODE
from components.policies.kernel.inputs import collect as collect
from components.policies.kernel.mixing import mix as mix
from components.policies.kernel.mixing import mix_back as mix_back
from components.policies.kernel.mixing import packed_mixer as packed_mixer
from components.policies.kernel.mixing import packed_mixer_back as packed_mixer_back
from components.policies.kernel.product import room
from components.policies.kernel.td import MONOTONIC as MONOTONIC
from components.policies.kernel.td import SUMMED as SUMMED
from components.policies.kernel.td import UNMIXED as UNMIXED
from components.policies.kernel.td import td_panels as td_panels
from components.policies.kernel.td import td_part as td_part

_FLOAT32: np.dtype[np.floating[Any]] = np.dtype(np.float32)


def prepare(dtype: np.dtype[np.floating[Any]] = _FLOAT32) -> None:
    """Compile every function for arrays of `dtype`, or load it from the cache.

    Args:
        dtype: float32, for which all processes of a machine share a cache; or float64, for tests.
    """
    calls = _calls(dtype)
    if dtype == _FLOAT32:
        CODE.compile_once("the loops of a gradient step", calls, beside=f"{__name__}:compile_gradients")
    for call in calls.values():
        call()


def compile_gradients() -> None:
    """Compile the last functions of `td_part` for float32, while another process compiles from `forward` on."""
    calls = _calls(_FLOAT32)
    for name in ("mix_back", "backward"):
        calls[name]()


def _calls(dtype: np.dtype[np.floating[Any]]) -> dict[str, Callable[[], object]]:
    """Return a call of each function, with the smallest arrays that it takes."""
    one, three, index = np.zeros((1, 1), dtype), np.zeros((3, 1), dtype), np.zeros(1, np.int64)
    vector, padded, seen = np.zeros(1, dtype), np.zeros((1, 1, 1), np.float32), np.zeros((1, 1), np.float32)
    padded.flags.writeable = False
    # One agent, one action and no living row: two pairs.
    of_one, of_three = room(2, 1, one), room(2, 3, one)
    rows = (np.zeros((0, 1), dtype), index[:0], index, index + 1, index + 1, 0, 1, 1)
    weights = (np.zeros((1, 3), dtype), vector, three, three, three[:, 0], three[:, 0], one, vector)
    d_weights, unpacked = [w.copy() for w in weights], (*weights[:2], *weights[4:], index[:0])
    gates, kept = np.zeros((1, 4), dtype), (room(1, 4, one), of_one, of_one, of_one)
    mixer = (np.zeros((4, 1), dtype), np.zeros(4, dtype), one, vector, one, vector, one, vector)
    d_mixer, biases = [w.copy() for w in mixer], (mixer[1], vector, vector, one, vector)
    frames, flags, numbers = np.zeros((2, 1, 1), np.float32), np.zeros((2, 1, 1), np.bool_), np.zeros((1, 1), np.int64)
    of_batch = (frames, frames[:, 0], flags, numbers, frames[0, 0], numbers[0] + 1, flags[0, 0], frames[0, 0])
    for array in of_batch:
        array.flags.writeable = False
    both, shared = (*weights, *mixer), tuple(w.copy() for w in (*weights, *mixer))
    two, four = np.zeros((2, 1), dtype), np.zeros((2, 4), dtype)
    states, of_four = (one.copy(), one.copy()), room(2, 4, one)
    of_inputs = room(4, 1, one), room(4, 1, one), room(4, 3, one)
    memory: tuple[Any, ...] = (two.copy(), *of_inputs, two.copy(), four, two.copy(), gates.copy())
    memory += (two.copy(), two.copy(), two.copy(), np.zeros((4, 3), dtype), *states, of_four, of_one, of_one, of_one)
    options = (MONOTONIC, True, 0.5, 0.5, 1.0)
    return {
        "collect": lambda: collect(
            padded, index, index + 1, index + 1, 0, 1, index - 1, 1, seen, index.copy(), index.copy()
        ),
        "forward": lambda: forward(
            *rows,
            packed(weights[0], three, three, one, 1),
            *unpacked,
            of_one,
            of_three,
            one.copy(),
            gates,
            True,
            one.copy(),
        ),
        "td_part": lambda: td_part(
            of_batch,
            index.copy(),
            *options,
            both,
            both,
            td_panels(both, both, 1),
            memory,
            shared,
            np.zeros(4),
            np.zeros(1),
        ),
        "mix": lambda: mix(one, one, 0, 1, packed_mixer(mixer[0], one, one), *biases, *kept, True, one.copy()),
        "mix_back": lambda: mix_back(
            one, one, one, 0, 1, packed_mixer_back(one, one), one, *kept, one.copy(), *d_mixer
        ),
        "backward": lambda: backward(
            one,
            index[:0],
            *rows,
            packed_back(three, three),
            one,
            of_one,
            one.copy(),
            gates,
            np.zeros((2, 3), dtype),
            *d_weights,
        ),
    }
