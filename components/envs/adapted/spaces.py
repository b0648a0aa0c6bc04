"""Gymnasium spaces as fields of experience: the observations and actions of an agent.

A *flat* observation is one vector of float32, named `obs`: a Box of rank 0 or 1, a Discrete or MultiDiscrete as
concatenated one-hot vectors, a MultiBinary as zeros and ones. A Box of higher rank, such as an image, is also named
`obs` and keeps its shape and dtype. A Dict or Tuple becomes one field `obs/KEY` for each part, which keeps its shape
and dtype.

Shapes: n copies of the environment, U actions of a Discrete, D entries of any other action.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from components.envs.base import EnvSpec
from components.experience import Fields, FieldSpec
from orchestra import UsageError

OBS = "obs"
_SEEN = "Box, Discrete, MultiDiscrete and MultiBinary, and Dict and Tuple of them"
_DONE = "Discrete, MultiDiscrete, MultiBinary and Box"
_NUMBERS = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()  # noqa: SIM905 (a line)


@dataclass(frozen=True, slots=True)
class Part:
    """A field of an observation: its path in the observation, and how it is encoded."""

    name: str
    path: tuple[str | int, ...]
    field: FieldSpec
    encode: Callable[[Any], NDArray[Any]]
    """Takes the part of one observation, or of a batch of them."""

    def value(self, observation: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return the part of an observation, or of a batch of them, as an array of this shape.

        Raises:
            ValueError: the part has another shape, is not a number, or is out of the range of a Discrete. The message
                names the field. Whether numbers are finite is not checked.
        """
        try:
            value = self.encode(_at(observation, self.path))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ValueError(f"{self.name}: expected {self.field.dtype} of shape {shape}: {error}") from error
        if value.shape != shape:
            raise ValueError(f"{self.name}: expected {self.field.dtype} of shape {shape}, got shape {value.shape}")
        return value


def parts_of(space: spaces.Space[Any], whose: str) -> tuple[Part, ...]:
    """Return the fields of an observation space.

    Args:
        space: of one agent.
        whose: name of the environment, for error messages.

    Raises:
        UsageError: the space, or a part of it, is of an unsupported kind.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return tuple(_leaves(space, OBS, (), whose))
    if _is_flat(space):
        return (flat_part(space, whose),)
    return (_kept(space, OBS, (), whose),)


def flat_part(space: spaces.Space[Any], whose: str, size: int | None = None) -> Part:
    """Return an observation space as one vector, padded with zeros to `size` entries.

    Raises:
        UsageError: as `parts_of`.
    """
    pieces = [(path, *_vector(leaf, name, whose)) for name, path, leaf in _split(space, OBS, (), whose)]
    width = sum(n for _, n, _ in pieces)

    def encode(value: Any) -> NDArray[Any]:
        vectors = [vector(_at(value, path)) for path, _, vector in pieces]
        leading = vectors[0].shape[:-1]
        if size is not None and size > width:
            vectors.append(np.zeros((*leading, size - width), np.float32))
        return vectors[0] if len(vectors) == 1 else np.concatenate(vectors, -1)

    return Part(OBS, (), FieldSpec((size or width,), "float32", "frame", agents=True), encode)


def flat_size(space: spaces.Space[Any], whose: str) -> int:
    """Return the number of entries of an observation space as one vector.

    Raises:
        UsageError: as `parts_of`.
    """
    return sum(_vector(leaf, name, whose)[0] for name, _, leaf in _split(space, OBS, (), whose))


@dataclass(frozen=True, slots=True)
class Does:
    """The action of an agent: the field `actions`, and how its entries become an action of the environment."""

    field: FieldSpec
    n_actions: int
    """U for a Discrete; 1 for any other space."""
    decode: Callable[[NDArray[Any]], Any]
    """Takes the entries of one agent, or of a batch of agents; bounded actions are clipped."""

    @property
    def masked(self) -> bool:
        """True if some actions may be unavailable, which is possible only for a Discrete."""
        return self.field.shape == () and bool(self.field.n_values)

    def check(self, actions: NDArray[Any], leading: tuple[int, ...]) -> None:
        """Check the shape and the range of actions (*leading, …).

        Raises:
            ValueError: they are of another shape or dtype, out of range, or not finite.
        """
        shape = (*leading, *self.field.shape)
        if self.field.n_values:
            if actions.shape != shape or actions.dtype.kind not in "iu":
                raise ValueError(f"actions: expected integers of shape {shape}, got {actions.dtype} {actions.shape}")
            if (actions < 0).any() or (actions >= np.array(self.field.n_values)).any():
                raise ValueError(f"actions: expected 0 to {np.array(self.field.n_values) - 1}, got {actions}")
        elif actions.shape != shape or actions.dtype.kind != "f" or not np.isfinite(actions).all():
            raise ValueError(f"actions: expected finite floats of shape {shape}, got {actions.dtype} {actions.shape}")


def does_of(space: spaces.Space[Any], whose: str) -> Does:
    """Return the field of an action space.

    Raises:
        UsageError: the space is of an unsupported kind.
    """
    step: dict[str, Any] = {"per": "step", "agents": True}
    if isinstance(space, spaces.Discrete):
        n, start = int(space.n), int(space.start)
        field = FieldSpec((), "int64", n_values=(n,), **step)
        return Does(field, n, lambda actions: actions + start)
    if isinstance(space, spaces.MultiDiscrete):
        counts, first = tuple(space.nvec.reshape(-1).tolist()), space.start
        field = FieldSpec((len(counts),), "int64", n_values=counts, **step)
        return Does(field, 1, lambda actions: _shaped(actions, space).astype(space.dtype) + first)
    if isinstance(space, spaces.MultiBinary):
        field = FieldSpec((prod(space.shape),), "int64", n_values=(2,), **step)
        return Does(field, 1, lambda actions: _shaped(actions, space).astype(space.dtype))
    if isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == "f" and all(space.shape):
        low, high = (tuple(bound.reshape(-1).astype(float).tolist()) for bound in (space.low, space.high))
        field = FieldSpec((len(low),), "float32", low=low, high=high, finite=True, **step)
        return Does(
            field, 1, lambda actions: np.clip(_shaped(actions, space).astype(space.dtype), space.low, space.high)
        )
    raise UsageError(f"{whose}: actions of the space {space} are not supported; an action is {_DONE}, of floats")


def spec_of(
    name: str,
    n_agents: int,
    limit: int,
    parts: tuple[Part, ...],
    does: Does,
    state_size: int,
    more: Fields = (),
    *,
    reward_threshold: float | None = None,
) -> EnvSpec:
    """Return the spec of an environment: that of a team with discrete actions if it has exactly those fields.

    Args:
        name: of the environment.
        n_agents: A.
        limit: maximum number of steps of an episode.
        parts: the observation fields of an agent.
        does: the action of an agent.
        state_size: entries of the state; 0 for none.
        more: further fields; if they contain no `reward`, the team's reward is added.
        reward_threshold: mean return at which it counts as solved; None if there is none.
    """
    flat = parts[0].field.shape[0] if is_flat(parts) else 0
    sizes = (name, n_agents, does.n_actions, max(flat, 1), max(state_size, 1), limit)
    if flat and does.masked and state_size and not more:
        return EnvSpec(*sizes, can_be_won=False, reward_threshold=reward_threshold)
    fields: list[tuple[str, FieldSpec]] = [(part.name, part.field) for part in parts]
    if state_size:
        fields.append(("state", FieldSpec((state_size,), "float32", "frame")))
    if does.masked:
        fields.append(("available", FieldSpec((does.n_actions,), "bool", "frame", agents=True)))
    fields.append(("actions", does.field))
    if "reward" not in dict(more):
        fields.append(("reward", FieldSpec((), "float32", finite=True)))
    return EnvSpec(*sizes, fields=(*fields, *more), can_be_won=False, reward_threshold=reward_threshold)


def is_flat(parts: tuple[Part, ...]) -> bool:
    """True if an agent's observation is one vector."""
    return parts[0].name == OBS and parts[0].field.dtype == "float32" and len(parts[0].field.shape) == 1


def _is_flat(space: spaces.Space[Any]) -> bool:
    if isinstance(space, spaces.Box):
        return len(space.shape) <= 1
    return isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)


def _at(value: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _shaped(actions: NDArray[Any], space: Any) -> NDArray[Any]:
    return actions.reshape(*actions.shape[:-1], *space.shape)


def _split(
    space: spaces.Space[Any], name: str, path: tuple[str | int, ...], whose: str
) -> Iterator[tuple[str, tuple[str | int, ...], spaces.Space[Any]]]:
    """Yield the parts of a space that are one array each, with their names and paths."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts: Any = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, part in parts:
            yield from _split(part, f"{name}/{key}", (*path, key), whose)
    else:
        yield name, path, space


def _leaves(space: spaces.Space[Any], name: str, path: tuple[str | int, ...], whose: str) -> Iterator[Part]:
    for own, place, part in _split(space, name, path, whose):
        yield _kept(part, own, place, whose)


def _kept(space: spaces.Space[Any], name: str, path: tuple[str | int, ...], whose: str) -> Part:
    """Return a space as a field that keeps its shape and dtype; numbers of a Discrete are shifted to begin with 0."""
    frame: dict[str, Any] = {"per": "frame", "agents": True}
    if isinstance(space, spaces.Box) and np.dtype(space.dtype).name in _NUMBERS and all(space.shape):
        dtype = np.dtype(space.dtype)
        return Part(name, path, FieldSpec(space.shape, dtype.name, **frame), lambda value: np.asarray(value, dtype))
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        counts, start = _counts(space)
        bounds = tuple(counts.reshape(-1).tolist()) if counts.ndim < 2 else (int(counts.max()),)
        field = FieldSpec(counts.shape, "int64", n_values=bounds, **frame)
        return Part(name, path, field, lambda value: _ranged(value, start, counts))
    if isinstance(space, spaces.MultiBinary):
        field = FieldSpec(space.shape, "int8", n_values=(2,), **frame)
        return Part(name, path, field, lambda value: np.asarray(value, np.int8))
    raise UsageError(f"{whose}: {name} of the space {space} is not supported; an observation is {_SEEN}")


def _vector(space: spaces.Space[Any], name: str, whose: str) -> tuple[int, Callable[[Any], NDArray[Any]]]:
    """Return the number of entries of a space as a vector, and the function that makes such a vector."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        counts, start = _counts(space)
        return int(counts.sum()), lambda value: _one_hot(_ranged(value, start, counts), counts)
    kept = _kept(space, name, (), whose)
    rank, size = len(kept.field.shape), prod(kept.field.shape)

    def encode(value: Any) -> NDArray[Any]:
        array = np.asarray(value, np.float32)
        return array if rank == 1 else array.reshape(*array.shape[: array.ndim - rank], size)

    return size, encode


def _counts(space: spaces.Discrete | spaces.MultiDiscrete) -> tuple[NDArray[np.int64], Any]:
    """Return the number of values of each number of a space, and the first of these values."""
    return np.asarray(space.n if isinstance(space, spaces.Discrete) else space.nvec, np.int64), space.start


def _ranged(value: Any, start: Any, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers shifted to begin with 0.

    Raises:
        ValueError: a number is not an integer, or is out of its range.
    """
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "iu":
        raise ValueError(f"got {numbers.dtype}, no integers")
    shifted = np.asarray(numbers - start, np.int64)
    if (shifted < 0).any() or (shifted >= counts).any():
        raise ValueError(f"got {numbers}, out of the range of its space")
    return shifted


def _one_hot(numbers: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.float32]:
    flat = numbers.reshape(*numbers.shape[: numbers.ndim - counts.ndim], counts.size)
    vectors = [flat[..., i, None] == np.arange(n) for i, n in enumerate(counts.reshape(-1).tolist())]
    return np.concatenate(vectors, -1).astype(np.float32)
