"""The flight recorder: the last so many bytes of a node, kept in memory and written out when something went wrong."""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable

from orchestra import log
from orchestra.trace.format.encoding import PendingRecord, in_order, parts
from orchestra.trace.format.records import Kind
from orchestra.trace.format.writer import TraceWriter

FLIGHT_BYTES = 64 << 20
MOST_RECORDS = 8
"""Failures of one process of which a record is written: an actor that fails in a circle must not fill the disk."""
BATCH = 512
SLACK = 64
"""The part of the ring that is freed at once."""
SNAPSHOTS_PER_RING = 3
"""How often an actor that can is asked for its state while the whole ring is filled once."""


class FlightRing:
    """Keeps the newest records as they come, and beside them the births and newest states of all actors it tells of.

    Args:
        writer: makes what writes the K-th record, from K and the reason.
        limit: bytes that are kept.
        at_end: whether to write also when the node ends without a failure.
    """

    at_once = False

    def __init__(
        self, writer: Callable[[int, str], TraceWriter], *, limit: int = FLIGHT_BYTES, at_end: bool = False
    ) -> None:
        self.total = 0
        """Bytes that were put, so far."""
        self.snapshot_every: float = limit / SNAPSHOTS_PER_RING
        self._writer = writer
        self._limit = limit
        self._at_end = at_end
        self._ring: deque[PendingRecord] = deque()
        self._most = limit
        """The total at which something is let go."""
        self._births: dict[str, PendingRecord] = {}
        self._snapshots: dict[str, PendingRecord] = {}
        self._gone: defaultdict[str, int] = defaultdict(int)
        self._gone_bytes = 0
        self._gone_clocks = (0, 0)
        self._failures = 0
        self._written = 0
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._log = log.get(actor="trace")

    def put(self, draft: PendingRecord) -> None:
        """Keep a record, and let the oldest go."""
        self._ring.append(draft)
        self.total = total = self.total + draft[3]
        if total > self._most:
            self._shrink()

    def put_snapshot(self, draft: PendingRecord) -> None:
        """Keep the state of an actor, in the place of the one before."""
        self._snapshots[draft[1]] = draft
        self.total += draft[3]
        self._most += draft[3]  # it counts as something recorded, but has no place in the ring

    def failed(self, reason: str, in_hand: Iterable[PendingRecord] = ()) -> None:
        """An actor failed: write what led to it."""
        self._failures += 1
        if self._failures <= MOST_RECORDS:
            self.dump(reason, in_hand)
        elif self._failures == MOST_RECORDS + 1:
            self._log.warning("no more flight records are written for failures", after=MOST_RECORDS)

    def dump(self, reason: str, in_hand: Iterable[PendingRecord] = ()) -> None:
        """Write all that is kept, and what the actors have in hand, to files of its own, in a thread."""
        drafts = [*self._births.values(), *self._snapshots.values(), *self._ring, *in_hand]
        writer = self._writer(self._written, reason)
        self._written += 1
        if self._gone:
            said = f"the flight recorder keeps {self._limit >> 20} MiB"
            writer.missed(said, dict(self._gone), self._gone_bytes, *self._gone_clocks)
        thread = threading.Thread(target=self._write, args=(writer, drafts, reason), name="flight record")
        self._threads = [*(thread for thread in self._threads if thread.is_alive()), thread]
        thread.start()

    def close(self, in_hand: Iterable[PendingRecord] = ()) -> None:
        """Wait for what is being written; write at last if that was asked for."""
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
        ring = self._ring
        least = self.total + self._limit // SLACK  # a little more, so that it need not be done for every record
        while self._most < least and len(ring) > 1:
            draft = ring.popleft()
            kind, actor, clock, nbytes, *row = draft
            self._most += nbytes
            if kind is Kind.BIRTH:
                self._births[actor] = draft
                continue
            if kind is Kind.END:
                self._births.pop(actor, None)
                if actor in self._snapshots and self._snapshots[actor][5] == row[1]:
                    del self._snapshots[actor]  # of the incarnation that ended
            self._gone[actor] += len(parts(draft))
            self._gone_bytes += nbytes
            self._gone_clocks = (self._gone_clocks[0] or clock, clock)

    def _write(self, writer: TraceWriter, drafts: list[PendingRecord], reason: str) -> None:
        try:
            ordered = in_order(drafts)
            for begin in range(0, len(ordered), BATCH):
                writer.record(ordered[begin : begin + BATCH])
            writer.close()
        except Exception as error:  # the run goes on without it
            self._log.error("the flight record could not be written", exc_info=error)
            return
        files = [str(path) for path in writer.paths]
        self._log.info("flight record written", files=files, nbytes=writer.nbytes, reason=reason)
