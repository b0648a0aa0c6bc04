"""Entries on their way from whoever adds them to where they are inserted, a chunk at a time."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.replay.high_water import HighWater, Policy
from components.replay.invalid import InvalidExperience
from components.replay.layout import Layout


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Entries that are inserted together."""

    rows: dict[str, NDArray[Any]]  # by field, (N, *shape)
    priorities: NDArray[np.float64]  # (N,), or none

    def __len__(self) -> int:
        """Return how many entries these are."""
        return len(next(iter(self.rows.values())))


class Outbox:
    """Collects entries into chunks. Any thread may add; one event loop takes.

    Args:
        layout: what entries are.
        mark: entries that may wait, those taken and not done with included.
        policy: what happens to one more.
        weigh: raises what `add` is to raise for priorities that the memory would refuse.
        check_open: raises what `add` is to raise when nothing will be taken any more.
        wake: called when there is something to take.

    Raises:
        ValueError: `mark` is below two chunks, one on its way and one to come; or the oldest are to be dropped, but
            what is drawn is made of entries that follow each other.
    """

    def __init__(
        self,
        layout: Layout,
        mark: int,
        policy: Policy,
        weigh: Callable[[NDArray[np.floating[Any]], int], object],
        check_open: Callable[[], None],
        wake: Callable[[], None],
    ) -> None:
        if mark < 2 * layout.chunk:
            raise ValueError(f"high_water: expected at least {2 * layout.chunk}, which is two chunks, got {mark}")
        if policy == "drop_oldest" and layout.needs_all:
            raise ValueError(
                "when_full: expected block or refuse, since n_step and window are made of entries that follow each "
                "other, got drop_oldest"
            )
        self.added = 0
        """Entries added so far, those dropped since included."""
        self.done = 0
        """Entries that were inserted."""
        self._queue: HighWater[Chunk] = HighWater("entries that wait to be pushed", mark, policy)
        self._layout, self._weigh, self._check_open, self._wake = layout, weigh, check_open, wake
        self._changed = threading.Condition()
        self._form = layout.rows(1)
        self._rows: dict[str, NDArray[Any]] = {}
        self._n = 0  # rows of the chunk that is not complete
        self._priorities: list[float] = []

    @property
    def waiting(self) -> int:
        """Entries that were added, and not inserted yet."""
        return self._queue.level

    @property
    def dropped(self) -> int:
        """Entries that made room for newer ones."""
        return self._queue.dropped

    @property
    def refused(self) -> int:
        """Entries that were refused, since there was no room for them."""
        return self._queue.refused

    def add(self, entry: Mapping[str, Any], last: bool, priority: float | None, timeout: float | None) -> None:
        """Add an entry; `last` has it sent at once, with those before it."""
        with self._changed:
            self._check_open()
            values = self._form.check_row(entry)
            if priority is not None:
                self._weigh(np.array([priority], np.float64), 1)
            self._make_room(1, timeout)
            if self._n and bool(self._priorities) != (priority is not None):
                self._cut()  # a chunk has priorities for all, or for none
            if not self._n:
                fields = self._layout.fields.items()
                self._rows = {name: np.empty((self._layout.chunk, *f.shape), f.dtype) for name, f in fields}
            for name, array in self._rows.items():
                array[self._n] = values[name]
            self._n += 1
            if priority is not None:
                self._priorities.append(priority)
            self.added += 1
            if last or self._n == self._layout.chunk:
                self._cut()

    def add_many(
        self, entries: Mapping[str, NDArray[Any]], priorities: NDArray[np.floating[Any]] | None, timeout: float | None
    ) -> None:
        """Add entries that follow each other."""
        with self._changed:
            self._check_open()
            n = self._form.check_rows(entries)
            if priorities is not None:
                self._weigh(priorities, n)
            if n > self._queue.mark:
                raise InvalidExperience(f"expected at most {self._queue.mark} entries at a time, high_water, got {n}")
            self._make_room(n, timeout)
            if self._n:
                self._cut()
            for start in range(0, n, self._layout.chunk):
                part = slice(start, start + self._layout.chunk)
                rows = {name: array[part].copy() for name, array in entries.items()}
                given = np.zeros(0) if priorities is None else priorities[part].astype(np.float64)
                self._queue.append(Chunk(rows, given), len(next(iter(rows.values()))))
            self.added += n
            self._wake()

    def _make_room(self, n: int, timeout: float | None) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        while not self._queue.make_room(n):
            if self._n:
                self._cut()  # else it would wait for entries that wait for it
                continue
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(
                    f"there was no room for {n} entries within {timeout} s: {self._queue.level} of {self._queue.mark} "
                    "wait to be pushed"
                )
            self._changed.wait(left)
            self._check_open()

    def _cut(self) -> None:
        rows = {name: array[: self._n] for name, array in self._rows.items()}
        self._queue.append(Chunk(rows, np.array(self._priorities)), self._n)
        self._rows, self._n, self._priorities = {}, 0, []
        self._wake()

    def flush(self, timeout: float | None) -> None:
        """Send what waits to be complete, and wait until all that was added is inserted."""
        until = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            if self._n:
                self._cut()
            while self._queue.level:
                self._check_open()
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"{self._queue.level} entries were not inserted within {timeout} s")
                self._changed.wait(left)

    # By the loop that takes -----------------------------------------------------------------------------------------

    def take(self) -> Chunk | None:
        """Return the oldest chunk, which then is to be put back, or done with."""
        with self._changed:
            taken = self._queue.take()
            return None if taken is None else taken[0]

    def put_back(self, chunk: Chunk) -> None:
        """Take a chunk back, as the oldest: it could not be inserted yet."""
        with self._changed:
            self._queue.put_back(chunk, len(chunk))

    def finish(self, chunk: Chunk) -> None:
        """Take note that a chunk was inserted."""
        with self._changed:
            self.done += len(chunk)
            self._queue.free(len(chunk))
            self._changed.notify_all()

    def wake(self) -> None:
        """Have all who wait look again whether anything will be taken."""
        with self._changed:
            self._changed.notify_all()
