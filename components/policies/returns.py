"""Targets of values: one-step targets and λ-returns, on packed steps (see `packing`)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def lambda_returns(
    reward: NDArray[np.floating[Any]],
    value_tp1: NDArray[np.floating[Any]],
    step_blocks: Sequence[int],
    *,
    gamma: float,
    td_lambda: float,
) -> NDArray[np.floating[Any]]:
    """Return G_t = r_t + gamma [(1 - λ) v_{t+1} + λ G_{t+1}] of every step, and r + gamma v of an episode's last.

    If v is the greedy value, this is the Q(λ) of Peng and Williams (1996); λ = 0 is the one-step target of Q-learning.

    Args:
        reward: (N, 1) of every step, packed.
        value_tp1: (N, M), the value of the frame each step arrives at: 0 if the game ended there, and the value of the
            target network if the episode was truncated.
        step_blocks: number of episodes that make a step 0, 1, 2, …; falling.
        gamma: the discount.
        td_lambda: λ in [0, 1].
    """
    returns = reward + gamma * value_tp1
    if td_lambda == 0.0:
        return returns
    stop = len(returns) - step_blocks[-1]
    for here, after in zip(step_blocks[-2::-1], step_blocks[:0:-1], strict=True):
        start = stop - here
        going_on = slice(start, start + after)
        returns[going_on] += gamma * td_lambda * (returns[stop : stop + after] - value_tp1[going_on])
        stop = start
    return returns
