"""The interface of policies that learn, and the batches that they learn from.

Shapes: B copies of the environment, E episodes, T steps (the longest episode of the batch), A agents, O observation
size, S state size, U actions, H hidden size.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from components.experience import SchemaMismatch
from components.policies.acting import ActingPolicy


class EpisodeBatch:
    """Segments, each a whole episode or a part of one, padded with zeros to the longest. Arrays may be read-only.

    Args:
        lengths: (E,) int32, steps of each segment, 1 to T; frames 0 to length are real.
        terminated: (E,) bool, true where the last frame ends the episode and has no value.
        weights: (E,) float32, importance weights of prioritised sampling; ones otherwise.
        truncated: (E,) bool, true where the episode was cut after the last frame, which has a value. By default all
            segments that are not `terminated`, as for whole episodes.
        versions: (E, T) int32, version of the parameters of each step; None where they are unknown.
        fields: the fields of the experience schema by name: (E, T+1, …) of frames, (E, T, …) of steps, (E, …) of
            segments.
    """

    __slots__ = ("fields", "lengths", "terminated", "truncated", "versions", "weights")

    def __init__(
        self,
        *,
        lengths: NDArray[np.int32],
        terminated: NDArray[np.bool_],
        weights: NDArray[np.float32],
        truncated: NDArray[np.bool_] | None = None,
        versions: NDArray[np.int32] | None = None,
        **fields: NDArray[Any],
    ) -> None:
        self.lengths, self.terminated, self.weights, self.versions = lengths, terminated, weights, versions
        self.truncated = ~terminated if truncated is None else truncated
        self.fields: Mapping[str, NDArray[Any]] = fields

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a field.

        Raises:
            SchemaMismatch: the batch has no such field.
        """
        try:
            return self.fields[name]
        except KeyError:
            raise SchemaMismatch(f"{name}: this batch has only the fields {', '.join(self.fields)}") from None

    @property
    def obs(self) -> NDArray[np.float32]:
        """The field `obs`, (E, T+1, A, O) of a team."""
        return self["obs"]

    @property
    def state(self) -> NDArray[np.float32]:
        """The field `state`, (E, T+1, S) of a team."""
        return self["state"]

    @property
    def available(self) -> NDArray[np.bool_]:
        """The field `available`, (E, T+1, A, U) of a team."""
        return self["available"]

    @property
    def actions(self) -> NDArray[np.int64]:
        """The field `actions`, (E, T, A) of a team."""
        return self["actions"]

    @property
    def reward(self) -> NDArray[np.float32]:
        """The field `reward`, (E, T) of a team."""
        return self["reward"]

    @property
    def epsilon(self) -> NDArray[np.float32] | None:
        """The field `epsilon`, (E,); None for experience without it."""
        return self.fields.get("epsilon")

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the keywords of the constructor that makes an equal batch."""
        own = {name: getattr(self, name) for name in self.__slots__ if name != "fields"}
        return {**{name: array for name, array in own.items() if array is not None}, **self.fields}

    def __len__(self) -> int:
        """Return the number of segments, E."""
        return len(self.lengths)

    def select(self, segments: NDArray[np.bool_]) -> "EpisodeBatch":
        """Return a batch of the chosen segments, (E,) bool; the padding stays."""
        return EpisodeBatch(**{name: array[segments] for name, array in self.arrays().items()})

    def staleness(self, version: int) -> NDArray[np.int64]:
        """Return the policy lag (E,) of each segment's oldest step behind `version`; 0 where no version is known."""
        if self.versions is None:
            return np.zeros(len(self), np.int64)
        real = np.arange(self.versions.shape[1]) < self.lengths[:, None]
        lags = np.where(real & (self.versions >= 0), version - self.versions.astype(np.int64), 0)
        return np.asarray(np.maximum(lags, 0).max(1))

    def replaced(self, **changes: NDArray[Any]) -> "EpisodeBatch":
        """Return a batch with some arrays replaced."""
        return EpisodeBatch(**{**self.arrays(), **changes})


@dataclass(frozen=True, slots=True)
class TrainStepResult:
    """The report of one gradient step."""

    metrics: Mapping[str, float]
    """`loss`, `grad_norm`, `q_taken`, `target`, `td_error` and further figures of the algorithm."""
    priorities: NDArray[np.float32]  # (E,): each episode's new priority, non-negative


class Policy(ActingPolicy):
    """A policy that also learns, from whole episodes.

    Workers receive the parameters of acting, as one flat float32 array (`params`, `load`). A checkpoint holds the
    state of learning (`state_dict`, `load_state_dict`).
    """

    on_policy: ClassVar[bool] = False
    """True if it learns from each segment once, while the segment is of its present version."""
    rollout_length: ClassVar[int | None] = None
    """Default number of steps of each environment per update, if it learns in rounds of steps. None if its batches have
    a fixed number of segments."""
    max_staleness: ClassVar[int | None] = None
    """Largest policy lag, in versions, of the steps from which it learns; None for any. The Trainer leaves out segments
    with an older step, and counts them."""
    uses_epsilon: ClassVar[bool] = True
    """False if actions of training are drawn from the policy's distribution, whatever the exploration rate is."""

    def prepare(self) -> None:  # a policy may have nothing to prepare
        """Allocate memory and compile for learning. A learner calls this once, before its first batch."""

    @abstractmethod
    def learn(self, batch: EpisodeBatch) -> TrainStepResult:
        """Make one gradient step on `batch`."""

    def log_prob(self, batch: EpisodeBatch) -> NDArray[np.float32] | None:
        """Return the log-probabilities (E, T, A) of the actions of `batch` under the present parameters.

        Recurrent policies compute them with the carried hidden state. Padding may have any values. None, as here, if
        the policy does not compute any.
        """
        return None

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the state of learning: networks, targets, optimisers, counters; tensors and plain values only."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state from `state_dict` of an equal policy.

        Raises:
            ValueError: names or shapes differ; the policy is unchanged then.
        """
