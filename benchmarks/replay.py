"""Transitions in and out of a replay buffer: this package, plain NumPy, and cpprb where it is installed.

    python benchmarks/replay.py --rounds 7

The workload is the same for all: rows of float32[84] observation and next observation, int64 action, float32 reward
and done; a full ring of 2^20 rows; inserts of 64 rows and of one, uniform batches of 256, and prioritised batches of
256 each followed by an update of their priorities. Plain NumPy is what one would write at first: a dictionary of
arrays, fancy indexing, nothing checked, and for priorities a running sum over all rows, made anew for each batch.
Rounds alternate, so that what else the machine does falls on all; figures are medians over rounds, and ratios are
medians of ratios within a round.
"""

import argparse
import sys
from collections.abc import Callable
from importlib import import_module
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.replay import Field, PrioritizedTransitions, Transitions

ROWS, BATCH = 64, 256
FIELDS = {
    "obs": Field(np.float32, (84,)),
    "next_obs": Field(np.float32, (84,)),
    "action": Field(np.int64),
    "reward": Field(np.float32, finite=True),
    "done": Field(np.bool_),
}

Jobs = dict[str, Callable[[], object]]


def make_rows(n: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    return {
        "obs": rng.random((n, 84), np.float32),
        "next_obs": rng.random((n, 84), np.float32),
        "action": rng.integers(0, 18, n),
        "reward": rng.random(n, np.float32),
        "done": rng.random(n) < 0.01,
    }


class PlainReplay:
    """A dictionary of arrays."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.next = capacity, 0
        self.arrays = {name: np.empty((capacity, *f.shape), f.dtype) for name, f in FIELDS.items()}
        self.weights = np.ones(capacity)

    def insert(self, rows: dict[str, NDArray[Any]]) -> None:
        at = (self.next + np.arange(len(rows["action"]))) % self.capacity
        for name, array in self.arrays.items():
            array[at] = rows[name]
        self.weights[at] = 1.0
        self.next += len(at)

    def insert_one(self, row: dict[str, Any]) -> None:
        at = self.next % self.capacity
        for name, array in self.arrays.items():
            array[at] = row[name]
        self.weights[at] = 1.0
        self.next += 1

    def gather(self, at: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        return {name: array[at] for name, array in self.arrays.items()}

    def sample_prioritized(
        self, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]], NDArray[np.float64]]:
        ends = np.cumsum(self.weights)
        at = np.searchsorted(ends, rng.random(BATCH) * ends[-1], side="right")
        weights = self.weights[at] ** -0.4
        return at, self.gather(at), weights / weights.max()


def ours(capacity: int, rng: np.random.Generator, priorities: NDArray[np.float32]) -> Jobs:
    rows = make_rows(ROWS, rng)
    one = {name: array[0] for name, array in rows.items()}
    plain, prioritized = Transitions(FIELDS, capacity), PrioritizedTransitions(FIELDS, capacity)
    for _ in range(capacity // ROWS):
        plain.insert(rows)
        prioritized.insert(rows, rng.random(ROWS) + 0.01)

    def sample_and_update() -> None:
        sampled = prioritized.sample(BATCH, rng)
        prioritized.update(sampled.indices, sampled.generations, priorities)

    return {
        "insert 1": lambda: plain.insert_one(one),
        "insert 64": lambda: plain.insert(rows),
        "prioritised insert 64": lambda: prioritized.insert(rows),
        "uniform 256": lambda: plain.sample(BATCH, rng),
        "prioritised 256 + update": sample_and_update,
    }


def numpy_jobs(capacity: int, rng: np.random.Generator, priorities: NDArray[np.float32]) -> Jobs:
    rows, plain = make_rows(ROWS, rng), PlainReplay(capacity)
    one = {name: array[0] for name, array in rows.items()}
    for _ in range(capacity // ROWS):
        plain.insert(rows)
    plain.weights[:] = (rng.random(capacity) + 0.01) ** 0.6

    def sample_and_update() -> None:
        at, _, _ = plain.sample_prioritized(rng)
        plain.weights[at] = (priorities + 1e-6) ** 0.6

    return {
        "insert 1": lambda: plain.insert_one(one),
        "insert 64": lambda: plain.insert(rows),
        "prioritised insert 64": lambda: plain.insert(rows),
        "uniform 256": lambda: plain.gather(rng.integers(0, capacity, BATCH)),
        "prioritised 256 + update": sample_and_update,
    }


def cpprb_jobs(capacity: int, rng: np.random.Generator, priorities: NDArray[np.float32]) -> Jobs:
    """Return its jobs, or none where it is not installed."""
    try:
        cpprb = import_module("cpprb")
    except ImportError:
        return {}
    layout = {
        "obs": {"shape": 84, "dtype": np.float32},
        "next_obs": {"shape": 84, "dtype": np.float32},
        "action": {"dtype": np.int64},
        "reward": {"dtype": np.float32},
        "done": {"dtype": np.bool_},
    }
    plain, prioritized = cpprb.ReplayBuffer(capacity, layout), cpprb.PrioritizedReplayBuffer(capacity, layout)
    rows = make_rows(ROWS, rng)
    one = {name: array[0] for name, array in rows.items()}
    for _ in range(capacity // ROWS):
        plain.add(**rows)
        prioritized.add(**rows, priorities=rng.random(ROWS) + 0.01)

    def sample_and_update() -> None:
        sampled = prioritized.sample(BATCH, beta=0.4)
        prioritized.update_priorities(sampled["indexes"], priorities)

    return {
        "insert 1": lambda: plain.add(**one),
        "insert 64": lambda: plain.add(**rows),
        "prioritised insert 64": lambda: prioritized.add(**rows),
        "uniform 256": lambda: plain.sample(BATCH),
        "prioritised 256 + update": sample_and_update,
    }


def rate(job: Callable[[], object], seconds: float) -> float:
    """Return how often a job runs in a second, measured for about so long."""
    n, start = 0, perf_counter()
    while (elapsed := perf_counter() - start) < seconds:
        for _ in range(4):
            job()
        n += 4
    return n / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capacity", type=int, default=2**20)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.25, help="for each measurement")
    args = parser.parse_args()
    if args.capacity < ROWS or args.capacity % ROWS:
        parser.error(f"--capacity: expected a multiple of {ROWS}, got {args.capacity}")

    rng = np.random.default_rng(0)
    priorities = rng.random(BATCH, np.float32)
    makers = {"this package": ours, "plain NumPy": numpy_jobs, "cpprb": cpprb_jobs}
    sides = {name: jobs for name, make in makers.items() if (jobs := make(args.capacity, rng, priorities))}
    if "cpprb" not in sides:
        print("cpprb is not installed: left out of the comparison", file=sys.stderr)
    figures: dict[tuple[str, str], list[float]] = {(side, job): [] for side in sides for job in sides[side]}
    for _ in range(args.rounds):
        for job in sides["this package"]:
            for side, jobs in sides.items():
                figures[side, job].append(rate(jobs[job], args.seconds))

    print(f"{'per second':28}" + "".join(f"{side:>16}" for side in sides))
    for job in sides["this package"]:
        mine, line = figures["this package", job], f"{job:28}{median(figures['this package', job]):16,.0f}"
        for side in list(sides)[1:]:
            theirs = figures[side, job]
            ratio = median(a / b for a, b in zip(mine, theirs, strict=True))
            line += f"{median(theirs):10,.0f} {ratio:4.1f}x"
        print(line)


if __name__ == "__main__":
    main()
