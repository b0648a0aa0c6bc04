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

from components.replay_server import protocol
from components.replay_server.bounded_queue import Full, OverflowPolicy
from components.replay_server.loop_thread import LoopThread, ThreadOwner
from components.replay_server.protocol import CLIENT, SERVER
from components.replay_server.publications import Publications
from components.replay_server.reconnect import Reconnector, listen_beside
from components.replay_server.request_actor import RequestActor, answers
from orchestra import Actor, Escalate, Node, Ref, Request, Supervision

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
    """Topics to which its clients, and so the proxy, have subscribed."""
    passed_on: int
    """Limited requests that were passed on; see `max_waiting`."""
    refused: int
    """Limited requests refused because too many were under way."""
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
        """Addresses of the `ForwardToClient` actors, by the addresses of their clients' actors."""
        self.topics: set[str] = set()
        """Topics to which the proxy has subscribed."""

    async def ask(self, server: Ref[Any], msg: Request[T]) -> T:
        """Send a request to the server, within the limit.

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
        upstream: address of the server, or of another proxy.
        secret: secret shared with the server and the clients, at least 16 bytes.
        unencrypted: allow plain TCP beyond this host.
        listen: address for clients.
        timeout: seconds for the first connection.
        patience: seconds for each later connection; after that, clients find no server here either.
        publish_mark: publications that may wait for one subscriber.
        when_slow: policy for one more: the oldest is dropped (`drop_oldest`), no client here gets it (`refuse`),
            or the server keeps it (`block`) in a queue with a mark of its own. All are counted.
        max_waiting: samples, updates, publications and log lines of clients that may be under way to the server; one
            more raises `Full`, and is counted. Inserts are limited by the clients: each has at most two messages of up
            to 1 MiB under way.

    Raises:
        Disconnected: no server was found, or its secret differs.
        ValueError: an argument is out of its range.
        UsageError: an address is malformed or taken.
    """

    def __init__(
        self,
        upstream: str,
        *,
        secret: bytes,
        unencrypted: bool = False,
        listen: str = "tcp://127.0.0.1:0",
        timeout: float = 10.0,
        patience: float = 60.0,
        publish_mark: int = 4,
        when_slow: OverflowPolicy = "drop_oldest",
        max_waiting: int = 256,
    ) -> None:
        self._publications = Publications(publish_mark, when_slow)
        self._traffic = Traffic(max_waiting)
        self._secret, self._listen, self._unencrypted = secret, listen, unencrypted
        self._reconnector = Reconnector(upstream, timeout, patience)
        self._connected = False
        self._thread = LoopThread("ReplayProxy", partial(self._reconnector.run, self._connect))
        self.address: str = self._thread.start()
        """Where clients connect."""

    def statistics(self) -> ProxyStatistics:
        """Return the proxy's counts; after `close`, those at the end."""
        return ProxyStatistics(
            connected=self._connected,
            connections=self._reconnector.connections,
            clients=len(self._traffic.clients),
            topics=tuple(sorted(self._traffic.topics)),
            passed_on=self._traffic.passed_on,
            refused=self._traffic.refused,
            published=self._publications.published,
            dropped_publications=self._publications.dropped,
            refused_publications=self._publications.refused,
        )

    def __repr__(self) -> str:
        return f"<ReplayProxy at {self.address} for {self._reconnector.address}>"

    async def _connect(self, thread: LoopThread, within: float) -> None:
        upstream = self._reconnector.address
        node = partial(Node, secret=self._secret, unencrypted=self._unencrypted)
        up = node(f"proxy-{secrets.token_hex(4)}", listen=listen_beside(upstream), join=upstream)
        down = node(f"server-{secrets.token_hex(4)}", listen=self._listen)
        async with asyncio.timeout(within) as limit, up.running():
            limit.reschedule(None)
            async with down.running():
                publications, traffic = self._publications, self._traffic
                up.spawn(CLIENT, PublicationListener, publications, traffic.topics)
                down.spawn(SERVER, ForwardToServer, up, down, publications, traffic)
                if not self._reconnector.connections:
                    thread.ready(down.listening)
                self._listen = down.listening
                self._connected = True
                try:
                    await self._reconnector.stay(up, thread.closing)
                finally:
                    self._connected = False
                    await publications.close()
                    traffic.clients.clear()
                    traffic.topics.clear()


forwards = partial(answers, context=Context)
"""As `answers`, in an empty context: the request is sent by the target's node, not by the node that received it."""


def forwarded(request: Any, *, limited: bool = False) -> Callable[[Any, Any], "asyncio.Future[Any]"]:
    """Return a handler that forwards requests to the actor's `target`, and returns its answers.

    Args:
        request: type of the requests.
        limited: True if they count against `max_waiting`.
    """

    async def forward(self: Any, msg: Request[Any]) -> Any:
        return await (self.traffic.ask(self.target, msg) if limited else self.target.ask(msg))

    return forwards(request)(forward)


class PublicationListener(Actor[protocol.PublicationMsg]):
    """Receives the server's publications."""

    supervision: ClassVar[Supervision] = Escalate()

    def __init__(self, publications: Publications, topics: set[str]) -> None:
        self._publications, self._topics = publications, topics

    @forwards(protocol.PublicationMsg)
    async def publish(self, msg: protocol.PublicationMsg) -> None:
        if msg.topic in self._topics:  # otherwise the last subscriber here has left
            with suppress(Full):  # counted here; other subscribers may have received it
                await self._publications.publish(msg.topic, msg.data)


class ForwardToClient(Actor[protocol.ClientMsg]):
    """Represents one client towards the server.

    Args:
        target: the client's actor.
    """

    supervision: ClassVar[Supervision] = Escalate()

    def __init__(self, target: Ref[protocol.ClientMsg]) -> None:
        self.target = target

    draw, publish, prove_alive = map(forwarded, (protocol.DrawMsg, protocol.PublicationMsg, protocol.AliveMsg))


class ForwardToServer(RequestActor[protocol.ServerMsg]):
    """Represents the server towards clients.

    Args:
        up: node that has joined the server's node.
        down: node that clients have joined.
        publications: queues of the clients' subscriptions.
        traffic: state of the proxy.
    """

    def __init__(self, up: Node, down: Node, publications: Publications, traffic: Traffic) -> None:
        super().__init__(down, publications)
        self._up, self.traffic = up, traffic
        self.target: Ref[protocol.ServerMsg] = up.ref(f"{up.root}/{SERVER}")
        self._listener: Ref[protocol.PublicationMsg] = up.ref(f"{up.name}/{CLIENT}")
        self._subscribing = asyncio.Lock()
        """Held while subscribing at the server, so that requests arrive there in order."""
        self._numbers = itertools.count()

    leave, insert, admit, update_holding = map(
        forwarded, (protocol.LeaveMsg, protocol.InsertMsg, protocol.AdmitMsg, protocol.HoldingMsg)
    )
    sample, update, publish, write_line = map(
        partial(forwarded, limited=True),
        (protocol.SampleMsg, protocol.UpdateMsg, protocol.PublishMsg, protocol.LogLineMsg),
    )

    @forwards(protocol.EnterMsg)
    async def enter(self, msg: protocol.EnterMsg) -> protocol.WelcomeMsg | protocol.RefusedMsg:
        client = self.reach(msg.ref)
        front = self._up.spawn(f"client-{next(self._numbers)}", ForwardToClient, client)
        self.traffic.clients[client.address] = front.address
        answer = await self.target.ask(protocol.EnterMsg(client=msg.client, ref=front))
        if isinstance(answer, protocol.RefusedMsg):
            await self._stop_front(client.address)
        return answer

    async def _stop_front(self, client: str) -> None:
        cell = self._up.cells.get(self.traffic.clients.pop(client, ""))
        if cell is not None:
            await cell.stop()

    async def remove(self, client: str) -> None:
        await self._stop_front(client)
        asyncio.get_running_loop().create_task(self._unsubscribe(client), context=Context())

    @forwards(protocol.SubscribeMsg)
    async def subscribe(self, msg: protocol.SubscribeMsg) -> None:
        client, topics = self.reach(msg.ref), self.traffic.topics
        async with self._subscribing:
            if msg.topic not in topics:
                topics.add(msg.topic)
                answer = await self.target.ask(protocol.SubscribeMsg(topic=msg.topic, ref=self._listener))
                if isinstance(answer, protocol.RefusedMsg):
                    topics.discard(msg.topic)
                    answer.throw()
            self.add_subscription(client, msg.topic)
        await self._unsubscribe_unused()

    @forwards(protocol.UnsubscribeMsg)
    async def unsubscribe(self, msg: protocol.UnsubscribeMsg) -> None:
        await self._unsubscribe(msg.ref.address, msg.topic)

    async def _unsubscribe(self, client: str, topic: str | None = None) -> None:
        """Remove subscriptions here, and at the server those for topics without subscribers here."""
        await self.publications.unsubscribe(client, topic)
        await self._unsubscribe_unused()

    async def _unsubscribe_unused(self) -> None:
        async with self._subscribing:
            for topic in sorted(self.traffic.topics - self.publications.topics):
                self.traffic.topics.discard(topic)
                self.publications.forget(topic)
                await self.target.ask(protocol.UnsubscribeMsg(topic=topic, ref=self._listener))
