"""Sampling: the request of a batch, the batch for the Trainer, and the priorities that it returns."""

from typing import Annotated, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from orchestra import Axes, Lane, Message, Ref


class BatchTrainingDataMsg(Message):
    """A batch of whole episodes, padded with zeros to the longest; it has one frame more than steps."""

    lane: ClassVar[Lane] = Lane.SOLICITED

    number: int
    """Number of the batch within the run, from 1."""
    obs: Annotated[NDArray[np.float32], Axes("float32", "episodes", "frames", "agents", "features")]
    state: Annotated[NDArray[np.float32], Axes("float32", "episodes", "frames", "state")]
    available: Annotated[NDArray[np.bool_], Axes("bool", "episodes", "frames", "agents", "actions")]
    actions: Annotated[NDArray[np.int64], Axes("int64", "episodes", "steps", "agents")]
    reward: Annotated[NDArray[np.float32], Axes("float32", "episodes", "steps")]
    lengths: Annotated[NDArray[np.int32], Axes("int32", "episodes")]
    terminated: Annotated[NDArray[np.bool_], Axes("bool", "episodes")]
    epsilon: Annotated[NDArray[np.float32], Axes("float32", "episodes")]
    """Exploration rate at the end of each episode, 0 to 1."""
    weights: Annotated[NDArray[np.float32], Axes("float32", "episodes")]
    """Importance weights of prioritised sampling; ones otherwise."""
    indices: Annotated[NDArray[np.int64], Axes("int64", "episodes")]
    generations: Annotated[NDArray[np.int64], Axes("int64", "episodes")]
    """Which episode lay at each index, so that priorities of a since overwritten episode are ignored."""

    @model_validator(mode="after")
    def _lengths_agree(self) -> Self:
        frames, steps = self.obs.shape[1], self.reward.shape[1]
        if frames != steps + 1:
            raise ValueError(f"{steps} steps need {steps + 1} frames, got {frames}")
        if len(self.lengths) == 0 or self.lengths.min() < 1 or self.lengths.max() > steps:
            raise ValueError(f"lengths: expected one episode or more, of 1 to {steps} steps each, got {self.lengths}")
        return self


class SampleBatchMsg(Message):
    """Sample a batch and send it to `trainer`."""

    number: int
    """Number of the batch within the run, from 1."""
    batch_size: int
    """Number of episodes."""
    trainer: Ref[BatchTrainingDataMsg]
    """Receives the batch."""


class UpdatePriorityMsg(Message):
    """New priorities of learned episodes."""

    indices: Annotated[NDArray[np.int64], Axes("int64", "episodes")]
    generations: Annotated[NDArray[np.int64], Axes("int64", "episodes")]
    priorities: Annotated[NDArray[np.float32], Axes("float32", "episodes")]
