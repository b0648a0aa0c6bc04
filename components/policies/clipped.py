"""The losses of PPO (Schulman et al. 2017) of each sample, and figures for judging an update."""

import torch
from torch import Tensor


def policy_loss(log_prob: Tensor, old: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Return -min(r A, clip(r, 1 - clip, 1 + clip) A) of each sample, r the ratio of new to `old` probability."""
    ratio = (log_prob - old).exp()
    return -torch.min(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)


def value_loss(value: Tensor, old: Tensor, target: Tensor, clip: float | None, huber: float | None) -> Tensor:
    """Return the error of each value: e²/2, or Huber's, linear beyond ±`huber`.

    Args:
        value: value by the network.
        old: value when acting.
        target: return, in the units of the values.
        clip: largest change from `old`: the larger error of the value and of the clipped value counts. None: no clip.
        huber: where Huber's loss becomes linear; None for the squared error.
    """
    found = _error(target - value, huber)
    if clip is None:
        return found
    return torch.max(found, _error(target - (old + (value - old).clamp(-clip, clip)), huber))


def _error(e: Tensor, huber: float | None) -> Tensor:
    squared = e.square() / 2.0
    return squared if huber is None else torch.where(e.abs() <= huber, squared, huber * (e.abs() - huber / 2.0))


def shares(weights: Tensor) -> Tensor:
    """Return `weights` divided by their sum; zeros where nothing has a weight."""
    return weights / weights.sum().clamp(min=1.0)


def divergence(log_prob: Tensor, old: Tensor, weights: Tensor, clip: float) -> Tensor:
    """Return an estimate of the KL divergence of the new policy from the old, and the share of clipped ratios (2,).

    The estimate is the mean of (r - 1) - log r, which is unbiased, never negative, and has a low variance. Means are
    sums with `weights`.
    """
    change = log_prob - old
    ratio = change.exp()
    clipped = ((ratio - 1.0).abs() > clip).to(ratio.dtype)
    return torch.stack([((ratio - 1.0 - change) * weights).sum(), (clipped * weights).sum()])
