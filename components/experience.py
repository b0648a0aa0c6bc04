"""Experience schema: the fields of a transition, as the environment and the policy declare them.

A *frame* is the observation before a step, or after the last one; a *step* is an action and its results. A *segment* is
a run of consecutive steps of one episode: the whole episode, or a part of it. A segment of T steps has T + 1 frames.

Letters in shapes: E segments, N steps of all of them, F = N + E frames, A agents.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from components.sparse import dense, mismatch
from orchestra import SparseArray

Per = Literal["frame", "step", "segment"]
"""The rows of a field: one per frame, one per step, or one per segment."""

RESERVED = frozenset(
    {
        "lengths",
        "terminated",
        "truncated",
        "versions",
        "won",
        "episode",
        "first",
        "return_before",
        "weights",
        "indices",
        "generations",
        "learn",
        "firsts",
    }
)
"""Names of the arrays that all experience has besides its declared fields."""
_DTYPES = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()  # noqa: SIM905 (a line)
)


class SchemaMismatch(ValueError):
    """Experience does not have the fields that the schema declares. The message names the field."""


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field of a transition.

    Raises:
        ValueError: the dtype is not supported, a size is below 1, `n_values` does not fit the dtype or the shape, or
            `sparse` the dtype or the kind of rows.
    """

    shape: tuple[int, ...] = ()
    """Shape of one value, without the axis of the agents."""
    dtype: str = "float32"
    per: Per = "step"
    agents: bool = False
    """True if each agent has a value: an axis of agents precedes `shape`."""
    n_values: tuple[int, ...] = ()
    """Integers only: values are 0 to `n_values` - 1; one number for all, or one for each entry of the last axis."""
    finite: bool = False
    """True if NaN and infinities are refused."""
    most: float | None = None
    """Largest value allowed; None for any. A log-probability of a discrete action is at most 0."""
    low: tuple[float, ...] = ()
    """Lower bound of each entry of a continuous action; empty without bounds. The environment clips actions to it, but
    they are recorded as the policy chose them."""
    high: tuple[float, ...] = ()
    """Upper bound of each entry, likewise."""
    sparse: bool = False
    """Per frame, and of 4 bytes a number, only: True if most numbers are zero, as those of dead agents are, or equal to
    those of the frame before. Whole episodes then travel, and lie in a replay buffer, with the others alone; all are
    restored bit for bit."""

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise ValueError(f"dtype: expected one of {', '.join(sorted(_DTYPES))}, got {self.dtype!r}")
        if self.per not in ("frame", "step", "segment"):
            raise ValueError(f"per: expected frame, step or segment, got {self.per!r}")
        if self.sparse and (self.per != "frame" or np.dtype(self.dtype).itemsize != 4):
            raise ValueError(f"sparse: expected False for {self.dtype} per {self.per}, got True")
        if any(size < 1 for size in self.shape):
            raise ValueError(f"shape: expected sizes of at least 1, got {self.shape}")
        if self.n_values and (
            np.dtype(self.dtype).kind not in "iu"
            or min(self.n_values) < 1
            or len(self.n_values) not in {1, *self.shape[-1:]}
        ):
            raise ValueError(
                f"n_values: expected numbers of at least 1 for an integer field, one or as many as its last axis has "
                f"entries, got {self.n_values} for {self.dtype} of shape {self.shape}"
            )
        if (self.low or self.high) and (self.shape[-1:] != (len(self.low),) or len(self.low) != len(self.high)):
            raise ValueError(
                f"low, high: expected a bound for each entry of the last axis, got {self.low} and {self.high} for "
                f"shape {self.shape}"
            )

    def item(self, n_agents: int) -> tuple[int, ...]:
        """Return the shape of one row."""
        return (n_agents, *self.shape) if self.agents else self.shape


Fields = tuple[tuple[str, FieldSpec], ...]
"""Fields by name, in their order."""


@dataclass(frozen=True)
class ExperienceSchema:
    """The fields of a transition.

    Raises:
        ValueError: a name is reserved or used twice, a size is below 1, or both `log_prob` and `epsilon` are declared.
    """

    n_agents: int
    limit: int
    """Largest number of steps of a segment."""
    fields: Fields = field(default=())

    def __post_init__(self) -> None:
        names = [name for name, _ in self.fields]
        if taken := RESERVED & set(names):
            raise ValueError(f"{min(taken)}: a field cannot have this name, which all experience has")
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"{min(twice)}: declared twice")
        if self.n_agents < 1 or self.limit < 1:
            raise ValueError(f"expected n_agents and limit of at least 1, got {self.n_agents} and {self.limit}")
        if {"log_prob", "epsilon"} <= set(names):
            raise ValueError("log_prob, epsilon: a policy declares one of them: its actions are drawn in one way")

    @cached_property
    def by_name(self) -> dict[str, FieldSpec]:
        """The fields by name."""
        return dict(self.fields)

    @cached_property
    def items(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and dtype of one row of each field."""
        return {name: (spec.item(self.n_agents), np.dtype(spec.dtype)) for name, spec in self.fields}

    @cached_property
    def frames(self) -> tuple[str, ...]:
        """Names of the fields per frame."""
        return self._names("frame")

    @cached_property
    def sparse(self) -> tuple[str, ...]:
        """Names of the sparse fields, which are some of those per frame."""
        return tuple(name for name, spec in self.fields if spec.sparse)

    @cached_property
    def steps(self) -> tuple[str, ...]:
        """Names of the fields per step."""
        return self._names("step")

    @cached_property
    def segments(self) -> tuple[str, ...]:
        """Names of the fields per segment."""
        return self._names("segment")

    def _names(self, per: Per) -> tuple[str, ...]:
        return tuple(name for name, spec in self.fields if spec.per == per)

    def having(self, more: Mapping[str, FieldSpec]) -> "ExperienceSchema":
        """Return the schema with `more` fields.

        Raises:
            ValueError: as the class.
        """
        return ExperienceSchema(self.n_agents, self.limit, (*self.fields, *more.items()))

    def limited(self, limit: int) -> "ExperienceSchema":
        """Return the schema for segments of at most `limit` steps."""
        return ExperienceSchema(self.n_agents, limit, self.fields)

    def n_bytes(self) -> dict[str, int]:
        """Return the bytes of one row of each field."""
        return {name: prod(shape) * dtype.itemsize for name, (shape, dtype) in self.items.items()}

    def rows(self, per: Per, n_steps: int, n_segments: int) -> int:
        """Return the number of rows of a field, for `n_steps` steps in `n_segments` segments."""
        return {"frame": n_steps + n_segments, "step": n_steps, "segment": n_segments}[per]

    def grouped(self, arrays: Mapping[str, Any]) -> dict[Per, dict[str, Any]]:
        """Return arrays by field as three groups, in the schema's order.

        Raises:
            SchemaMismatch: a field is missing or unknown.
        """
        self.check_names(arrays)
        groups: dict[Per, dict[str, Any]] = {"frame": {}, "step": {}, "segment": {}}
        for name, spec in self.fields:
            groups[spec.per][name] = arrays[name]
        return groups

    def check_names(self, names: Iterable[str]) -> None:
        """Raise `SchemaMismatch` unless these are the names of the fields."""
        given = set(names)
        if missing := [name for name in self.by_name if name not in given]:
            raise SchemaMismatch(f"{missing[0]}: missing; the declared fields are {', '.join(self.by_name)}")
        if unknown := sorted(given - self.by_name.keys()):
            raise SchemaMismatch(f"{unknown[0]}: not declared; the declared fields are {', '.join(self.by_name)}")

    def check(self, arrays: Mapping[str, Any], lengths: NDArray[np.integer[Any]]) -> None:
        """Check arrays by field of segments of `lengths` (E,) steps, back to back; sparse fields may be sparse arrays.

        Raises:
            SchemaMismatch: a field is missing or unknown, its shape or dtype is wrong, a value is out of its range or
                not finite, or the log-probability of an action that was not available is given. The message names the
                field, what is expected and what was given.
        """
        self.check_names(arrays)
        n_steps, n_segments = sum(lengths.tolist()), len(lengths)
        for name, spec in self.fields:
            array, shape = arrays[name], (self.rows(spec.per, n_steps, n_segments), *self.items[name][0])
            if spec.sparse and isinstance(array, SparseArray):
                if wrong := mismatch(array, shape, self.items[name][1], tuple((lengths + 1).tolist())):
                    raise SchemaMismatch(f"{name}: {wrong}")
                if not (spec.finite or spec.n_values or spec.most is not None):
                    continue
                array = dense(array)
            if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != self.items[name][1]:
                raise SchemaMismatch(f"{name}: expected {spec.dtype} of shape {shape}, got {_described(array)}")
            _check_values(name, spec, array)
        if {"log_prob", "available"} <= arrays.keys() and arrays["actions"].dtype.kind == "i":
            leaves = np.arange(n_steps) + np.repeat(np.arange(n_segments), lengths)
            check_log_prob(arrays["log_prob"], arrays["actions"], arrays["available"][leaves])

    def check_shapes(self, array_of: Callable[[Per, str], Any], leading: Mapping[Per, tuple[int, ...]]) -> None:
        """Check the shapes and dtypes of a batch.

        Args:
            array_of: returns the array of a field, if there is one.
            leading: the lengths of the first axes of the fields of frames, of steps and of segments.

        Raises:
            SchemaMismatch: a field is missing, or its shape or dtype is wrong. The message names it.
        """
        for name, spec in self.fields:
            item, dtype = self.items[name]
            shape, array = (*leading[spec.per], *item), array_of(spec.per, name)
            if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != dtype:
                raise SchemaMismatch(f"{name}: expected {dtype} of shape {shape}, got {_described(array)}")


def _check_values(name: str, spec: FieldSpec, array: NDArray[Any]) -> None:
    if spec.finite and not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(1))[0])
        raise SchemaMismatch(f"{name}: expected finite numbers, got {array[row]} at {spec.per} {row}")
    if not array.size:
        return
    if spec.most is not None and array.max() > spec.most:
        raise SchemaMismatch(f"{name}: expected at most {spec.most:g}, got {array.max():g}")
    if len(spec.n_values) == 1 and (array.min() < 0 or array.max() >= spec.n_values[0]):
        raise SchemaMismatch(f"{name}: expected 0 to {spec.n_values[0] - 1}, got {array.min()} to {array.max()}")
    if len(spec.n_values) > 1 and ((array < 0) | (array >= np.array(spec.n_values))).any():
        most = np.array(spec.n_values) - 1
        raise SchemaMismatch(f"{name}: expected 0 to {most}, got {array.reshape(-1, len(most)).max(0)}")


def check_log_prob(log_prob: NDArray[Any], actions: NDArray[Any], available: NDArray[np.bool_]) -> None:
    """Raise `SchemaMismatch` for the log-probability of an action that was not available.

    Args:
        log_prob: (N, A).
        actions: (N, A).
        available: (N, A, U), in the frame that each step leaves.
    """
    allowed = np.take_along_axis(available, actions[..., None], axis=-1)[..., 0]
    if not allowed.all():
        step, agent = np.argwhere(~allowed)[0]
        raise SchemaMismatch(
            f"log_prob: {log_prob[step, agent]:g} is given at step {step} for action {actions[step, agent]} of agent "
            f"{agent}, which was not available"
        )


def team_fields(n_agents: int, n_actions: int, obs_size: int, state_size: int) -> Fields:
    """Return the fields of a cooperative team with discrete actions: observations, state, mask, actions, reward.

    Observations and states are sparse: what agents do not see, and the dead, are zeros.
    """
    return (
        ("obs", FieldSpec((obs_size,), "float32", "frame", agents=True, sparse=True)),
        ("state", FieldSpec((state_size,), "float32", "frame", sparse=True)),
        ("available", FieldSpec((n_actions,), "bool", "frame", agents=True)),
        ("actions", FieldSpec((), "int64", "step", agents=True, n_values=(n_actions,))),
        ("reward", FieldSpec((), "float32", "step", finite=True)),
    )


EPSILON: Mapping[str, FieldSpec] = {"epsilon": FieldSpec((), "float32", "segment", finite=True)}
"""The field of policies that explore with probability ε: the rate at the end of each segment, 0 to 1."""
LOG_PROB = FieldSpec((), "float32", "step", agents=True, finite=True, most=0.0)
"""Log-probability of each agent's discrete action under the policy that chose it."""
VALUE = FieldSpec((), "float32", "frame", agents=True, finite=True)
"""Value of each agent's frame, in units that depend on the policy."""


def _described(array: Any) -> str:
    if isinstance(array, np.ndarray | np.generic):
        return f"{array.dtype} of shape {array.shape}"
    return type(array).__name__
