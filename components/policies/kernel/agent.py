"""The agents' whole network over a part of a batch, forward and backward: the work of one thread."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.policies.kernel.compiling import compiled
from components.policies.kernel.gru import unroll, unroll_back
from components.policies.kernel.inputs import embed, embed_back, used_pairs
from components.policies.kernel.product import panels_of, room, transpose
from components.policies.kernel.scalars import ZERO

Floats = NDArray[np.floating[Any]]
Panels = tuple[Floats, ...]


@compiled
def packed(w: Floats, w_x: Floats, w_h: Floats, head: Floats, n_obs: int) -> Panels:
    """Return the panels of the weights for `forward`: of `n_obs` observations, the GRU and the last layer."""
    return panels_of(w[:, :n_obs].T), panels_of(w_x.T), panels_of(w_h.T), panels_of(head.T)


@compiled
def packed_back(w_x: Floats, w_h: Floats) -> Panels:
    """Return the panels of the weights for `backward`."""
    return panels_of(w_x), panels_of(w_h)


@compiled
def forward(
    obs: Floats,
    pairs: NDArray[np.int64],
    picks: NDArray[np.int64],
    blocks: NDArray[np.int64],
    asked: NDArray[np.int64],
    first: int,
    last: int,
    n_agents: int,
    panels: Panels,
    w: Floats,
    b: Floats,
    b_x: Floats,
    b_h: Floats,
    head: Floats,
    head_bias: Floats,
    only: NDArray[np.int64],
    x: Floats,
    of_x: Floats,
    hidden: Floats,
    gates: Floats,
    keeps: bool,
    q: Floats,
) -> None:
    """Fill `q` (R, U) in the rows of a part, and fill `x`, `hidden` and `gates` for `backward`.

    Args:
        obs: (L, O), living rows of the part.
        pairs: (L,), the pair of last action and agent of each living row.
        picks: (R,), for every row of the batch: P + l for living row l of its part, and the pair for any other row.
        blocks: (T,), rows of step 0, 1, 2, …
        asked: (T,), number of rows of each step, from the first, whose outputs are used.
        first: the part's first row of each block.
        last: the end of the part's rows of each block; a shorter block ends before.
        n_agents: A.
        panels: from `packed`, for weights (3H, H) of the GRU with rows of r, z, n.
        w: (H, O + U + A), weights of the first layer.
        b: (H,), its bias.
        b_x: (3H,), biases of the GRU.
        b_h: (3H,).
        head: (U, H), weights of the last layer.
        head_bias: (U,).
        only: as in `unroll`.
        x: `room` for P + L rows of H columns.
        of_x: `room` for P + L rows of 3H columns.
        hidden: as in `unroll`.
        gates: as in `unroll`.
        keeps: as in `unroll`.
        q: as in `unroll`.
    """
    size, n_obs, n_actions = len(b), obs.shape[1], len(head_bias)
    table = room((n_actions + 1) * n_agents, size, w)[: (n_actions + 1) * n_agents]
    one_hot = w[:, n_obs:].T.copy()
    for action in range(n_actions + 1):
        for agent in range(n_agents):
            row, of_agent, of_action = table[action * n_agents + agent], one_hot[n_actions + agent], one_hot[action - 1]
            for j in range(size):
                row[j] = b[j] + of_agent[j]
                if action > 0:
                    row[j] += of_action[j]
    bias = room(0, 3 * size, w)[0]
    bias[: 3 * size] = b_x
    bias[: 2 * size] += b_h[: 2 * size]
    used = used_pairs(picks, blocks, asked, first, last, len(table))
    of_obs, of_inputs, of_hidden, of_head = panels
    embed(obs, pairs, used, table, of_obs, of_inputs, bias, x, of_x)
    unroll(
        of_x,
        picks,
        of_hidden,
        b_h[2 * size :],
        blocks,
        asked,
        first,
        last,
        head,
        of_head,
        head_bias,
        only,
        hidden,
        gates,
        keeps,
        q,
    )


@compiled
def backward(
    d_q: Floats,
    only: NDArray[np.int64],
    obs: Floats,
    pairs: NDArray[np.int64],
    picks: NDArray[np.int64],
    blocks: NDArray[np.int64],
    asked: NDArray[np.int64],
    first: int,
    last: int,
    n_agents: int,
    panels: Panels,
    head: Floats,
    x: Floats,
    hidden: Floats,
    gates: Floats,
    d_of_x: Floats,
    d_w: Floats,
    d_b: Floats,
    d_w_x: Floats,
    d_w_h: Floats,
    d_b_x: Floats,
    d_b_h: Floats,
    d_head: Floats,
    d_head_bias: Floats,
) -> None:
    """Backpropagate through `forward`: fill the gradients `d_w` to `d_head_bias` of the weights with the part's share.

    `d_q` and `only` are as in `unroll_back`, `panels` are from `packed_back`. `gates` and `d_of_x` (P + L, 3H) are
    overwritten. The other arguments are those of `forward`.
    """
    n_actions, size = head.shape
    n_obs, n_pairs, (of_inputs, of_hidden) = obs.shape[1], (n_actions + 1) * n_agents, panels
    table = room(n_pairs, size, x)[:n_pairs]
    of_obs, of_x, of_h = room(n_obs, size, x), room(3 * size, size, x), room(3 * size, size, x)
    d_of_x[:n_pairs] = ZERO
    d_b_h[:] = ZERO
    d_b_x[:] = ZERO
    d_head[:] = ZERO
    d_head_bias[:] = ZERO
    unroll_back(
        d_q,
        only,
        gates,
        hidden,
        of_hidden,
        blocks,
        asked,
        first,
        last,
        head,
        picks,
        n_pairs,
        d_of_x,
        of_h,
        d_b_h[2 * size :],
        d_head,
        d_head_bias,
    )
    used = used_pairs(picks, blocks, asked, first, last, n_pairs)
    embed_back(d_of_x, obs, pairs, used, x, of_inputs, table, of_obs, of_x, d_b_x)
    d_b_h[: 2 * size] = d_b_x[: 2 * size]
    d_w_x[:] = of_x[: 3 * size, :size]
    d_w_h[:] = of_h[: 3 * size, :size]
    one_hot = np.zeros((n_actions + n_agents, size), x.dtype)
    d_b[:] = ZERO
    for action in range(n_actions + 1):
        for agent in range(n_agents):
            row, of_agent, of_action = table[action * n_agents + agent], one_hot[n_actions + agent], one_hot[action - 1]
            for j in range(size):
                d_b[j] += row[j]
                of_agent[j] += row[j]
                if action > 0:
                    of_action[j] += row[j]
    transpose(of_obs, d_w[:, :n_obs])
    transpose(one_hot, d_w[:, n_obs:])
