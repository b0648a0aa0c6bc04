"""Rounds: how on-policy learning is paced. Every environment plays as many steps, then the learner makes an update."""


class Rounds:
    """Counts the steps of the round under way, and says when the next may begin.

    A round is `length` steps of each environment that is there when it begins. Its segments are one batch. The next
    begins once that batch is learned and the new parameters are published, so that all its steps are of one version.

    Args:
        length: steps of each environment.
        overlap: batches that may be on their way to the learner, or with it, when a round begins. The steps of a batch
            are then of parameters up to so many versions behind those that learn from them.

    Raises:
        ValueError: a number is out of range.
    """

    min_size = 1
    """Segments of a batch, at least."""

    def __init__(self, length: int, *, overlap: int = 0) -> None:
        if length < 1 or overlap < 0:
            raise ValueError(f"expected length >= 1 and overlap >= 0, got {length} and {overlap}")
        self.length, self.overlap = length, overlap
        self._goal = self._steps = self._segments = 0  # of the round under way; without a goal there is none

    def allowance(self, environments: int, in_flight: int) -> int:
        """Return how many steps may still be played now. A round begins if one may.

        Args:
            environments: those that are there.
            in_flight: batches that were requested and are not learned.
        """
        if not self._goal and in_flight <= self.overlap:
            self._goal = self.length * environments
        return max(self._goal - self._steps, 0)

    def insert(self, steps: int, segments: int) -> None:
        """Count steps that have been played, and the segments of them that are there to be learned."""
        self._steps += steps
        self._segments += segments

    def end(self) -> int:
        """Return the number of segments of a round that is complete, and end it; 0 if there is none."""
        if not self._goal or self._steps < self._goal:
            return 0
        segments = self._segments
        self._goal = self._steps = self._segments = 0
        return segments

    @property
    def counts(self) -> list[int]:
        """What a checkpoint keeps."""
        return [self._goal, self._steps, self._segments]

    @counts.setter
    def counts(self, counts: list[int]) -> None:
        self._goal, self._steps, self._segments = counts
