"""Cost of messages between processes: tells and asks of actors against the bare transports, measured in turn.

    python benchmarks/wire.py

- tell, TCP:           a handler sends to an actor of another process. Baseline: a protocol on the same event loop that
                       writes frames of the same size with one `write` each, and reads without decoding.
- tell, TCP, joined:   the same against frames joined to 64 KiB before each `write`: the floor of this event loop.
- ask, TCP:            one ask at a time, the median. Baseline: the same protocol, one frame each way.
- ask, TCP, 100 at once: against the same baseline, one at a time, since it cannot distinguish answers.
- arrays, TCP:         messages with one float32 array. Baseline: `sendall` and `recv_into` on blocking sockets.
- arrays, memory:      the same by shared memory, the default of two nodes on one host. Baseline: `np.copyto` between
                       two arrays of that size that have both been used before.

Lines with *zmq* have ZeroMQ as their baseline (`wire_zmq.py`): blocking sockets of pyzmq between two processes, the
same messages, packed by msgpack and checked by pydantic at both ends. They are left out where pyzmq is not installed.

Lines without a baseline show the processor time of sender and receiver per message, its construction included.

The message has six plain fields, about 100 bytes when packed. Each pair is measured in turn, and medians are printed.
"""

import argparse
import asyncio
import importlib.util
import os
import socket
import statistics
import struct
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, cast

import numpy as np
from numpy.typing import NDArray

from orchestra import Actor, Axes, Message, Node, Ref, Request, freeze, on
from orchestra.runs.runner import run_loop, tuned_gc

SECRET = "ORCHESTRA_WIRE_SECRET"
FRAME = 160
"""Bytes of a frame of the baseline, the same as of a `StepMsg` in a frame of its own."""
MIB = 1 << 20


class StepMsg(Message):
    """A small message, as in training."""

    agent_id: str
    step: int
    reward: float
    done: bool
    policy: str
    ts: float


class ArrayMsg(Message):
    """A large message."""

    x: Annotated[NDArray[np.float32], Axes("float32", "n")]


class EchoMsg(Request[int]):
    """A request that is answered with its number."""

    n: int


class ProcessorTimeMsg(Request[float]):
    """A request for the processor seconds of the process so far."""


class TellMsg(Request[float]):
    """Request to send `count` messages to the sink; answered with the seconds until all were handled."""

    count: int


class TellArraysMsg(Request[float]):
    """Request to send `count` arrays of `nbytes` to the sink; answered with the seconds until all were handled."""

    count: int
    nbytes: int


class Sink(Actor[StepMsg | ArrayMsg | EchoMsg | ProcessorTimeMsg]):
    """Handles every message, and answers."""

    @on(StepMsg)
    def step(self, msg: StepMsg) -> None:
        """Do nothing."""

    @on(ArrayMsg)
    def array(self, msg: ArrayMsg) -> None:
        """Do nothing."""

    @on(EchoMsg)
    def echo(self, msg: EchoMsg) -> int:
        return msg.n

    @on(ProcessorTimeMsg)
    def processor_time(self, msg: ProcessorTimeMsg) -> float:
        return time.process_time()


class Source(Actor[TellMsg | TellArraysMsg]):
    """Sends to a sink, from within its handler."""

    def __init__(self, sink: Ref[StepMsg | ArrayMsg | EchoMsg]) -> None:
        self._sink = sink

    @on(TellMsg)
    async def tell(self, msg: TellMsg) -> float:
        sink = self._sink
        since = time.perf_counter()
        for n in range(msg.count):
            await sink.tell(StepMsg(agent_id="agent-3", step=n, reward=0.5, done=False, policy="qmix", ts=1e9 + n))
        await sink.ask(EchoMsg(n=0))  # arrives behind all others
        return time.perf_counter() - since

    @on(TellArraysMsg)
    async def tell_arrays(self, msg: TellArraysMsg) -> float:
        x = freeze(np.ones(msg.nbytes // 4, np.float32))  # zeros would share a single page
        since = time.perf_counter()
        for _ in range(msg.count):
            await self._sink.tell(ArrayMsg(x=x))
        await self._sink.ask(EchoMsg(n=0))
        return time.perf_counter() - since


async def tells(source: Ref[TellMsg | TellArraysMsg], count: int) -> float:
    """Return tells per second."""
    return count / await source.ask(TellMsg(count=count))


async def asks(sink: Ref[EchoMsg], count: int) -> float:
    """Return the median seconds of an ask."""
    seconds = []
    for n in range(count):
        since = time.perf_counter()
        await sink.ask(EchoMsg(n=n))
        seconds.append(time.perf_counter() - since)
    return statistics.median(seconds)


async def asks_at_once(sink: Ref[EchoMsg], count: int) -> float:
    """Return asks per second with 100 of them in flight."""

    async def one_after_another() -> None:
        for n in range(count // 100):
            await sink.ask(EchoMsg(n=n))

    since = time.perf_counter()
    await asyncio.gather(*(one_after_another() for _ in range(100)))
    return count / (time.perf_counter() - since)


class Raw(asyncio.Protocol):
    """The baseline: frames of one size. A frame that begins with `?` is answered."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.connected = asyncio.get_running_loop().create_future()
        self.lost = asyncio.get_running_loop().create_future()
        self.answered: asyncio.Future[None] | None = None
        self._seen = 0
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connected.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._seen += len(data)
        self._tail = (self._tail + data)[-FRAME:]
        if self._seen % FRAME == 0 and self._tail[:1] == b"?":
            self.transport.write(b"!" * FRAME)
        elif self._seen % FRAME == 0 and self.answered is not None:
            self.answered.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(None)

    async def ask(self) -> None:
        """Send a frame and wait for the answer."""
        self.answered = asyncio.get_running_loop().create_future()
        self.transport.write(b"?" * FRAME)
        await self.answered
        self.answered = None

    async def tells(self, count: int, joined: int) -> float:
        """Return frames per second, with `joined` of them in each write."""
        frames = b"." * FRAME * joined
        since = time.perf_counter()
        for n in range(count // joined):
            self.transport.write(frames)
            if n * joined % 4096 < joined:  # a window as large as a link's
                await self.ask()
        await self.ask()
        return count / (time.perf_counter() - since)

    async def asks(self, count: int) -> float:
        """Return the median seconds of a round trip."""
        seconds = []
        for _ in range(count):
            since = time.perf_counter()
            await self.ask()
            seconds.append(time.perf_counter() - since)
        return statistics.median(seconds)


def blocking_arrays(count: int, nbytes: int, port: int) -> float:
    """Return GB per second of `sendall` to the child, which receives with `recv_into`."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(struct.pack("<QQ", count, nbytes))
        data = np.ones(nbytes, np.uint8).data
        since = time.perf_counter()
        for _ in range(count):
            sock.sendall(data)
        sock.recv(1)
        return count * nbytes / (time.perf_counter() - since) / 1e9


def copies(count: int, nbytes: int) -> float:
    """Return GB per second of copying an array within this process."""
    source, target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    since = time.perf_counter()
    for _ in range(count):
        np.copyto(target, source)
    return count * nbytes / (time.perf_counter() - since) / 1e9


def receive_arrays(listener: socket.socket) -> None:
    """Receive the arrays of `blocking_arrays`, each into memory of its own."""
    while True:
        sock, _ = listener.accept()
        with sock:
            count, nbytes = struct.unpack("<QQ", sock.recv(16, socket.MSG_WAITALL))
            for _ in range(count):
                view = np.empty(nbytes, np.uint8).data
                while view:
                    view = view[sock.recv_into(view) :]
            sock.sendall(b"!")


async def be_child(root: str, port: int) -> None:
    """Run the other process: a node with a sink, another that shares memory, and the other end of the baselines."""
    secret = bytes.fromhex(os.environ[SECRET])
    node = Node("child", listen="tcp://127.0.0.1:0", join=root, secret=secret, shared_memory=0)
    sharing = Node("sharing", listen="tcp://127.0.0.1:0", join=root, secret=secret)
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=receive_arrays, args=(listener,), daemon=True).start()
    async with node.running(), sharing.running():
        node.spawn("sink", Sink)
        sharing.spawn("sink", Sink)
        _, raw = await asyncio.get_running_loop().create_connection(Raw, "127.0.0.1", port)
        raw.transport.write(struct.pack("<Q", listener.getsockname()[1]).ljust(FRAME))
        await node.stop_requested


class FromChild(Raw):
    """The end of the baseline in this process; the first frame names the port for arrays."""

    def data_received(self, data: bytes) -> None:
        if not self._seen:
            self.port = struct.unpack_from("<Q", data)[0]
            self.ready.set_result(None)
            self._seen = FRAME
            return
        super().data_received(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.ready = asyncio.get_running_loop().create_future()
        super().connection_made(transport)


async def measure(count: int, repeats: int) -> None:
    """Measure all, and print a line for each pair."""
    loop = asyncio.get_running_loop()
    raw: asyncio.Future[FromChild] = loop.create_future()

    def accept() -> FromChild:
        protocol = FromChild()
        raw.set_result(protocol)
        return protocol

    server = await loop.create_server(accept, "127.0.0.1", 0)
    node = Node("root", listen="tcp://127.0.0.1:0")
    async with node.running():
        command = [sys.executable, __file__, "--child", node.listening, str(server.sockets[0].getsockname()[1])]
        child = await asyncio.create_subprocess_exec(*command, env={**os.environ, SECRET: node.secret.hex()})
        try:
            bare = await raw
            await bare.connected
            await bare.ready
            far_sink = node.ref("child/sink")
            far = node.spawn("far", Source, far_sink)
            by_memory = node.spawn("by_memory", Source, node.ref("sharing/sink"))
            await far_sink.ask(EchoMsg(n=0))

            await compare("tell, TCP", "/s", repeats, lambda: tells(far, count), lambda: bare.tells(count, 1))
            joined = 65536 // FRAME
            await compare(
                "tell, TCP, joined", "/s", repeats, lambda: tells(far, count), lambda: bare.tells(8 * count, joined)
            )
            await processor_time("tell, TCP", count, repeats, far_sink, lambda: tells(far, count))
            await compare("ask, TCP", "us", repeats, lambda: asks(far_sink, 2000), lambda: bare.asks(2000))

            async def one_at_a_time() -> float:
                return 1 / await bare.asks(2000)

            await compare("ask, TCP, 100 at once", "/s", repeats, lambda: asks_at_once(far_sink, 20_000), one_at_a_time)
            await processor_time("ask, TCP", 2000, repeats, far_sink, lambda: asks(far_sink, 2000))
            await processor_time(
                "ask, TCP, 100 at once", 20_000, repeats, far_sink, lambda: asks_at_once(far_sink, 20_000)
            )
            for mib in (1, 16):
                times = 256 // mib

                async def arrays(source: Ref[TellArraysMsg] = far, times: int = times, mib: int = mib) -> float:
                    seconds = await source.ask(TellArraysMsg(count=times, nbytes=mib * MIB))
                    return times * mib * MIB / seconds / 1e9

                async def blocking(times: int = times, mib: int = mib) -> float:
                    return await loop.run_in_executor(None, blocking_arrays, times, mib * MIB, bare.port)

                async def copying(times: int = times, mib: int = mib) -> float:
                    return await loop.run_in_executor(None, copies, times, mib * MIB)

                await compare(f"arrays of {mib} MiB, TCP", "GB/s", repeats, arrays, blocking)
                await compare(f"arrays of {mib} MiB, memory", "GB/s", repeats, partial(arrays, by_memory), copying)
                for how, source in (("TCP", far), ("memory", by_memory)):
                    what = f"arrays of {mib} MiB, {how}"
                    await processor_time(what, times, repeats, far_sink, partial(arrays, source))
            if importlib.util.find_spec("zmq") is None:
                print("zmq: pyzmq is not installed")
            else:
                await beside_zmq(count, repeats, far, far_sink)
            links = {link.peer: link.memory for link in node.statistics().links}
            assert links == {"child": "switched off at child", "sharing": "shared"}, links
        finally:
            server.close()
            if raw.done():
                raw.result().transport.close()
    await child.wait()


async def beside_zmq(
    count: int, repeats: int, source: Ref[TellMsg | TellArraysMsg], sink: Ref[EchoMsg | ProcessorTimeMsg]
) -> None:
    """Compare the same messages with blocking sockets of ZeroMQ."""
    from wire_zmq import ZmqPeer  # optional: pyzmq may not be installed

    loop = asyncio.get_running_loop()
    peer: ZmqPeer = await loop.run_in_executor(None, ZmqPeer)

    async def bare(measured: Callable[..., float], *given: int) -> float:
        return await loop.run_in_executor(None, measured, *given)

    async def arrays(times: int, mib: int) -> float:
        return times * mib * MIB / await source.ask(TellArraysMsg(count=times, nbytes=mib * MIB)) / 1e9

    try:
        await compare("tell, zmq", "/s", repeats, lambda: tells(source, count), lambda: bare(peer.tells, count))
        await compare("ask, zmq", "us", repeats, lambda: asks(sink, 2000), lambda: bare(peer.asks, 2000))
        at_once = partial(asks_at_once, sink, 20_000)
        await compare("ask, zmq, 100 at once", "/s", repeats, at_once, lambda: bare(peer.asks_at_once, 20_000))
        for mib in (1, 16):
            times, of_zmq = 256 // mib, partial(bare, peer.arrays, 256 // mib, mib * MIB)
            await compare(f"arrays of {mib} MiB, zmq", "GB/s", repeats, partial(arrays, times, mib), of_zmq)
    finally:
        await loop.run_in_executor(None, peer.close)


async def processor_time(
    what: str, count: int, repeats: int, sink: Ref[ProcessorTimeMsg], run: Callable[[], Awaitable[float]]
) -> None:
    """Print the processor time of `run` per message at each end, which other load on the machine affects less."""
    measured = []
    for _ in range(repeats):
        there, here = await sink.ask(ProcessorTimeMsg()), time.process_time()
        await run()
        here = time.process_time() - here
        measured.append((here, await sink.ask(ProcessorTimeMsg()) - there))
    here, there = (statistics.median(column) / count * 1e6 for column in zip(*measured, strict=True))
    print(f"{what:24} {here:>11.2f} us {there:>11.2f} us of processor time at each end", flush=True)


async def compare(
    what: str, unit: str, repeats: int, ours: Callable[[], Awaitable[float]], bare: Callable[[], Awaitable[float]]
) -> None:
    """Measure both in turn, and print the medians and their ratio."""
    measured: list[tuple[float, float]] = []
    await ours()
    await bare()
    for _ in range(repeats):
        measured.append((await ours(), await bare()))  # noqa: PERF401 (they must not overlap)
    mine, base = (statistics.median(column) for column in zip(*measured, strict=True))
    ratio = mine / base if unit == "us" else base / mine
    shown: list[Any] = [_shown(value, unit) for value in (mine, base)]
    print(f"{what:24} {shown[0]:>14} {shown[1]:>14} {ratio:>8.2f}x", flush=True)


def _shown(value: float, unit: str) -> str:
    if unit == "us":
        return f"{value * 1e6:,.0f} us"
    return f"{value:,.2f} GB/s" if unit == "GB/s" else f"{value:,.0f} /s"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=50_000, help="messages of each measurement")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each")
    parser.add_argument("--child", nargs=2, metavar=("ROOT", "PORT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        with tuned_gc():
            run_loop(be_child(options.child[0], int(options.child[1])))
        return
    print(f"{'':24} {'actors':>14} {'baseline':>14} {'cost':>9}")
    with tuned_gc():
        run_loop(measure(options.count, options.repeats))


if __name__ == "__main__":
    main()
