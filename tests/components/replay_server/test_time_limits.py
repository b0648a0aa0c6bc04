"""Detection times of dead clients and servers, in virtual time: both sides on a simulated network.

Seconds are counted from when a process dies, or its machine goes silent, to when the other side knows and acts on it.
"""

import asyncio
from functools import partial

import numpy as np
import pytest

from components.replay_buffers import FederatedReplay, Field
from components.replay_server import Disconnected, Layout
from components.replay_server.client_session import ClientSession
from components.replay_server.coordinator import Coordinator
from components.replay_server.outbox import Outbox
from components.replay_server.protocol import SERVER, SampleMsg
from components.replay_server.publications import Publications
from components.replay_server.reconnect import Reconnector
from components.replay_server.server import LogFile
from components.replay_server.server_actor import ReplayServerActor
from orchestra.testing import Simulation

LAYOUT = Layout({"item": Field(np.int64)}, 64, chunk=4, alpha=1.0, epsilon=0.0)
SEEDS = range(4)
NEVER = 600.0
"""Virtual seconds within which what is waited for comes, if it ever does."""


class Client:
    """A simulated client: the real session without its thread."""

    def __init__(self, process, name, first):
        self.process, self.name, self.first = process, name, first

    async def live(self):
        """Join, insert four entries, and stay."""
        self.session = ClientSession(
            Reconnector("sim://server", 1.0, 0.0),
            self.name,
            secret=b"s" * 16,
            listen=None,
            rng=np.random.default_rng(0),
        )
        self.closing = asyncio.Event()
        outbox = Outbox(LAYOUT, 64, "block", lambda: None, self.session.wakes.set)
        await self.session.start_inserting(LAYOUT.new_buffer(), outbox)
        outbox.add_many({"item": self.first + np.arange(4)}, None, None)
        await self.session.stay(self.process.node, self.closing, lambda layout: None)

    async def close(self):
        """Leave, as code of its own process."""
        self.closing.set()


class World:
    """A server and clients, given as client names by node name."""

    def __init__(self, seed, clients, listen):
        self.sim = sim = Simulation(seed)
        self.server = sim.node("server", self.open)
        self.clients = {
            node: Client(sim.node(node, **({} if listen else {"listen": None})), name, 10 * i)
            for i, (node, name) in enumerate(clients.items())
        }

    def open(self, node):
        new_union = partial(FederatedReplay, LAYOUT.sample_fields, max_items=64)
        coordinator = Coordinator(LAYOUT, new_union, rng=np.random.default_rng(0))
        self.coordinator = coordinator
        publications, lines = Publications(4, "drop_oldest"), LogFile(None)
        node.spawn(SERVER, ReplayServerActor, node, coordinator, publications, lines.write)

    def begin(self, node):
        client, loop = self.clients[node], self.sim.loop
        client.staying = loop.create_task(
            client.process.run(client.live()), context=loop.strands.outside.context.copy()
        )

    async def start(self, *nodes):
        await self.sim.start()
        for node in nodes or self.clients:
            self.begin(node)
            name = self.clients[node].name
            await self.sim.until(lambda name=name: self.coordinator.union.held.get(name) == 4)

    async def sample(self, n):
        """Sample, as code of the server's process, and return the sampled items."""
        sampled = await self.server.run(self.coordinator.sample(n))
        return set(sampled.batch["item"].tolist())

    async def known(self, holds):
        """Return how many seconds pass until `holds` returns true."""
        begun = self.sim.loop.time()
        while not holds():
            assert self.sim.loop.time() - begun < NEVER
            await asyncio.sleep(0.01)
        return self.sim.loop.time() - begun


def each(scenario, clients, *, listen=False):
    """Run a scenario in several worlds, and return its results."""
    worlds = [World(seed, clients, listen) for seed in SEEDS]
    return [world.sim.run(scenario(world, 0.7 * seed)) for seed, world in zip(SEEDS, worlds, strict=True)]


@pytest.mark.parametrize(
    ("silently", "listen", "least", "most"),
    [(False, True, 0.0, 2.0), (False, False, 14.0, 16.0), (True, False, 20.0, 24.0)],
    ids=["killed where one may look", "killed elsewhere", "on a machine that went silent"],
)
def test_a_dead_client_is_detected_and_sampled_from_others(silently, listen, least, most):
    async def scenario(world, between_heartbeats):
        await world.start()
        assert await world.sample(64) == {*range(4), *range(10, 14)}
        await asyncio.sleep(between_heartbeats)
        world.clients["doomed"].process.kill(silently=silently)
        batch = asyncio.ensure_future(world.sample(64))  # some of it is picked of the one that is dead
        took = await world.known(lambda: "doomed" not in world.coordinator)
        assert await batch == {*range(10, 14)}
        return took

    took = each(scenario, {"doomed": "doomed", "other": "other"}, listen=listen)
    assert least <= min(took) <= max(took) <= most, took


@pytest.mark.parametrize(
    ("silently", "least", "most"), [(False, 0.0, 2.0), (True, 20.0, 24.0)], ids=["killed", "went silent"]
)
def test_a_dead_server_is_detected_and_requests_under_way_fail(silently, least, most):
    async def scenario(world, between_heartbeats):
        await world.start()
        one, told = world.clients["one"], []

        async def ask():
            with pytest.raises(Disconnected, match="is gone: "):
                await one.session.ask(SampleMsg(batch_size=64))
            told.append(world.sim.loop.time())

        await asyncio.sleep(between_heartbeats)
        world.server.pause(NEVER)  # so that it does not answer before it dies
        asking = asyncio.ensure_future(one.process.run(ask()))
        await asyncio.sleep(0.05)
        world.server.kill(silently=silently)
        took = await world.known(lambda: told)
        await asyncio.gather(asking, one.staying, return_exceptions=True)
        assert one.session.server is None or not one.process.running
        return took

    took = each(scenario, {"one": "one"})
    assert least <= min(took) <= max(took) <= most, took


def test_a_process_suspended_for_nine_seconds_is_not_dead():
    async def scenario(world, between_heartbeats):
        await world.start()
        for process in (world.clients["one"].process, world.server):
            await asyncio.sleep(between_heartbeats)
            process.pause(9.0)
            batch = asyncio.ensure_future(world.sample(64))
            await asyncio.sleep(9.0)
            assert await batch == {*range(4), *range(10, 14)}
        assert world.coordinator.union.held == {"one": 4, "two": 4}

    each(scenario, {"one": "one", "two": "two"})


def test_a_client_of_the_same_name_joins_before_the_death_of_the_first_is_detected():
    async def scenario(world, between_heartbeats):
        await world.start("first")
        first = world.coordinator.member("one")
        await asyncio.sleep(between_heartbeats)
        world.clients["first"].process.kill(silently=True)
        world.begin("second")
        took = await world.known(lambda: "one" in world.coordinator and world.coordinator.member("one") is not first)
        assert await world.sample(64) == {*range(10, 14)}
        return took

    took = each(scenario, {"first": "one", "second": "one"})
    assert 2.0 <= min(took) <= max(took) <= 3.0, took


def test_closing_waits_two_seconds_for_a_silent_server():
    async def scenario(world, between_heartbeats):
        await world.start()
        one = world.clients["one"]
        await asyncio.sleep(between_heartbeats)
        world.server.pause(9.0)
        await one.process.run(one.close())
        return await world.known(one.staying.done)

    took = each(scenario, {"one": "one"})
    assert 2.0 <= min(took) <= max(took) <= 2.5, took
