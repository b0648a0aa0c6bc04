"""Weighted QMIX (Rashid et al. 2020), a custom algorithm in one file: `orchestra run` trains it on any scenario.

QMIX projects the values of joint actions onto functions that are monotonic in each agent's value, with equal weight for
every joint action. If the best joint action pays only when all agents take part, that projection misses it. Here an
unrestricted central network learns the values of joint actions. QMIX is regressed on them, with less weight on those
that it already overestimates.
"""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal, Unpack

import torch
from pydantic import Field
from torch import Tensor, nn

from components import Trainer
from components.envs.base import EnvSpec
from components.policies import EpisodeBatch, LearningOptions, Qmix
from components.policies.iql import TdLoss
from components.policies.networks import RecurrentAgent
from orchestra import Topology, extends, load_experiment

STANDARD = Path(__file__).resolve().parents[2] / "experiments" / "qmix_8m.py"


class CentralMixer(nn.Module):
    """Q* of the paper: the value of a joint action from the agents' central values and the state, unrestricted."""

    def __init__(self, n_agents: int, state_size: int, hidden_size: int) -> None:
        super().__init__()
        self.first = nn.Linear(n_agents + state_size, hidden_size)
        self.second = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, 1)

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        """Mix `q` (N, A), given `state` (N, S), to (N, 1)."""
        x = self.first(torch.cat([q, state], dim=1)).relu()
        value: Tensor = self.value(self.second(x).relu())
        return value


class WeightedQmix(Qmix):
    """QMIX that is regressed on the targets of a central network, with weights of its own.

    Args:
        spec: sizes of the environment.
        weighting: "optimistic" gives full weight if the target is above Q_tot (OW-QMIX); "central" if the joint action
            is QMIX's best one, or if the target is above the value of the best one (CW-QMIX).
        alpha: weight of all other joint actions; in the authors' runs on StarCraft II 0.5 for OW, 0.75 for CW.
        central_size: hidden units of the central mixer; 256 in the authors' code.
        **options: the keywords of `Iql`.

    Raises:
        ValueError: a keyword is out of its range.
    """

    def __init__(
        self,
        spec: EnvSpec,
        *,
        weighting: Literal["optimistic", "central"] = "optimistic",
        alpha: float = 0.5,
        central_size: int = 256,
        **options: Unpack[LearningOptions],
    ) -> None:
        if weighting not in ("optimistic", "central") or not 0 < alpha <= 1 or central_size < 1:
            raise ValueError(
                f"weighting, alpha or central_size is out of range: {weighting!r}, {alpha}, {central_size}"
            )
        self.weighting, self.alpha, self.central_size = weighting, alpha, central_size
        super().__init__(spec, **options)

    def _make_networks(self) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
        self.mixer = self._make_mixer()
        self.central, self.target_central = (RecurrentAgent(self.spec, self.options.hidden_size) for _ in range(2))
        sizes = (self.spec.n_agents, self.spec.state_size, self.central_size)
        self.central_mixer, self.target_central_mixer = CentralMixer(*sizes), CentralMixer(*sizes)
        central: dict[str, nn.Module] = {"central": self.central, "central_mixer": self.central_mixer}
        targets: dict[str, nn.Module] = {"central": self.target_central, "central_mixer": self.target_central_mixer}
        return {"agent": self.agent, "mixer": self.mixer, **central}, targets

    def td_loss(self, batch: EpisodeBatch) -> TdLoss:
        """Return the sum of both losses: of Q_tot, weighted, and of Q*; both have the same targets, those of Q*."""
        steps = self.prepared(batch)
        q, central = self.values(self.agent, steps), self.values(self.central, steps)
        with torch.no_grad():
            best = steps.best(q)  # QMIX's best joint action in every frame, (F, A, 1)
            values = self.values(self.target_central, steps).gather(2, best).squeeze(2)
            value_tp1 = self.target_central_mixer(values[steps.n_episodes :], steps.state_tp1)
            target = self.targets(value_tp1, batch, steps)
        q_tot = self.mixer(steps.taken(q), steps.state_t)
        q_star = self.central_mixer(steps.taken(central), steps.state_t)
        with torch.no_grad():
            if self.weighting == "optimistic":
                in_full = q_tot < target
            else:
                is_best = (best[steps.departs].squeeze(2) == steps.actions).all(1, keepdim=True)
                best_is_worth = central.gather(2, best).squeeze(2)[steps.departs]
                in_full = is_best | (target > self.central_mixer(best_is_worth, steps.state_t))
            weights = steps.weights * torch.where(in_full, 1.0, self.alpha)
        loss = weights * (q_tot - target).square() + steps.weights * (q_star - target).square()
        return TdLoss(loss.sum() / len(loss), q_tot, target, steps.packing)


@extends(load_experiment(STANDARD))
def experiment(
    topology: Topology,
    *,
    weighting: Annotated[
        Literal["optimistic", "central"], Field(description="which joint actions count in full")
    ] = "optimistic",
    alpha: Annotated[float, Field(gt=0, le=1, description="the weight of all others")] = 0.5,
) -> Topology:
    """Lay out the standard run, with another policy in the trainer. Its agents act like those of QMIX."""
    for node in topology.nodes.values():
        for actor in list(node.actors):
            if actor.kind is Trainer:
                planned = actor.factory.keywords["policy"]  # `Algorithm.learner`, whose keywords are the options
                policy = partial(WeightedQmix, weighting=weighting, alpha=alpha, **planned.keywords)
                node.replace(actor.name, actor.kind, policy=policy)
    return topology
