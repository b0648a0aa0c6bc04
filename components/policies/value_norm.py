"""Normalised values: the critic's units, in which returns have mean 0 and variance 1."""

import torch
from torch import Tensor, nn

from components.policies.ppo_options import ValueUnits

BETA = 0.99999
"""Weight of the past in the statistics of each minibatch; that of Yu et al. (2022)."""


class ValueNorm(nn.Module):
    """Running mean and variance of returns, corrected for the bias of their start, as in MAPPO.

    Args:
        units: "real" keeps the statistics, and leaves values as they are.
    """

    sums: Tensor
    """Running means of returns, of their squares, and of 1; the last is the total weight, by which they are divided."""

    def __init__(self, units: ValueUnits = "running") -> None:
        super().__init__()
        self.units = units
        self.register_buffer("sums", torch.zeros(3))

    def statistics(self) -> tuple[float, float]:
        """Return mean and standard deviation, at least 0.1; 0 and 1 for "real"."""
        if self.units == "real":
            return 0.0, 1.0
        m, q, w = self.sums.tolist()
        mean = m / max(w, 1e-5)
        return mean, max(q / max(w, 1e-5) - mean * mean, 0.01) ** 0.5

    @torch.no_grad()
    def update(self, returns: Tensor, head: nn.Linear | None = None) -> None:
        """Update the statistics with `returns`; with "popart" change `head` in place so that real values stay."""
        mean, sd = self.statistics()
        seen = returns.detach().to(self.sums.dtype)
        new = torch.stack([seen.mean(), seen.square().mean(), torch.ones_like(self.sums[2])])
        self.sums.mul_(BETA).add_((1.0 - BETA) * new)
        if self.units == "popart" and head is not None:
            mean_now, sd_now = self.statistics()
            head.weight.mul_(sd / sd_now)
            head.bias.mul_(sd).add_(mean - mean_now).div_(sd_now)

    def normalise(self, returns: Tensor) -> Tensor:
        """Return `returns` in the critic's units."""
        mean, sd = self.statistics()
        return (returns - mean) / sd

    def denormalise(self, values: Tensor) -> Tensor:
        """Return the critic's `values` in the units of rewards."""
        mean, sd = self.statistics()
        return values * sd + mean
