"""QMIX (Rashid et al. 2018): the team's value is a monotonic function of the agents', with weights from the state."""

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from components.envs.base import EnvSpec
from components.policies import kernel
from components.policies.iql import Iql
from components.policies.mixing import Mixing
from components.policies.options import LearningOptions


class MonotonicMixer(nn.Module):
    """Q_tot = |w_2(s)| · ELU(|W_1(s)| q + b_1(s)) + v(s), where W_1, w_2, b_1, v come from hypernetworks (§4).

    ∂Q_tot/∂q_a ≥ 0, because no weight between q and Q_tot is negative. So each agent's greedy action is the team's. As
    in PyMARL, W_1 and w_2 come from two layers with a ReLU between, b_1 from one linear layer, v from two.

    Args:
        n_agents: A.
        state_size: S.
        embed: units of the mixing layer.
        hypernet: hidden units of the two hypernetworks for weights.
        compiled: True to mix by compiled loops on a CPU, False by torch.
    """

    def __init__(self, n_agents: int, state_size: int, embed: int, hypernet: int, *, compiled: bool = True) -> None:
        super().__init__()
        self.n_agents, self.embed, self.compiled = n_agents, embed, compiled
        self._split = [hypernet, hypernet, embed, embed]
        # The first layers of all four, joined: one product with the state instead of four.
        self.first = nn.Linear(state_size, sum(self._split))
        self.w_1 = nn.Linear(hypernet, n_agents * embed)
        self.w_2 = nn.Linear(hypernet, embed)
        self.v = nn.Linear(embed, 1)

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        """Mix `q` (N, A) given `state` (N, S) to (N, 1)."""
        if not self.compiled or q.is_cuda or (state.requires_grad and torch.is_grad_enabled()):
            return self.by_torch(q, state)
        total: Tensor = Mixing.apply(torch.is_grad_enabled(), q, state, *self.parameters())  # type: ignore[no-untyped-call]  # torch's
        return total

    def by_torch(self, q: Tensor, state: Tensor) -> Tensor:
        """Mix as `forward` does, by operations of torch: the reference for the compiled loops."""
        for_w_1, for_w_2, for_v, b_1 = self.first(state).split(self._split, dim=1)
        w_1 = self.w_1(for_w_1.relu()).abs().view(-1, self.n_agents, self.embed)
        w_2 = self.w_2(for_w_2.relu()).abs()
        # One row times a small matrix per step: a batched product is slower than multiplication and sum.
        mixed = elu((q.unsqueeze(2) * w_1).sum(1) + b_1)
        total: Tensor = (mixed * w_2).sum(1, keepdim=True) + self.v(for_v.relu())
        return total


class Qmix(Iql):
    """`Iql` whose agents are mixed to one team value.

    Args:
        spec: sizes of the environment.
        mixer_embed: units of the mixing layer, 32 in the paper.
        hypernet_size: hidden units of the hypernetworks, 64 in PyMARL.
        **options: the keywords of `Iql`.

    Raises:
        ValueError: a keyword is out of its range.
    """

    def __init__(
        self,
        spec: EnvSpec,
        *,
        mixer_embed: int = 32,
        hypernet_size: int = 64,
        **options: Unpack[LearningOptions],
    ) -> None:
        if mixer_embed < 1 or hypernet_size < 1:
            raise ValueError(f"mixer_embed and hypernet_size must be at least 1, got {mixer_embed}, {hypernet_size}")
        self.mixer_embed, self.hypernet_size = mixer_embed, hypernet_size
        super().__init__(spec, **options)

    def _make_mixer(self) -> nn.Module:
        sizes = (self.spec.n_agents, self.spec.state_size, self.mixer_embed, self.hypernet_size)
        return MonotonicMixer(*sizes, compiled=self.options.compiled)

    def _mixing(self) -> int | None:
        return kernel.MONOTONIC if type(self.mixer) is MonotonicMixer else None
