"""Segments in the memories of a rollout: properties of ended segments, and the frames of segments.

Letters in shapes: B copies, E segments.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Ended(NamedTuple):
    """Segments that ended in one step."""

    rows: NDArray[np.int64]  # (E,): rows of the memories
    lengths: NDArray[np.int64]  # (E,): steps
    terminated: NDArray[np.bool_]  # (E,)
    truncated: NDArray[np.bool_]  # (E,)
    won: NDArray[np.bool_]  # (E,)
    episode: NDArray[np.int64]  # (E,)
    first: NDArray[np.int32]  # (E,)
    return_before: NDArray[np.float64]  # (E,)
    epsilon: NDArray[np.float32]  # (E,): exploration rate at the end

    @classmethod
    def together(cls, parts: Sequence["Ended"]) -> "Ended":
        """Return the segments of all `parts`, at least one, in their order."""
        columns: list[Any] = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
        return cls(*columns)


def joined(
    memory: NDArray[Any], rows: NDArray[np.int64], counts: NDArray[np.int64], out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Return the first `counts` (E,) frames in each of the `rows` (E,) of a memory, back to back; in `out` if given."""
    parts = [memory[row, :count] for row, count in zip(rows.tolist(), counts.tolist(), strict=True)]
    return np.concatenate(parts, out=out)


def written(counts: NDArray[np.int64], n_frames: int) -> NDArray[np.bool_]:
    """Return which frames of rows are among the first `counts` (E,) of each, as (E, `n_frames`)."""
    among: NDArray[np.bool_] = np.arange(n_frames) < counts[:, None]
    return among
