"""The recurrent agent that every algorithm here shares, and the flat memory that parameters live in."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from components.envs.base import EnvSpec
from components.policies.embed import embed
from components.policies.gru import tanh_, unroll
from components.policies.head import head
from components.policies.inputs import AgentInputs
from components.policies.scratch import Scratch


class RecurrentAgent(nn.Module):
    """One agent's action values from its history: linear → ReLU → GRU → linear, all agents with the same weights.

    The network of DRQN (Hausknecht and Stone, 2015) as Rashid et al. (2018) use it: the input is the observation, the
    last action and the agent's number, both one-hot, the last action all zeros at the start of an episode.
    """

    def __init__(self, spec: EnvSpec, hidden_size: int) -> None:
        super().__init__()
        self.n_agents, self.n_actions, self.obs_size = spec.n_agents, spec.n_actions, spec.obs_size
        self.embed = nn.Linear(spec.obs_size + spec.n_actions + spec.n_agents, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size)
        self.head = nn.Linear(hidden_size, spec.n_actions)
        self._scratch = Scratch()

    def _tables(self) -> tuple[Tensor, Tensor]:
        """Return the weights of the observation (H, O), and a row for each pair of last action and agent (P, H).

        A product with a one-hot vector picks a column of the weights, so columns are picked: one for each pair of last
        action (-1, the first, for none) and agent, agents innermost, with the bias already in it.
        """
        sizes = [self.obs_size, self.n_actions, self.n_agents]
        of_obs, of_action, of_agent = torch.split(self.embed.weight, sizes, dim=1)
        of_action = pad(of_action, (1, 0)).t()
        table = of_action.unsqueeze(1) + (of_agent.t() + self.embed.bias)  # (U + 1, A, H)
        return of_obs, table.flatten(0, 1)

    def unrolled(self, inputs: AgentInputs) -> Tensor:
        """Return the hidden states (R, H) of packed episodes, each from zeros at its start.

        They are there until the next call, and so is what their backward pass needs.
        """
        of_obs, table = self._tables()
        x = embed(inputs.obs, of_obs, inputs.pairs, table, self._scratch)
        return unroll(self.gru, x, inputs.picks, inputs.blocks, inputs.asked, self._scratch)

    def values(self, inputs: AgentInputs) -> Tensor:
        """Return the action values of every agent in every frame of packed episodes, (F, A, U)."""
        return head(self.head, self.unrolled(inputs)).view(-1, self.n_agents, self.n_actions)

    def forward(self, obs: Tensor, last_actions: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Make one step: return the action values (R, U) and the next hidden state (R, H). No gradients."""
        w, table = self._tables()
        agents = torch.arange(self.n_agents, device=obs.device)
        pairs = (last_actions.view(-1, self.n_agents) + 1) * self.n_agents + agents
        x = torch.addmm(table[pairs.view(-1)], obs, w.t()).relu_()
        w_x, w_h, b_x, b_h = self.gru.parameters()
        size = self.gru.hidden_size
        gates, inner = linear(x, w_x, b_x), linear(hidden, w_h, b_h)
        rz = gates[:, : 2 * size].add_(inner[:, : 2 * size]).sigmoid_()
        n = tanh_(gates[:, 2 * size :].addcmul_(rz[:, :size], inner[:, 2 * size :]))
        hidden = torch.sub(hidden, n).mul_(rz[:, size:]).add_(n)
        return self.head(hidden), hidden


def flatten_parameters(modules: Sequence[nn.Module], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Move the parameters of modules built on the meta device into one flat tensor, in order, and return that.

    One tensor is what an optimiser steps, a target network copies and a worker is sent, each in one operation.
    """
    named = [(m, name, p) for top in modules for m in top.modules() for name, p in m.named_parameters(recurse=False)]
    flat = torch.empty(sum(p.numel() for _, _, p in named), device=device, dtype=dtype)
    start = 0
    for module, name, p in named:
        view = flat[start : start + p.numel()].view(p.shape)
        setattr(module, name, nn.Parameter(view))
        start += p.numel()
    return flat
