"""Reverb's side of `benchmarks/replay_server.py`, in a Python with dm-reverb and TensorFlow and without this package.

    python benchmarks/reverb_side.py HELD BATCH

Reverb's server runs in a process of its own, its client in this one. A `TrajectoryWriter` inserts rows, each as an
item, since it cannot append several; batches come from a `TimestepDataset`, its fastest way, and priorities return
through `mutate_priorities`. Each line of JSON on stdin is an order, answered by a line on stdout.
"""

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
TABLE = "rows"
SHAPES: dict[str, tuple[tuple[int, ...], Any]] = {
    "obs": ((84,), np.float32),
    "next_obs": ((84,), np.float32),
    "action": ((), np.int64),
    "reward": ((), np.float32),
    "done": ((), np.bool_),
}
FLUSH_EVERY = 64
"""Rows after which a writer flushes to the server."""


def serve(held: int, orders: Connection) -> None:
    """Run the server until told to end."""
    reverb, tf = import_module("reverb"), import_module("tensorflow")
    table = reverb.Table(
        name=TABLE,
        sampler=reverb.selectors.Prioritized(0.6),
        remover=reverb.selectors.Fifo(),
        max_size=held,
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature={name: tf.TensorSpec(shape, dtype) for name, (shape, dtype) in SHAPES.items()},
    )
    server = reverb.Server(tables=[table])
    orders.send(server.port)
    orders.recv()
    server.stop()


def per_second(job: Callable[[], int], seconds: float) -> float:
    n, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        n += job()
    return n / (time.perf_counter() - start)


def main() -> None:
    held, size = int(sys.argv[1]), int(sys.argv[2])
    spawn = multiprocessing.get_context("spawn")
    orders, theirs = spawn.Pipe()
    process = spawn.Process(target=serve, args=(held, theirs))
    process.start()
    address = f"localhost:{orders.recv()}"
    reverb = import_module("reverb")
    client, rng = reverb.Client(address), np.random.default_rng(0)
    row = {name: np.ones(shape, dtype) for name, (shape, dtype) in SHAPES.items()}
    writer = client.trajectory_writer(num_keep_alive_refs=1)

    def insert() -> int:
        for _ in range(FLUSH_EVERY):
            writer.append(row)
            trajectory = {name: column[-1] for name, column in writer.history.items()}
            writer.create_item(table=TABLE, priority=float(rng.random()), trajectory=trajectory)
        writer.flush()
        return FLUSH_EVERY

    for _ in range(held // 4 // FLUSH_EVERY):
        insert()
    dataset = reverb.TimestepDataset.from_table_signature(
        server_address=address, table=TABLE, max_in_flight_samples_per_worker=2 * size
    )
    batches = iter(dataset.batch(size))
    priorities = rng.random(size)

    def sample() -> int:
        keys = next(batches).info.key.numpy().tolist()
        client.mutate_priorities(TABLE, dict(zip(keys, priorities.tolist(), strict=True)))
        return 1

    for line in sys.stdin:
        what, *arguments = json.loads(line)
        answer: Any = version("dm-reverb")
        if what != "version":
            answer = per_second(sample if what == "sample" else insert, *arguments)
        print(json.dumps(answer), flush=True)
    orders.send(None)
    process.join()


if __name__ == "__main__":
    main()
