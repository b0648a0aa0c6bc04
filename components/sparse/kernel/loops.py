"""Sparse frames: a bit for each number of a frame that differs from the frame before, and the differences.

The frame before an item's first one is all zeros, so numbers that are zero and stay zero need a bit only. A difference
is the exclusive or of both numbers' bits: every float is restored bit for bit, -0.0 and NaN, too. A frame can be read
only after those before it.

Sizes: F frames, N numbers of a frame, G = N / LANES, rounded up, V values, E items or segments of them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.sparse.kernel import LANES
from components.sparse.kernel.compiling import CODE, compiled
from components.sparse.kernel.lanes import bits_of, gather_lanes, ones, scatter_lanes

Numbers = NDArray[np.uint32]
Bits = NDArray[np.uint16]


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view of an array that is only read: numba compiles a function for those and for others separately."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


@compiled
def encode(numbers: Numbers, items: NDArray[np.int64], nothing: Numbers, bits: Bits, values: Numbers) -> None:
    """Fill `bits` and `values` with the differences in items, one after another.

    Args:
        numbers: (…, N), read-only.
        items: (E, 2), of each item its first row in `numbers`, and its frames; these are replaced by the number of its
            differences.
        nothing: (N,), zeros, read-only.
        bits: (F, G), filled.
        values: room for F N + LANES, filled; what follows the differences is overwritten with any numbers.
    """
    n, n_whole, k, f = numbers.shape[1], numbers.shape[1] // LANES, 0, 0
    for i in range(len(items)):
        before, first, row = nothing, k, items[i, 0]
        for t in range(items[i, 1]):
            of, to = numbers[row + t], bits[f]
            for g in range(n_whole):
                word = bits_of(of, before, g * LANES)
                to[g] = word
                gather_lanes(of, before, g * LANES, word, values, k)
                k += ones(word)
            if n_whole < len(to):
                word = 0
                for j in range(n_whole * LANES, n):
                    values[k] = of[j] ^ before[j]
                    if of[j] != before[j]:
                        word |= 1 << (j - n_whole * LANES)
                        k += 1
                to[n_whole] = word
            before = of
            f += 1
        items[i, 1] = k - first


@compiled
def count(bits: Bits, pieces: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
    """Fill `counts` (E,) with the number of values of pieces of so many rows of `bits` (F, G), which are read-only."""
    f = 0
    for i in range(len(pieces)):
        k = 0
        for _ in range(pieces[i]):
            for g in range(bits.shape[1]):
                k += ones(np.int64(bits[f, g]))
            f += 1
        counts[i] = k


@compiled
def decode(bits: Bits, values: Numbers, segments: NDArray[np.int64], before: Numbers, out: Numbers) -> None:
    """Fill rows of `out` (…, N) with frames of segments.

    Args:
        bits: (F, G), a ring, read-only.
        values: (V,), a ring, read-only.
        segments: (E, 5), of each segment its first row in `out`, the row of `bits` and the place in `values` where its
            item begins, the frames of the item before it, and its own.
        before: (N,), overwritten.
        out: filled.
    """
    n_frames = len(bits)
    for s in range(len(segments)):
        to, start, k, n_before, n_own = segments[s]
        before[:] = 0
        for f in range(n_before):
            k = _apply(bits[(start + f) % n_frames], values, k, before, before)
        last = before
        for f in range(n_own):
            row = out[to + f]
            k = _apply(bits[(start + n_before + f) % n_frames], values, k, last, row)
            last = row


@compiled
def _apply(bits: NDArray[np.uint16], values: Numbers, k: int, before: Numbers, out: Numbers) -> int:
    """Fill `out` (N,) with the frame after `before` (N,), whose values begin at place `k`; return where they end."""
    n, n_values = len(out), len(values)
    n_whole = n // LANES if k + n < n_values else 0
    for g in range(n_whole):
        word = np.int64(bits[g])
        scatter_lanes(values, k, word, before, out, g * LANES)
        k += ones(word)
    for g in range(n_whole, len(bits)):
        word = np.int64(bits[g])
        for j in range(g * LANES, min((g + 1) * LANES, n)):
            number = before[j]
            if (word >> (j - g * LANES)) & 1:
                number ^= values[k]
                k = k + 1 if k + 1 < n_values else 0
            out[j] = number
    return k


def prepare() -> None:
    """Compile every function, or load it from the cache."""
    CODE.compile_once("the loops of sparse fields", {"encode, count, decode": _call})


def load() -> None:
    """Load every function into this process, compiled at need."""
    prepare()
    _call()


def _call() -> None:
    n = LANES + 1
    out, before, values = np.zeros((1, n), np.uint32), np.zeros(n, np.uint32), np.zeros(2 * n, np.uint32)
    bits, items = np.zeros((1, 2), np.uint16), np.array([[0, 1]])
    encode(read_only(out), items, read_only(before), bits, values)
    count(read_only(bits), np.ones(1, np.int64), np.zeros(1, np.int64))
    decode(read_only(bits), read_only(values), np.zeros((1, 5), np.int64), before, out)
