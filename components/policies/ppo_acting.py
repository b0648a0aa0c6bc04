"""Acting with the networks of PPO, IPPO and MAPPO by NumPy alone: a worker does not import torch."""

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.envs.base import EnvSpec
from components.policies.acting import RECURRENT_PROBE_FRAMES, Acted, ActingPolicy
from components.policies.numpy_layers import Rows, gru, layer_norm
from components.policies.ppo_options import Frames, Interface, Networks


class Branch:
    """The actor or the critic: [LayerNorm], layers, [GRU], head. `ppo_networks.Branch` is the same in torch."""

    def __init__(self, networks: Networks, parts: list[Rows]) -> None:
        self._net, left = networks, iter(parts)

        def norm() -> list[Rows]:
            return [next(left), next(left)] if networks.layer_norm else []

        self._norm = norm()
        self._layers = [(next(left).T.copy(), next(left), norm()) for _ in range(networks.layers)]
        self._gru = [
            (next(left).T.copy(), next(left).T.copy(), next(left), next(left), norm())
            for _ in range(networks.recurrent)
        ]
        self._head, self._bias = next(left).T.copy(), next(left)

    def __call__(self, x: Rows, hidden: Rows) -> tuple[Rows, Rows]:
        """Return the output (R, …) for inputs (R, I), and the next hidden state (R, H); the same one without a GRU."""
        x = _normed(x, self._norm)
        for weight, bias, norm in self._layers:
            x = x @ weight + bias
            x = _normed(np.tanh(x) if self._net.activation == "tanh" else np.maximum(x, 0.0), norm)
        for w_x, w_h, b_x, b_h, norm in self._gru:
            hidden = gru(x, hidden, w_x, w_h, b_x, b_h)
            x = _normed(hidden, norm)
        return x @ self._head + self._bias, hidden


class PpoActing(ActingPolicy):
    """Acts with the actor, and records log-probabilities and values. Values are in the critic's units.

    Its parameters are those of `ppo.OnPolicy.params`, zeros until the first are loaded.

    Args:
        spec: sizes of the environment.
        networks: the same as the learner's.
    """

    def __init__(self, spec: EnvSpec, networks: Networks) -> None:
        self.spec, self.networks = spec, networks
        self.interface = on = Interface(spec, networks)
        self.fields = on.fields
        self.probe_frames = RECURRENT_PROBE_FRAMES if networks.recurrent else 1
        self._actor_shapes = on.branch_shapes(on.actor_size, on.n_outputs, log_sd=on.continuous)
        self._critic_shapes = on.branch_shapes(on.critic_size, 1, log_sd=False)
        self._shapes = [*self._actor_shapes, *self._critic_shapes, (on.obs_size,), (on.obs_size,), (1,)]
        self.load(np.zeros(sum(map(prod, self._shapes)), np.float32))

    def initial_hidden(self, n_envs: int) -> NDArray[np.float32]:
        size = 2 * self.networks.hidden_size if self.networks.recurrent else 1
        return np.zeros((n_envs, self.spec.n_agents, size), np.float32)

    def params(self) -> NDArray[np.float32]:
        copy = self._params.copy()
        copy.flags.writeable = False
        return copy

    def load(self, params: NDArray[np.float32]) -> None:
        sizes = [prod(shape) for shape in self._shapes]
        if params.shape != (sum(sizes),):
            raise ValueError(f"params: expected shape {(sum(sizes),)} for {self!r}, got {params.shape}")
        self._params = params.copy()
        ends = np.cumsum([0, *sizes]).tolist()
        parts = [
            self._params[start:end].reshape(shape)
            for (start, end), shape in zip(pairwise(ends), self._shapes, strict=True)
        ]
        n_actor, continuous = len(self._actor_shapes), self.interface.continuous
        self._log_sd = parts[0] if continuous else None
        self._actor = Branch(self.networks, parts[1 if continuous else 0 : n_actor])
        self._critic = Branch(self.networks, parts[n_actor:-3])
        self._obs_mean, self._obs_var = parts[-3], parts[-2]

    def act_on(
        self,
        frames: Frames,
        last_actions: NDArray[Any],
        hidden: NDArray[np.float32],
        *,
        epsilon: float,
        rng: np.random.Generator,
    ) -> Acted:
        said, value, after = self._said(frames, last_actions, hidden)
        fields: dict[str, NDArray[Any]] = {"value": value, "hidden": hidden, "before": last_actions}
        actions: NDArray[Any]
        if self._log_sd is not None:
            actions, fields["log_prob"] = self._drawn(said, self._log_sd, rng if epsilon else None)
            if self.networks.squash:
                fields["unsquashed"] = actions
                actions = (np.tanh(actions) * self.interface.scale + self.interface.centre).astype(np.float32)
        else:
            actions, fields["log_prob"] = self._chosen(said, frames, rng if epsilon else None)
        return Acted(actions, after, {name: fields[name] for name in self.fields})

    def last_frame(self, frames: Frames, last_actions: NDArray[Any], hidden: NDArray[np.float32]) -> Frames:
        return {"value": self._said(frames, last_actions, hidden)[1]}

    def outputs(
        self, frames: Frames, last_actions: NDArray[Any], hidden: NDArray[np.float32]
    ) -> tuple[Frames, NDArray[np.float32]]:
        said, _, after = self._said(frames, last_actions, hidden)
        if self._log_sd is not None:
            return {"mean": said, "log_std": np.broadcast_to(self._log_sd, said.shape)}, after
        ends = np.cumsum(self.interface.n_values)[:-1].tolist()
        parts = np.split(said, ends, -1)
        return ({"logits": said} if len(parts) == 1 else {f"logits/{k}": part for k, part in enumerate(parts)}), after

    def _said(self, frames: Frames, last_actions: NDArray[Any], hidden: Rows) -> tuple[Rows, Rows, Rows]:
        """Return the actor's output (n, A, U), the values (n, A), and the next hidden state (n, A, 2H)."""
        actor, critic = self.interface.inputs(frames, last_actions, self._obs_mean, self._obs_var)
        shape = actor.shape[:2]
        half = hidden.shape[-1] // 2
        rows = hidden.reshape(-1, hidden.shape[-1])
        said, of_actor = self._actor(actor.reshape(-1, actor.shape[-1]), rows[:, :half])
        value, of_critic = self._critic(critic.reshape(-1, critic.shape[-1]), rows[:, half:])
        after = np.concatenate([of_actor, of_critic], -1) if self.networks.recurrent else rows.copy()
        return said.reshape(*shape, -1), value.reshape(shape), after.reshape(hidden.shape)

    def _chosen(
        self, logits: Rows, frames: Frames, rng: np.random.Generator | None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Draw discrete actions (n, A, …), or take the most probable ones; return them and their log-probabilities."""
        on = self.interface
        if on.masked:
            logits = np.where(frames["available"].reshape(logits.shape), logits, np.float32(-1e10))
        picked, total = [], np.zeros(logits.shape[:2], np.float32)
        for start, end in pairwise(np.cumsum([0, *on.n_values]).tolist()):
            each = logits[..., start:end]
            each = each - each.max(-1, keepdims=True)
            log_prob = each - np.log(np.exp(each).sum(-1, keepdims=True))
            # The argmax of log-probabilities plus Gumbel noise is a draw from the distribution.
            noise = 0.0 if rng is None else rng.gumbel(size=log_prob.shape)
            picked.append((log_prob + noise).argmax(-1))
            total += np.take_along_axis(log_prob, picked[-1][..., None], -1)[..., 0]
        actions = np.stack(picked, -1)
        return actions.reshape(*logits.shape[:2], *on.spec.schema.by_name["actions"].shape), np.minimum(total, 0.0)

    def _drawn(
        self, mean: Rows, log_sd: Rows, rng: np.random.Generator | None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Draw u (n, A, D) from normal distributions, or take their means; return it and its action's log-density."""
        z = np.zeros_like(mean) if rng is None else rng.standard_normal(mean.shape, np.float32)
        u = mean + z * np.exp(log_sd)
        log_prob = -0.5 * z * z - log_sd - 0.5 * math.log(2.0 * math.pi)
        if self.networks.squash:
            log_prob -= 2.0 * (math.log(2.0) - u - np.logaddexp(0.0, -2.0 * u)) + np.log(self.interface.scale)
        return u, log_prob.sum(-1, dtype=np.float32)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.spec.name}>"


def _normed(x: Rows, norm: list[Rows]) -> Rows:
    """Return `x` after a LayerNorm with these parameters, or `x` if there are none."""
    return layer_norm(x, *norm) if norm else x


def ppo_acting(**others: Any) -> Callable[[EnvSpec, Mapping[str, Any]], PpoActing]:
    """Return a function that makes the acting side of an algorithm; `others` replace defaults of `Networks`."""

    def make(spec: EnvSpec, options: Mapping[str, Any]) -> PpoActing:
        return PpoActing(spec, Networks.of(options, **others))

    return make
