"""The layers before the GRU: gathering of observations, the first layer, and its products for the gates."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.policies.kernel.compiling import compiled
from components.policies.kernel.product import (
    GROUP,
    add,
    add_outer,
    add_outer_sparse,
    add_sparse,
    any_nonzero,
    room,
)
from components.policies.kernel.scalars import ZERO
from components.policies.kernel.tile import ROWS

Floats = NDArray[np.floating[Any]]


@compiled
def collect(
    of: Floats,
    frames: NDArray[np.int64],
    blocks: NDArray[np.int64],
    asked: NDArray[np.int64],
    first: int,
    last: int,
    last_actions: NDArray[np.int64],
    n_pairs: int,
    obs: Floats,
    pairs: NDArray[np.int64],
    picks: NDArray[np.int64],
) -> int:
    """Gather the observations of a part that are not all zeros, and the place of each row's input; return L.

    Args:
        of: (…, A, O), frames of a batch.
        frames: (F,), numbers of the packed frames, in packed order.
        blocks: (T,), frames at time 0, 1, 2, …
        asked: (T,), number of them, from the first, that are read; others are treated as all zeros.
        first: the part's first frame of each block.
        last: the end of the part's frames of each block; a shorter block ends before.
        last_actions: (F * A,), -1 for none.
        n_pairs: P.
        obs: (at least L, O), filled.
        pairs: (at least L,), filled with (last action + 1) * A + agent of each living row.
        picks: (F * A,), filled in the part's rows: P + l for its l-th living row, and the pair for any other.
    """
    n_agents, size = of.shape[1], of.shape[2]
    living = start = 0
    for t in range(len(blocks)):
        for frame in range(start + first, start + min(last, blocks[t])):
            looked_at = frame < start + asked[t]
            for agent in range(n_agents):
                row = frame * n_agents + agent
                pair = (last_actions[row] + 1) * n_agents + agent
                picks[row] = pair
                if looked_at:
                    seen = of[frames[frame], agent]
                    if any_nonzero(seen):
                        kept = obs[living]
                        for k in range(size):
                            kept[k] = seen[k]
                        pairs[living] = pair
                        picks[row] = n_pairs + living
                        living += 1
        start += blocks[t]
    return living


@compiled
def used_pairs(
    picks: NDArray[np.int64],
    blocks: NDArray[np.int64],
    asked: NDArray[np.int64],
    first: int,
    last: int,
    n_pairs: int,
) -> NDArray[np.int64]:
    """Return the pairs of a part's rows that are not living, each once and ascending.

    Args:
        picks: (R,), below P for a row that is not living.
        blocks: (T,), rows of step 0, 1, 2, …
        asked: (T,), number of them, from the first, that count.
        first: the part's first row of each block.
        last: the end of the part's rows of each block; a shorter block ends before.
        n_pairs: P.
    """
    used = np.zeros(n_pairs, np.bool_)
    start = 0
    for t in range(len(blocks)):
        for row in range(start + first, start + min(last, asked[t])):
            if picks[row] < n_pairs:
                used[picks[row]] = True
        start += blocks[t]
    return np.flatnonzero(used)


@compiled
def embed(
    obs: Floats,
    pairs: NDArray[np.int64],
    used: NDArray[np.int64],
    table: Floats,
    obs_panels: Floats,
    x_panels: Floats,
    bias: Floats,
    x: Floats,
    of_x: Floats,
) -> None:
    """Fill `x` (P + L, H) with the GRU's distinct inputs, and `of_x` (P + L, 3H) with their products for its gates.

    The inputs are relu(table) in the rows `used`, and below the first P rows relu(obs W + table[pairs]).

    Args:
        obs: (L, O).
        pairs: (L,), rows of `table`.
        used: from `used_pairs`.
        table: (P, H) with `room`'s padding of columns.
        obs_panels: panels of the weights (O, H).
        x_panels: panels of the weights (H, 3H) of the gates.
        bias: (3H,) and padding, bias of the gates.
        x: `room` for P + L rows.
        of_x: `room` for P + L rows.
    """
    n_pairs, columns = len(table), np.empty(obs.shape[1] + ROWS, np.int64)
    x_of_pairs, of_pairs = room(GROUP, table.shape[1], table), room(GROUP, of_x.shape[1], table)
    for start in range(0, len(used), GROUP):
        group = used[start : start + GROUP]
        for i in range(len(group)):
            x_of_pairs[i] = table[group[i]]
        _pass_on(x_of_pairs, 0, len(group), x_panels, bias, of_pairs)
        for i in range(len(group)):
            x[group[i]] = x_of_pairs[i]
            of_x[group[i]] = of_pairs[i]
    for start in range(0, len(pairs), GROUP):
        rows = min(GROUP, len(pairs) - start)
        for i in range(start, start + rows):
            x[n_pairs + i] = table[pairs[i]]
        add_sparse(obs, start, rows, obs_panels, columns, x, n_pairs + start)
        _pass_on(x, n_pairs + start, rows, x_panels, bias, of_x)


@compiled
def _pass_on(x: Floats, start: int, rows: int, x_panels: Floats, bias: Floats, of_x: Floats) -> None:
    for i in range(start, start + rows):
        of_x[i] = bias
        out = x[i]
        for j in range(len(out)):
            out[j] = max(out[j], ZERO)
    add(x, start, rows, x_panels, of_x, start)


@compiled
def embed_back(
    d_of_x: Floats,
    obs: Floats,
    pairs: NDArray[np.int64],
    used: NDArray[np.int64],
    x: Floats,
    back_panels: Floats,
    d_table: Floats,
    d_w_obs: Floats,
    d_w_x: Floats,
    d_b_x: Floats,
) -> None:
    """Backpropagate through `embed`, and add to the gradients.

    Args:
        d_of_x: (P + L, 3H).
        obs: (L, O).
        pairs: (L,).
        used: as in `embed`.
        x: as `embed` filled it.
        back_panels: panels of the weights (3H, H) of the gates.
        d_table: (P, H) with padding.
        d_w_obs: (O, H) in `room`.
        d_w_x: (3H, H) in `room`.
        d_b_x: (3H,).
    """
    n_pairs, columns, size = len(d_table), d_of_x.shape[1], d_of_x.shape[1] // 3
    beside, d_x = room(GROUP, x.shape[1], x), room(GROUP, size, x)
    listed = np.empty(obs.shape[1] + ROWS, np.int64)
    x_of_pairs, d_of_pairs = room(GROUP, x.shape[1], x), np.empty((GROUP, columns), x.dtype)
    for start in range(0, len(used), GROUP):
        group = used[start : start + GROUP]
        for i in range(len(group)):
            x_of_pairs[i] = x[group[i]]
            d_of_pairs[i] = d_of_x[group[i]]
        _pass_back(d_of_pairs, x_of_pairs, 0, group, back_panels, d_x, beside, d_table, d_w_x, d_b_x)
    for start in range(0, len(pairs), GROUP):
        group = pairs[start : start + GROUP]
        _pass_back(d_of_x, x, n_pairs + start, group, back_panels, d_x, beside, d_table, d_w_x, d_b_x)
        add_outer_sparse(obs, start, len(group), d_x, listed, d_w_obs)


@compiled
def _pass_back(
    d_of_x: Floats,
    x: Floats,
    start: int,
    group: NDArray[np.int64],
    back_panels: Floats,
    d_x: Floats,
    beside: Floats,
    d_table: Floats,
    d_w_x: Floats,
    d_b_x: Floats,
) -> None:
    """Backpropagate through `_pass_on` for the rows from `start`, whose pairs are `group`.

    Fill `d_x` (GROUP, H), and add to the gradients of the table and of the gates' weights.
    """
    rows, columns, size = len(group), d_of_x.shape[1], d_of_x.shape[1] // 3
    of_b = np.zeros_like(d_b_x)  # the sum over a group, to reduce rounding errors
    d_x[:] = ZERO
    add(d_of_x, start, rows, back_panels, d_x, 0)
    for i in range(rows):
        d_sum, values, told, total = d_x[i], x[start + i], d_of_x[start + i], d_table[group[i]]
        for j in range(columns):
            of_b[j] += told[j]
        for j in range(size):
            passed = d_sum[j] if values[j] > ZERO else ZERO
            d_sum[j] = passed
            total[j] += passed
    d_b_x += of_b
    add_outer(d_of_x, start, columns, x, start, rows, beside, d_w_x)
