"""Acting with the network of PQN by NumPy alone: a worker does not import torch.

Letters in shapes: n copies, R rows, A agents, I inputs, U actions, H units.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.envs.base import EnvSpec
from components.experience import EPSILON, FieldSpec
from components.policies.acting import RECURRENT_PROBE_FRAMES, Acted, ActingPolicy, epsilon_greedy
from components.policies.numpy_layers import Rows, gru, layer_norm
from orchestra import UsageError

Frames = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class QSizes:
    """Sizes and inputs of the network of action values, which all agents share.

    An agent sees its observation, its number if there are several agents, and with a GRU also its last action.

    Raises:
        UsageError: observations are not flat, or actions not discrete.
    """

    spec: EnvSpec
    hidden_size: int
    layers: int
    recurrent: bool

    def __post_init__(self) -> None:
        fields, name = self.spec.schema.by_name, self.spec.name
        if "available" not in fields or fields["actions"].shape or "obs" not in fields or len(fields["obs"].shape) != 1:
            raise UsageError(f"PQN needs flat observations and discrete actions, which {name} does not have")

    @property
    def n_inputs(self) -> int:
        """I."""
        n_agents = self.spec.n_agents
        return self.spec.obs_size + (n_agents if n_agents > 1 else 0) + (self.spec.n_actions if self.recurrent else 0)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the parameters in their order: layers, each followed by its LayerNorm, then GRU and head."""
        size, shapes = self.hidden_size, list[tuple[int, ...]]()
        for before, after in pairwise([self.n_inputs, *[size] * self.layers]):
            shapes += [(after, before), (after,), (after,), (after,)]
        if self.recurrent:
            shapes += [(3 * size, size), (3 * size, size), (3 * size,), (3 * size,)]
        return [*shapes, (self.spec.n_actions, size), (self.spec.n_actions,)]

    def inputs(self, obs: NDArray[Any], last_actions: NDArray[Any]) -> Rows:
        """Return the inputs (n, A, I) for observations (n, A, O) and last actions (n, A), -1 for none."""
        n_agents, seen = self.spec.n_agents, [np.asarray(obs, np.float32)]
        if n_agents > 1:
            seen.append(np.broadcast_to(np.eye(n_agents, dtype=np.float32), (len(obs), n_agents, n_agents)))
        if self.recurrent:
            seen.append((last_actions[..., None] == np.arange(self.spec.n_actions)).astype(np.float32))
        return np.concatenate(seen, -1) if len(seen) > 1 else seen[0]


class PqnActing(ActingPolicy):
    """Acts ε-greedily by action values. Its parameters are those of the learner, zeros until the first are loaded.

    Args:
        sizes: the same as the learner's.
    """

    def __init__(self, sizes: QSizes) -> None:
        self.sizes = sizes
        self.fields = dict(EPSILON)
        if sizes.recurrent:
            self.fields["hidden"] = FieldSpec((sizes.hidden_size,), per="segment", agents=True, finite=True)
            self.fields["before"] = FieldSpec((), "int64", per="segment", agents=True)
            self.probe_frames = RECURRENT_PROBE_FRAMES
        self.load(np.zeros(sum(map(prod, sizes.shapes)), np.float32))

    def initial_hidden(self, n_envs: int) -> NDArray[np.float32]:
        size = self.sizes.hidden_size if self.sizes.recurrent else 1
        return np.zeros((n_envs, self.sizes.spec.n_agents, size), np.float32)

    def params(self) -> NDArray[np.float32]:
        copy = self._params.copy()
        copy.flags.writeable = False
        return copy

    def load(self, params: NDArray[np.float32]) -> None:
        shapes = self.sizes.shapes
        counts = [prod(shape) for shape in shapes]
        if params.shape != (sum(counts),):
            raise ValueError(f"params: expected shape {(sum(counts),)} for {self!r}, got {params.shape}")
        self._params = params.copy()
        parts = np.split(self._params, np.cumsum(counts)[:-1])
        left = iter(part.reshape(shape) for part, shape in zip(parts, shapes, strict=True))
        self._layers = [(next(left).T.copy(), next(left), next(left), next(left)) for _ in range(self.sizes.layers)]
        recurrent = self.sizes.recurrent
        self._gru = (next(left).T.copy(), next(left).T.copy(), next(left), next(left)) if recurrent else None
        self._head, self._bias = next(left).T.copy(), next(left)

    def act_on(
        self,
        frames: Frames,
        last_actions: NDArray[Any],
        hidden: NDArray[np.float32],
        *,
        epsilon: float,
        rng: np.random.Generator,
    ) -> Acted:
        q, after = self._values(frames["obs"], last_actions, hidden)
        available = np.asarray(frames["available"])
        actions = epsilon_greedy(np.where(available, q, -np.inf), available, epsilon, rng)
        said = {"hidden": hidden, "before": last_actions} if self.sizes.recurrent else {}
        return Acted(actions, after, said)

    def outputs(
        self, frames: Frames, last_actions: NDArray[Any], hidden: NDArray[np.float32]
    ) -> tuple[Frames, NDArray[np.float32]]:
        q, after = self._values(frames["obs"], last_actions, hidden)
        return {"logits": q}, after

    def _values(self, obs: NDArray[Any], last_actions: NDArray[Any], hidden: Rows) -> tuple[Rows, Rows]:
        """Return action values (n, A, U) and the next hidden state (n, A, H)."""
        x = self.sizes.inputs(obs, last_actions)
        shape = x.shape[:2]
        x = x.reshape(-1, x.shape[-1])
        for weight, bias, scale, shift in self._layers:
            x = np.maximum(layer_norm(x @ weight + bias, scale, shift), 0.0)
        after = hidden.copy()
        if self._gru is not None:
            x = gru(x, hidden.reshape(len(x), -1), *self._gru)
            after = x.reshape(hidden.shape)
        return (x @ self._head + self._bias).reshape(*shape, -1), after

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.sizes.spec.name}>"


def pqn_acting(**defaults: Any) -> Callable[[EnvSpec, Mapping[str, Any]], PqnActing]:
    """Return a function that makes the acting side of an algorithm with these defaults of `QSizes`."""

    def make(spec: EnvSpec, options: Mapping[str, Any]) -> PqnActing:
        return PqnActing(QSizes(spec, **{name: options.get(name, value) for name, value in defaults.items()}))

    return make
