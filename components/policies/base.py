"""The interface of policies that learn, and the batches that they learn from.

Shapes: B copies of the environment, E episodes, T steps (the longest episode of the batch), N steps and F = N + E
frames of all episodes, A agents, O observation size, S state size, U actions, H hidden size.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from components.experience import ExperienceSchema, Per, SchemaMismatch
from components.policies.acting import ActingPolicy
from components.policies.chunks import padded_rows, real_rows, rows_of
from components.policies.packing import check_lengths
from components.sparse import dense
from orchestra import SparseArray

Fields = Mapping[str, NDArray[Any]]


Empty = Callable[[str, tuple[int, ...], np.dtype[Any]], NDArray[Any]]
"""Returns an array of that shape and dtype with arbitrary contents, for the field of that name."""
Rows = NDArray[Any] | SparseArray


def _new_array(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.empty(shape, dtype)


def _dense(name: str, rows: Rows, empty: Empty) -> NDArray[Any]:
    """Return the rows of a field; a sparse array becomes dense when it is first read."""
    return dense(rows, partial(empty, name)) if isinstance(rows, SparseArray) else rows


class PaddedFields(Mapping[str, NDArray[Any]]):
    """The padded arrays of a batch by field, each made from its rows when it is first read.

    Args:
        lengths: (E,), steps of each segment.
        per_frame: rows (F, …) by field.
        per_step: rows (N, …) by field.
        per_segment: (E, …) by field.
        empty: makes the dense arrays of sparse ones.
    """

    def __init__(
        self,
        lengths: NDArray[np.int32],
        per_frame: Mapping[str, Rows],
        per_step: Fields,
        per_segment: Fields,
        empty: Empty,
    ) -> None:
        self._lengths, self._empty = lengths, empty
        self._rows: dict[int, Mapping[str, Rows]] = {0: per_step, 1: per_frame}
        self._padded = dict(per_segment)
        self._names = (*per_frame, *per_step, *per_segment)

    def __getitem__(self, name: str) -> NDArray[Any]:
        found = self._padded.get(name)
        if found is None:
            more = int(name in self._rows[1])
            rows = _dense(name, self._rows[more][name], self._empty)
            found = padded_rows(rows, self._lengths + more, int(self._lengths.max()) + more)
            self._padded[name] = found
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        """Return the number of fields."""
        return len(self._names)


class EpisodeBatch:
    """Segments, each a whole episode or a part of one. Arrays may be read-only.

    A batch has its fields in two forms: padded with zeros to the longest segment, and without padding, the segments
    back to back. The form that was not given is made when it is first read.

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

    __slots__ = ("_empty", "_frames", "_steps", "_versions", "fields", "lengths", "terminated", "truncated", "weights")

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
        self.lengths, self.terminated, self.weights, self._versions = lengths, terminated, weights, versions
        self.truncated = ~terminated if truncated is None else truncated
        self.fields: Fields = fields
        """The padded arrays by field."""
        self._frames: dict[str, Rows] = {}
        self._steps: dict[str, Rows] = {}
        self._empty: Empty = _new_array

    @classmethod
    def of_rows(
        cls,
        *,
        lengths: NDArray[np.int32],
        terminated: NDArray[np.bool_],
        weights: NDArray[np.float32],
        truncated: NDArray[np.bool_] | None = None,
        versions: NDArray[np.int32] | None = None,
        per_frame: Mapping[str, Rows],
        per_step: Fields,
        per_segment: Fields,
        empty: Empty = _new_array,
    ) -> "EpisodeBatch":
        """Return a batch whose fields are given without padding.

        `lengths`, `terminated`, `weights` and `truncated` are as in the constructor.

        Args:
            lengths: (E,) int32.
            terminated: (E,) bool.
            weights: (E,) float32.
            truncated: (E,) bool.
            versions: (N,) int32; None where they are unknown.
            per_frame: (F, …) by field; sparse arrays become dense when they are first read.
            per_step: (N, …) by field.
            per_segment: (E, …) by field.
            empty: makes these dense arrays.
        """
        batch = cls(lengths=lengths, terminated=terminated, weights=weights, truncated=truncated)
        batch._frames, batch._steps, batch._empty = dict(per_frame), dict(per_step), empty
        batch.fields = PaddedFields(lengths, per_frame, per_step, per_segment, empty)
        batch._versions = versions
        return batch

    @property
    def is_padded(self) -> bool:
        """False if the fields were given without padding."""
        return not isinstance(self.fields, PaddedFields)

    def frames(self, name: str) -> NDArray[Any]:
        """Return the rows (F, …) of a field of frames, without padding.

        Raises:
            SchemaMismatch: the batch has no such field.
            ValueError: a length is not in 1 … T.
        """
        return self._rows(self._frames, name, 1)

    def held(self, name: str) -> Rows:
        """Return the rows of a field of frames as `frames` does, or as the sparse array that was given.

        Raises:
            SchemaMismatch, ValueError: as `frames`.
        """
        held = self._frames.get(name)
        return self.frames(name) if held is None else held

    def steps(self, name: str) -> NDArray[Any]:
        """Return the rows (N, …) of a field of steps, without padding.

        Raises:
            SchemaMismatch, ValueError: as `frames`.
        """
        return self._rows(self._steps, name, 0)

    def _rows(self, rows: dict[str, Rows], name: str, more: int) -> NDArray[Any]:
        found = rows.get(name)
        if found is None:
            array = self[name]
            check_lengths(self.lengths, array.shape[1] - more)
            found = rows[name] = real_rows(array, self.lengths + more)
        return _dense(name, found, self._empty)

    def check_shapes(self, schema: ExperienceSchema) -> int:
        """Check the arrays by field, and return E.

        Raises:
            SchemaMismatch: a field is missing, or its shape or dtype is wrong. The message names it.
        """
        leading: dict[Per, tuple[int, ...]]
        if self.is_padded:
            n, longest = len(self.reward), self.reward.shape[1]
            leading = {"frame": (n, longest + 1), "step": (n, longest), "segment": (n,)}
            schema.check_shapes(lambda _, name: self.fields.get(name), leading)
            return n
        n, n_steps = len(self.lengths), int(self.lengths.sum())
        leading = {"frame": (n_steps + n,), "step": (n_steps,), "segment": (n,)}
        read = {"frame": self.frames, "step": self.steps, "segment": self.fields.__getitem__}
        held = {"frame": self._frames, "step": self._steps, "segment": self.fields}
        schema.check_shapes(lambda per, name: read[per](name) if name in held[per] else None, leading)
        return n

    @property
    def versions(self) -> NDArray[np.int32] | None:
        """Version of the parameters of each step, (E, T); None where they are unknown."""
        if self._versions is not None and self._versions.ndim == 1:
            return padded_rows(self._versions, self.lengths, self.longest)
        return self._versions

    @property
    def versions_of_steps(self) -> NDArray[np.int32] | None:
        """The same without padding, (N,)."""
        if self._versions is None or self._versions.ndim == 1:
            return self._versions
        return real_rows(self._versions, self.lengths)

    @property
    def longest(self) -> int:
        """T, the number of steps to which segments are padded."""
        return int(self.actions.shape[1] if self.is_padded else self.lengths.max())

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
        """Return the keywords of the constructor that makes an equal batch, with padded arrays."""
        own = {name: getattr(self, name) for name in ("lengths", "terminated", "truncated", "versions", "weights")}
        return {**{name: array for name, array in own.items() if array is not None}, **self.fields}

    def __len__(self) -> int:
        """Return the number of segments, E."""
        return len(self.lengths)

    def select(self, segments: NDArray[np.bool_] | NDArray[np.int64]) -> "EpisodeBatch":
        """Return a batch of the segments chosen by a mask (E,) or by their numbers; padding stays."""
        if self.is_padded:
            return EpisodeBatch(**{name: array[segments] for name, array in self.arrays().items()})
        frames, steps = rows_of(segments, self.lengths + 1), rows_of(segments, self.lengths)
        per_segment = {name: self.fields[name] for name in self.fields if name not in {*self._frames, *self._steps}}
        return EpisodeBatch.of_rows(
            lengths=self.lengths[segments],
            terminated=self.terminated[segments],
            weights=self.weights[segments],
            truncated=self.truncated[segments],
            versions=None if self._versions is None else self._versions[steps],
            per_frame={name: self.frames(name)[frames] for name in self._frames},
            per_step={name: self.steps(name)[steps] for name in self._steps},
            per_segment={name: array[segments] for name, array in per_segment.items()},
        )

    def staleness(self, version: int) -> NDArray[np.int64]:
        """Return the policy lag (E,) of each segment's oldest step behind `version`; 0 where no version is known."""
        versions = self.versions_of_steps
        if versions is None:
            return np.zeros(len(self), np.int64)
        lags = np.where(versions >= 0, version - versions.astype(np.int64), 0)
        return np.asarray(np.maximum(np.maximum.reduceat(lags, np.cumsum(self.lengths) - self.lengths), 0))

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
