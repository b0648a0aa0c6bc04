"""Layout of episodes of different lengths without padding: longest first, one time step after the other.

Frame t of all episodes that have one is one block. So a recurrent network goes from block to block with a shrinking
batch, and everything else runs on real rows only: code that uses this layout needs no mask. It is the layout of
`torch.nn.utils.rnn.PackedSequence`.

Sizes: E episodes, N steps of all of them together, F = N + E frames.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Packing:
    """Places of the frames and the steps of a batch in packed order.

    Step k, counted in packed order, leaves frame `departs[k]` and arrives at frame k + E.
    """

    frame_blocks: tuple[int, ...]
    """Episodes that have a frame 0, 1, 2, …; falling, and the first is E."""
    asked_blocks: tuple[int, ...]
    """Number of these, from the first, whose frame is used. In the others the battle is over: no action is taken there,
    and their value is 0 for any observation."""
    frames: NDArray[np.int64]  # (F,): row among the frames of all episodes back to back
    steps: NDArray[np.int64]  # (N,): row among the steps of all episodes back to back
    departs: NDArray[np.int64]  # (N,): packed frame that the step leaves
    episode: NDArray[np.int64]  # (N,): episode of the batch that the step belongs to
    last: NDArray[np.int64]  # (E,): packed step that ends the episode, in the batch's order

    @property
    def step_blocks(self) -> tuple[int, ...]:
        """Episodes that make a step 0, 1, 2, …"""
        return self.frame_blocks[1:]

    def parted(self, n_parts: int) -> tuple[int, ...]:
        """Return where parts of about equally many frames begin and end, `n_parts` + 1 ranks from 0 to E.

        A part has the episodes of a range of ranks: in each block the rows from one of these numbers to the next, or
        fewer if the block is shorter. It may be empty.
        """
        return parted(self._frames_by_rank(), n_parts)

    def frames_between(self, bounds: Sequence[int]) -> NDArray[np.int64]:
        """Return the number of frames of each part between `bounds`."""
        until = np.concatenate([[0], np.cumsum(self._frames_by_rank())])
        return np.asarray(np.diff(until[np.asarray(bounds)]))

    def _frames_by_rank(self) -> NDArray[np.int64]:
        ranks = np.arange(self.frame_blocks[0])
        return np.asarray(np.searchsorted(-np.asarray(self.frame_blocks), -ranks))

    @classmethod
    def of(cls, lengths: NDArray[np.int32], terminated: NDArray[np.bool_]) -> "Packing":
        """Plan the layout of episodes of `lengths` (E,) steps, which are `terminated` (E,) or cut.

        Raises:
            ValueError: there is no episode, or one without steps.
        """
        order = longest_first(lengths, terminated)
        falling = lengths[order].astype(np.int64)
        time_f, rank_f = np.nonzero(np.arange(falling[0] + 1)[:, None] <= falling)  # both in packed order
        time_s, rank_s = np.nonzero(np.arange(falling[0])[:, None] < falling)
        blocks = np.bincount(time_f)
        starts = np.cumsum(blocks) - blocks
        begins = np.cumsum(lengths, dtype=np.int64) - lengths
        last = np.empty(len(lengths), np.int64)
        last[order] = starts[falling] + np.arange(len(lengths)) - len(lengths)
        return cls(
            frame_blocks=tuple(blocks.tolist()),
            asked_blocks=tuple((blocks - np.bincount(lengths[terminated], minlength=len(blocks))).tolist()),
            frames=(begins + np.arange(len(lengths)))[order][rank_f] + time_f,
            steps=begins[order][rank_s] + time_s,
            departs=starts[time_s] + rank_s,
            episode=order[rank_s],
            last=last,
        )


def longest_first(lengths: NDArray[np.int32], terminated: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the episodes (E,) in packed order: by falling length; among equally long ones, truncated ones first.

    Raises:
        ValueError: there is no episode, or one without steps.
    """
    check_lengths(lengths)
    return np.lexsort((terminated, -lengths.astype(np.int64)))


def check_lengths(lengths: NDArray[np.int32], longest: int | None = None) -> None:
    """Raise `ValueError` unless there are `lengths` (E,), and each is 1 or more, and at most `longest` if given."""
    most = np.iinfo(np.int32).max if longest is None else longest
    if len(lengths) == 0 or lengths.min() < 1 or lengths.max() > most:
        wanted = "1 or more" if longest is None else f"1 to {longest}"
        raise ValueError(f"lengths: expected at least one episode of {wanted} steps each, got {lengths}")


def parted(frames: NDArray[np.integer[Any]], n_parts: int) -> tuple[int, ...]:
    """Return where parts of about equally many frames begin and end, as `Packing.parted`, given each rank's frames."""
    before = np.cumsum(frames) - frames / 2
    inner = np.searchsorted(before, frames.sum() * np.arange(1, n_parts) / n_parts)
    return 0, *inner.tolist(), len(frames)
