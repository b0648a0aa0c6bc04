"""Independent Q-learning with recurrent agents (Tan 1993; Tampuu et al. 2017), the base of VDN and QMIX."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Unpack

import torch
from torch import Tensor, nn

from components.envs.base import EnvSpec
from components.policies import kernel
from components.policies.acting import epsilon_greedy
from components.policies.base import EpisodeBatch, TrainStepResult
from components.policies.networks import RecurrentAgent
from components.policies.optimizer import FlatOptimizer
from components.policies.options import RecurrentOptions
from components.policies.packing import Packing
from components.policies.parallel import own_threads
from components.policies.recurrent import PackedSteps, RecurrentPolicy
from components.policies.td_graph import TdGraph
from components.policies.td_parts import TdParts, TdSums


class Unmixed(nn.Module):
    """Each agent learns from the team's reward independently: (N, A) values stay (N, A)."""

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        return q


@dataclass(frozen=True, slots=True)
class TdLoss:
    """The loss of a batch and its terms; N steps, M = 1 team value or A agents' values each."""

    loss: Tensor  # (): weighted mean of the squared errors of real steps
    q_taken: Tensor  # (N, M)
    target: Tensor  # (N, M)
    packing: Packing


class Iql(RecurrentPolicy):
    """Recurrent Q-learners that share parameters; each learns independently from the team's reward.

    Args:
        spec: sizes of the environment.
        double_q: the online network chooses the action whose target value is used (van Hasselt et al. 2016).
        **options: as `Options`.

    Raises:
        ValueError: an option is out of its range.
    """

    choose = staticmethod(epsilon_greedy)

    def __init__(self, spec: EnvSpec, *, double_q: bool = True, **options: Unpack[RecurrentOptions]) -> None:
        super().__init__(spec, **options)
        self.double_q = double_q
        kind, clip = self.options.optimizer, self.options.grad_norm_clip
        optimizer = FlatOptimizer(self._flat, self._online.values(), kind, self.options.learning_rate, clip)
        self._optimizers = {"all": optimizer}

    def _make_networks(self) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
        self.mixer, self.target_mixer = self._make_mixer(), self._make_mixer()
        self.target_agent = RecurrentAgent(self.spec, self.options.hidden_size)
        return {"agent": self.agent, "mixer": self.mixer}, {"agent": self.target_agent, "mixer": self.target_mixer}

    def _make_mixer(self) -> nn.Module:
        """Return the module that turns values of agents (N, A) into values (N, M), given the states (N, S)."""
        return Unmixed()

    # Learning -------------------------------------------------------------------------------------------------------

    def learn(self, batch: EpisodeBatch) -> TrainStepResult:
        """Make one gradient step on `batch`.

        Raises:
            ValueError: an array of the batch does not have the shape that the others and the spec demand.
            FloatingPointError: the gradient is not finite; no parameter has changed then.
        """
        optimizer, what = self._optimizers["all"], f"update {self.updates}"
        with own_threads():
            sums = self._gradient(batch)
            if sums is not None:
                told = {**sums.metrics, "grad_norm": optimizer.descend(what)}
                result = TrainStepResult(told, self._priorities(sums.errors, batch))
            else:
                td = self.td_loss(batch)
                told = {"loss": float(td.loss.detach()), "grad_norm": optimizer.step(td.loss, what)}
                result = self._result(told, td.q_taken.detach(), td.target, batch, td.packing)
        self.updates += 1
        if self.updates % self.options.target_update_interval == 0:
            self.update_targets()
        return result

    def _gradient(self, batch: EpisodeBatch) -> TdSums | None:
        """Compute the gradient of `batch` into that of the optimiser; None if torch's autograd must compute it."""
        out, parts, graph = self._optimizers["all"].gradient, self._td_parts, self._td_graph
        if parts is None and graph is None:
            return None
        self._check(batch)
        if graph is not None:
            return graph.gradient(batch)
        assert parts is not None
        return parts.gradient(batch, self._n_parts(len(batch)), _weights(self._online), _weights(self._target), out=out)

    @cached_property
    def _td_parts(self) -> TdParts | None:
        """The computation of the gradient on a CPU, if it is used."""
        mixing = self._mixing()
        if mixing is None or not self._plain or not self.options.compiled or self._device.type != "cpu":
            return None
        given = {"gamma": self.options.gamma, "td_lambda": self.options.td_lambda}
        return TdParts(self.spec, mixing, double_q=self.double_q, **given)

    @cached_property
    def _td_graph(self) -> TdGraph | None:
        """The computation of the gradient on a GPU, if it is used."""
        if self._mixing() is None or not self._plain or self.options.kernels == "torch" or self._device.type != "cuda":
            return None
        return self._make_td_graph()

    def _make_td_graph(self) -> TdGraph:
        agents, mixers = (self.agent, self.target_agent), (self.mixer, self.target_mixer)
        given = {"gamma": self.options.gamma, "td_lambda": self.options.td_lambda}
        out = self._optimizers["all"].gradient
        return TdGraph(self.spec, agents, mixers, _weights(self._online), out, double_q=self.double_q, **given)

    @property
    def _plain(self) -> bool:
        """False if autograd must compute the gradient: the loss is not that of this class, or parameters are frozen."""
        kind = type(self)
        own = all(getattr(kind, name) is getattr(Iql, name) for name in ("td_loss", "values", "targets", "prepared"))
        return own and self._optimizers["all"].learns_all

    def _mixing(self) -> int | None:
        """Return the mode of `kernel.td_part` that mixes like `mixer`; None if there is none."""
        return kernel.UNMIXED if type(self.mixer) is Unmixed else None

    def td_loss(self, batch: EpisodeBatch) -> TdLoss:
        """Return the weighted mean squared TD error of the real steps of `batch`, Eq. 6 of Rashid et al. (2018).

        Raises:
            ValueError: as `learn`.
        """
        steps = self.prepared(batch)
        with torch.no_grad():
            q_target = self.values(self.target_agent, steps)
        q = self.values(self.agent, steps)
        with torch.no_grad():
            best = steps.best(q if self.double_q else q_target)
            values = q_target.gather(2, best).squeeze(2)  # in every frame, (F, A)
            value_tp1 = self.target_mixer(values[steps.n_episodes :], steps.state_tp1)
            target = self.targets(value_tp1, batch, steps)
        q_taken = self.mixer(steps.taken(q), steps.state_t)
        loss = (steps.weights * (q_taken - target).square()).sum() / q_taken.numel()
        return TdLoss(loss, q_taken, target, steps.packing)

    def values(self, agent: RecurrentAgent, steps: PackedSteps) -> Tensor:
        """Return the values that `agent` gives each action in every frame, (F, A, U): whole episodes in one unroll."""
        return agent.values(steps.inputs)


def _weights(networks: Mapping[str, nn.Module]) -> list[nn.Parameter]:
    return list(chain.from_iterable(network.parameters() for network in networks.values()))
