"""The mixing network of QMIX, given what its hypernetworks say."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.policies.kernel.compiling import compiled_sums
from components.policies.kernel.scalars import ONE, ZERO, exponential, sign

Floats = NDArray[np.floating[Any]]


@compiled_sums
def mix(q: Floats, first: Floats, w_1: Floats, w_2: Floats, v: Floats, mixed: Floats, total: Floats) -> None:
    """Mix as `MonotonicMixer` does: total = |w_2| · ELU(|W_1| q + b_1) + v · relu(for v).

    Args:
        q: (N, A).
        first: (N, …, M, M), output of the state's first layer; b_1 last, and the input of v before it.
        w_1: (N, A * M).
        w_2: (N, M).
        v: (M,).
        mixed: (N, M), filled with the ELU.
        total: (N, 1), filled.
    """
    n_agents, embed = q.shape[1], w_2.shape[1]
    at_b = first.shape[1] - embed
    at_v = at_b - embed
    for i in range(len(q)):
        said, weights, last, out = first[i], w_1[i], w_2[i], mixed[i]
        for j in range(embed):
            out[j] = said[at_b + j]
        for a in range(n_agents):
            for j in range(embed):
                out[j] += abs(weights[a * embed + j]) * q[i, a]
        for j in range(embed):
            below = exponential(out[j]) - ONE
            out[j] = out[j] if out[j] > ZERO else below
        summed = ZERO * v[0]
        for j in range(embed):
            summed += abs(last[j]) * out[j] + said[at_v + j] * v[j]
        total[i, 0] = summed


@compiled_sums
def mix_back(
    d_total: Floats,
    q: Floats,
    first: Floats,
    w_1: Floats,
    w_2: Floats,
    v: Floats,
    mixed: Floats,
    d_q: Floats,
    d_first: Floats,
    d_w_1: Floats,
    d_w_2: Floats,
    d_v: Floats,
) -> None:
    """Go back through `mix`: fill `d_q`, `d_w_1`, `d_w_2` and the last 2 M columns of `d_first`, and add to `d_v`."""
    n_agents, embed = q.shape[1], w_2.shape[1]
    at_b = first.shape[1] - embed
    at_v = at_b - embed
    for i in range(len(q)):
        d = d_total[i, 0]
        said, weights, last, out = first[i], w_1[i], w_2[i], mixed[i]
        d_said, d_weights, d_last = d_first[i], d_w_1[i], d_w_2[i]
        for j in range(embed):
            d_last[j] = d * out[j] * sign(last[j])
        for j in range(embed):
            slope = ONE if out[j] > ZERO else out[j] + ONE
            d_said[at_b + j] = d * abs(last[j]) * slope
        for a in range(n_agents):
            summed = ZERO * d
            for j in range(embed):
                passed, weight = d_said[at_b + j], weights[a * embed + j]
                summed += passed * abs(weight)
                d_weights[a * embed + j] = passed * q[i, a] * sign(weight)
            d_q[i, a] = summed
        for j in range(embed):
            d_v[j] += d * said[at_v + j]
            d_said[at_v + j] = d * v[j] if said[at_v + j] > ZERO else ZERO
