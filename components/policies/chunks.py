"""Rows of a batch of segments, and chunks of consecutive ones for recurrent networks.

Letters in shapes: E segments, T steps, A agents, N real steps of all segments, R = N * A rows, agents innermost;
C chunks of at most L steps.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Chunks:
    """Runs of consecutive steps of one agent, in the order of their place in the segment: all first chunks first."""

    rows: NDArray[np.int64]  # (L, C): of each step; a chunk shorter than L repeats its last row
    real: NDArray[np.bool_]  # (L, C)
    segment: NDArray[np.int64]  # (C,)
    agent: NDArray[np.int64]  # (C,)
    bounds: NDArray[np.int64]  # k-th chunks of their segments are `bounds[k]` to `bounds[k + 1]`

    @classmethod
    def of(cls, lengths: NDArray[np.integer[Any]], n_agents: int, chunk_length: int) -> "Chunks":
        """Cut segments of `lengths` (E,), beginning at the first step of each."""
        lengths = np.asarray(lengths, np.int64)
        begins = np.cumsum(lengths) - lengths
        counts = -(-lengths // chunk_length)
        by_place = [np.flatnonzero(counts > k) for k in range(int(counts.max()))]
        segment = np.repeat(np.concatenate(by_place), n_agents)
        place = np.repeat(np.arange(len(by_place)), [len(each) * n_agents for each in by_place])
        agent = np.tile(np.arange(n_agents), len(segment) // n_agents)
        step = place * chunk_length + np.arange(chunk_length)[:, None]
        rows = (begins[segment] + np.minimum(step, lengths[segment] - 1)) * n_agents + agent
        bounds = np.concatenate([[0], np.cumsum([len(each) * n_agents for each in by_place])])
        return cls(rows, step < lengths[segment], segment, agent, bounds)


def real_rows(array: NDArray[Any], lengths: NDArray[np.integer[Any]]) -> NDArray[Any]:
    """Return the real steps (N, …) of a padded array (E, T or T + 1, …), segment after segment."""
    rows: NDArray[Any] = array[np.arange(array.shape[1]) < lengths[:, None]]
    return rows


def padded_rows(rows: NDArray[Any], lengths: NDArray[np.integer[Any]], longest: int) -> NDArray[Any]:
    """Return steps (N, …) of segments of `lengths` (E,), which lie back to back, padded with zeros: (E, longest, …).

    The array is read-only.
    """
    array = np.zeros((len(lengths), longest, *rows.shape[1:]), rows.dtype)
    array[np.arange(longest) < lengths[:, None]] = rows
    array.flags.writeable = False
    return array


def rows_of(segments: NDArray[Any], lengths: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Return the rows of some segments, by number or by a mask (E,), where segments of `lengths` lie back to back."""
    lengths = np.asarray(lengths, np.int64)
    begins, own = (np.cumsum(lengths) - lengths)[segments], lengths[segments]
    return np.asarray(np.arange(own.sum()) + np.repeat(begins - (np.cumsum(own) - own), own))
