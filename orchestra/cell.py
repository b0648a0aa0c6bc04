"""One running actor: take, dispatch, answer, report. One message at a time; nothing else runs an actor."""

import asyncio
import inspect
import zlib
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from orchestra import log, supervision
from orchestra.actor import Actor, making
from orchestra.clock import Clock, Handle
from orchestra.envelope import Envelope
from orchestra.errors import ActorStopped, AskFailed, NotUnderstood, OrchestraError, Unreachable
from orchestra.mailbox import Mailbox
from orchestra.message import Lane, Message, Request
from orchestra.ref import Ref, speaking
from orchestra.system import CellStatistics, StopMsg, TerminatedMsg, WatchMsg
from orchestra.waits import Wait

if TYPE_CHECKING:
    from orchestra.node import Node

T = TypeVar("T")

BURST = 64
"""Messages handled before other actors of the node get their turn."""

STOPPED = "stopped"
"""The reason of a graceful stop."""

STORY = 8
"""Deliveries that a failure tells of."""


class ActorFailed(OrchestraError):
    """An actor failed for good; its cause is the exception, its text the last deliveries."""


class Cell:
    """An actor while it runs: its mailbox, its loop, its account. It is the actor's `Context`, and its `Sender`."""

    def __init__(self, node: "Node", address: str, kind: type[Actor[Any]], recipe: Callable[[], Actor[Any]]) -> None:
        self.node = node
        self.address = address
        self.kind = kind
        self.clock: Clock = node.clock
        self.run_directory: Path | None = node.run_directory
        self.log = log.get(actor=address)
        self.mailbox = Mailbox(kind.mailbox_capacity)
        self.understands = frozenset(kind.handlers) | {StopMsg, WatchMsg, TerminatedMsg}
        self.flows: Counter[tuple[str, type[Message]]] = Counter()
        self.children: list[Cell] = []
        self.task: asyncio.Task[None] | None = None
        self.terminated: asyncio.Future[str] = node.loop.create_future()
        """The reason why it is gone, once it is."""
        self.actor: Actor[Any] | None = None
        self.rng = self._seeded(0)
        self._recipe = recipe
        self._policy = kind.supervision
        self._failures: list[float] = []
        self._restarts = 0
        self._handled = 0
        self._busy_s = 0.0
        self._busy_since: float | None = None
        self._message_since = 0.0
        self.waits: set[Wait] = set()
        """What the handler that is under way waits for."""
        self._draining = False
        self._wake: asyncio.Future[None] | None = None
        self._current: Envelope | None = None
        self._recent: deque[tuple[str, str]] = deque(maxlen=STORY)
        self._watchers: set[str] = set()
        self._parked: dict[asyncio.Future[Any], Envelope] = {}
        self._timers: set[Handle] = set()

    # What the actor sees: Context

    def request_stop(self, *, graceful: bool = True) -> None:
        """Let nothing more in; handle what is queued if `graceful`, else stop at the next await."""
        self.mailbox.close()
        if not graceful:
            if self.task is not None:
                self.task.cancel()
            return
        if not self._draining:
            self._draining = True
            self._end_pause()
            # Wakes a loop that waits for a message. A stop is a message to itself that handles nothing.
            self.mailbox.put_nowait(Envelope(self.address, self.address, StopMsg()))

    def watch(self, ref: Ref[Any]) -> None:
        """Have this cell told when `ref` terminates."""
        self.node.watch(self.address, ref.address)

    def after(self, delay: float, message: Message) -> Handle:
        """Tell this actor `message` after `delay` seconds."""

        def fire() -> None:
            self._timers.discard(handle)
            if not self.mailbox.closed:
                # A timer is as good as a message from outside: it is let in like one that holds credit.
                self.mailbox.put_nowait(Envelope(self.address, self.address, message, origin=_Timer()))

        handle = self.clock.call_later(delay, fire)
        self._timers.add(handle)
        return handle

    async def offload(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function` in a thread of the node, or at once on a node that must be reproducible."""
        wait = Wait.for_thread(function, args)
        self.waits.add(wait)
        try:
            return await self.node.offload(wait.work, function, *args)
        finally:
            self.waits.discard(wait)

    def spawn_child(self, name: str, kind: type[Actor[Any]], recipe: Callable[[], Actor[Any]]) -> Ref[Any]:
        """Start a child, which stops with this cell."""
        child = self.node.start_cell(f"{self.address}:{name}".partition("/")[2], kind, recipe)
        self.children = [*(other for other in self.children if not other.terminated.done()), child]
        return Ref(child.address)

    # How it speaks: Sender

    def post(self, recipient: str, message: Message) -> Awaitable[None] | None:
        waiting = self.node.post(self.address, recipient, message)
        return None if waiting is None else self._noted(Wait.for_room(recipient), waiting)

    def post_nowait(self, recipient: str, message: Message) -> None:
        self.node.post_nowait(self.address, recipient, message)

    async def ask(self, recipient: str, request: Request[Any]) -> Any:
        waiting = self._current.chain if self._current is not None else ()
        wait = Wait.for_answer(recipient)
        self.waits.add(wait)
        try:
            return await self.node.ask(self.address, recipient, request, (*waiting, self.address))
        finally:
            self.waits.discard(wait)

    async def _noted(self, wait: Wait, until: Awaitable[None]) -> None:
        self.waits.add(wait)
        try:
            await until
        finally:
            self.waits.discard(wait)

    # How it runs

    def start(self) -> None:
        """Begin to run, as a task of the node."""
        self.task = self.node.loop.create_task(self._run(), name=self.address)
        # A task that is cancelled before its first step never gets to its own `finally`.
        self.task.add_done_callback(lambda _: self._tear_down("aborted"))

    @property
    def idle(self) -> bool:
        """Whether nothing happens here until a message comes or the clock moves on."""
        pausing = self._wake is not None and not self._wake.done()
        return pausing or self.terminated.done() or self.mailbox.idle

    @property
    def stopping(self) -> bool:
        """Whether it lets nothing more in."""
        return self.mailbox.closed

    def statistics(self) -> CellStatistics:
        """Return its account so far."""
        now = self.clock.monotonic()
        current = self.current
        return CellStatistics(
            address=self.address,
            kind=self.kind.__name__,
            mailbox=self.mailbox.statistics(),
            handled=self._handled,
            restarts=self._restarts,
            busy_s=self._busy_s + (0.0 if self._busy_since is None else now - self._busy_since),
            state=self._state(),
            message="" if current is None else type(current.message).__name__,
            sender="" if current is None else current.sender,
            for_s=0.0 if current is None else now - self._message_since,
            waits_for=tuple(sorted(map(str, self.waits))),
        )

    @property
    def current(self) -> Envelope | None:
        """The message that it is busy with."""
        return self._current

    def _state(self) -> Literal["idle", "handling", "waiting", "restarting", "stopping"]:
        if self._wake is not None and not self._wake.done():
            return "restarting"
        if self.stopping:
            return "stopping"
        if self.waits:
            return "waiting"
        return "idle" if self._current is None else "handling"

    def _seeded(self, incarnation: int) -> np.random.Generator:
        key = (zlib.crc32(self.address.encode()), incarnation)
        return np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence(self.node.seed, spawn_key=key)))

    async def _run(self) -> None:
        speaking.set(self)
        reason = STOPPED
        try:
            while True:
                try:
                    await self._live()
                    reason = STOPPED  # whatever an earlier incarnation died of
                    break
                except (Exception, asyncio.CancelledError) as error:
                    if isinstance(error, asyncio.CancelledError):
                        if self.task is not None and self.task.cancelling():
                            raise
                        # Nobody aborts this actor: it awaited something that somebody else cancelled.
                        error = RuntimeError(f"{self.address} awaited what was cancelled")
                    reason = f"{type(error).__name__}: {error}"
                    self._fail_current(error)
                    if self.node.stopping and isinstance(error, Unreachable):
                        break  # the others stopped first; there is nobody left to tell
                    self.log.error("actor failed", error=reason, story=self._story(), exc_info=error)
                    await self._bury()
                    if not await self._survives(error):
                        break
        except asyncio.CancelledError:
            reason = "aborted"
            raise
        finally:
            self._tear_down(reason)

    async def _live(self) -> None:
        """One incarnation, from its constructor to `stopped`."""
        token = making.set(self)
        try:
            made = self._recipe()
        finally:
            making.reset(token)
        self.actor = made
        await made.started()
        await self._serve(made)
        await made.stopped()

    async def _serve(self, actor: Actor[Any]) -> None:
        handlers: dict[type[Message], tuple[Callable[[Any], Any], bool]] = {}
        for accepted, name in actor.handlers.items():
            method = getattr(actor, name)
            handlers[accepted] = (method, inspect.iscoroutinefunction(method))
        mailbox = self.mailbox
        flows = self.flows
        recent = self._recent
        monotonic = self.clock.monotonic
        burst = 0
        self._busy_since = self._message_since = monotonic()
        while True:
            envelope = mailbox.get_nowait()
            if envelope is None:
                self._busy_s += monotonic() - self._busy_since
                self._busy_since = None
                if self._draining:
                    return
                await mailbox.wait_not_empty()
                burst = 0
                self._busy_since = self._message_since = monotonic()
                continue
            message = envelope.message
            kind = type(message)
            handler = handlers.get(kind)
            self._handled += 1
            flows[envelope.sender, kind] += 1
            if handler is None:
                self._handle_system(message)
                continue
            recent.append((kind.__name__, envelope.sender))
            self._current = envelope
            call, is_async = handler
            if is_async:
                self._message_since = monotonic()  # in a plain `def` nobody can look before it is over
                result = await call(message)
            else:
                result = call(message)
            if envelope.correlation:
                self._answer(envelope, result)
            self._current = None
            burst += 1
            if burst == BURST:
                burst = 0
                await asyncio.sleep(0)
                self._message_since = monotonic()

    def _handle_system(self, message: Message) -> None:
        match message:
            case StopMsg(graceful=graceful):
                self.request_stop(graceful=graceful)
            case WatchMsg(watcher=watcher):
                self._watchers.add(watcher.address)
            case TerminatedMsg():
                self.log.debug("a watched actor terminated", address=message.address, reason=message.reason)
            case _:
                raise NotUnderstood(refusal(self.kind, type(message)))

    def _answer(self, envelope: Envelope, result: Any) -> None:
        if not isinstance(result, asyncio.Future):
            self.node.answer(envelope, result)
            return
        self._parked[result] = envelope
        result.add_done_callback(self._answer_parked)

    def _answer_parked(self, future: asyncio.Future[Any]) -> None:
        envelope = self._parked.pop(future, None)
        if envelope is None:
            return
        if future.cancelled():
            self.node.fail(envelope, ActorStopped(f"{self.address} gave up the answer"))
        elif (error := future.exception()) is not None:
            self.node.fail(envelope, self._blame(error))
        else:
            try:
                self.node.answer(envelope, future.result())
            except Exception as unfit:
                self.log.error("answer cannot be given", request=type(envelope.message).__name__, exc_info=unfit)
                self.node.fail(envelope, self._blame(unfit))

    def _fail_current(self, error: Exception) -> None:
        envelope, self._current = self._current, None
        if self._busy_since is not None:
            self._busy_s += self.clock.monotonic() - self._busy_since
            self._busy_since = None
        if envelope is not None and envelope.correlation:
            self.node.fail(envelope, self._blame(error))

    def _blame(self, error: BaseException) -> AskFailed:
        return AskFailed(f"{self.address}: {type(error).__name__}: {error}")

    async def _bury(self) -> None:
        """End what belonged to the incarnation that failed, so that the next one finds nothing half done."""
        gone = ActorStopped(f"{self.address} failed before it answered")
        parked, self._parked = self._parked, {}
        for envelope in parked.values():
            self.node.fail(envelope, gone)
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        children, self.children = self.children, []
        for child in reversed(children):
            await self.node.stop_cell(child)

    async def _survives(self, error: Exception) -> bool:
        """Carry out what supervision decides; return whether there is another incarnation."""
        self._failures.append(self.clock.monotonic())
        match supervision.decide(self._policy, self._failures, self._failures[-1]):
            case supervision.RestartAfter(delay):
                if self._draining:
                    return False
                self._restarts += 1
                self.rng = self._seeded(self._restarts)
                self._wake = self.node.loop.create_future()
                timer = self.clock.call_later(delay, self._end_pause)
                try:
                    await self._wake
                finally:
                    timer.cancel()
                return not self._draining
            case supervision.Stop():
                return False
            case supervision.Escalate():
                failed = ActorFailed(f"{self.address} ({self.kind.__name__}) failed; {self._story()}")
                failed.__cause__ = error
                self.node.escalate(failed)
                return False

    def _end_pause(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _story(self) -> str:
        if not self._recent:
            return "it had handled nothing yet"
        told = ", ".join(f"{kind} from {sender}" for kind, sender in self._recent)
        return f"last deliveries, newest last: {told}"

    def _tear_down(self, reason: str) -> None:
        if self.terminated.done():
            return
        for child in self.children:
            child.request_stop()
        for timer in self._timers:
            timer.cancel()
        self.mailbox.close()
        gone = ActorStopped(f"{self.address} stopped before it answered ({reason})")
        left = self.mailbox.drain()
        for envelope in [*left, *self._parked.values(), *([self._current] if self._current else [])]:
            if envelope.correlation:
                self.node.fail(envelope, gone)
        self._parked.clear()
        for envelope in left:
            if isinstance(envelope.message, WatchMsg):
                self._watchers.add(envelope.message.watcher.address)
            elif not envelope.correlation and envelope.message.lane is not Lane.SYSTEM:
                self.node.dead_letter(envelope, "the actor stopped before it handled this")
        self.node.forget_cell(self, reason, self._watchers)
        self.terminated.set_result(reason)


class _Timer:
    """Where a timer's message came from: nobody waits for its room."""

    def consumed(self, recipient: str, nbytes: int) -> None:
        """Nobody holds credit."""

    def answer(self, correlation: int, value: Any) -> None:
        """Nobody asked."""

    def fail(self, correlation: int, error: Exception) -> None:
        """Nobody asked."""


def refusal(actor: type[Actor[Any]], message: type[Message]) -> str:
    """Say that `actor` does not handle `message`, and what it does handle."""
    known = ", ".join(sorted(kind.__name__ for kind in actor.handlers)) or "nothing"
    return f"{actor.__name__} got {message.__name__}; it understands {known}"
