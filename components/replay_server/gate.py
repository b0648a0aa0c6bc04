"""What entries and priorities have to be like, to be let into the memories of a layout."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.replay_buffers.invalid import InvalidExperience
from components.replay_server.layouts import AnyLayout
from components.replay_server.schemas import Rows


class Gate:
    """Checks what clients send, whose own checks prove nothing.

    Args:
        layout: of the memories.
    """

    def __init__(self, layout: AnyLayout) -> None:
        self._form, self._weigh = layout.form(), layout.memory().priorities.weigh

    def check(self, rows: Rows, priorities: NDArray[np.floating[Any]]) -> int:
        """Return how many entries these are, with `priorities` (N,) or none.

        Raises:
            InvalidExperience: a memory would refuse them; the message names the field and what was expected.
        """
        n = self._form.check_many(rows)
        if len(priorities):
            self._weigh(priorities, n)
        return n

    def check_chunks(self, rows: Rows, priorities: NDArray[np.floating[Any]], sizes: Sequence[int]) -> int:
        """Return how many entries these chunks are together; 0 if some of several would be refused, but not all may.

        Raises:
            InvalidExperience: it is one chunk, which would be refused; or they are not as many as `sizes` says.
        """
        if len(sizes) < 2:
            return self.check(rows, priorities)
        n = sum(sizes)
        if min(sizes) < 1 or len(priorities) not in (0, n):
            raise InvalidExperience(
                f"sizes: expected chunks of at least 1 entry, and {n} priorities or none, got {sizes} and "
                f"{len(priorities)}"
            )
        try:
            return n if self.check(rows, priorities) == n else 0
        except InvalidExperience:
            return 0

    def check_priorities(self, priorities: NDArray[np.floating[Any]], n: int) -> None:
        """Check priorities for `n` items that are held; any thread may.

        Raises:
            InvalidExperience: they are not n floats that are finite and at least 0; or sums would overflow.
        """
        self._weigh(priorities, n)

    def split(
        self, rows: Rows, priorities: NDArray[np.float64], sizes: Sequence[int]
    ) -> list[tuple[Rows, NDArray[np.float64]]]:
        """Return rows and priorities (N,), or none, of each chunk, after `check_chunks`.

        Raises:
            InvalidExperience: the rows are not as many as `sizes` says; or such entries come a chunk at a time.
        """
        each = zip(sizes, accumulate(sizes), strict=True)
        given = [priorities[stop - size : stop] for size, stop in each]
        return list(zip(self._form.split(rows, sizes), given, strict=True))
