"""A common time for all nodes: their clocks are shifted so that, if possible, no message arrives before it was sent."""

import math
from collections import defaultdict

from orchestra.trace.format.records import Header
from orchestra.trace.reading.query import Query
from orchestra.trace.reading.run_trace import RunTrace

PLAUSIBLE_S = 1.0
"""If messages go in one direction only, the clocks are kept as long as the shortest delay is at most this."""
Process = tuple[str, int]
"""A node's name and the generation of its process."""


class Timeline:
    """Converts the monotonic time of any process of a run to seconds since the run began.

    The wall clocks are a first estimate. Between two processes that exchanged messages, the shortest delay should be
    about equal in both directions; the difference is attributed to the clocks.
    """

    def __init__(self, trace: RunTrace) -> None:
        self._offsets: dict[Process, float] = {}
        for recording in trace.recordings:
            header = recording.header
            self._offsets[_process(header)] = header.wall - header.monotonic
        self._align(_least_delays(trace, self._offsets))
        begins = [each.header.monotonic + self._offsets[_process(each.header)] for each in trace.recordings]
        self._began = min(begins)

    def seconds(self, header: Header, time: float) -> float:
        """Return a monotonic time of the process of `header` in seconds since the run began."""
        return time + self._offsets[_process(header)] - self._began

    def _align(self, delays: dict[tuple[Process, Process], float]) -> None:
        """Shift the clocks of all processes to that of the first, along the pairs that exchanged messages."""
        shifts: dict[Process, float] = {}
        for root in self._offsets:
            if root in shifts:
                continue
            shifts[root] = 0.0
            front = [root]
            while front:
                near = front.pop()
                for far in self._offsets:
                    if far in shifts:
                        continue
                    there, back = delays.get((near, far), math.inf), delays.get((far, near), math.inf)
                    if math.isinf(there) and math.isinf(back):
                        continue
                    if math.isinf(back):
                        shift = 0.0 if 0.0 <= there <= PLAUSIBLE_S else -there
                    elif math.isinf(there):
                        shift = 0.0 if 0.0 <= back <= PLAUSIBLE_S else back
                    else:
                        shift = (back - there) / 2
                    shifts[far] = shift + shifts[near]  # the delays were measured with the unshifted clocks
                    self._offsets[far] += shifts[far]
                    front.append(far)


def _least_delays(trace: RunTrace, offsets: dict[Process, float]) -> dict[tuple[Process, Process], float]:
    """The shortest delay of a message from one process to another, by the first estimate."""
    least: dict[tuple[Process, Process], float] = defaultdict(lambda: math.inf)
    sent: dict[tuple[str, int], tuple[Process, float]] = {}
    for recording, index in trace.indexes():
        process = _process(recording.header)
        times = index.entries["time"]
        for send in index.sends:
            if index.addresses[send["recipient"]].partition("/")[0] != process[0]:
                name = index.addresses[send["actor"]]
                # The begin of its activation, which is not later than the send.
                sent[name, int(send["number"])] = (process, float(times[send["row"]]) + offsets[process])
    for row in Query().deliveries(trace):
        entry = row.index.entries[row.row]
        found = sent.get((row.index.addresses[entry["sender"]], int(entry["number"])))
        if found is not None:
            process = _process(row.header)
            arrived = float(entry["time"]) - float(entry["seconds"]) + offsets[process]
            least[found[0], process] = min(least[found[0], process], arrived - found[1])
    return dict(least)


def _process(header: Header) -> Process:
    return header.node, header.generation
