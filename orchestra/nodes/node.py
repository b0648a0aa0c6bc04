"""A node: a part of a run with one event loop and one name. It hosts actors, and exchanges messages with its peers."""

import asyncio
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from orchestra import log
from orchestra.actors import spawning
from orchestra.actors.actor import Actor, ActorFactory, actor_class
from orchestra.actors.addresses import check_name, is_observer, node_of
from orchestra.actors.asks import PendingAsks
from orchestra.actors.cell import Cell
from orchestra.actors.message import Message, Request
from orchestra.actors.offload import in_thread, post_threadsafe, wrong_thread
from orchestra.actors.recorder import ActorSettings, StateSource
from orchestra.actors.ref import Ref
from orchestra.actors.restarts import STOPPED
from orchestra.actors.statistics import NodeStatistics, ProcessStatistics
from orchestra.actors.supervisor import STOP_S, Children
from orchestra.actors.system_messages import (
    SYSTEM,
    ChildFailedMsg,
    SpawnedMsg,
    SpawnMsg,
    StopActorMsg,
    TerminatedMsg,
    WatchMsg,
)
from orchestra.clock import Clock, RealClock
from orchestra.errors import ActorFailed, OrchestraError, Unreachable, UsageError
from orchestra.nodes.accounts import Accounts
from orchestra.nodes.delivery import RemoteDelivery
from orchestra.nodes.dialling import cancel_all
from orchestra.nodes.join_point import DIRECTORY
from orchestra.nodes.node_actors import DirectoryActor, SystemActor
from orchestra.nodes.peers import Peers
from orchestra.nodes.shutdown import stop_actors
from orchestra.nodes.watches import Watches
from orchestra.trace.recording.cell_recorder import CellRecorder
from orchestra.trace.recording.recorder import NodeRecorder
from orchestra.wire.blocks import CAPACITY, SharedBlocks
from orchestra.wire.credentials import Credentials, check_secret
from orchestra.wire.frames import Limits
from orchestra.wire.handshake import check_node_name
from orchestra.wire.link import Link
from orchestra.wire.settings import LinkSettings
from orchestra.wire.transports.registry import check_exposure

P = ParamSpec("P")
M = TypeVar("M", bound=Message)
T = TypeVar("T")

STOP_REMOTE_S = 3 * STOP_S
"""Seconds a child on another node may take to stop. Its own node gives it less, first to stop, then to abort."""


class Node:
    """A part of a run, with one event loop and one name: `async with Node("here").running() as node:`.

    Args:
        name: its part of every address, `name/actor`.
        listen: the address where other nodes reach it: `tcp://HOST:PORT`, `tls://HOST:PORT`, `unix:///PATH` or
            `memory://NAME`, or several with commas between; None to accept no connections. The host `*` stands for all
            interfaces, and `A-B` for the first free port of a range.
        join: the address of the run's root or of another join point, or several candidates with commas between; None
            for the root itself.
        joinable: be a join point, where other nodes join the run: the root always is, and the agent of a host.
        secret: the run's secret, which all nodes prove to each other before any other exchange; random by default.
        seed: the run's seed, from which every actor's random generator is derived, together with its address.
        run_directory: the folder of the run's files.
        resume_from: the saved state that the actors continue from.
        deterministic: run offloaded work at once, on the loop. That is slower, but the order of all deliveries then
            depends on the messages alone, so a single-process run repeats bit for bit. Such a node sets its peers no
            deadlines, since long work in this very process delays them.
        limits: the largest frame that a peer may send.
        entropy: returns that many random bytes, for the secret, nonces, names of sessions and the jitter of pauses. A
            simulation passes its own.
        executor: runs offloaded work; by default up to 64 threads. It is shut down with the node.
        recorder: records the messages and actions of the actors; it is closed with the node.
        shared_memory: bytes of an arena for large arrays to peers on this host, a multiple of 4096; 0 for none.
        tls: the credentials for `tls://`; by default those in the folder that `ORCHESTRA_TLS_DIR` names.
        unencrypted: allow plain TCP beyond this host, where others may read and change all messages.
        advertise: `HOST` or `HOST:PORT`, where others reach this node; by default the interfaces that it listens at.
        join_timeout_s: seconds in which the node tries to join again where nothing answers; 0 to try once.

    Raises:
        UsageError: the name, an address, the length of the secret or the size of the arena is not allowed.
    """

    def __init__(
        self,
        name: str,
        *,
        listen: str | None = None,
        join: str | None = None,
        joinable: bool = False,
        secret: bytes | None = None,
        seed: int = 0,
        run_directory: Path | None = None,
        resume_from: Path | None = None,
        clock: Clock | None = None,
        deterministic: bool = False,
        limits: Limits | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
        executor: Executor | None = None,
        recorder: NodeRecorder | None = None,
        shared_memory: int = CAPACITY,
        tls: Credentials | None = None,
        unencrypted: bool = False,
        advertise: Sequence[str] = (),
        join_timeout_s: float = 0.0,
    ) -> None:
        self.name = check_node_name(name)
        self.unencrypted = any(check_exposure(address, allowed=unencrypted) for address in (listen, join) if address)
        """True if messages of this node travel in plain TCP beyond this host."""
        self.secret = check_secret(secret) if secret is not None else entropy(32)
        self.tls, self.seed, self.recorder = tls, seed, recorder
        self.run_directory, self.resume_from = run_directory, resume_from
        self.clock: Clock = clock or RealClock()
        limits, blocks = limits or Limits(), SharedBlocks(shared_memory, entropy)
        settings = LinkSettings(
            name, self.secret, entropy(8), entropy, self.clock, limits, deterministic, blocks, tls, unencrypted
        )
        self.thread, self.stopping = 0, False
        self.main_actor = ""
        """The actor whose end is the end of the run, if it runs here. The runner reports why it ended."""
        self.processes: Callable[[], tuple[ProcessStatistics, ...]] = tuple
        """Returns the statistics of the processes that this node has launched."""
        self.loop: asyncio.AbstractEventLoop
        self.stop_requested: asyncio.Future[str]
        """Done, with the reason, once this node is asked to stop or has lost its root or join point."""
        self.log = log.get(actor=f"{name}/{SYSTEM}")
        self.deterministic = deterministic
        self.cells: dict[str, Cell] = {}
        """The running actors of this node, by address."""
        self.watches = Watches(self)
        self.delivery = RemoteDelivery(self)
        joins_by = (listen, join, advertise, join_timeout_s)
        self.peers = Peers(settings, self, self.delivery, *joins_by, joinable=joinable)
        self.directory = self.peers.join_point.directory
        self._routes = self.peers.routes
        self.asks = PendingAsks(name, self.cells, self.peers, self.clock, probing=not deterministic)
        self.post_remote_nowait = self.peers.post_nowait
        self.message_memory = blocks.lend_memory
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._body: asyncio.Task[Any] | None = None
        self._failures: list[Exception] = []
        self._executor = executor
        self.accounts = Accounts(self)
        self._outside = f"{name}/outside"

    # Lifecycle

    @property
    def listening(self) -> str:
        """The address where other nodes dial this one; empty if it accepts no connections, or before it is open."""
        return self.peers.listening

    @property
    def root(self) -> str:
        """The name of the run's root; empty until it is known."""
        return self.peers.root

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Node"]:
        """Open the node, and stop it when the block ends.

        Raises:
            UsageError: its address is malformed or taken.
            Unreachable, HandshakeError: the root does not answer, or does not know the secret.
            ExceptionGroup: an actor failed for good. Holds an `ActorFailed` with the actor's last deliveries.
        """
        self.loop, self.thread = asyncio.get_running_loop(), threading.get_ident()
        self.stop_requested = self.loop.create_future()
        with log.at_least_warnings(self.name):
            try:
                await self._open()
            except BaseException:
                await self.stop()
                raise
            self._body = asyncio.current_task()
            self.loop.call_soon(self.delivery.begin)  # once the block has spawned its first actors
            try:
                yield self
            except asyncio.CancelledError:
                # `escalate` has cancelled the block if an actor failed; any other cancellation passes through.
                if not self._failures or self._body is None or self._body.uncancel() > 0:
                    raise
            finally:
                self._body = None
                await self.stop()
            if self._failures:
                raise ExceptionGroup(f"node {self.name} failed", self._failures)

    async def stop(self) -> None:
        """Stop all actors together, each after its children, then the links. After 10 s those left are aborted."""
        self.stopping = True
        self._failures += await stop_actors(self.cells)
        await cancel_all(*self._background_tasks)
        self.asks.probes.close()
        await self.peers.close()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
        if self.recorder is not None:
            self.recorder.close()

    async def stop_actor(self, address: str) -> tuple[str, ...]:
        """Stop an actor at the request of another node, if it is still there; return the failures on the way."""
        cell = self.cells.get(address)
        return () if cell is None else tuple(map(str, await cell.stop()))

    def escalate(self, failed: Exception, parent: str = "") -> None:
        """Fail the actor at `parent` on another node, or this whole node.

        The node's `running()` block is cancelled, and `running()` raises `failed` in a group. A parent that cannot be
        reached has lost its child's node, and its child ends all the same.
        """
        if not parent:
            self._failures.append(failed)
            if self._body is not None and len(self._failures) == 1:
                self._body.cancel()
        elif isinstance(failed, ActorFailed) and (link := self.peers.find(node_of(parent))) is not None:
            link.post(failed.address, parent, ChildFailedMsg(address=failed.address, reason=str(failed)))

    def request_stop(self, reason: str) -> None:
        """Request the end of this node from its runner."""
        if not self.stop_requested.done():
            self.stop_requested.set_result(reason)

    # Actors

    def spawn(self, name: str, kind: Callable[P, Actor[M]], *args: P.args, **kwargs: P.kwargs) -> Ref[M]:
        """Start the actor `kind(*args, **kwargs)` as `<node>/<name>` and return its ref."""
        cell = self.start_cell(name, partial(actor_class(kind), *args, **kwargs))
        return Ref(cell.address, self)

    def start_cell(self, name: str, factory: ActorFactory, siblings: Children | None = None, parent: str = "") -> Cell:
        """Start an actor under `name`.

        Args:
            name: the part of its address after the node.
            factory: makes the actor; called for every incarnation.
            siblings: the children of its parent on this node.
            parent: the address of its parent on another node.

        Raises:
            UsageError: the name is taken or not allowed.
        """
        address = f"{self.name}/{check_name(name, 'an actor')}"
        if address in self.cells:
            raise UsageError(f"there is an actor at {address} already")
        kind = actor_class(factory.func)
        settings = ActorSettings(address, kind, factory, parent, self.seed, self.run_directory, self.resume_from)
        cell = self.cells[address] = Cell(self, settings, siblings)
        cell.start()
        return cell

    def recorder_for(self, settings: ActorSettings, state: StateSource) -> CellRecorder | None:
        """Return a recorder for a new actor, or None if it is not recorded."""
        recorder = self.recorder
        if recorder is None or not settings.kind.recorded or not recorder.filters.records(settings.address):
            return None
        return CellRecorder(recorder, settings, state)

    async def spawn_on(
        self, node: str, name: str, kind: Callable[P, Actor[M]], *args: P.args, **kwargs: P.kwargs
    ) -> Ref[M]:
        """Start an actor on another node, as `Actor.spawn_on` does. It ends with this node.

        Raises:
            SpawnRefused: the arguments do not fit or cannot travel, or the other node refuses.
            Unreachable: there is no such node, or it is gone.
        """
        if node == self.name:
            return self.spawn(name, kind, *args, **kwargs)
        factory = partial(actor_class(kind), *args, **kwargs)
        return Ref(await spawning.start(self, node, name, factory, f"{self.name}/{SYSTEM}"), self)

    def spawn_for(self, message: SpawnMsg) -> SpawnedMsg:
        """Start an actor at the request of another node, as a child of `message.parent`."""
        try:
            factory = spawning.factory_of(message.kind, message.args, message.kwargs)
            cell = self.start_cell(message.name, factory, parent=message.parent)
        except UsageError as error:
            return SpawnedMsg(refusal=str(error))
        if cell.recorder is not None:
            cell.recorder.given(message.args, message.kwargs)
        self.watch(cell.address, message.parent)
        return SpawnedMsg(address=cell.address)

    async def stop_remote(self, parent: str, address: str) -> list[ActorFailed]:
        """Stop a child of `parent` on another node; return the failures on the way."""
        peer = node_of(address)
        if self.peers.find(peer) is None:
            return []  # its node is lost, and it ends by itself
        try:
            async with asyncio.timeout(STOP_REMOTE_S):
                failures = await self.asks.ask(parent, f"{peer}/{SYSTEM}", StopActorMsg(address=address), (parent,))
        except (OrchestraError, TimeoutError) as error:
            # The child watches its parent, and ends by itself.
            level = self.log.info if self.stopping else self.log.warning
            level("a child on another node cannot be stopped", address=address, reason=str(error))
            return []
        return [ActorFailed(address, text) for text in failures]

    def ref(self, address: str) -> Ref[Any]:
        """Return a ref to any actor of the run, for use outside of actors."""
        return Ref(address, self)

    def cell(self, address: str) -> Cell:
        """Return the running actor at `address` of this node.

        Raises:
            Unreachable: there is none.
        """
        cell = self.cells.get(address)
        if cell is None:
            known = ", ".join(sorted(self.cells)) or "none"
            raise Unreachable(f"there is no actor at {address}; the actors of {self.name} are {known}")
        return cell

    def ended(self, address: str, reason: str, watchers: set[str], counts: Counter[tuple[str, type[Message]]]) -> None:
        """Remove an actor that has ended, keep the counts of its messages by sender and type, notify its watchers."""
        self.cells.pop(address, None)
        self.accounts.add(address, counts)
        for watcher in sorted(watchers):
            self.notify_terminated(watcher, address, reason)

    @property
    def idle(self) -> bool:
        """True if all actors wait for messages, all mailboxes are empty, and no background task runs."""
        return not self._background_tasks and all(cell.idle for cell in self.cells.values())

    async def offload(self, aborting: Callable[[], bool], function: Callable[..., T], *args: Any) -> T:
        """Run `function` in a thread of this node; on a deterministic node at once, on the loop."""
        if self.deterministic:
            result = function(*args)
            await asyncio.sleep(0)  # other actors run meanwhile, as they would beside a thread
            return result
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=64, thread_name_prefix=f"{self.name}-offload")
        return await in_thread(self._executor, aborting, function, args)

    def statistics(self) -> NodeStatistics:
        """Return the statistics of the node, its actors and its links."""
        return self.accounts.statistics()

    # Sending on behalf of the code around the node, which has no actor: the node is the `Sender` of its refs

    def post(self, recipient: str, message: Message) -> Awaitable[None] | None:
        """Deliver `message` here or send it to another node; return an awaitable if there is no room yet."""
        cell = self.cells.get(recipient)
        if cell is None:
            return self.post_remote(self._outside, recipient, message)
        return cell.deliver(self._outside, message)

    def post_nowait(self, recipient: str, message: Message) -> None:
        """Deliver or send `message` at once, or raise `MailboxFull`, or `ActorStopped` if the recipient is stopping."""
        if threading.get_ident() != self.thread:
            raise wrong_thread(recipient)
        cell = self.cells.get(recipient)
        if cell is None:
            self.post_remote_nowait(self._outside, recipient, message)
        else:
            cell.deliver_nowait(self._outside, message)

    def post_threadsafe(self, recipient: str, message: Message) -> Future[None]:
        """Deliver or send `message` from any thread; return a future of its delivery."""
        return post_threadsafe(self, self.loop, recipient, message)

    def ask(self, recipient: str, request: Request[Any]) -> Coroutine[Any, Any, Any]:
        """Send `request` and return its answer."""
        return self.asks.ask(self._outside, recipient, request, ())

    # Sending on behalf of actors

    def post_remote(
        self, sender: str, recipient: str, message: Message, number: int = 0, clock: int = 0
    ) -> Awaitable[None] | None:
        """Send `message` to another node; return an awaitable if the sender has to wait for room.

        `number` and `clock` are a recorded sender's count of its messages, and its Lamport clock.
        """
        link = self._routes.get(recipient) or self.peers.route_to(recipient)
        if link is not None:
            return link.post(sender, recipient, message, 0, (), number, clock)
        return self.peers.post(sender, recipient, message, number, clock)

    def watch(self, watcher: str, target: str) -> None:
        """Send `watcher`, an actor of this node, a `TerminatedMsg` when `target` terminates."""
        if node_of(target) == self.name:
            cell = self.cells.get(target)
            if cell is None:
                self.notify_terminated(watcher, target, "it had stopped before")
            else:
                cell.put_system(watcher, WatchMsg(watcher=Ref(watcher)))
            return
        task = self.loop.create_task(self.watches.begin(watcher, target))
        self._background_tasks.add(task)
        task.add_done_callback(self._task_done)

    def dead_letter(self, recipient: str, sender: str, message: Message, reason: str) -> None:
        """Count a message that no actor will handle, and log the first few of its kind."""
        kind = type(message).__name__
        if self.accounts.dead_letters.count(recipient, kind):
            cell = self.cells.get(recipient)
            expected = self.stopping or (cell is not None and cell.stopping)
            (self.log.info if expected else self.log.warning)(
                "dead letter", recipient=recipient, type=kind, sender=sender, reason=reason
            )

    def notify_terminated(self, watcher: str, address: str, reason: str, *, lost: bool = False) -> None:
        """Send `watcher`, on any node, a `TerminatedMsg` for the actor at `address`; `lost` with its node."""
        message = TerminatedMsg(address=address, reason=reason, graceful=reason == STOPPED, lost=lost)
        cell = self.cells.get(watcher)
        if cell is not None:
            cell.on_terminated(message)
        elif node_of(watcher) != self.name and (link := self.peers.find(node_of(watcher))) is not None:
            link.post(address, watcher, message)

    def peer_lost(self, link: Link, error: Exception | None) -> None:
        """Fail what depends on a peer that is gone."""
        peer = link.peer
        if not self.stopping:
            expected = link.said_goodbye or error is None or is_observer(peer)
            (self.log.info if expected else self.log.warning)("peer gone", peer=peer, reason=str(error))
        reason = f"node {peer} is gone: {error or 'closed by this side'}"
        self.asks.peer_lost(peer, Unreachable(reason))
        self.watches.peer_lost(peer, reason)
        if peer in (self.root, self.peers.upstream):
            self.request_stop(f"{'the root' if peer == self.root else peer} is gone: {error}")

    # Inside

    async def _open(self) -> None:
        self.spawn(SYSTEM, SystemActor, self)
        self.spawn(DIRECTORY, DirectoryActor, self.peers.join_point)
        await self.peers.open()

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._background_tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.escalate(error if isinstance(error, Exception) else RuntimeError(repr(error)))
