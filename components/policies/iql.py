"""Independent Q-learning with recurrent agents (Tan 1993; Tampuu et al. 2017), the base of VDN and QMIX."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from components.envs.base import EnvSpec
from components.policies.base import EpisodeBatch, Learned, Policy
from components.policies.networks import RecurrentAgent, flatten_parameters, initialise
from components.policies.packing import Packing
from components.policies.returns import lambda_returns


class LearningOptions(TypedDict, total=False):
    """The keywords of `Iql`, for algorithms that add their own."""

    hidden_size: int
    learning_rate: float
    optimizer: Literal["rmsprop", "adam"]
    gamma: float
    td_lambda: float
    double_q: bool
    target_update_interval: int
    grad_norm_clip: float
    priority_eta: float
    seed: int
    device: str
    dtype: torch.dtype


class Unmixed(nn.Module):
    """Every agent is regressed on the team's reward by itself: (N, A) values stay (N, A)."""

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        return q


@dataclass(frozen=True, slots=True)
class TdLoss:
    """The loss of a batch, and what it is made of; N steps, M = 1 team value or A agents' values each."""

    loss: Tensor  # (): weighted mean of the squared errors of real steps
    q_taken: Tensor  # (N, M)
    target: Tensor  # (N, M)
    packing: Packing


class Iql(Policy):
    """Recurrent Q-learners that share parameters, each learning from the team's reward as if it were alone.

    Args:
        spec: sizes of the environment.
        hidden_size: units of the GRU and of the layer before it; 64 in PyMARL.
        learning_rate: 5e-4 in Rashid et al. (2018), with RMSProp.
        optimizer: "rmsprop" with alpha 0.99 and ε 1e-5 (Rashid et al. 2018), or "adam" with ε 1e-5 (Hu et al. 2021).
        gamma: discount, 0.99.
        td_lambda: λ of the Q(λ) targets; 0 in Rashid et al. (2018), 0.6 in Hu et al. (2021).
        double_q: the online network chooses the action whose target value is used (van Hasselt et al. 2016).
        target_update_interval: gradient steps after which the target network becomes a copy of the online one; 200 in
            PyMARL, which makes one gradient step per episode.
        grad_norm_clip: 10 in PyMARL.
        priority_eta: η of the priority η max|δ| + (1 - η) mean|δ| of an episode, 0.9 (R2D2, Kapturowski et al. 2019).
        seed: what the initial parameters are drawn from; the global generator of torch is neither read nor moved.
        device: where learning and acting happen. Two runs are equal bit for bit on "cpu" with equally many threads.
        dtype: float64 serves tests; what goes out (`params`, hidden states, priorities) is float32 in any case.

    Raises:
        ValueError: a keyword is out of its range.
    """

    def __init__(
        self,
        spec: EnvSpec,
        *,
        hidden_size: int = 64,
        learning_rate: float = 5e-4,
        optimizer: Literal["rmsprop", "adam"] = "rmsprop",
        gamma: float = 0.99,
        td_lambda: float = 0.0,
        double_q: bool = True,
        target_update_interval: int = 200,
        grad_norm_clip: float = 10.0,
        priority_eta: float = 0.9,
        seed: int = 0,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        for name, value, fits, expected in (
            ("hidden_size", hidden_size, hidden_size >= 1, "at least 1"),
            ("learning_rate", learning_rate, learning_rate > 0, "above 0"),
            ("optimizer", optimizer, optimizer in ("rmsprop", "adam"), "'rmsprop' or 'adam'"),
            ("gamma", gamma, 0 <= gamma <= 1, "in [0, 1]"),
            ("td_lambda", td_lambda, 0 <= td_lambda <= 1, "in [0, 1]"),
            ("target_update_interval", target_update_interval, target_update_interval >= 1, "at least 1"),
            ("grad_norm_clip", grad_norm_clip, grad_norm_clip > 0, "above 0"),
            ("priority_eta", priority_eta, 0 <= priority_eta <= 1, "in [0, 1]"),
        ):
            if not fits:
                raise ValueError(f"{name} must be {expected}, got {value!r}")
        self.spec = spec
        self.hidden_size = hidden_size
        self.gamma, self.td_lambda, self.double_q = gamma, td_lambda, double_q
        self.target_update_interval = target_update_interval
        self.grad_norm_clip, self.priority_eta = grad_norm_clip, priority_eta
        self.updates = 0
        """Gradient steps made so far."""
        self._device, self._dtype = torch.device(device), dtype

        with torch.device("meta"):
            self.agent, self.mixer = RecurrentAgent(spec, hidden_size), self._make_mixer()
            self.target_agent, self.target_mixer = RecurrentAgent(spec, hidden_size), self._make_mixer()
        self._flat = flatten_parameters([self.agent, self.mixer], self._device, dtype)
        self._target_flat = flatten_parameters([self.target_agent, self.target_mixer], self._device, dtype)
        initialise([self.agent, self.mixer], torch.Generator().manual_seed(seed))
        self._target_flat.copy_(self._flat)
        self._parameters = [*self.agent.parameters(), *self.mixer.parameters()]
        self._n_acting = sum(p.numel() for p in self.agent.parameters())
        self._flat.grad = torch.zeros_like(self._flat)
        self._optimizer_kind = optimizer
        self._optimizer: torch.optim.Optimizer = (
            torch.optim.RMSprop([self._flat], lr=learning_rate, alpha=0.99, eps=1e-5)
            if optimizer == "rmsprop"
            else torch.optim.Adam([self._flat], lr=learning_rate, eps=1e-5)
        )
        self._gathered: dict[str, NDArray[Any]] = {}

    def _make_mixer(self) -> nn.Module:
        """Return what makes (N, M) values of the agents' (N, A) ones, given the states (N, S)."""
        return Unmixed()

    # Acting ---------------------------------------------------------------------------------------------------------

    def initial_hidden(self, n_envs: int) -> NDArray[np.float32]:
        return np.zeros((n_envs, self.spec.n_agents, self.hidden_size), np.float32)

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
        n_envs, rows = len(obs), len(obs) * self.spec.n_agents
        with torch.inference_mode():
            q_rows, hidden_rows = self.agent(
                self._tensor(obs.reshape(rows, -1), self._dtype),
                self._tensor(last_actions.reshape(rows), torch.int64),
                self._tensor(hidden.reshape(rows, -1), self._dtype),
            )
        q = q_rows.numpy(force=True).reshape(available.shape)
        actions = np.where(available, q, -np.inf).argmax(-1)
        if epsilon > 0.0:
            explores, which = rng.random((2, n_envs, self.spec.n_agents))
            # The k-th available action, k uniform: the first at which more than k have been counted.
            k = (which * available.sum(-1)).astype(np.int64)
            at_random = (available.cumsum(-1) > k[..., None]).argmax(-1)
            actions = np.where(explores < epsilon, at_random, actions)
        return actions, hidden_rows.numpy(force=True).reshape(hidden.shape).astype(np.float32, copy=False)

    def _tensor(self, array: NDArray[Any], dtype: torch.dtype) -> Tensor:
        # torch warns of memory that it could write to but must not, so that is copied.
        return torch.from_numpy(array if array.flags.writeable else array.copy()).to(self._device, dtype)

    def params(self) -> NDArray[np.float32]:
        copy = self._flat[: self._n_acting].to("cpu", torch.float32, copy=True).numpy()
        copy.flags.writeable = False
        return copy

    def load(self, params: NDArray[np.float32]) -> None:
        if params.shape != (self._n_acting,):
            raise ValueError(f"params: expected shape ({self._n_acting},) for {self!r}, got {params.shape}")
        self._flat[: self._n_acting] = self._tensor(params, self._dtype)

    # Learning -------------------------------------------------------------------------------------------------------

    def learn(self, batch: EpisodeBatch) -> Learned:
        """Make one gradient step on `batch`.

        Raises:
            ValueError: an array of the batch does not have the shape that the others and the spec demand.
            FloatingPointError: the gradient is not finite; no parameter has changed then.
        """
        td = self.td_loss(batch)
        gradients = torch.autograd.grad(td.loss, self._parameters)
        gradient = self._flat.grad
        assert gradient is not None
        torch.cat([g.reshape(-1) for g in gradients], out=gradient)
        norm = float(gradient.norm())
        if not math.isfinite(norm):
            raise FloatingPointError(
                f"the gradient of update {self.updates} has norm {norm}, loss {float(td.loss.detach())}"
            )
        if norm > self.grad_norm_clip:
            gradient *= self.grad_norm_clip / norm
        self._optimizer.step()
        self.updates += 1
        if self.updates % self.target_update_interval == 0:
            self._target_flat.copy_(self._flat)

        error = (td.target - td.q_taken.detach()).abs()
        metrics = {
            "loss": float(td.loss.detach()),
            "grad_norm": norm,
            "q_taken": float(td.q_taken.detach().mean()),
            "target": float(td.target.mean()),
            "td_error": float(error.mean()),
        }
        return Learned(metrics, self._priorities(error.mean(1).numpy(force=True), batch, td.packing))

    def td_loss(self, batch: EpisodeBatch) -> TdLoss:
        """Return the weighted mean squared TD error of the real steps of `batch`, Eq. 6 of Rashid et al. (2018).

        Raises:
            ValueError: as `learn`.
        """
        self._check(batch)
        n_agents, n_actions = self.spec.n_agents, self.spec.n_actions
        packing = Packing.of(batch.lengths, batch.actions.shape[1])
        n_episodes, n_steps = len(batch.lengths), len(packing.steps)
        arrive = packing.frames[n_episodes:]

        obs = self._gather("obs", batch.obs, packing.frames, self._dtype)
        actions = self._gather("actions", batch.actions, packing.steps, torch.int64)
        state_t = self._gather("state_t", batch.state, packing.frames[packing.departs], self._dtype)
        state_tp1 = self._gather("state_tp1", batch.state, arrive, self._dtype)
        available_tp1 = self._gather("available", batch.available, arrive, torch.bool)
        weights = torch.from_numpy(batch.weights[packing.episode]).to(self._device, self._dtype)
        obs = obs.view(-1, self.spec.obs_size)
        # Step k arrives at frame k + E: there its action is the last one.
        last_actions = torch.cat([actions.new_full((n_episodes, n_agents), -1), actions]).view(-1)

        with torch.no_grad():
            hidden = self.target_agent.unrolled(obs, last_actions, packing.frame_blocks)
            q_tp1 = self.target_agent.head(hidden[n_episodes * n_agents :]).view(n_steps, n_agents, n_actions)
        hidden = self.agent.unrolled(obs, last_actions, packing.frame_blocks)
        q = self.agent.head(hidden).view(-1, n_agents, n_actions)
        with torch.no_grad():
            chooser = q.detach()[n_episodes:] if self.double_q else q_tp1
            greedy = chooser.masked_fill(~available_tp1, -torch.inf).argmax(2, keepdim=True)
            value_tp1 = self.target_mixer(q_tp1.gather(2, greedy).squeeze(2), state_tp1)
            target = self._targets(value_tp1.numpy(force=True), batch, packing)

        departs = torch.from_numpy(packing.departs).to(self._device)
        chosen = (departs.unsqueeze(1) * n_agents + torch.arange(n_agents, device=self._device)) * n_actions + actions
        q_taken = self.mixer(q.view(-1).gather(0, chosen.view(-1)).view(n_steps, n_agents), state_t)
        loss = (weights.unsqueeze(1) * (q_taken - target).square()).sum() / q_taken.numel()
        return TdLoss(loss, q_taken, target, packing)

    def _targets(self, value_tp1: NDArray[Any], batch: EpisodeBatch, packing: Packing) -> Tensor:
        value_tp1 = value_tp1.copy()
        value_tp1[packing.last[batch.terminated]] = 0.0  # a cut episode keeps the value of its last frame
        reward = batch.reward.reshape(-1)[packing.steps].astype(value_tp1.dtype)[:, None]
        returns = lambda_returns(reward, value_tp1, packing.step_blocks, gamma=self.gamma, td_lambda=self.td_lambda)
        return torch.from_numpy(returns).to(self._device)

    def _priorities(self, error: NDArray[Any], batch: EpisodeBatch, packing: Packing) -> NDArray[np.float32]:
        padded = np.zeros(batch.reward.shape, np.float64)
        padded.reshape(-1)[packing.steps] = error
        mean = padded.sum(1) / batch.lengths
        priorities = self.priority_eta * padded.max(1) + (1.0 - self.priority_eta) * mean
        return np.asarray(priorities, np.float32)

    def _gather(self, name: str, padded: NDArray[Any], rows: NDArray[np.int64], dtype: torch.dtype) -> Tensor:
        """Return the given rows of `padded`, whose first two axes are episode and time, in kept memory."""
        item = padded.shape[2:]
        kept = self._gathered.get(name)
        if kept is None or len(kept) < len(rows):
            kept = self._gathered[name] = np.empty((len(rows), *item), padded.dtype)
        # The rows are known to be in range; without a mode numpy would gather into a buffer of its own first.
        np.take(padded.reshape(-1, *item), rows, axis=0, out=kept[: len(rows)], mode="clip")
        return torch.from_numpy(kept[: len(rows)]).to(self._device, dtype)

    def _check(self, batch: EpisodeBatch) -> None:
        spec = self.spec
        n_episodes, n_steps = batch.reward.shape
        for name, expected in (
            ("obs", (n_episodes, n_steps + 1, spec.n_agents, spec.obs_size)),
            ("state", (n_episodes, n_steps + 1, spec.state_size)),
            ("available", (n_episodes, n_steps + 1, spec.n_agents, spec.n_actions)),
            ("actions", (n_episodes, n_steps, spec.n_agents)),
            ("lengths", (n_episodes,)),
            ("terminated", (n_episodes,)),
            ("weights", (n_episodes,)),
        ):
            if getattr(batch, name).shape != expected:
                raise ValueError(f"batch.{name}: expected shape {expected}, got {getattr(batch, name).shape}")

    # Checkpoints ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        optimizer = self._optimizer.state.get(self._flat, {})
        return {
            "online": {name: p.detach().clone() for name, p in self._named(self.agent, self.mixer)},
            "target": {name: p.detach().clone() for name, p in self._named(self.target_agent, self.target_mixer)},
            "optimizer": {"kind": self._optimizer_kind, **{key: value.clone() for key, value in optimizer.items()}},
            "updates": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        online = self._named(self.agent, self.mixer)
        target = self._named(self.target_agent, self.target_mixer)
        _same("state", {"online", "target", "optimizer", "updates"}, set(state))
        for part, own in (("online", online), ("target", target)):
            _same(part, {name: tuple(p.shape) for name, p in own}, {k: tuple(v.shape) for k, v in state[part].items()})
        optimizer = {key: value for key, value in state["optimizer"].items() if key != "kind"}
        _same("optimizer", self._optimizer_kind, state["optimizer"].get("kind"))
        moments = {"rmsprop": {"square_avg"}, "adam": {"exp_avg", "exp_avg_sq"}}[self._optimizer_kind]
        shapes = {**{name: tuple(self._flat.shape) for name in moments}, "step": ()} if optimizer else {}
        _same("optimizer", shapes, {key: tuple(value.shape) for key, value in optimizer.items()})

        with torch.no_grad():
            for part, own in (("online", online), ("target", target)):
                for name, p in own:
                    p.copy_(state[part][name])
        groups = self._optimizer.state_dict()["param_groups"]  # settings are the constructor's
        kept = {0: {key: value.clone() for key, value in optimizer.items()}} if optimizer else {}
        self._optimizer.load_state_dict({"state": kept, "param_groups": groups})
        self.updates = int(state["updates"])

    def _named(self, agent: nn.Module, mixer: nn.Module) -> list[tuple[str, nn.Parameter]]:
        return [*agent.named_parameters("agent"), *mixer.named_parameters("mixer")]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.spec.name} after {self.updates} updates>"


def _same(what: str, expected: object, got: object) -> None:
    if got != expected:
        raise ValueError(f"{what}: expected {expected}, got {got}")
