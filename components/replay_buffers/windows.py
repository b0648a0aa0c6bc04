"""Rows that are sampled together: n-step transitions, stacks of frames, and sequences for recurrent networks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class NStep:
    """Makes n-step transitions of sampled rows: sums the rewards of following rows, and takes arrivals from the last.

    A sum ends with its episode, and before rows that have not been inserted yet. Each batch has one more field,
    `discount` (B,) float32: `gamma` to the power of the number of summed rewards, the factor for the last value.

    Raises:
        ValueError: a number is out of its range.
    """

    n: int
    gamma: float
    reward: str = "reward"
    """Field to sum, a floating scalar."""
    end: str = "done"
    """Field that marks the last row of an episode, terminated or cut; a bool scalar."""
    arrival: tuple[str, ...] = ("next_obs", "done")
    """Fields taken from the last row of the sum."""
    stride: int = 1
    """Rows from one step of an episode to its next: the number of environments that take turns."""

    def __post_init__(self) -> None:
        if self.n < 1 or self.stride < 1 or not 0.0 <= self.gamma <= 1.0:
            raise ValueError(
                f"expected n and stride of at least 1 and gamma in [0, 1], got {self.n}, {self.stride} and {self.gamma}"
            )

    def sum_rewards(
        self, ring: Mapping[str, NDArray[Any]], serials: NDArray[np.int64], inserted: int
    ) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.int64]]:
        """Return the summed rewards (B,), discounts (B,), and serial numbers (B,) of the rows where the sums end.

        Args:
            ring: arrays by field; the row of a serial number is its remainder by the capacity.
            serials: first rows of the sums, (B,).
            inserted: serial number of the row that is inserted next.
        """
        ahead = serials[:, None] + self.stride * np.arange(self.n)
        reward, end = ring[self.reward], ring[self.end]
        rows = ahead % len(reward)
        counts = np.ones(rows.shape, np.bool_)
        counts[:, 1:] = (ahead[:, 1:] < inserted) & ~end[rows[:, :-1]]
        np.logical_and.accumulate(counts, axis=1, out=counts)
        discounted = np.where(counts, reward[rows], 0.0) * self.gamma ** np.arange(self.n)
        n_summed = counts.sum(1)
        last = np.asarray(ahead[np.arange(len(rows)), n_summed - 1], np.int64)
        return discounted.sum(1).astype(reward.dtype), (self.gamma**n_summed).astype(np.float32), last


@dataclass(frozen=True, slots=True)
class FrameStack:
    """Makes stacks of the last `frames` observations of sampled rows; each observation is stored once.

    A field of `stacked` becomes (B, frames, *shape), the oldest first. Before the first row of an episode, that row is
    repeated. A row is not drawn if its stack may need overwritten rows.

    Raises:
        ValueError: a number is out of its range.
    """

    frames: int
    stacked: tuple[str, ...] = ("obs",)
    """Fields that are stacked."""
    arrival: Mapping[str, str] = field(default_factory=lambda: {"next_obs": "obs"})
    """Fields one step later, and the fields that they continue: the stack of `next_obs` has the newest frames of `obs`,
    and ends with `next_obs`."""
    end: str = "done"
    """Field that marks the last row of an episode, terminated or cut; a bool scalar."""
    stride: int = 1
    """Rows from one step of an episode to its next: the number of environments that take turns."""
    padded: ClassVar[bool] = True
    """The first row of an episode is repeated before it."""

    def __post_init__(self) -> None:
        if self.frames < 1 or self.stride < 1:
            raise ValueError(f"expected frames and stride of at least 1, got {self.frames} and {self.stride}")

    @property
    def length(self) -> int:
        """Rows of a window."""
        return self.frames


@dataclass(frozen=True, slots=True)
class RolloutWindow:
    """Makes sequences of `length` rows that end with the sampled row: every field becomes (B, length, *shape).

    Two more fields, (B, length) bool, mark the rows that are `real`, not repetitions of an episode's first row, and the
    rows to `learn` from: real rows after the first `burn_in` of the sequence, which only warm up a recurrent network
    (Kapturowski et al. 2019). At the beginning of an episode, start from the initial state at the first real row.

    Raises:
        ValueError: a number is out of its range.
    """

    length: int
    burn_in: int = 0
    """Rows at the start of a sequence that are not learnt from."""
    padded: bool = True
    """Repeat an episode's first row where a sequence begins before it; otherwise it begins in the episode before."""
    end: str = "done"
    """Field that marks the last row of an episode, terminated or cut; a bool scalar."""
    stride: int = 1
    """Rows from one step of an episode to its next: the number of environments that take turns."""

    def __post_init__(self) -> None:
        if self.length < 1 or self.stride < 1 or not 0 <= self.burn_in < self.length:
            raise ValueError(
                f"expected length and stride of at least 1 and burn_in of 0 to length - 1, "
                f"got {self.length}, {self.stride} and {self.burn_in}"
            )


Window = FrameStack | RolloutWindow


def reach_of(window: Window) -> int:
    """Return the number of rows before the sampled row that the window may need."""
    return (window.length - 1) * window.stride


def rows_of(
    window: Window, serials: NDArray[np.int64], end: NDArray[np.bool_], oldest: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the serial numbers of the rows of each window, (B, length), and which of them are real.

    Args:
        window: rows that are sampled together.
        serials: last rows of the windows, (B,).
        end: marks the last row of an episode; the row of a serial number is its remainder by the capacity.
        oldest: serial number of the oldest row.
    """
    n = window.length
    behind = serials[:, None] - window.stride * np.arange(n - 1, -1, -1)
    real = np.ones(behind.shape, np.bool_)
    if window.padded:
        before = behind[:, :-1]
        real[:, :-1] = (before >= oldest) & ~end[before % len(end)]
        # A row is real if no end lies between it and the sampled row.
        np.logical_and.accumulate(real[:, ::-1], axis=1, out=real[:, ::-1])
        first = n - real.sum(1)
        behind = np.take_along_axis(behind, np.maximum(np.arange(n), first[:, None]), axis=1)
    return behind, real


def _check_field(fields: Mapping[str, Any], argument: str, name: str, kind: str = "") -> None:
    """Raise `ValueError` unless there is a field `name`, a scalar of dtype `kind`, "f" or "b", if one is given."""
    if name not in fields:
        raise ValueError(f"{argument}: expected the names of fields, {list(fields)}, got {name!r}")
    dtype, shape, _ = fields[name]
    if kind and (np.dtype(dtype).kind != kind or shape):
        wanted = "floats" if kind == "f" else "bools"
        raise ValueError(f"{argument}: expected {name} to be scalar {wanted}, it is {dtype} of shape {shape}")


def check_n_step(n_step: NStep, fields: Mapping[str, Any]) -> None:
    """Raise `ValueError` unless the fields that `n_step` names exist and have the dtype it needs."""
    for name, kind in ((n_step.reward, "f"), (n_step.end, "b"), *((name, "") for name in n_step.arrival)):
        _check_field(fields, "n_step", name, kind)
    if "discount" in fields:
        raise ValueError("n_step: expected no field named discount, as batches get one of that name")


def check_window(window: Window, fields: Mapping[str, Any], capacity: int) -> None:
    """Raise `ValueError` unless the fields that the window names exist and fit, and it is shorter than the ring."""
    if isinstance(window, FrameStack):
        for name in (*window.stacked, *window.arrival, *window.arrival.values()):
            _check_field(fields, "window", name)
        for name, other in window.arrival.items():
            if fields[name][:2] != fields[other][:2]:
                raise ValueError(f"window: expected {name} to be like {other}, got {fields[name]} and {fields[other]}")
    elif taken := {"real", "learn"} & fields.keys():
        raise ValueError(f"window: expected no field named {min(taken)}, as batches get one of that name")
    _check_field(fields, "window", window.end, "b")
    reach = reach_of(window)
    if reach >= capacity:
        raise ValueError(
            f"window: expected (length - 1) * stride to be below the capacity, got ({window.length} - 1) * "
            f"{window.stride} = {reach} and {capacity}"
        )
