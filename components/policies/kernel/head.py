"""The last layer of the agents' network."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.policies.kernel.compiling import compiled
from components.policies.kernel.product import GROUP, add
from components.policies.kernel.scalars import ZERO

Floats = NDArray[np.floating[Any]]


@compiled
def say(hidden: Floats, panels: Floats, bias: Floats, sums: Floats, q: Floats) -> None:
    """Fill `q` (R, U) with the output of the last layer for `hidden` (R, H).

    Args:
        hidden: (R, H).
        panels: of its weights (H, U).
        bias: (U,).
        sums: `room` for the products of a GROUP.
        q: (R, U), filled.
    """
    for start in range(0, len(hidden), GROUP):
        rows = min(GROUP, len(hidden) - start)
        sums[:] = ZERO
        add(hidden, start, rows, panels, sums, 0)
        for i in range(rows):
            said, out = sums[i], q[start + i]
            for j in range(len(bias)):
                out[j] = said[j] + bias[j]


@compiled
def say_back(d_q: Floats, hidden: Floats, w: Floats, d_hidden: Floats, d_w: Floats, d_b: Floats) -> None:
    """Go back through `say`: fill `d_hidden` (R, H), and add to `d_w` (U, H) and `d_b` (U,).

    Of most rows of `d_q` (R, U) one element is not zero, that of the action taken: a product of matrices would do U
    times the arithmetic.
    """
    size = hidden.shape[1]
    for i in range(len(d_q)):
        told, out, unit = d_q[i], d_hidden[i], hidden[i]
        out[:] = ZERO
        for u in range(len(d_b)):
            d = told[u]
            if d != ZERO:
                weights, total = w[u], d_w[u]
                for j in range(size):
                    out[j] += d * weights[j]
                    total[j] += d * unit[j]
                d_b[u] += d
