"""The recorder of one cell: what comes in and what goes out passes through here, where anything is recorded at all.

The cell calls `born`, `delivered`, `handled` and so on at the turns of its life; what its actor does to the world
(tell, ask, set a timer, read the clock) goes through the methods of the same names.
"""

import asyncio
import hashlib
import inspect
import traceback
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from orchestra import codec
from orchestra.actor import Actor
from orchestra.clock import Clock, Handle
from orchestra.envelope import Envelope
from orchestra.message import Message, Request, isolated
from orchestra.ref import Ref
from orchestra.trace.effects import (
    Answered,
    AnswerGiven,
    AnswerRefused,
    Asked,
    AskFailed,
    MonotonicRead,
    NowRead,
    Offloaded,
    SendFailed,
    Sent,
    Spawned,
    StopRequested,
    TimerCancelled,
    TimerSet,
    Told,
    Watched,
    Withdrawn,
)
from orchestra.trace.recorder import Recorder
from orchestra.trace.records import Kind

if TYPE_CHECKING:
    from orchestra.cell import Cell

T = TypeVar("T")

START, MESSAGE, STOP = 0, 1, 2
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_ATOMS = (type(None), bool, int, float, str, bytes, Ref)


class CellRecorder:
    """Records one actor, incarnation after incarnation."""

    def __init__(self, recorder: Recorder, cell: "Cell") -> None:
        self.clock: Clock = _RecordedClock(self, recorder.clock)
        """What the actor reads the time from."""
        self._recorder = recorder
        self._cell = cell
        self._address = cell.address
        self._parent: tuple[str, int, int] | None = None
        self._arguments: tuple[Any, Any] = (None, None)
        self._sent = recorder.base
        self._incarnation = -1
        self._n = 0
        self._phase = START
        self._active = False
        self._began = 0.0
        self._effects: list[list[Any]] = []
        self._types: list[int] = []
        self._timers: set[int] = set()
        self._offloads = 0
        self._reason = ""

    @classmethod
    def of(cls, cell: "Cell", recorder: Recorder | None) -> Self | None:
        """Return what records `cell`, or None if it is left out, as the runtime's own actors are."""
        if recorder is None or cell.kind.__module__ == "orchestra.node" or not recorder.records(cell.address):
            return None
        return cls(recorder, cell)

    # The turns of its life, told by the cell

    def child_of(self, parent: "CellRecorder", recipe: Callable[[], Actor[Any]]) -> None:
        """It was spawned by another actor."""
        self._parent = (parent._address, parent._incarnation, parent._n)
        if isinstance(recipe, partial):
            given = (list(recipe.args), dict(recipe.keywords))
            # A message among them would come back as a mere dict, so such a child cannot be rebuilt from the record.
            if not _holds_messages(given) and self._recorder.encodes(given):
                self._arguments = given

    def born(self) -> None:
        """An incarnation begins: next come the constructor and `started`."""
        recorder = self._recorder
        if self._incarnation >= 0:
            self._end(self._reason, final=False)
        self._incarnation += 1
        self._n = 0
        self._timers.clear()
        kind = self._cell.kind
        parent = self._parent
        if parent is None and self._cell.parent:
            parent = (self._cell.parent, 0, 0)  # of another node; which of its activations it was, that node knows
        origin = "planned" if self._address in recorder.planned else "outside" if parent is None else "child"
        clock, now = recorder.tick(), recorder.clock.monotonic()
        row: list[Any] = [self._address, self._incarnation, clock, now]
        row += [f"{kind.__module__}:{kind.__qualname__}", source_hash(kind), origin, self._sent]
        row += [*(parent or ("", 0, 0)), *self._arguments]
        recorder.put(Kind.BIRTH, self._address, clock, row)
        self._begin(START, now)

    def delivered(self, envelope: Envelope) -> None:
        """A message leaves the mailbox for its handler."""
        recorder = self._recorder
        self._n += 1
        clock, now = recorder.tick(), recorder.clock.monotonic()
        message = envelope.message
        number, keep = recorder.type_of(type(message))
        timer = envelope.sender == self._address and envelope.number in self._timers
        if timer:
            self._timers.discard(envelope.number)
        waited = now - envelope.queued if envelope.queued else 0.0
        row = [self._address, self._incarnation, self._n, clock, now, waited, envelope.sender, envelope.number, number]
        row += [envelope.correlation, envelope.nbytes, timer, codec.values_of(message) if keep else None]
        recorder.put(Kind.DELIVERY, self._address, clock, row, (number,))
        self._begin(MESSAGE, now)

    def stopping(self) -> None:
        """Next comes `stopped`."""
        self._n += 1
        self._begin(STOP, self._recorder.clock.monotonic())

    def handled(self, failure: list[Any] | None = None) -> None:
        """The activation is over."""
        recorder = self._recorder
        clock = recorder.tick()
        seconds = recorder.clock.monotonic() - self._began
        row = [self._address, self._incarnation, self._n, self._phase, clock, self._began, seconds]
        effects, self._effects = self._effects, []
        types, self._types = self._types, []
        self._active = False
        recorder.put(Kind.HANDLED, self._address, clock, [*row, effects, failure], types)

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

    def _end(self, reason: str, *, final: bool) -> None:
        clock, now = self._recorder.tick(), self._recorder.clock.monotonic()
        row = [self._address, self._incarnation, clock, now, reason, final]
        self._recorder.put(Kind.END, self._address, clock, row)

    # What its actor does

    def post(self, cell: "Cell | None", recipient: str, message: Message) -> Awaitable[None] | None:
        """As `Sender.post`; `cell` is the recipient if it is on this node."""
        message, number, clock = self._outgoing(Sent.code, recipient, message, False)
        node = self._cell.node
        try:
            if cell is not None:
                waiting = cell.admit(self._enclosed(cell, message, number, clock))
            else:
                waiting = node.post_far(self._address, recipient, message, number, clock)
        except Exception as error:
            self._effect(SendFailed.code, number, type(error).__name__, str(error))
            raise
        return None if waiting is None else self._through(waiting, number)

    def post_nowait(self, cell: "Cell | None", recipient: str, message: Message) -> None:
        """As `Sender.post_nowait`; `cell` is the recipient if it is on this node."""
        message, number, clock = self._outgoing(Sent.code, recipient, message, True)
        try:
            if cell is None:
                self._cell.node.post_far_nowait(self._address, recipient, message, number, clock)
            else:
                cell.admit_nowait(self._enclosed(cell, message, number, clock))
        except Exception as error:
            self._effect(SendFailed.code, number, type(error).__name__, str(error))
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
        request, number, clock = self._outgoing(Asked.code, recipient, request)
        try:
            value = await self._cell.node.asks.ask(
                self._address, recipient, request, chain, asked, task, number=number, clock=clock
            )
        except BaseException as error:
            self._effect(AskFailed.code, number, type(error).__name__, str(error))
            raise
        recorder = self._recorder
        clock = recorder.tick()
        type_number, keep = recorder.type_of(type(request))
        row = [self._address, self._incarnation, self._n, clock, recorder.clock.monotonic(), number, type_number]
        recorder.put(Kind.ANSWER, self._address, clock, [*row, value if keep else None], (type_number,))
        self._effect(Answered.code, number)
        return value

    def timer_set(self, delay: float, message: Message) -> tuple[Message, int, int]:
        """Return what the timer will tell, with its number and clock."""
        message = _frozen(message)
        number, clock = self._next()
        type_number, keep = self._recorder.type_of(type(message))
        self._types.append(type_number)
        self._timers.add(number)
        self._effect(TimerSet.code, number, delay, type_number, codec.values_of(message) if keep else None)
        return message, number, clock

    def timer_handle(self, handle: Handle, number: int) -> Handle:
        """Return what the actor takes its timer back with."""
        return _TimerHandle(handle, partial(self._effect, TimerCancelled.code, number))

    async def offloaded(self, work: Awaitable[T]) -> T:
        """Wait for what it offloaded."""
        self._offloads += 1
        index = self._offloads
        try:
            result = await work
        except BaseException as error:
            self._effect(Offloaded.code, index, type(error).__name__)
            raise
        self._effect(Offloaded.code, index, "")
        return result

    def answered(self, envelope: Envelope, value: Any) -> None:
        """It gave an answer."""
        _, keep = self._recorder.type_of(type(envelope.message))
        given = _snapshot(value) if keep else None
        self._effect(AnswerGiven.code, envelope.sender, envelope.number, envelope.correlation, given)

    def refused(self, envelope: Envelope, error: BaseException) -> None:
        """A request has no answer."""
        row = (envelope.sender, envelope.number, envelope.correlation, type(error).__name__, str(error))
        self._effect(AnswerRefused.code, *row)

    def withdrawn(self, envelope: Envelope) -> None:
        """Whoever asked gave up."""
        self._effect(Withdrawn.code, envelope.sender, envelope.number, envelope.correlation)

    def spawned(self, child: "Cell", recipe: Callable[[], Actor[Any]]) -> None:
        """It started a child."""
        if child.recorder is not None:
            child.recorder.child_of(self, recipe)
        self._effect(Spawned.code, child.address, f"{child.kind.__module__}:{child.kind.__qualname__}")

    def watched(self, address: str) -> None:
        """It asked to hear of the end of another."""
        self._effect(Watched.code, address)

    def stop_requested(self, *, graceful: bool) -> None:
        """It asked to be stopped."""
        self._effect(StopRequested.code, graceful)

    def monotonic_read(self, value: float) -> None:
        """It read the monotonic clock."""
        self._effect(MonotonicRead.code, value)

    def now_read(self, value: datetime) -> None:
        """It read the wall clock."""
        self._effect(NowRead.code, (value - _EPOCH) // _MICROSECOND)

    # Inside

    def _begin(self, phase: int, now: float) -> None:
        self._phase = phase
        self._began = now
        self._active = True
        self._offloads = 0

    def _next(self) -> tuple[int, int]:
        self._sent += 1
        return self._sent, self._recorder.tick()

    def _outgoing(self, code: int, recipient: str, message: Any, *rest: Any) -> tuple[Any, int, int]:
        message = _frozen(message)
        number, clock = self._next()
        type_number, keep = self._recorder.type_of(type(message))
        self._types.append(type_number)
        self._effect(code, number, recipient, type_number, codec.values_of(message) if keep else None, *rest)
        return message, number, clock

    def _enclosed(self, cell: "Cell", message: Message, number: int, clock: int) -> Envelope:
        envelope = cell.enclose(self._address, message)
        envelope.number, envelope.clock, envelope.queued = number, clock, self._recorder.clock.monotonic()
        return envelope

    async def _through(self, waiting: Awaitable[None], number: int) -> None:
        try:
            await waiting
        except BaseException as error:
            self._effect(SendFailed.code, number, type(error).__name__, str(error))
            raise
        self._effect(Told.code, number)

    def _effect(self, code: int, *fields: Any) -> None:
        now = self._recorder.clock.monotonic()
        row = [code, now - self._began, *fields]
        if self._active:
            self._effects.append(row)
            return
        types, self._types = self._types, []
        clock = self._recorder.tick()
        late = [self._address, self._incarnation, self._n, clock, now, [row]]
        self._recorder.put(Kind.LATE, self._address, clock, late, types)


class _RecordedClock:
    """The node's clock, as an actor that is recorded sees it."""

    def __init__(self, recorder: CellRecorder, clock: Clock) -> None:
        self._recorder = recorder
        self._clock = clock

    def monotonic(self) -> float:
        value = self._clock.monotonic()
        self._recorder.monotonic_read(value)
        return value

    def now(self) -> datetime:
        value = self._clock.now()
        self._recorder.now_read(value)
        return value

    def call_later(self, delay: float, call: Callable[[], None]) -> Handle:
        return self._clock.call_later(delay, call)


class _TimerHandle:
    def __init__(self, handle: Handle, told: Callable[[], None]) -> None:
        self._handle = handle
        self._told = told

    def cancel(self) -> None:
        self._told()
        self._handle.cancel()


def source_hash(kind: type) -> str:
    """Return the SHA-256 of a class's source, in hexadecimal; empty where there is no source to be had."""
    try:
        return hashlib.sha256(inspect.getsource(kind).encode()).hexdigest()
    except (OSError, TypeError):
        return ""


def failure_of(error: BaseException, kind: type) -> list[Any]:
    """Return the fields of the `Failure` that `error` was to an actor of class `kind`."""
    frames = traceback.extract_tb(error.__traceback__)
    own = inspect.getsourcefile(kind) if kind.__module__ != "__main__" else None
    where = next((frame for frame in reversed(frames) if frame.filename == own), frames[-1] if frames else None)
    told = "".join(traceback.format_exception(error))
    file, line = (where.filename, where.lineno or 0) if where is not None else ("", 0)
    return [type(error).__name__, str(error), file, line, told]


def _frozen(message: Message) -> Message:
    """Return `message`, or a copy if its sender could still change it."""
    return isolated(message) if message.wire.immutable else codec.copied(message)


def _snapshot(value: Any) -> Any:
    """Return an answer as it is now, whatever becomes of it."""
    if isinstance(value, _ATOMS):
        return value
    if isinstance(value, Message) and value.wire.immutable:
        return isolated(value)
    header, arrays = codec.Encoder().encode(value)
    return codec.decode(header, codec.payload_array(arrays))


def _holds_messages(value: Any) -> bool:
    match value:
        case Message():
            return True
        case dict():
            return any(map(_holds_messages, value.values()))
        case list() | tuple() | set() | frozenset():
            return any(map(_holds_messages, value))
    return False
