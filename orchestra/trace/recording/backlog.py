"""The way from the loop to the file: a bounded queue and the thread that empties it. Nobody ever waits for the disk."""

import math
import threading
from collections import Counter, deque
from collections.abc import Iterable

from orchestra import log
from orchestra.trace.format.encoding import PendingRecord
from orchestra.trace.format.writer import TraceWriter

BACKLOG_BYTES = 256 << 20
WAKE_BYTES = 4 << 20
"""So much waits at most before the thread is woken."""
REST_S = 0.05
"""So long it rests otherwise."""
BATCH = 512


class _Missed:
    """Records that found no room."""

    __slots__ = ("actors", "first_clock", "last_clock", "nbytes")

    def __init__(self, clock: int) -> None:
        self.actors: Counter[str] = Counter()
        self.nbytes = 0
        self.first_clock = self.last_clock = clock


class Backlog:
    """What is recorded and not yet written. `put` is for the loop's thread; a thread of its own writes.

    A record that finds no room is dropped whole, counted, and told in the file as soon as there is room again.

    Args:
        writer: writes; used by the thread alone.
        limit: bytes that may wait.
    """

    at_once = True
    snapshot_every = math.inf
    """A file that has the birth needs no states."""
    total = 0

    def __init__(self, writer: TraceWriter, *, limit: int = BACKLOG_BYTES) -> None:
        self._writer = writer
        self._limit = limit
        self._waiting: deque[PendingRecord | _Missed] = deque()
        self._put_bytes = 0
        self._done_bytes = 0
        self._missed: _Missed | None = None
        self._warned = False
        self._closing = False
        self._news = threading.Event()
        self._log = log.get(actor="trace")
        self._thread = threading.Thread(target=self._run, name="trace writer", daemon=True)
        self._thread.start()

    def put(self, draft: PendingRecord) -> None:
        """Queue a record, or drop it."""
        nbytes = draft[3]
        waiting = self._put_bytes - self._done_bytes
        if waiting + nbytes > self._limit and waiting:
            _, actor, clock, *_ = draft
            if self._missed is None:
                self._missed = _Missed(clock)
            self._missed.actors[actor] += 1
            self._missed.nbytes += nbytes
            self._missed.last_clock = clock
            if not self._warned:
                self._warned = True
                self._log.warning("the trace cannot keep up; records are left out and counted", waiting_bytes=waiting)
            return
        if self._missed is not None:
            self._waiting.append(self._missed)
            self._missed = None
        self._waiting.append(draft)
        self._put_bytes += nbytes
        if waiting + nbytes > WAKE_BYTES:
            self._news.set()

    def put_snapshot(self, draft: PendingRecord) -> None:
        """Queue it as any other record."""
        self.put(draft)

    def failed(self, reason: str, in_hand: Iterable[PendingRecord] = ()) -> None:
        """An actor failed: what is known goes to the file now."""
        self._news.set()

    def dump(self, reason: str, in_hand: Iterable[PendingRecord] = ()) -> None:
        """Somebody wants to see what is known so far."""
        self._news.set()

    def close(self, in_hand: Iterable[PendingRecord] = (), deadline: float = 30.0) -> None:
        """Write what waits, close the file, and report what was left out. What the deadline (seconds) cuts is lost."""
        if self._closing:
            return
        if self._missed is not None:
            self._waiting.append(self._missed)
            self._missed = None
        self._closing = True
        self._news.set()
        self._thread.join(deadline)
        if self._thread.is_alive():
            self._log.error("the disk did not take the trace in time; its end is missing", seconds=deadline)
        elif self._writer.dropped:
            self._log.warning("the trace is not complete", records_left_out=self._writer.dropped)

    def _run(self) -> None:
        try:
            while not self._closing or self._waiting:
                if not self._waiting:
                    self._news.wait(REST_S)
                    self._news.clear()
                self._write_batch()
            self._writer.close()
        except Exception as error:  # a fault of ours must not become one of the run
            self._log.error("recording ends here", exc_info=error)
            self._limit = -1
            self._done_bytes = 0
            self._put_bytes = 1
            self._waiting.clear()

    def _write_batch(self) -> None:
        batch: list[PendingRecord] = []
        nbytes = 0
        while self._waiting and len(batch) < BATCH and nbytes < WAKE_BYTES:
            draft = self._waiting.popleft()
            if isinstance(draft, _Missed):
                self._writer.record(batch)
                batch = []
                self._writer.missed(
                    "the disk was too slow", draft.actors, draft.nbytes, draft.first_clock, draft.last_clock
                )
                continue
            batch.append(draft)
            nbytes += draft[3]
        if batch:
            self._writer.record(batch)
        self._done_bytes += nbytes
