"""Context: what a running actor reaches besides its own state. It sends, asks, spawns, offloads and sets timers."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cached_property, partial
from threading import get_ident
from typing import Any, TypeVar

from structlog.typing import FilteringBoundLogger

from orchestra.actors import lazy_numpy as np
from orchestra.actors import spawning
from orchestra.actors.actor import ActorFactory
from orchestra.actors.asks import LocalActor, PendingReplies
from orchestra.actors.axes import AnyArray
from orchestra.actors.host import Host
from orchestra.actors.mailbox import Mailbox
from orchestra.actors.message import Message, Request
from orchestra.actors.offload import wrong_thread
from orchestra.actors.recorder import ActorSettings, Recorder
from orchestra.actors.ref import Ref, speaking
from orchestra.actors.statistics import Wait
from orchestra.actors.supervisor import Children
from orchestra.actors.system_messages import ChildFailedMsg, StopMsg
from orchestra.actors.weights import FLAT
from orchestra.clock import Clock, TimerHandle
from orchestra.errors import ActorFailed, OrchestraError

T = TypeVar("T")


def generator_for(seed: int, address: str, incarnation: int) -> "np.random.Generator":
    """Return the random generator of one incarnation: derived from the run's seed, the address and the number."""
    key = (zlib.crc32(address.encode()), incarnation)
    return np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence(seed, spawn_key=key)))


class LiveContext:
    """The context of an actor on a node: its `actor.Context` and its `ref.Sender`.

    A recorder learns of every action here, before it is performed.

    Args:
        host: the node.
        settings: the actor's.
        recorder: records the actor; None if it is not recorded.
        mailbox: the actor's.
        replies: the actor's.
        log: the actor's.
        stop: stops the actor; takes `graceful`.
    """

    def __init__(
        self,
        host: Host,
        settings: ActorSettings,
        recorder: Recorder | None,
        mailbox: Mailbox,
        replies: PendingReplies,
        log: FilteringBoundLogger,
        *,
        stop: Callable[..., None],
    ) -> None:
        self._host = host
        self._cells = host.cells
        self.post_threadsafe = host.post_threadsafe
        self._settings = settings
        self._recorder = recorder
        self._mailbox = mailbox
        self._replies = replies
        self._stop = stop
        self.aborting = False
        """True once an abort was requested; pending waits are abandoned."""
        self._incarnation = 0
        self._timers: set[TimerHandle] = set()
        self.address = settings.address
        self.clock: Clock = host.clock if recorder is None else recorder.clock
        """The actor's clock. The runtime reads that of `Host`."""
        self.log = log
        self.run_directory = settings.run_directory
        self.resume_from = settings.resume_from
        self.waits: set[Wait] = set()
        """The conditions that the current handler waits for."""
        self.children = self._new_children(set())

    # For the actor: Context

    @cached_property
    def rng(self) -> "np.random.Generator":
        """The random generator of this incarnation."""
        return generator_for(self._settings.seed, self.address, self._incarnation)

    def request_stop(self, *, graceful: bool = True) -> None:
        """Stop this actor: after its queued messages if `graceful`, else at the next await."""
        if self._recorder is not None and speaking.get() is self:
            self._recorder.stop_requested(graceful=graceful)
        self._stop(graceful=graceful)

    def watch(self, ref: Ref[Any]) -> None:
        """Send this actor a `TerminatedMsg` when `ref` terminates."""
        if self._recorder is not None:
            self._recorder.watched(ref.address)
        self._host.watch(self.address, ref.address)

    def after(self, delay: float, message: Message) -> TimerHandle:
        """Send this actor `message` after `delay` seconds. A full mailbox admits it all the same."""
        recorder, number = self._recorder, 0
        if recorder is not None:
            message, number = recorder.timer_set(delay, message)

        def fire() -> None:
            self._timers.discard(handle)
            if not self._mailbox.closed:
                self._mailbox.put((self.address, message, FLAT, number, 0.0, None), forced=True)

        handle = self._host.clock.call_later(delay, fire)
        self._timers.add(handle)
        return handle if recorder is None else recorder.timer_handle(handle, number)

    async def offload(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function` in a thread of the node; at once on a deterministic node."""
        wait = Wait("in a thread:", (function, args))
        done = self._host.offload(lambda: self.aborting, wait.work, function, *args)
        return await self._noted(wait, done if self._recorder is None else self._recorder.offloaded(done))

    def message_memory(self, nbytes: int) -> AnyArray | None:
        """Return memory for the arrays of a message that other processes of this host may read, or None."""
        return self._host.message_memory(nbytes)

    def spawn_child(self, name: str, factory: ActorFactory) -> Ref[Any]:
        """Start a child on this node; it stops with this actor."""
        child = self._host.start_cell(f"{self.address}:{name}".partition("/")[2], factory, self.children)
        self.children.add(child)
        if self._recorder is not None:
            self._recorder.spawned(child.address, factory, child.recorder)
        return Ref(child.address)

    async def spawn_remote(self, node: str, name: str, factory: ActorFactory) -> Ref[Any]:
        """Start a child on another node; it stops with this actor. A cancelled spawn stops it again."""
        try:
            child = await spawning.spawn(self, node, name, factory)
        except asyncio.CancelledError:
            with suppress(OrchestraError):  # it may have been started
                self._host.post_remote_nowait(self.address, spawning.child_address(self.address, node, name), StopMsg())
            raise
        self.children.add_remote(child.address)
        return child

    # For refs: Sender

    def post(self, recipient: str, message: Message) -> Awaitable[None] | None:
        """Deliver `message` on this node or send it to another; return an awaitable if there is no room yet."""
        cell = self._cells.get(recipient)
        if self._recorder is not None:
            waiting = self._post_recorded(self._recorder, cell, recipient, message)
        elif cell is not None:
            waiting = cell.deliver(self.address, message)
        else:
            waiting = self._host.post_remote(self.address, recipient, message)
        return None if waiting is None else self._noted(Wait("waits for room at", recipient), waiting)

    def post_nowait(self, recipient: str, message: Message) -> None:
        """Deliver or send `message`, or raise `MailboxFull`."""
        if get_ident() != self._host.thread:
            raise wrong_thread(recipient)
        cell = self._cells.get(recipient)
        if self._recorder is not None:
            self._post_recorded(self._recorder, cell, recipient, message, nowait=True)
        elif cell is not None:
            cell.deliver_nowait(self.address, message)
        else:
            self._host.post_remote_nowait(self.address, recipient, message)

    async def ask(self, recipient: str, request: Request[Any]) -> Any:
        """Send `request` and return its answer."""
        wait = Wait("asks", recipient)
        self.waits.add(wait)
        replies, recorder = self._replies, self._recorder
        try:
            task = asyncio.current_task(self._host.loop)
            chain = replies.chain(holds=task is replies.task)
            if recorder is None:
                return await self._host.asks.ask(self.address, recipient, request, chain, replies.asked, task)
            number, clock = recorder.asked(recipient, request)
            try:
                value = await self._host.asks.ask(
                    self.address, recipient, request, chain, replies.asked, task, number, clock
                )
            except BaseException as error:
                recorder.ask_failed(number, error)
                raise
            recorder.ask_answered(number, request, value)
            return value
        finally:
            self.waits.discard(wait)

    # For the cell

    def reset_for_restart(self) -> None:
        """Drop what belonged to the last incarnation only."""
        self._incarnation += 1
        self.__dict__.pop("rng", None)
        self.resume_from = None
        self.children = self._new_children(self.children.expected)

    def cancel_timers(self) -> None:
        """Cancel all timers."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    # Inside

    def _new_children(self, expected: set[str]) -> Children:
        return Children(
            self.address,
            self._settings.kind.children_strategy,
            self._host.clock,
            self._child_failed,
            partial(self._host.stop_remote, self.address),
            expected,
        )

    def _child_failed(self, failed: ActorFailed) -> None:
        self._mailbox.put((failed.address, ChildFailedMsg(address=failed.address, reason=""), FLAT, 0, 0.0, None))

    def _post_recorded(
        self, recorder: Recorder, cell: LocalActor | None, recipient: str, message: Message, *, nowait: bool = False
    ) -> Awaitable[None] | None:
        message, number, clock, now = recorder.sent(recipient, message, cell is not None, nowait)
        waiting = None
        try:
            if cell is None and nowait:
                self._host.post_remote_nowait(self.address, recipient, message, number, clock)
            elif cell is None:
                waiting = self._host.post_remote(self.address, recipient, message, number, clock)
            elif nowait:
                cell.deliver_nowait(self.address, message, number, now)
            else:
                waiting = cell.deliver(self.address, message, number, now)
        except Exception as error:
            recorder.send_failed(number, error)
            raise
        return None if waiting is None else self._completed(recorder, number, waiting)

    async def _completed(self, recorder: Recorder, number: int, waiting: Awaitable[None]) -> None:
        try:
            await waiting
        except BaseException as error:
            recorder.send_failed(number, error)
            raise
        recorder.send_completed(number)

    async def _noted(self, wait: Wait, until: Awaitable[T]) -> T:
        self.waits.add(wait)
        try:
            return await until
        finally:
            self.waits.discard(wait)
