"""Actor that answers the requests of a replay server's clients."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from components.replay_buffers.federated import ClientSample, Route, SampledUnion
from components.replay_buffers.invalid import InvalidExperience, NameTaken
from components.replay_server import protocol
from components.replay_server.coordinator import Coordinator
from components.replay_server.publications import Publications
from components.replay_server.request_actor import RequestActor, answers
from orchestra import Node, OrchestraError, Ref, check_name

ALIVE_S = 2.0
"""Seconds within which a client must prove that it is alive when another client of its name joins."""


class RemoteOwner:
    """A client that keeps its own replay buffer, and is reached through a ref."""

    def __init__(self, client: Ref[Any]) -> None:
        self._client = client
        self._newest = (0, 0.0, 0, 0)  # number, total, held and inserted of the newest sample

    async def draw(self, n: int, route: Route) -> tuple[ClientSample, str]:
        indices, generations, priorities = route
        msg = await self._client.ask(
            protocol.DrawMsg(n=n, indices=indices, generations=generations, priorities=priorities)
        )
        sample = msg.sample
        if not self.is_news(msg):
            # The items are valid, but a newer message has reported how much is held.
            _, total, held, inserted = self._newest
            total = max(total, sample.weights.max(initial=0.0))
            sample = replace(sample, total=total, held=max(held, int(len(sample.indices) > 0)), inserted=inserted)
        return sample, msg.refused

    def is_news(self, msg: protocol.ClientSampleMsg) -> bool:
        """Return whether no newer sample of this client has arrived; answers may overtake messages in a mailbox."""
        if msg.number < self._newest[0]:
            return False
        self._newest = (msg.number, msg.total, msg.held, msg.inserted)
        return True


class ReplayServerActor(RequestActor[protocol.ServerMsg]):
    """Answers the requests of clients. Each request is a task, so that none waits in the mailbox for another.

    Args:
        node: the server's node.
        coordinator: coordinator of the clients' replay buffers.
        publications: topics and subscribers.
        write_line: writes a client's line, its second argument, into the log file.
    """

    def __init__(
        self, node: Node, coordinator: Coordinator, publications: Publications, write_line: Callable[[str, str], None]
    ) -> None:
        super().__init__(node, publications)
        self._coordinator, self._write_line = coordinator, write_line
        self._addresses: dict[str, str] = {}  # addresses of clients' actors, by client

    @answers(protocol.EnterMsg)
    async def enter(self, msg: protocol.EnterMsg) -> protocol.WelcomeMsg:
        ref = self.reach(msg.ref)
        check_name(msg.client, "a client")
        if msg.client in self._coordinator:
            await self._remove_if_dead(msg.client)
        layout = self._coordinator.layout
        self._coordinator.join(msg.client, None if layout.kept_by == "server" else RemoteOwner(ref))
        self._addresses[msg.client] = ref.address
        return protocol.WelcomeMsg(layout=layout.to_plain(), paced=self._coordinator.limiter is not None)

    async def _remove_if_dead(self, client: str) -> None:
        """Raise `NameTaken` if a client is alive; remove it otherwise, before its termination is known."""
        try:
            async with asyncio.timeout(ALIVE_S):
                await self.node.ref(self._addresses[client]).ask(protocol.AliveMsg())
        except (TimeoutError, OrchestraError):
            self._remove(client)
        else:
            raise NameTaken(f"client: expected a name that is free, got {client!r}, which has joined and is alive")

    def _remove(self, client: str) -> None:
        if client in self._coordinator:
            self._coordinator.leave(client)
        self._addresses.pop(client, None)

    async def remove(self, client: str) -> None:
        for name in [name for name, address in self._addresses.items() if address == client]:
            self._remove(name)
        await self.publications.unsubscribe(client)

    @answers(protocol.LeaveMsg)
    async def leave(self, msg: protocol.LeaveMsg) -> None:
        self._coordinator.leave(msg.client)
        self._addresses.pop(msg.client, None)

    @answers(protocol.AdmitMsg)
    async def admit(self, msg: protocol.AdmitMsg) -> None:
        await self._coordinator.admit(msg.client, msg.n)

    @answers(protocol.HoldingMsg)
    async def update_holding(self, msg: protocol.HoldingMsg) -> None:
        owner = getattr(self._coordinator.member(msg.client), "owner", None)
        if isinstance(owner, RemoteOwner) and owner.is_news(msg.sample):
            self._coordinator.receive(msg.client, msg.sample.sample, msg.inserted_bytes)

    @answers(protocol.InsertMsg)
    async def insert(self, msg: protocol.InsertMsg) -> None:
        await self._coordinator.insert(msg.client, msg.rows, msg.priorities, msg.writer, msg.number, msg.sizes)

    @answers(protocol.SampleMsg)
    async def sample(self, msg: protocol.SampleMsg) -> protocol.SampledMsg:
        return protocol.SampledMsg.of(await self._coordinator.sample(msg.batch_size))

    @answers(protocol.UpdateMsg)
    async def update(self, msg: protocol.UpdateMsg) -> None:
        whose, n = msg.whose, len(msg.names)
        if len(whose) != len(msg.indices) or (len(whose) and not 0 <= whose.min() <= whose.max() < n):
            raise InvalidExperience(f"whose: expected indices of {n} clients, got {whose}")
        sampled = SampledUnion({}, np.ones(len(whose), np.float32), msg.names, whose, msg.indices, msg.generations)
        self._coordinator.update(sampled, msg.priorities)

    @answers(protocol.SubscribeMsg)
    async def subscribe(self, msg: protocol.SubscribeMsg) -> None:
        self.add_subscription(self.reach(msg.ref), msg.topic)

    @answers(protocol.UnsubscribeMsg)
    async def unsubscribe(self, msg: protocol.UnsubscribeMsg) -> None:
        await self.publications.unsubscribe(msg.ref.address, msg.topic)

    @answers(protocol.PublishMsg)
    async def publish(self, msg: protocol.PublishMsg) -> None:
        await self.publications.publish(msg.topic, msg.data)

    @answers(protocol.LogLineMsg)
    async def write_line(self, msg: protocol.LogLineMsg) -> None:
        self._write_line(check_name(msg.client, "a client"), msg.text)
