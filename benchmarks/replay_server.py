"""Transitions through a replay server, across processes: this package, the raw socket, and Reverb.

    python benchmarks/replay_server.py --rounds 5

Rows of W1 (float32[84] observation and next observation, int64 action, float32 reward, done); a client in a process of
its own holds 2^17 of them, or inserts. Batches of 256 are drawn by priority, and each gets new priorities. The floor is
what is on the wire and nothing else: a process that sends as many bytes as such a batch has for each byte that it is
sent, over TCP, and takes as many bytes of priorities. Insertion is measured until the last row is there.

Reverb needs TensorFlow, whose NumPy is another than this package's, so a Python of its own measures it in the same
rounds: `--reverb /path/to/python`, which runs `benchmarks/reverb_side.py`. Rounds alternate; figures are medians over
rounds, ratios medians of ratios within a round.
"""

import argparse
import json
import multiprocessing
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.replay import Field, Layout, ReplayClient, ReplayServer

ROWS, BATCH, HELD, CHUNK = 4096, 256, 2**17, 64
FIELDS = {
    "obs": Field(np.float32, (84,)),
    "next_obs": Field(np.float32, (84,)),
    "action": Field(np.int64),
    "reward": Field(np.float32, finite=True),
    "done": Field(np.bool_),
}
SECRET = b"known to both sides of the benchmark"
PRIORITY_BYTES = BATCH * 3 * 8
"""Of indices, generations and priorities."""


def make_rows(n: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    return {
        "obs": rng.random((n, 84), np.float32),
        "next_obs": rng.random((n, 84), np.float32),
        "action": rng.integers(0, 18, n),
        "reward": rng.random(n, np.float32),
        "done": rng.random(n) < 0.01,
    }


def per_second(job: Callable[[], int], seconds: float, finish: Callable[[], object] = lambda: None) -> float:
    """Return how many of what `job` counts are done in a second."""
    n, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        n += job()
    finish()
    return n / (time.perf_counter() - start)


def be_client(address: str, fill: int, orders: Connection) -> None:
    """Hold `fill` rows, and insert for as long as is ordered."""
    rows = make_rows(ROWS, np.random.default_rng(1))
    one = {name: array[0] for name, array in rows.items()}
    chunk = {name: array[:CHUNK] for name, array in rows.items()}
    with ReplayClient(address, "worker", secret=SECRET, high_water=4 * ROWS) as client:

        def by_the_chunk() -> int:
            client.add_entries(chunk)
            return CHUNK

        def one_by_one() -> int:
            for _ in range(CHUNK):
                client.add_entry(one)
            return CHUNK

        for _ in range(fill // ROWS):
            client.add_entries(rows)
        client.flush()
        orders.send(None)
        while order := orders.recv():
            how, seconds = order
            job = by_the_chunk if how == "64" else one_by_one
            orders.send(per_second(job, seconds, client.flush))


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
        stack.callback(process.join)
        stack.callback(self.orders.send, None)
        self.orders.recv()

    def sample(self, seconds: float) -> float:
        def job() -> int:
            self.server.update(self.server.sample(BATCH), self.priorities)
            return 1

        return per_second(job, seconds)

    def insert(self, how: str, seconds: float) -> float:
        self.orders.send((how, seconds))
        return float(self.orders.recv())


def send_bytes(n_bytes: int, port: int) -> None:
    """Send so many bytes whenever asked, and take what goes back."""
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
    """The bytes of a batch, and those of its priorities, over a socket."""

    def __init__(self, stack: ExitStack) -> None:
        rows = make_rows(BATCH, np.random.default_rng(3))
        n_bytes = sum(array.nbytes for array in rows.values()) + PRIORITY_BYTES
        self.batch, self.back = bytearray(n_bytes), bytes(PRIORITY_BYTES)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            spawn = multiprocessing.get_context("spawn")
            args = (len(self.batch), listening.getsockname()[1])
            process = spawn.Process(target=send_bytes, args=args, daemon=True)
            process.start()
            stack.callback(process.join)
            self.end = stack.enter_context(listening.accept()[0])
        self.end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def sample(self, seconds: float) -> float:
        def job() -> int:
            self.end.send(b"?")
            receive(self.end, memoryview(self.batch))
            self.end.sendall(self.back)
            return 1

        return per_second(job, seconds)


class Reverb:
    """Its server and clients, run by another Python: `benchmarks/reverb_side.py` answers a line by a line."""

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

    def sample(self, seconds: float) -> float:
        return float(self._ask("sample", seconds))

    def insert(self, seconds: float) -> float:
        return float(self._ask("insert", seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each measurement")
    parser.add_argument("--reverb", metavar="PYTHON", help="a Python that has dm-reverb and TensorFlow")
    args = parser.parse_args()
    with ExitStack() as stack:
        kept = {ahead: Ours("clients", ahead, stack) for ahead in (0, 4)}
        central = Ours("server", 0, stack)
        jobs: dict[tuple[str, str], Callable[[float], float]] = {
            ("batches of 256 and priorities", "raw socket"): Raw(stack).sample,
            ("batches of 256 and priorities", "kept by clients"): kept[0].sample,
            ("batches of 256 and priorities", "4 ahead"): kept[4].sample,
            ("batches of 256 and priorities", "kept by server"): central.sample,
        }
        for how in ("1", "64"):
            jobs[f"rows, inserted by {how}", "kept by clients"] = partial(kept[0].insert, how)
            jobs[f"rows, inserted by {how}", "kept by server"] = partial(central.insert, how)
        if args.reverb:
            reverb = Reverb(args.reverb, stack)
            jobs["batches of 256 and priorities", "Reverb"] = reverb.sample
            jobs["rows, inserted by 1", "Reverb"] = reverb.insert
        figures: dict[tuple[str, str], list[float]] = {job: [] for job in jobs}
        for _ in range(args.rounds):
            for key, run in jobs.items():
                figures[key].append(run(args.seconds))
        for (job, side), rates in figures.items():
            line = f"{job:32}{side:18}{median(rates):12,.0f} a second"
            for base in ("Reverb", "raw socket"):
                if base != side and (job, base) in figures:
                    times = median(a / b for a, b in zip(rates, figures[job, base], strict=True))
                    line += f"   {times:7.3g}x {base}"
            print(line)
        statistics = kept[0].server.statistics()  # of what was inserted and drawn in these rounds
        drawn, inserted = statistics.union.drawn, statistics.union.inserted
        print(
            f"kept by clients: {statistics.saved:.0%} of the bandwidth saved, {drawn:,} drawn of {inserted:,} inserted"
        )


if __name__ == "__main__":
    main()
