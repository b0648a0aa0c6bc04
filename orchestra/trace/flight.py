"""The flight recorder: the last so many bytes of a node, kept in memory and written out when something went wrong."""

import threading
from collections import Counter, deque
from collections.abc import Callable

from orchestra import log
from orchestra.trace.layout import Entry
from orchestra.trace.records import Kind
from orchestra.trace.writer import TraceWriter

FLIGHT_BYTES = 64 << 20
OVERHEAD = 200
"""Bytes that Python takes for an entry, about."""
MOST_RECORDS = 8
"""Failures of one process of which a record is written: an actor that fails in a circle must not fill the disk."""


class FlightRing:
    """Keeps the newest records, as they would be written, and the births of all actors that it still tells of.

    Args:
        writer: makes what writes the K-th record, from K and the reason.
        limit: bytes that are kept.
        at_end: whether to write also when the node ends without a failure.
    """

    def __init__(
        self, writer: Callable[[int, str], TraceWriter], *, limit: int = FLIGHT_BYTES, at_end: bool = False
    ) -> None:
        self._writer = writer
        self._limit = limit
        self._at_end = at_end
        self._ring: deque[Entry] = deque()
        self._nbytes = 0
        self._births: dict[str, Entry] = {}
        self._gone: Counter[str] = Counter()
        self._gone_bytes = 0
        self._gone_clocks = (0, 0)
        self._failures = 0
        self._written = 0
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._log = log.get(actor="trace")

    def put(self, entry: Entry) -> None:
        """Keep a record, and let the oldest go."""
        self._ring.append(entry)
        self._nbytes += entry.nbytes + OVERHEAD
        while self._nbytes > self._limit and len(self._ring) > 1:
            self._let_go(self._ring.popleft())

    def failed(self, reason: str) -> None:
        """An actor failed: write what led to it."""
        self._failures += 1
        if self._failures <= MOST_RECORDS:
            self.dump(reason)
        elif self._failures == MOST_RECORDS + 1:
            self._log.warning("no more flight records are written for failures", after=MOST_RECORDS)

    def dump(self, reason: str) -> None:
        """Write all that is kept to files of its own, in a thread."""
        entries = [*self._births.values(), *self._ring]
        writer = self._writer(self._written, reason)
        self._written += 1
        if self._gone:
            said = f"the flight recorder keeps {self._limit >> 20} MiB"
            writer.missed(said, Counter(self._gone), self._gone_bytes, *self._gone_clocks)
        thread = threading.Thread(target=self._write, args=(writer, entries, reason), name="flight record")
        self._threads = [*(thread for thread in self._threads if thread.is_alive()), thread]
        thread.start()

    def close(self) -> None:
        """Wait for what is being written; write at last if that was asked for."""
        if self._closed:
            return
        self._closed = True
        if self._at_end:
            self.dump("the end of the run")
        for thread in self._threads:
            thread.join()
        self._ring.clear()
        self._births.clear()

    def _let_go(self, entry: Entry) -> None:
        self._nbytes -= entry.nbytes + OVERHEAD
        if entry.kind is Kind.BIRTH:
            self._births[entry.actor] = entry
            return
        if entry.kind is Kind.END:
            self._births.pop(entry.actor, None)
        self._gone[entry.actor] += 1
        self._gone_bytes += entry.nbytes
        self._gone_clocks = (self._gone_clocks[0] or entry.clock, entry.clock)

    def _write(self, writer: TraceWriter, entries: list[Entry], reason: str) -> None:
        try:
            writer.write(entries)
            writer.close()
        except Exception as error:  # the run goes on without it
            self._log.error("the flight record could not be written", exc_info=error)
            return
        files = [str(path) for path in writer.paths]
        self._log.info("flight record written", files=files, nbytes=writer.nbytes, reason=reason)
