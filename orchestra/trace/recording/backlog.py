"""The queue between the event loop and the trace file, and the thread that empties it. The loop waits for no disk."""

import math
import threading
from collections import deque
from collections.abc import Iterable

from orchestra import log
from orchestra.trace.format.encoding import PendingRecord
from orchestra.trace.format.writer import LostRecords, TraceWriter

BACKLOG_BYTES = 256 << 20
WAKE_BYTES = 4 << 20
"""Queued bytes at which the thread is woken."""
REST_S = 0.05
"""Seconds that the thread sleeps otherwise."""
BATCH = 512


class Backlog:
    """Records that are not written yet. The loop's thread calls `put`; a thread of this object writes.

    A record that finds no room is dropped whole and counted; a GAP record states the loss once there is room again.

    Args:
        writer: used by the thread alone.
        limit: bytes that may be queued.
    """

    at_once = True
    digests_sent = False
    snapshot_every = math.inf
    """A file that holds the birth of every actor needs no snapshots."""
    total = 0

    def __init__(self, writer: TraceWriter, *, limit: int = BACKLOG_BYTES) -> None:
        self._writer = writer
        self._limit = limit
        self._waiting: deque[PendingRecord | LostRecords] = deque()
        self._put_bytes = 0
        self._done_bytes = 0
        self._lost: LostRecords | None = None
        self._warned = False
        self._closing = False
        self._news = threading.Event()
        self._log = log.get(actor="trace")
        self._thread = threading.Thread(target=self._run, name="trace writer", daemon=True)
        self._thread.start()

    def put(self, pending: PendingRecord) -> None:
        """Queue a record, or drop it where there is no room."""
        nbytes = pending[3]
        waiting = self._put_bytes - self._done_bytes
        if waiting + nbytes > self._limit and waiting:
            _, actor, clock, *_ = pending
            if self._lost is None:
                self._lost = LostRecords("the disk was too slow")
            self._lost.add(actor, nbytes, clock)
            if not self._warned:
                self._warned = True
                self._log.warning("the trace cannot keep up; records are dropped and counted", waiting_bytes=waiting)
            return
        if self._lost is not None:
            self._waiting.append(self._lost)
            self._lost = None
        self._waiting.append(pending)
        self._put_bytes += nbytes
        if waiting + nbytes > WAKE_BYTES:
            self._news.set()

    put_snapshot = put

    def dump(self, reason: str, in_hand: Iterable[PendingRecord] = (), *, failure: bool = False) -> None:
        """Write the queued records now."""
        self._news.set()

    def close(self, in_hand: Iterable[PendingRecord] = (), deadline: float = 30.0) -> None:
        """Write the queued records, close the file and report losses. Records not written by the deadline are lost.

        Args:
            in_hand: records that actors have not handed on; empty here, since deliveries are put at once.
            deadline: seconds to wait for the disk.
        """
        if self._closing:
            return
        if self._lost is not None:
            self._waiting.append(self._lost)
            self._lost = None
        self._closing = True
        self._news.set()
        self._thread.join(deadline)
        if self._thread.is_alive():
            self._log.error("the disk did not accept the trace in time; its end is missing", seconds=deadline)
        elif self._writer.dropped:
            self._log.warning("the trace is incomplete", dropped_records=self._writer.dropped)

    def _run(self) -> None:
        try:
            while not self._closing or self._waiting:
                if not self._waiting:
                    self._news.wait(REST_S)
                    self._news.clear()
                self._write_batch()
            self._writer.close()
        except Exception as error:  # a defect of the recording must not fail the run
            self._log.error("recording ends here", exc_info=error)
            self._limit = -1
            self._done_bytes = 0
            self._put_bytes = 1
            self._waiting.clear()

    def _write_batch(self) -> None:
        batch: list[PendingRecord] = []
        nbytes = 0
        while self._waiting and len(batch) < BATCH and nbytes < WAKE_BYTES:
            pending = self._waiting.popleft()
            if isinstance(pending, LostRecords):
                self._writer.record(batch)
                batch = []
                self._writer.lose(pending)
                continue
            batch.append(pending)
            nbytes += pending[3]
        if batch:
            self._writer.record(batch)
        self._done_bytes += nbytes
