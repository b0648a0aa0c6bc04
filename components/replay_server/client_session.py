"""What a replay client does in its thread: looks for the server, stays with it, and looks again when it is lost."""

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
from components.replay_server.episode_layout import layout_from_plain
from components.replay_server.layouts import AnyLayout, Memory
from components.replay_server.loop_thread import Background, first_of
from components.replay_server.outbox import Bundle, Outbox
from components.replay_server.protocol import (
    AGENT,
    DESK,
    AdmitMsg,
    AliveMsg,
    ClientMsg,
    DrawMsg,
    EnterMsg,
    HoldingMsg,
    InsertMsg,
    LeaveMsg,
    PublicationMsg,
    RefusedMsg,
    RouteMsg,
    ShareMsg,
    SubscribeMsg,
)
from components.replay_server.reconnect import Disconnected, Search, door_beside, root_lost
from components.replay_server.snapshots import Snapshots
from components.replay_server.subscription import Subscription
from orchestra import Actor, Escalate, Node, OrchestraError, Ref, Request, Supervision, Unreachable, freeze, on

T = TypeVar("T")

UNDER_WAY = 2
"""Messages with chunks that may be on their way to the server at a time: one travels while it works on another. Chunks
that are added meanwhile go together in the next."""
TOGETHER = 1024
"""Chunks of a message at most."""
GOODBYE_S = 2.0
"""How long a client that closes waits until the server has heard."""


class Visitor:
    """A client's side of the conversation with a server. All but its counts belongs to one event loop.

    Args:
        address: where the server listens, or a proxy.
        name: of the client.
        secret: what the server knows.
        timeout: seconds to find the server within, at first.
        patience: seconds to look for it, once it is lost.
        listen: where the server may look whether this process lives; None for the default.
        rng: draws from the memory, if that is kept here.
    """

    def __init__(
        self,
        address: str,
        name: str,
        *,
        secret: bytes,
        timeout: float,
        patience: float,
        listen: str | None,
        rng: np.random.Generator,
    ) -> None:
        self.search = Search(address, timeout, patience)
        """For the server."""
        self.name = name
        self._secret, self._rng = secret, rng
        self._listen = door_beside(address) if listen is None else listen
        self.desk: Ref[Any] | None = None
        """The server, while there is a connection."""
        self.me: Ref[ClientMsg]
        self.wakes: asyncio.Event
        """Set when there is something to insert."""
        self.memory: Memory | None = None
        self.outbox: Outbox | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.pushed = 0
        """Items that were drawn and pushed."""
        self._shares = 0
        self._inserted_bytes = 0
        self._inserted_before = 0  # entries that went into the memory and that an older file, loaded, does not count
        self._writer = secrets.randbits(62)
        self._snapshots = Snapshots()
        self._layout: AnyLayout

    async def live(self, background: Background) -> None:
        """Look for the server and stay with it, until the client is closed.

        Raises:
            Disconnected: no server was found for too long, or it does not let the client in.
            NameTaken: there is a client of this name.
            InvalidExperience: the server has another layout than the one before.
        """
        self.begin()
        await self.search.run(background, lambda within: self._visit(background, within))

    def begin(self) -> None:
        """Make ready, on the loop that all of it belongs to."""
        self.wakes, self._news, self._known = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._may_go: asyncio.Future[Outbox] = asyncio.get_running_loop().create_future()

    async def _visit(self, background: Background, within: float) -> None:
        node = Node(
            f"{self.name}-{secrets.token_hex(4)}",
            listen=self._listen,
            join=self.search.address,
            secret=self._secret,
        )
        async with asyncio.timeout(within) as limit, node.running():
            await self.stay(node, background.closing, background.ready, lambda: limit.reschedule(None))

    async def stay(
        self,
        node: Node,
        closing: asyncio.Event,
        ready: Callable[[AnyLayout], None],
        welcomed: Callable[[], None] = lambda: None,
    ) -> None:
        """Enter, and stay until the connection is lost or the client is closed.

        Args:
            node: which has joined the server's.
            closing: set when the client is closed.
            ready: called with the layout when there is one for the first time.
            welcomed: called when the server has let it in.
        """
        desk = node.ref(f"{node.root}/{DESK}")
        self.me = node.spawn(AGENT, Agent, self)
        welcome = await desk.ask(EnterMsg(client=self.name, agent=self.me))
        if isinstance(welcome, RefusedMsg):
            welcome.throw()
        welcomed()
        layout = layout_from_plain(welcome.layout)
        if not self.search.connections:
            self._layout = layout
            ready(layout)
        elif layout != self._layout:
            raise InvalidExperience(f"layout: expected the one from before, {self._layout}, got {layout}")
        self.search.connections += 1
        for topic in self.subscriptions:
            await desk.ask(SubscribeMsg(topic=topic, agent=self.me))
        self.desk = desk
        try:
            await first_of(closing.wait(), root_lost(node), self._push(desk, paced=welcome.paced), self._tell(desk))
        finally:
            self.desk = None
        if closing.is_set():
            with suppress(OrchestraError, TimeoutError):
                async with asyncio.timeout(GOODBYE_S):
                    await desk.ask(LeaveMsg(client=self.name))
        else:
            self.search.why = node.stop_requested.result()

    async def go(self, memory: Memory | None, outbox: Outbox) -> None:
        """Begin to insert what is put into `outbox`, into `memory` if it is kept here."""
        self.memory, self.outbox = memory, outbox
        self._may_go.set_result(outbox)

    async def _push(self, desk: Ref[Any], *, paced: bool) -> None:
        """Insert what was added, in order."""
        outbox = await self._may_go
        # What is on its way can no longer make room, nor should it wait for the limiter where nobody else can see it.
        here = None if paced else self.memory
        alone = paced or (outbox.drops and here is None)
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
                    inserted = asyncio.get_running_loop().create_task(self._insert(desk, bundle))
                    inserted.add_done_callback(lambda _: self.wakes.set())
                    under_way.append((bundle, inserted))
                await self.wakes.wait()
        finally:
            for bundle, inserting in reversed(under_way):
                inserting.cancel()
                for chunk in reversed(bundle.chunks):
                    outbox.put_back(chunk)  # for when there is a server again
            await asyncio.gather(*(inserting for _, inserting in under_way), return_exceptions=True)

    async def _insert(self, desk: Ref[Any], bundle: Bundle) -> None:
        """Have the server insert chunks, or let them be inserted here."""
        if self.memory is None:
            message = InsertMsg(
                client=self.name,
                rows={name: freeze(array) for name, array in bundle.rows.items()},
                priorities=bundle.priorities,
                writer=self._writer,
                number=bundle.number,
                sizes=bundle.sizes,
            )
            answer = await desk.ask(message)
        else:
            answer = await desk.ask(AdmitMsg(client=self.name, n=bundle.n))
        if isinstance(answer, RefusedMsg):
            answer.throw()
        if self.memory is not None:
            self._insert_here(self.memory, bundle)

    def _insert_here(self, memory: Memory, bundle: Bundle) -> None:
        self._layout.insert(memory, bundle.rows, bundle.priorities if len(bundle.priorities) else None)
        self._inserted_bytes += sum(array.nbytes for array in bundle.rows.values())
        self._news.set()

    async def _tell(self, desk: Ref[Any]) -> None:
        """Tell the server how much is held, whenever that has changed; not again before it has heard."""
        await self._may_go
        if self.memory is None:
            await asyncio.get_running_loop().create_future()  # the server knows
            return
        self._news.set()  # a server that is new knows nothing yet
        while True:
            if not self._news.is_set():
                self._known.set()
            await self._news.wait()
            self._news.clear()
            self._known.clear()
            share = self._draw(self.memory, 0)
            answer = await desk.ask(HoldingMsg(client=self.name, share=share, inserted_bytes=self._inserted_bytes))
            if isinstance(answer, RefusedMsg):
                answer.throw()

    async def heard(self, within: float | None) -> None:
        """Wait until the server knows how much is held here."""
        if self.memory is None:
            return
        try:
            async with asyncio.timeout(within):
                while self._news.is_set() or not self._known.is_set():
                    await self._known.wait()
                    if self._news.is_set():
                        self._known.clear()
        except TimeoutError:
            raise TimeoutError("the server did not hear in time how much was inserted") from None

    async def ask(self, message: Request[T], within: float | None = None) -> T:
        if self.desk is None:
            raise Disconnected(f"there is no server at {self.search.address} now: {self.search.why}")
        try:
            async with asyncio.timeout(within):
                return await self.desk.ask(message)
        except TimeoutError:
            raise TimeoutError(f"the server had no answer within {within} s") from None
        except Unreachable as error:
            raise Disconnected(f"the server at {self.search.address} is gone: {error}") from error

    async def subscribe(self, subscription: Subscription) -> None:
        if subscription.topic in self.subscriptions:
            raise ValueError(f"topic: expected one without a subscription, got {subscription.topic!r}")
        self.subscriptions[subscription.topic] = subscription
        try:
            answer = await self.ask(SubscribeMsg(topic=subscription.topic, agent=self.me))
            if isinstance(answer, RefusedMsg):
                answer.throw()
        except BaseException:
            del self.subscriptions[subscription.topic]
            raise

    async def save(self, path: str | Path) -> None:
        memory = self._kept()
        await self._snapshots.write(lambda: Snapshot(memory.state_arrays(), [memory]), path)

    async def load(self, path: str | Path) -> None:
        memory = self._kept()
        told = memory.inserted + self._inserted_before
        try:
            memory.load(path)
        finally:
            self._inserted_before = max(told - memory.inserted, 0)
        self._news.set()

    def _kept(self) -> Memory:
        if self.memory is None:
            raise InvalidExperience("kept_by: expected clients, to save the memory here; the server keeps it")
        return self.memory

    @property
    def held(self) -> int:
        """Entries in the memory that is kept here."""
        return 0 if self.memory is None else len(self.memory)

    def ended(self) -> None:
        """Have all who wait look why."""
        for subscription in list(self.subscriptions.values()):
            subscription.wake()
        if self.outbox is not None:
            self.outbox.wake()

    # What the server asks -------------------------------------------------------------------------------------------

    def draw(self, n: int, refused: str = "") -> ShareMsg:
        """Return items drawn from the memory that is kept here."""
        share = self._draw(self._kept(), n, refused)
        self.pushed += len(share.indices)
        return share

    def _draw(self, memory: Memory, n: int, refused: str = "") -> ShareMsg:
        self._shares += 1
        share = self._layout.share(memory, n, self._rng)
        share = replace(share, inserted=share.inserted + self._inserted_before)
        return ShareMsg.of(share, self._shares, refused)

    def route(self, msg: RouteMsg) -> ShareMsg:
        """Take over priorities of items in the memory that is kept here, and return items that are drawn then."""
        refused = ""
        try:
            self._kept().update(msg.indices, msg.generations, msg.priorities)
        except InvalidExperience as error:
            refused = str(error)
        return self.draw(msg.n, refused)

    async def hear(self, msg: PublicationMsg) -> None:
        """Take what was published."""
        subscription = self.subscriptions.get(msg.topic)
        if subscription is not None:
            await subscription.put(msg.data)


class Agent(Actor[ClientMsg]):
    """Speaks for a client."""

    supervision: ClassVar[Supervision] = Escalate()

    def __init__(self, visitor: Visitor) -> None:
        self._visitor = visitor

    @on(DrawMsg)
    def draw(self, msg: DrawMsg) -> ShareMsg:
        return self._visitor.draw(msg.n)

    @on(RouteMsg)
    def route(self, msg: RouteMsg) -> ShareMsg:
        return self._visitor.route(msg)

    @on(PublicationMsg)
    def hear(self, msg: PublicationMsg) -> "asyncio.Future[None]":
        return asyncio.get_running_loop().create_task(self._visitor.hear(msg))

    @on(AliveMsg)
    def alive(self, msg: AliveMsg) -> None:
        """Answer: yes."""
