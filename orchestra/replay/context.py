"""The context of a replayed actor: it answers from the record, and sends nothing."""

import asyncio
import bdb
import contextvars
import inspect
import sys
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

from orchestra.actors import spawning
from orchestra.actors.actor import Actor, ActorFactory
from orchestra.actors.asks import PendingReplies
from orchestra.actors.axes import AnyArray
from orchestra.actors.context import generator_for
from orchestra.actors.mailbox import Envelope
from orchestra.actors.message import Message, Request
from orchestra.actors.ref import Ref, speaking
from orchestra.clock import Clock, TimerHandle
from orchestra.errors import AskFailed
from orchestra.replay.effects import (
    Input,
    InputKey,
    Output,
    RecordedEffects,
    ReplayedActivation,
    beginning_of,
    error_of,
    key_of,
    target_of,
    timer_verb,
    was_aborted,
)
from orchestra.replay.event_loop import QuietLoop, current_line
from orchestra.trace.analysis.values import (
    ValueDifference,
    effect_text,
    recorded_fields,
    recorded_form,
    value_difference,
)
from orchestra.trace.format import effects as recorded
from orchestra.trace.format.records import Activation, Answer, Delivery, Incarnation
from orchestra.trace.reading.run_trace import RunTrace

T = TypeVar("T")
E = TypeVar("E", recorded.Sent, recorded.Asked, recorded.TimerSet)
Factory = Callable[[], Actor[Any]]

RequestKey = tuple[str, int, int]
"""Sender, number and correlation of a request."""

_CANCELLED = "CancelledError"


class ReplayContext:
    """The replay's implementation of an actor's context and of the sender behind its refs.

    Args:
        trace: holds the record.
        incarnation: the actor's.
        run_directory: a scratch folder in the place of the run's, if the run had one.
        resume_from: the folder of the saved state that the actor resumed from, if it did.
        tolerance: relative and absolute tolerance of floating-point numbers.
    """

    def __init__(
        self,
        trace: RunTrace,
        incarnation: Incarnation,
        *,
        run_directory: Path | None,
        resume_from: Path | None,
        tolerance: float,
    ) -> None:
        header, birth = incarnation.header, incarnation.birth
        self.address = birth.actor
        self.rng = generator_for(header.seed, birth.actor, birth.incarnation)
        self.clock: Clock = self  # it returns the recorded readings
        self.log: FilteringBoundLogger = structlog.wrap_logger(
            None, processors=[_dropped], wrapper_class=structlog.make_filtering_bound_logger(0)
        )
        self.run_directory = run_directory
        self.resume_from = resume_from
        self.factories: dict[str, Factory] = {}
        """The factories of the children spawned so far, by address."""
        self._trace = trace
        self._compare = partial(
            value_difference, tolerance=tolerance, find_array=lambda digest: trace.array(digest.digest)
        )
        self._recorded_directory = header.run_directory
        self._loop = QuietLoop()
        self._context = contextvars.copy_context()
        self._context.run(speaking.set, self)
        self._replies = PendingReplies(self.address, self._answer, self._refuse, None, self.log)
        self._requests: dict[RequestKey, Envelope] = {}
        """The delivered requests that have no answer yet."""
        self._answers: dict[RequestKey, dict[str, Any]] = {}
        """The answers that were not compared yet: their `value`, or `error` and `text`."""
        self._begin(Activation(0, "start"), strict=False)
        self._pending: dict[InputKey, asyncio.Future[None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._unrecorded = 0

    def perform(
        self, activation: Activation, work: Callable[[], Coroutine[Any, Any, None]], *, strict: bool
    ) -> ReplayedActivation:
        """Run one activation to its end; compare it with the record if `strict`."""
        self._begin(activation, strict=strict)
        replayed = self._replayed
        task = self._task = self._replies.task = self._loop.create_task(work(), context=self._context)
        self._play(task)
        if was_aborted(activation):
            replayed.unfinished = True
        elif task.cancelled():
            # The replay cancels only aborted activations: the actor awaited a future that its own code cancelled.
            replayed.error = RuntimeError(f"{self.address} awaited a cancelled future")
        elif (error := task.exception()) is not None:
            if not isinstance(error, Exception) or isinstance(error, bdb.BdbQuit):
                raise error
            replayed.error = error
        self._conclude()
        return replayed

    async def handle(
        self, handler: Callable[[Any], Any], delivery: Delivery, message: Message, debugger: bdb.Bdb | None
    ) -> None:
        """Call a handler of the actor, and compare its answer if `delivery` is a request.

        Args:
            handler: the handler.
            delivery: the recorded delivery.
            message: the handler's argument.
            debugger: stops at the handler's first line.
        """
        is_async = inspect.iscoroutinefunction(handler)
        call = handler if debugger is None else partial(_traced, debugger, handler)
        try:
            if delivery.correlation:
                (sender, number), correlation = delivery.id, delivery.correlation
                envelope = Envelope(self.address, sender, message, correlation=correlation, number=number)
                self._requests[sender, number, correlation] = envelope
                if is_async:
                    await self._replies.answer(envelope, call)
                else:
                    self._replies.answer_at_once(envelope, call)
            elif is_async:
                await call(message)
            else:
                call(message)
        except Exception as error:
            self._replies.fail_in_hand(self._replies.blame(error))
            raise
        finally:
            if debugger is not None:
                sys.settrace(None)

    # The actor's context

    def request_stop(self, *, graceful: bool = True) -> None:
        self._effects.expect(recorded.StopRequested(0.0, graceful), "different stop request", "graceful")

    def watch(self, ref: Ref[Any]) -> None:
        self._effects.expect(recorded.Watched(0.0, ref.address), "different actor watched", "address")

    def after(self, delay: float, message: Message) -> TimerHandle:
        effect = self._send(recorded.TimerSet, timer_verb(delay), "itself", message)
        if effect is not None:
            self._effects.compare("different timer", {"delay": effect.delay}, {"delay": float(delay)})
        return _ReplayTimer(self)

    async def offload(self, function: Callable[..., T], *args: Any) -> T:
        self._offloads += 1
        key = ("offload", self._offloads)
        error: Exception | None = None
        try:
            result = function(*args)
        except Exception as raised:
            error = raised
        effect = self._effects.input_for(key)
        if isinstance(effect, recorded.Offloaded) and effect.error != _CANCELLED:
            raised_type = "" if error is None else type(error).__name__
            self._effects.compare(
                "different result of offloaded work", {"raised": effect.error}, {"raised": raised_type}
            )
        await self._arrival(key)
        if error is not None:
            raise error
        return result

    def message_memory(self, nbytes: int) -> AnyArray | None:
        return None

    def spawn_child(self, name: str, factory: ActorFactory) -> Ref[Any]:
        address, class_name = f"{self.address}:{name}", f"{factory.func.__module__}:{factory.func.__qualname__}"
        self.factories[address] = factory
        self._emit(Output("spawned", address, class_name, {}))
        self._effects.expect(recorded.Spawned(0.0, address, class_name), "different child", "address", "kind")
        return Ref(address)

    spawn_remote = spawning.spawn

    # The sender behind its refs

    def post(self, recipient: str, message: Message) -> Awaitable[None] | None:
        key = ("told", self._tell(recipient, message))
        return self._arrival(key) if self._effects.input_for(key) is not None else None

    def post_nowait(self, recipient: str, message: Message) -> None:
        self._tell(recipient, message)

    def post_threadsafe(self, recipient: str, message: Message) -> Future[None]:
        done: Future[None] = Future()  # sent from outside the actor, so that its record does not have it
        done.set_result(None)
        return done

    async def ask(self, recipient: str, request: Request[Any]) -> Any:
        kind = type(request).__name__
        effect = self._send(recorded.Asked, "asked", recipient, request)
        if effect is None:
            raise AskFailed(f"the record holds no request {kind} to {recipient} here")
        key = ("answer", effect.number)
        try:
            await self._arrival(key)
        except asyncio.CancelledError:
            # In the run, the loop noticed a timeout late: the answer had come first, and counts.
            late = self._effects.input_for(key)
            if not isinstance(late, recorded.AnswerReceived):
                raise
            self._effects.inputs.remove(late)
        answer = self._received.get(effect.number)
        if answer is None:
            raise AskFailed(f"the record holds no answer of {recipient} to this {kind}")
        return type(request).answer_adapter().validate_python(self._trace.resolved(answer.value))

    # Its clock and timers

    def monotonic(self) -> float:
        effect = self._effects.take(recorded.MonotonicRead, lambda: "read the monotonic clock")
        return self._loop.time() if effect is None else effect.value

    def now(self) -> datetime:
        effect = self._effects.take(recorded.NowRead, lambda: "read the wall clock")
        return datetime.fromtimestamp(self._loop.time(), UTC) if effect is None else effect.value

    def call_later(self, delay: float, call: Callable[[], None]) -> TimerHandle:
        return self._loop.call_later(delay, call)

    def timer_cancelled(self) -> None:
        """Compare the cancellation of a timer with the record."""
        self._effects.expect(recorded.TimerCancelled(0.0, 0), "different timer cancelled")

    # Running an activation

    def _begin(self, activation: Activation, *, strict: bool) -> None:
        self._replayed = ReplayedActivation(activation)
        self._effects = RecordedEffects(activation, strict=strict, compare=self._compare, report=self._report)
        self._received: dict[int, Answer] = activation.answers
        self._offloads = 0
        self._began = beginning_of(activation)
        self._loop.advance_to(self._began)

    def _play(self, task: asyncio.Task[None]) -> None:
        """Run until the task is done and no input is left that something waits for."""
        loop, effects = self._loop, self._effects
        while True:
            loop.run_ready()
            effect = next(
                (
                    each
                    for each in effects.inputs
                    if isinstance(each, recorded.Withdrawn) or key_of(each) in self._pending
                ),
                None,
            )
            due = loop.next_timer
            if effect is not None:
                cancelled = getattr(effect, "error", "") == _CANCELLED
                if due is not None and (cancelled or due <= self._began + effect.at):
                    loop.fire_timer()
                elif cancelled:
                    effects.inputs.remove(effect)
                    task.cancel()
                else:
                    loop.advance_to(self._began + effect.at)
                    effects.inputs.remove(effect)
                    self._deliver_input(effect)
            elif task.done():
                return
            elif due is not None:
                loop.fire_timer()
            else:
                if not was_aborted(self._replayed.activation):
                    waits = ", ".join(f"{what} {number}" for what, number in self._pending) or "a future of its own"
                    effects.differs("it does not finish", ValueDifference("", "finished", f"waits for {waits}"))
                task.cancel()
                loop.run_ready()
                return

    def _deliver_input(self, effect: Input) -> None:
        if isinstance(effect, recorded.Withdrawn):
            if (envelope := self._requests.pop((*effect.request, effect.correlation), None)) is not None:
                self._replies.withdraw(envelope)
            return
        future = self._pending[key_of(effect)]
        if isinstance(effect, recorded.SendFailed | recorded.AskRaised):
            future.set_exception(error_of(effect.error, effect.text))
        else:
            future.set_result(None)

    async def _arrival(self, key: InputKey) -> None:
        """Wait until the input for `key` is delivered."""
        own = asyncio.current_task() is self._task  # another task of the actor's may outlive this activation
        if own and self._effects.input_for(key) is None:
            if was_aborted(self._replayed.activation):
                await self._loop.create_future()  # it still waited when the record ended
            difference = ValueDifference("", "no such event", f"{key[0]} {key[1]}")
            self._effects.differs("it waits for an event that was not recorded", difference)
            return
        future = self._pending[key] = self._loop.create_future()
        try:
            await future
        finally:
            del self._pending[key]

    def _conclude(self) -> None:
        """Compare what is known only at the end of an activation: answers, and outputs that are missing."""
        effects, replayed = self._effects, self._replayed
        for effect in effects.answers:
            given = self._answers.pop((*effect.request, effect.correlation), None)
            if isinstance(effect, recorded.AnswerGiven):
                effects.compare(f"the answer to {effect.request}", {"value": effect.value}, given)
            elif effect.error != "ActorStopped":  # else refused by the runtime when the actor had ended
                refusal = {"error": effect.error, "text": effect.text}
                effects.compare(f"the answer to {effect.request}", refusal, given)
        handled = replayed.activation.handled
        new_failure = replayed.error is not None and (handled is None or not handled.failure)
        if not replayed.unfinished and not new_failure:
            effects.conclude()

    # Outputs

    def _tell(self, recipient: str, message: Message) -> int:
        """Compare a sent message with the record, and return its number; a negative one if it was not recorded."""
        effect = self._send(recorded.Sent, "told", recipient, message)
        if effect is None:
            self._unrecorded -= 1
            return self._unrecorded
        refused = self._effects.refused.get(effect.number)
        if refused is not None:
            raise error_of(refused.error, refused.text)
        return effect.number

    def _send(self, kind: type[E], verb: str, recipient: str, message: Message) -> E | None:
        """Compare an output that carries a message with the record, and return the recorded one."""
        output = self._emit(Output(verb, recipient, type(message).__name__, recorded_fields(message)))
        target = (recipient, output.kind)
        effect: E | None = self._effects.take(kind, output.__str__, lambda effect: target_of(effect) == target)
        if effect is not None and target_of(effect) != target:
            noun = {recorded.Sent: "message", recorded.Asked: "request", recorded.TimerSet: "timer"}[kind]
            self._effects.differs(f"different {noun}", ValueDifference("", effect_text(effect), str(output)))
        elif effect is not None:
            self._effects.compare(" ".join(output.key), effect.fields, output.fields)
        return effect

    def _answer(self, envelope: Envelope, value: Any) -> None:
        self._note_answer("answered", envelope, recorded_form(value))

    def _refuse(self, envelope: Envelope, error: Exception) -> None:
        kind, text = type(error).__name__, str(error)
        self._note_answer("refused", envelope, f"{kind}: {text}", error=kind, text=text)

    def _note_answer(self, verb: str, envelope: Envelope, content: Any, **refusal: str) -> None:
        output = self._emit(Output(verb, envelope.sender, type(envelope.message).__name__, content))
        request = (envelope.sender, envelope.number, envelope.correlation)
        self._requests.pop(request, None)
        self._answers[request] = refusal or {"value": output.fields}

    def _emit(self, output: Output) -> Output:
        """Note an output, with the run's folder in the place of the scratch folder, and return it."""
        if self.run_directory is not None:
            fields = _renamed(output.fields, str(self.run_directory), self._recorded_directory)
            output = replace(output, fields=fields)
        self._replayed.outputs.append(output)
        return output

    def _report(self, what: str, difference: ValueDifference) -> None:
        if self._replayed.difference is None:
            line = current_line() if asyncio.current_task(self._loop) is not None else ""
            self._replayed.difference = (what, difference, line)


class _ReplayTimer:
    """A timer of a replayed actor: its message comes from the record."""

    def __init__(self, context: ReplayContext) -> None:
        self.cancel = context.timer_cancelled


def _traced(debugger: bdb.Bdb, handler: Callable[[Any], Any], message: Message) -> Any:
    """Call a handler; the debugger stops in the next frame that begins: the handler's, for a coroutine as well."""
    debugger.reset()
    sys.settrace(debugger.trace_dispatch)
    return handler(message)


def _dropped(logger: WrappedLogger, method: str, line: EventDict) -> NoReturn:
    raise structlog.DropEvent


def _renamed(value: Any, old: str, new: str) -> Any:
    """Return `value` with `old` replaced by `new` in all texts."""
    match value:
        case str():
            return value.replace(old, new)
        case dict():
            return {key: _renamed(item, old, new) for key, item in value.items()}
        case list():
            return [_renamed(item, old, new) for item in value]
    return value
