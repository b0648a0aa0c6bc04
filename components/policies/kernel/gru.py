"""The GRU and the last layer, over all steps of a part, a group of rows at a time, which fits into the cache."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.policies.kernel.compiling import compiled, compiled_sums
from components.policies.kernel.product import GROUP, add, add_outer, room
from components.policies.kernel.scalars import ONE, TWO, ZERO, sigmoid

Floats = NDArray[np.floating[Any]]


@compiled
def unroll(
    of_x: Floats,
    picks: NDArray[np.int64],
    panels: Floats,
    bias: Floats,
    blocks: NDArray[np.int64],
    asked: NDArray[np.int64],
    first: int,
    last: int,
    head: Floats,
    head_panels: Floats,
    head_bias: Floats,
    only: NDArray[np.int64],
    hidden: Floats,
    gates: Floats,
    keeps: bool,
    q: Floats,
) -> None:
    """Run a GRU: r, z = sigmoid(x + h); g = h + b; n = tanh(x + r g); h' = n + z (h - n); and q = W h' + b.

    Args:
        of_x: (C, 3H), the inputs' terms of r, z and n, including biases.
        picks: (R,), the row of `of_x` for every row.
        panels: panels of the weights (H, 3H) by which hidden states are multiplied, for r, z, g.
        bias: (H,), bias of g.
        blocks: (T,), rows of step 0, 1, 2, …
        asked: (T,), number of them, from the first, whose outputs are used; the output of others is the last bias.
        first: the part's first row of each block.
        last: the end of the part's rows of each block; a shorter block ends before.
        head: (U, H), weights of the last layer.
        head_panels: panels of its transpose (H, U).
        head_bias: (U,).
        only: (R,), the one output that is computed of each row, or -1 for none; (0,) to compute all.
        hidden: (R, H), filled; unless `keeps`, (2 B, H) for B rows of step 0, overwritten by each step.
        gates: (R, at least 4H), filled with r, z, g, n, if `keeps`.
        keeps: True to keep all hidden states and gates.
        q: (R, U), filled; with `only`, (R, at least 1), whose first column is filled.
    """
    size = hidden.shape[1]
    none, unkept = np.zeros_like(hidden[0]), np.empty((1, 4 * size), hidden.dtype)
    of_h, said = room(GROUP, 3 * size, hidden), room(GROUP, len(head_bias), hidden)
    start = before = 0
    for t in range(len(blocks)):
        here = start if keeps else t % 2 * blocks[0]
        stop = min(last, asked[t])
        for group in range(first, stop, GROUP):
            rows = min(GROUP, stop - group)
            for i in range(rows):
                of_h[i, : 2 * size] = ZERO
                of_h[i, 2 * size : 3 * size] = bias
            if t > 0:
                add(hidden, before + group, rows, panels, of_h, 0)
            for i in range(rows):
                x, h, b = of_x[picks[start + group + i]], of_h[i], none if t == 0 else hidden[before + group + i]
                out, kept = hidden[here + group + i], gates[here + group + i] if keeps else unkept[0]
                for j in range(size):
                    r = sigmoid(x[j] + h[j])
                    z = sigmoid(x[size + j] + h[size + j])
                    g = h[2 * size + j]
                    n = TWO * sigmoid(TWO * (x[2 * size + j] + r * g)) - ONE
                    out[j] = n + z * (b[j] - n)
                    kept[j] = r
                    kept[size + j] = z
                    kept[2 * size + j] = g
                    kept[3 * size + j] = n
            if len(only) > 0:
                for i in range(rows):
                    row = start + group + i
                    u = only[row]
                    q[row, 0] = _output(head[u], hidden[here + group + i], head_bias[u]) if u >= 0 else ZERO
            else:
                for i in range(rows):
                    said[i, : len(head_bias)] = head_bias
                add(hidden, here + group, rows, head_panels, said, 0)
                for i in range(rows):
                    q[start + group + i] = said[i, : len(head_bias)]
        for row in range(max(first, stop), min(last, blocks[t])):
            if len(only) > 0:
                q[start + row, 0] = ZERO
            else:
                q[start + row] = head_bias
        before = here
        start += blocks[t]


@compiled_sums
def _output(weights: Floats, hidden: Floats, bias: float) -> Any:
    """Return one output of the last layer."""
    total = ZERO * bias
    for j in range(len(weights)):
        total += weights[j] * hidden[j]
    return total + bias


@compiled
def unroll_back(
    d_q: Floats,
    only: NDArray[np.int64],
    gates: Floats,
    hidden: Floats,
    panels: Floats,
    blocks: NDArray[np.int64],
    asked: NDArray[np.int64],
    first: int,
    last: int,
    head: Floats,
    picks: NDArray[np.int64],
    n_pairs: int,
    d_of_x: Floats,
    d_w_h: Floats,
    d_b_g: Floats,
    d_head: Floats,
    d_head_bias: Floats,
) -> None:
    """Backpropagate through `unroll`.

    Most rows of `d_q` have one element that is not zero, that of the action taken. So the last layer skips zeros; a
    matrix product would do U times the arithmetic.

    Args:
        d_q: (R, U); with `only`, (R, at least 1), whose first column is read.
        only: (R,), the one output of each row that has a gradient, or -1 for none; (0,) if any may have one.
        gates: (R, at least 4H), r, z, g, n; the first three are overwritten with their gradients before the
            non-linearity.
        hidden: (R, H).
        panels: panels of the weights (3H, H) of r, z, g.
        blocks: (T,), rows of step 0, 1, 2, …
        asked: as in `unroll`.
        first: as in `unroll`.
        last: as in `unroll`.
        head: (U, H), weights of the last layer.
        picks: (R,), the row of `d_of_x` for every row.
        n_pairs: number of rows of `d_of_x`, from the first, that several rows share; any other row belongs to one.
        d_of_x: (C, 3H): gradients of r, z, n before their non-linearity; added up in the shared rows.
        d_w_h: (3H, H) in `room`; the gradient of the weights is added to it.
        d_b_g: (H,); the gradient of the bias of g is added to it.
        d_head: (U, H); the gradient of the last layer's weights is added to it.
        d_head_bias: (U,); the gradient of its bias is added to it.
    """
    size, one_each = hidden.shape[1], len(only) > 0
    none, told = np.zeros_like(hidden[0]), np.empty_like(hidden[0])
    # Sums over a group, then over groups, to reduce rounding errors.
    of_head, of_head_bias, of_g = np.empty_like(head), np.empty_like(d_head_bias), np.empty_like(d_b_g)
    carry, beside = room(max(last - first, 0), size, hidden), room(GROUP, size, hidden)
    start, went_on = blocks.sum(), 0
    for t in range(len(blocks) - 1, -1, -1):
        start -= blocks[t]
        before = start - blocks[max(t - 1, 0)]
        stop = min(last, asked[t])
        for group in range(first, stop, GROUP):
            rows = min(GROUP, stop - group)
            of_head[:] = ZERO
            of_head_bias[:] = ZERO
            of_g[:] = ZERO
            for i in range(rows):
                row, kept, c = start + group + i, gates[start + group + i], carry[group - first + i]
                told[:] = ZERO
                begin, end = (max(only[row], 0), only[row] + 1) if one_each else (0, len(d_head_bias))
                for u in range(begin, end):
                    d = d_q[row, 0 if one_each else u]
                    if d != ZERO:
                        weights, total, unit = head[u], of_head[u], hidden[row]
                        for j in range(size):
                            told[j] += d * weights[j]
                            total[j] += d * unit[j]
                        of_head_bias[u] += d
                if group + i < went_on:
                    for j in range(size):
                        told[j] += c[j]
                b = none if t == 0 else hidden[before + group + i]
                for j in range(size):
                    r, z, g, n, d_h = kept[j], kept[size + j], kept[2 * size + j], kept[3 * size + j], told[j]
                    d_n = d_h * (ONE - z) * (ONE - n * n)
                    d_g = d_n * r
                    c[j] = d_h * z
                    kept[j] = d_n * g * r * (ONE - r)
                    kept[size + j] = d_h * (b[j] - n) * z * (ONE - z)
                    kept[2 * size + j] = d_g
                    kept[3 * size + j] = d_n
                    of_g[j] += d_g
                d_x = d_of_x[picks[row]]
                if picks[row] < n_pairs:
                    for j in range(size):
                        d_x[j] += kept[j]
                        d_x[size + j] += kept[size + j]
                        d_x[2 * size + j] += kept[3 * size + j]
                else:
                    for j in range(size):
                        d_x[j] = kept[j]
                        d_x[size + j] = kept[size + j]
                        d_x[2 * size + j] = kept[3 * size + j]
            d_head += of_head
            d_head_bias += of_head_bias
            d_b_g += of_g
            if t > 0:
                add_outer(gates, start + group, 3 * size, hidden, before + group, rows, beside, d_w_h)
                add(gates, start + group, rows, panels, carry, group - first)
        went_on = asked[t]
