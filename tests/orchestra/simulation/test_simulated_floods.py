"""A node connects within a second of virtual time while a thousand silent connections keep coming."""

import asyncio
from typing import Any

import pytest

from orchestra import Message, Node
from orchestra.simulation.process import SimulatedClock
from orchestra.testing import Probe, Process, Simulation, each_seed, failing_seed
from orchestra.wire.admission import MAX_PER_SOURCE, Admission
from orchestra.wire.transports.registry import transport_for

FLOOD = 1000
"""Silent connections, each of which is made again about once a second."""
SECRET = bytes(range(32))


class CountMsg(Message):
    n: int


class Silent:
    """Says nothing, and dials again about a second after it was dropped."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self.dials = 0

    def frame_received(self, frame: object) -> None:
        raise AssertionError("the root answers a connection that has said nothing")

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()

    async def keep_coming(self, sim: Simulation) -> None:
        while True:
            self.lost.clear()
            await asyncio.sleep(sim.random.uniform(0.5, 1.5))
            connection = await transport_for("sim://root").dial("sim://root")
            self.dials += 1
            connection.attach(self)
            await self.lost.wait()


async def flood(sim: Simulation, silent: list[Silent]) -> None:
    await asyncio.gather(*(each.keep_coming(sim) for each in silent))


async def join(sim: Simulation, name: str) -> float:
    """Join the root, tell it something, and leave; return the seconds until the node had joined."""
    clock = SimulatedClock(sim.loop)
    node = Node(name, join="sim://root", secret=SECRET, clock=clock, entropy=sim.random.bytes)
    begun = clock.monotonic()
    async with node.running():
        joined = clock.monotonic() - begun
        await node.ref("root/probe").tell(CountMsg(n=1))
        await asyncio.sleep(0.1)
    return joined


async def flooded(sim: Simulation, *, own_source: bool = False) -> None:
    probe = Probe(CountMsg)
    root = sim.node("root", lambda node: probe.start(node, "probe"), secret=SECRET)
    flooder, other = (sim.node(name, secret=SECRET) for name in ("flooder", "other"))
    await sim.start()
    for one in (flooder, other):
        sim.slow_down(root, one, 0.005)  # round trips that leave the second to the flood
    silent = [Silent() for _ in range(FLOOD)]
    flooding = sim.loop.create_task(flooder.run(flood(sim, silent)))
    await sim.until(lambda: sum(each.dials for each in silent) > FLOOD)
    peers: Any = root.node.peers
    host: Process = flooder if own_source else other
    before = sum(each.dials for each in silent)
    assert await host.run(join(sim, "leaf")) < 1.0
    assert len(peers._acceptor._admission) == MAX_PER_SOURCE
    assert len(probe.messages) == 1
    assert sum(each.dials for each in silent) > before + 50  # they have kept coming
    flooding.cancel()
    flooder.kill()
    await sim.until(lambda: not peers._acceptor._handshakes and not len(peers._acceptor._admission), within=10.0)
    assert {(end.host, end.peer_host) for end in sim.network.ends} == {("root", "other"), ("other", "root")}


async def flooded_from_its_own_host(sim: Simulation) -> None:
    await flooded(sim, own_source=True)


@pytest.mark.parametrize("scenario", [flooded, flooded_from_its_own_host])
def test_a_node_joins_within_a_second_while_a_thousand_silent_connections_keep_coming(scenario: Any) -> None:
    each_seed(scenario, 2)


class NewestFirst(Admission[Any]):
    """Drops the connection that has come last."""

    def add(self, connection: Any, source: str) -> Any:
        return connection if len(self) == MAX_PER_SOURCE else super().add(connection, source)


def test_a_root_that_keeps_others_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestra.nodes.acceptor.Admission", NewestFirst)
    assert failing_seed(flooded_from_its_own_host, 2) is not None
