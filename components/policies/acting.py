"""Acting without torch: the interface of policies that act, and the agents' recurrent network.

Shapes: B copies of the environment, A agents, R = B * A rows, O observation size, U actions, H hidden size.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from components.envs.base import EnvSpec
from components.experience import EPSILON, FieldSpec

HIDDEN_SIZE = 64
"""Units of the agents' GRU and of the layer before it, by default; 64 in PyMARL."""
RECURRENT_PROBE_FRAMES = 8
"""Frames of a probe of a recurrent policy. They fill its hidden state, which is empty at first."""


@dataclass(frozen=True, slots=True)
class Acted:
    """The actions of a policy in one frame of n copies, with its next state and its fields."""

    actions: NDArray[Any]  # (n, A, …), or (n, …) if the schema's actions have no axis of agents
    hidden: NDArray[np.float32]  # (n, A, H): the next recurrent state
    fields: Mapping[str, NDArray[Any]]  # (n, …) of each declared field except `epsilon`


class ActingPolicy(ABC):
    """Acts for all agents of a team, with loaded parameters. Only one thread may use it at a time.

    A policy overrides `act`, or `act_on` if it uses other fields than `obs` and `available`, or declares fields.
    """

    fields: Mapping[str, FieldSpec] = EPSILON
    """The fields of a transition that the policy declares. `epsilon` is filled by the rollout. Fields per frame and per
    step are filled at every step, fields per segment at its first."""

    probe_frames: int = 1
    """Frames of a probe by which versions of the policy are compared: 1 for a policy without memory."""
    probe_fields: Sequence[str] | None = None
    """The fields per frame that `outputs` reads; None for all."""

    def preload(self) -> None:  # noqa: B027  # most have nothing to load
        """Load what acting needs, such as compiled code. Processes that are forked from this one then share it."""

    @abstractmethod
    def initial_hidden(self, n_envs: int) -> NDArray[np.float32]:
        """Return the recurrent state at the start of an episode, (B, A, H) zeros, writable."""

    def act_on(
        self,
        frames: Mapping[str, NDArray[Any]],
        last_actions: NDArray[Any],
        hidden: NDArray[np.float32],  # (n, A, H)
        *,
        epsilon: float,
        rng: np.random.Generator,
    ) -> Acted:
        """Choose actions for n copies, and return them with the policy's fields. All arrays are new.

        Args:
            frames: the environment's fields per frame by name, (n, …); views of its memory.
            last_actions: as `Acted.actions`; at the start of an episode -1, or 0 if actions are not integers.
            hidden: the recurrent state.
            epsilon: exploration rate; 0 asks for the greedy action, or the mode of the distribution.
            rng: source of all randomness.
        """
        actions, after = self.act(frames["obs"], frames["available"], last_actions, hidden, epsilon=epsilon, rng=rng)
        return Acted(actions, after, {})

    def last_frame(
        self, frames: Mapping[str, NDArray[Any]], last_actions: NDArray[Any], hidden: NDArray[np.float32]
    ) -> Mapping[str, NDArray[Any]]:
        """Return the policy's fields per frame (n, …) for the last frames of segments, in which no action is chosen."""
        return {}

    def outputs(
        self,
        frames: Mapping[str, NDArray[Any]],
        last_actions: NDArray[Any],
        hidden: NDArray[np.float32],  # (n, A, H)
    ) -> tuple[Mapping[str, NDArray[Any]], NDArray[np.float32]]:
        """Return the outputs that decide the actions of n copies (`divergence.Outputs`), and the next hidden state.

        They serve to compare versions of the policy. A policy that acts by values of actions returns them as `logits`.

        Args:
            frames: as in `act_on`, at least the `probe_fields`.
            last_actions: as in `act_on`.
            hidden: as in `act_on`.

        Raises:
            TypeError: the policy gives no outputs, so its versions cannot be compared.
        """
        raise TypeError(
            f"{type(self).__name__} has no method `outputs`, by which versions of a policy are compared; "
            "implement it, or let workers load by --sync always or every:N"
        )

    def act(
        self,
        obs: NDArray[np.float32],  # (B, A, O)
        available: NDArray[np.bool_],  # (B, A, U)
        last_actions: NDArray[np.int64],  # (B, A): -1 at the start of an episode
        hidden: NDArray[np.float32],  # (B, A, H)
        *,
        epsilon: float,
        rng: np.random.Generator,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Choose an available action for every agent; return actions (B, A) and the next hidden state (B, A, H).

        With probability `epsilon`, drawn per agent, the action is uniform over the available ones; otherwise it is
        the greedy one. All randomness comes from `rng`, and with `epsilon` 0 none is drawn. Both arrays are new.

        Raises:
            TypeError: the policy acts on named fields: call `act_on`.
        """
        raise TypeError(f"{type(self).__name__} acts on named fields: call act_on")

    @abstractmethod
    def params(self) -> NDArray[np.float32]:
        """Return the parameters of acting, as a new, read-only, flat and contiguous array."""

    @abstractmethod
    def load(self, params: NDArray[np.float32]) -> None:
        """Load a copy of parameters from `params` of an equal policy.

        Raises:
            ValueError: the array has another size.
        """


Choice = Callable[
    [NDArray[np.floating[Any]], NDArray[np.bool_], float, np.random.Generator],
    NDArray[np.int64],
]
"""A function that chooses actions (B, A). Its arguments: the network's output (B, A, U), -inf where an action is not
available; the mask of available actions (B, A, U); ε; and a generator, which is not used if ε = 0."""


def epsilon_greedy(
    said: NDArray[np.floating[Any]], available: NDArray[np.bool_], epsilon: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Choose the action of highest value; with probability ε, drawn per agent, a uniformly random available one."""
    actions: NDArray[np.int64] = said.argmax(-1)
    if epsilon > 0.0:
        explores, which = rng.random((2, *actions.shape))
        exploring = np.nonzero(explores < epsilon)
        allowed = available[exploring]
        # The k-th available action, k uniform: the first at which the running count exceeds k.
        k = (which[exploring] * allowed.sum(-1)).astype(np.int64)
        actions[exploring] = (allowed.cumsum(-1) > k[:, None]).argmax(-1)
    return actions


def softmax_mixture(
    said: NDArray[np.floating[Any]], available: NDArray[np.bool_], epsilon: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw from (1 - ε) softmax + ε / available; with ε = 0, choose the most probable action."""
    if epsilon == 0.0:
        return np.asarray(said.argmax(-1))
    weights = np.exp(said - said.max(-1, keepdims=True), dtype=np.float64)
    chances = (1.0 - epsilon) * weights / weights.sum(-1, keepdims=True)
    chances += epsilon * available / available.sum(-1, keepdims=True)
    reached = chances.cumsum(-1)
    # Below the last sum, so that a rounding error never selects an action that is not available.
    drawn = rng.random((*reached.shape[:-1], 1)) * reached[..., -1:]
    return np.asarray((reached > drawn).argmax(-1))


class RecurrentActing(ActingPolicy):
    """Acts with the network of `networks.RecurrentAgent`, in float32, by a loop that numba compiles.

    A worker that uses it does not import torch, which takes 150 MB and a second. Its parameters are those of
    `RecurrentPolicy.params`, zeros until the first are loaded.

    Args:
        spec: sizes of the environment.
        choose: chooses actions from the network's output.
        hidden_size: units of the GRU and of the layer before it.
    """

    probe_frames = RECURRENT_PROBE_FRAMES
    probe_fields: Sequence[str] | None = ("obs", "available")

    def __init__(self, spec: EnvSpec, choose: Choice, *, hidden_size: int = HIDDEN_SIZE) -> None:
        self.spec, self.hidden_size, self._choose = spec, hidden_size, choose
        self.load(np.zeros(sum(map(prod, self._shapes())), np.float32))

    def _shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the parameters, in their order: embedding, GRU, head; weights before biases."""
        size, n_actions = self.hidden_size, self.spec.n_actions
        inputs = self.spec.obs_size + n_actions + self.spec.n_agents
        gru = [(3 * size, size), (3 * size, size), (3 * size,), (3 * size,)]  # rows of r, z, n
        return [(size, inputs), (size,), *gru, (n_actions, size), (n_actions,)]

    def initial_hidden(self, n_envs: int) -> NDArray[np.float32]:
        return np.zeros((n_envs, self.spec.n_agents, self.hidden_size), np.float32)

    def params(self) -> NDArray[np.float32]:
        copy = self._params.copy()
        copy.flags.writeable = False
        return copy

    def load(self, params: NDArray[np.float32]) -> None:
        shapes = self._shapes()
        expected = (sum(map(prod, shapes)),)
        if params.shape != expected:
            raise ValueError(f"params: expected shape {expected} for {self!r}, got {params.shape}")
        self._params = params.copy()
        self.__dict__.pop("_weights", None)

    def preload(self) -> None:
        self._kernel.load()

    @cached_property
    def _kernel(self) -> ModuleType:
        """The compiled loop. Only a step imports it: processes that plan a run make policies, too, without numba."""
        from components.policies.kernel import acting

        acting.prepare()
        return acting

    @cached_property
    def _weights(self) -> tuple[NDArray[np.float32], ...]:
        """The parameters as `kernel.acting.step` takes them."""
        shapes = self._shapes()
        ends = np.cumsum([prod(shape) for shape in shapes])[:-1]
        parts = [part.reshape(shape) for part, shape in zip(np.split(self._params, ends), shapes, strict=True)]
        embedding, b, w_x, w_h, b_x, b_h, head, b_q = parts
        size, (n_obs, n_actions) = self.hidden_size, (self.spec.obs_size, self.spec.n_actions)
        # One-hot inputs pick columns: a row for each pair of last action (first -1, for none) and agent.
        of_action, of_agent = embedding[:, n_obs : n_obs + n_actions].T, embedding[:, n_obs + n_actions :].T
        table = np.repeat((of_agent + b)[None], n_actions + 1, axis=0)
        table[1:] += of_action[:, None]
        bias = np.concatenate([b_x[: 2 * size] + b_h[: 2 * size], b_x[2 * size :]])
        of_obs, of_x, of_h, of_head = (
            self._kernel.panels_of(np.ascontiguousarray(w.T)) for w in (embedding[:, :n_obs], w_x, w_h, head)
        )
        return table.reshape(-1, size), of_obs, of_x, bias, of_h, b_h[2 * size :], of_head, b_q

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
        said, after = self.values(obs, last_actions, hidden, available)
        return self._choose(said, available, epsilon, rng), after

    def outputs(
        self, frames: Mapping[str, NDArray[Any]], last_actions: NDArray[Any], hidden: NDArray[np.float32]
    ) -> tuple[Mapping[str, NDArray[Any]], NDArray[np.float32]]:
        said, after = self.values(frames["obs"], last_actions, hidden)
        return {"logits": said}, after

    def values(
        self,
        obs: NDArray[np.float32],
        last_actions: NDArray[np.int64],
        hidden: NDArray[np.float32],
        available: NDArray[np.bool_] | None = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the network's output (B, A, U) and the next hidden state (B, A, H), which are new arrays.

        Args:
            obs: (B, A, O).
            last_actions: (B, A), -1 at the start of an episode.
            hidden: (B, A, H).
            available: (B, A, U), to have an output of -inf where it is False; None to have all outputs.

        Raises:
            ValueError: an array has another shape.
        """
        n_actions = self.spec.n_actions
        team = (len(last_actions), self.spec.n_agents)
        # The loop does not check the bounds of arrays.
        if not (
            last_actions.shape == team
            and obs.shape == (*team, self.spec.obs_size)
            and hidden.shape == (*team, self.hidden_size)
            and (available is None or available.shape == (*team, n_actions))
        ):
            shapes = {"obs": obs.shape, "last_actions": last_actions.shape, "hidden": hidden.shape}
            shapes |= {} if available is None else {"available": available.shape}
            raise ValueError(f"{self!r}: expected arrays {team} and {team} x O, H or U, got {shapes}")
        allowed = np.zeros((0, n_actions), np.bool_) if available is None else available
        said, after = np.empty((*team, n_actions), np.float32), np.empty(hidden.shape, np.float32)
        self._kernel.step(
            _rows(obs, np.float32, self.spec.obs_size),
            _rows(last_actions, np.int64),
            _rows(hidden, np.float32, self.hidden_size),
            *self._weights,
            _rows(allowed, np.bool_, n_actions),
            said.reshape(-1, n_actions),
            after.reshape(-1, self.hidden_size),
        )
        return said, after

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.spec.name}>"


def _rows(array: NDArray[Any], dtype: DTypeLike, *columns: int) -> NDArray[Any]:
    """Return a read-only view (R, …) of the array's rows, or a copy if they are not contiguous or of another dtype."""
    rows = np.ascontiguousarray(array, dtype).reshape(-1, *columns)
    rows.flags.writeable = False
    return rows


def recurrent_acting(choose: Choice) -> Callable[[EnvSpec, Mapping[str, Any]], RecurrentActing]:
    """Return a function that makes the acting side of a `RecurrentPolicy`, given the keywords of the learning one."""

    def make(spec: EnvSpec, options: Mapping[str, Any]) -> RecurrentActing:
        return RecurrentActing(spec, choose, hidden_size=options.get("hidden_size", HIDDEN_SIZE))

    return make
