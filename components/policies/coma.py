"""Counterfactual multi-agent policy gradients (Foerster et al. 2018): a central critic credits each agent's action.

Sizes: E episodes, N steps and F = N + E frames of all of them, A agents, U actions, O observation size, S state size.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Unpack

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from components.envs.base import EnvSpec
from components.policies.acting import softmax_mixture
from components.policies.base import EpisodeBatch, TrainStepResult
from components.policies.optimizer import FlatOptimizer
from components.policies.options import RecurrentOptions, check_options
from components.policies.parallel import own_threads
from components.policies.recurrent import PackedSteps, RecurrentPolicy


class CentralCritic(nn.Module):
    """The value of each action of an agent, given the state and the actions of all others (Fig. 1 of the paper).

    Its input is the state, the agent's observation, the actions of the *other* agents, the last actions of all, and the
    agent's number, actions one-hot; two hidden layers with ReLU, then a value for each of the agent's own actions.
    """

    def __init__(self, spec: EnvSpec, hidden_size: int) -> None:
        super().__init__()
        self.n_agents, self.n_actions = spec.n_agents, spec.n_actions
        joint = spec.n_agents * spec.n_actions
        self._sizes = [spec.state_size, spec.obs_size, joint, joint, spec.n_agents]
        self.first = nn.Linear(sum(self._sizes), hidden_size)
        self.second = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, spec.n_actions)

    def forward(self, state: Tensor, obs: Tensor, actions: Tensor, last_actions: Tensor) -> Tensor:
        """Return the values (R, A, U).

        Args:
            state: (R, S).
            obs: (R, A, O).
            actions: (R, A), the actions of all agents.
            last_actions: (R, A), the actions of all in the step before; -1 at the start of an episode.

        A product with one-hot vectors is a sum of columns of the weights, so columns are picked and summed. The column
        of an agent's own action is subtracted from the sum over all.
        """
        of_state, of_obs, of_joint, of_last, of_agent = torch.split(self.first.weight, self._sizes, dim=1)
        agents = torch.arange(self.n_agents, device=obs.device)
        done = embedding(actions + agents * self.n_actions, of_joint.t())  # (R, A, K)
        started = (last_actions >= 0).unsqueeze(2)
        before = embedding(last_actions.clamp(min=0) + agents * self.n_actions, of_last.t()) * started
        shared = state @ of_state.t() + done.sum(1) + before.sum(1) + self.first.bias
        x = shared.unsqueeze(1) - done + obs @ of_obs.t() + of_agent.t()
        values: Tensor = self.value(self.second(x.relu()).relu())
        return values


@dataclass(frozen=True, slots=True)
class Counterfactuals:
    """A packed batch, with the targets of the critic."""

    steps: PackedSteps
    obs: Tensor  # (F, A, O)
    state: Tensor  # (N, S)
    last_actions: Tensor  # (F, A)
    epsilon: Tensor  # (N, 1, 1)
    target: Tensor  # (N, A)


class Coma(RecurrentPolicy):
    """Actors that share a recurrent network, and a central critic with a counterfactual baseline for each agent.

    The advantage of agent a is Q(s, u) - Σ_u' π(u') Q(s, (u_-a, u')): the value of its action minus the
    mean value of its policy, with the actions of the others fixed (Eq. 4). The critic is regressed on TD(λ) returns of
    a target critic, backwards in time as the authors do. Both learn from data of the current policy only: a batch
    is sampled once.

    In training, an action is drawn from the mixture (1 - ε) softmax + ε / available, and the gradient is that of the
    mixture. With ε = 0 the most probable action is chosen.

    Args:
        spec: sizes of the environment.
        critic_size: units of each hidden layer of the critic; 128 in PyMARL.
        critic_learning_rate: of the critic; 5e-4.
        critic_steps: gradient steps of the critic per gradient step of the actors: the batch is cut into as many spans
            of time, and the last span comes first. PyMARL makes one step for every time step.
        **options: as `Options`. `learning_rate` is that of the actors, `td_lambda` (0.8) of the critic's targets, and
            `target_update_interval` counts gradient steps of the critic.

    Raises:
        ValueError: an option is out of its range.
    """

    choose = staticmethod(softmax_mixture)

    def __init__(
        self,
        spec: EnvSpec,
        *,
        critic_size: int = 128,
        critic_learning_rate: float = 5e-4,
        critic_steps: int = 16,
        **options: Unpack[RecurrentOptions],
    ) -> None:
        check_options(
            {
                "critic_size": (critic_size, critic_size >= 1, "at least 1"),
                "critic_learning_rate": (critic_learning_rate, critic_learning_rate > 0, "above 0"),
                "critic_steps": (critic_steps, critic_steps >= 1, "at least 1"),
            }
        )
        self.critic_size, self.critic_steps = critic_size, critic_steps
        options.setdefault("td_lambda", 0.8)
        super().__init__(spec, **options)
        of_actor, of_critic = self._flat[: self._n_acting], self._flat[self._n_acting :]
        rate, kind, clip = self.options.learning_rate, self.options.optimizer, self.options.grad_norm_clip
        self._optimizers = {
            "actor": FlatOptimizer(of_actor, [self.agent], kind, rate, clip),
            "critic": FlatOptimizer(of_critic, [self.critic], kind, critic_learning_rate, clip),
        }

    def _make_networks(self) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
        self.critic, self.target_critic = (CentralCritic(self.spec, self.critic_size) for _ in range(2))
        return {"agent": self.agent, "critic": self.critic}, {"critic": self.target_critic}

    @property
    def critic_updates(self) -> int:
        """Gradient steps of the critic so far."""
        return self.updates * self.critic_steps

    # Learning -------------------------------------------------------------------------------------------------------

    def learn(self, batch: EpisodeBatch) -> TrainStepResult:
        """Make `critic_steps` gradient steps of the critic on `batch`, and one of the actors.

        Raises:
            ValueError: an array of the batch does not have the shape that the others and the spec demand.
            FloatingPointError: a gradient is not finite; its network is unchanged then.
        """
        with own_threads():
            data = self.counterfactuals(batch)
            values, critic_loss, critic_norm = self._learn_critic(data)
            chances = self.chances(data)
            taken = data.steps.actions.unsqueeze(2)
            q_taken = values.gather(2, taken).squeeze(2)
            advantage = q_taken - (chances.detach() * values).sum(2)
            loss = self.actor_loss(data, chances, advantage)
            norm = self._optimizers["actor"].step(loss, f"update {self.updates}")
        self.updates += 1

        entropy = -(chances.detach() * chances.detach().clamp(min=1e-12).log()).sum(2)
        metrics = {
            "loss": float(loss.detach()),
            "critic_loss": critic_loss,
            "grad_norm": norm,
            "critic_grad_norm": critic_norm,
            "advantage": float(advantage.abs().mean()),
            "entropy": float(entropy.mean()),
        }
        return self._result(metrics, q_taken, data.target, batch, data.steps.packing)

    def counterfactuals(self, batch: EpisodeBatch) -> Counterfactuals:
        """Return `batch` as packed tensors, with the TD(λ) returns of the target critic (Eq. 3 of the paper).

        Raises:
            ValueError: as `learn`.
        """
        steps = self.prepared(batch)
        packing, actions, n_episodes = steps.packing, steps.actions, steps.n_episodes
        epsilon = np.zeros(n_episodes, np.float32) if batch.epsilon is None else batch.epsilon
        obs = self._gather("obs", batch, packing, torch.float32).to(self._dtype)
        # Step k arrives at frame k + E; its action is the last action there.
        last_actions = torch.cat([actions.new_full((n_episodes, self.spec.n_agents), -1), actions])
        with torch.no_grad():
            # The last frame has no action; for a truncated episode the most probable one is taken.
            frame_actions = steps.best(self.agent.values(steps.inputs)).squeeze(2)
            frame_actions[steps.departs] = actions
            values = self.target_critic(steps.state, obs, frame_actions, last_actions)
            value_tp1 = values.gather(2, frame_actions.unsqueeze(2)).squeeze(2)[n_episodes:]
        return Counterfactuals(
            steps=steps,
            obs=obs,
            state=steps.state_t,
            last_actions=last_actions,
            epsilon=torch.from_numpy(epsilon[packing.episode]).to(self._device, self._dtype).view(-1, 1, 1),
            target=self.targets(value_tp1, batch, steps),
        )

    def chances(self, data: Counterfactuals) -> Tensor:
        """Return the probability of each action at each step (N, A, U), exploration included."""
        steps = data.steps
        logits, available = self.agent.values(steps.inputs)[steps.departs], steps.available[steps.departs]
        softmax = logits.masked_fill(~available, -torch.inf).softmax(2)
        uniform = available.to(self._dtype) / available.sum(2, keepdim=True)
        return (1.0 - data.epsilon) * softmax + data.epsilon * uniform

    def actor_loss(self, data: Counterfactuals, chances: Tensor, advantage: Tensor) -> Tensor:
        """Return minus the mean of log π(u) times the `advantage` (N, A): Eq. 7 of the paper, as a loss."""
        taken = chances.gather(2, data.steps.actions.unsqueeze(2)).squeeze(2)
        # Without exploration the probability of a taken action may be rounded to 0 by now.
        taken = taken.clamp(min=torch.finfo(taken.dtype).tiny)
        return -(data.steps.weights * advantage * taken.log()).sum() / advantage.numel()

    def critic_loss(self, data: Counterfactuals, rows: slice) -> tuple[Tensor, Tensor]:
        """Return the mean squared error of the critic at the steps `rows`, and its values (R, A, U) there."""
        departs, actions = data.steps.departs[rows], data.steps.actions[rows]
        values = self.critic(data.state[rows], data.obs[departs], actions, data.last_actions[departs])
        error = values.gather(2, actions.unsqueeze(2)).squeeze(2) - data.target[rows]
        return (data.steps.weights[rows] * error.square()).sum() / error.numel(), values.detach()

    def _learn_critic(self, data: Counterfactuals) -> tuple[Tensor, float, float]:
        """Learn from `critic_steps` spans, the last first; return the values (N, A, U), each before its span's step."""
        n_steps = len(data.target)
        bounds = [n_steps * i // self.critic_steps for i in range(self.critic_steps + 1)]
        values = torch.empty(n_steps, self.spec.n_agents, self.spec.n_actions, dtype=self._dtype, device=self._device)
        total = largest = 0.0
        for made, (start, stop) in enumerate(reversed(list(pairwise(bounds)))):
            if start < stop:
                loss, values[start:stop] = self.critic_loss(data, slice(start, stop))
                norm = self._optimizers["critic"].step(loss, f"the critic in update {self.updates}")
                total += float(loss.detach()) * (stop - start) / n_steps
                largest = max(largest, norm)
            if (self.critic_updates + made + 1) % self.options.target_update_interval == 0:
                self.update_targets()
        return values, total, largest
