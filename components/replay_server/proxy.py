"""A replay memory for many machines: a proxy, which clients of one machine reach another's server through."""

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

from components.replay_server.bounded_queue import Full, Policy
from components.replay_server.loop_thread import Background, first_of
from components.replay_server.protocol import (
    AGENT,
    DESK,
    AdmitMsg,
    AliveMsg,
    ClientMsg,
    DeskMsg,
    DrawMsg,
    EnterMsg,
    HoldingMsg,
    InsertMsg,
    LeaveMsg,
    LineMsg,
    PublicationMsg,
    PublishMsg,
    RefusedMsg,
    RouteMsg,
    SampledMsg,
    SampleMsg,
    ShareMsg,
    SubscribeMsg,
    UnsubscribeMsg,
    UpdateMsg,
    WelcomeMsg,
    refusal,
)
from components.replay_server.publications import Data, Publications
from components.replay_server.reconnect import Search, door_beside, root_lost
from orchestra import Actor, Escalate, Node, Ref, Request, Supervision, TerminatedMsg, Unreachable, on

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProxyStatistics:
    """How a proxy is doing."""

    connected: bool
    connections: int
    """How often it has connected to its server."""
    clients: int
    """Clients that reach the server through it."""
    topics: tuple[str, ...]
    """What its clients have subscribed to, and so itself."""
    passed_on: int
    """Requests of clients that were passed on."""
    refused: int
    """Those that were refused, since too many were under way."""
    published: int
    """Publications that came, once each."""
    dropped_publications: int
    """Those that had to make room for newer ones, counted for each subscriber."""
    refused_publications: int
    """Those that were refused since a subscriber had no room."""


class Traffic:
    """What goes through a proxy, whatever it is connected to.

    Args:
        max_waiting: requests that may be under way at a time.
    """

    def __init__(self, max_waiting: int) -> None:
        if max_waiting < 1:
            raise ValueError(f"max_waiting: expected at least 1, got {max_waiting}")
        self.max_waiting = max_waiting
        self.passed_on = self.refused = self.under_way = 0
        self.agents: dict[str, str] = {}
        """Of clients' agents, by address, who stands for them before the server."""
        self.topics: set[str] = set()
        """What the server tells of."""

    async def pass_on(self, server: Ref[Any], msg: Request[T]) -> T | RefusedMsg:
        """Ask the server what a client does, unless too many do."""
        if self.under_way >= self.max_waiting:
            self.refused += 1
            return refusal(
                Full(f"proxy: expected fewer than {self.max_waiting} requests to be under way, which is max_waiting")
            )
        self.under_way += 1
        try:
            answer = await server.ask(msg)
        finally:
            self.under_way -= 1
        self.passed_on += 1
        return answer


class ReplayProxy:
    """Stands for a server where that cannot be reached, or not by everybody: clients take it for the server itself.

    Requests, pushes and answers pass through as they are. Publications come once for each topic, however many clients
    here have subscribed, and are queued for each of them here; no more, once the last of them has unsubscribed or gone.
    If the server goes, so do the clients' connections; the
    proxy looks for it for `patience` seconds and listens where it did. A proxy may stand behind a proxy.

    Args:
        upstream: where the server listens, or another proxy.
        secret: what both the server and the clients know.
        listen: where clients reach the proxy.
        timeout: seconds to find the server within, at first.
        patience: seconds to look for it, once it is lost; after that, clients find nobody here either.
        publish_mark: publications that may wait for one subscriber.
        when_slow: what happens to one more: it takes the place of the oldest (`drop_oldest`), or nobody here gets it
            (`refuse`), or the server is kept waiting (`block`), which has a mark of its own. All are counted.
        max_waiting: batches, priorities, publications and lines that clients may have under way to the server at a
            time; one more is refused as `Full`, and counted. Of entries each client has at most two messages under way,
            of 1 MiB each, and the others wait at its own mark.

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
        when_slow: Policy = "drop_oldest",
        max_waiting: int = 256,
    ) -> None:
        self._publications = Publications(publish_mark, when_slow)
        self._traffic = Traffic(max_waiting)
        self._secret, self._listen, self._marks = secret, listen, (publish_mark, when_slow)
        self._search = Search(upstream, timeout, patience)
        self._connected = False
        self._before = (0, 0, 0)  # publications of former connections, and of these those dropped and refused
        self._background = Background("ReplayProxy", self._live)
        self.address: str = self._background.start()
        """Where clients reach it."""

    def statistics(self) -> ProxyStatistics:
        """Return how it is doing; after `close`, how it was."""
        traffic, publications = self._traffic, self._publications
        return ProxyStatistics(
            connected=self._connected,
            connections=self._search.connections,
            clients=len(traffic.agents),
            topics=tuple(sorted(traffic.topics)),
            passed_on=traffic.passed_on,
            refused=traffic.refused,
            published=publications.published + self._before[0],
            dropped_publications=publications.dropped + self._before[1],
            refused_publications=publications.refused + self._before[2],
        )

    def close(self) -> None:
        """Say goodbye to both sides, and end the thread. Closing again does nothing."""
        self._background.close()

    def __enter__(self) -> Self:
        self._background.check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ReplayProxy at {self.address} for {self._search.address}>"

    # In its thread --------------------------------------------------------------------------------------------------

    async def _live(self, background: Background) -> None:
        await self._search.run(background, lambda within: self._visit(background, within))

    async def _visit(self, background: Background, within: float) -> None:
        upstream = self._search.address
        up = Node(f"proxy-{secrets.token_hex(4)}", listen=door_beside(upstream), join=upstream, secret=self._secret)
        down = Node(f"server-{secrets.token_hex(4)}", listen=self._listen, secret=self._secret)
        async with asyncio.timeout(within) as limit, up.running():
            limit.reschedule(None)
            async with down.running():
                publications, traffic = Publications(*self._marks), self._traffic
                self._publications = publications
                up.spawn(AGENT, Ear, publications, traffic.topics)
                down.spawn(DESK, FrontDesk, up, down, publications, traffic)
                if not self._search.connections:
                    background.ready(down.listening)
                self._listen = down.listening
                self._search.connections += 1
                self._connected = True
                try:
                    await first_of(background.closing.wait(), root_lost(up))
                finally:
                    self._connected = False
                    await publications.close()
                    now = (publications.published, publications.dropped, publications.refused)
                    published, dropped, refused = (a + b for a, b in zip(self._before, now, strict=True))
                    self._before, self._publications = (published, dropped, refused), Publications(*self._marks)
                    traffic.agents.clear()
                    traffic.topics.clear()
            if not background.closing.is_set():
                self._search.why = up.stop_requested.result()


def passed_on(work: Callable[..., Awaitable[T]], *args: Any) -> "asyncio.Future[T]":
    """Return the answer that `work(*args)` will come to; if nobody is there to answer, it is given up.

    It speaks as nobody, lest its message go by the node that it came by.
    """

    async def answer() -> T:
        try:
            return await work(*args)
        except Unreachable as error:
            raise asyncio.CancelledError(str(error)) from error

    return asyncio.get_running_loop().create_task(answer(), context=Context())


class Ear(Actor[PublicationMsg]):
    """Hears what the server publishes."""

    supervision: ClassVar[Supervision] = Escalate()

    def __init__(self, publications: Publications, topics: set[str]) -> None:
        self._publications, self._topics = publications, topics

    @on(PublicationMsg)
    def hear(self, msg: PublicationMsg) -> "asyncio.Future[None]":
        return passed_on(self._publish, msg)

    async def _publish(self, msg: PublicationMsg) -> None:
        if msg.topic in self._topics:  # else nobody here listens any more
            with suppress(Full):  # it is counted, and whoever published it may have done so for others
                await self._publications.publish(msg.topic, msg.data)


class FrontAgent(Actor[ClientMsg]):
    """Stands for one client before the server."""

    supervision: ClassVar[Supervision] = Escalate()

    def __init__(self, client: Ref[ClientMsg]) -> None:
        self._client = client

    @on(DrawMsg)
    def draw(self, msg: DrawMsg) -> "asyncio.Future[ShareMsg]":
        return passed_on(self._client.ask, msg)

    @on(RouteMsg)
    def route(self, msg: RouteMsg) -> "asyncio.Future[ShareMsg]":
        return passed_on(self._client.ask, msg)

    @on(PublicationMsg)
    def hear(self, msg: PublicationMsg) -> "asyncio.Future[None]":
        return passed_on(self._client.ask, msg)

    @on(AliveMsg)
    def alive(self, msg: AliveMsg) -> "asyncio.Future[None]":
        return passed_on(self._client.ask, msg)


class FrontDesk(Actor[DeskMsg]):
    """Stands for the server before clients."""

    supervision: ClassVar[Supervision] = Escalate()

    def __init__(self, up: Node, down: Node, publications: Publications, traffic: Traffic) -> None:
        self._up, self._down, self._publications, self._traffic = up, down, publications, traffic
        self._server: Ref[DeskMsg] = up.ref(f"{up.root}/{DESK}")
        self._agents, self._heard = traffic.agents, traffic.topics
        self._subscribing = asyncio.Lock()
        """Held while the server is told what is to be heard, so that the last word is the last wish."""
        self._numbers = itertools.count()
        self._watched: set[str] = set()

    @on(EnterMsg)
    def enter(self, msg: EnterMsg) -> "asyncio.Future[WelcomeMsg | RefusedMsg]":
        self._watch(msg.agent)
        return passed_on(self._enter, msg)

    async def _enter(self, msg: EnterMsg) -> WelcomeMsg | RefusedMsg:
        front = self._up.spawn(f"client-{next(self._numbers)}", FrontAgent, self._down.ref(msg.agent.address))
        self._agents[msg.agent.address] = front.address
        answer = await self._server.ask(EnterMsg(client=msg.client, agent=front))
        if isinstance(answer, RefusedMsg):
            await self._dismiss(msg.agent.address)
        return answer

    async def _dismiss(self, agent: str) -> None:
        front = self._agents.pop(agent, None)
        cell = None if front is None else self._up.cells.get(front)
        if cell is not None:
            await self._up.stop_cell(cell)

    def _watch(self, agent: Ref[Any]) -> None:
        if agent.address not in self._watched:
            self._watched.add(agent.address)
            self.watch(agent)

    @on(TerminatedMsg)
    async def gone(self, msg: TerminatedMsg) -> None:
        self._watched.discard(msg.address)
        await self._dismiss(msg.address)
        passed_on(self._unsubscribe, msg.address)

    @on(SubscribeMsg)
    def subscribe(self, msg: SubscribeMsg) -> "asyncio.Future[RefusedMsg | None]":
        self._watch(msg.agent)
        return passed_on(self._subscribe, msg)

    async def _subscribe(self, msg: SubscribeMsg) -> RefusedMsg | None:
        client = self._down.ref(msg.agent.address)

        async def deliver(topic: str, data: Data) -> None:
            await client.ask(PublicationMsg(topic=topic, data=data))

        async with self._subscribing:
            if msg.topic not in self._heard:
                self._heard.add(msg.topic)
                answer = await self._server.ask(SubscribeMsg(topic=msg.topic, agent=self._ear))
                if isinstance(answer, RefusedMsg):
                    self._heard.discard(msg.topic)
                    return answer
            if msg.agent.address in self._watched:  # else it has gone meanwhile
                self._publications.subscribe(msg.agent.address, msg.topic, deliver)
        await self._hush()
        return None

    @property
    def _ear(self) -> Ref[PublicationMsg]:
        return self._up.ref(f"{self._up.name}/{AGENT}")

    @on(UnsubscribeMsg)
    def unsubscribe(self, msg: UnsubscribeMsg) -> "asyncio.Future[None]":
        return passed_on(self._unsubscribe, msg.agent.address, msg.topic)

    async def _unsubscribe(self, agent: str, topic: str | None = None) -> None:
        await self._publications.unsubscribe(agent, topic)
        await self._hush()

    async def _hush(self) -> None:
        """Have the server tell no more of what nobody here listens to."""
        async with self._subscribing:
            for topic in sorted(self._heard - self._publications.topics):
                self._heard.discard(topic)
                self._publications.forget(topic)
                await self._server.ask(UnsubscribeMsg(topic=topic, agent=self._ear))

    def _pass_on(self, msg: Request[T]) -> "asyncio.Future[T]":
        return passed_on(self._server.ask, msg)

    def _pass_on_if_few(self, msg: Request[T]) -> "asyncio.Future[T | RefusedMsg]":
        return passed_on(self._traffic.pass_on, self._server, msg)

    @on(LeaveMsg)
    def leave(self, msg: LeaveMsg) -> "asyncio.Future[RefusedMsg | None]":
        return self._pass_on(msg)

    @on(InsertMsg)
    def insert(self, msg: InsertMsg) -> "asyncio.Future[RefusedMsg | None]":
        return self._pass_on(msg)

    @on(AdmitMsg)
    def admit(self, msg: AdmitMsg) -> "asyncio.Future[RefusedMsg | None]":
        return self._pass_on(msg)

    @on(HoldingMsg)
    def hold(self, msg: HoldingMsg) -> "asyncio.Future[RefusedMsg | None]":
        return self._pass_on(msg)

    @on(SampleMsg)
    def sample(self, msg: SampleMsg) -> "asyncio.Future[SampledMsg | RefusedMsg]":
        return self._pass_on_if_few(msg)

    @on(UpdateMsg)
    def update(self, msg: UpdateMsg) -> "asyncio.Future[RefusedMsg | None]":
        return self._pass_on_if_few(msg)

    @on(PublishMsg)
    def publish(self, msg: PublishMsg) -> "asyncio.Future[RefusedMsg | None]":
        return self._pass_on_if_few(msg)

    @on(LineMsg)
    def log_line(self, msg: LineMsg) -> "asyncio.Future[RefusedMsg | None]":
        return self._pass_on_if_few(msg)
