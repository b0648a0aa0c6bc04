"""Snapshots of actors for the flight recorder, so that a replay can begin at a recent state."""

import json
import math

from orchestra import log
from orchestra.actors import codec
from orchestra.actors.actor import Actor
from orchestra.actors.recorder import ActorSettings, StateSource
from orchestra.trace.format.records import Kind
from orchestra.trace.recording.capture import frozen_value, nbytes_of
from orchestra.trace.recording.recorder import SNAPSHOTS_PER_RING, NodeRecorder

COST = 0.01
"""Largest fraction of an actor's time that its snapshots take."""
LARGEST = 4
"""Times the ring that a snapshot may take."""
AGAIN = 16
"""An actor that returns no state is asked again after 1/`AGAIN` of the bytes between two snapshots."""


class SnapshotSchedule:
    """Takes the snapshots of one actor.

    A snapshot is taken between two messages, each time the node has recorded a third of its ring, but not before a
    hundred times the duration of the last snapshot has passed. So the ring still holds all messages since the newest
    snapshot, unless a snapshot takes so long that this would cost more than a hundredth of the actor's time. A state
    larger than four rings is not kept.
    """

    def __init__(self, recorder: NodeRecorder, settings: ActorSettings, state: StateSource) -> None:
        self.due = math.inf
        """The sink's total at which the next snapshot is taken."""
        self._recorder = recorder
        self._address = settings.address
        self._state = state
        self._every = recorder.sink.snapshot_every if settings.kind.snapshot is not Actor.snapshot else math.inf
        self._earliest = -math.inf
        self._took = 0.0

    def begin(self) -> None:
        """Start over for a new incarnation."""
        self.due = self._recorder.sink.total + self._every

    def take(self, incarnation: int, n: int) -> None:
        """Record the state before activation `n`, if the actor can provide it."""
        recorder = self._recorder
        sink = recorder.sink
        now = recorder.clock.monotonic()
        if now < self._earliest or (holder := self._state()) is None:
            return
        actor, rng = holder
        try:
            taken = actor.snapshot()
            if taken is None:
                self.due = sink.total + self._every / AGAIN
                return
            state = frozen_value(dict(taken))
            codec.Encoder().encode(state)
        except Exception as error:  # a snapshot that fails must not fail the actor
            self._give_up("snapshot() raised, or its result cannot be encoded", error)
            return
        nbytes = nbytes_of(state)
        if nbytes > (most := self._every * SNAPSHOTS_PER_RING * LARGEST):
            self._give_up(f"its snapshot takes {nbytes:,} bytes; at most {most:,.0f} are kept")
            return
        clock = recorder.tick()
        random = json.dumps(rng.bit_generator.state)
        row = (self._address, incarnation, n, clock, now, random, state)
        sink.put_snapshot((Kind.SNAPSHOT, self._address, clock, nbytes, *row))
        self.due = sink.total + self._every
        took = recorder.clock.monotonic() - now
        # The shorter of two: the other may have been interrupted.
        self._earliest = now + min(took, self._took) / COST
        self._took = took

    def _give_up(self, why: str, error: Exception | None = None) -> None:
        self.due = self._every = math.inf
        log.get(actor="trace").warning("no snapshots of this actor", of=self._address, reason=why, exc_info=error)
