"""Generalised advantage estimation (Schulman et al. 2016) and V-trace (Espeholt et al. 2018) of segments, by NumPy.

An episode ends by termination or by truncation. Letters in shapes: E segments of T steps, A agents.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from components.policies.chunks import real_rows
from components.replay_buffers.returns import v_trace

Floats = NDArray[np.floating[Any]]
TimeLimit = Literal["bootstrap", "terminal"]
"""Value after a truncated episode: that of its last frame, or 0 as in published code of MAPPO."""


def generalised_advantages(
    reward: Floats,  # (T, …)
    value: Floats,  # (T, …)
    successor: Floats,  # (T, …): value of the true next frame, before any reset
    terminated: NDArray[np.bool_],  # (T, …)
    truncated: NDArray[np.bool_],  # (T, …)
    *,
    gamma: float,
    gae_lambda: float,
    time_limit: TimeLimit = "bootstrap",
) -> NDArray[np.float64]:
    """Return the advantages (T, …), in the units of the rewards; returns are these plus `value`.

    δ = r + gamma * V(s') * (1 - terminated) - V(s), and A = δ + gamma * gae_lambda * A' unless an episode ends with the
    step. The first axis is time; after the last step only its successor's value counts.
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

    A segment that is neither terminated nor truncated is a part of an episode; the value of its last frame is used.
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


def corrected_advantages(
    reward: Floats,  # (E, T, A)
    value: Floats,  # (E, T+1, A)
    log_ratio: Floats,  # (E, T, A): log π(a) - log μ(a), of the learning and the acting policy
    lengths: NDArray[np.integer[Any]],  # (E,)
    terminated: NDArray[np.bool_],  # (E,)
    truncated: NDArray[np.bool_],  # (E,)
    *,
    gamma: float,
    gae_lambda: float,
    rho_max: float,
    c_max: float,
    time_limit: TimeLimit = "bootstrap",
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the advantages and the targets of values (E, T, A) of V-trace, 0 after the end of each segment.

    Each agent has its own importance weights. If both policies are the same, the advantages are those of
    `segment_advantages`, and the targets are these plus `value`.
    """
    over = terminated | truncated if time_limit == "terminal" else terminated
    steps = np.arange(reward.shape[1])
    real, last = steps < lengths[:, None], steps == lengths[:, None] - 1
    successor = np.where((last & over[:, None])[..., None], 0.0, value[:, 1:])
    n_agents = reward.shape[-1]

    def packed(array: Floats) -> NDArray[np.float64]:  # the segments of the first agent, then those of the second, …
        return np.ascontiguousarray(real_rows(array, lengths).T, np.float64).reshape(-1)

    traced = v_trace(
        packed(reward),
        packed(value[:, :-1]),
        packed(successor),
        packed(log_ratio),
        np.tile(lengths, n_agents),
        gamma=gamma,
        td_lambda=gae_lambda,
        rho_max=rho_max,
        c_max=c_max,
    )
    advantage, target = np.zeros((2, *reward.shape))
    advantage[real] = traced.advantages.reshape(n_agents, -1).T
    target[real] = traced.targets.reshape(n_agents, -1).T
    return advantage, target


def normalised(advantage: Floats, living: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return advantages with mean 0 and standard deviation 1 over `living`, of the same shape; all are scaled alike.

    As in Yu et al. (2022): once for an update, (A - mean) / (sd + 1e-5), with the standard deviation of the population.
    """
    alive = advantage[living] if living.any() else advantage
    shifted: NDArray[np.float64] = (advantage - alive.mean(dtype=np.float64)) / (alive.std(dtype=np.float64) + 1e-5)
    return shifted
