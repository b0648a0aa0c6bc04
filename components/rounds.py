"""Rounds: the pacing of on-policy learning. Every environment plays equally many steps, then an update follows."""


class Rounds:
    """Counts the steps of the current round, and decides when the next may begin.

    A round is `length` steps of each environment present when it begins. Its segments are one batch. The next round
    begins once that batch is learned and the new parameters are published, so that all its steps have one version.

    Args:
        length: steps of each environment.
        overlap: batches that may be on their way to the learner, or being learned, when a round begins. The parameters
            that acted are then up to that many versions older than those that learn from the batch.

    Raises:
        ValueError: a number is out of range.
    """

    min_size = 1
    """Least number of segments of a batch."""

    def __init__(self, length: int, *, overlap: int = 0) -> None:
        if length < 1 or overlap < 0:
            raise ValueError(f"expected length >= 1 and overlap >= 0, got {length} and {overlap}")
        self.length, self.overlap = length, overlap
        self._goal = self._steps = self._segments = 0  # of the current round; with a goal of 0 there is none

    def allowance(self, environments: int, in_flight: int) -> int:
        """Return the number of steps that may still be played now; begin a round if that is allowed.

        Args:
            environments: number of environments present.
            in_flight: batches that were requested and are not learned yet.
        """
        if not self._goal and in_flight <= self.overlap:
            self._goal = self.length * environments
        return max(self._goal - self._steps, 0)

    def insert(self, steps: int, segments: int) -> None:
        """Count played steps, and the segments of them to learn from."""
        self._steps += steps
        self._segments += segments

    def end(self) -> int:
        """End the round if it is complete, and return its number of segments; otherwise return 0."""
        if not self._goal or self._steps < self._goal:
            return 0
        segments = self._segments
        self._goal = self._steps = self._segments = 0
        return segments

    @property
    def counts(self) -> list[int]:
        """The counts that a checkpoint keeps."""
        return [self._goal, self._steps, self._segments]

    @counts.setter
    def counts(self, counts: list[int]) -> None:
        self._goal, self._steps, self._segments = counts
