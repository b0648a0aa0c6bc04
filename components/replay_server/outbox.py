"""Outbox of a client: added entries, collected into chunks until they are inserted."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.replay_buffers.invalid import InvalidExperience
from components.replay_server.bounded_queue import BoundedQueue, OverflowPolicy
from components.replay_server.layouts import AnyLayout, Layout
from components.replay_server.schemas import EntryChunk, Rows, Span

NONE = np.zeros(0)
"""An empty array: no priorities."""


class Bundle:
    """Chunks that travel together, each of which follows the one before.

    Args:
        chunks: at least one.
    """

    def __init__(self, chunks: list[EntryChunk]) -> None:
        first, last = chunks[0], chunks[-1]
        self.chunks = chunks
        self.rows = first.rows_to(last)
        """The entries of all chunks, as a replay buffer inserts them."""
        self.priorities = first.priorities if first is last else np.concatenate([it.priorities for it in chunks])
        """(N,), or none."""
        self.sizes = tuple([it.n for it in chunks])
        """Number of entries of each chunk."""
        self.number = first.number
        """Serial number of the first chunk."""

    @property
    def n(self) -> int:
        """Number of entries, N."""
        return sum(self.sizes)


class Outbox:
    """Collects entries into chunks. Any thread may add; one event loop takes.

    If items are made of consecutive entries, `drop_oldest` drops whole episodes: otherwise entries would become
    consecutive that are not. An episode that is partly taken is not dropped; the caller waits for it. An episode that
    has not ended is dropped together with its later entries.

    Args:
        layout: layout of the entries.
        mark: entries that may wait, including taken entries that are not inserted.
        policy: policy for one more entry.
        check_open: raises the exception of `add` once the client is closed.
        wake: called when there is something to take.

    Raises:
        ValueError: `mark` is below two chunks, one on its way and one to come; or the oldest entries are to be dropped,
            but the entries of several episodes alternate.
    """

    def __init__(
        self,
        layout: AnyLayout,
        mark: int,
        policy: OverflowPolicy,
        check_open: Callable[[], object],
        wake: Callable[[], None],
    ) -> None:
        if mark < 2 * layout.chunk:
            raise ValueError(f"high_water: expected at least {2 * layout.chunk}, which is two chunks, got {mark}")
        self._schema = layout.schema()
        self._whole = policy == "drop_oldest" and self._schema.together
        if self._whole and isinstance(layout, Layout):
            for it in layout.multi_row:
                if it.stride > 1:
                    raise ValueError(
                        f"when_full: expected block or refuse, got drop_oldest: with stride {it.stride} the rows of "
                        f"{it.stride} episodes alternate, and row i + {it.stride} follows row i; without n rows of one "
                        f"episode, row i would be followed by row i + {it.stride} + n, of another episode"
                    )
        self.added = 0
        """Entries added so far, including those dropped since."""
        self.done = 0
        """Entries inserted so far."""
        self.queue: BoundedQueue[EntryChunk] = BoundedQueue(
            "entries that wait to be inserted", mark, policy, oldest=self._oldest
        )
        """Complete chunks. Its level counts all entries that are added and not inserted."""
        self._most, self._check_open, self._wake = layout.chunk, check_open, wake
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._number = 0  # serial number of the next chunk
        self._n = 0  # entries of the incomplete chunk
        self._priorities: list[float] = []
        self._between = True  # True if the last complete chunk ended an episode
        self._skipping = False  # True if the current episode was dropped
        self._asleep = True  # True if the taking loop found nothing, and has to be woken

    def add(self, entry: Mapping[str, Any], last: bool, priority: float | None, timeout: float | None) -> None:
        """Add an entry; `last` sends it at once, with the entries before it. See `ReplayClient.add_entry`."""
        with self._lock:
            self._check_open()
            schema, queue = self._schema, self.queue
            schema.put(entry)
            if priority is not None:
                schema.check_priorities(np.array([priority], np.float64), 1)
            end = self._whole and schema.is_end(entry)
            if self._skipping or not queue.has_room():
                if not self._skipping:
                    self._make_room(1, timeout)
                    if self._skipping:  # making room dropped this episode
                        queue.free()
                if self._skipping:
                    self.added += 1
                    queue.dropped += 1
                    self._skipping = not end
                    return
                schema.put(entry)  # again: other threads may have added entries, or the chunk was taken
            else:
                queue.level += 1
            self.added += 1
            if self._n and bool(self._priorities) != (priority is not None):
                self._complete()  # a chunk has priorities for all entries or none
                schema.put(entry)
            schema.keep()
            self._n += 1
            if priority is not None:
                self._priorities.append(priority)
            if last or end or self._n == self._most:
                self._complete(end=end)

    def add_many(self, entries: Rows, priorities: NDArray[np.floating[Any]] | None, timeout: float | None) -> None:
        """Add consecutive entries. See `ReplayClient.add_entries`."""
        with self._lock:
            self._check_open()
            n = self._schema.check(entries, priorities)
            if n > self.queue.mark:
                raise InvalidExperience(f"expected at most {self.queue.mark} entries at a time, high_water, got {n}")
            if not n:
                return
            self._make_room(n, timeout)
            if self._n:
                self._complete()
            start = 0
            for arrays, span, size, end in self._schema.chunks(entries, self._most, at_ends=self._whole):
                if self._skipping:
                    self.queue.drop(size)
                    self._skipping = not end
                else:
                    given = NONE if priorities is None else priorities[start : start + size].astype(np.float64)
                    self._append(arrays, span, given, size, end)
                start += size
            self.added += n
            self._rouse()

    def _make_room(self, n: int, timeout: float | None) -> None:
        def made() -> bool:
            self._check_open()
            while not self.queue.make_room(n):
                if not self._n:
                    return False
                self._complete()  # there is room only after these entries are inserted
            return True

        if not self._changed.wait_for(made, timeout):
            raise TimeoutError(
                f"there was no room for {n} entries within {timeout} s: {self.queue.level} of {self.queue.mark} "
                "wait to be inserted"
            )

    def _oldest(self, chunks: Sequence[EntryChunk]) -> tuple[int, int]:
        """Return first index and end of the chunks to drop first."""
        if not self._whole:
            return 0, 1
        first = next((i for i, chunk in enumerate(chunks) if chunk.first), len(chunks))
        stop = next((i + 1 for i in range(first, len(chunks)) if chunks[i].last), 0)
        if stop:
            return first, stop
        if first == len(chunks) or self._n:  # the incomplete chunk is first completed, then dropped with the others
            return 0, 0
        self._skipping, self._between = True, True
        return first, len(chunks)

    def _complete(self, *, end: bool = False) -> None:
        """Complete the chunk that is being collected."""
        n, priorities = self._n, np.array(self._priorities) if self._priorities else NONE
        self._n, self._priorities = 0, []
        self._append(*self._schema.take(), priorities, n, end)
        self._rouse()

    def _rouse(self) -> None:
        """Wake the taking loop unless it is awake: waking costs more than all other work for an entry."""
        if self._asleep:
            self._asleep = False
            self._wake()

    def _append(self, arrays: Rows, span: Span, priorities: NDArray[np.float64], n: int, end: bool) -> None:
        self.queue.append(EntryChunk(arrays, span, priorities, n, self._between, end, self._number), n)
        self._number += 1
        self._between = end

    def flush(self, timeout: float | None) -> None:
        """Complete the chunk that is being collected, and wait until all added entries are inserted."""
        with self._lock:
            if self._n:
                self._complete()
            if not self._changed.wait_for(lambda: not self.queue.level or self._check_open(), timeout):
                raise TimeoutError(f"{self.queue.level} entries were not inserted within {timeout} s")

    # On the taking loop ---------------------------------------------------------------------------------------------

    def take_bundle(self, most: int) -> Bundle | None:
        """Take up to `most` of the oldest chunks that can be sent together. The caller puts back each, or finishes all.

        If there is none, the next chunk calls `wake`.
        """
        with self._lock:
            chunks: list[EntryChunk] = []
            while len(chunks) < most and (oldest := self.queue.oldest) is not None:
                if chunks and not oldest.follows(chunks[-1]):
                    break
                self.queue.take()
                chunks.append(oldest)
            self._asleep = not chunks
            return Bundle(chunks) if chunks else None

    def put_back(self, chunk: EntryChunk) -> None:
        """Return a taken chunk, which may or may not have been inserted, to the front of the queue."""
        with self._lock:
            self.queue.put_back(replace(chunk, first=False), chunk.n)

    def finish(self, chunk: EntryChunk | Bundle) -> None:
        """Count taken chunks as inserted."""
        with self._lock:
            self.done += chunk.n
            self.queue.free(chunk.n)
            self._changed.notify_all()

    def wake(self) -> None:
        """Make waiting callers call `check_open` again."""
        with self._lock:
            self._changed.notify_all()
