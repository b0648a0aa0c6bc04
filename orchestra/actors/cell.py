"""Cell: one running actor. It takes messages from the mailbox and calls their handlers, one at a time."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any, Literal

from orchestra import log
from orchestra.actors import codec
from orchestra.actors import lazy_numpy as np
from orchestra.actors.actor import Actor, making
from orchestra.actors.asks import PendingReplies
from orchestra.actors.context import LiveContext
from orchestra.actors.host import Host
from orchestra.actors.mailbox import Envelope, Mailbox
from orchestra.actors.message import Lane, Message
from orchestra.actors.recorder import ActorSettings
from orchestra.actors.ref import speaking
from orchestra.actors.restarts import Halted, RestartLoop
from orchestra.actors.statistics import CellStatistics, Deliveries
from orchestra.actors.supervisor import STOP_S, Children
from orchestra.actors.system_messages import ChildFailedMsg, HaltMsg, StopMsg, TerminatedMsg, WatchMsg, WithdrawnMsg
from orchestra.actors.weights import FLAT
from orchestra.errors import ActorFailed, ActorStopped, MailboxFull, NotUnderstood

BURST = 64
"""Messages handled before other actors of the node have their turn."""

_NO_HANDLER: tuple[Callable[[Any], Any], bool] = (print, True)


class Cell:
    """A running actor: its mailbox, its loop, its incarnations.

    Args:
        host: the node.
        settings: the actor's.
        siblings: the children of its parent, itself among them; None for an actor without a parent on this node.
    """

    def __init__(self, host: Host, settings: ActorSettings, siblings: Children | None = None) -> None:
        self.address = address = settings.address
        self.kind = settings.kind
        self.log = log.get(actor=address)
        self.contract = settings.kind._contract
        self.mailbox = Mailbox(address, settings.kind.mailbox_capacity)
        self.recorder = recorder = host.recorder_for(settings, self._replayable)
        self.replies = replies = PendingReplies(address, host.asks.answer, host.asks.fail, recorder, self.log)
        self.context = LiveContext(host, settings, recorder, self.mailbox, replies, self.log, stop=self.request_stop)
        self.restarts = RestartLoop(self, host, siblings, settings.parent)
        self.delivered = Deliveries()
        self.terminated: asyncio.Future[str] = host.loop.create_future()
        """Done, with the reason, once the actor is gone for good."""
        self.task: asyncio.Task[None] | None = None
        self.draining = False
        """True once a graceful stop was requested."""
        self._host = host
        self._settings = settings
        self._append = self.mailbox.append
        self._handed_over = self.contract.handed_over
        self._monotonic = host.clock.monotonic
        self._variables = copy_context()
        self.actor: Actor[Any] | None = None
        self._handlers: dict[type[Message], tuple[Callable[[Any], Any], bool]] = {}
        self._watchers: set[str] = set()
        self._current: Message | None = None
        self._current_since = 0.0
        self._busy_s = 0.0
        self._busy_since: float | None = None
        self._answered_at_once = 0

    # Messages come in

    def deliver(self, sender: str, message: Message, number: int = 0, queued: float = 0.0) -> Awaitable[None] | None:
        """Queue a message from this node; return an awaitable that waits for room if there is none.

        `number` and `queued` are those of a recorded sender, as in `mailbox.Queued`.

        Raises:
            NotUnderstood: the actor does not handle it.
        """
        try:
            weigh = self._handed_over[type(message)]
        except KeyError:
            pass
        else:
            if self._append((sender, message, FLAT if weigh is None else weigh(message), number, queued, None)):
                return None
        message, nbytes = self._isolated(message)
        if self.mailbox.closed and message.lane is not Lane.SYSTEM:
            # The same happens to a message from another node. An actor that must know of the end watches this actor.
            self._host.dead_letter(self.address, sender, message, "the actor is stopping")
            return None
        item = (sender, message, nbytes, number, queued, None)
        return None if self.mailbox.put(item) else self._wait_for_room(item)

    def deliver_nowait(self, sender: str, message: Message, number: int = 0, queued: float = 0.0) -> None:
        """Queue a message from this node, or raise `MailboxFull`, or `ActorStopped` if the actor is stopping."""
        message, nbytes = self._isolated(message)
        if not self.mailbox.put((sender, message, nbytes, number, queued, None)):
            raise MailboxFull(f"{self.address} has {len(self.mailbox)} messages waiting")

    def deliver_request(self, envelope: Envelope) -> Awaitable[None] | None:
        """Queue a request from this node; return an awaitable that waits for room if there is none."""
        envelope.message, envelope.nbytes = self._isolated(envelope.message)
        item = (envelope.sender, envelope.message, envelope.nbytes, envelope.number, 0.0, envelope)
        return None if self.mailbox.put(item) else self.mailbox.wait_for_room(item)

    def receive(self, envelope: Envelope, queued: float = 0.0, *, alone: bool = False) -> None:
        """Queue a message from another node. A request that came `alone` may be answered at once.

        Raises:
            NotUnderstood: the actor does not handle it.
            ActorStopped: the actor is stopping.
        """
        kind = type(message := envelope.message)
        if kind not in self.contract.understands:
            raise NotUnderstood(self.contract.refusal(kind))
        if type(message) is TerminatedMsg:  # and not `isinstance`, which pydantic makes slow
            self.on_terminated(message, queued)
        elif not (alone and envelope.correlation and self._answers_at_once(envelope, queued, kind)):
            if type(message) is ChildFailedMsg:
                self.context.children.expected.add(message.address)  # its end follows at once and is expected
            self.mailbox.put((envelope.sender, message, envelope.nbytes, envelope.number, queued, envelope))

    def on_terminated(self, message: TerminatedMsg, queued: float = 0.0) -> None:
        """Queue a `TerminatedMsg`. That of a parent on another node stops this actor instead."""
        if message.address == self._settings.parent:
            self.request_stop()
        elif self.context.children.is_news(message.address):
            if TerminatedMsg in self.kind.handlers:  # else `_handle_system` does this
                self.context.children.forget_remote(message.address)
            self.mailbox.put((message.address, message, FLAT, 0, queued, None))

    def put_system(self, sender: str, message: Message) -> None:
        """Queue a message of the runtime."""
        self.mailbox.put((sender, message, FLAT, 0, 0.0, None))

    def _isolated(self, message: Message) -> tuple[Message, int]:
        if type(message) not in self.contract.understands:
            raise NotUnderstood(self.contract.refusal(type(message)))
        return codec.isolate(message)

    async def _wait_for_room(self, item: tuple[str, Message, int, int, float, None]) -> None:
        try:
            await self.mailbox.wait_for_room(item)
        except ActorStopped:
            self._host.dead_letter(self.address, item[0], item[1], "the actor stopped while its mailbox was full")

    # Messages are handled

    async def _serve(self, actor: Actor[Any]) -> None:
        """Handle one message after the other, until a stop is requested and none is left."""
        handlers = {kind: (getattr(actor, name), is_async) for kind, (name, is_async) in self.contract.handlers.items()}
        self._handlers = handlers
        mailbox, recorder, delivered, replies = self.mailbox, self.recorder, self.delivered, self.replies
        monotonic, loop = self._monotonic, self._host.loop
        take = mailbox.take
        burst = 0
        message: Message | None
        envelope: Envelope | None
        self._busy_since = self._current_since = monotonic()
        while True:
            item = take()
            if item is None:
                message = envelope = None  # its arrays may lie in memory that the sender waits for
                self._set_idle()
                if self.draining:
                    return
                await mailbox.news(loop)
                burst = self._answered_at_once = 0
                self._busy_since = self._current_since = monotonic()
                continue
            sender, message, envelope = item[0], item[1], item[5]
            kind = type(message)
            if kind is not delivered.kind or sender != delivered.sender:
                delivered.turn(kind, sender)
            delivered.count += 1
            if recorder is not None:
                recorder.delivered(item)
            handler = handlers.get(kind)
            if handler is None:
                self._handle_system(message)
                if recorder is not None:
                    recorder.handled()
                continue
            call, is_async = handler
            self._current = message
            if is_async:
                self._current_since = monotonic()  # no other code can read it during a plain `def`
            if envelope is None or not envelope.correlation:
                if is_async:
                    await call(message)
                else:
                    call(message)
            elif is_async:
                await replies.answer(envelope, call)
            else:
                replies.answer_at_once(envelope, call)
            if recorder is not None:
                recorder.handled()
            self._current = None
            burst += 1
            if burst == BURST:
                burst = 0
                await asyncio.sleep(0)
                self._current_since = monotonic()

    def _answers_at_once(self, envelope: Envelope, queued: float, kind: type[Message]) -> bool:
        """Handle a request on arrival if the actor is idle and its handler a plain `def`; return whether it did.

        This saves the asker a turn of the loop and changes nothing else: the actor does nothing meanwhile, nothing is
        queued before the request, and other actors have their turn after a burst.
        """
        if self._answered_at_once >= BURST or not self.mailbox.idle:
            return False
        call, is_async = self._handlers.get(kind, _NO_HANDLER)
        if is_async:
            return False
        self._answered_at_once += 1
        self._variables.run(self._answer_at_once, envelope, queued, kind, call)
        return True

    def _answer_at_once(
        self, envelope: Envelope, queued: float, kind: type[Message], call: Callable[[Any], Any]
    ) -> None:
        delivered, recorder = self.delivered, self.recorder
        sender, message, nbytes = envelope.sender, envelope.message, envelope.nbytes
        self._busy_since = self._current_since = self._monotonic()
        if kind is not delivered.kind or sender != delivered.sender:
            delivered.turn(kind, sender)
        delivered.count += 1
        self._current = message
        try:
            if recorder is not None:
                recorder.delivered((sender, message, nbytes, envelope.number, queued, envelope))
            self.replies.answer_at_once(envelope, call)
            if recorder is not None:
                recorder.handled()
        except BaseException as error:
            # Raised where the loop waits, as if it had handled the request there.
            stops = isinstance(error, StopIteration)
            self.mailbox.fail_reader(RuntimeError(f"{kind.__name__}: {error!r}") if stops else error)
        else:
            self._set_idle()
        if envelope.origin is not None and kind.lane is not Lane.SYSTEM:  # system messages need no credit
            envelope.origin.consumed(self.address, nbytes)

    def _handle_system(self, message: Message) -> None:
        match message:
            case StopMsg(graceful=graceful):
                self.context.request_stop(graceful=graceful)
            case WatchMsg(watcher=watcher):
                self._watchers.add(watcher.address)
            case TerminatedMsg():
                self.context.children.on_terminated(message)
                self.log.debug("a watched actor terminated", address=message.address, reason=message.reason)
            case ChildFailedMsg():
                self.context.children.raise_escalated(message)
            case HaltMsg():
                self.restarts.check_halt()
            case WithdrawnMsg():
                pass  # counted when it was withdrawn
            case _:
                raise NotUnderstood(self.contract.refusal(type(message)))

    def _set_idle(self) -> None:
        self._current = None
        if self._busy_since is not None:
            self._busy_s += self._monotonic() - self._busy_since
            self._busy_since = None

    # Incarnations

    def start(self) -> None:
        """Begin to run, as a task of the node."""
        self.task = self.replies.task = self._host.loop.create_task(
            self._run(), name=self.address, context=self._variables
        )
        # A task that is cancelled before its first step never reaches its own `finally`.
        self.task.add_done_callback(lambda _: self._tear_down("aborted"))

    async def _run(self) -> None:
        speaking.set(self.context)
        reason = "aborted"
        try:
            reason = await self.restarts.run()
        finally:
            self._tear_down(reason)

    async def run_incarnation(self) -> None:
        """Run one incarnation, from the constructor to `stopped`."""
        recorder = self.recorder
        if recorder is not None:
            recorder.born()
        token = making.set(self.context)
        try:
            actor = self.actor = self._settings.factory()
        finally:
            making.reset(token)
        await actor.started()
        if recorder is not None:
            recorder.handled()
        self.restarts.started()
        halted = None
        try:
            await self._serve(actor)
        except Halted as error:
            halted = error
        self.restarts.late += await self.context.children.stop()
        if recorder is not None:
            recorder.stopping()
        await actor.stopped()
        if recorder is not None:
            recorder.handled()
        if halted is not None:
            raise halted

    def report_failure(self, error: Exception, *, expected: bool) -> None:
        """Record the failure of an incarnation, and fail the request in hand."""
        self._set_idle()
        if self.recorder is not None:
            self.recorder.failed(error, expected=expected)
        halted = isinstance(error, Halted)
        gone = ActorStopped(f"a sibling of {self.address} failed")
        self.replies.fail_in_hand(gone if halted else self.replies.blame(error))

    async def end_incarnation(self) -> list[ActorFailed]:
        """End everything that belonged to a failed incarnation; return the failures on the way."""
        self.replies.drop(ActorStopped(f"{self.address} failed before it answered"))
        self.context.cancel_timers()
        return await self.context.children.stop()

    def send_halt(self) -> None:
        """Have the incarnation raise `Halted` after the current message."""
        self.put_system(self.address, HaltMsg())

    # The end

    def request_stop(self, *, graceful: bool = True) -> None:
        """Admit no more messages; handle the queued ones if `graceful`, else stop at the next await."""
        self.mailbox.close()
        if not graceful:
            self.context.aborting = True
            if self.task is not None:
                self.task.cancel()
        elif not self.draining:
            self.draining = True
            self.restarts.resume()
            self.put_system(self.address, StopMsg())  # wakes the loop; handling it has no further effect

    async def stop(self, deadline: float = STOP_S) -> list[ActorFailed]:
        """Stop gracefully, abort after `deadline` seconds; return the failures on the way."""
        self.request_stop()
        done, _ = await asyncio.wait({self.terminated}, timeout=deadline)
        if not done:
            self.log.warning("actor did not stop in time and is aborted", seconds=deadline)
            self.request_stop(graceful=False)
            await asyncio.wait({self.terminated}, timeout=deadline)
        failed, self.restarts.late = self.restarts.late, []
        return failed

    def _tear_down(self, reason: str) -> None:
        if self.terminated.done():
            return
        self.context.children.request_stop()
        self.context.cancel_timers()
        self.mailbox.close()
        gone = ActorStopped(f"{self.address} stopped before it answered ({reason})")
        self.replies.fail_in_hand(gone)
        self.replies.drop(gone)
        for sender, message, _, _, _, envelope in self.mailbox.drain():
            if envelope is not None and envelope.correlation:
                self._host.asks.fail(envelope, gone)
            elif isinstance(message, WatchMsg):
                self._watchers.add(message.watcher.address)
            elif not isinstance(message, WithdrawnMsg) and message.lane is not Lane.SYSTEM:
                self._host.dead_letter(self.address, sender, message, "the actor stopped before it handled this")
        self.restarts.started()
        if self.recorder is not None:
            self.recorder.ended(reason)
        self._host.ended(self.address, reason, self._watchers, self.delivered.message_counts())
        self.terminated.set_result(reason)

    # Its account

    @property
    def idle(self) -> bool:
        """True if it does nothing until a message comes or time passes."""
        return self.restarts.pausing or self.terminated.done() or self.mailbox.idle

    @property
    def stopping(self) -> bool:
        """True once it admits no more messages."""
        return self.mailbox.closed

    def statistics(self) -> CellStatistics:
        """Return its account so far."""
        now, current = self._monotonic(), self._current
        return CellStatistics(
            address=self.address,
            kind=self.kind.__name__,
            mailbox=self.mailbox.statistics(),
            handled=self.delivered.count,
            restarts=self.restarts.count,
            busy_s=self._busy_s + (0.0 if self._busy_since is None else now - self._busy_since),
            state=self._state(),
            message="" if current is None else type(current).__name__,
            sender="" if current is None else self.delivered.sender,
            for_s=0.0 if current is None else now - self._current_since,
            waits_for=tuple(sorted(map(str, self.context.waits))),
            withdrawn=self.replies.withdrawn,
        )

    def _state(self) -> Literal["idle", "handling", "waiting", "restarting", "stopping"]:
        if self.restarts.pausing:
            return "restarting"
        if self.stopping:
            return "stopping"
        if self.context.waits:
            return "waiting"
        return "idle" if self._current is None else "handling"

    def _replayable(self) -> "tuple[Actor[Any], np.random.Generator] | None":
        """Return the actor and its random generator for a snapshot; None while it owes or awaits an answer."""
        return (self.actor, self.context.rng) if self.actor is not None and self.replies.idle else None
