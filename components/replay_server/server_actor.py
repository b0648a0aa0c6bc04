"""The actor by which a replay server hears its clients."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from components.replay_buffers.closed import Closed
from components.replay_buffers.federated import ClientSample, Route, SampledUnion
from components.replay_buffers.invalid import InvalidExperience, NameTaken
from components.replay_server.bounded_queue import Full
from components.replay_server.protocol import (
    AdmitMsg,
    AliveMsg,
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
from components.replay_server.publications import Data
from orchestra import Actor, Escalate, Node, OrchestraError, Ref, Supervision, TerminatedMsg, UsageError, on
from orchestra.actors.envelope import check_name

if TYPE_CHECKING:
    from components.replay_server.host import Host

ALIVE_S = 2.0
"""How long a client may take to say that it is alive, when another of its name wants to join."""


class RemoteHolder:
    """A client that keeps its memory itself."""

    def __init__(self, agent: Ref[Any], took: Callable[[int], None]) -> None:
        self._agent, self._took = agent, took
        self._newest = (0, 0.0, 0, 0)  # number, total, held and inserted of the newest share

    async def share(self, n: int, route: Route | None = None) -> tuple[ClientSample, str]:
        if route is None:
            msg = await self._agent.ask(DrawMsg(n=n))
        else:
            indices, generations, priorities = route
            msg = await self._agent.ask(
                RouteMsg(n=n, indices=indices, generations=generations, priorities=priorities.astype(np.float64))
            )
        share = msg.share
        self._took(share.n_bytes)
        if not self.is_news(msg):
            # The items are as good, but how much is held has been told anew.
            _, total, held, inserted = self._newest
            total = max(total, share.weights.max(initial=0.0))
            share = replace(share, total=total, held=max(held, int(len(share.indices) > 0)), inserted=inserted)
        return share, msg.refused

    def is_news(self, msg: ShareMsg) -> bool:
        """Whether nothing newer has come from this client before: answers overtake what waits in a mailbox."""
        if msg.number < self._newest[0]:
            return False
        self._newest = (msg.number, msg.total, msg.held, msg.inserted)
        return True


class Desk(Actor[DeskMsg]):
    """Speaks for a server. What waits is parked, so that nobody waits in its mailbox for somebody else."""

    supervision: ClassVar[Supervision] = Escalate()

    def __init__(self, host: "Host", node: Node) -> None:
        self._host, self._node = host, node
        self._exchange = host.exchange
        self._agents: dict[str, str] = {}
        """Of clients, their agents' addresses."""
        self._watched: set[str] = set()

    def _outside(self, agent: Ref[Any]) -> Ref[Any]:
        """Return a ref that may be used by any task."""
        if agent.address not in self._watched:
            self._watched.add(agent.address)
            self.watch(agent)
        return self._node.ref(agent.address)

    @on(EnterMsg)
    def enter(self, msg: EnterMsg) -> "asyncio.Future[WelcomeMsg | RefusedMsg]":
        return answered(self._enter, msg, self._outside(msg.agent))

    async def _enter(self, msg: EnterMsg, agent: Ref[Any]) -> WelcomeMsg:
        layout = self._host.layout
        _check_client(msg.client)
        if msg.client in self._exchange:
            await self._dismiss_if_dead(msg.client)
        if layout.kept_by == "server":
            self._exchange.enter(msg.client)
        else:
            self._exchange.join(msg.client, RemoteHolder(agent, self._took))
        self._agents[msg.client] = msg.agent.address
        return WelcomeMsg(layout=layout.to_plain(), paced=self._exchange.limiter is not None)

    def _took(self, n_bytes: int) -> None:
        self._host.received_bytes += n_bytes

    async def _dismiss_if_dead(self, client: str) -> None:
        """Raise `NameTaken` if a client is alive; let it go otherwise, before its death is heard of."""
        try:
            async with asyncio.timeout(ALIVE_S):
                await self._node.ref(self._agents[client]).ask(AliveMsg())
        except (TimeoutError, OrchestraError):
            self._forget(client)
        else:
            raise NameTaken(f"client: expected a name that is free, got {client!r}, which has joined and is alive")

    def _forget(self, client: str) -> None:
        if client in self._exchange:
            self._exchange.leave(client)  # what is kept here of it stays
        self._agents.pop(client, None)

    @on(TerminatedMsg)
    async def gone(self, msg: TerminatedMsg) -> None:
        self._watched.discard(msg.address)
        for client in [name for name, agent in self._agents.items() if agent == msg.address]:
            self._forget(client)
        await self._host.publications.unsubscribe(msg.address)

    @on(LeaveMsg)
    def leave(self, msg: LeaveMsg) -> "asyncio.Future[RefusedMsg | None]":
        async def leave() -> None:
            self._exchange.leave(msg.client)
            self._agents.pop(msg.client, None)

        return answered(leave)

    @on(AdmitMsg)
    def admit(self, msg: AdmitMsg) -> "asyncio.Future[RefusedMsg | None]":
        return answered(self._exchange.admit, msg.client, msg.n)

    @on(HoldingMsg)
    def hold(self, msg: HoldingMsg) -> "asyncio.Future[RefusedMsg | None]":
        async def tell() -> None:
            holder = self._exchange.holder(msg.client)
            if isinstance(holder, RemoteHolder) and holder.is_news(msg.share):
                self._exchange.tell(msg.client, msg.share.share, msg.inserted_bytes)

        return answered(tell)

    @on(InsertMsg)
    def insert(self, msg: InsertMsg) -> "asyncio.Future[RefusedMsg | None]":
        return answered(self._exchange.insert, msg.client, msg.rows, msg.priorities, msg.writer, msg.number, msg.sizes)

    @on(SampleMsg)
    def sample(self, msg: SampleMsg) -> "asyncio.Future[SampledMsg | RefusedMsg]":
        async def sample() -> SampledMsg:
            return SampledMsg.of(await self._exchange.sample(msg.batch_size))

        return answered(sample)

    @on(UpdateMsg)
    def update(self, msg: UpdateMsg) -> "asyncio.Future[RefusedMsg | None]":
        async def update() -> None:
            whose = msg.whose
            if not len(whose) == len(msg.indices) or (
                len(whose) and not 0 <= whose.min() <= whose.max() < len(msg.clients)
            ):
                raise InvalidExperience(f"whose: expected indices of {len(msg.clients)} clients, got {whose}")
            weights = np.ones(len(whose), np.float32)
            sampled = SampledUnion({}, weights, msg.clients, whose, msg.indices, msg.generations)
            self._exchange.update(sampled, msg.priorities)

        return answered(update)

    @on(SubscribeMsg)
    def subscribe(self, msg: SubscribeMsg) -> "asyncio.Future[RefusedMsg | None]":
        agent = self._outside(msg.agent)

        async def subscribe() -> None:
            async def deliver(topic: str, data: Data) -> None:
                await agent.ask(PublicationMsg(topic=topic, data=data))

            self._host.publications.subscribe(agent.address, msg.topic, deliver)

        return answered(subscribe)

    @on(UnsubscribeMsg)
    def unsubscribe(self, msg: UnsubscribeMsg) -> "asyncio.Future[RefusedMsg | None]":
        return answered(self._host.publications.unsubscribe, msg.agent.address, msg.topic)

    @on(PublishMsg)
    def publish(self, msg: PublishMsg) -> "asyncio.Future[RefusedMsg | None]":
        return answered(self._host.publish, msg.topic, msg.data)

    @on(LineMsg)
    def log_line(self, msg: LineMsg) -> "asyncio.Future[RefusedMsg | None]":
        async def write() -> None:
            self._host.write_line(_check_client(msg.client), msg.text)

        return answered(write)


def _check_client(name: str) -> str:
    try:
        return check_name(name, "a client")
    except UsageError as error:
        raise InvalidExperience(f"client: {error}") from None


def answered(work: Callable[..., Awaitable[Any]], *args: Any) -> "asyncio.Future[Any]":
    """Return the answer that `work(*args)` comes to, or that says why it was refused; it may be parked."""

    async def answer() -> Any:
        try:
            return await work(*args)
        except (ValueError, Full, Closed, TimeoutError) as error:  # an InvalidExperience is a ValueError
            return refusal(error)

    return asyncio.get_running_loop().create_task(answer())
