"""Client session: connects to the replay server, inserts and answers, and reconnects after a loss."""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from components.checkpoints.snapshot import Snapshot
from components.replay_buffers.invalid import InvalidExperience
from components.replay_server import protocol
from components.replay_server.layouts import AnyBuffer, AnyLayout, layout_from_plain
from components.replay_server.loop_thread import LoopThread, Signal
from components.replay_server.members import update_priorities
from components.replay_server.outbox import Bundle, Outbox
from components.replay_server.protocol import CLIENT, SERVER, accepted, frozen
from components.replay_server.publications import Subscription
from components.replay_server.reconnect import Disconnected, Reconnector, listen_beside
from components.replay_server.saved_buffers import SnapshotWriter
from orchestra import Actor, Escalate, Node, OrchestraError, Ref, Request, Supervision, Unreachable, on

T = TypeVar("T")

UNDER_WAY = 2
"""Messages with chunks on their way to the server at a time: one is sent while the server handles another. Chunks added
meanwhile are sent together in the next message."""
TOGETHER = 1024
"""Largest number of chunks in one message."""
GOODBYE_S = 2.0
"""Seconds that a closing client waits for the server's confirmation."""


class ClientSession:
    """A client's side of the protocol. Everything but its counts belongs to one event loop.

    Args:
        reconnector: connects to the server, or to a proxy.
        name: name of the client.
        secret: secret shared with the server.
        listen: address at which the server may probe this process; None for the default.
        rng: random numbers for draws from a buffer kept here.
        unencrypted: allow plain TCP beyond this host.
    """

    def __init__(
        self,
        reconnector: Reconnector,
        name: str,
        *,
        secret: bytes,
        listen: str | None,
        rng: np.random.Generator,
        unencrypted: bool = False,
    ) -> None:
        self.reconnector = reconnector
        self.name = name
        self._secret, self._rng, self._unencrypted = secret, rng, unencrypted
        self._listen = listen_beside(reconnector.address) if listen is None else listen
        self.server: Ref[Any] | None = None
        """The server's actor, while there is a connection."""
        self.me: Ref[protocol.ClientMsg]
        self.wakes = asyncio.Event()
        """Set when there are entries to insert."""
        self.buffer: AnyBuffer | None = None
        """The replay buffer, if it is kept here."""
        self._news, self._outbox_set = Signal(), asyncio.Event()
        self._outbox: Outbox
        self.subscriptions: dict[str, Subscription] = {}
        self.pushed = 0
        """Items drawn from the buffer and sent to the server."""
        self._samples = 0
        self._inserted_bytes = 0
        self._changes = self._reported = 0  # changes of the buffer, and those reported to the server
        self._inserted_before = 0  # entries inserted into the buffer that a loaded file does not count
        self._writer = secrets.randbits(62)
        self._snapshots = SnapshotWriter()
        self._layout: AnyLayout

    async def connect(self, thread: LoopThread, within: float) -> None:
        """Connect to the server, and stay until the connection is lost or the client closes.

        Raises:
            TimeoutError: the server did not welcome the client within `within` seconds.
            NameTaken: a client of this name has joined.
            InvalidExperience: the server has another layout than before.
        """
        name = f"{self.name}-{secrets.token_hex(4)}"
        address, unencrypted = self.reconnector.address, self._unencrypted
        node = Node(name, listen=self._listen, join=address, secret=self._secret, unencrypted=unencrypted)
        async with asyncio.timeout(within) as limit, node.running():
            await self.stay(node, thread.closing, thread.ready, lambda: limit.reschedule(None))

    async def stay(
        self,
        node: Node,
        closing: asyncio.Event,
        ready: Callable[[AnyLayout], None],
        welcomed: Callable[[], None] = lambda: None,
    ) -> None:
        """Join the server, and stay until the connection is lost or the client closes.

        Args:
            node: a node that has joined the server's node.
            closing: set when the client closes.
            ready: called with the layout of the first connection.
            welcomed: called when the server has accepted the client.
        """
        server = node.ref(f"{node.root}/{SERVER}")
        self.me = node.spawn(CLIENT, ClientActor, self)
        welcome = accepted(await server.ask(protocol.EnterMsg(client=self.name, ref=self.me)))
        welcomed()
        layout = layout_from_plain(welcome.layout)
        if not self.reconnector.connections:
            self._layout = layout
            ready(layout)
        elif layout != self._layout:
            raise InvalidExperience(f"layout: expected the one from before, {self._layout}, got {layout}")
        for topic in self.subscriptions:
            await server.ask(protocol.SubscribeMsg(topic=topic, ref=self.me))
        self.server = server
        work = self._insert_all(server, paced=welcome.paced), self._report(server)
        try:
            await self.reconnector.stay(node, closing, *work)
        finally:
            self.server = None
        if closing.is_set():
            with suppress(OrchestraError, TimeoutError):
                async with asyncio.timeout(GOODBYE_S):
                    await server.ask(protocol.LeaveMsg(client=self.name))

    async def start_inserting(self, buffer: AnyBuffer | None, outbox: Outbox) -> None:
        """Insert the entries of `outbox` from now on, into `buffer` if it is kept here."""
        self.buffer, self._outbox = buffer, outbox
        self._outbox_set.set()

    async def _insert_all(self, server: Ref[Any], *, paced: bool) -> None:
        """Insert added entries in their order, until cancelled."""
        await self._outbox_set.wait()
        outbox = self._outbox
        # A chunk on its way cannot be dropped, and must not wait for the limiter, hidden from other clients.
        here = None if paced else self.buffer
        alone = paced or (outbox.queue.policy == "drop_oldest" and here is None)
        most, together = (1, 1) if alone else (UNDER_WAY, TOGETHER)
        under_way: deque[tuple[Bundle, asyncio.Future[None]]] = deque()
        try:
            while True:
                self.wakes.clear()
                while under_way and under_way[0][1].done():
                    under_way[0][1].result()
                    outbox.finish(under_way.popleft()[0])
                while len(under_way) < most and (bundle := outbox.take_bundle(together)) is not None:
                    if here is not None:
                        self._insert_here(here, bundle)
                        outbox.finish(bundle)
                        continue
                    inserted = asyncio.get_running_loop().create_task(self._insert(server, bundle))
                    inserted.add_done_callback(lambda _: self.wakes.set())
                    under_way.append((bundle, inserted))
                await self.wakes.wait()
        finally:
            for bundle, inserting in reversed(under_way):
                inserting.cancel()
                for chunk in reversed(bundle.chunks):
                    outbox.put_back(chunk)  # to be sent again after the next connection
            await asyncio.gather(*(inserting for _, inserting in under_way), return_exceptions=True)

    async def _insert(self, server: Ref[Any], bundle: Bundle) -> None:
        """Let the server insert chunks, or insert them here once the server admits them."""
        if self.buffer is not None:
            accepted(await server.ask(protocol.AdmitMsg(client=self.name, n=bundle.n)))
            self._insert_here(self.buffer, bundle)
            return
        message = protocol.InsertMsg(
            client=self.name,
            rows=frozen(bundle.rows),
            priorities=bundle.priorities,
            writer=self._writer,
            number=bundle.number,
            sizes=bundle.sizes,
        )
        accepted(await server.ask(message))

    def _insert_here(self, buffer: AnyBuffer, bundle: Bundle) -> None:
        self._layout.insert(buffer, bundle.rows, bundle.priorities if len(bundle.priorities) else None)
        self._inserted_bytes += sum(array.nbytes for array in bundle.rows.values())
        self._changed()

    async def _report(self, server: Ref[Any]) -> None:
        """Report how much the buffer holds whenever it has changed, one report at a time."""
        await self._outbox_set.wait()
        while self.buffer is None:  # the server keeps the buffer
            await self._news.wait()
        self._changed()  # a new server has no report yet
        while True:
            while self._reported == self._changes:
                await self._news.wait()
            changes, sample = self._changes, self._draw(self.buffer, 0)
            report = protocol.HoldingMsg(client=self.name, sample=sample, inserted_bytes=self._inserted_bytes)
            accepted(await server.ask(report))
            self._reported = changes
            self._news.notify()

    def _changed(self) -> None:
        self._changes += 1
        self._news.notify()

    async def wait_reported(self, within: float | None) -> None:
        """Wait until the server has a report of everything that was inserted here.

        Raises:
            TimeoutError: it has none within `within` seconds.
        """
        if self.buffer is None:
            return
        changes = self._changes
        try:
            async with asyncio.timeout(within):
                while self._reported < changes:
                    await self._news.wait()
        except TimeoutError:
            raise TimeoutError(f"the server did not learn within {within} s how much was inserted") from None

    async def ask(self, message: Request[T | protocol.RefusedMsg], within: float | None = None) -> T:
        """Return the server's answer.

        Raises:
            Disconnected: there is no connection, or it is lost.
            TimeoutError: there was no answer within `within` seconds.
            Exception: the server refused the request.
        """
        if self.server is None:
            raise Disconnected(f"there is no server at {self.reconnector.address} now: {self.reconnector.why}")
        try:
            async with asyncio.timeout(within):
                answer = await self.server.ask(message)
        except TimeoutError:
            raise TimeoutError(f"the server had no answer within {within} s") from None
        except Unreachable as error:
            raise Disconnected(f"the server at {self.reconnector.address} is gone: {error}") from error
        return accepted(answer)

    async def subscribe(self, subscription: Subscription) -> None:
        """Receive publications on a topic.

        Raises:
            ValueError: the topic has a subscription.
            Exception: as for `ask`.
        """
        if subscription.topic in self.subscriptions:
            raise ValueError(f"topic: expected one without a subscription, got {subscription.topic!r}")
        self.subscriptions[subscription.topic] = subscription
        try:
            await self.ask(protocol.SubscribeMsg(topic=subscription.topic, ref=self.me))
        except BaseException:
            del self.subscriptions[subscription.topic]
            raise

    async def save(self, path: str | Path) -> None:
        """Write the buffer kept here to a file, while it is used; see `ReplayClient.save`."""
        buffer = self._kept_here()
        await self._snapshots.write(lambda: Snapshot(buffer.state_arrays(), [buffer]), path)

    async def load(self, path: str | Path) -> None:
        """Restore the buffer kept here from a file; see `ReplayClient.load`."""
        buffer = self._kept_here()
        reported = buffer.inserted + self._inserted_before
        try:
            buffer.load(path)
        finally:
            self._inserted_before = max(reported - buffer.inserted, 0)
        self._changed()

    def _kept_here(self) -> AnyBuffer:
        if self.buffer is None:
            raise InvalidExperience("kept_by: expected clients, to save the buffer here; the server keeps it")
        return self.buffer

    def ended(self) -> None:
        """Wake waiting callers, so that they find the client closed."""
        for subscription in list(self.subscriptions.values()):
            subscription.wake()
        if self._outbox_set.is_set():
            self._outbox.wake()

    # Requests of the server -----------------------------------------------------------------------------------------

    def draw(self, msg: protocol.DrawMsg) -> protocol.ClientSampleMsg:
        """Update priorities in the buffer kept here, if any are given, and draw items."""
        buffer, route = self._kept_here(), (msg.indices, msg.generations, msg.priorities)
        refused = update_priorities(buffer, route) if len(msg.indices) else ""
        sample = self._draw(buffer, msg.n, refused)
        self.pushed += len(sample.indices)
        return sample

    def _draw(self, buffer: AnyBuffer, n: int, refused: str = "") -> protocol.ClientSampleMsg:
        self._samples += 1
        sample = self._layout.draw(buffer, n, self._rng)
        sample = replace(sample, inserted=sample.inserted + self._inserted_before)
        return protocol.ClientSampleMsg.of(sample, self._samples, refused)

    async def receive(self, msg: protocol.PublicationMsg) -> None:
        """Put a publication into its subscription."""
        subscription = self.subscriptions.get(msg.topic)
        if subscription is not None:
            await subscription.put(msg.data)


class ClientActor(Actor[protocol.ClientMsg]):
    """Answers the server's requests to a client."""

    supervision: ClassVar[Supervision] = Escalate()

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    @on(protocol.DrawMsg)
    def draw(self, msg: protocol.DrawMsg) -> protocol.ClientSampleMsg:
        return self._session.draw(msg)

    @on(protocol.PublicationMsg)
    def receive(self, msg: protocol.PublicationMsg) -> "asyncio.Future[None]":
        return asyncio.get_running_loop().create_task(self._session.receive(msg))

    @on(protocol.AliveMsg)
    def prove_alive(self, msg: protocol.AliveMsg) -> None:
        """Answer the probe."""
