"""The actor and the critic of PPO, IPPO and MAPPO in torch; `ppo_acting` has the same in NumPy, for workers.

Letters in shapes: C chunks of L steps, R = L * C rows with time outermost, I inputs, H hidden size.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear

from components.policies.gru import unrolled
from components.policies.ppo_options import Interface, Networks


class Branch(nn.Module):
    """The actor or the critic: [LayerNorm], layers, [GRU and LayerNorm], head."""

    def __init__(self, networks: Networks, n_inputs: int, n_outputs: int, *, log_sd: bool = False) -> None:
        super().__init__()
        size = networks.hidden_size
        self._tanh = networks.activation == "tanh"
        if log_sd:
            self.log_sd = nn.Parameter(torch.zeros(n_outputs))
        self.norm = nn.LayerNorm(n_inputs) if networks.layer_norm else nn.Identity()
        self.layers = nn.ModuleList()
        for before, after in pairwise([n_inputs, *[size] * networks.layers]):
            self.layers.append(nn.Linear(before, after))
            self.layers.append(nn.LayerNorm(after) if networks.layer_norm else nn.Identity())
        self.gru = nn.GRU(size, size) if networks.recurrent else None
        self.after = nn.LayerNorm(size) if networks.recurrent and networks.layer_norm else nn.Identity()
        self.head = nn.Linear(size, n_outputs)

    @torch.no_grad()
    def standardised(self, x: Tensor) -> Tensor:
        """Return inputs (R, I) with mean 0 and variance 1 in each row, for `forward`; unchanged without LayerNorm.

        This part of the first LayerNorm has no parameters, so an update computes it once for all epochs.
        """
        return layer_norm(x, x.shape[1:], eps=self.norm.eps) if isinstance(self.norm, nn.LayerNorm) else x

    def forward(self, x: Tensor, hidden: Tensor | None, n_steps: int) -> tuple[Tensor, Tensor | None]:
        """Return the output (R, …), and the hidden state (C, H) after the last step.

        Args:
            x: (R, I), from `standardised`.
            hidden: (C, H), before the first step; None without a GRU.
            n_steps: L.
        """
        for layer, norm in pairwise(self.layers):
            if isinstance(layer, nn.Linear):
                x = self._scaled(x, layer) if layer is self.layers[0] else layer(x)
                x = norm(x.tanh() if self._tanh else x.relu())
        if self.gru is not None and hidden is not None:
            x, last = unrolled(self.gru, x.view(n_steps, len(hidden), -1), hidden.unsqueeze(0))
            x, hidden = self.after(x.flatten(0, 1)), last[0]
        return self.head(x), hidden

    def _scaled(self, x: Tensor, first: nn.Linear) -> Tensor:
        """Return the first layer's result for the inputs, scaled and moved by the LayerNorm before it.

        W (g x + b) + c is computed as (W g) x + (W b + c), which needs no gradient of the wide inputs.
        """
        if not isinstance(self.norm, nn.LayerNorm):
            found: Tensor = first(x)
            return found
        w = first.weight
        return linear(x, w * self.norm.weight, torch.addmv(first.bias, w, self.norm.bias))

    @torch.no_grad()
    def scale(self, gain: float) -> None:
        """Scale orthogonal initial weights: those of layers by √2, and those of the head by `gain`."""
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                layer.weight.mul_(math.sqrt(2.0))
        self.head.weight.mul_(gain)


class ActorCritic(nn.Module):
    """The networks for acting: actor, critic, and the statistics of observations."""

    obs_mean: Tensor
    obs_var: Tensor
    obs_count: Tensor

    def __init__(self, on: Interface) -> None:
        super().__init__()
        self.actor = Branch(on.networks, on.actor_size, on.n_outputs, log_sd=on.continuous)
        self.critic = Branch(on.networks, on.critic_size, 1)
        self.register_buffer("obs_mean", torch.zeros(on.obs_size))
        self.register_buffer("obs_var", torch.ones(on.obs_size))
        self.register_buffer("obs_count", torch.full((1,), 1e-4))

    @torch.no_grad()
    def observe(self, obs: Tensor) -> None:
        """Update the statistics with observations (R, O), by the parallel formula of Chan et al. (1983)."""
        n, count = float(len(obs)), self.obs_count
        total, off = count + n, obs.mean(0) - self.obs_mean
        spread = self.obs_var * count + obs.var(0, correction=0) * n + off.square() * count * n / total
        self.obs_mean += off * n / total
        self.obs_var.copy_(spread / total)
        self.obs_count.copy_(total)
