"""Batches that a temporal-difference loss must treat right in every respect, and what torch records of it."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from components.envs.base import EnvSpec
from components.policies import EpisodeBatch, Iql


def drawn(spec: EnvSpec, lengths: list[int], seed: int) -> EpisodeBatch:
    """Return a batch with agents that see nothing, weights, and both ends of episodes; its padding is NaN."""
    rng = np.random.default_rng(seed)
    e, t, a = len(lengths), max(lengths), spec.n_agents
    available = rng.random((e, t + 1, a, spec.n_actions)) < 0.5
    available[..., 0] = True
    batch = EpisodeBatch(
        obs=rng.standard_normal((e, t + 1, a, spec.obs_size), np.float32),
        state=rng.standard_normal((e, t + 1, spec.state_size), np.float32),
        available=available,
        actions=rng.integers(0, spec.n_actions, (e, t, a)),
        reward=rng.standard_normal((e, t), np.float32),
        lengths=np.array(lengths, np.int32),
        terminated=rng.random(e) < 0.5,
        weights=rng.random(e, np.float32),
    )
    batch.obs[rng.random((e, t + 1, a)) < 0.3] = 0.0
    for i, n in enumerate(lengths):
        batch.obs[i, n + 1 :] = batch.state[i, n + 1 :] = batch.reward[i, n:] = np.nan
    return batch


def recorded(policy: Iql, batch: EpisodeBatch) -> tuple[Tensor, dict[str, float], NDArray[np.float64]]:
    """Return the gradient (P,), the metrics and the errors (N,) of the loss that torch records."""
    td = policy.td_loss(batch)
    weights = [p for network in policy._online.values() for p in network.parameters()]
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(td.loss, weights)])
    q_taken, error = td.q_taken.detach(), (td.target - td.q_taken.detach()).abs()
    metrics = {"loss": td.loss, "q_taken": q_taken.mean(), "target": td.target.mean(), "td_error": error.mean()}
    errors = np.zeros(batch.lengths.sum())
    errors[td.packing.steps] = error.mean(1).numpy()
    return gradient, {name: float(value.detach()) for name, value in metrics.items()}, errors
