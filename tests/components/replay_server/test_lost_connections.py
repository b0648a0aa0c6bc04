"""Entries on their way while connections break: client and server on a simulated network."""

import asyncio
from functools import partial

import numpy as np
import pytest

from components.replay_buffers import FederatedReplay, Field
from components.replay_server import Layout
from components.replay_server.client_session import ClientSession
from components.replay_server.coordinator import Coordinator
from components.replay_server.outbox import Outbox
from components.replay_server.protocol import SERVER
from components.replay_server.publications import Publications
from components.replay_server.reconnect import Reconnector
from components.replay_server.server import LogFile
from components.replay_server.server_actor import ReplayServerActor
from orchestra.testing import Simulation

LAYOUT = Layout({"item": Field(np.int64)}, 4096, chunk=4, kept_by="server")


class World:
    """A server that keeps the buffer of one client."""

    def __init__(self, seed):
        self.sim = Simulation(seed)
        new_union = partial(FederatedReplay, LAYOUT.sample_fields, max_items=64)
        self.coordinator = Coordinator(LAYOUT, new_union, rng=np.random.default_rng(0))
        self.server = self.sim.node("server", self.open)
        self.client = self.sim.node("client")
        self.session = ClientSession(
            Reconnector("sim://server", 1.0, 0.0), "one", secret=b"s" * 16, listen=None, rng=np.random.default_rng(0)
        )

    def open(self, node):
        publications, lines = Publications(4, "drop_oldest"), LogFile(None)
        node.spawn(SERVER, ReplayServerActor, node, self.coordinator, publications, lines.write)

    async def live(self):
        """Enter, and stay, as code of the client's process."""
        self.outbox = Outbox(LAYOUT, 512, "block", lambda: None, self.session.wakes.set)
        await self.session.start_inserting(None, self.outbox)
        await self.session.stay(self.client.node, asyncio.Event(), lambda layout: None)

    @property
    def inserted(self):
        return self.coordinator.member("one").buffer.state()["rows/item"].tolist() if "one" in self.coordinator else []


@pytest.mark.parametrize("seed", range(8))
def test_chunks_are_inserted_once_and_in_order_while_connections_break(seed):
    world = World(seed)

    async def scenario():
        sim = world.sim
        await sim.start()
        staying = sim.loop.create_task(world.client.run(world.live()), context=sim.loop.strands.outside.context.copy())
        await sim.until(lambda: "one" in world.coordinator)
        cuts = 0
        for start in range(0, 3000, 60):
            await sim.until(lambda: world.outbox.queue.level <= 400)
            world.outbox.add_many({"item": np.arange(start, start + 60)}, None, 0.0)
            await asyncio.sleep(0.0005)
            cuts += sim.cut(world.server, world.client)
        await sim.until(lambda: not world.outbox.queue.level)
        staying.cancel()
        return cuts

    cuts = world.sim.run(scenario())
    assert cuts >= 5
    assert world.inserted == list(range(3000))
