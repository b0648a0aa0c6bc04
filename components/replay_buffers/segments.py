"""Fields with a segment of rows per item, such as the frames of an episode: packed for sending, padded when drawn."""

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from components.replay_buffers.invalid import InvalidExperience, check_array
from components.replay_buffers.rows import Field

LENGTHS = "lengths"
"""The field with the length of each item, int32."""


class Segment(NamedTuple):
    """A field with as many rows per item as the length of the item, or some more."""

    dtype: DTypeLike
    shape: tuple[int, ...]
    """Shape of one row."""
    most: int
    """Largest length of an item."""
    more: int = 0
    """Rows in addition to the length: an episode has one frame more than steps."""
    finite: bool = False
    """As for `Field`."""


Fields = Mapping[str, Field | Segment]


def begins(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first row of each segment, for segments of `counts` (n,) rows that lie back to back."""
    return np.asarray(np.cumsum(counts) - counts, np.int64)


def counts_of(segment: Segment, lengths: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the number of rows (n,) of a field for items of some lengths (n,)."""
    return lengths.astype(np.int64) + segment.more


def corners_of(to: NDArray[np.int64], first: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the corners for `copy_segments`: segments of `counts` (n,) rows from row `first` (n,) to row `to` (n,)."""
    return np.array([to, to + counts, first, first + counts]).T


def copy_segments(source: NDArray[Any], out: NDArray[Any], corners: NDArray[np.int64]) -> None:
    """Copy segments of rows from `source` to `out`, which is contiguous.

    Args:
        source: (N, *shape).
        out: (M, *shape).
        corners: (n, 4), for each segment its first row and its end in `out`, then the same in `source`.
    """
    # A segment is one piece of memory; copying between views of bytes is far faster than gathering rows.
    into, of = out.reshape(-1).view(np.uint8).data, source.reshape(-1).view(np.uint8).data
    for begin, stop, start, end in (corners * (out.itemsize * prod(out.shape[1:]))).tolist():
        into[begin:stop] = of[start:end]


def check_batch(fields: Fields, batch: Mapping[str, NDArray[Any]], n: int) -> None:
    """Check `n` items whose segments lie back to back.

    Raises:
        InvalidExperience: a field is missing or unknown, a length is out of range, a shape or dtype is wrong, or a
            number is not finite where it has to be. The message names the field and the expected value.
    """
    if batch.keys() != fields.keys():
        raise InvalidExperience(f"batch: expected the fields {list(fields)}, got {list(batch)}")
    segments = [kind for kind in fields.values() if isinstance(kind, Segment)]
    n_steps = 0
    if segments:
        lengths, most = batch[LENGTHS], min(segment.most for segment in segments)
        check_array(LENGTHS, lengths, (n,), np.int32)
        if n and not 1 <= lengths.min() <= lengths.max() <= most:
            raise InvalidExperience(f"{LENGTHS}: expected 1 to {most} each, got {lengths}")
        n_steps = int(lengths.sum(dtype=np.int64))
    for name, kind in fields.items():
        array, rows = batch[name], n_steps + n * kind.more if isinstance(kind, Segment) else n
        check_array(name, array, (rows, *kind.shape), kind.dtype)
        if kind.finite and not np.isfinite(array).all():
            raise InvalidExperience(f"{name}: expected finite numbers, got {array[~np.isfinite(array)][0]}")


def padded(fields: Fields, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return a batch of at least one item, each segment padded with zeros to the longest: (B, longest, *shape)."""
    out = dict(batch)
    for name, kind in fields.items():
        if isinstance(kind, Segment):
            counts = counts_of(kind, batch[LENGTHS])
            n, longest = len(counts), int(counts.max())
            room = np.zeros((n * longest, *kind.shape), kind.dtype)
            copy_segments(batch[name], room, corners_of(np.arange(n) * longest, begins(counts), counts))
            out[name] = room.reshape(n, longest, *kind.shape)
    return out
