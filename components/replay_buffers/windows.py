"""Rows that come together: frames stacked before a network without memory, sequences before one that has some."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class FrameStack:
    """Makes stacks of the last `frames` observations of what is sampled; each is kept only once.

    A field of `stacked` becomes (B, frames, *shape), the oldest first. Before the first row of its episode, that row's
    is repeated. Where rows have been overwritten that a stack would need, the row is not drawn.

    Raises:
        ValueError: a number is out of its range.
    """

    frames: int
    stacked: tuple[str, ...] = ("obs",)
    """The fields that are stacked as they are."""
    arrival: Mapping[str, str] = field(default_factory=lambda: {"next_obs": "obs"})
    """The fields, by name, that come one step after another: their stacks end with themselves, and are else its."""
    end: str = "done"
    """The field that tells an episode's last row, be the game over or cut; a bool scalar."""
    stride: int = 1
    """Rows from one step of an episode to its next: how many environments take turns."""

    def __post_init__(self) -> None:
        if self.frames < 1 or self.stride < 1:
            raise ValueError(f"expected frames and stride of at least 1, got {self.frames} and {self.stride}")

    @property
    def length(self) -> int:
        """Rows that come together."""
        return self.frames

    @property
    def padded(self) -> bool:
        """Whether what comes before an episode is a repetition of its first row."""
        return True


@dataclass(frozen=True, slots=True)
class Rollout:
    """Makes sequences of `length` rows that end with what is sampled: every field becomes (B, length, *shape).

    Two more fields, (B, length) bool, say which rows are `real`, not repetitions of an episode's first, and which of
    them a loss is to `learn` from: those after the first `burn_in` of each sequence, which only warm a recurrent net
    up (Kapturowski et al. 2019). At the beginning of an episode, start from the initial state at the first real row.

    Raises:
        ValueError: a number is out of its range.
    """

    length: int
    burn_in: int = 0
    """Rows at the start of a sequence that nothing is learnt from."""
    padded: bool = True
    """Repeat an episode's first row where a sequence begins before it; otherwise it begins in the episode before."""
    end: str = "done"
    """The field that tells an episode's last row, be the game over or cut; a bool scalar."""
    stride: int = 1
    """Rows from one step of an episode to its next: how many environments take turns."""

    def __post_init__(self) -> None:
        if self.length < 1 or self.stride < 1 or not 0 <= self.burn_in < self.length:
            raise ValueError(
                f"expected length and stride of at least 1 and burn_in of 0 to length - 1, "
                f"got {self.length}, {self.stride} and {self.burn_in}"
            )


Window = FrameStack | Rollout


def rows_of(
    window: Window, serials: NDArray[np.int64], end: NDArray[np.bool_], oldest: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the serial numbers of the rows of each window, (B, length), and which of them are real.

    Args:
        window: what is wanted.
        serials: the rows with which windows end, (B,).
        end: the ring of the field that tells an episode's last row, in which a serial's slot is its remainder.
        oldest: the serial of the oldest row there is.
    """
    n = window.length
    behind = serials[:, None] - window.stride * np.arange(n - 1, -1, -1)
    real = np.ones(behind.shape, np.bool_)
    if window.padded:
        before = behind[:, :-1]
        real[:, :-1] = (before >= oldest) & ~end[before % len(end)]
        # Real is what no end lies between and the window's own.
        np.logical_and.accumulate(real[:, ::-1], axis=1, out=real[:, ::-1])
        first = n - real.sum(1)
        behind = np.take_along_axis(behind, np.maximum(np.arange(n), first[:, None]), axis=1)
    return behind, real


def check_window(window: Window, fields: Mapping[str, Any], capacity: int) -> None:
    """Raise `ValueError` unless the window names fields that are there and of the kind it needs, and it fits."""
    named = [window.end]
    if isinstance(window, FrameStack):
        named += [*window.stacked, *window.arrival, *window.arrival.values()]
    elif taken := {"real", "learn"} & fields.keys():
        raise ValueError(f"window: expected no field named {min(taken)}, as batches get one of that name")
    for name in named:
        if name not in fields:
            raise ValueError(f"window: expected the names of fields, {list(fields)}, got {name!r}")
    dtype, shape, _ = fields[window.end]
    if np.dtype(dtype).kind != "b" or shape:
        raise ValueError(f"window: expected {window.end} to be scalar bools, it is {dtype} of shape {shape}")
    if isinstance(window, FrameStack):
        for name, other in window.arrival.items():
            if fields[name][:2] != fields[other][:2]:
                raise ValueError(f"window: expected {name} to be like {other}, got {fields[name]} and {fields[other]}")
    reach = (window.length - 1) * window.stride
    if reach >= capacity:
        raise ValueError(
            f"window: expected (length - 1) * stride to be below the capacity, got ({window.length} - 1) * "
            f"{window.stride} = {reach} and {capacity}"
        )
