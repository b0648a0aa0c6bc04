"""One running actor: take, dispatch, answer, report. One message at a time; nothing else runs an actor."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from orchestra import log
from orchestra.actors.actor import Actor, making
from orchestra.actors.contract import contract_of
from orchestra.actors.deliveries import Deliveries
from orchestra.actors.entrance import Entrance
from orchestra.actors.envelope import Envelope
from orchestra.actors.mailbox import Mailbox
from orchestra.actors.message import Lane, Message, Request
from orchestra.actors.ref import Ref, speaking
from orchestra.actors.requests import PendingReplies
from orchestra.actors.restarts import Halted, Life
from orchestra.actors.seeding import generator_for
from orchestra.actors.serving import Serving
from orchestra.actors.supervisor import Children
from orchestra.actors.system_messages import (
    CellStatistics,
    ChildFailedMsg,
    HaltMsg,
    StopMsg,
    TerminatedMsg,
    WatchMsg,
    WithdrawnMsg,
)
from orchestra.actors.waits import Wait
from orchestra.clock import Clock, Handle
from orchestra.errors import ActorFailed, ActorStopped, NotUnderstood
from orchestra.nodes import spawning
from orchestra.trace.recording.cell_recorder import CellRecorder

if TYPE_CHECKING:
    from orchestra.nodes.node import Node

T = TypeVar("T")


class Cell:
    """An actor while it runs: its mailbox, its loop, its account. It is the actor's `Context`, and its `Sender`.

    Args:
        recipe: makes the actor; called again for every incarnation.
        siblings: the children of its parent, itself among them; None for an actor without a parent on this node.
        parent: the address of its parent on another node, with which it ends; empty if it has none there.
    """

    __slots__ = (
        "_factory",
        "_neighbours",
        "_rng",
        "_timers",
        "_watchers",
        "aborting",
        "accept",
        "actor",
        "address",
        "children",
        "clock",
        "contract",
        "delivered",
        "draining",
        "entrance",
        "kind",
        "life",
        "log",
        "mailbox",
        "node",
        "parent",
        "recorder",
        "requests",
        "resume_from",
        "run_directory",
        "serving",
        "task",
        "terminated",
        "waits",
    )

    def __init__(
        self,
        node: "Node",
        address: str,
        kind: type[Actor[Any]],
        factory: Callable[[], Actor[Any]],
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
        self.resume_from: Path | None = node.resume_from
        self.log = log.get(actor=address)
        self.mailbox = Mailbox(kind.mailbox_capacity)
        self.contract = contract_of(kind)
        self.entrance = Entrance(node, address, self.contract, self.mailbox)
        self.accept = self.entrance.accept
        self._neighbours = node.cells
        self.delivered = Deliveries()
        self.children = Children(self)
        self.requests = PendingReplies(self)
        self.serving = Serving(self)
        self.life = Life(self, siblings)
        self.task: asyncio.Task[None] | None = None
        self.terminated: asyncio.Future[str] = node.loop.create_future()
        """The reason why it is gone, once it is."""
        self.actor: Actor[Any] | None = None
        self.draining = False
        """Whether it was asked to stop gracefully."""
        self._factory = factory
        self._rng: np.random.Generator | None = None
        self.waits: set[Wait] = set()
        """What the handler that is under way waits for."""
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

    def spawn_child(self, name: str, kind: type[Actor[Any]], factory: Callable[[], Actor[Any]]) -> Ref[Any]:
        """Start a child, which stops with this cell."""
        child = self.node.start_cell(f"{self.address}:{name}".partition("/")[2], kind, factory, siblings=self.children)
        self.children.add(child)
        if self.recorder is not None:
            self.recorder.spawned(child, factory)
        return Ref(child.address)

    async def spawn_remote(
        self, node: str, name: str, kind: type[Actor[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Ref[Any]:
        """Start a child on another node, which stops with this cell."""
        try:
            child = await spawning.spawn(self, node, name, kind, args, kwargs)
        except asyncio.CancelledError:
            if self.node.peers.find(node) is not None:  # it may have been started
                self.node.post_remote(self.address, spawning.child_address(self.address, node, name), StopMsg())
            raise
        self.children.add_remote(child.address)
        return child

    # How it speaks: Sender

    def post(self, recipient: str, message: Message) -> Awaitable[None] | None:
        cell = self._neighbours.get(recipient)
        if self.recorder is not None:
            waiting = self.recorder.post(cell, recipient, message)
        elif cell is not None:
            waiting = cell.accept(self.address, message)
        else:
            waiting = self.node.post_remote(self.address, recipient, message)
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

    def on_terminated(self, envelope: Envelope) -> None:
        """Queue a `TerminatedMsg`; that of a parent on another node is this cell's own business, and stops it."""
        if self.parent and envelope.sender == self.parent:
            self.request_stop()
            return
        if not self.children.is_news(envelope.sender):
            return
        if TerminatedMsg in self.kind.handlers:  # the actor deals with it; else `_handle_system` does
            self.children.forget_remote(envelope.sender)
        self.mailbox.put_nowait(envelope)

    def child_failed(self, address: str, reason: str = "") -> None:
        """Have this actor fail with a child of it, after the message in hand."""
        self.mailbox.put_nowait(Envelope(self.address, address, ChildFailedMsg(address=address, reason=reason)))

    # How it runs

    def start(self) -> None:
        """Begin to run, as a task of the node."""
        self.task = self.node.loop.create_task(self._run(), name=self.address, context=self.serving.context)
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
        serving, current = self.serving, self.serving.current
        return CellStatistics(
            address=self.address,
            kind=self.kind.__name__,
            mailbox=self.mailbox.statistics(),
            handled=self.delivered.count,
            restarts=self.life.restarts,
            busy_s=serving.busy_s(now),
            state=self._state(),
            message="" if current is None else type(current).__name__,
            sender="" if current is None else self.delivered.sender,
            for_s=0.0 if current is None else now - serving.message_since,
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
        return "idle" if self.serving.current is None else "handling"

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
            made = self._factory()
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
            await self.serving.serve(made)
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

    def handle_system(self, message: Message) -> None:
        """Do what a message of the runtime asks for."""
        match message:
            case StopMsg(graceful=graceful):
                self.request_stop(graceful=graceful)
            case WatchMsg(watcher=watcher):
                self._watchers.add(watcher.address)
            case TerminatedMsg():
                self.children.on_terminated(message)
                self.log.debug("a watched actor terminated", address=message.address, reason=message.reason)
            case ChildFailedMsg():
                self.children.raise_escalated(message)
            case HaltMsg():
                self.life.check_halt()
            case WithdrawnMsg():
                pass  # counted when it was withdrawn
            case _:
                raise NotUnderstood(self.contract.refusal(type(message)))

    def reset_for_restart(self) -> None:
        """Forget what belonged to the last incarnation only."""
        self.resume_from = None
        self._rng = None
        self.children = Children(self, self.children.expected)

    async def end_incarnation(self) -> list[ActorFailed]:
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
        self.node.remove_cell(self, reason, self._watchers)
        self.terminated.set_result(reason)


class _Timer:
    """Where a timer's message came from: nobody waits for its room."""

    def consumed(self, recipient: str, nbytes: int) -> None:
        """Nobody holds credit."""

    def answer(self, correlation: int, value: Any) -> None:
        """Nobody asked."""

    def fail(self, correlation: int, error: Exception) -> None:
        """Nobody asked."""
