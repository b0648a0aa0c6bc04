"""One running actor: take, dispatch, answer, report. One message at a time; nothing else runs an actor."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from orchestra import codec, log, spawning
from orchestra.actor import Actor, making
from orchestra.children import Children
from orchestra.clock import Clock, Handle
from orchestra.contract import contract_of
from orchestra.deliveries import Deliveries
from orchestra.envelope import Envelope
from orchestra.errors import ActorFailed, ActorStopped, MailboxFull, NotUnderstood
from orchestra.life import Halted, Life
from orchestra.mailbox import Mailbox
from orchestra.message import FLAT, Lane, Message, Request, isolated, size_of
from orchestra.ref import Ref, speaking
from orchestra.requests import Requests
from orchestra.seeding import generator_for
from orchestra.system import (
    CellStatistics,
    ChildFailedMsg,
    HaltMsg,
    StopMsg,
    TerminatedMsg,
    WatchMsg,
    WithdrawnMsg,
)
from orchestra.trace.cell_recorder import CellRecorder
from orchestra.waits import Wait

if TYPE_CHECKING:
    from orchestra.node import Node

T = TypeVar("T")

BURST = 64
"""Messages handled before other actors of the node get their turn."""

_ELSEWHERE: tuple[Callable[[Any], Any], bool] = (print, True)


class Cell:
    """An actor while it runs: its mailbox, its loop, its account. It is the actor's `Context`, and its `Sender`.

    Args:
        recipe: makes the actor; called again for every incarnation.
        siblings: the children of its parent, itself among them; None for an actor without a parent on this node.
        parent: the address of its parent on another node, with which it ends; empty if it has none there.
    """

    __slots__ = (
        "_busy_s",
        "_busy_since",
        "_context",
        "_handed_over",
        "_handlers",
        "_here",
        "_message_since",
        "_neighbours",
        "_put_told",
        "_recipe",
        "_rng",
        "_timers",
        "_watchers",
        "aborting",
        "actor",
        "address",
        "children",
        "clock",
        "contract",
        "current",
        "delivered",
        "draining",
        "kind",
        "life",
        "log",
        "mailbox",
        "node",
        "parent",
        "recorder",
        "requests",
        "resumes",
        "run_directory",
        "task",
        "terminated",
        "waits",
    )

    def __init__(
        self,
        node: "Node",
        address: str,
        kind: type[Actor[Any]],
        recipe: Callable[[], Actor[Any]],
        siblings: Children | None = None,
        parent: str = "",
    ) -> None:
        self.node = node
        self.address = address
        self.kind = kind
        self.parent = parent
        self.recorder = CellRecorder.of(self, node.recorder)
        self.clock: Clock = node.clock if self.recorder is None else self.recorder.clock
        self.run_directory: Path | None = node.run_directory
        self.resumes: Path | None = node.resumes
        self.log = log.get(actor=address)
        self.mailbox = Mailbox(kind.mailbox_capacity)
        self._put_told = self.mailbox.put_told
        self.contract = contract_of(kind)
        self._handed_over = self.contract.handed_over
        self._neighbours = node.cells
        self.delivered = Deliveries()
        self.children = Children(self)
        self.requests = Requests(self)
        self.life = Life(self, siblings)
        self.task: asyncio.Task[None] | None = None
        self.terminated: asyncio.Future[str] = node.loop.create_future()
        """The reason why it is gone, once it is."""
        self.actor: Actor[Any] | None = None
        self.draining = False
        """Whether it was asked to stop gracefully."""
        self._recipe = recipe
        self._rng: np.random.Generator | None = None
        self._context = copy_context()
        self._handlers: dict[type[Message], tuple[Callable[[Any], Any], bool]] = {}
        self._here = 0
        """Requests answered where they arrived since its task had a turn."""
        self._busy_s = 0.0
        self._busy_since: float | None = None
        self._message_since = 0.0
        self.waits: set[Wait] = set()
        """What the handler that is under way waits for."""
        self.current: Message | None = None
        """The message that it is busy with."""
        self.aborting = False
        """Whether it does not wait for anything any longer."""
        self._watchers: set[str] = set()
        self._timers: set[Handle] = set()

    # What the actor sees: Context

    @property
    def rng(self) -> np.random.Generator:
        """The random numbers of this incarnation."""
        if self._rng is None:
            self._rng = generator_for(self.node.seed, self.address, self.life.restarts)
        return self._rng

    def request_stop(self, *, graceful: bool = True) -> None:
        """Let nothing more in; handle what is queued if `graceful`, else stop at the next await."""
        if self.recorder is not None and speaking.get() is self:
            self.recorder.stop_requested(graceful=graceful)
        self.mailbox.close()
        if not graceful:
            self.aborting = True
            if self.task is not None:
                self.task.cancel()
            return
        if not self.draining:
            self.draining = True
            self.life.wake()
            # Wakes a loop that waits for a message. A stop is a message to itself that handles nothing.
            self.mailbox.put_nowait(Envelope(self.address, self.address, StopMsg()))

    def watch(self, ref: Ref[Any]) -> None:
        """Have this cell told when `ref` terminates."""
        if self.recorder is not None:
            self.recorder.watched(ref.address)
        self.node.watch(self.address, ref.address)

    def after(self, delay: float, message: Message) -> Handle:
        """Tell this actor `message` after `delay` seconds."""
        number = clock = 0
        if self.recorder is not None:
            message, number, clock = self.recorder.timer_set(delay, message)

        def fire() -> None:
            self._timers.discard(handle)
            if not self.mailbox.closed:
                # A timer is as good as a message from outside: it is let in like one that holds credit.
                timer = Envelope(self.address, self.address, message, origin=_Timer(), number=number, clock=clock)
                self.mailbox.put_nowait(timer)

        handle = self.node.clock.call_later(delay, fire)
        self._timers.add(handle)
        return handle if self.recorder is None else self.recorder.timer_handle(handle, number)

    async def offload(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function` in a thread of the node, or at once on a node that must be reproducible."""
        wait = Wait.for_thread(function, args)
        self.waits.add(wait)
        try:
            done = self.node.offload(self, wait.work, function, *args)
            return await (done if self.recorder is None else self.recorder.offloaded(done))
        finally:
            self.waits.discard(wait)

    def spawn_child(self, name: str, kind: type[Actor[Any]], recipe: Callable[[], Actor[Any]]) -> Ref[Any]:
        """Start a child, which stops with this cell."""
        child = self.node.start_cell(f"{self.address}:{name}".partition("/")[2], kind, recipe, siblings=self.children)
        self.children.add(child)
        if self.recorder is not None:
            self.recorder.spawned(child, recipe)
        return Ref(child.address)

    async def spawn_far(
        self, node: str, name: str, kind: type[Actor[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Ref[Any]:
        """Start a child on another node, which stops with this cell."""
        try:
            child = await spawning.spawn(self, node, name, kind, args, kwargs)
        except asyncio.CancelledError:
            if self.node.peers.find(node) is not None:  # it may have been started
                self.node.post_far(self.address, spawning.child_address(self.address, node, name), StopMsg())
            raise
        self.children.add_far(child.address)
        return child

    # How it speaks: Sender

    def post(self, recipient: str, message: Message) -> Awaitable[None] | None:
        cell = self._neighbours.get(recipient)
        if self.recorder is not None:
            waiting = self.recorder.post(cell, recipient, message)
        elif cell is not None:
            waiting = cell.accept(self.address, message)
        else:
            waiting = self.node.post_far(self.address, recipient, message)
        return None if waiting is None else self._noted(Wait.for_room(recipient), waiting)

    def post_nowait(self, recipient: str, message: Message) -> None:
        if self.recorder is not None:
            self.recorder.post_nowait(self.node.cells.get(recipient), recipient, message)
        else:
            self.node.post_nowait(self.address, recipient, message)

    async def ask(self, recipient: str, request: Request[Any]) -> Any:
        wait = Wait.for_answer(recipient)
        self.waits.add(wait)
        try:
            task = asyncio.current_task(self.node.loop)
            chain, asked = self.requests.chain(holds=task is self.task), self.requests.asked
            if self.recorder is not None:
                return await self.recorder.ask(recipient, request, chain, asked, task)
            return await self.node.asks.ask(self.address, recipient, request, chain, asked, task)
        finally:
            self.waits.discard(wait)

    async def _noted(self, wait: Wait, until: Awaitable[T]) -> T:
        self.waits.add(wait)
        try:
            return await until
        finally:
            self.waits.discard(wait)

    # How it is spoken to

    def accept(self, sender: str, message: Message) -> Awaitable[None] | None:
        """Queue a message of this node; return what to await if there is no room yet."""
        try:
            weigh = self._handed_over[type(message)]
        except KeyError:
            pass
        else:
            if self._put_told((sender, message, FLAT if weigh is None else weigh(message))):
                return None
        return self.admit(self.enclose(sender, message))

    def accept_recorded(
        self, sender: str, message: Message, number: int, clock: int, now: float
    ) -> Awaitable[None] | None:
        """As `accept`, of a recorded sender: with the message's number, and when it was told by both clocks."""
        try:
            weigh = self._handed_over[type(message)]
        except KeyError:
            pass
        else:
            if self._put_told((sender, message, FLAT if weigh is None else weigh(message), number, now)):
                return None
        return self.admit(self.enclose_recorded(sender, message, number, clock, now))

    def enclose_recorded(self, sender: str, message: Message, number: int, clock: int, now: float) -> Envelope:
        """As `enclose`, of a recorded sender."""
        envelope = self.enclose(sender, message)
        envelope.number, envelope.clock, envelope.queued = number, clock, now
        return envelope

    def admit(self, envelope: Envelope) -> Awaitable[None] | None:
        """Queue what `enclose` returned; return what to await if there is no room yet."""
        mailbox = self.mailbox
        if mailbox.closed and envelope.message.lane is not Lane.SYSTEM:
            # As it would be if it came from another node. Who must know that an actor ends watches it.
            self.node.dead_letter(envelope, "the actor is stopping")
            return None
        return None if mailbox.put_nowait(envelope) else self._queue(envelope)

    async def _queue(self, envelope: Envelope) -> None:
        try:
            await self.mailbox.wait_for_room(envelope)
        except ActorStopped:
            self.node.dead_letter(envelope, "the actor stopped while its mailbox was full")

    def accept_nowait(self, sender: str, message: Message) -> None:
        """Queue a message of this node, or raise `MailboxFull`, or `ActorStopped` if this actor is stopping."""
        self.admit_nowait(self.enclose(sender, message))

    def admit_nowait(self, envelope: Envelope) -> None:
        """Queue what `enclose` returned, or raise `MailboxFull`, or `ActorStopped` if this actor is stopping."""
        if not self.mailbox.put_nowait(envelope):
            raise MailboxFull(f"{self.address} has {len(self.mailbox)} messages waiting")

    def enclose(self, sender: str, message: Message, correlation: int = 0, chain: tuple[str, ...] = ()) -> Envelope:
        """Return an envelope with `message`, weighed, that shares nothing mutable with its sender.

        Raises:
            NotUnderstood: this actor does not handle it.
        """
        kind = type(message)
        if kind in self._handed_over:
            weigh = self._handed_over[kind]
            nbytes = FLAT if weigh is None else weigh(message)
        elif kind not in self.contract.understands:
            raise NotUnderstood(self.contract.refusal(kind))
        elif not kind.wire.immutable:
            message, nbytes = codec.weighed_copy(message)
        else:
            message = isolated(message) if kind.wire.array_fields else message
            nbytes = size_of(message)
        return Envelope(self.address, sender, message, nbytes, correlation, chain)

    def hear_end(self, envelope: Envelope) -> None:
        """Queue a `TerminatedMsg`; that of a parent on another node is this cell's own business, and stops it."""
        if self.parent and envelope.sender == self.parent:
            self.request_stop()
            return
        if not self.children.is_news(envelope.sender):
            return
        if TerminatedMsg in self.kind.handlers:  # the actor deals with it; else `_handle_system` does
            self.children.forget_far(envelope.sender)
        self.mailbox.put_nowait(envelope)

    def child_failed(self, address: str, reason: str = "") -> None:
        """Have this actor fail with a child of it, after the message in hand."""
        self.mailbox.put_nowait(Envelope(self.address, address, ChildFailedMsg(address=address, reason=reason)))

    # How it runs

    def start(self) -> None:
        """Begin to run, as a task of the node."""
        self.task = self.node.loop.create_task(self._run(), name=self.address, context=self._context)
        # A task that is cancelled before its first step never gets to its own `finally`.
        self.task.add_done_callback(lambda _: self._tear_down("aborted"))

    @property
    def idle(self) -> bool:
        """Whether nothing happens here until a message comes or the clock moves on."""
        return self.life.pausing or self.terminated.done() or self.mailbox.idle

    @property
    def stopping(self) -> bool:
        """Whether it lets nothing more in."""
        return self.mailbox.closed

    def statistics(self) -> CellStatistics:
        """Return its account so far."""
        now = self.node.clock.monotonic()
        current = self.current
        return CellStatistics(
            address=self.address,
            kind=self.kind.__name__,
            mailbox=self.mailbox.statistics(),
            handled=self.delivered.count,
            restarts=self.life.restarts,
            busy_s=self._busy_s + (0.0 if self._busy_since is None else now - self._busy_since),
            state=self._state(),
            message="" if current is None else type(current).__name__,
            sender="" if current is None else self.delivered.sender,
            for_s=0.0 if current is None else now - self._message_since,
            waits_for=tuple(sorted(map(str, self.waits))),
            withdrawn=self.requests.withdrawn,
        )

    def _state(self) -> Literal["idle", "handling", "waiting", "restarting", "stopping"]:
        if self.life.pausing:
            return "restarting"
        if self.stopping:
            return "stopping"
        if self.waits:
            return "waiting"
        return "idle" if self.current is None else "handling"

    def abort(self) -> None:
        """Stop at the next await."""
        self.request_stop(graceful=False)

    async def _run(self) -> None:
        speaking.set(self)
        reason = "aborted"
        try:
            reason = await self.life.run()
        finally:
            self._tear_down(reason)

    async def live(self) -> None:
        """One incarnation, from its constructor to `stopped`."""
        recorder = self.recorder
        if recorder is not None:
            recorder.born()
        token = making.set(self)
        try:
            made = self._recipe()
        finally:
            making.reset(token)
        self.actor = made
        await made.started()
        if recorder is not None:
            recorder.handled()
        if self.life.siblings is not None:
            self.life.siblings.leave(self)
        halted = None
        try:
            await self._serve(made)
        except Halted as error:
            halted = error
        self.life.late += await self.children.stop()
        if recorder is not None:
            recorder.stopping()
        await made.stopped()
        if recorder is not None:
            recorder.handled()
        if halted is not None:
            raise halted

    def answer_here(self, envelope: Envelope, kind: type[Message]) -> bool:
        """Handle a request of type `kind` where it arrives, if the actor is idle; return whether that was done.

        It is done for plain handlers, and spares the asker a turn of the loop. It is the same in all other ways:
        nothing of the actor runs meanwhile, nothing waits in front, and others get their turn after a burst.
        """
        mailbox = self.mailbox
        if self._here >= BURST or not mailbox.idle:
            return False
        call, is_async = self._handlers.get(kind, _ELSEWHERE)
        if is_async:
            return False
        self._here += 1
        self._context.run(self._answer_here, envelope, kind, call)
        return True

    def _answer_here(self, envelope: Envelope, kind: type[Message], call: Callable[[Any], Any]) -> None:
        delivered = self.delivered
        sender, message = envelope.sender, envelope.message
        recorder = self.recorder
        self._busy_since = self._message_since = self.node.clock.monotonic()
        if kind is not delivered.kind or sender != delivered.sender:
            delivered.turn(kind, sender)
        delivered.count += 1
        if recorder is not None:
            recorder.delivered(envelope)
        self.current = message
        try:
            self.requests.answer_at_once(envelope, call)
        except BaseException as error:
            # The incarnation fails where it waits, just as if it had handled this there.
            stops = isinstance(error, StopIteration)
            self.mailbox.fail_reader(RuntimeError(f"{kind.__name__}: {error!r}") if stops else error)
        else:
            if recorder is not None:
                recorder.handled()
            self.be_idle()
        if envelope.origin is not None and kind.lane is not Lane.SYSTEM:  # which needs no credit
            envelope.origin.consumed(envelope.recipient, envelope.nbytes)

    async def _serve(self, actor: Actor[Any]) -> None:
        handlers = {kind: (getattr(actor, name), is_async) for kind, (name, is_async) in self.contract.handlers.items()}
        self._handlers = handlers
        mailbox = self.mailbox
        recorder = self.recorder
        delivered = self.delivered
        monotonic = self.node.clock.monotonic
        loop = self.node.loop
        burst = 0
        message: Message | None
        request: Envelope | None
        self._busy_since = self._message_since = monotonic()
        while True:
            item = mailbox.take()
            if item is None:
                message = request = None  # its arrays may lie in memory that the sender waits for
                self.be_idle()
                if self.draining:
                    return
                await mailbox.news(loop)
                burst = self._here = 0
                self._busy_since = self._message_since = monotonic()
                continue
            if type(item) is tuple:
                sender, message = item[0], item[1]
                request = None
            else:
                assert isinstance(item, Envelope)
                sender, message = item.sender, item.message
                request = item if item.correlation else None
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
            self.current = message
            if is_async:
                self._message_since = monotonic()  # in a plain `def` nobody can look before it is over
            if not is_async:
                if request is None:
                    call(message)
                else:
                    self.requests.answer_at_once(request, call)
            elif request is None:
                await call(message)
            else:
                await self.requests.answer(request, call)
            if recorder is not None:
                recorder.handled()
            self.current = None
            burst += 1
            if burst == BURST:
                burst = 0
                await asyncio.sleep(0)
                self._message_since = monotonic()

    def be_idle(self) -> None:
        """Take note that no message is under way."""
        self.current = None
        if self._busy_since is not None:
            self._busy_s += self.node.clock.monotonic() - self._busy_since
            self._busy_since = None

    def _handle_system(self, message: Message) -> None:
        match message:
            case StopMsg(graceful=graceful):
                self.request_stop(graceful=graceful)
            case WatchMsg(watcher=watcher):
                self._watchers.add(watcher.address)
            case TerminatedMsg():
                self.children.hear_end(message)
                self.log.debug("a watched actor terminated", address=message.address, reason=message.reason)
            case ChildFailedMsg():
                self.children.raise_escalated(message)
            case HaltMsg():
                self.life.check_halt()
            case WithdrawnMsg():
                pass  # counted when it was withdrawn
            case _:
                raise NotUnderstood(self.contract.refusal(type(message)))

    def begin_anew(self) -> None:
        """Forget what belonged to the last incarnation only."""
        self.resumes = None
        self._rng = None
        self.children = Children(self, self.children.expected)

    async def bury(self) -> list[ActorFailed]:
        """End what belonged to this incarnation, so that the next one finds nothing half done.

        Returns what failed as it was ended.
        """
        self.requests.drop(ActorStopped(f"{self.address} failed before it answered"))
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        return await self.children.stop()

    def _tear_down(self, reason: str) -> None:
        if self.terminated.done():
            return
        self.children.request_stop()
        for timer in self._timers:
            timer.cancel()
        self.mailbox.close()
        gone = ActorStopped(f"{self.address} stopped before it answered ({reason})")
        self.requests.fail_in_hand(gone)
        self.requests.drop(gone)
        for item in self.mailbox.drain():
            envelope = item if isinstance(item, Envelope) else Envelope(self.address, item[0], item[1], item[2])
            if envelope.correlation:
                self.node.asks.fail(envelope, gone)
            elif isinstance(envelope.message, WatchMsg):
                self._watchers.add(envelope.message.watcher.address)
            elif not isinstance(envelope.message, WithdrawnMsg) and envelope.message.lane is not Lane.SYSTEM:
                self.node.dead_letter(envelope, "the actor stopped before it handled this")
        if self.life.siblings is not None:
            self.life.siblings.leave(self)
        if self.recorder is not None:
            self.recorder.ended(reason)
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
