"""DQN (Mnih et al. 2015), double by default (van Hasselt et al. 2016): an algorithm in one file.

    orchestra run train --env gymnasium:CartPole-v1 --algorithm dqn --segment-length 1

It learns from steps, for any length of segments: with `--segment-length 1` each step of the replay buffer is drawn
independently, as in the paper. Several agents share the network, and each learns independently.

Letters in shapes: E segments, T steps, A agents, O observation size, U actions, N real steps of a batch.
"""

from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import huber_loss

from components.envs.base import EnvSpec
from components.policies.acting import epsilon_greedy
from components.policies.base import EpisodeBatch, TrainStepResult
from components.policies.modules import ModulePolicy
from components.policies.optimizer import FlatOptimizer
from orchestra import UsageError


class Dqn(ModulePolicy):
    """Deep Q-learning with a target network, Huber loss and Adam.

    Args:
        spec: of an environment with flat observations and discrete actions.
        seed: of the initial parameters.
        device: "cpu", "cuda" or "cuda:N".
        width: units of each hidden layer.
        layers: hidden layers.
        learning_rate: of Adam.
        gamma: discount.
        double_q: the online network picks the next action, the target network values it.
        target_update_interval: gradient steps between copies to the target network.
        grad_norm_clip: largest norm of a gradient.

    Raises:
        UsageError: observations are not flat, or actions not discrete.
    """

    def __init__(
        self,
        spec: EnvSpec,
        *,
        seed: int,
        device: str = "cpu",
        width: Annotated[int, Field(ge=1, description="units of each hidden layer")] = 128,
        layers: Annotated[int, Field(ge=1, description="hidden layers")] = 2,
        learning_rate: Annotated[float, Field(gt=0, description="of Adam")] = 1e-3,
        gamma: Annotated[float, Field(ge=0, le=1, description="discount")] = 0.99,
        double_q: Annotated[bool, Field(description="the online network picks the next action")] = True,
        target_update_interval: Annotated[
            int, Field(ge=1, description="gradient steps between copies to the target network")
        ] = 128,
        grad_norm_clip: Annotated[float, Field(gt=0, description="largest norm of a gradient")] = 10.0,
    ) -> None:
        fields = spec.schema.by_name
        if "available" not in fields or fields["actions"].shape or "obs" not in fields or len(fields["obs"].shape) != 1:
            raise UsageError(f"DQN needs flat observations and discrete actions, which {spec.name} does not have")
        self.width, self.layers, self.gamma, self.double_q = width, layers, gamma, double_q
        self.target_update_interval = target_update_interval
        super().__init__(spec, seed=seed, device=device)
        self._optimizers = {
            "q": FlatOptimizer(self._flat, self._online.values(), "adam", learning_rate, grad_norm_clip)
        }

    def _make_networks(self) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
        self._q, self._target_q = self._network(), self._network()
        return {"q": self._q}, {"q": self._target_q}

    def _network(self) -> nn.Sequential:
        sizes = [self.spec.obs_size, *[self.width] * self.layers]
        hidden = [part for i, o in pairwise(sizes) for part in (nn.Linear(i, o), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(self.width, self.spec.n_actions))

    def initial_hidden(self, n_envs: int) -> NDArray[np.float32]:
        return np.zeros((n_envs, self.spec.n_agents, 1), np.float32)

    def act(
        self,
        obs: NDArray[np.float32],
        available: NDArray[np.bool_],
        last_actions: NDArray[np.int64],
        hidden: NDArray[np.float32],
        *,
        epsilon: float,
        rng: np.random.Generator,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        with torch.no_grad():
            values = self._q(self._tensor(np.array(obs))).cpu().numpy()
        return epsilon_greedy(np.where(available, values, -np.inf), available, epsilon, rng), hidden.copy()

    def learn(self, batch: EpisodeBatch) -> TrainStepResult:
        """Make one gradient step on all steps of `batch`."""
        steps = np.arange(batch.actions.shape[1])
        real = steps < batch.lengths[:, None]  # (E, T)
        ends = (steps == batch.lengths[:, None] - 1) & batch.terminated[:, None]
        segments = np.nonzero(real)[0]  # (N,)
        obs, after = self._tensor(batch.obs[:, :-1][real]), self._tensor(batch.obs[:, 1:][real])
        actions = torch.from_numpy(batch.actions[real]).to(self._device)
        reward = batch.reward[real] if batch.reward.ndim == 3 else batch.reward[real][:, None]
        with torch.no_grad():
            masked = torch.from_numpy(~batch.available[:, 1:][real]).to(self._device)
            behind = self._target_q(after)
            picked = (self._q(after) if self.double_q else behind).masked_fill(masked, -torch.inf).argmax(-1)
            value = behind.gather(-1, picked[..., None])[..., 0]
            target = self._tensor(reward) + self.gamma * self._tensor(~ends[real])[:, None] * value  # (N, A)
        taken = self._q(obs).gather(-1, actions[..., None])[..., 0]
        weights = self._tensor(batch.weights[segments])[:, None]
        loss = (weights * huber_loss(taken, target, reduction="none")).mean()
        norm = self._optimizers["q"].step(loss, f"update {self.updates}")
        self.updates += 1
        if self.updates % self.target_update_interval == 0:
            self.update_targets()
        errors = (taken.detach() - target).abs().amax(-1).cpu().numpy()
        priorities = np.zeros(len(batch.lengths), np.float32)
        np.maximum.at(priorities, segments, errors)
        metrics = {
            "loss": float(loss.detach()),
            "grad_norm": norm,
            "q_taken": float(taken.detach().mean()),
            "target": float(target.mean()),
            "td_error": float(errors.mean()),
        }
        return TrainStepResult(metrics, priorities)

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device, self._dtype)
