"""Fields of which an item has a run of rows, as an episode has frames: back to back as they travel, padded as drawn."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from components.replay_buffers.invalid import InvalidExperience, check_array
from components.replay_buffers.transitions import Field

LENGTHS = "lengths"
"""The field that says how long each item is, int32."""


class Run(NamedTuple):
    """What one field of an item holds that has as many rows as the item is long, or some more."""

    dtype: DTypeLike
    shape: tuple[int, ...]
    """Of a row."""
    most: int
    """How long an item may be."""
    more: int = 0
    """Rows beyond the length: an episode has one frame more than steps."""
    finite: bool = False
    """As for `Field`."""


Fields = Mapping[str, Field | Run]


def begins(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each of some runs (n,) begins that lie back to back."""
    return np.asarray(np.cumsum(counts) - counts, np.int64)


def counts_of(run: Run, lengths: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return how many rows of a field items of some lengths (n,) have each."""
    return lengths.astype(np.int64) + run.more


def copy_runs(
    source: NDArray[Any],
    first: NDArray[np.int64],
    out: NDArray[Any],
    to: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> None:
    """Copy runs of `counts` (n,) rows from `first` (n,) of `source` on to `to` (n,) of `out`.

    A run is one piece of memory: copying it is far faster than gathering its rows.
    """
    for i, k, n in zip(first.tolist(), to.tolist(), counts.tolist(), strict=True):
        out[k : k + n] = source[i : i + n]


def check_batch(fields: Fields, batch: Mapping[str, NDArray[Any]], n: int) -> None:
    """Check `n` items, their runs back to back.

    Raises:
        InvalidExperience: a field is missing or unknown; a length is below 1 or too large; a shape or a dtype is
            another, that of runs being what the lengths say; or a number is not finite that is to be. The message
            names the field and what was expected.
    """
    if batch.keys() != fields.keys():
        raise InvalidExperience(f"batch: expected the fields {list(fields)}, got {list(batch)}")
    runs = [kind for kind in fields.values() if isinstance(kind, Run)]
    n_steps = 0
    if runs:
        lengths, most = batch[LENGTHS], min(run.most for run in runs)
        check_array(LENGTHS, lengths, (n,), np.int32)
        if n and not 1 <= lengths.min() <= lengths.max() <= most:
            raise InvalidExperience(f"{LENGTHS}: expected 1 to {most} each, got {lengths}")
        n_steps = int(lengths.sum(dtype=np.int64))
    for name, kind in fields.items():
        array, rows = batch[name], n_steps + n * kind.more if isinstance(kind, Run) else n
        check_array(name, array, (rows, *kind.shape), kind.dtype)
        if kind.finite and not np.isfinite(array).all():
            raise InvalidExperience(f"{name}: expected finite numbers, got {array[~np.isfinite(array)][0]}")


def padded(fields: Fields, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return at least one item with zeros after each run that is shorter than the longest, as (B, longest, *shape)."""
    out = dict(batch)
    for name, kind in fields.items():
        if isinstance(kind, Run):
            counts = counts_of(kind, batch[LENGTHS])
            n, longest = len(counts), int(counts.max())
            room = np.zeros((n * longest, *kind.shape), kind.dtype)
            copy_runs(batch[name], begins(counts), room, np.arange(n) * longest, counts)
            out[name] = room.reshape(n, longest, *kind.shape)
    return out
