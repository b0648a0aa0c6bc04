"""Actor that answers the requests of a replay server's clients."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from components.replay_buffers.federated import ClientSample, Route, SampledUnion
from components.replay_buffers.invalid import InvalidExperience, NameTaken
from components.replay_server.coordinator import Coordinator
from components.replay_server.protocol import (
    AdmitMsg,
    AliveMsg,
    ClientSampleMsg,
    DrawMsg,
    EnterMsg,
    HoldingMsg,
    InsertMsg,
    LeaveMsg,
    LogLineMsg,
    PublicationMsg,
    PublishMsg,
    SampledMsg,
    SampleMsg,
    ServerMsg,
    SubscribeMsg,
    UnsubscribeMsg,
    UpdateMsg,
    WelcomeMsg,
    answers,
)
from components.replay_server.publications import Data, Publications
from orchestra import Actor, Escalate, Node, OrchestraError, Ref, Supervision, TerminatedMsg, UsageError, on
from orchestra.actors.envelope import check_name

ALIVE_S = 2.0
"""How long a client may take to prove that it is alive when another of its name joins."""
NO_ROUTE: Route = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


class RemoteOwner:
    """A client that keeps its own replay buffer, and is reached through a ref."""

    def __init__(self, client: Ref[Any]) -> None:
        self._client = client
        self._newest = (0, 0.0, 0, 0)  # number, total, held and inserted of the newest sample

    async def draw(self, n: int, route: Route | None) -> tuple[ClientSample, str]:
        indices, generations, priorities = NO_ROUTE if route is None else route
        priorities = priorities.astype(np.float64, copy=False)
        msg = await self._client.ask(DrawMsg(n=n, indices=indices, generations=generations, priorities=priorities))
        sample = msg.sample
        if not self.is_news(msg):
            # The items are valid, but a newer message has reported how much is held.
            _, total, held, inserted = self._newest
            total = max(total, sample.weights.max(initial=0.0))
            sample = replace(sample, total=total, held=max(held, int(len(sample.indices) > 0)), inserted=inserted)
        return sample, msg.refused

    def is_news(self, msg: ClientSampleMsg) -> bool:
        """Return whether no newer sample of this client has arrived: answers overtake messages in a mailbox."""
        if msg.number < self._newest[0]:
            return False
        self._newest = (msg.number, msg.total, msg.held, msg.inserted)
        return True


class ReplayServerActor(Actor[ServerMsg]):
    """Answers the requests of clients. Each request is a task, so that none waits in the mailbox for another.

    Args:
        coordinator: of the clients' replay buffers.
        publications: published bytes.
        write_line: writes a client's line, its second argument, into the log file.
        node: the server's node.
    """

    supervision: ClassVar[Supervision] = Escalate()

    def __init__(
        self, coordinator: Coordinator, publications: Publications, write_line: Callable[[str, str], None], node: Node
    ) -> None:
        self._coordinator, self._publications = coordinator, publications
        self._write_line, self._node = write_line, node
        self._addresses: dict[str, str] = {}  # of the actors of clients, by client
        self._watched: set[str] = set()

    def _reach(self, client: Ref[Any]) -> Ref[Any]:
        """Watch a client's actor, and return a ref to it that any task may use."""
        if client.address not in self._watched:
            self._watched.add(client.address)
            self.watch(client)
        return self._node.ref(client.address)

    @answers(EnterMsg)
    async def enter(self, msg: EnterMsg) -> WelcomeMsg:
        ref = self._reach(msg.ref)
        _check_client(msg.client)
        if msg.client in self._coordinator:
            await self._remove_if_dead(msg.client)
        layout = self._coordinator.layout
        if layout.kept_by == "server":
            self._coordinator.enter(msg.client)
        else:
            self._coordinator.join(msg.client, RemoteOwner(ref))
        self._addresses[msg.client] = ref.address
        return WelcomeMsg(layout=layout.to_plain(), paced=self._coordinator.limiter is not None)

    async def _remove_if_dead(self, client: str) -> None:
        """Raise `NameTaken` if a client is alive; remove it otherwise, before its termination is known."""
        try:
            async with asyncio.timeout(ALIVE_S):
                await self._node.ref(self._addresses[client]).ask(AliveMsg())
        except (TimeoutError, OrchestraError):
            self._remove(client)
        else:
            raise NameTaken(f"client: expected a name that is free, got {client!r}, which has joined and is alive")

    def _remove(self, client: str) -> None:
        if client in self._coordinator:
            self._coordinator.leave(client)
        self._addresses.pop(client, None)

    @on(TerminatedMsg)
    async def client_terminated(self, msg: TerminatedMsg) -> None:
        self._watched.discard(msg.address)
        for client in [name for name, address in self._addresses.items() if address == msg.address]:
            self._remove(client)
        await self._publications.unsubscribe(msg.address)

    @answers(LeaveMsg)
    async def leave(self, msg: LeaveMsg) -> None:
        self._coordinator.leave(msg.client)
        self._addresses.pop(msg.client, None)

    @answers(AdmitMsg)
    async def admit(self, msg: AdmitMsg) -> None:
        await self._coordinator.admit(msg.client, msg.n)

    @answers(HoldingMsg)
    async def update_holding(self, msg: HoldingMsg) -> None:
        owner = getattr(self._coordinator.member(msg.client), "owner", None)
        if isinstance(owner, RemoteOwner) and owner.is_news(msg.sample):
            self._coordinator.receive(msg.client, msg.sample.sample, msg.inserted_bytes)

    @answers(InsertMsg)
    async def insert(self, msg: InsertMsg) -> None:
        await self._coordinator.insert(msg.client, msg.rows, msg.priorities, msg.writer, msg.number, msg.sizes)

    @answers(SampleMsg)
    async def sample(self, msg: SampleMsg) -> SampledMsg:
        return SampledMsg.of(await self._coordinator.sample(msg.batch_size))

    @answers(UpdateMsg)
    async def update(self, msg: UpdateMsg) -> None:
        whose, n = msg.whose, len(msg.names)
        if len(whose) != len(msg.indices) or (len(whose) and not 0 <= whose.min() <= whose.max() < n):
            raise InvalidExperience(f"whose: expected indices of {n} clients, got {whose}")
        weights = np.ones(len(whose), np.float32)
        sampled = SampledUnion({}, weights, msg.names, whose, msg.indices, msg.generations)
        self._coordinator.update(sampled, msg.priorities)

    @answers(SubscribeMsg)
    async def subscribe(self, msg: SubscribeMsg) -> None:
        ref = self._reach(msg.ref)

        async def deliver(topic: str, data: Data) -> None:
            await ref.ask(PublicationMsg(topic=topic, data=data))

        self._publications.subscribe(ref.address, msg.topic, deliver)

    @answers(UnsubscribeMsg)
    async def unsubscribe(self, msg: UnsubscribeMsg) -> None:
        await self._publications.unsubscribe(msg.ref.address, msg.topic)

    @answers(PublishMsg)
    async def publish(self, msg: PublishMsg) -> None:
        await self._publications.publish(msg.topic, msg.data)

    @answers(LogLineMsg)
    async def write_line(self, msg: LogLineMsg) -> None:
        self._write_line(_check_client(msg.client), msg.text)


def _check_client(name: str) -> str:
    try:
        return check_name(name, "a client")
    except UsageError as error:
        raise InvalidExperience(f"client: {error}") from None
