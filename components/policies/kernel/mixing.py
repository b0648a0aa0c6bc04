"""The mixing network of QMIX, over a range of steps, a group of steps at a time, which fits into the cache."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.policies.kernel.compiling import compiled, compiled_sums
from components.policies.kernel.product import (
    GROUP,
    add,
    add_outer,
    add_outer_sparse,
    add_sparse,
    panels_of,
    room,
    transpose,
)
from components.policies.kernel.scalars import ONE, ZERO, exponential, sign
from components.policies.kernel.tile import ROWS

Floats = NDArray[np.floating[Any]]
Panels = tuple[Floats, ...]


@compiled
def packed_mixer(w_first: Floats, w_w_1: Floats, w_w_2: Floats) -> Panels:
    """Return the panels of the weights for `mix`.

    Args:
        w_first: (2K + 2M, S), weights of the first layers of all hypernetworks: for W_1, w_2, v and b_1.
        w_w_1: (A * M, K), weights of the second layer for W_1.
        w_w_2: (M, K), weights of the second layer for w_2.
    """
    return panels_of(w_first.T), panels_of(w_w_1.T), panels_of(w_w_2.T)


@compiled
def packed_mixer_back(w_w_1: Floats, w_w_2: Floats) -> Panels:
    """Return the panels of the weights for `mix_back`."""
    return panels_of(w_w_1), panels_of(w_w_2)


@compiled
def mix(
    q: Floats,
    state: Floats,
    first: int,
    last: int,
    panels: Panels,
    b_first: Floats,
    b_w_1: Floats,
    b_w_2: Floats,
    v: Floats,
    b_v: Floats,
    hyper: Floats,
    w_1: Floats,
    w_2: Floats,
    mixed: Floats,
    keeps: bool,
    total: Floats,
) -> None:
    """Mix like `MonotonicMixer`: total = |w_2| · ELU(|W_1| q + b_1) + v · relu(for v) + b_v.

    Args:
        q: (N, A).
        state: (N, S).
        first: the first step to mix.
        last: the end of the steps to mix.
        panels: from `packed_mixer`.
        b_first: (2K + 2M,).
        b_w_1: (A * M,).
        b_w_2: (M,).
        v: (1, M).
        b_v: (1,).
        hyper: `room` for N rows of 2K + 2M columns, filled with the output of the first layers. Unless `keeps`, it and
            the next three have room for a GROUP of rows only.
        w_1: `room` for rows of A * M columns, filled.
        w_2: `room` for rows of M columns, filled.
        mixed: rows of M columns, filled with the ELU.
        keeps: True to keep these for all steps.
        total: (N, 1), filled.
    """
    first_panels, panels_1, panels_2 = panels
    embed, k = len(b_w_2), panels_2.shape[1]
    columns = np.empty(state.shape[1] + ROWS, np.int64)
    for start in range(first, last, GROUP):
        rows = min(GROUP, last - start)
        at = start if keeps else 0
        for i in range(at, at + rows):
            hyper[i, : len(b_first)] = b_first
            w_1[i, : len(b_w_1)] = b_w_1
            w_2[i, :embed] = b_w_2
        add_sparse(state, start, rows, first_panels, columns, hyper, at)
        for i in range(at, at + rows):
            said = hyper[i]
            for j in range(2 * k + embed):
                said[j] = max(said[j], ZERO)
        add(hyper, at, rows, panels_1, w_1, at)
        add(hyper[:, k:], at, rows, panels_2, w_2, at)
        _mix_rows(
            q[start : start + rows],
            hyper[at:, 2 * k :],
            w_1[at:],
            w_2[at:],
            v[0],
            b_v[0],
            mixed[at:],
            total[start : start + rows],
        )


@compiled_sums
def _mix_rows(
    q: Floats, hyper: Floats, w_1: Floats, w_2: Floats, v: Floats, b_v: float, mixed: Floats, total: Floats
) -> None:
    """Fill `mixed` (…, M) and `total` (R, 1); `hyper` begins with the input of v, followed by b_1."""
    n_agents, embed = q.shape[1], len(v)
    for i in range(len(q)):
        said, weights, last, out = hyper[i], w_1[i], w_2[i], mixed[i]
        for j in range(embed):
            out[j] = said[embed + j]
        for a in range(n_agents):
            for j in range(embed):
                out[j] += abs(weights[a * embed + j]) * q[i, a]
        for j in range(embed):
            below = exponential(out[j]) - ONE
            out[j] = out[j] if out[j] > ZERO else below
        summed = ZERO * v[0]
        for j in range(embed):
            summed += abs(last[j]) * out[j] + said[j] * v[j]
        total[i, 0] = summed + b_v


@compiled
def mix_back(
    d_total: Floats,
    q: Floats,
    state: Floats,
    first: int,
    last: int,
    panels: Panels,
    v: Floats,
    hyper: Floats,
    w_1: Floats,
    w_2: Floats,
    mixed: Floats,
    d_q: Floats,
    d_w_first: Floats,
    d_b_first: Floats,
    d_w_w_1: Floats,
    d_b_w_1: Floats,
    d_w_w_2: Floats,
    d_b_w_2: Floats,
    d_v: Floats,
    d_b_v: Floats,
) -> None:
    """Backpropagate through `mix`: fill `d_q` in these steps, and the gradients from `d_w_first` on with their share.

    `panels` are from `packed_mixer_back`. `w_1` and `w_2` are overwritten. Other arguments are those of `mix`.
    """
    (embed, k), n_1 = d_w_w_2.shape, len(d_w_w_1)
    columns = 2 * k + 2 * embed
    panels_1, panels_2 = panels
    d_hyper, of_1, of_2 = room(GROUP, columns, q), room(GROUP, k, q), room(GROUP, k, q)
    beside, listed = room(GROUP, k, q), np.empty(state.shape[1] + ROWS, np.int64)
    of_first, of_w_1, of_w_2 = room(state.shape[1], columns, q), room(n_1, k, q), room(embed, k, q)
    of_b_first, of_b_1, of_b_2 = np.empty_like(d_b_first), np.empty_like(d_b_w_1), np.empty_like(d_b_w_2)
    d_b_first[:] = ZERO
    d_b_w_1[:] = ZERO
    d_b_w_2[:] = ZERO
    d_v[:] = ZERO
    d_b_v[:] = ZERO
    for start in range(first, last, GROUP):
        rows = min(GROUP, last - start)
        stop = start + rows
        _mix_rows_back(
            d_total[start:stop],
            q[start:stop],
            hyper[start:stop, 2 * k :],
            w_1[start:stop],
            w_2[start:stop],
            v[0],
            mixed[start:stop],
            d_q[start:stop],
            d_hyper[:, 2 * k :],
            d_v[0],
        )
        for zeros in (of_1, of_2):
            zeros[:] = ZERO
        for sums in (of_b_first, of_b_1, of_b_2):  # over a group, to reduce rounding errors
            sums[:] = ZERO
        add(w_1, start, rows, panels_1, of_1, 0)
        add(w_2, start, rows, panels_2, of_2, 0)
        for i in range(rows):
            said, told, one, two = hyper[start + i], d_hyper[i], of_1[i], of_2[i]
            for j in range(k):
                told[j] = one[j] if said[j] > ZERO else ZERO
                told[k + j] = two[j] if said[k + j] > ZERO else ZERO
            for j in range(columns):
                of_b_first[j] += told[j]
            d_1, d_2 = w_1[start + i], w_2[start + i]
            for j in range(n_1):
                of_b_1[j] += d_1[j]
            for j in range(embed):
                of_b_2[j] += d_2[j]
            d_b_v[0] += d_total[start + i, 0]
        d_b_first += of_b_first
        d_b_w_1 += of_b_1
        d_b_w_2 += of_b_2
        add_outer_sparse(state, start, rows, d_hyper, listed, of_first)
        add_outer(w_1, start, n_1, hyper[:, :k], start, rows, beside, of_w_1)
        add_outer(w_2, start, embed, hyper[:, k : 2 * k], start, rows, beside, of_w_2)
    transpose(of_first, d_w_first)
    d_w_w_1[:] = of_w_1[:n_1, :k]
    d_w_w_2[:] = of_w_2[:embed, :k]


@compiled_sums
def _mix_rows_back(
    d_total: Floats,
    q: Floats,
    hyper: Floats,
    w_1: Floats,
    w_2: Floats,
    v: Floats,
    mixed: Floats,
    d_q: Floats,
    d_hyper: Floats,
    d_v: Floats,
) -> None:
    """Fill `d_q` and `d_hyper`, replace `w_1` and `w_2` by their gradients, and add to `d_v`; see `_mix_rows`."""
    n_agents, embed = q.shape[1], len(v)
    for i in range(len(q)):
        d = d_total[i, 0]
        said, weights, last, out, d_said = hyper[i], w_1[i], w_2[i], mixed[i], d_hyper[i]
        for j in range(embed):
            slope = ONE if out[j] > ZERO else out[j] + ONE
            d_said[embed + j] = d * abs(last[j]) * slope
            last[j] = d * out[j] * sign(last[j])
        for a in range(n_agents):
            summed = ZERO * d
            for j in range(embed):
                passed, weight = d_said[embed + j], weights[a * embed + j]
                summed += passed * abs(weight)
                weights[a * embed + j] = passed * q[i, a] * sign(weight)
            d_q[i, a] = summed
        for j in range(embed):
            d_v[j] += d * said[j]
            d_said[j] = d * v[j] if said[j] > ZERO else ZERO
