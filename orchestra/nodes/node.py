"""A node: one process with one loop and one address, that hosts cells, routes envelopes and dials peers."""

import asyncio
import functools
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import psutil

from orchestra import log
from orchestra.actors.actor import Actor, actor_class
from orchestra.actors.addresses import check_name, is_guest, node_of
from orchestra.actors.asks import PendingAsks
from orchestra.actors.cell import Cell
from orchestra.actors.host import ActorSettings, Spawner, StateSource
from orchestra.actors.message import Message, Request
from orchestra.actors.offload import in_thread
from orchestra.actors.ref import Ref
from orchestra.actors.restarts import STOPPED
from orchestra.actors.statistics import OTHERS, Flow, MessageCounts, NodeStatistics, ProcessStatistics, others_like
from orchestra.actors.supervisor import Children
from orchestra.actors.system_messages import (
    SYSTEM,
    ChildFailedMsg,
    DeadlockProbeMsg,
    SpawnedMsg,
    SpawnMsg,
    StopActorMsg,
    StopMsg,
    TerminatedMsg,
    WatchMsg,
)
from orchestra.clock import Clock, RealClock
from orchestra.errors import ActorFailed, OrchestraError, Unreachable, UsageError
from orchestra.nodes import spawning
from orchestra.nodes.delivery import RemoteDelivery
from orchestra.nodes.directory import Directory
from orchestra.nodes.node_actors import DirectoryActor, SystemActor
from orchestra.nodes.peers import DIRECTORY, Peers
from orchestra.nodes.rejections import DeadLetters
from orchestra.nodes.watches import Watches
from orchestra.trace.recording.cell_recorder import CellRecorder
from orchestra.trace.recording.recorder import Recorder
from orchestra.wire import arena
from orchestra.wire.frames import Limits
from orchestra.wire.handshake import LONGEST_NODE
from orchestra.wire.link import Link
from orchestra.wire.settings import LinkSettings

P = ParamSpec("P")
M = TypeVar("M", bound=Message)
T = TypeVar("T")

PAST_COUNTS = 10_000
"""Flows to actors that are gone that a node tells apart."""


class Node:
    """A process of a run: `async with Node("here").running() as node:`.

    Args:
        name: its part of every address, `name/actor`.
        listen: where other nodes reach it: `tcp://HOST:PORT`, `tls://HOST:PORT`, `unix:///PATH` or
            `memory://NAME`; None for a node
            that is alone.
        join: where the run's root listens; None for the root itself.
        secret: what every node of the run knows; proved to each other before anything else is said.
        seed: the run's; every actor's random numbers come from it and the actor's address.
        run_directory: where the run keeps its files.
        resumes: what the run saved, if its actors are to go on from it.
        inline: run what actors offload at once, on the loop. Slower, but the order of all deliveries then depends on
            nothing but the messages: a single-process run repeats bit for bit. Such a node sets its peers no
            deadlines, since long work in this very process holds them up.
        entropy: makes bytes that nobody guesses, so many: the secret, nonces, the names of sessions, the jitter of
            pauses. A simulation hands in its own.
        executor: runs what actors offload; by default up to 64 threads. It is shut down when the node stops.
        recorder: records what the actors are told and do; closed when the node has stopped.
        shared_memory: bytes of the arena by which large arrays go to each peer on this host, a multiple of 4096; 0 for
            none.
        tls_dir: the folder of the certificates for `tls://`; by default the one that `ORCHESTRA_TLS_DIR` names.
    """

    def __init__(
        self,
        name: str,
        *,
        listen: str | None = None,
        join: str | None = None,
        secret: bytes | None = None,
        seed: int = 0,
        run_directory: Path | None = None,
        resume_from: Path | None = None,
        clock: Clock | None = None,
        deterministic: bool = False,
        limits: Limits | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
        executor: Executor | None = None,
        recorder: Recorder | None = None,
        shared_memory: int = arena.CAPACITY,
        tls_dir: Path | None = None,
    ) -> None:
        self.name = check_name(name, "a node")
        if len(name) > LONGEST_NODE:
            raise UsageError(f"the name of a node has at most {LONGEST_NODE} characters; this one has {len(name)}")
        self.recorder = recorder
        self.secret = secret if secret is not None else entropy(32)
        self.seed = seed
        self.run_directory = run_directory
        self.resume_from = resume_from
        self.clock: Clock = clock or RealClock()
        settings = LinkSettings(
            name=name,
            secret=self.secret,
            incarnation=entropy(8),
            entropy=entropy,
            clock=self.clock,
            limits=limits or Limits(),
            deterministic=deterministic,
            tls_dir=tls_dir,
            shared_memory=arena.checked(shared_memory),
        )
        self.stopping = False
        self.directory = Directory()
        self.main_actor = ""
        """The actor whose end is the end of the run, if it is here; whoever runs this node tells why it ended."""
        self.processes: Callable[[], tuple[ProcessStatistics, ...]] = tuple
        """Tells of the processes that this node launched."""
        self.loop: asyncio.AbstractEventLoop
        self.stop_requested: asyncio.Future[str]
        """Done, with the reason, once somebody asked this node to stop or its root was lost."""
        self.log = log.get(actor=f"{name}/{SYSTEM}")
        self.deterministic = deterministic
        self.cells: dict[str, Cell] = {}
        """The actors that run here, by address."""
        self.watches = Watches(self)
        self.delivery = RemoteDelivery(self)
        self.peers = Peers(settings, self, self.delivery, listen, join)
        self._routes = self.peers.routes
        self.asks = PendingAsks(name, self.cells, self.peers, self.clock, probing=not deterministic)
        self.ask = self.asks.ask
        self.answer = self.asks.answer
        self.refuse = self.asks.fail
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._body: asyncio.Task[Any] | None = None
        self._failures: list[Exception] = []
        self._executor = executor
        self._dead_letters = DeadLetters()
        self._past_message_counts: MessageCounts[tuple[str, str, str]] = MessageCounts(PAST_COUNTS)
        self._outside = NodeSender(self)

    # Its life

    @property
    def listening(self) -> str:
        """Where others dial this node; empty if nowhere, or not yet."""
        return self.peers.listening

    @property
    def root(self) -> str:
        """The name of the run's root, once it is known."""
        return self.peers.root

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Node"]:
        """Open the node, and stop it when the block ends.

        Raises:
            UsageError: its address is malformed or taken.
            Unreachable, HandshakeError: the root does not answer, or does not know the secret.
            ExceptionGroup: an actor failed for good; holds an `ActorFailed` with the actor's last deliveries.
        """
        self.loop = asyncio.get_running_loop()
        self.stop_requested = self.loop.create_future()
        with log.at_least_warnings(self.name):
            try:
                await self._open()
            except BaseException:
                await self.stop()
                raise
            self._body = asyncio.current_task()
            self.loop.call_soon(self.delivery.begin)  # once the block has spawned what it begins with
            try:
                yield self
            except asyncio.CancelledError:
                # Ours, as `asyncio.timeout` does it, if an actor failed; else somebody else's, and not to be touched.
                if not self._failures or self._body is None or self._body.uncancel() > 0:
                    raise
            finally:
                self._body = None
                await self.stop()
            if self._failures:
                raise ExceptionGroup(f"node {self.name} failed", self._failures)

    async def stop(self) -> None:
        """Stop all actors, the youngest first, then the links. A deadline of 10 s turns it into an abort."""
        self.stopping = True
        for cell in reversed(list(self.cells.values())):
            self._failures += await cell.stop()
        background_tasks = list(self._background_tasks)
        for task in background_tasks:
            task.cancel()
        await asyncio.gather(*background_tasks, return_exceptions=True)
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

    def follow(self, probe: DeadlockProbeMsg) -> None:
        """Handle a probe for a deadlock of asks."""
        self.asks.probes.follow(probe)

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
        """Ask whoever runs this node to stop it."""
        if not self.stop_requested.done():
            self.stop_requested.set_result(reason)

    # Its actors

    def spawn(self, name: str, kind: Callable[P, Actor[M]], *args: P.args, **kwargs: P.kwargs) -> Ref[M]:
        """Start the actor `kind(*args, **kwargs)` as `<node>/<name>` and return its ref."""
        cell = self.start_cell(name, actor_class(kind), partial(kind, *args, **kwargs))
        return Ref(cell.address, self._outside)

    def start_cell(
        self,
        name: str,
        kind: type[Actor[Any]],
        factory: Callable[[], Actor[Any]],
        siblings: Children | None = None,
        parent: str = "",
    ) -> Cell:
        """Start an actor under `name`.

        Args:
            name: the part of its address after the node.
            kind: its class.
            factory: makes it, once for every incarnation.
            siblings: the children of its parent on this node.
            parent: the address of its parent on another node.

        Raises:
            UsageError: the name is taken, or no name.
        """
        address = f"{self.name}/{check_name(name, 'an actor')}"
        if address in self.cells:
            raise UsageError(f"there is an actor at {address} already")
        settings = ActorSettings(address, kind, factory, parent, self.seed, self.run_directory, self.resume_from)
        cell = self.cells[address] = Cell(self, settings, siblings)
        cell.start()
        return cell

    def start_child(
        self, name: str, kind: type[Actor[Any]], factory: Callable[[], Actor[Any]], siblings: Children
    ) -> Cell:
        """Start an actor of this node as one of `siblings`."""
        return self.start_cell(name, kind, factory, siblings)

    def recorder_for(self, settings: ActorSettings, state: StateSource) -> CellRecorder | None:
        """Return a recorder for a new actor, or None if it is not recorded."""
        recorder = self.recorder
        if recorder is None or not settings.kind.recorded or not recorder.records(settings.address):
            return None
        return CellRecorder(recorder, settings, state)

    async def spawn_on(
        self, node: str, name: str, kind: Callable[P, Actor[M]], *args: P.args, **kwargs: P.kwargs
    ) -> Ref[M]:
        """Start an actor on another node, as `Actor.spawn_on` does; it ends with this node."""
        if node == self.name:
            return self.spawn(name, kind, *args, **kwargs)
        message = spawning.request(name, actor_class(kind), args, kwargs, f"{self.name}/{SYSTEM}")
        spawned = await self.ref(f"{node}/{SYSTEM}").ask(message)
        return Ref(spawning.accepted(node, message, spawned), self._outside)

    async def spawn_remote(
        self,
        parent: Spawner,
        node: str,
        name: str,
        kind: type[Actor[Any]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Ref[Any]:
        """Start a child of `parent` on another node and watch it; a cancelled spawn stops it again."""
        try:
            return await spawning.spawn(parent, node, name, kind, args, kwargs)
        except asyncio.CancelledError:
            if self.peers.find(node) is not None:  # it may have been started
                self.post_remote(parent.address, spawning.child_address(parent.address, node, name), StopMsg())
            raise

    async def stop_remote(self, parent: str, address: str) -> list[ActorFailed]:
        """Stop a child of `parent` on another node; return the failures on the way."""
        node = node_of(address)
        if self.peers.find(node) is None:
            return []  # its node is lost, and it ends by itself
        try:
            async with asyncio.timeout(spawning.STOP_REMOTE_S):
                failures = await self.ask(parent, f"{node}/{SYSTEM}", StopActorMsg(address=address), (parent,))
        except (OrchestraError, TimeoutError) as error:
            # The child watches its parent, and ends by itself.
            level = self.log.info if self.stopping else self.log.warning
            level("a child on another node cannot be stopped", address=address, reason=str(error))
            return []
        return [ActorFailed(address, text) for text in failures]

    def spawn_for(self, message: SpawnMsg) -> SpawnedMsg:
        """Start an actor that another node asks for, as a child of `message.parent`."""
        try:
            factory = spawning.factory_of(message)
            cell = self.start_cell(message.name, actor_class(factory.func), factory, parent=message.parent)
        except UsageError as error:
            return SpawnedMsg(refusal=str(error))
        if cell.recorder is not None:
            cell.recorder.given(message.args, message.kwargs)
        self.watch(cell.address, message.parent)
        return SpawnedMsg(address=cell.address)

    def ref(self, address: str) -> Ref[Any]:
        """Return a ref to any actor of the run, to use from outside of actors."""
        return Ref(address, self._outside)

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
        for (sender, kind), count in counts.items():
            others = (others_like(sender), kind.__name__, OTHERS)
            self._past_message_counts.add((sender, kind.__name__, address), count, others)
        for watcher in sorted(watchers):
            self.notify_terminated(watcher, address, reason)

    @property
    def idle(self) -> bool:
        """Whether all its actors wait for messages, there is none, and nothing is on its way out."""
        return not self._background_tasks and all(cell.idle for cell in self.cells.values())

    async def offload(self, aborting: Callable[[], bool], function: Callable[..., T], *args: Any) -> T:
        """Run `function` in a thread of this node; on a deterministic node at once, on the loop."""
        if self.deterministic:
            result = function(*args)
            await asyncio.sleep(0)  # as with a thread, the others get their turn meanwhile
            return result
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=64, thread_name_prefix=f"{self.name}-offload")
        return await in_thread(self._executor, aborting, function, args)

    def statistics(self) -> NodeStatistics:
        """Return how this node is doing."""
        message_counts = self._past_message_counts.counted()
        for cell in self.cells.values():
            for (sender, kind), count in cell.delivered.message_counts().items():
                message_counts[sender, kind.__name__, cell.address] += count
        told = ((*flow, count) for flow, count in sorted(message_counts.items()) if not is_guest(flow[0]))
        return NodeStatistics(
            node=self.name,
            cells=tuple(cell.statistics() for cell in self.cells.values()),
            message_counts=tuple(Flow(sender=s, type=t, recipient=r, count=n) for s, t, r, n in told),
            dead_letters=self._dead_letters.total,
            peers=self.peers.names,
            links=self.peers.statistics(),
            pid=os.getpid(),
            at_s=time.monotonic(),
            cpu_s=time.process_time(),
            rss=_process(os.getpid()).memory_info().rss,
            lag_s=self.peers.lag_s,
            tasks=len(asyncio.all_tasks(self.loop)),
            processes=self.processes(),
        )

    # Sending

    def post(self, sender: str, recipient: str, message: Message) -> Awaitable[None] | None:
        """Deliver `message` here or to another node; return what to await if there is no room yet."""
        cell = self.cells.get(recipient)
        return self.post_remote(sender, recipient, message) if cell is None else cell.deliver(sender, message)

    def post_remote(
        self, sender: str, recipient: str, message: Message, number: int = 0, clock: int = 0
    ) -> Awaitable[None] | None:
        """Send `message` to another node; return what to await if there is no room yet.

        `number` and `clock` are a recorded sender's count of what it sent, and its Lamport clock.
        """
        link = self._routes.get(recipient) or self.peers.route_to(recipient)
        if link is not None:
            return link.post(sender, recipient, message, 0, (), number, clock)
        return self.peers.post(sender, recipient, message, number, clock)

    def post_nowait(self, sender: str, recipient: str, message: Message) -> None:
        """Deliver `message` at once, or raise `MailboxFull`, or `ActorStopped` if the recipient is stopping."""
        cell = self.cells.get(recipient)
        if cell is not None:
            cell.deliver_nowait(sender, message)
        else:
            self.post_remote_nowait(sender, recipient, message)

    def post_remote_nowait(
        self, sender: str, recipient: str, message: Message, number: int = 0, clock: int = 0
    ) -> None:
        """Send `message` to another node at once, or raise `MailboxFull`, or `Unreachable` without a connection."""
        link = self.peers.route_to(recipient)
        if link is None:
            raise Unreachable(f"{self.name} has no connection to {node_of(recipient)} yet; `tell` makes one")
        link.sender.post_nowait(sender, recipient, message, number, clock)

    def watch(self, watcher: str, target: str) -> None:
        """Have `watcher`, an actor of this node, told when `target` terminates."""
        if node_of(target) == self.name:
            cell = self.cells.get(target)
            if cell is None:
                self.notify_terminated(watcher, target, "it had stopped before")
            else:
                cell.put_system(watcher, WatchMsg(watcher=Ref(watcher)))
            return
        self._in_background(self.watches.begin(watcher, target))

    def dead_letter(self, recipient: str, sender: str, message: Message, reason: str) -> None:
        """Count a message that no actor will handle, and log the first few of its kind."""
        kind = type(message).__name__
        if self._dead_letters.count(recipient, kind):
            cell = self.cells.get(recipient)
            expected = self.stopping or (cell is not None and cell.stopping)
            (self.log.info if expected else self.log.warning)(
                "dead letter", recipient=recipient, type=kind, sender=sender, reason=reason
            )

    def notify_terminated(self, watcher: str, address: str, reason: str, *, lost: bool = False) -> None:
        """Tell `watcher`, wherever it is, that the actor at `address` is gone; `lost` with its node."""
        message = TerminatedMsg(address=address, reason=reason, graceful=reason == STOPPED, lost=lost)
        cell = self.cells.get(watcher)
        if cell is not None:
            cell.on_terminated(message)
        elif node_of(watcher) != self.name and (link := self.peers.find(node_of(watcher))) is not None:
            link.post(address, watcher, message)

    # Inside

    async def _open(self) -> None:
        self.start_cell(SYSTEM, SystemActor, partial(SystemActor, self))
        self.start_cell(DIRECTORY, DirectoryActor, partial(DirectoryActor, self.directory))
        await self.peers.open()

    def peer_lost(self, link: Link, error: Exception | None) -> None:
        """Fail what depended on a peer, once it is gone."""
        peer = link.peer
        if not self.stopping:
            expected = link.said_goodbye or error is None or is_guest(peer)
            (self.log.info if expected else self.log.warning)("peer gone", peer=peer, reason=str(error))
        reason = f"node {peer} is gone: {error or 'closed by this side'}"
        self.asks.peer_lost(peer, Unreachable(reason))
        self.watches.peer_lost(peer, reason)
        if peer == self.root:
            self.request_stop(f"the root is gone: {error}")

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task: asyncio.Task[None] = self.loop.create_task(work)
        self._background_tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._background_tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.escalate(error if isinstance(error, Exception) else RuntimeError(repr(error)))


@functools.cache
def _process(pid: int) -> psutil.Process:
    """This process. Finding it out takes longer than all that is then asked of it."""
    return psutil.Process(pid)


class NodeSender:
    """Sends on behalf of the code around a node, which has no actor's address."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._address = f"{node.name}/outside"

    def post(self, recipient: str, message: Message) -> Awaitable[None] | None:
        return self._node.post(self._address, recipient, message)

    def post_nowait(self, recipient: str, message: Message) -> None:
        self._node.post_nowait(self._address, recipient, message)

    def ask(self, recipient: str, request: Request[Any]) -> Coroutine[Any, Any, Any]:
        return self._node.ask(self._address, recipient, request, ())
