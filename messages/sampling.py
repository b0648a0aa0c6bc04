"""Sampling: the request of a batch, the batch for the Trainer, and the priorities that it returns."""

from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from orchestra import Arrays, Axes, Lane, Message, Ref


class BatchTrainingDataMsg(Message):
    """A batch of segments, each a whole episode or a part of one, padded with zeros to the longest.

    It has one frame more than steps. The fields are those of the run's experience schema, in three groups.
    """

    lane: ClassVar[Lane] = Lane.SOLICITED

    number: int
    """Number of the batch within the run, from 1."""
    per_frame: Arrays
    """Fields with a row for each frame, (segments, frames, …)."""
    per_step: Arrays
    """Fields with a row for each step, (segments, steps, …)."""
    per_segment: Arrays
    """Fields with a row for each segment, (segments, …)."""
    lengths: Annotated[NDArray[np.int32], Axes("int32", "segments")]
    terminated: Annotated[NDArray[np.bool_], Axes("bool", "segments")]
    """True where the last frame ends the episode and has no value."""
    truncated: Annotated[NDArray[np.bool_], Axes("bool", "segments")]
    """True where the episode was cut after the last frame, which has a value."""
    versions: Annotated[NDArray[np.int32], Axes("int32", "segments", "steps")]
    """Version of the parameters that chose the actions of each step; -1 where it is unknown."""
    weights: Annotated[NDArray[np.float32], Axes("float32", "segments")]
    """Importance weights of prioritised sampling; ones otherwise."""
    indices: Annotated[NDArray[np.int64], Axes("int64", "segments")]
    generations: Annotated[NDArray[np.int64], Axes("int64", "segments")]
    """Generation of the segment at each index, so that priorities of overwritten segments are ignored."""

    @model_validator(mode="after")
    def _lengths_agree(self) -> Self:
        n, steps = self.versions.shape
        if n == 0 or self.lengths.min() < 1 or self.lengths.max() > steps:
            raise ValueError(f"lengths: expected one segment or more, of 1 to {steps} steps each, got {self.lengths}")
        for group, leading in ((self.per_frame, (n, steps + 1)), (self.per_step, (n, steps)), (self.per_segment, (n,))):
            for name, array in group.items():
                if array.shape[: len(leading)] != leading:
                    raise ValueError(f"{name}: {n} segments of up to {steps} steps need {leading}, got {array.shape}")
        return self

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return the array of a field by its name."""
        for group in (self.per_frame, self.per_step, self.per_segment):
            if name in group:
                return group[name]
        raise KeyError(name)

    @property
    def fields(self) -> dict[str, Any]:
        """The arrays of all three groups by name."""
        return {**self.per_frame.plain(), **self.per_step.plain(), **self.per_segment.plain()}


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
