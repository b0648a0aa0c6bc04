"""The flight recorder: the newest records of a node, kept in memory and written to files after a failure."""

import threading
from collections import deque
from collections.abc import Callable, Iterable

from orchestra import log
from orchestra.trace.format.encoding import PendingRecord, count_of, in_order
from orchestra.trace.format.records import Kind
from orchestra.trace.format.writer import LostRecords, TraceWriter
from orchestra.trace.recording.recorder import FLIGHT_BYTES, SNAPSHOTS_PER_RING

MAX_FAILURES = 8
"""Failures of one process that are written: an actor that fails again and again must not fill the disk."""
BATCH = 512
SLACK = 64
"""1/`SLACK` of the ring is freed at once."""


class FlightRing:
    """Keeps the newest records, and the births and newest snapshots of the actors whose older records it dropped.

    It holds `limit` bytes of records, of which one may be larger alone, and beside these for each actor a birth and a
    snapshot of at most four times `limit`.

    Args:
        writer: returns the writer of the K-th flight record, from K and the reason.
        limit: bytes to keep.
        at_end: whether to write also when the node ends without a failure.
    """

    at_once = False
    digests_sent = True

    def __init__(
        self, writer: Callable[[int, str], TraceWriter], *, limit: int = FLIGHT_BYTES, at_end: bool = False
    ) -> None:
        self.total = 0
        """Bytes put so far."""
        self.snapshot_every: float = limit / SNAPSHOTS_PER_RING
        self._writer = writer
        self._limit = limit
        self._at_end = at_end
        self._ring: deque[PendingRecord] = deque()
        self._most = limit
        """The total above which the oldest records are dropped."""
        self._births: dict[str, PendingRecord] = {}
        self._snapshots: dict[str, PendingRecord] = {}
        self._dropped = LostRecords(f"the flight recorder keeps {limit >> 20} MiB")
        self._failures = 0
        self._written = 0
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._log = log.get(actor="trace")

    def put(self, pending: PendingRecord) -> None:
        """Add a record, and drop the oldest ones above the limit."""
        self._ring.append(pending)
        self.total = total = self.total + pending[3]
        if total > self._most:
            self._shrink()

    def put_snapshot(self, pending: PendingRecord) -> None:
        """Replace the snapshot of an actor."""
        self._snapshots[pending[1]] = pending
        self.total += pending[3]
        self._most += pending[3]  # it counts as recorded, but takes no room in the ring

    def dump(self, reason: str, in_hand: Iterable[PendingRecord] = (), *, failure: bool = False) -> None:
        """Write all records to new files, in a thread.

        Args:
            reason: the header of the files states it.
            in_hand: records that actors have not put yet.
            failure: whether an actor failed; only the first `MAX_FAILURES` failures are written.
        """
        self._failures += failure
        if failure and self._failures > MAX_FAILURES:
            if self._failures == MAX_FAILURES + 1:
                self._log.warning("no more flight records are written for failures", after=MAX_FAILURES)
            return
        pending = [*self._births.values(), *self._snapshots.values(), *self._ring, *in_hand]
        writer = self._writer(self._written, reason)
        self._written += 1
        if self._dropped.actors:
            writer.lose(self._dropped)
        thread = threading.Thread(target=self._write, args=(writer, pending, reason), name="flight record")
        self._threads = [*(thread for thread in self._threads if thread.is_alive()), thread]
        thread.start()

    def close(self, in_hand: Iterable[PendingRecord] = ()) -> None:
        """Wait for the writing threads; write a last flight record if `at_end` is set."""
        if self._closed:
            return
        self._closed = True
        if self._at_end:
            self.dump("the end of the run", in_hand)
        for thread in self._threads:
            thread.join()
        self._ring.clear()
        self._births.clear()
        self._snapshots.clear()

    def _shrink(self) -> None:
        ring, dropped, actors = self._ring, self._dropped, self._dropped.actors
        least = self.total + self._limit // SLACK  # a little more than needed, so that this runs for few records
        nbytes_dropped = first = last = 0
        while self._most < least and len(ring) > 1:
            pending = ring.popleft()
            kind, actor, clock, nbytes, *row = pending
            self._most += nbytes
            if kind is Kind.BIRTH:
                self._births[actor] = pending
                continue
            if kind is Kind.END:
                self._births.pop(actor, None)
                if actor in self._snapshots and self._snapshots[actor][5] == row[1]:
                    del self._snapshots[actor]  # a snapshot of the incarnation that ended
            actors[actor] += count_of(pending)
            nbytes_dropped += nbytes
            first, last = first or clock, clock
        dropped.nbytes += nbytes_dropped
        dropped.first_clock = dropped.first_clock or first
        dropped.last_clock = last or dropped.last_clock

    def _write(self, writer: TraceWriter, pending: list[PendingRecord], reason: str) -> None:
        try:
            ordered = in_order(pending)
            for begin in range(0, len(ordered), BATCH):
                writer.record(ordered[begin : begin + BATCH])
            writer.close()
        except Exception as error:  # a defect of the recording must not fail the run
            self._log.error("the flight record could not be written", exc_info=error)
            return
        files = [str(path) for path in writer.paths]
        self._log.info("flight record written", files=files, nbytes=writer.nbytes, reason=reason)
