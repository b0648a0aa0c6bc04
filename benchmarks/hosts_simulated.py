"""The head of a run over many hosts, on the simulated network: connections, messages, bytes, memory, processor time.

    python benchmarks/hosts_simulated.py                         1 to 256 hosts of 64 workers, some minutes
    python benchmarks/hosts_simulated.py --hosts 1 100 1000 --figure hosts.png

Every host has an agent, at which its nodes join, and a `WorkerProxy`; both are real nodes, and so is the head. The
workers are only entries of the agent's directory, and their messages are sent to the proxy: the cost to their own host
is not measured here. A stand-in for the Orchestrator takes the messages, so its own decisions are not part of the load.

- flat: every agent joins at the head, and every proxy joins the Orchestrator.
- tree: an agent joins at another agent, and a proxy joins another proxy; each has `--fan-out` of them below it.

The processor time of the head is that of its callbacks on this machine, with the overhead of the simulator. Its *load*
is this time for each second of the run; at 1 the head is saturated. Memory is that of the head's links and directory.
"""

import argparse
import asyncio
import gc
import time
import types
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hosts_load import episode

from components import WorkerProxy
from messages import InsertTransitionMsg, JoinMsg, LoadParamsMsg, WorkerCountMsg
from orchestra import Actor, Node, Ref, freeze, on
from orchestra.nodes.directory import NodeEntry
from orchestra.simulation.loop import SimulatedLoop
from orchestra.simulation.network import Network, SimulatedConnection
from orchestra.simulation.strands import Strand
from orchestra.testing import Process, Simulation

PARAMETERS = 28_000
"""Numbers of a version: 112 KB, somewhat less than the agents of QMIX have on 8m."""
WARM_UP_S, MEASURED_S = 12.0, 10.0
"""Seconds of the run before and during the measurement."""


class Stub(Actor[JoinMsg | WorkerCountMsg | InsertTransitionMsg]):
    """Stands for the Orchestrator: takes experience, and registers the proxies that join, for publications."""

    def __init__(self, counted: Counter[str], proxies: dict[str, Ref[Any]]) -> None:
        self._counted = counted
        self._proxies = proxies

    @on(JoinMsg)
    def join(self, msg: JoinMsg) -> None:
        self._proxies[msg.ref.address] = msg.ref

    @on(WorkerCountMsg)
    def count(self, msg: WorkerCountMsg) -> None:
        self._counted["counts"] += 1

    @on(InsertTransitionMsg)
    def insert(self, msg: InsertTransitionMsg) -> None:
        self._counted["episodes"] += msg.segments


@dataclass(frozen=True, slots=True)
class Row:
    """Resources that the head of a run needs."""

    layout: str
    hosts: int
    connections: int
    entries: int
    messages_s: float
    received_mb_s: float
    sent_mb_s: float
    kib: float
    load: float
    experience_load: float

    def __str__(self) -> str:
        return (
            f"| {self.layout} | {self.hosts:,} | {self.connections:,} | {self.entries:,} | {self.messages_s:,.0f} | "
            f"{self.received_mb_s:.2f} | {self.sent_mb_s:.2f} | {self.kib:,.0f} | {self.load:.3f} | "
            f"{self.load - self.experience_load:.3f} |"
        )


HEADER = (
    "| layout | hosts | connections | nodes | messages/s | MB/s in | MB/s out | KiB | load | without experience |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)


def size_of(*roots: object) -> int:
    """Return the bytes of all objects reachable from `roots` within a node: an estimate of its memory."""
    outside: tuple[type, ...] = (
        types.ModuleType,
        type,
        types.FunctionType,
        types.CodeType,
        SimulatedLoop,
        Network,
        Strand,
    )
    outside = (*outside, SimulatedConnection, asyncio.Task, Actor, np.random.Generator)
    seen, todo, total = set(), list(roots), 0
    while todo:
        each = todo.pop()
        if id(each) in seen or isinstance(each, outside):
            continue
        seen.add(id(each))
        total += each.__sizeof__()
        todo += gc.get_referents(each)
    return total


class ProcessorTime:
    """The processor time of each simulated process: from one event of the loop to the next."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._note, self._last, self._since = loop.note, "", time.process_time()
        loop.note = self._noted  # type: ignore[method-assign]  # to count what happens

    def _noted(self, strand: Strand, what: str) -> None:
        now = time.process_time()
        self.seconds[self._last] += now - self._since
        self._last, self._since = strand.name, now
        self._note(strand, what)


async def measure(sim: Simulation, layout: str, hosts: int, options: argparse.Namespace) -> Row:
    """Run a head and its hosts, and return the resources that the head needs."""
    counted: Counter[str] = Counter()
    joined: dict[str, Ref[Any]] = {}
    fan_out = options.fan_out if layout == "tree" else hosts
    head = sim.node("head", lambda node: node.spawn("orchestrator", Stub, counted, joined))
    agents: list[Process] = []
    proxies: list[Process] = []
    for host in range(hosts):
        parent = host // fan_out - 1  # -1 is the head
        above = "head" if parent < 0 else f"agent-{parent}"
        to: Ref[Any] = Ref("head/orchestrator" if parent < 0 else f"proxy-{parent}/proxy")

        def spawn(node: Node, to: Ref[Any] = to) -> None:
            node.spawn("proxy", WorkerProxy, to=to)

        agents.append(sim.node(f"agent-{host}", join=f"sim://{above}", joinable=True))
        proxies.append(sim.node(f"proxy-{host}", spawn, join=f"sim://agent-{host}"))
    await head.start()
    for process in agents:  # in this order, because an agent joins at one above it
        await process.start()
    for host, process in enumerate(proxies):
        await process.start()
        for number in range(options.workers):
            name = f"worker-{host}-{number}"
            entry = NodeEntry(node=name, address=f"unix:///{name}", incarnation=b"12345678", host=f"agent-{host}")
            agents[host].node.directory.register(entry, via=name)
    times = ProcessorTime(sim.loop)
    every_s = options.episode_seconds / options.workers

    async def play(proxy: Process) -> None:
        one = episode(f"{proxy.name}/workers")
        ref = proxy.ref(f"{proxy.name}/proxy")
        await asyncio.sleep(sim.random.uniform(0.0, every_s))
        while True:
            await ref.tell(one)
            await asyncio.sleep(every_s)

    async def publish() -> None:
        version = 0
        while True:
            version += 1
            params = freeze(np.full(PARAMETERS, version, np.float32))
            for address in list(joined):
                head.node.ref(address).tell_nowait(LoadParamsMsg(version=version, params=params, env_steps=0))
            await asyncio.sleep(1.0)

    async def window() -> tuple[float, int, int, int]:
        begun = times.seconds["head"], handled(), received(), sent()
        await asyncio.sleep(MEASURED_S)
        now = times.seconds["head"], handled(), received(), sent()
        return now[0] - begun[0], now[1] - begun[1], now[2] - begun[2], now[3] - begun[3]

    def handled() -> int:
        links = head.node.peers.statistics()
        return sum(link.received + link.sent for link in links)

    def received() -> int:
        return sum(size for (_, to), size in sim.network.traffic.items() if to == "head")

    def sent() -> int:
        return sum(size for (source, _), size in sim.network.traffic.items() if source == "head")

    publishing = asyncio.create_task(head.run(publish()))
    await asyncio.sleep(WARM_UP_S)
    quiet, *_ = await window()
    playing = [asyncio.create_task(play(proxy)) for proxy in proxies]
    await asyncio.sleep(2.0)
    busy, messages, received_bytes, sent_bytes = await window()
    connections = sum(end.host == "head" for end in sim.network.ends)
    peers: Any = head.node.peers
    kib = size_of(peers._links, head.node.directory) / 1024
    for task in (publishing, *playing):
        if task.done():
            task.result()  # the task should still run: raise its error
        task.cancel()
    return Row(
        layout=layout,
        hosts=hosts,
        connections=connections,
        entries=len(head.node.directory.entries),
        messages_s=messages / MEASURED_S,
        received_mb_s=received_bytes / MEASURED_S / 1e6,
        sent_mb_s=sent_bytes / MEASURED_S / 1e6,
        kib=kib,
        load=busy / MEASURED_S,
        experience_load=(busy - quiet) / MEASURED_S,
    )


def draw(rows: list[Row], path: Path) -> None:
    """Write a figure of the load and the connections of the head against the number of hosts."""
    import matplotlib.pyplot as plt  # optional: only the figure needs it

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    for layout in dict.fromkeys(row.layout for row in rows):
        mine = [row for row in rows if row.layout == layout]
        hosts = [row.hosts for row in mine]
        left.loglog(hosts, [row.load for row in mine], "o-", label=layout)
        left.loglog(hosts, [row.load - row.experience_load for row in mine], "o--", label=f"{layout}, no experience")
        right.loglog(hosts, [row.connections for row in mine], "o-", label=layout)
    left.axhline(1.0, color="black", linewidth=0.5)
    left.set(xlabel="hosts", ylabel="load of the head's event loop")
    right.set(xlabel="hosts", ylabel="connections of the head")
    left.legend()
    right.legend()
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 4, 16, 64, 256], help="numbers of hosts")
    parser.add_argument("--workers", type=int, default=64, help="workers of a host")
    parser.add_argument("--fan-out", type=int, default=8, help="hosts below each one, in a tree")
    parser.add_argument("--episode-seconds", type=float, default=60.0, help="seconds between a worker's episodes")
    parser.add_argument("--figure", type=Path, help="write a figure to this file")
    options = parser.parse_args()
    print(HEADER, flush=True)
    rows: list[Row] = []
    for layout in ("flat", "tree"):
        for hosts in options.hosts:
            sim = Simulation(1)
            row = sim.run(measure(sim, layout, hosts, options))
            rows.append(row)
            print(row, flush=True)
    for layout in ("flat", "tree"):
        most = max((row for row in rows if row.layout == layout), key=lambda row: row.hosts)
        print(f"{layout}: saturated at about {most.hosts / most.load:,.0f} hosts of {options.workers} workers")
    if options.figure:
        draw(rows, options.figure)


if __name__ == "__main__":
    main()
