"""Entries on their way from whoever adds them to where they are inserted, a chunk at a time."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.replay_buffers.invalid import InvalidExperience
from components.replay_server.bounded_queue import HighWater, Policy
from components.replay_server.layouts import AnyLayout, Layout
from components.replay_server.schemas import Part, Rows

NONE = np.zeros(0)
"""No priorities."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Entries that are inserted together."""

    part: Part
    priorities: NDArray[np.float64]  # (N,), or none
    n: int
    """How many entries these are, N."""
    first: bool
    """Whether an episode begins with them, and none of them was ever on its way."""
    last: bool
    """Whether an episode ends with them."""
    number: int
    """One more than that of the chunk before."""

    @property
    def rows(self) -> Rows:
        """The entries, as memories insert them."""
        return self.part.rows

    def goes_on(self, other: "Chunk") -> bool:
        """Whether it may travel with `other`, in the same arrays: both have priorities, or neither."""
        return self.part.goes_on(other.part) and bool(len(self.priorities)) == bool(len(other.priorities))


class Bundle:
    """Chunks that travel together, since each goes on where the one before ends; at least one.

    Args:
        chunks: these.
    """

    def __init__(self, chunks: list[Chunk]) -> None:
        first = chunks[0]
        alone = len(chunks) == 1
        self.chunks = chunks
        self.rows = first.rows if alone else first.part.up_to(chunks[-1].part).rows
        """The entries of all, as memories insert them."""
        self.priorities = first.priorities if alone else np.concatenate([it.priorities for it in chunks])
        """(N,), or none."""
        self.sizes = tuple([it.n for it in chunks])
        """How many entries each chunk has."""
        self.number = first.number
        """Of the first chunk; the others follow."""

    @property
    def n(self) -> int:
        """How many entries these are, N."""
        return sum(self.sizes)


class Outbox:
    """Collects entries into chunks. Any thread may add; one event loop takes.

    Where what is drawn is made of entries that follow each other, `drop_oldest` drops whole episodes: those that stay
    would be neighbours else that were none. An episode of which some has been taken is not dropped but waited for; one
    that is not at its end yet is dropped with what is still to come of it.

    Args:
        layout: what entries are.
        mark: entries that may wait, those taken and not done with included.
        policy: what happens to one more.
        weigh: raises what `add` is to raise for priorities that the memory would refuse.
        check_open: raises what `add` is to raise when nothing will be taken any more.
        wake: called when there is something to take.

    Raises:
        ValueError: `mark` is below two chunks, one on its way and one to come; or the oldest are to be dropped, but
            episodes lie among each other.
    """

    def __init__(
        self,
        layout: AnyLayout,
        mark: int,
        policy: Policy,
        weigh: Callable[[NDArray[np.floating[Any]], int], object],
        check_open: Callable[[], None],
        wake: Callable[[], None],
    ) -> None:
        if mark < 2 * layout.chunk:
            raise ValueError(f"high_water: expected at least {2 * layout.chunk}, which is two chunks, got {mark}")
        self._form = layout.form()
        self._whole = policy == "drop_oldest" and self._form.together
        if self._whole and isinstance(layout, Layout):
            for it in layout.together:
                if it.stride > 1:
                    raise ValueError(
                        f"when_full: expected block or refuse, got drop_oldest: with stride {it.stride} the rows of "
                        f"{it.stride} episodes take turns, and row i + {it.stride} follows on row i; without n rows of "
                        f"one of them, row i + {it.stride} + n would, which is another's"
                    )
        self.added = 0
        """Entries added so far, those dropped since included."""
        self.done = 0
        """Entries that were inserted."""
        self._queue: HighWater[Chunk] = HighWater("entries that wait to be pushed", mark, policy, oldest=self._oldest)
        self._most, self._weigh, self._check_open, self._wake = layout.chunk, weigh, check_open, wake
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._number = 0  # of the next chunk
        self._n = 0  # entries of the chunk that is not complete
        self._priorities: list[float] = []
        self._between = True  # whether the last entry that was cut off was an episode's end
        self._skipping = False  # whether the episode that goes on was dropped
        self._asleep = True  # whether who takes has found nothing, and is to be woken

    @property
    def waiting(self) -> int:
        """Entries that were added, and not inserted yet."""
        return self._queue.level

    @property
    def dropped(self) -> int:
        """Entries that made room for newer ones."""
        return self._queue.dropped

    @property
    def drops(self) -> bool:
        """Whether older entries make room for newer ones."""
        return self._queue.policy == "drop_oldest"

    @property
    def refused(self) -> int:
        """Entries that were refused, since there was no room for them."""
        return self._queue.refused

    def add(self, entry: Mapping[str, Any], last: bool, priority: float | None, timeout: float | None) -> None:
        """Add an entry; `last` has it sent at once, with those before it."""
        with self._lock:
            self._check_open()
            form, queue = self._form, self._queue
            form.put(entry)
            if priority is not None:
                self._weigh(np.array([priority], np.float64), 1)
            end = self._whole and form.is_end(entry)
            if self._skipping or not queue.has_room():
                if not self._skipping:
                    self._make_room(1, timeout)
                    if self._skipping:  # since just now
                        queue.free()
                if self._skipping:
                    self.added += 1
                    queue.dropped += 1
                    self._skipping = not end
                    return
                form.put(entry)  # again: others may have added meanwhile, or what was collected was taken
            else:
                queue.level += 1
            self.added += 1
            if self._n and bool(self._priorities) != (priority is not None):
                self._cut()  # a chunk has priorities for all, or for none
                form.put(entry)
            form.keep()
            self._n += 1
            if priority is not None:
                self._priorities.append(priority)
            if last or end or self._n == self._most:
                self._cut(end=end)

    def add_many(self, entries: Rows, priorities: NDArray[np.floating[Any]] | None, timeout: float | None) -> None:
        """Add entries that follow each other."""
        with self._lock:
            self._check_open()
            n = self._form.check_many(entries)
            if priorities is not None:
                self._weigh(priorities, n)
            if n > self._queue.mark:
                raise InvalidExperience(f"expected at most {self._queue.mark} entries at a time, high_water, got {n}")
            if not n:
                return
            self._make_room(n, timeout)
            if self._n:
                self._cut()
            start = 0
            for part, size, end in self._form.parts(entries, self._most, at_ends=self._whole):
                if self._skipping:
                    self._queue.drop(size)
                    self._skipping = not end
                else:
                    given = None if priorities is None else priorities[start : start + size].astype(np.float64)
                    self._append(part, NONE if given is None else given, size, end)
                start += size
            self.added += n
            self._rouse()

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

    def _oldest(self, chunks: Sequence[Chunk]) -> tuple[int, int]:
        """Return which chunks go first: from one index on, and before another."""
        if not self._whole:
            return 0, 1
        first = next((i for i, chunk in enumerate(chunks) if chunk.first), len(chunks))
        stop = next((i + 1 for i in range(first, len(chunks)) if chunks[i].last), 0)
        if stop:
            return first, stop
        if first == len(chunks) or self._n:  # what was added of it last is to be cut off, so that it goes too
            return 0, 0
        self._skipping, self._between = True, True
        return first, len(chunks)

    def _cut(self, *, end: bool = False) -> None:
        n, priorities = self._n, np.array(self._priorities) if self._priorities else NONE
        self._n, self._priorities = 0, []
        self._append(self._form.take(), priorities, n, end)
        self._rouse()

    def _rouse(self) -> None:
        """Wake who takes, unless it is awake: that costs more than all else of an entry."""
        if self._asleep:
            self._asleep = False
            self._wake()

    def _append(self, part: Part, priorities: NDArray[np.float64], n: int, end: bool) -> None:
        self._queue.append(Chunk(part, priorities, n, self._between, end, self._number), n)
        self._number += 1
        self._between = end

    def flush(self, timeout: float | None) -> None:
        """Send what waits to be complete, and wait until all that was added is inserted."""
        until = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            if self._n:
                self._cut()
            while self._queue.level:
                self._check_open()
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"{self._queue.level} entries were not inserted within {timeout} s")
                self._changed.wait(left)

    # By the loop that takes -----------------------------------------------------------------------------------------

    def take_bundle(self, most: int) -> Bundle | None:
        """Return up to so many chunks, the oldest, that can travel together; each is to be put back, or all done with.

        If there is none, `wake` is called when there is one.
        """
        with self._lock:
            chunks: list[Chunk] = []
            while len(chunks) < most and (oldest := self._queue.oldest) is not None:
                if chunks and not oldest.goes_on(chunks[-1]):
                    break
                self._queue.take()
                chunks.append(oldest)
            self._asleep = not chunks
            return Bundle(chunks) if chunks else None

    def put_back(self, chunk: Chunk) -> None:
        """Take a chunk back, as the oldest: it is not known to be inserted. What is known of it stays with it."""
        with self._lock:
            self._queue.put_back(replace(chunk, first=False), chunk.n)

    def finish(self, chunk: Chunk | Bundle) -> None:
        """Take note that a chunk, or several, was inserted."""
        with self._lock:
            self.done += chunk.n
            self._queue.free(chunk.n)
            self._changed.notify_all()

    def wake(self) -> None:
        """Have all who wait look again whether anything will be taken."""
        with self._lock:
            self._changed.notify_all()
