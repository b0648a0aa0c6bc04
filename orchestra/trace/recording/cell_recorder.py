"""The recorder of one cell: it observes the inputs and the actions of an actor, and sends or delivers nothing.

The cell reports the actor's lifecycle (`born`, `delivered`, `handled`). The actor's context reports each action
(`sent`, `asked`, `timer_set`) before it performs it. Nothing is encoded here: messages are frozen, so that it is enough
to keep them.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from orchestra.actors import codec
from orchestra.actors.actor import ActorFactory
from orchestra.actors.arrays import size_of
from orchestra.actors.mailbox import Envelope, Queued
from orchestra.actors.message import Message, Request
from orchestra.actors.recorder import ActorSettings, Recorder, StateSource
from orchestra.actors.weights import FLAT
from orchestra.clock import Clock, TimerHandle
from orchestra.trace.format import effects
from orchestra.trace.format.effects import EPOCH
from orchestra.trace.format.encoding import PendingRecord
from orchestra.trace.format.records import Kind
from orchestra.trace.recording.capture import (
    digested,
    failure_of,
    frozen_message,
    frozen_value,
    holds_messages,
    nbytes_of,
    source_hash,
)
from orchestra.trace.recording.recorder import NodeRecorder
from orchestra.trace.recording.snapshots import SnapshotSchedule

T = TypeVar("T")

START, MESSAGE, STOP = 0, 1, 2
DELIVERY_BYTES = 900
"""Approximate memory of a recorded delivery, besides its message."""
HANDLED_BYTES = 400
"""Approximate memory of the end of an activation."""
EFFECT_BYTES = 200
"""Approximate memory of an effect, besides its message."""
MOST_EFFECTS = 1024
"""Effects of the current activation that are held back; then all go to the sink in a LATE record."""
_SENT = effects.Sent.code
_HANDLED = Kind.HANDLED
_MESSAGE, _SIZE = 4, 6
"""Places of the message, and of its bytes, in a delivery that is not put."""
_MICROSECOND = timedelta(microseconds=1)


class CellRecorder:
    """The `actors.recorder.Recorder` of one actor, over all its incarnations.

    Args:
        recorder: the recorder of the node.
        settings: of the actor.
        state: returns the actor for a snapshot.
    """

    def __init__(self, recorder: NodeRecorder, settings: ActorSettings, state: StateSource) -> None:
        self.clock: Clock = RecordedClock(self, recorder.clock)
        self._recorder = recorder
        self._sink = recorder.sink
        self._put = recorder.sink.put
        self._monotonic = recorder.clock.monotonic
        self._address = settings.address
        self._kind = settings.kind
        # The activation of a parent on another node is known to that node only.
        self._parent = (settings.parent, 0, 0) if settings.parent else None
        self._arguments: tuple[Any, Any] = (None, None)
        self._snapshots = SnapshotSchedule(recorder, settings, state)
        self._sent = recorder.base
        self._incarnation = -1
        self._n = 0
        self._phase = START
        self._active = False
        self._began = 0.0
        self._delivered: tuple[Any, ...] = ()  # the current delivery until it is put
        self._effects: list[tuple[Any, ...]] = []
        self._weight = 0  # bytes of the effects
        self._timers: set[int] = set()
        self._offloads = 0
        self._reason = ""

    def in_hand(self) -> list[PendingRecord]:
        """Return the current delivery if it has not been put."""
        return [self._delivery()] if self._delivered else []

    # Lifecycle, reported by the cell

    def child_of(self, parent: "CellRecorder", factory: ActorFactory) -> None:
        """Record that another actor of this node spawned this one."""
        self._parent = (parent._address, parent._incarnation, parent._n)
        # A record returns a message as a dict, so a child with a message among its arguments cannot be rebuilt.
        if not holds_messages((factory.args, factory.keywords)):
            self.given(factory.args, factory.keywords)

    def given(self, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Record the arguments of the constructor, where they can be encoded."""
        try:
            arguments = (frozen_value(list(args)), frozen_value(dict(kwargs)))
            codec.Encoder().encode(arguments)
        except (TypeError, ValueError, OverflowError):
            return
        self._arguments = arguments

    def born(self) -> None:
        """Record the begin of an incarnation; its constructor and `started` come next."""
        recorder = self._recorder
        if self._incarnation >= 0:
            self._end(self._reason, final=False)
        recorder.in_hand.add(self.in_hand)
        self._incarnation += 1
        self._n = 0
        self._timers.clear()
        self._snapshots.begin()
        kind, parent = self._kind, self._parent
        origin = "planned" if self._address in recorder.planned else "outside" if parent is None else "child"
        clock, now = recorder.tick(), self._monotonic()
        row = (
            *(self._address, self._incarnation, clock, now),
            *(f"{kind.__module__}:{kind.__qualname__}", source_hash(kind), origin, self._sent),
            *(parent or ("", 0, 0)),
            *self._arguments,
        )
        self._put((Kind.BIRTH, self._address, clock, DELIVERY_BYTES, *row))
        self._begin(START, now)

    def delivered(self, item: Queued) -> None:
        """Record that a message leaves the mailbox for its handler."""
        recorder, sink, address = self._recorder, self._sink, self._address
        if sink.total >= self._snapshots.due:
            self._snapshots.take(self._incarnation, self._n + 1)
        self._n += 1
        recorder.logical = clock = recorder.logical + 1
        now = self._monotonic()
        sender, message, nbytes, number, queued, envelope = item
        correlation = 0 if envelope is None else envelope.correlation
        if not message.wire.immutable:
            message = codec.copied(message)
        timer = number in self._timers and sender == address
        if timer:
            self._timers.discard(number)
        self._delivered = (clock, queued, sender, number, message, correlation, nbytes, timer)
        self._phase = MESSAGE
        self._began = now
        self._active = True
        self._offloads = 0
        if sink.at_once:
            self._put_delivery()

    def stopping(self) -> None:
        """Record that `stopped` comes next."""
        self._n += 1
        self._begin(STOP, self._monotonic())

    def handled(self, failure: list[Any] | None = None) -> None:
        """Record the end of the activation."""
        recorder = self._recorder
        recorder.logical = clock = recorder.logical + 1
        began, nbytes = self._began, HANDLED_BYTES
        done: Sequence[tuple[Any, ...]] = ()
        if self._effects:
            done, self._effects = self._effects, []
            nbytes += self._weight
            self._weight = 0
        ended = self._monotonic()
        delivered, self._delivered = self._delivered, ()
        if delivered:
            nbytes += DELIVERY_BYTES + delivered[_SIZE]
        end = (
            _HANDLED, self._address, clock, nbytes, self._incarnation, self._n, self._phase, began, ended,
            done, failure,
        )  # fmt: skip
        self._put(end + delivered)
        self._active = False

    def failed(self, error: BaseException, *, expected: bool) -> None:
        """Record that the incarnation failed; an `expected` failure writes no flight record."""
        self._reason = f"{type(error).__name__}: {error}"
        if self._active:
            self.handled(failure_of(error, self._kind))
        if not expected:
            self._recorder.failed(f"{self._address} failed: {self._reason}")

    def ended(self, reason: str) -> None:
        """Record that the actor has ended for good."""
        if self._incarnation < 0:
            return  # aborted before its birth
        if self._active:
            self.handled(["Aborted", reason, "", 0, ""])
        self._end(reason, final=True)
        self._recorder.in_hand.discard(self.in_hand)

    def _end(self, reason: str, *, final: bool) -> None:
        clock, now = self._recorder.tick(), self._monotonic()
        row = (self._address, self._incarnation, clock, now, reason, final)
        self._put((Kind.END, self._address, clock, HANDLED_BYTES, *row))

    # Actions of the actor, reported by its context

    def sent(self, recipient: str, message: Message, local: bool, nowait: bool) -> tuple[Message, int, int, float]:
        """Record a tell; return the message to send, its number, its Lamport clock and the current time."""
        wire = message.wire
        if wire.array_fields or not wire.immutable:
            message = frozen_message(message)
        self._sent = number = self._sent + 1
        recorder = self._recorder
        recorder.logical = clock = recorder.logical + 1
        now = self._monotonic()
        recorded = message
        if local:  # it is weighed where it is delivered
            weight = FLAT
        elif wire.array_fields and self._sink.digests_sent:
            recorded, weight = digested(message, self._delivered[_MESSAGE] if self._delivered else None)
        else:
            weight = size_of(message)
        if self._active and len(self._effects) < MOST_EFFECTS:
            self._effects.append((_SENT, now, number, recipient, recorded, nowait))
            self._weight += EFFECT_BYTES + weight
        else:
            self._effect(_SENT, number, recipient, recorded, nowait, weight=weight)
        return message, number, clock, now

    def send_failed(self, number: int, error: BaseException) -> None:
        """Record that a tell raised `error`."""
        self._effect(effects.SendFailed.code, number, type(error).__name__, str(error))

    def send_completed(self, number: int) -> None:
        """Record that a tell found room after waiting."""
        self._effect(effects.SendCompleted.code, number)

    def asked(self, recipient: str, request: Request[Any]) -> tuple[int, int]:
        """Record an ask; return its number and Lamport clock."""
        frozen = frozen_message(request)
        number, clock = self._next()
        self._effect(effects.Asked.code, number, recipient, frozen, weight=size_of(frozen))
        return number, clock

    def ask_failed(self, number: int, error: BaseException) -> None:
        """Record that an ask raised `error`."""
        self._effect(effects.AskRaised.code, number, type(error).__name__, str(error))

    def ask_answered(self, number: int, request: Request[Any], value: Any) -> None:
        """Record the answer to an ask."""
        clock, now = self._recorder.tick(), self._monotonic()
        answer = frozen_value(value)
        row = (self._address, self._incarnation, self._n, clock, now, number, type(request), answer)
        self._put((Kind.ANSWER, self._address, clock, DELIVERY_BYTES + nbytes_of(answer), *row))
        self._effect(effects.AnswerReceived.code, number)

    def timer_set(self, delay: float, message: Message) -> tuple[Message, int]:
        """Record a timer; return its message, frozen, and its number."""
        message = frozen_message(message)
        number, _ = self._next()
        self._timers.add(number)
        self._effect(effects.TimerSet.code, number, delay, message, weight=size_of(message))
        return message, number

    def timer_handle(self, handle: TimerHandle, number: int) -> TimerHandle:
        """Return a handle that records the cancellation of a timer."""
        return RecordedTimer(handle, partial(self._effect, effects.TimerCancelled.code, number))

    async def offloaded(self, work: Awaitable[T]) -> T:
        """Await offloaded work and record its end."""
        self._offloads += 1
        index = self._offloads
        try:
            result = await work
        except BaseException as error:
            self._effect(effects.Offloaded.code, index, type(error).__name__)
            raise
        self._effect(effects.Offloaded.code, index, "")
        return result

    def replied(self, envelope: Envelope, value: Any) -> None:
        """Record an answer that the actor gave."""
        answer = frozen_value(value)
        row = (envelope.sender, envelope.number, envelope.correlation, answer, type(envelope.message))
        self._effect(effects.AnswerGiven.code, *row, weight=nbytes_of(answer))

    def refused(self, envelope: Envelope, error: BaseException) -> None:
        """Record that a request ended with an error."""
        row = (envelope.sender, envelope.number, envelope.correlation, type(error).__name__, str(error))
        self._effect(effects.AnswerRefused.code, *row)

    def withdrawn(self, envelope: Envelope) -> None:
        """Record that the asker abandoned its request."""
        self._effect(effects.Withdrawn.code, envelope.sender, envelope.number, envelope.correlation)

    def spawned(self, address: str, factory: ActorFactory, recorder: Recorder | None) -> None:
        """Record a new child of this node."""
        if isinstance(recorder, CellRecorder):
            recorder.child_of(self, factory)
        self._effect(effects.Spawned.code, address, f"{factory.func.__module__}:{factory.func.__qualname__}")

    def watched(self, address: str) -> None:
        """Record that the actor watches another one."""
        self._effect(effects.Watched.code, address)

    def stop_requested(self, *, graceful: bool) -> None:
        """Record that the actor's stop was requested."""
        self._effect(effects.StopRequested.code, graceful)

    # Inside

    def _begin(self, phase: int, now: float) -> None:
        self._phase = phase
        self._began = now
        self._active = True
        self._offloads = 0

    def _delivery(self) -> PendingRecord:
        clock, *message = self._delivered
        row = (self._address, self._incarnation, self._n, clock, self._began, *message)
        return (Kind.DELIVERY, self._address, clock, self._delivered[_SIZE] + DELIVERY_BYTES, *row)

    def _put_delivery(self) -> None:
        """Put the current delivery before its activation ends."""
        if self._delivered:
            self._put(self._delivery())
            self._delivered = ()

    def _next(self) -> tuple[int, int]:
        self._sent += 1
        return self._sent, self._recorder.tick()

    def _effect(self, code: int, *fields: Any, weight: int = 0) -> None:
        now = self._monotonic()
        row = (code, now, *fields)
        if self._active and len(self._effects) < MOST_EFFECTS:
            self._effects.append(row)
            self._weight += EFFECT_BYTES + weight
            return
        done, self._effects = [*self._effects, row], []
        weight, self._weight = weight + EFFECT_BYTES + self._weight, 0
        self._put_delivery()
        clock = self._recorder.tick()
        late = (self._address, self._incarnation, self._n, clock, now, done, self._began)
        self._put((Kind.LATE, self._address, clock, HANDLED_BYTES + weight, *late))


class RecordedClock:
    """The node's clock as a recorded actor reads it: every reading is recorded."""

    def __init__(self, recorder: CellRecorder, clock: Clock) -> None:
        self._recorder = recorder
        self._clock = clock

    def monotonic(self) -> float:
        value = self._clock.monotonic()
        self._recorder._effect(effects.MonotonicRead.code, value)
        return value

    def now(self) -> datetime:
        value = self._clock.now()
        self._recorder._effect(effects.NowRead.code, (value - EPOCH) // _MICROSECOND)
        return value

    def call_later(self, delay: float, call: Callable[[], None]) -> TimerHandle:
        return self._clock.call_later(delay, call)


class RecordedTimer:
    """A timer whose cancellation is recorded."""

    def __init__(self, handle: TimerHandle, cancelled: Callable[[], None]) -> None:
        self._handle = handle
        self._cancelled = cancelled

    def cancel(self) -> None:
        self._cancelled()
        self._handle.cancel()
