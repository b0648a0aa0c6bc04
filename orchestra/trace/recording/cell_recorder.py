"""The recorder of one cell: what comes in and what goes out passes through here, where anything is recorded at all.

The cell calls `born`, `delivered`, `handled` and so on at the turns of its life; what its actor does to the world
(tell, ask, set a timer, read the clock) goes through the methods of the same names. Nothing is encoded here: messages
do not change, so they are kept, and written down only if somebody wants to read of them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from orchestra.actors import codec
from orchestra.actors.actor import Actor
from orchestra.actors.envelope import Envelope
from orchestra.actors.mailbox import Told
from orchestra.actors.message import FLAT, Message, Request, size_of
from orchestra.clock import Clock, Handle
from orchestra.trace.format import effects
from orchestra.trace.format.encoding import PendingRecord
from orchestra.trace.format.records import Kind
from orchestra.trace.recording.capture import failure_of, frozen_message, frozen_value, holds_messages, source_hash
from orchestra.trace.recording.recorded_clock import RecordedClock, RecordedTimer
from orchestra.trace.recording.recorder import Recorder
from orchestra.trace.recording.snapshots import Snapshots

if TYPE_CHECKING:
    from orchestra.actors.cell import Cell

T = TypeVar("T")

START, MESSAGE, STOP = 0, 1, 2
DELIVERY_BYTES = 900
"""What a delivery takes in memory beside what its message weighs, about …"""
HANDLED_BYTES = 400
"""… what its end takes …"""
EFFECT_BYTES = 200
"""… and an effect."""
MOST_EFFECTS = 1024
"""Effects of an activation that is under way that are held before they are handed on."""
_SENT = effects.Sent.code
_HANDLED = Kind.HANDLED
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class CellRecorder:
    """Records one actor, incarnation after incarnation."""

    def __init__(self, recorder: Recorder, cell: "Cell") -> None:
        self.clock: Clock = RecordedClock(self, recorder.clock)
        """What the actor reads the time from."""
        self._recorder = recorder
        self._sink = recorder.sink
        self._put = recorder.sink.put
        self._monotonic = recorder.clock.monotonic
        self._cell = cell
        self._address = cell.address
        self._parent: tuple[str, int, int] | None = None
        self._arguments: tuple[Any, Any] = (None, None)
        self._snapshots = Snapshots(recorder, cell)
        self._sent = recorder.base
        self._incarnation = -1
        self._n = 0
        self._phase = START
        self._active = False
        self._began = 0.0
        self._told: tuple[Any, ...] = ()  # the message in hand, where that was not handed on yet
        self._effects: list[tuple[Any, ...]] = []
        self._weight = 0  # of the effects
        self._timers: set[int] = set()
        self._plain: set[type[Message]] = set()  # types that are kept as they are
        self._offloads = 0
        self._reason = ""

    @classmethod
    def of(cls, cell: "Cell", recorder: Recorder | None) -> Self | None:
        """Return what records `cell`, or None if it is left out, as the runtime's own actors are."""
        if (
            recorder is None
            or cell.kind.__module__ == "orchestra.nodes.node_actors"
            or not recorder.records(cell.address)
        ):
            return None
        return cls(recorder, cell)

    def in_hand(self) -> list[PendingRecord]:
        """Return what it has not handed on: the delivery that is under way."""
        return [self._delivery()] if self._told else []

    # The turns of its life, told by the cell

    def child_of(self, parent: "CellRecorder", factory: Callable[[], Actor[Any]]) -> None:
        """It was spawned by another actor of this node."""
        self._parent = (parent._address, parent._incarnation, parent._n)
        # A message among them would come back as a mere dict, so such a child cannot be rebuilt from the record.
        if isinstance(factory, partial) and not holds_messages((factory.args, factory.keywords)):
            self.given(factory.args, factory.keywords)

    def given(self, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Take note of what its constructor is given, where that can be written down."""
        try:
            given = (frozen_value(list(args)), frozen_value(dict(kwargs)))
            codec.Encoder().encode(given)
        except (TypeError, ValueError, OverflowError):
            return
        self._arguments = given

    def born(self) -> None:
        """An incarnation begins: next come the constructor and `started`."""
        recorder = self._recorder
        if self._incarnation >= 0:
            self._end(self._reason, final=False)
        recorder.cells.add(self)
        self._incarnation += 1
        self._n = 0
        self._timers.clear()
        self._snapshots.begin()
        kind = self._cell.kind
        parent = self._parent
        if parent is None and self._cell.parent:
            parent = (self._cell.parent, 0, 0)  # of another node; which of its activations it was, that node knows
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

    def delivered(self, item: Told | Envelope) -> None:
        """A message leaves the mailbox for its handler."""
        recorder, sink, address = self._recorder, self._sink, self._address
        if sink.total >= self._snapshots.due:
            self._snapshots.take(self._incarnation, self._n + 1)
        self._n += 1
        recorder.logical = clock = recorder.logical + 1
        now = self._monotonic()
        correlation = number = 0
        queued = 0.0
        if type(item) is not tuple:
            assert isinstance(item, Envelope)
            sender, message, nbytes = item.sender, item.message, item.nbytes
            correlation, number, queued = item.correlation, item.number, item.queued
        elif len(item) == 5:
            sender, message, nbytes, number, queued = item
        else:
            sender, message, nbytes = item
        if not message.wire.immutable:
            message = codec.copied(message)
        timer = number in self._timers and sender == address
        if timer:
            self._timers.discard(number)
        self._told = (clock, queued, sender, number, message, correlation, nbytes, timer)
        self._phase = MESSAGE
        self._began = now
        self._active = True
        self._offloads = 0
        if sink.at_once:
            self._hand_on()

    def stopping(self) -> None:
        """Next comes `stopped`."""
        self._n += 1
        self._begin(STOP, self._monotonic())

    def handled(self, failure: list[Any] | None = None) -> None:
        """The activation is over."""
        recorder = self._recorder
        recorder.logical = clock = recorder.logical + 1
        began, nbytes = self._began, HANDLED_BYTES
        done: Sequence[tuple[Any, ...]] = ()
        if self._effects:
            done, self._effects = self._effects, []
            nbytes += self._weight
            self._weight = 0
        ended = self._monotonic()
        told = self._told
        if told:
            self._told = ()
            then, queued, sender, number, message, correlation, size, timer = told
            nbytes += DELIVERY_BYTES + size
            self._put((
                _HANDLED, self._address, clock, nbytes, self._incarnation, self._n, self._phase, began, ended,
                done, failure, then, queued, sender, number, message, correlation, size, timer,
            ))  # fmt: skip
        else:
            self._put((
                _HANDLED, self._address, clock, nbytes, self._incarnation, self._n, self._phase, began, ended,
                done, failure,
            ))  # fmt: skip
        self._active = False

    def failed(self, error: BaseException, *, expected: bool) -> None:
        """The incarnation failed; `expected` where that is no reason for alarm."""
        self._reason = f"{type(error).__name__}: {error}"
        if self._active:
            self.handled(failure_of(error, self._cell.kind))
        if not expected:
            self._recorder.failed(f"{self._address} failed: {self._reason}")

    def ended(self, reason: str) -> None:
        """The cell is gone for good."""
        if self._incarnation < 0:
            return  # it was aborted before it began
        if self._active:
            self.handled(["Aborted", reason, "", 0, ""])
        self._end(reason, final=True)
        self._recorder.cells.discard(self)

    def _end(self, reason: str, *, final: bool) -> None:
        clock, now = self._recorder.tick(), self._monotonic()
        row = (self._address, self._incarnation, clock, now, reason, final)
        self._put((Kind.END, self._address, clock, HANDLED_BYTES, *row))

    # What its actor does

    def post(self, cell: "Cell | None", recipient: str, message: Message) -> Awaitable[None] | None:
        """As `Sender.post`; `cell` is the recipient if it is on this node."""
        if cell is not None and type(message) in self._plain and self._active and len(self._effects) < MOST_EFFECTS:
            # The way of most messages, which does the same with less ado.
            self._sent = number = self._sent + 1
            recorder = self._recorder
            recorder.logical = clock = recorder.logical + 1
            now = self._monotonic()
            self._effects.append((_SENT, now, number, recipient, message, False))
            self._weight += EFFECT_BYTES + FLAT
        else:
            message, number, clock, now = self._outgoing(cell, recipient, message, False)
        try:
            if cell is not None:
                waiting = cell.entrance.accept_recorded(self._address, message, number, clock, now)
            else:
                waiting = self._cell.node.post_remote(self._address, recipient, message, number, clock)
        except Exception as error:
            self._effect(effects.SendFailed.code, number, type(error).__name__, str(error))
            raise
        return None if waiting is None else self._through(waiting, number)

    def post_nowait(self, cell: "Cell | None", recipient: str, message: Message) -> None:
        """As `Sender.post_nowait`; `cell` is the recipient if it is on this node."""
        message, number, clock, now = self._outgoing(cell, recipient, message, True)
        try:
            if cell is None:
                self._cell.node.post_far_nowait(self._address, recipient, message, number, clock)
            else:
                cell.entrance.admit_nowait(cell.entrance.enclose_recorded(self._address, message, number, clock, now))
        except Exception as error:
            self._effect(effects.SendFailed.code, number, type(error).__name__, str(error))
            raise

    async def ask(
        self,
        recipient: str,
        request: Request[Any],
        chain: tuple[str, ...],
        asked: set[asyncio.Future[Any]],
        task: asyncio.Task[Any] | None,
    ) -> Any:
        """As `Asks.ask`."""
        node = self._cell.node
        told = request if request.wire.immutable and not request.wire.array_fields else frozen_message(request)
        number, clock = self._next()
        self._effect(effects.Asked.code, number, recipient, told, weight=size_of(told))
        try:
            value = await node.asks.ask(
                self._address, recipient, request, chain, asked, task, number=number, clock=clock
            )
        except BaseException as error:
            self._effect(effects.AskRaised.code, number, type(error).__name__, str(error))
            raise
        clock = self._recorder.tick()
        row = (
            self._address,
            self._incarnation,
            self._n,
            clock,
            self._monotonic(),
            number,
            type(request),
            frozen_value(value),
        )
        self._put((Kind.ANSWER, self._address, clock, DELIVERY_BYTES, *row))
        self._effect(effects.AnswerReceived.code, number)
        return value

    def timer_set(self, delay: float, message: Message) -> tuple[Message, int, int]:
        """Return what the timer will tell, with its number and clock."""
        message = frozen_message(message)
        number, clock = self._next()
        self._timers.add(number)
        self._effect(effects.TimerSet.code, number, delay, message, weight=size_of(message))
        return message, number, clock

    def timer_handle(self, handle: Handle, number: int) -> Handle:
        """Return what the actor takes its timer back with."""
        return RecordedTimer(handle, partial(self._effect, effects.TimerCancelled.code, number))

    async def offloaded(self, work: Awaitable[T]) -> T:
        """Wait for what it offloaded."""
        self._offloads += 1
        index = self._offloads
        try:
            result = await work
        except BaseException as error:
            self._effect(effects.Offloaded.code, index, type(error).__name__)
            raise
        self._effect(effects.Offloaded.code, index, "")
        return result

    def answered(self, envelope: Envelope, value: Any) -> None:
        """It gave an answer."""
        row = (envelope.sender, envelope.number, envelope.correlation, frozen_value(value), type(envelope.message))
        self._effect(effects.AnswerGiven.code, *row)

    def refused(self, envelope: Envelope, error: BaseException) -> None:
        """A request has no answer."""
        row = (envelope.sender, envelope.number, envelope.correlation, type(error).__name__, str(error))
        self._effect(effects.AnswerRefused.code, *row)

    def withdrawn(self, envelope: Envelope) -> None:
        """Whoever asked gave up."""
        self._effect(effects.Withdrawn.code, envelope.sender, envelope.number, envelope.correlation)

    def spawned(self, child: "Cell", factory: Callable[[], Actor[Any]]) -> None:
        """It started a child."""
        if child.recorder is not None:
            child.recorder.child_of(self, factory)
        self._effect(effects.Spawned.code, child.address, f"{child.kind.__module__}:{child.kind.__qualname__}")

    def watched(self, address: str) -> None:
        """It asked to hear of the end of another."""
        self._effect(effects.Watched.code, address)

    def stop_requested(self, *, graceful: bool) -> None:
        """It asked to be stopped."""
        self._effect(effects.StopRequested.code, graceful)

    def monotonic_read(self, value: float) -> None:
        """It read the monotonic clock."""
        self._effect(effects.MonotonicRead.code, value)

    def now_read(self, value: datetime) -> None:
        """It read the wall clock."""
        self._effect(effects.NowRead.code, (value - _EPOCH) // _MICROSECOND)

    # Inside

    def _begin(self, phase: int, now: float) -> None:
        self._phase = phase
        self._began = now
        self._active = True
        self._offloads = 0

    def _delivery(self) -> PendingRecord:
        clock, queued, sender, number, message, correlation, nbytes, timer = self._told
        row = (self._address, self._incarnation, self._n, clock, self._began, queued)
        told = (sender, number, message, correlation, nbytes, timer)
        return (Kind.DELIVERY, self._address, clock, nbytes + DELIVERY_BYTES, *row, *told)

    def _hand_on(self) -> None:
        """Hand on the delivery in hand before it is handled."""
        if self._told:
            self._put(self._delivery())
            self._told = ()

    def _next(self) -> tuple[int, int]:
        self._sent += 1
        return self._sent, self._recorder.tick()

    def _outgoing(
        self, cell: "Cell | None", recipient: str, message: Message, nowait: bool
    ) -> tuple[Message, int, int, float]:
        """Take note of what is told; return it as nobody can change it, its number, and the times."""
        wire = message.wire
        if wire.array_fields or not wire.immutable:
            message = frozen_message(message)
        else:
            self._plain.add(type(message))
        self._sent = number = self._sent + 1
        recorder = self._recorder
        recorder.logical = clock = recorder.logical + 1
        now = self._monotonic()
        # What is told to an actor of this node is weighed where it is delivered.
        weight = FLAT if cell is not None else size_of(message)
        if self._active and len(self._effects) < MOST_EFFECTS:
            self._effects.append((_SENT, now, number, recipient, message, nowait))
            self._weight += EFFECT_BYTES + weight
        else:
            self._effect(_SENT, number, recipient, message, nowait, weight=weight)
        return message, number, clock, now

    async def _through(self, waiting: Awaitable[None], number: int) -> None:
        try:
            await waiting
        except BaseException as error:
            self._effect(effects.SendFailed.code, number, type(error).__name__, str(error))
            raise
        self._effect(effects.SendCompleted.code, number)

    def _effect(self, code: int, *fields: Any, weight: int = 0) -> None:
        now = self._monotonic()
        row = (code, now, *fields)
        if self._active and len(self._effects) < MOST_EFFECTS:
            self._effects.append(row)
            self._weight += EFFECT_BYTES + weight
            return
        done, self._effects = [*self._effects, row], []
        weight, self._weight = weight + EFFECT_BYTES + self._weight, 0
        self._hand_on()
        clock = self._recorder.tick()
        late = (self._address, self._incarnation, self._n, clock, now, done, self._began)
        self._put((Kind.LATE, self._address, clock, HANDLED_BYTES + weight, *late))
