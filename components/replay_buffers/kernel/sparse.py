"""Sparse frames: a bit for each number of a frame, and the numbers that are not zero, one after the other.

Numbers are compared as integers, so every float is restored bit for bit: -0.0 and NaN are not zero.

Sizes: F frames, N numbers of a frame, G = N / LANES, rounded up, V values, E segments.
"""

import numpy as np
from numpy.typing import NDArray

from components.replay_buffers.kernel import LANES
from components.replay_buffers.kernel.compiling import CODE, compiled
from components.replay_buffers.kernel.lanes import bits_of, gather_lanes, ones, scatter_lanes

Numbers = NDArray[np.uint32]
Bits = NDArray[np.uint16]


@compiled
def encode(numbers: Numbers, bits: Bits, values: Numbers) -> int:
    """Fill `bits` (F, G) and `values` with those of `numbers` (F, N) that are not zero; return how many they are.

    `values` has room for F N + LANES; what follows the returned number is overwritten with any numbers.
    """
    n, n_whole, k = numbers.shape[1], numbers.shape[1] // LANES, 0
    for f in range(len(numbers)):
        of, to = numbers[f], bits[f]
        for g in range(n_whole):
            word = bits_of(of, g * LANES)
            to[g] = word
            gather_lanes(of, g * LANES, word, values, k)
            k += ones(word)
        if n_whole < len(to):
            word = 0
            for j in range(n_whole * LANES, n):
                values[k] = of[j]
                if of[j] != 0:
                    word |= 1 << (j - n_whole * LANES)
                    k += 1
            to[n_whole] = word
    return k


@compiled
def count(bits: Bits, counts: NDArray[np.int64]) -> None:
    """Fill `counts` (F,) with the number of values of each frame."""
    for f in range(len(bits)):
        k = 0
        for g in range(bits.shape[1]):
            k += ones(np.int64(bits[f, g]))
        counts[f] = k


@compiled
def decode(bits: Bits, values: Numbers, segments: NDArray[np.int64], out: Numbers) -> None:
    """Fill rows of `out` (…, N) with frames of segments.

    Args:
        bits: (F, G), a ring.
        values: (V,), a ring.
        segments: (E, 5), of each segment its first row in `out`, the row of `bits` and the place in `values` where its
            item begins, the frames of the item before it, and its own.
        out: filled.
    """
    n_frames, n_values, n, n_whole = len(bits), len(values), out.shape[1], out.shape[1] // LANES
    for s in range(len(segments)):
        to, start, k, n_before, n_own = segments[s]
        for f in range(n_before):
            before = bits[(start + f) % n_frames]
            for g in range(len(before)):
                k += ones(np.int64(before[g]))
        k %= n_values
        for f in range(n_own):
            own, row = bits[(start + n_before + f) % n_frames], out[to + f]
            for g in range(len(own)):
                word = np.int64(own[g])
                many = ones(word)
                if g < n_whole and k + many < n_values:
                    scatter_lanes(values, k, word, row, g * LANES)
                    k += many
                    continue
                for j in range(g * LANES, min((g + 1) * LANES, n)):
                    row[j] = 0
                    if (word >> (j - g * LANES)) & 1:
                        row[j] = values[k]
                        k = k + 1 if k + 1 < n_values else 0


def prepare() -> None:
    """Compile every function, or load it from the cache."""
    CODE.compile_once("the loops of the replay buffer", {"encode, count, decode": _call})


def _call() -> None:
    numbers, values = np.zeros((1, LANES + 1), np.uint32), np.zeros(2 * LANES, np.uint32)
    bits = np.zeros((1, 2), np.uint16)
    encode(numbers, bits, values)
    count(bits, np.zeros(1, np.int64))
    decode(bits, values, np.zeros((1, 5), np.int64), numbers)
