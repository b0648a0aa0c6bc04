"""The stage on which an actor is replayed: its `Context` and `Sender`, deaf to the world.

Everything that comes to it is the script's.
"""

import asyncio
import bdb
import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

from orchestra import errors
from orchestra.actors.actor import Actor
from orchestra.actors.message import Message, Request
from orchestra.actors.ref import Ref, speaking
from orchestra.actors.seeding import generator_for
from orchestra.clock import Clock, Handle
from orchestra.errors import AskFailed
from orchestra.nodes import spawning
from orchestra.replay.activation import beginning_of, was_cut_off
from orchestra.replay.difference import Difference, Lookup, fields_as_travelled, first_difference, renamed, travelled
from orchestra.replay.effects import Input, Key, Script, error_of, key_of, told_of
from orchestra.replay.event_loop import QuietLoop
from orchestra.replay.performance import Performance, Said
from orchestra.replay.place import place
from orchestra.replay.scripted_clock import ScriptedClock, ScriptedTimer
from orchestra.trace.format.effects import (
    AnswerGiven,
    AnswerReceived,
    AnswerRefused,
    Asked,
    AskRaised,
    MonotonicRead,
    NowRead,
    Offloaded,
    SendFailed,
    Sent,
    Spawned,
    StopRequested,
    TimerCancelled,
    TimerSet,
    Watched,
    Withdrawn,
)
from orchestra.trace.format.records import Activation, Answer, Birth, Delivery, Header

T = TypeVar("T")
Factory = Callable[[], Actor[Any]]

_RequestKey = tuple[str, int, int]
"""Sender, number and correlation of a request."""
_CANCELLED = "CancelledError"


class Stage:
    """What a replayed actor reaches the world through.

    Args:
        header: what its process was.
        birth: its own.
        values: finds what a digest stands for.
        resolved: returns a recorded value with the arrays in it.
        run_directory: a scratch folder to stand for the run's, if it had one.
        recorded_directory: how the run's own folder was called.
        tolerance: of floating-point numbers.
    """

    def __init__(
        self,
        header: Header,
        birth: Birth,
        *,
        values: Lookup,
        resolved: Callable[[Any], Any],
        run_directory: Path | None,
        recorded_directory: str,
        tolerance: float,
    ) -> None:
        self.address = birth.actor
        self.rng = generator_for(header.seed, birth.actor, birth.incarnation)
        self.clock: Clock = ScriptedClock(self)
        self.log: FilteringBoundLogger = structlog.wrap_logger(
            None, processors=[_unsaid], wrapper_class=structlog.make_filtering_bound_logger(0)
        )
        self.run_directory = run_directory
        # As the cell has it: what is started again begins anew.
        self.resume_from = Path(header.resume_from) if header.resume_from and not birth.incarnation else None
        self.factories: dict[str, tuple[type[Actor[Any]], Factory]] = {}
        """How the children that it has spawned are made, by address."""
        self._values = values
        self._resolved = resolved
        self._recorded_directory = recorded_directory
        self._tolerance = tolerance
        self._loop = QuietLoop()  # type: ignore[abstract]  # what it lacks raises NotImplementedError
        self._context = contextvars.copy_context()
        self._context.run(speaking.set, self)
        self._script = Script(Activation(0, "start"), strict=False, report=self._report)
        self._performance = Performance(Activation(0, "start"))
        self._answers: dict[int, Answer] = {}
        self._pending: dict[Key, asyncio.Future[None]] = {}
        self._given: dict[_RequestKey, AnswerGiven | AnswerRefused] = {}
        self._parked: dict[_RequestKey, asyncio.Future[Any]] = {}
        self._withdrawn: set[_RequestKey] = set()
        self._task: asyncio.Task[None] | None = None
        self._unrecorded = 0
        self._offloads = 0
        self._began = 0.0

    # What Replay does with it

    def perform(
        self, activation: Activation, work: Callable[[], Coroutine[Any, Any, None]], *, strict: bool
    ) -> Performance:
        """Run one activation to its end, and hold it to what was recorded if `strict`."""
        performance = self._performance = Performance(activation)
        script = self._script = Script(activation, strict=strict, report=self._report)
        self._answers = activation.answers
        self._offloads = 0
        self._began = beginning_of(activation)
        self._loop.advance_to(self._began)
        task = self._task = self._loop.create_task(work(), context=self._context)
        self._play(task, script)
        if was_cut_off(activation):
            performance.unfinished = True
        elif task.cancelled():
            # Nobody aborts it: it awaited something that somebody else cancelled.
            performance.error = RuntimeError(f"{self.address} awaited what was cancelled")
        elif (error := task.exception()) is not None:
            if not isinstance(error, Exception) or isinstance(error, bdb.BdbQuit):
                raise error
            performance.error = error
        self._conclude(script, activation)
        return performance

    def answer(self, delivery: Delivery, result: Any) -> None:
        """Take the answer that a handler returned, or the promise of one."""
        request = _request(delivery)
        if request in self._withdrawn:
            return  # it was asked to give up, and had its answer all the same
        if not isinstance(result, asyncio.Future):
            self._give(delivery, result)
            return
        self._parked[request] = result

        def settled(future: asyncio.Future[Any]) -> None:
            if self._parked.pop(request, None) is None:
                return
            if future.cancelled():
                self.refuse(delivery, errors.ActorStopped(f"{self.address} gave up the answer"))
            elif (error := future.exception()) is not None:
                self.refuse(delivery, self.blame(error))
            else:
                try:
                    self._give(delivery, future.result())
                except TypeError as unfit:
                    self.refuse(delivery, self.blame(unfit))

        result.add_done_callback(settled)

    def refuse(self, delivery: Delivery, error: Exception) -> None:
        """Take note that a request has no answer."""
        kind, text = type(error).__name__, str(error)
        self._performance.said.append(Said("refused", delivery.id.sender, delivery.type.name, f"{kind}: {text}"))
        self._given[_request(delivery)] = AnswerRefused(0.0, delivery.id, delivery.correlation, kind, text)

    def given_up(self, delivery: Delivery) -> bool:
        """Whether whoever asked this has given up."""
        return _request(delivery) in self._withdrawn

    def blame(self, error: BaseException) -> AskFailed:
        """Return what whoever asked is told of a failure."""
        return AskFailed(f"{self.address}: {type(error).__name__}: {error}")

    # Context

    def request_stop(self, *, graceful: bool = True) -> None:
        effect = self._script.take(StopRequested, lambda: told_of(StopRequested(0.0, graceful)))
        self._same("it asked to stop otherwise", effect and {"graceful": effect.graceful}, {"graceful": graceful})

    def watch(self, ref: Ref[Any]) -> None:
        effect = self._script.take(
            Watched, lambda: told_of(Watched(0.0, ref.address)), lambda effect: effect.address == ref.address
        )
        self._same("it watched somebody else", effect and {"address": effect.address}, {"address": ref.address})

    def after(self, delay: float, message: Message) -> Handle:
        kind, fields = type(message).__name__, fields_as_travelled(message)
        said = Said(f"set a timer of {delay:g} s,", "itself", kind, fields)
        self._performance.said.append(said)
        effect = self._script.take(TimerSet, lambda: str(said), lambda effect: effect.type.name == kind)
        if effect is not None:
            self._same_deed("a timer", effect, (effect.type.name, effect.delay), (kind, float(delay)), said)
        return ScriptedTimer(self)

    async def offload(self, function: Callable[..., T], *args: Any) -> T:
        self._offloads += 1
        key = ("offload", self._offloads)
        error: Exception | None = None
        try:
            result = function(*args)
        except Exception as raised:
            error = raised
        effect = self._script.input_for(key)
        if isinstance(effect, Offloaded) and effect.error != _CANCELLED:
            self._same("its offloaded work ended otherwise", {"raised": effect.error}, {"raised": _type_of(error)})
        await self._arrival(key)
        if error is not None:
            raise error
        return result

    def spawn_child(self, name: str, kind: type[Actor[Any]], factory: Factory) -> Ref[Any]:
        address, named = f"{self.address}:{name}", f"{kind.__module__}:{kind.__qualname__}"
        self.factories[address] = (kind, factory)
        self._performance.said.append(Said("spawned", address, named, {}))
        effect = self._script.take(
            Spawned, lambda: told_of(Spawned(0.0, address, named)), lambda effect: effect.address == address
        )
        self._same(
            "it spawned another child",
            effect and {"address": effect.address, "class": effect.kind},
            {"address": address, "class": named},
        )
        return Ref(address)

    async def spawn_remote(
        self, node: str, name: str, kind: type[Actor[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Ref[Any]:
        return await spawning.spawn(self, node, name, kind, args, kwargs)

    # Sender

    def post(self, recipient: str, message: Message) -> Awaitable[None] | None:
        number = self._told(recipient, message)
        return self._arrival(("told", number)) if self._script.input_for(("told", number)) is not None else None

    def post_nowait(self, recipient: str, message: Message) -> None:
        self._told(recipient, message)

    async def ask(self, recipient: str, request: Request[Any]) -> Any:
        kind, fields = type(request).__name__, fields_as_travelled(request)
        said = Said("asked", recipient, kind, fields)
        self._performance.said.append(said)
        effect = self._script.take(
            Asked, lambda: str(said), lambda effect: (effect.recipient, effect.type.name) == (recipient, kind)
        )
        if effect is None:
            raise AskFailed(f"the record has no answer of {recipient} to this {kind}")
        self._same_deed("a request", effect, (effect.recipient, effect.type.name), (recipient, kind), said)
        key = ("answer", effect.number)
        try:
            await self._arrival(key)
        except asyncio.CancelledError:
            # The loop of then came late to a timeout: the answer was there, and that counts.
            late = self._script.input_for(key)
            if not isinstance(late, AnswerReceived):
                raise
            self._script.inputs.remove(late)
        answer = self._answers.get(effect.number)
        if answer is None:
            raise AskFailed(f"the record has lost the answer of {recipient} to this {kind}")
        return type(request).answer_adapter().validate_python(self._resolved(answer.value))

    # What its clock and timers do

    def read_monotonic(self) -> float:
        """Return what the actor read from the clock at this point."""
        effect = self._script.take(MonotonicRead, lambda: "read the clock")
        return self._loop.time() if effect is None else effect.value

    def read_now(self) -> datetime:
        """Return what the actor read from the wall clock at this point."""
        effect = self._script.take(NowRead, lambda: "read the clock")
        return (
            datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=self._loop.time()) if effect is None else effect.value
        )

    def call_later(self, delay: float, call: Callable[[], None]) -> Handle:
        """Call `call` when the loop's time has come so far."""
        return self._loop.call_later(delay, call)

    def timer_cancelled(self) -> None:
        """Take note that a timer was taken back."""
        self._script.take(TimerCancelled, lambda: "took a timer back")

    # Inside

    def _play(self, task: asyncio.Task[None], script: Script) -> None:
        """Run until the task is done and nothing more comes in."""
        loop = self._loop
        while True:
            loop.run_ready()
            effect = next(
                (each for each in script.inputs if isinstance(each, Withdrawn) or key_of(each) in self._pending), None
            )
            due = loop.next_timer
            if effect is not None:
                cancelled = not isinstance(effect, AnswerReceived) and getattr(effect, "error", "") == _CANCELLED
                if due is not None and (cancelled or due <= self._began + effect.at):
                    loop.fire_timer()
                elif cancelled:
                    script.inputs.remove(effect)
                    task.cancel()
                else:
                    loop.advance_to(self._began + effect.at)
                    script.inputs.remove(effect)
                    self._hand_in(effect)
            elif task.done():
                return
            elif due is not None:
                loop.fire_timer()
            else:
                if not was_cut_off(self._performance.activation):
                    waits = ", ".join(f"{what} {number}" for what, number in self._pending) or "something of its own"
                    script.differs("it does not come to its end", Difference("", "it did", f"it waits for {waits}"))
                task.cancel()
                loop.run_ready()
                return

    def _hand_in(self, effect: Input) -> None:
        if isinstance(effect, Withdrawn):
            self._withdraw((*effect.request, effect.correlation))
            return
        future = self._pending[key_of(effect)]
        if isinstance(effect, SendFailed | AskRaised):
            future.set_exception(error_of(effect.error, effect.text))
        else:
            future.set_result(None)

    def _withdraw(self, request: _RequestKey) -> None:
        """Whoever asked has given up: break the handler off where it waits, or drop the answer for later."""
        self._withdrawn.add(request)
        delivery = self._performance.activation.delivery
        if delivery is not None and _request(delivery) == request and self._task is not None and not self._task.done():
            self._task.cancel()
        elif (future := self._parked.pop(request, None)) is not None:
            future.cancel()

    async def _arrival(self, key: Key) -> None:
        """Wait until the script says that this has come."""
        own = asyncio.current_task() is self._task  # else it is a task that may outlive this activation
        if own and self._script.input_for(key) is None:
            if was_cut_off(self._performance.activation):
                await self._loop.create_future()  # it still waited when the record ended
            what = "it waits for what did not come"
            self._script.differs(what, Difference("", "no such thing", f"{key[0]} {key[1]}"))
            return
        future = self._pending[key] = self._loop.create_future()
        try:
            await future
        finally:
            del self._pending[key]

    def _told(self, recipient: str, message: Message) -> int:
        kind, fields = type(message).__name__, fields_as_travelled(message)
        said = Said("told", recipient, kind, fields)
        self._performance.said.append(said)
        effect = self._script.take(
            Sent, lambda: str(said), lambda effect: (effect.recipient, effect.type.name) == (recipient, kind)
        )
        if effect is None:
            self._unrecorded -= 1
            return self._unrecorded
        self._same_deed("a message", effect, (effect.recipient, effect.type.name), (recipient, kind), said)
        refused = self._script.refused.get(effect.number)
        if refused is not None:
            raise error_of(refused.error, refused.text)
        return effect.number

    def _same_deed(
        self, noun: str, effect: Sent | Asked | TimerSet, old: tuple[Any, ...], new: tuple[Any, ...], said: Said
    ) -> None:
        if not self._script.strict:
            return
        if old != new:
            self._script.differs(f"it is another {noun.partition(' ')[2]}", Difference("", told_of(effect), str(said)))
        elif effect.fields is not None:
            self._same(f"{said.verb} {said.recipient} {said.kind}", effect.fields, said.fields)

    def _same(self, what: str, old: Any, new: Any) -> None:
        if not self._script.strict or old is None:
            return
        difference = self._compared(old, new)
        if difference is not None:
            self._script.differs(what, difference)

    def _compared(self, old: Any, new: Any) -> Difference | None:
        difference = first_difference(old, new, tolerance=self._tolerance, values=self._values)
        if difference is None or self.run_directory is None:
            return difference
        as_then = renamed(new, str(self.run_directory), self._recorded_directory)
        return first_difference(old, as_then, tolerance=self._tolerance, values=self._values)

    def _give(self, delivery: Delivery, value: Any) -> None:
        given = travelled(value)
        self._performance.said.append(Said("answered", delivery.id.sender, delivery.type.name, given))
        self._given[_request(delivery)] = AnswerGiven(0.0, delivery.id, delivery.correlation, given)

    def _conclude(self, script: Script, activation: Activation) -> None:
        """Compare what can be compared only when the activation is over: its answers, what it left out, its failure."""
        for effect in script.answers:
            mine = self._given.pop((*effect.request, effect.correlation), None)
            if isinstance(effect, AnswerRefused) and effect.error == "ActorStopped":
                continue  # the runtime's doing, when an actor is gone
            self._same(
                f"the answer to {effect.request}", _answer_of(effect), None if mine is None else _answer_of(mine)
            )
        left = script.left()
        fails_anew = self._performance.error is not None and (
            activation.handled is None or not activation.handled.failure
        )
        if left is not None and not self._performance.unfinished and not fails_anew:
            script.differs("it left something out", Difference("", told_of(left), "nothing more"))

    def _report(self, what: str, difference: Difference) -> None:
        if self._performance.difference is None:
            at = place() if asyncio.current_task(self._loop) is not None else ""
            self._performance.difference = (what, difference, at)


def _unsaid(logger: WrappedLogger, method: str, given: EventDict) -> NoReturn:
    raise structlog.DropEvent


def _request(delivery: Delivery) -> _RequestKey:
    return (*delivery.id, delivery.correlation)


def _answer_of(effect: AnswerGiven | AnswerRefused) -> dict[str, Any]:
    if isinstance(effect, AnswerGiven):
        return {"value": effect.value}
    return {"error": effect.error, "text": effect.text}


def _type_of(error: Exception | None) -> str:
    return "" if error is None else type(error).__name__
