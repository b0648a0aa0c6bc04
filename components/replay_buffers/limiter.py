"""Rate limiter: how far sampling may run ahead of inserting, and vice versa (Reverb, Cassirer 2021)."""

from math import floor, inf
from typing import Self

import numpy as np

from components.checkpoints.array_file import ArrayReader, Checkpointed, StateArray

COUNTERS = ("inserted", "sampled", "deleted")


class SampleToInsertRatio(Checkpointed):
    """Rate limiter by which each inserted item is sampled `samples_per_insert` times on average.

    It only counts and never waits: after a refusal, ask again once the other side has moved.
    Let diff = inserted * samples_per_insert - sampled. Sampling may lower it to `min_diff`, once there are `min_size`
    items. Inserting may raise it to `max_diff`, or above it while there are at most `min_size` items.

    Args:
        samples_per_insert: samples of each item on average.
        min_size: items needed before the first is sampled.
        error_buffer: largest distance of diff from samples_per_insert * min_size, either way; or the pair
            (min_diff, max_diff) itself.
        insert_size: largest number of items inserted at a time.
        sample_size: largest number of items sampled at a time.
        capacity: capacity of the buffer, to check `min_size` against it; None for no check.

    Raises:
        ValueError: a number is out of range, or both sides could wait for each other; the message has the arithmetic.
    """

    state_kind = "SampleToInsertRatio"

    def __init__(
        self,
        samples_per_insert: float,
        min_size: int,
        error_buffer: float | tuple[float, float],
        *,
        insert_size: int = 1,
        sample_size: int = 1,
        capacity: int | None = None,
    ) -> None:
        if not 0 < samples_per_insert < inf:
            raise ValueError(f"samples_per_insert must be above 0 and finite, got {samples_per_insert}")
        if min_size < 1:
            raise ValueError(f"min_size must be at least 1, got {min_size}")
        if capacity is not None and min_size > capacity:
            raise ValueError(
                f"min_size {min_size} is above the capacity {capacity}: so many items are never there to be sampled"
            )
        self.samples_per_insert, self.min_size = samples_per_insert, min_size
        self.inserted = self.sampled = self.deleted = 0
        self.set_error_buffer(error_buffer, insert_size=insert_size, sample_size=sample_size)

    def set_error_buffer(
        self, error_buffer: float | tuple[float, float], *, insert_size: int = 1, sample_size: int = 1
    ) -> None:
        """Set another error buffer; the arguments and errors are those of the constructor."""
        centre = self.samples_per_insert * self.min_size
        if isinstance(error_buffer, tuple):
            low, high = error_buffer
        else:
            low, high = centre - error_buffer, centre + error_buffer
        if low > centre:
            raise ValueError(
                f"min_diff {low} is above samples_per_insert * min_size = {self.samples_per_insert} * {self.min_size} "
                f"= {centre}: with min_size items there, sampling would still have to wait"
            )
        self.min_diff, self.max_diff = low, high
        self._error_buffer = error_buffer
        self.check_sizes(insert_size=insert_size, sample_size=sample_size)

    def check_sizes(self, *, insert_size: int = 1, sample_size: int = 1) -> None:
        """Check that inserting and sampling up to these numbers of items at a time cannot come to a standstill.

        Raises:
            ValueError: a size is below 1, or both sides could wait for each other; the message has the arithmetic.
        """
        for name, value in (("insert_size", insert_size), ("sample_size", sample_size)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        ratio, min_size, low, high = self.samples_per_insert, self.min_size, self.min_diff, self.max_diff
        needed = 2 * max(sample_size, ratio * insert_size)
        if not high - low >= needed:
            raise ValueError(
                f"error_buffer {self._error_buffer} leaves a range of max_diff - min_diff = {high} - {low} = "
                f"{high - low}. Inserting moves by {ratio} * {insert_size} and sampling by {sample_size}: below "
                f"2 * max({sample_size}, {ratio} * {insert_size}) = {needed} each can wait for the other"
            )
        first = ratio * (min_size + insert_size - 1)
        if insert_size > 1 and first > high:
            raise ValueError(
                f"max_diff {high} is below samples_per_insert * (min_size + insert_size - 1) = {ratio} * "
                f"({min_size} + {insert_size} - 1) = {first}: with {min_size - 1} items there, the next {insert_size} "
                "would have to wait for samples, and these for min_size items"
            )

    @classmethod
    def from_min_size(cls, min_size: int) -> Self:
        """Return a limiter that only waits for `min_size` items; Reverb's MinSize.

        Raises:
            ValueError: `min_size` is below 1.
        """
        return cls(1.0, min_size, inf)

    @classmethod
    def queue(cls, size: int) -> Self:
        """Return the limiter of a queue of up to `size` items, each sampled once and then deleted; both sides may wait.

        Raises:
            ValueError: `size` is below 2: with 1 neither side could be ahead of the other.
        """
        return cls(1.0, 1, (0.0, float(size)))

    @property
    def counts(self) -> list[int]:
        """The counts of items inserted, sampled and deleted."""
        return [self.inserted, self.sampled, self.deleted]

    @counts.setter
    def counts(self, counts: list[int]) -> None:
        self.inserted, self.sampled, self.deleted = counts

    @property
    def diff(self) -> float:
        """Samples still due for the items inserted so far."""
        return self.inserted * self.samples_per_insert - self.sampled

    def may_insert(self, n: int = 1) -> bool:
        """Return whether `n` items may be inserted now.

        Raises:
            ValueError: `n` items never may; the message has the arithmetic.
        """
        least, step = min(self.min_diff, 0.0), n * self.samples_per_insert
        if n > self.min_size and step > self.max_diff - least:
            raise ValueError(
                f"n: {n} items at a time would always have to wait: they are more than min_size {self.min_size}, and "
                f"raise diff by {n} * {self.samples_per_insert} = {step}, which is at least {least} and may not pass "
                f"max_diff {self.max_diff}"
            )
        small = self.inserted + n - self.deleted <= self.min_size
        return small or self.diff + n * self.samples_per_insert <= self.max_diff

    def insertable(self) -> int | None:
        """Return the largest number of items that may be inserted now; None for any number."""
        if self.max_diff == inf:
            return None
        ratio, diff = self.samples_per_insert, self.diff
        n = floor((self.max_diff - diff) / ratio)
        n += (diff + (n + 1) * ratio <= self.max_diff) - (diff + n * ratio > self.max_diff)  # rounding
        return max(n, self.min_size - (self.inserted - self.deleted), 0)

    def may_sample(self, n: int = 1) -> bool:
        """Return whether `n` items may be sampled now.

        Raises:
            ValueError: `n` items never may; the message has the arithmetic.
        """
        most = max(self.max_diff, self.samples_per_insert * self.min_size)
        if n > most - self.min_diff:
            raise ValueError(
                f"n: {n} samples at a time would always have to wait: diff is at most {most}, and may not fall below "
                f"min_diff {self.min_diff}, which is {most - self.min_diff} apart"
            )
        return self.inserted - self.deleted >= self.min_size and self.diff - n >= self.min_diff

    def insert(self, n: int = 1) -> None:
        """Count `n` inserted items, allowed or not."""
        self.inserted += n

    def sample(self, n: int = 1) -> None:
        """Count `n` sampled items, allowed or not."""
        self.sampled += n

    def delete(self, n: int = 1) -> None:
        """Count `n` removed items; items that a full buffer replaces need not be counted."""
        self.deleted += n

    def take_over(self, other: "SampleToInsertRatio") -> None:
        """Copy the counts of `other`, to change the settings while both sides run.

        Samples are counted as if all had been drawn at the new ratio, so the change neither makes samples due nor
        forbids any.
        """
        self.inserted, self.deleted = other.inserted, other.deleted
        self.sampled = round(other.sampled * self.samples_per_insert / other.samples_per_insert)

    def _state_arrays(self) -> dict[str, StateArray]:
        return {name: StateArray.of(np.array(getattr(self, name), np.int64)) for name in COUNTERS}

    def _check_state(self, reader: ArrayReader) -> None:
        for name in COUNTERS:  # settings may differ, the counts have the same meaning
            reader.read_count(name)

    def _load_state(self, reader: ArrayReader) -> None:
        self.inserted, self.sampled, self.deleted = (reader.read_count(name) for name in COUNTERS)

    def __repr__(self) -> str:
        return (
            f"<SampleToInsertRatio {self.inserted} in, {self.sampled} out, "
            f"{self.min_diff} ≤ {self.diff} ≤ {self.max_diff}>"
        )
