"""Rows of named fields: how they are stored, checked, written and gathered."""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy import ndarray
from numpy.typing import DTypeLike, NDArray

from components.checkpoints.array_file import ROWS, ArrayReader, StateArray, prefixed
from components.replay_buffers.invalid import InvalidExperience, check_finite, describe
from components.replay_buffers.ring import EVERY, Placement
from components.replay_buffers.storage import BatchMemory, Overwrites, allocate, announce, freeze
from components.replay_buffers.windows import (
    FrameStack,
    NStep,
    RolloutWindow,
    Window,
    check_n_step,
    check_window,
    rows_of,
)

Check = tuple[str, tuple[int, ...], np.dtype[Any], bool]
"""The checked properties of a field: its name, shape and dtype, and whether its numbers have to be finite."""


class Field(NamedTuple):
    """One field of a row."""

    dtype: DTypeLike
    shape: tuple[int, ...] = ()
    finite: bool = False
    """True if NaN and infinities are refused. The check takes time, so it is optional; use it e.g. for rewards."""


class RowOptions(TypedDict, total=False):
    """Keywords of `RowStore`."""

    n_step: NStep | None
    window: Window | None
    folder: str | Path | None


class RowStore:
    """Memory for the rows of a buffer: one array per field, one row per slot.

    Args:
        fields: fields of a row, by name.
        capacity: slots.
        n_step: how rewards of rows are summed when they are gathered; None for no sums.
        window: rows that are gathered together; only the row itself by default.
        folder: where rows are stored, in unnamed files that are mapped into memory; by default in memory.

    Raises:
        ValueError: there are no fields, one holds Python objects, or `n_step` or `window` does not fit the fields or
            the capacity.
        OSError: there is no such folder, or too little space in it.
    """

    def __init__(
        self,
        fields: Mapping[str, Field],
        capacity: int,
        *,
        n_step: NStep | None = None,
        window: Window | None = None,
        folder: str | Path | None = None,
    ) -> None:
        if not fields:
            raise ValueError("fields: expected at least one")
        self.fields = {name: Field(np.dtype(f.dtype), tuple(f.shape), f.finite) for name, f in fields.items()}
        self.capacity, self.n_step, self.window = capacity, n_step, window
        self.arrays: dict[str, NDArray[Any]] = {}
        self.checks: list[Check] = []
        for name, (dtype, shape, finite) in self.fields.items():
            if np.dtype(dtype).hasobject:
                raise ValueError(f"{name}: expected a dtype of plain memory, got {dtype}")
            self.arrays[name] = allocate((capacity, *shape), dtype, folder)
            self.checks.append((name, shape, np.dtype(dtype), finite and np.dtype(dtype).kind == "f"))
        self._before: tuple[int, list[Check]] = (0, [])
        """The number of rows of the last insertion, and the checks of its arrays with their shapes."""
        if n_step is not None:
            check_n_step(n_step, self.fields)
        if window is not None:
            check_window(window, self.fields, capacity)
            if n_step is not None and isinstance(window, RolloutWindow):
                raise ValueError("window: expected no n_step beside a RolloutWindow, which has the rewards of all rows")
        self._batches = BatchMemory()

    def release(self) -> None:
        """Release all memory; batches stay valid."""
        self.arrays = {}
        self._batches = BatchMemory()

    @property
    def n_bytes(self) -> int:
        """Bytes of memory for items."""
        return sum(array.nbytes for array in self.arrays.values())

    @property
    def batch_fields(self) -> dict[str, Field]:
        """Fields of the rows of a batch, by name."""
        fields, window = dict(self.fields), self.window
        if self.n_step is not None:
            fields["discount"] = Field(np.float32)
        if window is not None:
            wide = fields if isinstance(window, RolloutWindow) else {*window.stacked, *window.arrival}
            for name in wide:
                dtype, shape, finite = fields[name]
                fields[name] = Field(dtype, (window.length, *shape), finite)
        if isinstance(window, RolloutWindow):
            fields |= {name: Field(np.bool_, (window.length,)) for name in ("real", "learn")}
        return fields

    # Writing --------------------------------------------------------------------------------------------------------

    def check(self, rows: Mapping[str, NDArray[Any]]) -> int:
        """Return the number of rows, N.

        Raises:
            InvalidExperience: a field is missing or unknown, its shape or dtype is wrong, or a number is not finite
                where it has to be. The message names the field and the expected value.
        """
        # Most insertions are like the one before: comparing them with it takes half the time.
        n, before = self._before
        for name, shape, dtype, finite in before:
            array = rows.get(name)
            if type(array) is not ndarray or array.shape != shape or array.dtype is not dtype:
                break
            if finite:
                check_finite(name, array)
        else:
            if 0 < len(rows) == len(before):
                return n
        n = self._checked(rows)
        self._before = n, [(name, (n, *shape), dtype, finite) for name, shape, dtype, finite in self.checks]
        return n

    def _checked(self, rows: Mapping[str, NDArray[Any]]) -> int:
        """Check as `check` does, without a look at earlier insertions."""
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
            if finite:
                check_finite(name, array)
        return n

    def check_row(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values of one row by field, Python numbers as scalars of their dtype.

        Raises:
            InvalidExperience: as for `check`.
        """
        self._check_names(row)
        for check in self.checks:
            name, shape, dtype, finite = check
            value = row[name]
            # A fast path for the types that environments return: it takes a third of the time.
            if type(value) is np.ndarray:
                plain = value.dtype is dtype and value.shape == shape
            else:
                plain = type(value) is dtype.type and not shape
            if plain and finite:
                plain = bool(np.isfinite(value).all()) if shape else isfinite(value)
            if not plain:
                return {check[0]: checked(row[check[0]], *check) for check in self.checks}
        return row

    def _check_names(self, rows: Mapping[str, Any]) -> None:
        if rows.keys() != self.arrays.keys():
            raise InvalidExperience(f"expected the fields {list(self.arrays)}, got {list(rows)}")

    def write(self, placed: Sequence[Placement], rows: Mapping[str, NDArray[Any]], overwrites: Overwrites) -> None:
        """Write checked rows to their slots. Contiguous slots are first announced to `overwrites`."""
        if overwrites is not None:
            announce(overwrites, self.arrays.values(), *(to for to, _ in placed if isinstance(to, slice)))
        for to, of in placed:
            if of is EVERY:
                for name, array in self.arrays.items():
                    array[to] = rows[name]
            else:
                for name, array in self.arrays.items():
                    array[to] = rows[name][of]

    def write_row(self, slot: int, row: Mapping[str, Any], overwrites: Overwrites) -> None:
        """Write one checked row, and announce it as `write` does."""
        if overwrites is not None:
            announce(overwrites, self.arrays.values(), slice(slot, slot + 1))
        for name, array in self.arrays.items():
            array[slot] = row[name]

    # Gathering ------------------------------------------------------------------------------------------------------

    def gather(
        self, slots: NDArray[np.int64], serials: NDArray[np.int64], oldest: int, inserted: int
    ) -> dict[str, NDArray[Any]]:
        """Return a batch of rows, read-only, by field (B, *shape).

        Args:
            slots: slots of the rows, (B,).
            serials: serial numbers of the rows, (B,).
            oldest: serial number of the oldest row.
            inserted: serial number of the next row.
        """
        n_step, window, gather = self.n_step, self.window, self._batches.gather
        if n_step is None and window is None:
            return {name: gather(name, source, slots) for name, source in self.arrays.items()}
        batch: dict[str, NDArray[Any]] = {}
        last, arrival = serials, slots
        if n_step is not None:
            reward, discount, last = n_step.sum_rewards(self.arrays, serials, inserted)
            batch[n_step.reward], batch["discount"] = freeze(reward), freeze(discount)
            arrival = last % self.capacity
        if isinstance(window, FrameStack):
            self._stack(window, serials, last, oldest, batch)
        elif window is not None:
            rows, real = rows_of(window, serials, self.arrays[window.end], oldest)
            slots = rows % self.capacity
            batch["real"], batch["learn"] = freeze(real), freeze(real & (np.arange(window.length) >= window.burn_in))
        for name, source in self.arrays.items():
            if name not in batch:
                wanted = arrival if n_step is not None and name in n_step.arrival else slots
                batch[name] = gather(name, source, wanted)
        return batch

    def _stack(
        self,
        window: FrameStack,
        serials: NDArray[np.int64],
        last: NDArray[np.int64],
        oldest: int,
        batch: dict[str, NDArray[Any]],
    ) -> None:
        """Add the stacked fields to a batch: of the rows `serials`, and for arrival fields of the rows `last`."""
        end, arriving = self.arrays[window.end], () if self.n_step is None else self.n_step.arrival
        rows = rows_of(window, serials, end, oldest)[0] % self.capacity
        rows_last = rows if last is serials else rows_of(window, last, end, oldest)[0] % self.capacity
        for name in (*window.stacked, *window.arrival):
            source, wanted = self.arrays[name], rows_last if name in arriving else rows
            if name in window.arrival:
                out = self._batches.empty(name, (*wanted.shape, *source.shape[1:]), source.dtype)
                out[:, :-1] = self.arrays[window.arrival[name]][wanted[:, 1:]]
                out[:, -1] = source[wanted[:, -1]]
                batch[name] = freeze(out)
            else:
                batch[name] = self._batches.gather(name, source, wanted)

    # Checkpoints ----------------------------------------------------------------------------------------------------

    def state_arrays(self, used: slice | NDArray[np.int64]) -> dict[str, StateArray]:
        """Return the rows in the slots `used`; contiguous rows are announced before they are overwritten."""
        return prefixed("rows", {name: picked_rows(array, used) for name, array in self.arrays.items()})

    def check_state(self, reader: ArrayReader, held: int) -> None:
        """Raise `CheckpointError` unless the arrays could come from `state_arrays` for `held` slots."""
        for name, array in self.arrays.items():
            reader.expect(f"rows/{name}", array.dtype, (held, *array.shape[1:]))

    def load_state(self, reader: ArrayReader, used: slice | NDArray[np.int64], overwrites: Overwrites) -> None:
        """Load checked arrays into the slots `used`."""
        for name, array in self.arrays.items():
            load_rows(reader, f"rows/{name}", array, used, overwrites)


def checked(value: Any, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], finite: bool) -> Any:
    """Return the value of one field of one row, a Python number as a scalar of `dtype`.

    Raises:
        InvalidExperience: its type, shape or dtype is wrong, or it is not finite but has to be.
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


def picked_rows(array: NDArray[Any], rows: slice | NDArray[np.int64]) -> StateArray:
    """Return some rows of an array for a checkpoint: contiguous rows are announced, others copied a few at a time."""
    if isinstance(rows, slice):
        return StateArray.of(array[rows], announced=True)

    def pieces() -> Iterator[NDArray[Any]]:
        for start in range(0, len(rows), ROWS):
            yield array[rows[start : start + ROWS]]

    return StateArray(array.dtype, (len(rows), *array.shape[1:]), pieces())


def load_rows(
    reader: ArrayReader, name: str, array: NDArray[Any], rows: slice | NDArray[np.int64], overwrites: Overwrites
) -> None:
    """Load an array of a checkpoint into some rows of `array`; contiguous rows are first announced."""
    if overwrites is not None and isinstance(rows, slice):
        announce(overwrites, [array], rows)
    array[rows] = reader.read(name, array.dtype, (reader.length(name), *array.shape[1:]))
