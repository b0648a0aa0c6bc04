"""The recurrent agent network of several algorithms, and the flat memory of parameters."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from components.envs.base import EnvSpec
from components.policies.agent import agent_values, pair_table
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

    def values(self, inputs: AgentInputs) -> Tensor:
        """Return the action values of every agent in every frame of packed episodes, (F, A, U)."""
        q = agent_values(inputs, self.n_agents, self.embed, self.gru, self.head, self._scratch)
        return q.view(-1, self.n_agents, self.n_actions)

    def forward(self, obs: Tensor, last_actions: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Make one step: return the action values (R, U) and the next hidden state (R, H). No gradients."""
        w, table = pair_table(self.embed, self.obs_size, self.n_agents)
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


def tanh_(x: Tensor) -> Tensor:
    """Take the hyperbolic tangent in place, as 2 sigmoid(2x) - 1: on a CPU torch's sigmoid is many times faster."""
    return x.mul_(2.0).sigmoid_().mul_(2.0).sub_(1.0)


def flatten_parameters(modules: Sequence[nn.Module], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Move the parameters of modules into one flat tensor, in order and each once, and return it.

    With one tensor, an optimiser step, a copy to a target network and sending to a worker are each one operation. The
    parameters stay the same objects: a recurrent layer on a GPU would move new ones to memory of its own.
    """
    parameters = list(dict.fromkeys(p for module in modules for p in module.parameters()))
    flat = torch.empty(sum(p.numel() for p in parameters), device=device, dtype=dtype)
    for p, part in zip(parameters, torch.split(flat, [p.numel() for p in parameters]), strict=True):
        p.data = part.view(p.shape).copy_(p.detach())
    return flat
