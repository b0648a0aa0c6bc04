"""The GRU, over all steps of a batch: its products are made a group of rows at a time, which the cache holds."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.policies.kernel.compiling import compiled
from components.policies.kernel.product import GROUP, add, add_outer
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
    hidden: Floats,
    gates: Floats,
    keeps: bool,
    of_h: Floats,
) -> None:
    """Run a GRU: r, z = sigmoid(x + h + b); g = h + b; n = tanh(x + b + r g); h' = n + z (h - n).

    Args:
        of_x: (C, 3H), products of the inputs with the weights of r, z, n.
        picks: (R,), the row of `of_x` of every row.
        panels: of the weights (H, 3H) of r, z, g that the hidden states are multiplied with.
        bias: (4H,), of r, z, n, g.
        blocks: (T,), rows of step 0, 1, 2, …
        asked: (T,), how many of them, from the first, are asked for; the others' hidden states are made zeros.
        hidden: (R, H), filled.
        gates: (R, at least 4H), filled with r, z, g, n; unless `keeps`, (GROUP, at least 4H), overwritten by each
            group.
        keeps: whether the gates are wanted.
        of_h: `room` for the products of a GROUP.
    """
    size = hidden.shape[1]
    none = np.zeros_like(hidden[0])
    start = before = 0
    for t in range(len(blocks)):
        for first in range(0, asked[t], GROUP):
            rows = min(GROUP, asked[t] - first)
            of_h[:] = ZERO
            if t > 0:
                add(hidden, before + first, rows, panels, of_h, 0)
            for i in range(rows):
                row = start + first + i
                x, h, b = of_x[picks[row]], of_h[i], none if t == 0 else hidden[before + first + i]
                out, kept = hidden[row], gates[row if keeps else i]
                for j in range(size):
                    r = sigmoid(x[j] + h[j] + bias[j])
                    z = sigmoid(x[size + j] + h[size + j] + bias[size + j])
                    g = h[2 * size + j] + bias[3 * size + j]
                    n = TWO * sigmoid(TWO * (x[2 * size + j] + bias[2 * size + j] + r * g)) - ONE
                    out[j] = n + z * (b[j] - n)
                    kept[j] = r
                    kept[size + j] = z
                    kept[2 * size + j] = g
                    kept[3 * size + j] = n
        hidden[start + asked[t] : start + blocks[t]] = ZERO
        before = start
        start += blocks[t]


@compiled
def unroll_back(
    d_hidden: Floats,
    gates: Floats,
    hidden: Floats,
    panels: Floats,
    blocks: NDArray[np.int64],
    asked: NDArray[np.int64],
    d_of_x: Floats,
    picks: NDArray[np.int64],
    carry: Floats,
    beside: Floats,
    d_w_h: Floats,
) -> None:
    """Go back through `unroll`.

    Args:
        d_hidden: (R, H), gradients of the hidden states from the later layers.
        gates: (R, at least 4H), r, z, g, n; the first three are overwritten with their gradients before the
            non-linearity.
        hidden: (R, H).
        panels: of the weights (3H, H) of r, z, g.
        blocks: (T,), rows of step 0, 1, 2, …
        asked: (T,), how many of them, from the first, were asked for; the gates of the others are made zeros.
        d_of_x: (C, 3H), to whose rows the gradients of r, z, n before their non-linearity are added.
        picks: (R,), the row of `d_of_x` of every row.
        carry: `room` for the rows of the first step: gradients that a step passes to the hidden states before it.
        beside: `room` for a GROUP of hidden states.
        d_w_h: (3H, H) in `room`, to which the gradient of the weights is added.
    """
    size = hidden.shape[1]
    none = np.zeros_like(hidden[0])
    start = len(hidden)
    went_on = 0
    for t in range(len(blocks) - 1, -1, -1):
        start -= blocks[t]
        before = start - blocks[max(t - 1, 0)]
        gates[start + asked[t] : start + blocks[t]] = ZERO
        for first in range(0, asked[t], GROUP):
            rows = min(GROUP, asked[t] - first)
            for i in range(rows):
                row = start + first + i
                told, c, b, kept = (
                    d_hidden[row],
                    carry[first + i],
                    none if t == 0 else hidden[before + first + i],
                    gates[row],
                )
                d_x = d_of_x[picks[row]]
                if first + i >= went_on:
                    for j in range(size):
                        c[j] = ZERO
                for j in range(size):
                    r, z, g, n, h = kept[j], kept[size + j], kept[2 * size + j], kept[3 * size + j], b[j]
                    d_h = told[j] + c[j]
                    d_n = d_h * (ONE - z) * (ONE - n * n)
                    d_r = d_n * g * r * (ONE - r)
                    d_z = d_h * (h - n) * z * (ONE - z)
                    c[j] = d_h * z
                    kept[j] = d_r
                    kept[size + j] = d_z
                    kept[2 * size + j] = d_n * r
                    d_x[j] += d_r
                    d_x[size + j] += d_z
                    d_x[2 * size + j] += d_n
            if t > 0:
                add_outer(gates, start + first, 3 * size, hidden, before + first, rows, beside, d_w_h)
                add(gates, start + first, rows, panels, carry, first)
        went_on = asked[t]
