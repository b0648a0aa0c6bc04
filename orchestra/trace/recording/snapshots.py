"""The states that a flight recorder keeps: what an actor holds, now and then, so that a replay can begin there."""

import json
import math

from orchestra import log
from orchestra.actors import codec
from orchestra.actors.actor import Actor
from orchestra.actors.host import ActorSettings, StateSource
from orchestra.trace.format.records import Kind
from orchestra.trace.recording.capture import frozen_value, nbytes_of
from orchestra.trace.recording.recorder import Recorder

COST = 0.01
"""The share of an actor's time that its snapshots may take."""
AGAIN = 16
"""An actor that cannot say its state now is asked again after this part of the bytes between two snapshots."""


class Snapshots:
    """When one actor is asked for its state, and what becomes of it.

    It is asked between two messages: when the node has recorded a third of what its ring keeps since the last time,
    but not before a hundred times as long has passed as that took. So all that the actor was told since is still in the
    ring, unless to say its state takes so long that this would cost more than a hundredth of the time. A state that
    would take more than a third of the ring is not kept.
    """

    def __init__(self, recorder: Recorder, settings: ActorSettings, state: StateSource) -> None:
        self.due = math.inf
        """The sink's total at which the next one is taken."""
        self._recorder = recorder
        self._address = settings.address
        self._state = state
        self._every = recorder.sink.snapshot_every if settings.kind.snapshot is not Actor.snapshot else math.inf
        self._earliest = -math.inf
        self._took = 0.0

    def begin(self) -> None:
        """An incarnation begins."""
        self.due = self._recorder.sink.total + self._every

    def take(self, incarnation: int, n: int) -> None:
        """Keep the state before the activation `n`, if that can be had."""
        recorder = self._recorder
        sink = recorder.sink
        now = recorder.clock.monotonic()
        if now < self._earliest or (holder := self._state()) is None:
            return
        actor, rng = holder
        try:
            told = actor.snapshot()
            if told is None:
                self.due = sink.total + self._every / AGAIN
                return
            state = frozen_value(dict(told))
            codec.Encoder().encode(state)
        except Exception as error:  # whether its story can be told is no reason for it to fail
            self._give_up("what it says of its state cannot be kept", error)
            return
        nbytes = nbytes_of(state)
        if nbytes > self._every:
            self._give_up(f"its state takes {nbytes:,} bytes; no more than {int(self._every):,} are kept")
            return
        clock = recorder.tick()
        random = json.dumps(rng.bit_generator.state)
        row = (self._address, incarnation, n, clock, now, random, state)
        sink.put_snapshot((Kind.SNAPSHOT, self._address, clock, nbytes, *row))
        self.due = sink.total + self._every
        took = recorder.clock.monotonic() - now
        # Of two, the one that was not interrupted.
        self._earliest = now + min(took, self._took) / COST
        self._took = took

    def _give_up(self, why: str, error: Exception | None = None) -> None:
        self.due = self._every = math.inf
        told = log.get(actor="trace")
        told.warning("no state of this actor is kept", of=self._address, reason=why, exc_info=error)
