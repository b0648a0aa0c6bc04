"""Parameters for the workers of one host: the time until all of them act, and the bytes that cross the sockets.

    python benchmarks/parameters.py
    python benchmarks/parameters.py --mb 10 --workers 1 4 16

A publisher stands for a learner on another host: it shares no memory, so parameters reach the host by TCP. A
`WorkerProxy` passes them on to worker processes, all on this host. Each worker takes the time, by the clock that all
processes of a host share, once its handler has read some of the parameters. It reports later, when all have read them.

- to all workers:  from `tell` at the publisher until the last worker has read them. Baseline: the same bytes by
                   `sendall` and `recv_into` on blocking sockets to one process, and one `np.copyto` of them.
- socket bytes:    bytes that crossed a socket of the host for one version, as a multiple of its parameters.
- copies:          bytes that the proxy wrote into shared memory for one version, as a multiple of its parameters.
- same host:       the same with a publisher that shares memory; then no parameters cross a socket.

Both sides of a ratio are measured in turn. Medians are printed.
"""

import argparse
import asyncio
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.worker_proxy import WorkerProxy
from messages import InsertTransitionMsg, JoinMsg, LoadParamsMsg, WorkerCountMsg
from orchestra import Actor, Message, Node, Ref, StatisticsMsg, freeze, on
from orchestra.runs.runner import run_loop, tuned_gc

SECRET = b"secret of the benchmark".ljust(32)
PAGE = 4096
READ = 64
"""Numbers that a worker reads, evenly spaced in the parameters."""
REPORT_S = 0.1
"""Delay of a report in seconds."""
ROUNDS = 5
"""Versions published before the measurement, so that memory is already mapped and has been used."""


class ActedMsg(Message):
    """A worker has read a version of the parameters."""

    version: int
    at: float
    """Seconds of the monotonic clock of the host."""
    checksum: float


class ReportMsg(Message):
    """Send a report; a worker sends it to itself."""

    report: ActedMsg


class Player(Actor[LoadParamsMsg | ReportMsg]):
    """Stands for a worker: holds the newest parameters, and reports that it has read them.

    Args:
        to: the proxy.
        report: the Publisher.
    """

    def __init__(self, to: Ref[JoinMsg], report: Ref[ActedMsg]) -> None:
        self._to, self._report = to, report
        self._params: Any = None

    async def started(self) -> None:
        await self._to.tell(JoinMsg(role="worker", ref=self.me, environments=1))

    @on(LoadParamsMsg)
    def load(self, msg: LoadParamsMsg) -> None:
        self._params = msg.params
        checksum = sample(msg.params)
        report = ActedMsg(version=msg.version, at=time.monotonic(), checksum=checksum)
        self.after(REPORT_S, ReportMsg(report=report))

    @on(ReportMsg)
    async def report(self, msg: ReportMsg) -> None:
        await self._report.tell(msg.report)


class Publisher(Actor[JoinMsg | WorkerCountMsg | InsertTransitionMsg | ActedMsg]):
    """Stands for the learner.

    Args:
        measured: receives the time and the checksum of each worker that has acted.
    """

    def __init__(self, measured: "asyncio.Queue[ActedMsg | int]") -> None:
        self._measured = measured

    @on(JoinMsg)
    def join(self, msg: JoinMsg) -> None:
        pass

    @on(WorkerCountMsg)
    def count(self, msg: WorkerCountMsg) -> None:
        self._measured.put_nowait(msg.workers)

    @on(InsertTransitionMsg)
    def insert(self, msg: InsertTransitionMsg) -> None:
        pass

    @on(ActedMsg)
    def acted(self, msg: ActedMsg) -> None:
        self._measured.put_nowait(msg)


def sample(params: NDArray[np.float32]) -> float:
    """Return the sum of `READ` of the parameters."""
    return float(params[:: len(params) // READ].sum())


async def be_host(root: str) -> None:
    """Run the process of a proxy."""
    async with Node("host", listen="tcp://127.0.0.1:0", join=root, secret=SECRET).running() as node:
        node.spawn("proxy", WorkerProxy, to=node.ref("learner/publisher"))
        print("ready", flush=True)
        await node.stop_requested


async def be_worker(root: str, number: int) -> None:
    """Run the process of a worker."""
    name = f"worker-{number}"
    async with Node(name, listen="tcp://127.0.0.1:0", join=root, secret=SECRET).running() as node:
        node.spawn("player", Player, node.ref("host/proxy"), node.ref("learner/publisher"))
        print("ready", flush=True)
        await node.stop_requested


def be_socket(port: int) -> None:
    """Receive arrays of a blocking socket; answer with the time after each."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        (nbytes,) = struct.unpack("<Q", sock.recv(8, socket.MSG_WAITALL))
        memory, copy = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
        while True:
            view = memory.data
            while view:
                count = sock.recv_into(view)
                if not count:
                    return
                view = view[count:]
            received = time.monotonic()
            np.copyto(copy, memory)
            sock.sendall(struct.pack("<dd", received, time.monotonic()))


@asynccontextmanager
async def process(*words: str) -> AsyncIterator[None]:
    """Run another process of this file; yield once it is ready. It ends with the node that it has joined."""
    command = [sys.executable, __file__, "--child", *words]
    child = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert child.stdout is not None
    await child.stdout.readline()
    try:
        yield
    finally:
        await child.communicate()


class Baseline:
    """One transfer of `nbytes` by a socket, and one copy of them."""

    def __init__(self, nbytes: int) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self._child = subprocess.Popen([sys.executable, __file__, "--child", "socket", str(listener.getsockname()[1])])
        self._sock, _ = listener.accept()
        self._sock.sendall(struct.pack("<Q", nbytes))
        self._memory = np.ones(nbytes, np.uint8)

    def seconds(self) -> float:
        """Return the seconds until the other process has received and copied the bytes."""
        since = time.monotonic()
        self._sock.sendall(self._memory.data)
        _, copied = struct.unpack("<dd", self._sock.recv(16, socket.MSG_WAITALL))
        return float(copied) - since

    def close(self) -> None:
        """End the other process."""
        self._sock.close()
        self._child.wait()


@dataclass(frozen=True, slots=True)
class Result:
    """What one version costs, as medians."""

    workers: int
    seconds: float
    """From `tell` until the last worker has read the parameters."""
    baseline_s: float
    """One transfer by a socket and one copy."""
    socket_copies: float
    """Parameters that crossed a socket of the host, per version."""
    memory_copies: float
    """Parameters that the publisher and the proxy wrote into shared memory, per version."""

    @property
    def ratio(self) -> float:
        """The cost as a multiple of the baseline."""
        return self.seconds / self.baseline_s


async def measure(workers: int, nbytes: int, repeats: int, *, same_host: bool) -> Result:
    """Publish versions of `nbytes` to `workers` processes."""
    measured: asyncio.Queue[ActedMsg | int] = asyncio.Queue()
    options: dict[str, Any] = {} if same_host else {"shared_memory": 0}
    loop = asyncio.get_running_loop()
    learner = Node("learner", listen="tcp://127.0.0.1:0", secret=SECRET, **options)
    async with AsyncExitStack() as stack, learner.running() as node:
        node.spawn("publisher", Publisher, measured)
        baseline = await loop.run_in_executor(None, Baseline, nbytes)
        await stack.enter_async_context(process("host", node.listening))
        for number in range(workers):
            await stack.enter_async_context(process("worker", node.listening, str(number)))
        while await measured.get() != workers:
            pass
        proxy, host = node.ref("host/proxy"), node.ref("host/system")
        seconds, base, version = [], [], 0

        async def publish() -> float:
            nonlocal version
            version += 1
            params = freeze(np.full(nbytes // 4, version, np.float32))
            expected = sample(params)
            await asyncio.sleep(0.05)  # as between two publications: the version before has been handled
            since = time.monotonic()
            await proxy.tell(LoadParamsMsg(version=version, params=params, env_steps=0))
            last = 0.0
            for _ in range(workers):
                acted = await measured.get()
                assert isinstance(acted, ActedMsg)
                assert (acted.version, acted.checksum) == (version, expected)
                last = max(last, acted.at)
            return last - since

        for _ in range(ROUNDS):
            await publish()
            await loop.run_in_executor(None, baseline.seconds)
        before = await _traffic(node, host)
        for _ in range(repeats):
            seconds.append(await publish())
            base.append(await loop.run_in_executor(None, baseline.seconds))
        after = await _traffic(node, host)
        await loop.run_in_executor(None, baseline.close)
    by_socket, copied = ((now - then) / repeats / nbytes for now, then in zip(after, before, strict=True))
    return Result(workers, statistics.median(seconds), statistics.median(base), by_socket, copied)


async def _traffic(node: Node, host: Ref[StatisticsMsg]) -> tuple[int, int]:
    """Return the bytes that publisher and proxy have sent by sockets and copied into shared memory."""
    links = [*node.statistics().links, *(await host.ask(StatisticsMsg())).links]
    by_socket = sum(link.sent_bytes - link.memory_sent_bytes for link in links)
    return by_socket, sum(link.memory_copied_bytes for link in links)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mb", type=float, default=10.0, help="megabytes of parameters")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16], help="worker processes of the host")
    parser.add_argument("--repeats", type=int, default=15, help="versions of each measurement")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    match options.child:
        case ["socket", port]:
            be_socket(int(port))
        case ["host", root]:
            with tuned_gc():
                run_loop(be_host(root))
        case ["worker", root, number]:
            with tuned_gc():
                run_loop(be_worker(root, int(number)))
        case _:
            nbytes = int(options.mb * 1e6) // PAGE * PAGE
            print(f"{'':22} {'to all workers':>15} {'baseline':>10} {'ratio':>7} {'socket':>8} {'copies':>8}")
            for same_host in (False, True):
                for workers in options.workers:
                    with tuned_gc():
                        result = run_loop(measure(workers, nbytes, options.repeats, same_host=same_host))
                    what = f"{workers} workers, {'same host' if same_host else 'other host'}"
                    print(
                        f"{what:22} {result.seconds * 1e3:>12.2f} ms {result.baseline_s * 1e3:>7.2f} ms "
                        f"{result.ratio:>6.2f}x {result.socket_copies:>7.3f}x {result.memory_copies:>7.3f}x",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
