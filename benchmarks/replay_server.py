"""Transitions through a replay server, across processes: this package, the raw socket, and Reverb.

    python benchmarks/replay_server.py --rounds 5

Rows are those of W1: float32[84] observation and next observation, int64 action, float32 reward, bool done. A client
in a process of its own holds 2^17 of them, or inserts. Batches of 256 are sampled by priority, and each gets new
priorities. The raw socket is the floor: for each request byte a process sends as many bytes as such a batch has, over
TCP, and receives as many bytes as its priorities have. Inserts are measured until the last row is inserted.

Beside each rate stands the processor time per unit, in both processes together and in each. It is comparable even if
other programs use the machine.

Reverb needs TensorFlow, and so another NumPy. A separate Python measures it in the same rounds:
`--reverb /path/to/python` runs `benchmarks/reverb_side.py`. Rounds alternate; figures are medians over rounds, ratios
are medians of ratios within a round.
"""

import argparse
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from components.replay_buffers import Field
from components.replay_server import Layout, ReplayClient, ReplayServer

ROWS, BATCH, HELD, CHUNK = 4096, 256, 2**17, 64
AT_A_TIME = (1, 64, 1024)
"""Rows per call of the measured inserts, in chunks of CHUNK."""
FIELDS = {
    "obs": Field(np.float32, (84,)),
    "next_obs": Field(np.float32, (84,)),
    "action": Field(np.int64),
    "reward": Field(np.float32, finite=True),
    "done": Field(np.bool_),
}
SECRET = b"known to both sides of the benchmark"
PRIORITY_BYTES = BATCH * 3 * 8
"""Bytes of the indices, generations and priorities of a batch."""


def make_rows(n: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    return {
        "obs": rng.random((n, 84), np.float32),
        "next_obs": rng.random((n, 84), np.float32),
        "action": rng.integers(0, 18, n),
        "reward": rng.random(n, np.float32),
        "done": rng.random(n) < 0.01,
    }


class Measured(NamedTuple):
    """Result of one measurement."""

    rate: float
    """Units per second."""
    processor: dict[str, float]
    """Seconds of processor time per unit, by process."""


def processor_s(pid: int) -> float:
    """Return the processor time of a process so far, in seconds."""
    return time.clock_gettime((~pid << 3) | 2)  # the clock of another process; what `clock_getcpuclockid` returns


def measure(run: Callable[[float], tuple[int, float]], seconds: float, pids: Mapping[str, int]) -> Measured:
    """Measure `run`, which returns the number of its units and the seconds that they took."""
    before = {name: processor_s(pid) for name, pid in pids.items()}
    n, took = run(seconds)
    return Measured(n / took, {name: (processor_s(pid) - before[name]) / n for name, pid in pids.items()})


def repeat(job: Callable[[], int], seconds: float, finish: Callable[[], object] = lambda: None) -> tuple[int, float]:
    """Repeat `job`; return the sum of the units that it returns, and the seconds that they took."""
    n, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        n += job()
    finish()
    return n, time.perf_counter() - start


def be_client(address: str, fill: int, orders: Connection) -> None:
    """Run a client: hold `fill` rows, and insert for as long as ordered."""
    rows = make_rows(ROWS, np.random.default_rng(1))
    one = {name: array[0] for name, array in rows.items()}
    with ReplayClient(address, "worker", secret=SECRET, high_water=4 * ROWS) as client:

        def together(n: int) -> Callable[[], int]:
            some = {name: array[:n] for name, array in rows.items()}

            def add() -> int:
                client.add_entries(some)
                return n

            return add

        def one_by_one() -> int:
            for _ in range(CHUNK):
                client.add_entry(one)
            return CHUNK

        for _ in range(fill // ROWS):
            client.add_entries(rows)
        client.flush()
        orders.send(None)
        while order := orders.recv():
            at_a_time, seconds = order
            job = one_by_one if at_a_time == 1 else together(at_a_time)
            orders.send(repeat(job, seconds, client.flush))


class Ours:
    """A server here, and a client in another process."""

    def __init__(self, kept_by: Any, ahead: int, stack: ExitStack) -> None:
        layout = Layout(FIELDS, HELD, kept_by=kept_by, chunk=CHUNK)
        self.server = stack.enter_context(ReplayServer(layout, secret=SECRET, ahead=ahead))
        self.priorities = np.random.default_rng(2).random(BATCH)
        spawn = multiprocessing.get_context("spawn")
        self.orders, theirs = spawn.Pipe()
        process = spawn.Process(target=be_client, args=(self.server.address, HELD, theirs), daemon=True)
        process.start()
        assert process.pid is not None
        self.pids = {"server": os.getpid(), "client": process.pid}
        stack.callback(process.join)
        stack.callback(self.orders.send, None)
        self.orders.recv()

    def sample(self, seconds: float) -> Measured:
        def job() -> int:
            self.server.update(self.server.sample(BATCH), self.priorities)
            return 1

        return measure(partial(repeat, job), seconds, self.pids)

    def insert(self, at_a_time: int, seconds: float) -> Measured:
        def run(seconds: float) -> tuple[int, float]:
            self.orders.send((at_a_time, seconds))
            n, took = self.orders.recv()
            return n, took

        return measure(run, seconds, self.pids)


def send_bytes(n_bytes: int, port: int) -> None:
    """Send `n_bytes` for each request byte, and receive the priorities."""
    with socket.create_connection(("127.0.0.1", port)) as end:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        batch, back = bytes(n_bytes), bytearray(PRIORITY_BYTES)
        while end.recv(1):
            end.sendall(batch)
            receive(end, memoryview(back))


def receive(end: socket.socket, into: memoryview) -> None:
    while into:
        n = end.recv_into(into)
        if not n:
            raise ConnectionError("the other side has closed")
        into = into[n:]


class Raw:
    """The bytes of a batch and of its priorities, over a socket."""

    def __init__(self, stack: ExitStack) -> None:
        rows = make_rows(BATCH, np.random.default_rng(3))
        n_bytes = sum(array.nbytes for array in rows.values()) + PRIORITY_BYTES
        self.batch, self.back = bytearray(n_bytes), bytes(PRIORITY_BYTES)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            spawn = multiprocessing.get_context("spawn")
            args = (len(self.batch), listening.getsockname()[1])
            process = spawn.Process(target=send_bytes, args=args, daemon=True)
            process.start()
            assert process.pid is not None
            self.pids = {"here": os.getpid(), "there": process.pid}
            stack.callback(process.join)
            self.end = stack.enter_context(listening.accept()[0])
        self.end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def sample(self, seconds: float) -> Measured:
        def job() -> int:
            self.end.send(b"?")
            receive(self.end, memoryview(self.batch))
            self.end.sendall(self.back)
            return 1

        return measure(partial(repeat, job), seconds, self.pids)


class Reverb:
    """Reverb's server and clients, in another Python that runs `benchmarks/reverb_side.py`."""

    def __init__(self, python: str, stack: ExitStack) -> None:
        script = Path(__file__).with_name("reverb_side.py")
        args = [python, str(script), str(HELD), str(BATCH)]
        pipe = subprocess.PIPE
        self.process = stack.enter_context(subprocess.Popen(args, stdin=pipe, stdout=pipe, text=True, bufsize=1))
        assert self.process.stdin is not None
        stack.callback(self.process.stdin.close)
        print("Reverb", self._ask("version"))

    def _ask(self, *order: object) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"reverb_side.py: expected an answer to {order}, but it has ended")
        return json.loads(answer)

    def sample(self, seconds: float) -> Measured:
        return Measured(float(self._ask("sample", seconds)), {})

    def insert(self, seconds: float) -> Measured:
        return Measured(float(self._ask("insert", seconds)), {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each measurement")
    parser.add_argument("--reverb", metavar="PYTHON", help="a Python that has dm-reverb and TensorFlow")
    args = parser.parse_args()
    with ExitStack() as stack:
        kept = {ahead: Ours("clients", ahead, stack) for ahead in (0, 4)}
        central = Ours("server", 0, stack)
        jobs: dict[tuple[str, str], Callable[[float], Measured]] = {
            ("batches of 256 and priorities", "raw socket"): Raw(stack).sample,
            ("batches of 256 and priorities", "kept by clients"): kept[0].sample,
            ("batches of 256 and priorities", "4 ahead"): kept[4].sample,
            ("batches of 256 and priorities", "kept by server"): central.sample,
        }
        for n in AT_A_TIME:
            jobs[f"rows, inserted by {n}", "kept by clients"] = partial(kept[0].insert, n)
            jobs[f"rows, inserted by {n}", "kept by server"] = partial(central.insert, n)
        if args.reverb:
            reverb = Reverb(args.reverb, stack)
            jobs["batches of 256 and priorities", "Reverb"] = reverb.sample
            jobs["rows, inserted by 1", "Reverb"] = reverb.insert
        figures: dict[tuple[str, str], list[Measured]] = {job: [] for job in jobs}
        for _ in range(args.rounds):
            for key, run in jobs.items():
                figures[key].append(run(args.seconds))
        for (job, side), rounds in figures.items():
            line = f"{job:32}{side:18}{median(it.rate for it in rounds):12,.0f} a second"
            processor = {name: 1e6 * median(it.processor[name] for it in rounds) for name in rounds[0].processor}
            if processor:
                each = ", ".join(f"{name} {us:,.1f}" for name, us in processor.items())
                line += f"   {sum(processor.values()):9,.1f} µs of processor time each ({each})"
            for base in ("Reverb", "raw socket"):
                if base != side and (job, base) in figures:
                    times = median(a.rate / b.rate for a, b in zip(rounds, figures[job, base], strict=True))
                    line += f"   {times:7.3g}x {base}"
            print(line)
        statistics = kept[0].server.statistics()  # of the items inserted and drawn in these rounds
        drawn, inserted = statistics.union.drawn, statistics.union.inserted
        print(
            f"kept by clients: {statistics.saved:.0%} of the bandwidth saved, {drawn:,} drawn of {inserted:,} inserted"
        )


if __name__ == "__main__":
    main()
