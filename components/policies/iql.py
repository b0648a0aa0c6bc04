"""Independent Q-learning with recurrent agents (Tan 1993; Tampuu et al. 2017), the base of VDN and QMIX."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from components.envs.base import EnvSpec
from components.policies.base import EpisodeBatch, TrainStepResult
from components.policies.inputs import AgentInputs
from components.policies.networks import RecurrentAgent
from components.policies.optimizer import FlatOptimizer
from components.policies.options import RecurrentOptions
from components.policies.packing import Packing
from components.policies.recurrent import RecurrentPolicy
from components.policies.returns import lambda_returns


class Unmixed(nn.Module):
    """Each agent learns from the team's reward independently: (N, A) values stay (N, A)."""

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        return q


@dataclass(frozen=True, slots=True)
class PackedSteps:
    """A batch without its padding, as tensors: N steps and F = N + E frames of E episodes, in packed order."""

    packing: Packing
    inputs: AgentInputs  # F * A rows
    actions: Tensor  # (N, A)
    state_t: Tensor  # (N, S)
    state_tp1: Tensor  # (N, S)
    available: Tensor  # (F, A, U)
    departs: Tensor  # (N,): the frame that a step leaves
    weights: Tensor  # (N, 1): importance weights of prioritised sampling

    @property
    def n_episodes(self) -> int:
        """E. Step k arrives at frame k + E, so values of the frames arrived at are `values[n_episodes:]`."""
        return len(self.packing.last)

    def best(self, q: Tensor) -> Tensor:
        """Return each agent's available action of highest value in every frame, (F, A, 1), for values (F, A, U)."""
        return torch.where(self.available, q, -torch.inf).max(2, keepdim=True)[1]

    def taken(self, q: Tensor) -> Tensor:
        """Return the values of the chosen actions (N, A), out of the values of all frames (F, A, U), without a copy."""
        _, n_agents, n_actions = q.shape
        agents = torch.arange(n_agents, device=q.device)
        chosen = (self.departs.unsqueeze(1) * n_agents + agents) * n_actions + self.actions
        return q.view(-1).gather(0, chosen.view(-1)).view(-1, n_agents)


@dataclass(frozen=True, slots=True)
class TdLoss:
    """The loss of a batch and its terms; N steps, M = 1 team value or A agents' values each."""

    loss: Tensor  # (): weighted mean of the squared errors of real steps
    q_taken: Tensor  # (N, M)
    target: Tensor  # (N, M)
    packing: Packing


class Iql(RecurrentPolicy):
    """Recurrent Q-learners that share parameters, each learning from the team's reward as if it were alone.

    Args:
        spec: sizes of the environment.
        double_q: the online network chooses the action whose target value is used (van Hasselt et al. 2016).
        **options: as `Options`.

    Raises:
        ValueError: an option is out of its range.
    """

    def __init__(self, spec: EnvSpec, *, double_q: bool = True, **options: Unpack[RecurrentOptions]) -> None:
        super().__init__(spec, **options)
        self.double_q = double_q
        self._parameters = [p for network in self._online.values() for p in network.parameters()]
        self._optimizer = FlatOptimizer(self._flat, self.options.optimizer, self.options.learning_rate)

    def _make_networks(self) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
        self.mixer, self.target_mixer = self._make_mixer(), self._make_mixer()
        self.target_agent = RecurrentAgent(self.spec, self.options.hidden_size)
        return {"agent": self.agent, "mixer": self.mixer}, {"agent": self.target_agent, "mixer": self.target_mixer}

    def _make_mixer(self) -> nn.Module:
        """Return what makes (N, M) values of the agents' (N, A) ones, given the states (N, S)."""
        return Unmixed()

    def _optimizers(self) -> Mapping[str, FlatOptimizer]:
        return {"all": self._optimizer}

    # Acting ---------------------------------------------------------------------------------------------------------

    def act(
        self,
        obs: NDArray[np.float32],  # (B, A, O)
        available: NDArray[np.bool_],  # (B, A, U)
        last_actions: NDArray[np.int64],  # (B, A)
        hidden: NDArray[np.float32],  # (B, A, H)
        *,
        epsilon: float,
        rng: np.random.Generator,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        q, hidden = self._forward(obs, last_actions, hidden)
        actions = np.where(available, q, -np.inf).argmax(-1)
        if epsilon > 0.0:
            explores, which = rng.random((2, len(obs), self.spec.n_agents))
            # The k-th available action, k uniform: the first at which more than k have been counted.
            k = (which * available.sum(-1)).astype(np.int64)
            at_random = (available.cumsum(-1) > k[..., None]).argmax(-1)
            actions = np.where(explores < epsilon, at_random, actions)
        return actions, hidden

    # Learning -------------------------------------------------------------------------------------------------------

    def learn(self, batch: EpisodeBatch) -> TrainStepResult:
        """Make one gradient step on `batch`.

        Raises:
            ValueError: an array of the batch does not have the shape that the others and the spec demand.
            FloatingPointError: the gradient is not finite; no parameter has changed then.
        """
        td = self.td_loss(batch)
        gradients = torch.autograd.grad(td.loss, self._parameters)
        norm = self._optimizer.step(gradients, clip=self.options.grad_norm_clip, what=f"update {self.updates}")
        self.updates += 1
        if self.updates % self.options.target_update_interval == 0:
            self.update_targets()

        error = (td.target - td.q_taken.detach()).abs()
        metrics = {
            "loss": float(td.loss.detach()),
            "grad_norm": norm,
            "q_taken": float(td.q_taken.detach().mean()),
            "target": float(td.target.mean()),
            "td_error": float(error.mean()),
        }
        return TrainStepResult(metrics, self._priorities(error.mean(1).numpy(force=True), batch, td.packing))

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

    # Terms of a loss -------------------------------------------------------------------------------------------------

    def prepared(self, batch: EpisodeBatch) -> PackedSteps:
        """Return `batch` as packed tensors on the device.

        Raises:
            ValueError: as `learn`.
        """
        self._check(batch)
        packing = Packing.of(batch.lengths, batch.terminated, batch.actions.shape[1])
        n_episodes = len(batch.lengths)
        n_agents = self.spec.n_agents
        # Step k arrives at frame k + E: there its action is the last one.
        last_actions = np.full((len(packing.frames), n_agents), -1)
        last_actions[n_episodes:] = batch.actions.reshape(-1, n_agents)[packing.steps]
        arrive = packing.frames[n_episodes:]
        return PackedSteps(
            packing=packing,
            inputs=self._inputs(batch, packing, last_actions),
            actions=torch.from_numpy(last_actions[n_episodes:]).to(self._device),
            state_t=self._gather("state_t", batch.state, packing.frames[packing.departs], self._dtype),
            state_tp1=self._gather("state_tp1", batch.state, arrive, self._dtype),
            available=self._gather("available", batch.available, packing.frames, torch.bool),
            departs=torch.from_numpy(packing.departs).to(self._device),
            weights=torch.from_numpy(batch.weights[packing.episode]).to(self._device, self._dtype).unsqueeze(1),
        )

    def values(self, agent: RecurrentAgent, steps: PackedSteps) -> Tensor:
        """Return what `agent` says of each action in every frame, (F, A, U): whole episodes in one unroll."""
        return agent.values(steps.inputs)

    def targets(self, value_tp1: Tensor, batch: EpisodeBatch, steps: PackedSteps) -> Tensor:
        """Return the targets (N, M), from `value_tp1` (N, M): the value of the frame after each step."""
        packing, ahead = steps.packing, value_tp1.numpy(force=True).copy()
        ahead[packing.last[batch.terminated]] = 0.0  # a cut episode keeps the value of its last frame
        reward = batch.reward.reshape(-1)[packing.steps].astype(ahead.dtype)[:, None]
        returns = lambda_returns(
            reward, ahead, packing.step_blocks, gamma=self.options.gamma, td_lambda=self.options.td_lambda
        )
        return torch.from_numpy(returns).to(self._device)
