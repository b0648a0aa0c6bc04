"""The layers before the GRU: gathered observations, and their sum with the one-hot inputs."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.policies.kernel.compiling import compiled
from components.policies.kernel.scalars import ZERO

Floats = NDArray[np.floating[Any]]


@compiled
def collect(
    padded: Floats,
    frames: NDArray[np.int64],
    blocks: NDArray[np.int64],
    asked: NDArray[np.int64],
    last_actions: NDArray[np.int64],
    n_pairs: int,
    obs: Floats,
    pairs: NDArray[np.int64],
    picks: NDArray[np.int64],
) -> int:
    """Gather the observations that are not all zeros, and say of every row where its input is; return how many, L.

    Args:
        padded: (…, A, O), frames of a batch.
        frames: (F,), which of them, in packed order.
        blocks: (T,), frames at time 0, 1, 2, …
        asked: (T,), how many of them, from the first, are looked at; the others pass for frames that see nothing.
        last_actions: (F * A,), -1 for none.
        n_pairs: P.
        obs: (at least L, O), filled.
        pairs: (at least L,), filled with (last action + 1) * A + agent of each.
        picks: (F * A,), filled: P + l for the l-th living row, and the pair for any other.
    """
    n_agents, size = padded.shape[1], padded.shape[2]
    living = row = 0
    for t in range(len(blocks)):
        for i in range(blocks[t] * n_agents):
            agent = i % n_agents
            pair = (last_actions[row] + 1) * n_agents + agent
            picks[row] = pair
            if i < asked[t] * n_agents:
                seen = padded[frames[row // n_agents], agent]
                for j in range(size):
                    if seen[j] != ZERO:
                        kept = obs[living]
                        for k in range(size):
                            kept[k] = seen[k]
                        pairs[living] = pair
                        picks[row] = n_pairs + living
                        living += 1
                        break
            row += 1
    return living


@compiled
def rectify(x: Floats, table: Floats, pairs: NDArray[np.int64]) -> None:
    """Fill `x` (P + L, H): relu of `table` (P, H), then relu of its own rows plus the rows `pairs` (L,) of `table`."""
    n_pairs, size = table.shape
    for i in range(n_pairs):
        out, picked = x[i], table[i]
        for j in range(size):
            out[j] = max(picked[j], ZERO)
    for i in range(len(pairs)):
        out, picked = x[n_pairs + i], table[pairs[i]]
        for j in range(size):
            total = out[j] + picked[j]
            out[j] = max(total, ZERO)


@compiled
def rectify_back(x: Floats, pairs: NDArray[np.int64], d_x: Floats, d_sum: Floats, d_table: Floats) -> None:
    """Fill `d_sum` (L, H) and `d_table` (P, H) with the gradients of what `rectify` added up."""
    n_pairs, size = d_table.shape
    for i in range(n_pairs):
        out, value, slope = d_table[i], x[i], d_x[i]
        for j in range(size):
            out[j] = slope[j] if value[j] > ZERO else ZERO
    for i in range(len(pairs)):
        out, value, slope, total = d_sum[i], x[n_pairs + i], d_x[n_pairs + i], d_table[pairs[i]]
        for j in range(size):
            passed = slope[j] if value[j] > ZERO else ZERO
            out[j] = passed
            total[j] += passed
