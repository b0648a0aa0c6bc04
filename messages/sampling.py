"""Sampling: the request of a batch, the batch for the Trainer, and the priorities that it returns."""

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from messages.experience import check_rows, segments_of_rows
from orchestra import Arrays, Axes, Lane, Message, Ref


class BatchTrainingDataMsg(Message):
    """A batch of segments, each a whole episode or a part of one, back to back and without padding.

    The fields are those of the run's experience schema, in three groups. `frames` and `steps` are as in
    `InsertTransitionMsg`.
    """

    lane: ClassVar[Lane] = Lane.SOLICITED

    number: int
    """Number of the batch within the run, from 1."""
    per_frame: Arrays
    """Fields with a row for each frame, (frames, …); a sparse one may be a `SparseArray`, whose pieces are segments."""
    per_step: Arrays
    """Fields with a row for each step, (steps, …)."""
    per_segment: Arrays
    """Fields with a row for each segment, (segments, …)."""
    lengths: Annotated[NDArray[np.int32], Axes("int32", "segments")]
    terminated: Annotated[NDArray[np.bool_], Axes("bool", "segments")]
    """True where the last frame ends the episode and has no value."""
    truncated: Annotated[NDArray[np.bool_], Axes("bool", "segments")]
    """True where the episode was cut after the last frame, which has a value."""
    versions: Annotated[NDArray[np.int32], Axes("int32", "steps")]
    """Version of the parameters that chose the actions of each step; -1 where it is unknown."""
    weights: Annotated[NDArray[np.float32], Axes("float32", "segments")]
    """Importance weights of prioritised sampling; ones otherwise."""
    indices: Annotated[NDArray[np.int64], Axes("int64", "segments")]
    generations: Annotated[NDArray[np.int64], Axes("int64", "segments")]
    """Generation of the segment at each index, so that priorities of overwritten segments are ignored."""

    @model_validator(mode="after")
    def _lengths_agree(self) -> Self:
        check_rows(self.lengths, self.versions, self.per_frame, self.per_step, self.per_segment)
        return self

    def array_pieces(self) -> Iterable[tuple[NDArray[Any], NDArray[np.integer[Any]]]]:
        """Return the fields of frames and of steps, whose pieces are segments."""
        return segments_of_rows(self.lengths, self.per_frame, self.per_step)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return the array of a field by its name."""
        for group in (self.per_frame, self.per_step, self.per_segment):
            if name in group:
                return group[name]
        raise KeyError(name)

    @property
    def fields(self) -> dict[str, Any]:
        """The arrays of all three groups by name."""
        return {**self.per_frame, **self.per_step, **self.per_segment}


class SampleBatchMsg(Message):
    """Sample a batch and send it to `trainer`."""

    number: int
    """Number of the batch within the run, from 1."""
    batch_size: int
    """Number of segments."""
    trainer: Ref[BatchTrainingDataMsg]
    """Receives the batch."""


class UpdatePriorityMsg(Message):
    """New priorities of segments after learning."""

    indices: Annotated[NDArray[np.int64], Axes("int64", "segments")]
    generations: Annotated[NDArray[np.int64], Axes("int64", "segments")]
    priorities: Annotated[NDArray[np.float32], Axes("float32", "segments")]
