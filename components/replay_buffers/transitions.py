"""Transitions in a ring of named fields, drawn uniformly or by priority.

N rows are inserted and B are sampled at a time. Nothing here waits, and nothing is locked: one thread at a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from components.checkpoints.array_file import ArrayReader, Checkpointed, StateArray, prefixed
from components.replay_buffers.closed import Closable
from components.replay_buffers.invalid import InvalidExperience, describe
from components.replay_buffers.storage import BatchMemory, allocate, freeze
from components.replay_buffers.windows import FrameStack, Rollout, Window, check_window, rows_of

Check = tuple[str, tuple[int, ...], np.dtype[Any], bool]
"""What a field has to be like: its name, shape and dtype, and whether its numbers are to be finite."""


class Field(NamedTuple):
    """What one field of a row holds."""

    dtype: DTypeLike
    shape: tuple[int, ...] = ()
    finite: bool = False
    """Whether NaN and infinities are refused. Looking for them costs, so it is asked for: for a reward, say."""


@dataclass(frozen=True, slots=True)
class NStep:
    """Makes n-step transitions of what is sampled, from the rows that follow: rewards are summed, arrivals taken later.

    A sum ends with its episode, and before what has not been inserted yet. Every batch has one field more, `discount`
    (B,) float32: `gamma` to the number of rewards summed, by which what the last of them arrived at is to be weighed.

    Raises:
        ValueError: a number is out of its range.
    """

    n: int
    gamma: float
    reward: str = "reward"
    """The field that is summed; a floating scalar."""
    end: str = "done"
    """The field that tells an episode's last row, be the game over or cut; a bool scalar."""
    arrival: tuple[str, ...] = ("next_obs", "done")
    """The fields that are taken from the last row of the sum."""
    stride: int = 1
    """Rows from one step of an episode to its next: how many environments take turns."""

    def __post_init__(self) -> None:
        if self.n < 1 or self.stride < 1 or not 0.0 <= self.gamma <= 1.0:
            raise ValueError(
                f"expected n and stride of at least 1 and gamma in [0, 1], got {self.n}, {self.stride} and {self.gamma}"
            )


@dataclass(frozen=True, slots=True)
class SampledTransitions:
    """Rows drawn from a ring, and what `update` needs to find them again."""

    batch: dict[str, NDArray[Any]]  # by field, (B, *shape)
    indices: NDArray[np.int64]  # (B,)
    generations: NDArray[np.int64]  # (B,): differs from one row to the next that is kept under the same index
    weights: NDArray[np.float32]  # (B,): importance weights; 1 where draws are uniform


class Transitions(Closable, Checkpointed):
    """The last `capacity` transitions, drawn uniformly and with repetition.

    Every field is one array, so a batch is one gather for each of them.

    Args:
        fields: by name, what a row holds.
        capacity: rows held at most; the oldest go first.
        n_step: how the rewards of rows are summed when they are sampled; not at all by default.
        window: which rows come together when one is sampled; only that one by default. Rows whose window would need
            some that have been overwritten are not drawn any more.
        folder: where rows are kept, in files without a name that are mapped into memory; by default they are in memory.

    Raises:
        ValueError: `capacity` is below 1, there are no fields, one holds Python objects, or `n_step`
            or `window` names one that isn't there or isn't of the kind it needs, or reaches too far.
        OSError: there is no such folder, or too little space in it.
    """

    state_kind = "Transitions"

    def __init__(
        self,
        fields: Mapping[str, Field],
        capacity: int,
        *,
        n_step: NStep | None = None,
        window: Window | None = None,
        folder: str | Path | None = None,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity: expected at least 1, got {capacity}")
        if not fields:
            raise ValueError("fields: expected at least one")
        self.fields = {name: Field(np.dtype(f.dtype), tuple(f.shape), f.finite) for name, f in fields.items()}
        self.capacity, self.n_step, self.window = capacity, n_step, window
        self.inserted = 0
        """Rows inserted so far, those that are gone included."""
        self._ring: dict[str, NDArray[Any]] = {}
        self.checks: list[Check] = []
        """What each field of a row has to be like."""
        for name, (dtype, shape, finite) in self.fields.items():
            if np.dtype(dtype).hasobject:
                raise ValueError(f"{name}: expected a dtype of plain memory, got {dtype}")
            self._ring[name] = allocate((capacity, *shape), dtype, folder)
            self.checks.append((name, shape, np.dtype(dtype), finite and np.dtype(dtype).kind == "f"))
        if n_step is not None:
            self._check_n_step(n_step)
        if window is not None:
            check_window(window, self.fields, capacity)
            if n_step is not None and isinstance(window, Rollout):
                raise ValueError("window: expected no n_step beside a Rollout, which has the rewards of all its rows")
        self._reach = 0 if window is None else (window.length - 1) * window.stride
        self._batches = BatchMemory()

    def _check_n_step(self, n_step: NStep) -> None:
        for name, kind in ((n_step.reward, "f"), (n_step.end, "b"), *((name, "") for name in n_step.arrival)):
            if name not in self.fields:
                raise ValueError(f"n_step: expected the names of fields, {list(self.fields)}, got {name!r}")
            dtype, shape, _ = self.fields[name]
            if kind and (np.dtype(dtype).kind != kind or shape):
                wanted = "floats" if kind == "f" else "bools"
                raise ValueError(f"n_step: expected {name} to be scalar {wanted}, it is {dtype} of shape {shape}")
        if "discount" in self.fields:
            raise ValueError("n_step: expected no field named discount, as batches get one of that name")

    def __len__(self) -> int:
        """Return how many rows are held."""
        return min(self.inserted, self.capacity)

    @property
    def batch_fields(self) -> dict[str, Field]:
        """What each row of a batch holds, by name."""
        fields, window = dict(self.fields), self.window
        if self.n_step is not None:
            fields["discount"] = Field(np.float32)
        if window is not None:
            wide = fields if isinstance(window, Rollout) else {*window.stacked, *window.arrival}
            for name in wide:
                dtype, shape, finite = fields[name]
                fields[name] = Field(dtype, (window.length, *shape), finite)
        if isinstance(window, Rollout):
            fields |= {name: Field(np.bool_, (window.length,)) for name in ("real", "learn")}
        return fields

    @property
    def n_bytes(self) -> int:
        """Bytes that rows have been given, of which the system has handed out those that were written."""
        return sum(array.nbytes for array in self._ring.values())

    # Inserting ------------------------------------------------------------------------------------------------------

    def insert(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Add N rows, and drop the oldest beyond `capacity`.

        Args:
            rows: by field, (N, *shape) of its dtype.

        Raises:
            InvalidExperience: a field is missing or is none, or its shape or dtype is another, or a number of a field
                that is to be finite is not. The message names the field and what was expected; nothing is inserted.
        """
        self._write(rows, self.check_rows(rows))

    def insert_one(self, row: Mapping[str, Any]) -> None:
        """Add one row, whose fields are arrays or NumPy scalars of their dtype, or Python numbers that fit it.

        Raises:
            InvalidExperience: as for `insert`.
        """
        self._write_one(self.check_row(row))

    def _write_one(self, values: Mapping[str, Any]) -> None:
        slot = self.inserted % self.capacity
        self._announce(self._ring.values(), slice(slot, slot + 1))
        for name, array in self._ring.items():
            array[slot] = values[name]
        self.inserted += 1

    def _write(self, rows: Mapping[str, NDArray[Any]], n: int) -> None:
        surplus = max(n - self.capacity, 0)  # these would be dropped at once
        start = (self.inserted + surplus) % self.capacity
        until_end = min(n - surplus, self.capacity - start)
        self._announce(self._ring.values(), slice(start, start + until_end), slice(n - surplus - until_end))
        for name, array in self._ring.items():
            source = rows[name]
            array[start : start + until_end] = source[surplus : surplus + until_end]
            if surplus + until_end < n:
                array[: n - surplus - until_end] = source[surplus + until_end :]
        self.inserted += n

    def _check_names(self, rows: Mapping[str, Any]) -> None:
        if rows.keys() != self._ring.keys():
            raise InvalidExperience(f"expected the fields {list(self._ring)}, got {list(rows)}")

    def check_rows(self, rows: Mapping[str, NDArray[Any]]) -> int:
        """Return how many rows these are, N.

        Raises:
            InvalidExperience: `insert` would refuse them.
        """
        self._check_names(rows)
        n = -1
        for name, shape, dtype, finite in self.checks:
            array = rows[name]
            if not isinstance(array, np.ndarray):
                raise InvalidExperience(f"{name}: expected an array of {dtype}, got {type(array).__name__}")
            if n < 0:
                n = len(array) if array.ndim else 0
            if array.shape != (n, *shape) or array.dtype != dtype:
                raise InvalidExperience(
                    f"{name}: expected {dtype} of shape {(n, *shape)}, got {array.dtype} of shape {array.shape}"
                )
            if finite and not np.isfinite(array).all():
                row = int(np.flatnonzero(~np.isfinite(array).reshape(n, -1).all(1))[0])
                raise InvalidExperience(f"{name}: expected finite numbers, got {array[row]} in row {row}")
        return n

    def check_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a row by field, Python numbers as scalars of their dtype.

        Raises:
            InvalidExperience: `insert_one` would refuse it.
        """
        self._check_names(row)
        return {check[0]: checked(row[check[0]], *check) for check in self.checks}

    # Sampling -------------------------------------------------------------------------------------------------------

    def sample(self, batch_size: int, rng: np.random.Generator) -> SampledTransitions:
        """Draw `batch_size` rows, B, one as likely as another.

        The batch is read-only and stays as it is for as long as it is used.

        Raises:
            ValueError: nothing is held that can be drawn, or `batch_size` is below 1.
        """
        if batch_size < 1 or len(self) <= self._lead:
            raise ValueError(f"expected a batch_size of at least 1 and rows to draw, got {batch_size} and {len(self)}")
        slots, weights = self._draw(batch_size, rng)
        generations = self._generations_of(slots)
        return SampledTransitions(self._gather(slots, generations), slots, generations, weights)

    def _generations_of(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many rows were inserted before those in `slots` (B,)."""
        newest = self.inserted - 1
        return newest - (newest - slots) % self.capacity

    def _draw(self, batch_size: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the slots (B,) of a batch and their importance weights (B,)."""
        lead = self._lead
        slots = rng.integers(lead, len(self), batch_size)
        if lead:  # the oldest come first only when they are counted from there
            slots = (self.inserted - len(self) + slots) % self.capacity
        return slots, np.ones(batch_size, np.float32)

    @property
    def _lead(self) -> int:
        """How many of the oldest rows are not to be drawn, since their windows would begin before them."""
        if not self._reach or (self.inserted <= self.capacity and self.window is not None and self.window.padded):
            return 0
        return self._reach

    @property
    def _first(self) -> int:
        """The serial number of the oldest row that may be drawn."""
        return max(self.inserted - len(self) + self._lead, 0)

    def _gather(self, slots: NDArray[np.int64], serials: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        n_step, window = self.n_step, self.window
        batch: dict[str, NDArray[Any]] = {}
        last, arrival = serials, slots
        if n_step is not None:
            last = self._sum_rewards(n_step, serials, batch)
            arrival = last % self.capacity
        if isinstance(window, FrameStack):
            self._stack(window, serials, last, batch)
        elif window is not None:
            self._unroll(window, serials, batch)
        for name, source in self._ring.items():
            if name in batch:
                continue
            wanted = arrival if n_step is not None and name in n_step.arrival else slots
            batch[name] = self._batches.gather(name, source, wanted)
        return batch

    def _stack(
        self,
        window: FrameStack,
        serials: NDArray[np.int64],
        last: NDArray[np.int64],
        batch: dict[str, NDArray[Any]],
    ) -> None:
        """Put the fields that are stacked into a batch."""
        end, oldest = self._ring[window.end], self.inserted - len(self)
        arriving = () if self.n_step is None else self.n_step.arrival
        rows = rows_of(window, serials, end, oldest)[0] % self.capacity
        rows_last = rows if last is serials else rows_of(window, last, end, oldest)[0] % self.capacity
        for name in (*window.stacked, *window.arrival):
            source, wanted = self._ring[name], rows_last if name in arriving else rows
            if name in window.arrival:
                out = batch[name] = self._batches.empty(name, (*wanted.shape, *source.shape[1:]), source.dtype)
                out[:, :-1] = self._ring[window.arrival[name]][wanted[:, 1:]]
                out[:, -1] = source[wanted[:, -1]]
                freeze(out)
            else:
                batch[name] = self._batches.gather(name, source, wanted)

    def _unroll(
        self,
        window: Rollout,
        serials: NDArray[np.int64],
        batch: dict[str, NDArray[Any]],
    ) -> None:
        """Put all fields into a batch, as sequences."""
        rows, real = rows_of(window, serials, self._ring[window.end], self.inserted - len(self))
        rows %= self.capacity
        for name, source in self._ring.items():
            batch[name] = self._batches.gather(name, source, rows)
        batch["real"], batch["learn"] = freeze(real), freeze(real & (np.arange(window.length) >= window.burn_in))

    def _sum_rewards(
        self, n_step: NStep, serials: NDArray[np.int64], batch: dict[str, NDArray[Any]]
    ) -> NDArray[np.int64]:
        """Put rewards and discounts into a batch, and return the serial numbers (B,) where the sums end."""
        ahead = serials[:, None] + n_step.stride * np.arange(n_step.n)
        rows = ahead % self.capacity
        counts = np.ones(rows.shape, np.bool_)
        counts[:, 1:] = (ahead[:, 1:] < self.inserted) & ~self._ring[n_step.end][rows[:, :-1]]
        np.logical_and.accumulate(counts, axis=1, out=counts)
        reward = self._ring[n_step.reward]
        discounted = np.where(counts, reward[rows], 0.0) * n_step.gamma ** np.arange(n_step.n)
        n_summed = counts.sum(1)
        batch[n_step.reward] = freeze(discounted.sum(1).astype(reward.dtype))
        batch["discount"] = freeze((n_step.gamma**n_summed).astype(np.float32))
        return np.asarray(ahead[np.arange(len(rows)), n_summed - 1], np.int64)

    # Checkpoints ----------------------------------------------------------------------------------------------------

    def _state_arrays(self) -> dict[str, StateArray]:
        arrays = {
            "capacity": StateArray.of(np.array(self.capacity, np.int64)),
            "inserted": StateArray.of(np.array(self.inserted, np.int64)),
        }
        rows = {name: StateArray.of(array[: len(self)], announced=True) for name, array in self._ring.items()}
        return arrays | prefixed("rows", rows)

    def _check_state(self, reader: ArrayReader) -> None:
        reader.expect_value("capacity", self.capacity)
        held = min(reader.read_count("inserted"), self.capacity)
        for name, array in self._ring.items():
            reader.expect(f"rows/{name}", array.dtype, (held, *array.shape[1:]))

    def _load_state(self, reader: ArrayReader) -> None:
        self.inserted = 0  # should reading fail from here on, nothing is held
        inserted = reader.read_count("inserted")
        self._announce(self._ring.values(), slice(min(inserted, self.capacity)))
        for name, array in self._ring.items():
            reader.read_into(f"rows/{name}", array[: min(inserted, self.capacity)])
        self.inserted = inserted

    def _release(self) -> None:
        self._ring = {}
        self._batches = BatchMemory()

    def check_valid(self) -> list[str]:
        """Return what is wrong with the books, one sentence each; nothing if all is well."""
        return []

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self)}/{self.capacity} rows of {', '.join(self.fields)}>"


def checked(value: Any, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], finite: bool) -> Any:
    """Return what one row holds in a field, a Python number as a scalar of its dtype.

    Raises:
        InvalidExperience: it is something else.
    """
    if isinstance(value, (bool, int, float)) and not isinstance(value, np.generic) and not shape:
        value = _from_python(name, value, dtype)
    elif not isinstance(value, (np.ndarray, np.generic)) or value.shape != shape or value.dtype != dtype:
        raise InvalidExperience(f"{name}: expected {dtype} of shape {shape}, got {describe(value)}")
    if finite and not (np.isfinite(value).all() if shape else isfinite(value)):
        raise InvalidExperience(f"{name}: expected finite numbers, got {value}")
    return value


def _from_python(name: str, value: float, dtype: np.dtype[Any]) -> Any:
    """Return a Python number as a scalar of `dtype`, unless it is of another kind or does not fit."""
    kinds = "b" if isinstance(value, bool) else "iuf" if isinstance(value, int) else "f"
    if dtype.kind not in kinds:
        raise InvalidExperience(f"{name}: expected {dtype} of shape (), got {type(value).__name__}")
    try:
        return dtype.type(value)
    except OverflowError:
        raise InvalidExperience(f"{name}: expected {dtype} of shape (), got {value}, which does not fit") from None
