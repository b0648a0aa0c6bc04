"""Upwards: the experience of the workers."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from orchestra import Arrays, Axes, Message, SparseArray, freeze


def check_rows(
    lengths: NDArray[np.int32], versions: NDArray[np.int32], per_frame: Arrays, per_step: Arrays, per_segment: Arrays
) -> None:
    """Raise `ValueError` unless there is a segment, and each array has a row for each frame, step or segment."""
    steps, segments = int(lengths.sum()), len(lengths)
    if segments == 0 or lengths.min() < 1:
        raise ValueError(f"lengths: expected one segment or more, of one step or more each, got {lengths}")
    if len(versions) != steps:
        raise ValueError(f"versions: {segments} segments of {steps} steps in all, got {len(versions)} rows")
    for group, rows in ((per_frame, steps + segments), (per_step, steps), (per_segment, segments)):
        for name, array in group.plain().items():
            if not array.shape or len(array) != rows:
                got = len(array) if array.shape else "one value"
                raise ValueError(f"{name}: {segments} segments of {steps} steps in all need {rows} rows, got {got}")


def segments_of_rows(
    lengths: NDArray[np.int32], per_frame: Arrays, per_step: Arrays
) -> Iterator[tuple[NDArray[Any], NDArray[np.integer[Any]]]]:
    """Return the arrays of rows, and how many rows of each belong to the first segment, the second, and so on."""
    for group, rows in ((per_frame, lengths + 1), (per_step, lengths)):
        for array in group.plain().values():
            if isinstance(array, SparseArray):
                yield array.bits, rows
                yield array.values, np.array(array.counts, np.int64)
            else:
                yield array, rows


class InsertTransitionMsg(Message):
    """Segments of episodes, back to back and without padding: whole episodes, or runs of consecutive steps of them.

    A segment of length T has T steps and T+1 frames: the observations before each step, and after the last. The fields
    are those of the run's experience schema, in three groups. `frames` is the sum of all T+1, `steps` the sum of all T.
    """

    per_frame: Arrays
    """Fields with a row for each frame, (frames, …): observations, state, which actions are available. A sparse field
    (`FieldSpec.sparse`) may be a `SparseArray` whose pieces are the segments."""
    per_step: Arrays
    """Fields with a row for each step, (steps, …): actions, reward, log-probability of the actions."""
    per_segment: Arrays
    """Fields with a row for each segment, (segments, …): exploration rate, hidden state at its first frame."""
    lengths: Annotated[NDArray[np.int32], Axes("int32", "segments")]
    terminated: Annotated[NDArray[np.bool_], Axes("bool", "segments")]
    """True for a segment whose last frame ends its episode, so that this frame has no value."""
    truncated: Annotated[NDArray[np.bool_], Axes("bool", "segments")]
    """True for a segment whose episode was cut after it, as at a time limit: its last frame still has a value. If the
    episode continues, both are False."""
    won: Annotated[NDArray[np.bool_], Axes("bool", "segments")]
    versions: Annotated[NDArray[np.int32], Axes("int32", "steps")]
    """Version of the parameters that chose the actions of each step."""
    episode: Annotated[NDArray[np.int64], Axes("int64", "segments")]
    """Number of each segment's episode among those of the worker."""
    first: Annotated[NDArray[np.int32], Axes("int32", "segments")]
    """First step of each segment in its episode; 0 for a whole episode."""
    return_before: Annotated[NDArray[np.float64], Axes("float64", "segments")]
    """Undiscounted reward of the episode before each segment; the mean over agents if each has a reward."""
    newest_version: int | None
    """Version of the newest parameters when the experience reached the Orchestrator, which adds the number; None
    before. The *policy lag* of a step is this number minus the step's own version."""
    sender: str
    """Address of the actor that sends this message, whose credit the segments use: a worker, or the proxy that passes
    them on. Empty if no actor has sent it yet."""
    source: str
    """Address of the actor whose node counts the steps: the first proxy on their way, on the host where they were
    played, or the worker if there is no proxy. Empty until the first proxy has passed them on."""

    @model_validator(mode="after")
    def _lengths_agree(self) -> Self:
        check_rows(self.lengths, self.versions, self.per_frame, self.per_step, self.per_segment)
        return self

    def array_pieces(self) -> Iterable[tuple[NDArray[Any], NDArray[np.integer[Any]]]]:
        """Return the fields of frames and of steps, whose pieces are segments."""
        return segments_of_rows(self.lengths, self.per_frame, self.per_step)

    @property
    def segments(self) -> int:
        """Number of segments."""
        return len(self.lengths)

    @property
    def steps(self) -> int:
        """Number of environment steps of all segments."""
        return len(self.versions)

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

    def summary(self) -> "InsertTransitionMsg":
        """Return the message with only the counted fields: the reward, and the fields per segment."""
        return self.model_copy(
            update={"per_frame": Arrays({}), "per_step": Arrays({"reward": self.per_step["reward"]})}
        )

    def select(self, segments: NDArray[np.bool_]) -> "InsertTransitionMsg":
        """Return a message of the chosen segments, (segments,) bool; at least one must be chosen."""
        frames, steps = np.repeat(segments, self.lengths + 1), np.repeat(segments, self.lengths)

        def chosen(group: Arrays, rows: NDArray[np.bool_]) -> Arrays:
            return Arrays(
                {
                    name: array.select(segments) if isinstance(array, SparseArray) else freeze(array[rows])
                    for name, array in group.plain().items()
                }
            )

        rows = {"steps": steps, "segments": segments}
        return InsertTransitionMsg(
            per_frame=chosen(self.per_frame, frames),
            per_step=chosen(self.per_step, steps),
            per_segment=chosen(self.per_segment, segments),
            **{name: freeze(getattr(self, name)[rows[axes[0]]]) for name, axes in self.wire.axes},
            newest_version=self.newest_version,
            sender=self.sender,
            source=self.source,
        )

    @classmethod
    def of_episodes(
        cls,
        *,
        per_frame: Mapping[str, NDArray[Any]],
        per_step: Mapping[str, NDArray[Any]],
        per_segment: Mapping[str, NDArray[Any]],
        lengths: NDArray[np.int32],
        terminated: NDArray[np.bool_],
        won: NDArray[np.bool_],
        versions: NDArray[np.int32],
        newest_version: int | None = None,
        sender: str = "",
        source: str = "",
    ) -> "InsertTransitionMsg":
        """Return a message of whole episodes; those that are not `terminated` count as truncated."""
        n = len(lengths)
        return cls(
            per_frame=Arrays(per_frame),
            per_step=Arrays(per_step),
            per_segment=Arrays(per_segment),
            lengths=lengths,
            terminated=terminated,
            truncated=freeze(~terminated),
            won=won,
            versions=versions,
            episode=freeze(np.arange(n)),
            first=freeze(np.zeros(n, np.int32)),
            return_before=freeze(np.zeros(n, np.float64)),
            newest_version=newest_version,
            sender=sender,
            source=source,
        )
