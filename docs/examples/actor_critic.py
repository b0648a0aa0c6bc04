"""An algorithm in one file: an actor-critic that learns from each segment once, with importance weights.

orchestra run qmix_8m --algorithm docs/examples/actor_critic.py:ActorCritic --segment-length 32 --width 64
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from components.envs import EnvSpec
from components.experience import LOG_PROB, VALUE, FieldSpec
from components.policies import EpisodeBatch, ModulePolicy
from components.policies.acting import Acted
from components.policies.base import TrainStepResult
from components.policies.optimizer import FlatOptimizer

Frames = Mapping[str, NDArray[Any]]


class Network(nn.Module):
    """Network with logits (n, A, U) and values (n, A) for observations (n, A, O); each agent has its own embedding."""

    def __init__(self, spec: EnvSpec, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(spec.obs_size)
        self.agent = nn.Embedding(spec.n_agents, width)
        self.body = nn.Linear(spec.obs_size, width)
        self.head = nn.Linear(width, spec.n_actions + 1)

    def forward(self, obs: Tensor, available: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities, -1e10 where an action is not available, and values."""
        said = self.head(torch.tanh(self.body(self.norm(obs)) + self.agent.weight))
        return said[..., :-1].masked_fill(~available, -1e10).log_softmax(-1), said[..., -1]


class ActorCritic(ModulePolicy):
    """A policy gradient with a learned baseline, from one step ahead.

    Args:
        spec: sizes of the environment.
        seed: seed of the initial parameters.
        width: units of the body.
        learning_rate: learning rate of Adam.
        gamma: discount.
    """

    on_policy = True
    max_staleness: ClassVar[int | None] = 4
    uses_epsilon: ClassVar[bool] = False
    fields: Mapping[str, FieldSpec] = {"log_prob": LOG_PROB, "value": VALUE}  # never changed

    def __init__(
        self,
        spec: EnvSpec,
        *,
        seed: int,
        width: Annotated[int, Field(ge=1, description="units of the body")] = 32,
        learning_rate: Annotated[float, Field(gt=0, description="of Adam")] = 1e-3,
        gamma: Annotated[float, Field(ge=0, le=1, description="discount")] = 0.99,
    ) -> None:
        self.width, self.gamma = width, gamma
        super().__init__(spec, seed=seed)
        self._optimizers = {"all": FlatOptimizer(self._flat, self._online.values(), "adam", learning_rate, 10.0)}

    def _make_networks(self) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
        self.network = Network(self.spec, self.width)
        return {"network": self.network}, {}

    def initial_hidden(self, n_envs: int) -> NDArray[np.float32]:
        return np.zeros((n_envs, self.spec.n_agents, 1), np.float32)

    def act_on(
        self,
        frames: Frames,
        last_actions: NDArray[Any],
        hidden: NDArray[np.float32],
        *,
        epsilon: float,
        rng: np.random.Generator,
    ) -> Acted:
        log_prob, value = self._said(frames)
        noise = rng.gumbel(size=log_prob.shape) if epsilon else 0.0  # the argmax is a draw from the distribution
        actions = np.asarray((log_prob + noise).argmax(-1))
        taken = np.take_along_axis(log_prob, actions[..., None], -1)[..., 0]
        return Acted(actions, hidden, {"log_prob": taken, "value": value})

    def last_frame(self, frames: Frames, last_actions: NDArray[Any], hidden: NDArray[np.float32]) -> Frames:
        return {"value": self._said(frames)[1]}

    def log_prob(self, batch: EpisodeBatch) -> NDArray[np.float32]:
        frames = {"obs": batch.obs[:, :-1], "available": batch.available[:, :-1]}
        return np.take_along_axis(self._said(frames)[0], batch.actions[..., None], -1)[..., 0]

    def learn(self, batch: EpisodeBatch) -> TrainStepResult:
        """Make one gradient step on all steps of `batch`."""
        steps = np.arange(batch.reward.shape[1])
        real, last = steps < batch.lengths[:, None], steps == batch.lengths[:, None] - 1
        over = last & batch.terminated[:, None]  # no value follows; one follows truncated and unended segments
        target = batch.reward[..., None] + self.gamma * ~over[..., None] * batch["value"][:, 1:]
        obs, available, actions, old, goal = (
            torch.from_numpy(array[real])
            for array in (batch.obs[:, :-1], batch.available[:, :-1], batch.actions, batch["log_prob"], target)
        )
        log_prob, value = self.network(obs, available)
        taken = log_prob.gather(-1, actions[..., None])[..., 0]
        goal = goal.to(value.dtype)
        loss = (value - goal).square().mean() - ((taken - old).exp() * (goal - value.detach())).mean()
        norm = self._optimizers["all"].step(loss, f"update {self.updates}")
        self.updates += 1
        metrics = {"loss": float(loss.detach()), "grad_norm": norm, "width": float(self.width)}
        return TrainStepResult(metrics, np.ones(len(batch.lengths), np.float32))

    def _said(self, frames: Frames) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        with torch.no_grad():
            log_prob, value = self.network(*(torch.from_numpy(np.array(frames[name])) for name in ("obs", "available")))
        return log_prob.numpy(), value.numpy()
