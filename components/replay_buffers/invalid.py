"""Errors for data that a replay buffer refuses, and the checks that raise them."""

from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

FEW = 1024
"""Most numbers of an array that is checked for NaN and infinities by one sum."""


class InvalidExperience(ValueError):
    """Items or priorities are malformed; the replay buffer is unchanged."""


class BufferFull(InvalidExperience):
    """A queue has no room for new items, because waiting items are never dropped."""


class UnknownClient(InvalidExperience):
    """No client of this name has joined, or it has left."""


class NameTaken(InvalidExperience):
    """A client of this name has already joined, and is alive."""


def check_array(name: str, array: Any, shape: tuple[int, ...], dtype: Any) -> None:
    """Raise `InvalidExperience` unless this is an array of that shape and dtype."""
    if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != dtype:
        raise InvalidExperience(f"{name}: expected {np.dtype(dtype)} of shape {shape}, got {describe(array)}")


def check_finite(name: str, array: NDArray[Any], place: str = "in row") -> None:
    """Raise `InvalidExperience` unless all numbers (N, ...) are finite."""
    # A finite sum of squares excludes others; for few numbers it takes half the time of looking at each.
    if array.size <= FEW and isfinite(np.vdot(array, array)):
        return
    if np.count_nonzero(np.isfinite(array)) < array.size:  # for few rows in half the time of `all`
        row = int(np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(1))[0])
        raise InvalidExperience(f"{name}: expected finite numbers, got {array[row]} {place} {row}")


def check_indices(indices: NDArray[np.int64], generations: NDArray[np.int64], capacity: int) -> None:
    """Raise `InvalidExperience` unless these are two arrays of one length, and every index is in 0 … capacity - 1."""
    for name, array in (("indices", indices), ("generations", generations)):
        if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind != "i":
            raise InvalidExperience(f"{name}: expected signed integers of shape (B,), got {describe(array)}")
    if len(indices) != len(generations):
        raise InvalidExperience(f"generations: expected shape {indices.shape}, got {generations.shape}")
    # As unsigned integers, negative indices are above any capacity.
    if len(indices) and np.maximum.reduce(indices.astype(np.int64, copy=False).view(np.uint64)) >= capacity:
        raise InvalidExperience(f"indices: expected 0 to {capacity - 1}, got {indices}")


def check_priorities(priorities: NDArray[np.floating[Any]], n: int) -> None:
    """Raise `InvalidExperience` unless these are n floats that are finite and at least 0."""
    if not isinstance(priorities, np.ndarray) or priorities.shape != (n,) or priorities.dtype.kind != "f":
        raise InvalidExperience(f"priorities: expected floats of shape ({n},), got {describe(priorities)}")
    # NaN is neither at least 0 nor below infinity, and passes through both minimum and maximum.
    if n and not (priorities.min() >= 0 and priorities.max() < np.inf):
        raise InvalidExperience(f"priorities: expected finite numbers of at least 0, got {priorities}")


def describe(array: Any) -> str:
    """Return dtype and shape of an array, or the type of any other object."""
    if isinstance(array, (np.ndarray, np.generic)):
        return f"{array.dtype} of shape {array.shape}"
    return type(array).__name__
