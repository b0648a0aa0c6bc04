"""QPLEX (Wang et al. 2021): values and advantages are mixed separately; any consistent team value can be expressed.

Letters in shapes: N steps, F frames, A agents, U actions, S state size, K attention heads.
"""

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from components.envs.base import EnvSpec
from components.policies.base import EpisodeBatch
from components.policies.iql import Iql, TdLoss
from components.policies.options import LearningOptions, check_options

LEAST = 1e-10
"""Added to each weight, so that none is 0."""


def by_head(n_inputs: int, n_outputs: int, heads: int, layers: int, hidden: int) -> nn.Module:
    """Return networks with ReLUs between `layers` layers, one for each head: (N, n_inputs) to (N, K * n_outputs)."""
    if layers == 1:
        return nn.Linear(n_inputs, heads * n_outputs)
    parts: list[nn.Module] = [nn.Linear(n_inputs, heads * hidden), nn.ReLU(), nn.Unflatten(1, (-1, 1))]
    for _ in range(layers - 2):
        parts += [nn.Conv1d(heads * hidden, heads * hidden, 1, groups=heads), nn.ReLU()]
    return nn.Sequential(*parts, nn.Conv1d(heads * hidden, heads * n_outputs, 1, groups=heads), nn.Flatten())


class DuplexMixer(nn.Module):
    """Q_tot = Σ_a [w_a(s) q_a + b_a(s)] + Σ_a [λ_a(s, u) - 1] w_a(s) [q_a - max q_a] (Wang et al. 2021, §3).

    That is Σ_a V_a + Σ_a λ_a A_a of the transformed values w_a q_a + b_a, where λ_a is the sum over heads of
    |key(s)| sigmoid(agent_a(s)) sigmoid(joint_a(s, u)). No advantage is positive, and no w_a or λ_a is 0 or negative,
    so each agent's greedy action is the team's. As in the authors' code ("dmaq" of their PyMARL), gradients do not flow
    through A_a, and w and b come from two layers with a ReLU between.

    Args:
        n_agents: A.
        n_actions: U.
        state_size: S.
        hypernet: hidden units of the hypernetworks for w and b.
        heads: K.
        layers: of the networks of each head.
        hidden: units between these layers.
    """

    def __init__(
        self, n_agents: int, n_actions: int, state_size: int, *, hypernet: int, heads: int, layers: int, hidden: int
    ) -> None:
        super().__init__()
        self.n_agents, self.n_actions, self.heads = n_agents, n_actions, heads
        self.first = nn.Linear(state_size, 2 * hypernet)
        self.w = nn.Linear(hypernet, n_agents)
        self.b = nn.Linear(hypernet, n_agents)
        self.key = by_head(state_size, 1, heads, layers, hidden)
        self.agent = by_head(state_size, n_agents, heads, layers, hidden)
        self.joint = by_head(state_size + n_agents * n_actions, n_agents, heads, layers, hidden)

    def forward(self, q: Tensor, best_q: Tensor, state: Tensor, actions: Tensor) -> Tensor:
        """Mix the values of the chosen actions to (N, 1).

        Args:
            q: (N, A), of the chosen actions.
            best_q: (N, A), of each agent's best available action.
            state: (N, S).
            actions: (N, A) int64, the chosen actions.
        """
        for_w, for_b = self.first(state).relu().chunk(2, dim=1)
        w = self.w(for_w).abs() + LEAST
        advantage = (w * (q - best_q)).detach()
        terms = w * q + self.b(for_b) + (self.importance(state, actions) - 1.0) * advantage
        total: Tensor = terms.sum(1, keepdim=True)
        return total

    def importance(self, state: Tensor, actions: Tensor) -> Tensor:
        """Return the weights λ (N, A) of the advantages, all above 0."""
        chosen = one_hot(actions, self.n_actions).flatten(1).to(state.dtype)
        key = self.key(state).abs() + LEAST
        agent = self.agent(state).sigmoid().view(-1, self.heads, self.n_agents)
        joint = self.joint(torch.cat([state, chosen], 1)).sigmoid().view(-1, self.heads, self.n_agents)
        weights: Tensor = (key.unsqueeze(2) * agent * joint).sum(1)
        return weights


class Qplex(Iql):
    """`Iql` whose agents are mixed by duplex dueling.

    Args:
        spec: sizes of the environment.
        hypernet_size: hidden units of the hypernetworks, 64 in the authors' code.
        attention_heads: terms of each weight of an advantage; in the authors' code 4 on StarCraft II, elsewhere 10.
        attention_layers: of the networks of each head; in the authors' code 1 on StarCraft II, elsewhere 3. With 1, the
            agents' actions add up before the sigmoid.
        attention_size: units between these layers.
        **options: the keywords of `Iql`.

    Raises:
        ValueError: a keyword is out of its range.
    """

    def __init__(
        self,
        spec: EnvSpec,
        *,
        hypernet_size: int = 64,
        attention_heads: int = 4,
        attention_layers: int = 1,
        attention_size: int = 64,
        **options: Unpack[LearningOptions],
    ) -> None:
        sizes = {
            "hypernet_size": hypernet_size,
            "attention_heads": attention_heads,
            "attention_layers": attention_layers,
            "attention_size": attention_size,
        }
        check_options({name: (size, size >= 1, "at least 1") for name, size in sizes.items()})
        self.hypernet_size, self.attention_heads = hypernet_size, attention_heads
        self.attention_layers, self.attention_size = attention_layers, attention_size
        super().__init__(spec, **options)

    def _make_mixer(self) -> nn.Module:
        spec = self.spec
        return DuplexMixer(
            spec.n_agents,
            spec.n_actions,
            spec.state_size,
            hypernet=self.hypernet_size,
            heads=self.attention_heads,
            layers=self.attention_layers,
            hidden=self.attention_size,
        )

    def td_loss(self, batch: EpisodeBatch) -> TdLoss:
        """Return the weighted mean squared TD error of the real steps of `batch`.

        Raises:
            ValueError: as `learn`.
        """
        steps = self.prepared(batch)
        with torch.no_grad():
            q_target = self.values(self.target_agent, steps)
        q = self.values(self.agent, steps)
        with torch.no_grad():
            best, best_target = steps.best(q), steps.best(q_target)
            picked = best if self.double_q else best_target
            arrived = slice(steps.n_episodes, None)
            value_tp1 = self.target_mixer(
                q_target.gather(2, picked).squeeze(2)[arrived],
                q_target.gather(2, best_target).squeeze(2)[arrived],
                steps.state_tp1,
                picked.squeeze(2)[arrived],
            )
            target = self.targets(value_tp1, batch, steps)
            best_q = q.gather(2, best).squeeze(2)[steps.departs]
        q_taken = self.mixer(steps.taken(q), best_q, steps.state_t, steps.actions)
        loss = (steps.weights * (q_taken - target).square()).sum() / q_taken.numel()
        return TdLoss(loss, q_taken, target, steps.packing)
