"""Replay proxy: stands for a server that its clients cannot reach themselves."""

import asyncio
import itertools
import secrets
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

from components.replay_server.bounded_queue import Full, OverflowPolicy
from components.replay_server.loop_thread import LoopThread, ThreadOwner, first_of
from components.replay_server.protocol import (
    CLIENT,
    SERVER,
    AdmitMsg,
    AliveMsg,
    ClientMsg,
    DrawMsg,
    EnterMsg,
    HoldingMsg,
    InsertMsg,
    LeaveMsg,
    LogLineMsg,
    PublicationMsg,
    PublishMsg,
    RefusedMsg,
    SampleMsg,
    ServerMsg,
    SubscribeMsg,
    UnsubscribeMsg,
    UpdateMsg,
    WelcomeMsg,
    accepted,
    answers,
)
from components.replay_server.publications import Data, Publications
from components.replay_server.reconnect import Reconnector, listen_beside, root_lost
from orchestra import Actor, Escalate, Node, Ref, Request, Supervision, TerminatedMsg, on

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProxyStatistics:
    """Counts of a replay proxy."""

    connected: bool
    connections: int
    """Number of connections to the server so far."""
    clients: int
    """Clients that reach the server through the proxy."""
    topics: tuple[str, ...]
    """Topics that its clients, and so the proxy, have subscribed to."""
    passed_on: int
    """Limited requests that were passed on; see `max_waiting`."""
    refused: int
    """Limited requests that were refused, because too many were under way."""
    published: int
    """Publications received, each counted once."""
    dropped_publications: int
    """Publications dropped for newer ones, counted for each subscriber."""
    refused_publications: int
    """Publications refused because a subscriber had no room."""


class Traffic:
    """State of a proxy that survives its connections.

    Args:
        max_waiting: limited requests that may be under way at a time.

    Raises:
        ValueError: `max_waiting` is below 1.
    """

    def __init__(self, max_waiting: int) -> None:
        if max_waiting < 1:
            raise ValueError(f"max_waiting: expected at least 1, got {max_waiting}")
        self.max_waiting = max_waiting
        self.passed_on = self.refused = self.under_way = 0
        self.clients: dict[str, str] = {}
        """Addresses of the `ForwardToClient` actors, by that of their clients' actors."""
        self.topics: set[str] = set()
        """Topics that the proxy has subscribed to."""

    async def ask_limited(self, server: Ref[Any], msg: Request[T]) -> T:
        """Ask the server.

        Raises:
            Full: too many requests are under way.
        """
        if self.under_way >= self.max_waiting:
            self.refused += 1
            raise Full(f"proxy: expected fewer than {self.max_waiting} requests to be under way, which is max_waiting")
        self.under_way += 1
        try:
            answer = await server.ask(msg)
        finally:
            self.under_way -= 1
        self.passed_on += 1
        return answer


class ReplayProxy(ThreadOwner):
    """Stands for a replay server: clients connect to the proxy as to the server.

    Requests, samples and answers pass through unchanged. A publication arrives once for each topic, and is queued here
    for each subscribed client; the proxy unsubscribes when the last of them has unsubscribed or left. If the server is
    lost, the clients' connections end too; the proxy tries to reconnect for `patience` seconds, and listens again at
    the same address. A proxy may stand behind another.

    Args:
        upstream: where the server, or another proxy, listens.
        secret: shared with the server and the clients.
        listen: address for clients.
        timeout: seconds for the first connection.
        patience: seconds for each later one; after that, clients find no server here either.
        publish_mark: publications that may wait for one subscriber.
        when_slow: what happens to one more: the oldest is dropped (`drop_oldest`), no client here gets it (`refuse`),
            or the server keeps it (`block`) in a queue with a mark of its own. All are counted.
        max_waiting: samples, updates, publications and log lines of clients that may be under way to the server; one
            more raises `Full`, and is counted. Inserts are limited by the clients: each has at most two messages of up
            to 1 MiB under way.

    Raises:
        Disconnected: no server was found, or it does not know the secret.
        ValueError: an argument is out of its range.
        UsageError: an address is malformed or taken.
    """

    def __init__(
        self,
        upstream: str,
        *,
        secret: bytes,
        listen: str = "tcp://127.0.0.1:0",
        timeout: float = 10.0,
        patience: float = 60.0,
        publish_mark: int = 4,
        when_slow: OverflowPolicy = "drop_oldest",
        max_waiting: int = 256,
    ) -> None:
        self._publications = Publications(publish_mark, when_slow)
        self._traffic = Traffic(max_waiting)
        self._secret, self._listen, self._queue_options = secret, listen, (publish_mark, when_slow)
        self._reconnector = Reconnector(upstream, timeout, patience)
        self._connected = False
        self._before = (0, 0, 0)  # publications of former connections: all, dropped and refused
        self._thread = LoopThread("ReplayProxy", self._live)
        self.address: str = self._thread.start()
        """Where clients connect."""

    def statistics(self) -> ProxyStatistics:
        """Return the proxy's counts; after `close` the last ones."""
        published, dropped, refused = self._published()
        return ProxyStatistics(
            connected=self._connected,
            connections=self._reconnector.connections,
            clients=len(self._traffic.clients),
            topics=tuple(sorted(self._traffic.topics)),
            passed_on=self._traffic.passed_on,
            refused=self._traffic.refused,
            published=published,
            dropped_publications=dropped,
            refused_publications=refused,
        )

    def _published(self) -> tuple[int, int, int]:
        now, before = self._publications, self._before
        return now.published + before[0], now.dropped + before[1], now.refused + before[2]

    def __repr__(self) -> str:
        return f"<ReplayProxy at {self.address} for {self._reconnector.address}>"

    async def _live(self, thread: LoopThread) -> None:
        await self._reconnector.run(thread, partial(self._connect, thread))

    async def _connect(self, thread: LoopThread, within: float) -> None:
        upstream = self._reconnector.address
        up = Node(f"proxy-{secrets.token_hex(4)}", listen=listen_beside(upstream), join=upstream, secret=self._secret)
        down = Node(f"server-{secrets.token_hex(4)}", listen=self._listen, secret=self._secret)
        async with asyncio.timeout(within) as limit, up.running():
            limit.reschedule(None)
            async with down.running():
                publications, traffic = self._publications, self._traffic
                up.spawn(CLIENT, PublicationListener, publications, traffic.topics)
                down.spawn(SERVER, ForwardToServer, up, down, publications, traffic)
                if not self._reconnector.connections:
                    thread.ready(down.listening)
                self._listen = down.listening
                self._reconnector.connections += 1
                self._connected = True
                try:
                    await first_of(thread.closing.wait(), root_lost(up))
                finally:
                    self._connected = False
                    await publications.close()
                    self._before, self._publications = self._published(), Publications(*self._queue_options)
                    traffic.clients.clear()
                    traffic.topics.clear()
            if not thread.closing.is_set():
                self._reconnector.why = up.stop_requested.result()


forwards = partial(answers, context=Context)
"""As `answers`, in an empty context: the request leaves by the target's node, not by the node that it arrived at."""


def forwarded(request: Any) -> Callable[[Any, Any], "asyncio.Future[Any]"]:
    """Return a handler that asks the actor's `target`, and answers with its answer."""

    async def forward(self: Any, msg: Request[Any]) -> Any:
        return await self.target.ask(msg)

    return forwards(request)(forward)


def forwarded_limited(request: Any) -> Callable[[Any, Any], "asyncio.Future[Any]"]:
    """Return a handler as `forwarded` does, of a request that counts against `max_waiting`."""

    async def forward(self: Any, msg: Request[Any]) -> Any:
        return await self.traffic.ask_limited(self.target, msg)

    return forwards(request)(forward)


class PublicationListener(Actor[PublicationMsg]):
    """Receives the server's publications."""

    supervision: ClassVar[Supervision] = Escalate()

    def __init__(self, publications: Publications, topics: set[str]) -> None:
        self._publications, self._topics = publications, topics

    @forwards(PublicationMsg)
    async def publish(self, msg: PublicationMsg) -> None:
        if msg.topic in self._topics:  # else the last subscriber here has left
            with suppress(Full):  # counted here; the publisher may have reached other subscribers
                await self._publications.publish(msg.topic, msg.data)


class ForwardToClient(Actor[ClientMsg]):
    """Stands for one client before the server.

    Args:
        target: the client's actor.
    """

    supervision: ClassVar[Supervision] = Escalate()

    def __init__(self, target: Ref[ClientMsg]) -> None:
        self.target = target

    draw, publish, prove_alive = map(forwarded, (DrawMsg, PublicationMsg, AliveMsg))


class ForwardToServer(Actor[ServerMsg]):
    """Stands for the server before clients.

    Args:
        up: node that has joined the server's.
        down: node that clients have joined.
        publications: queues of the clients' subscriptions.
        traffic: state of the proxy.
    """

    supervision: ClassVar[Supervision] = Escalate()

    def __init__(self, up: Node, down: Node, publications: Publications, traffic: Traffic) -> None:
        self._up, self._down, self._publications, self.traffic = up, down, publications, traffic
        self.target: Ref[ServerMsg] = up.ref(f"{up.root}/{SERVER}")
        self._listener: Ref[PublicationMsg] = up.ref(f"{up.name}/{CLIENT}")
        self._subscribing = asyncio.Lock()
        """Held while subscribing at the server, so that the last request is the last wish."""
        self._numbers = itertools.count()
        self._watched: set[str] = set()

    leave, insert, admit, hold = map(forwarded, (LeaveMsg, InsertMsg, AdmitMsg, HoldingMsg))
    sample, update, publish, write_line = map(forwarded_limited, (SampleMsg, UpdateMsg, PublishMsg, LogLineMsg))

    @forwards(EnterMsg)
    async def enter(self, msg: EnterMsg) -> WelcomeMsg | RefusedMsg:
        self._watch(msg.ref)
        client = self._down.ref(msg.ref.address)
        front = self._up.spawn(f"client-{next(self._numbers)}", ForwardToClient, client)
        self.traffic.clients[client.address] = front.address
        answer = await self.target.ask(EnterMsg(client=msg.client, ref=front))
        if isinstance(answer, RefusedMsg):
            await self._remove(client.address)
        return answer

    async def _remove(self, client: str) -> None:
        front = self.traffic.clients.pop(client, None)
        cell = None if front is None else self._up.cells.get(front)
        if cell is not None:
            await self._up.stop_cell(cell)

    def _watch(self, client: Ref[Any]) -> None:
        if client.address not in self._watched:
            self._watched.add(client.address)
            self.watch(client)

    @on(TerminatedMsg)
    async def client_terminated(self, msg: TerminatedMsg) -> None:
        self._watched.discard(msg.address)
        await self._remove(msg.address)
        asyncio.get_running_loop().create_task(self._unsubscribe(msg.address), context=Context())

    @forwards(SubscribeMsg)
    async def subscribe(self, msg: SubscribeMsg) -> None:
        self._watch(msg.ref)
        client = self._down.ref(msg.ref.address)

        async def deliver(topic: str, data: Data) -> None:
            await client.ask(PublicationMsg(topic=topic, data=data))

        async with self._subscribing:
            if msg.topic not in self.traffic.topics:
                self.traffic.topics.add(msg.topic)
                try:
                    accepted(await self.target.ask(SubscribeMsg(topic=msg.topic, ref=self._listener)))
                except ValueError:
                    self.traffic.topics.discard(msg.topic)
                    raise
            if client.address in self._watched:  # else it has terminated meanwhile
                self._publications.subscribe(client.address, msg.topic, deliver)
        await self._unsubscribe_unused()

    @forwards(UnsubscribeMsg)
    async def unsubscribe(self, msg: UnsubscribeMsg) -> None:
        await self._unsubscribe(msg.ref.address, msg.topic)

    async def _unsubscribe(self, client: str, topic: str | None = None) -> None:
        await self._publications.unsubscribe(client, topic)
        await self._unsubscribe_unused()

    async def _unsubscribe_unused(self) -> None:
        """Unsubscribe at the server from topics without subscribers here."""
        async with self._subscribing:
            for topic in sorted(self.traffic.topics - self._publications.topics):
                self.traffic.topics.discard(topic)
                self._publications.forget(topic)
                await self.target.ask(UnsubscribeMsg(topic=topic, ref=self._listener))
