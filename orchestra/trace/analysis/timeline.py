"""One time for all nodes: their clocks set so that, as far as can be, nothing arrives before it was sent."""

import math
from collections import defaultdict

from orchestra.trace.format.records import Header
from orchestra.trace.reading.query import Query
from orchestra.trace.reading.run_trace import RunTrace

PLAUSIBLE_S = 1.0
"""Where messages go in one direction only, clocks are believed if the quickest seems to have taken no longer."""
Process = tuple[str, int]
"""A node's name and the generation of its process."""


class Timeline:
    """Turns the monotonic time of any process of a run into seconds since the run began.

    The walls' clocks are a first guess. Between two processes that told each other something, the least time that any
    message seemed to take must be about the same in both directions; what is missing to that is the clocks' doing.
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
        """Return a moment of the process of `header` as seconds since the run began."""
        return time + self._offsets[_process(header)] - self._began

    def _align(self, delays: dict[tuple[Process, Process], float]) -> None:
        """Set the clocks of all processes by the first one's, over those that spoke to each other."""
        moved: dict[Process, float] = {}
        for root in self._offsets:
            if root in moved:
                continue
            moved[root] = 0.0
            front = [root]
            while front:
                near = front.pop()
                for far in self._offsets:
                    if far in moved:
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
                    moved[far] = shift + moved[near]  # the delays were measured before anything moved
                    self._offsets[far] += moved[far]
                    front.append(far)


def _least_delays(trace: RunTrace, offsets: dict[Process, float]) -> dict[tuple[Process, Process], float]:
    """The least time that a message from one process to another seemed to take, by the first guess."""
    least: dict[tuple[Process, Process], float] = defaultdict(lambda: math.inf)
    sent: dict[tuple[str, int], tuple[Process, float]] = {}
    for recording in trace.recordings:
        process = _process(recording.header)
        for index in recording.indexes:
            times = index.entries["time"]
            for send in index.sends:
                if index.addresses[send["recipient"]].partition("/")[0] != process[0]:
                    name = index.addresses[send["actor"]]
                    # When its handling began: not later than it was sent.
                    sent[name, int(send["number"])] = (process, float(times[send["row"]]) + offsets[process])
    for seen in Query().deliveries(trace):
        entry = seen.index.entries[seen.row]
        found = sent.get((seen.index.addresses[entry["sender"]], int(entry["number"])))
        if found is not None:
            process = _process(seen.header)
            arrived = float(entry["time"]) - float(entry["seconds"]) + offsets[process]
            least[found[0], process] = min(least[found[0], process], arrived - found[1])
    return dict(least)


def _process(header: Header) -> Process:
    return header.node, header.generation
