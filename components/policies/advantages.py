"""Generalised advantage estimation (Schulman et al. 2016), by NumPy, for episodes that end in either way."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
TimeLimit = Literal["bootstrap", "terminal"]
"""What follows a truncated episode: the value of its last frame, or nothing, as in published code of MAPPO."""


def generalised_advantages(
    reward: Floats,  # (T, …)
    value: Floats,  # (T, …)
    successor: Floats,  # (T, …): value of the true next frame, which no reset has replaced
    terminated: NDArray[np.bool_],  # (T, …)
    truncated: NDArray[np.bool_],  # (T, …)
    *,
    gamma: float,
    gae_lambda: float,
    time_limit: TimeLimit = "bootstrap",
) -> NDArray[np.float64]:
    """Return the advantages (T, …), in the units of the rewards; returns are these plus `value`.

    δ = r + gamma * V(s') * (1 - terminated) - V(s), and A = δ + gamma * gae_lambda * A' unless an episode ends with the
    step. The first axis is time, and the last step is followed by nothing but its successor's value.
    """
    if time_limit == "terminal":
        terminated = terminated | truncated
    goes_on = ~(terminated | truncated)
    advantage: NDArray[np.float64] = reward + gamma * np.where(terminated, 0.0, successor) - value
    carried = gamma * gae_lambda * goes_on
    for t in range(len(advantage) - 2, -1, -1):
        advantage[t] += carried[t] * advantage[t + 1]
    return advantage


def segment_advantages(
    reward: Floats,  # (E, T, A)
    value: Floats,  # (E, T+1, A)
    lengths: NDArray[np.integer[Any]],  # (E,)
    terminated: NDArray[np.bool_],  # (E,)
    truncated: NDArray[np.bool_],  # (E,)
    *,
    gamma: float,
    gae_lambda: float,
    time_limit: TimeLimit = "bootstrap",
) -> NDArray[np.float64]:
    """Return the advantages (E, T, A) of segments, 0 after the end of each.

    A segment that neither terminates nor is truncated is a part of an episode, and the value of its last frame follows.
    """
    steps = np.arange(reward.shape[1])[:, None]
    real, last = steps < lengths, steps == lengths - 1
    over = last & terminated
    if time_limit == "terminal":
        over |= last & truncated
    found = generalised_advantages(
        reward.transpose(1, 0, 2).astype(np.float64),
        value[:, :-1].transpose(1, 0, 2),
        value[:, 1:].transpose(1, 0, 2),
        np.broadcast_to(over[..., None], (*over.shape, 1)),
        np.broadcast_to((last & ~over)[..., None], (*over.shape, 1)),
        gamma=gamma,
        gae_lambda=gae_lambda,
    )
    found[~real] = 0.0
    return found.transpose(1, 0, 2)


def normalised(advantage: Floats, living: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return advantages with mean 0 and standard deviation 1 over `living`, of the same shape; all are scaled alike.

    As in Yu et al. (2022): once for an update, (A - mean) / (sd + 1e-5), with the standard deviation of the population.
    """
    alive = advantage[living] if living.any() else advantage
    shifted: NDArray[np.float64] = (advantage - alive.mean(dtype=np.float64)) / (alive.std(dtype=np.float64) + 1e-5)
    return shifted
