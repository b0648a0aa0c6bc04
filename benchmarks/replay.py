"""Transitions and episodes in and out of replay buffers: this package, plain NumPy, and peers that are installed.

    python benchmarks/replay.py --rounds 7

W1: rows of float32[84] observation and next observation, int64 action, float32 reward and done; a full ring of 2^20
rows, all of which have been drawn from. Plain NumPy is a simple first version: a dictionary of arrays, fancy indexing,
no checks, and for priorities a running sum over all rows, computed again for each batch. Tianshou and
Stable-Baselines3 insert 64 rows as the rows of 64 environments; Stable-Baselines3 has no priorities. TorchRL's
priorities need an extension that is built for one torch version only. W1 is measured in seconds of processor time,
because every side works in one thread.

W2: episodes of 8m, 120 steps of 8 agents, about 400 KB each, whole. Of the numbers in their observations and states
36 % are not zero and 26.5 % change in a frame, as where agents explore; two jobs are for dense episodes, in which
every number changes in every frame. Eight episodes are inserted as arrays, and as sparse arrays, in which form workers
send them. The floor is `np.take` of episodes that are one piece of bytes each, into memory
that exists already. One batch of the floor may fit into the cache, so this package drops each batch before it draws
the next. A learner often holds a batch while the next one is drawn; for that case both sides use two batches in turn.
New episodes replace the oldest ones, also in the floor. The raw socket sends the bytes of such a batch from another
process, over a unix socket, for each request byte.

Rounds alternate. Figures are medians over rounds, and ratios medians of ratios within a round.
"""

import argparse
import multiprocessing
import socket
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from importlib import import_module, metadata
from itertools import cycle
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.envs.base import EnvSpec
from components.replay_buffers import (
    EpisodeReplay,
    Episodes,
    Field,
    PrioritizedTransitions,
    Transitions,
)
from components.sparse import Encoder
from orchestra import SparseArray

ROWS, BATCH, EPISODES, TOGETHER = 64, 256, 32, 8
FIELDS = {
    "obs": Field(np.float32, (84,)),
    "next_obs": Field(np.float32, (84,)),
    "action": Field(np.int64),
    "reward": Field(np.float32, finite=True),
    "done": Field(np.bool_),
}
SPEC = EnvSpec("8m", n_agents=8, n_actions=14, obs_size=80, state_size=168, episode_limit=120)
NOT_ZERO, CHANGING = 0.36, 0.265
"""Share of the numbers in observations of 8m that are not zero, and that change in a frame, where agents explore."""
BATCH_FIELDS = ("obs", "state", "available", "actions", "reward")

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
    cpprb = import_module("cpprb")
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


def sb3_jobs(capacity: int, rng: np.random.Generator, priorities: NDArray[np.float32]) -> Jobs:
    spaces, replay = import_module("gymnasium.spaces"), import_module("stable_baselines3.common.buffers").ReplayBuffer
    import_module("torch").set_num_threads(1)
    rows = make_rows(ROWS, rng)
    observations = spaces.Box(-np.inf, np.inf, rows["obs"].shape[1:], np.float32)
    buffers, inserts = {}, {}
    for n in (1, ROWS):
        buffers[n] = replay(
            capacity, observations, spaces.Discrete(18), "cpu", n_envs=n, handle_timeout_termination=False
        )
        some = [rows[name][:n] for name in ("obs", "next_obs", "action", "reward", "done")]
        inserts[n] = partial(buffers[n].add, *some, [{}] * n)
        for _ in range(capacity // n):
            inserts[n]()
    return {"insert 1": inserts[1], "insert 64": inserts[ROWS], "uniform 256": lambda: buffers[ROWS].sample(BATCH)}


def tianshou_jobs(capacity: int, rng: np.random.Generator, priorities: NDArray[np.float32]) -> Jobs:
    data = import_module("tianshou.data")
    rows = make_rows(ROWS, rng)
    batch = data.Batch(
        obs=rows["obs"],
        obs_next=rows["next_obs"],
        act=rows["action"],
        rew=rows["reward"],
        terminated=rows["done"],
        truncated=np.zeros(ROWS, np.bool_),
    )
    plain = data.VectorReplayBuffer(capacity, ROWS)
    prioritized = data.PrioritizedVectorReplayBuffer(capacity, ROWS, alpha=0.6, beta=0.4)
    ids = np.arange(ROWS)
    for _ in range(capacity // ROWS):
        plain.add(batch, buffer_ids=ids)
        prioritized.add(batch, buffer_ids=ids)
    for start in range(0, capacity, BATCH):
        prioritized.update_weight(np.arange(start, start + BATCH), rng.random(BATCH) + 0.01)

    def sample_and_update() -> None:
        _, indices = prioritized.sample(BATCH)
        prioritized.update_weight(indices, priorities)

    return {
        "insert 64": lambda: plain.add(batch, buffer_ids=ids),
        "prioritised insert 64": lambda: prioritized.add(batch, buffer_ids=ids),
        "uniform 256": lambda: plain.sample(BATCH),
        "prioritised 256 + update": sample_and_update,
    }


def torchrl_jobs(capacity: int, rng: np.random.Generator, priorities: NDArray[np.float32]) -> Jobs:
    torch, data = import_module("torch"), import_module("torchrl.data")
    torch.set_num_threads(1)
    rows = {name: torch.from_numpy(array) for name, array in make_rows(ROWS, rng).items()}
    batch = import_module("tensordict").TensorDict(rows, [ROWS])
    plain = data.ReplayBuffer(storage=data.LazyTensorStorage(capacity), batch_size=BATCH)
    for _ in range(capacity // ROWS):
        plain.extend(batch)
    jobs: Jobs = {"insert 64": lambda: plain.extend(batch), "uniform 256": plain.sample}
    try:
        prioritized = data.PrioritizedReplayBuffer(
            alpha=0.6, beta=0.4, storage=data.LazyTensorStorage(capacity), batch_size=BATCH
        )
    except RuntimeError as error:
        print(f"TorchRL cannot draw by priority here ({error}): that is left out", file=sys.stderr)
        return jobs
    for _ in range(capacity // ROWS):
        prioritized.extend(batch)
    new = torch.from_numpy(priorities)

    def sample_and_update() -> None:
        _, info = prioritized.sample(return_info=True)
        prioritized.update_priority(info["index"], new)

    return jobs | {
        "prioritised insert 64": lambda: prioritized.extend(batch),
        "prioritised 256 + update": sample_and_update,
    }


PEERS = {"cpprb": cpprb_jobs, "Stable-Baselines3": sb3_jobs, "Tianshou": tianshou_jobs, "TorchRL": torchrl_jobs}


# W2 -------------------------------------------------------------------------------------------------------------------


def make_frames(n: int, item: tuple[int, ...], rng: np.random.Generator, *, dense: bool) -> NDArray[np.float32]:
    """Return the frames of `n` episodes, of `item` numbers each; if they are `dense`, all change in every frame."""
    t = SPEC.episode_limit
    still = 1 + rng.random((n, 1, *item), np.float32)
    numbers = 1 + rng.random((n, t + 1, *item), np.float32)
    if not dense:
        kind = rng.random((n, 1, *item))  # of each number in an episode
        numbers = np.where(kind < CHANGING, numbers, np.where(kind < NOT_ZERO, still, np.float32(0)))
    return numbers.reshape(n * (t + 1), *item)


def make_episodes(n: int, rng: np.random.Generator, *, dense: bool) -> Episodes:
    """Return `n` episodes with `make_frames`."""
    t, a = SPEC.episode_limit, SPEC.n_agents
    return Episodes(
        obs=make_frames(n, (a, SPEC.obs_size), rng, dense=dense),
        state=make_frames(n, (SPEC.state_size,), rng, dense=dense),
        available=rng.random((n * (t + 1), a, SPEC.n_actions)) < 0.5,
        actions=rng.integers(0, SPEC.n_actions, (n * t, a)),
        reward=rng.random(n * t, np.float32),
        terminated=np.ones(n, np.bool_),
        lengths=np.full(n, t, np.int32),
    )


def as_sent(episodes: Episodes) -> Episodes:
    """Return episodes as workers send them: their observations and states are sparse arrays."""
    frames = episodes.lengths.astype(np.int64) + 1
    fields = dict(episodes.fields)
    for name in ("obs", "state"):
        encoder, dense = Encoder(fields[name].shape[1:], fields[name].dtype), fields[name]
        bits, values, counts = np.empty((len(dense), encoder.groups), np.uint16), [], []
        for _, some, n_values in encoder.encode(dense, np.cumsum(frames) - frames, frames, bits):
            values.append(some.copy())
            counts += n_values.tolist()
        pieces = tuple(frames.tolist())
        fields[name] = SparseArray(bits, np.concatenate(values), dense.shape, pieces, tuple(counts))
    return Episodes(lengths=episodes.lengths, terminated=episodes.terminated, **fields)


def filled(capacity: int, rng: np.random.Generator, *, dense: bool) -> EpisodeReplay:
    replay, episodes = EpisodeReplay(SPEC, capacity), make_episodes(8, rng, dense=dense)
    while len(replay) < capacity:
        replay.insert(episodes)
    return replay


def serve_bytes(end: socket.socket, n_bytes: int) -> None:
    """Send the same bytes for each request byte."""
    batch = np.ones(n_bytes, np.uint8)
    while end.recv(1):
        end.sendall(batch.data)


def receive(end: socket.socket, into: memoryview) -> None:
    while into:
        into = into[end.recv_into(into) :]


class Server:
    """A process at the other end of a socket, until closed."""

    def __init__(self, serve: Callable[..., None], *args: int) -> None:
        self.end, theirs = socket.socketpair()
        self._process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, *args), daemon=True)
        self._process.start()
        theirs.close()

    def close(self) -> None:
        self.end.close()
        self._process.join()


def episode_jobs(capacity: int, rng: np.random.Generator) -> tuple[dict[str, Jobs], Server]:
    """Return the functions to measure, by job and side, and the server to close afterwards."""
    replay, dense = (filled(capacity, rng, dense=dense) for dense in (False, True))
    one, full = (make_episodes(1, rng, dense=dense) for dense in (False, True))
    some = make_episodes(TOGETHER, rng, dense=False)
    sent = as_sent(some)
    each = sum(one.fields[name].nbytes for name in BATCH_FIELDS)
    for name, held in (("episodes", replay), ("dense episodes", dense)):
        print(f"{name}: {held.n_bytes / capacity / each:.2f} of their bytes in memory")
    blob, out = np.ones((capacity, each), np.uint8), np.empty((EPISODES, each), np.uint8)
    raw = Server(serve_bytes, out.nbytes)
    outs, turn = cycle([out, np.zeros_like(out)]), cycle(range(capacity))
    received, kept = np.empty(out.nbytes, np.uint8), deque[object](maxlen=1)

    def insert_floor() -> None:
        blob[next(turn)] = out[0]

    def insert_some_floor() -> None:
        first = next(turn) * TOGETHER % (capacity - TOGETHER)
        blob[first : first + TOGETHER] = out[:TOGETHER]

    def sample_floor() -> None:
        blob.take(rng.choice(capacity, EPISODES, replace=False), axis=0, out=out, mode="clip")

    def sample_floor_of_two() -> None:
        blob.take(rng.choice(capacity, EPISODES, replace=False), axis=0, out=next(outs), mode="clip")

    def ask_raw() -> None:
        raw.end.send(b"?")
        receive(raw.end, received.data)

    jobs: dict[str, Jobs] = {
        "insert an episode": {"floor": insert_floor, "this package": lambda: replay.insert(one)},
        f"insert {TOGETHER} episodes": {"floor": insert_some_floor, "this package": lambda: replay.insert(some)},
        f"insert {TOGETHER} as sent": {"floor": insert_some_floor, "this package": lambda: replay.insert(sent)},
        "sample 32": {"floor": sample_floor, "this package": lambda: replay.sample(EPISODES, rng)},
        "sample 32, one is held": {
            "floor": sample_floor_of_two,
            "this package": lambda: kept.append(replay.sample(EPISODES, rng)),
        },
        "insert a dense episode": {"floor": insert_floor, "this package": lambda: dense.insert(full)},
        "sample 32 dense ones": {"floor": sample_floor, "this package": lambda: dense.sample(EPISODES, rng)},
        "unix socket, raw, 32": {"floor": sample_floor, "raw socket": ask_raw},
    }
    try:
        cpprb = import_module("cpprb")
    except ImportError:
        return jobs, raw
    episode = {name: one.fields[name] for name in BATCH_FIELDS}
    episodes = {name: some.fields[name].reshape(TOGETHER, *array.shape) for name, array in episode.items()}
    layout = {name: {"shape": array.shape, "dtype": array.dtype} for name, array in episode.items()}
    theirs = cpprb.ReplayBuffer(capacity, layout)
    for _ in range(capacity):
        theirs.add(**episode)
    jobs["insert an episode"]["cpprb"] = lambda: theirs.add(**episode)
    jobs[f"insert {TOGETHER} episodes"]["cpprb"] = lambda: theirs.add(**episodes)
    jobs[f"insert {TOGETHER} as sent"]["cpprb"] = lambda: theirs.add(**episodes)
    jobs["sample 32"]["cpprb"] = lambda: theirs.sample(EPISODES)
    return jobs, raw


# Measuring ------------------------------------------------------------------------------------------------------------


def rate(job: Callable[[], object], seconds: float, clock: Callable[[], float]) -> float:
    """Return how often a job runs in a second, measured for about `seconds`."""
    n, start = 0, clock()
    while (elapsed := clock() - start) < seconds:
        for _ in range(4):
            job()
        n += 4
    return n / elapsed


def measure(
    jobs: dict[str, Jobs], rounds: int, seconds: float, clock: Callable[[], float]
) -> dict[tuple[str, str], list[float]]:
    """Return by job and side how often it ran in a second, one figure for each round."""
    figures: dict[tuple[str, str], list[float]] = {(job, side): [] for job in jobs for side in jobs[job]}
    for _ in range(rounds):
        for job, sides in jobs.items():
            for side, run in sides.items():
                figures[job, side].append(rate(run, seconds, clock))
    return figures


def ratio(ones: list[float], others: list[float]) -> float:
    return median(a / b for a, b in zip(ones, others, strict=True))


def show(figures: dict[tuple[str, str], list[float]], base: str, unit: str) -> None:
    """Print a line for each job: each side's median, and its ratio to the base's."""
    sides = list(dict.fromkeys(side for _, side in figures))
    print(f"\n{unit:30}" + "".join(f"{side:>18}" for side in sides))
    for job in dict.fromkeys(job for job, _ in figures):
        line = f"{job:30}"
        for side in sides:
            theirs = figures.get((job, side))
            against = "" if side == base or not theirs else f" {ratio(theirs, figures[job, base]):6.2f}x"
            line += f"{median(theirs):>{18 - len(against)},.0f}{against}" if theirs else f"{'-':>18}"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capacity", type=int, default=2**20, help="rows of W1")
    parser.add_argument("--episodes", type=int, default=1000, help="episodes of W2")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.25, help="for each measurement")
    parser.add_argument("--only", choices=["W1", "W2"], help="one of the workloads")
    args = parser.parse_args()
    if args.capacity < BATCH or args.capacity % BATCH:
        parser.error(f"--capacity: expected a multiple of {BATCH}, got {args.capacity}")
    if args.episodes < EPISODES:
        parser.error(f"--episodes: expected at least {EPISODES}, got {args.episodes}")

    rng = np.random.default_rng(0)
    priorities = rng.random(BATCH, np.float32)
    if args.only != "W2":
        sides = {
            "this package": ours(args.capacity, rng, priorities),
            "plain NumPy": numpy_jobs(args.capacity, rng, priorities),
        }
        for name, make in PEERS.items():
            try:
                sides[name] = make(args.capacity, rng, priorities)
                print(f"{name} {metadata.version(name.lower())}")
            except ImportError as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
        jobs = {job: {side: run[job] for side, run in sides.items() if job in run} for job in sides["this package"]}
        for job in ("uniform 256", "prioritised 256 + update"):
            for run in list(jobs[job].values()) * (args.capacity // 1024):  # older rows may not be cached
                run()
        figures = measure(jobs, args.rounds, args.seconds, process_time)
        show(figures, "this package", "W1, per second")
        for job, runs in jobs.items():
            if peers := [side for side in runs if side in PEERS]:
                fastest = max(peers, key=lambda side: median(figures[job, side]))
                times = ratio(figures[job, "this package"], figures[job, fastest])
                print(f"{job}: {times:.2f} times the fastest peer, {fastest}")
        del sides, jobs
    if args.only != "W1":
        jobs, raw = episode_jobs(args.episodes, rng)
        figures = measure(jobs, args.rounds, args.seconds, perf_counter)
        show(figures, "floor", "W2, per second")
        raw.close()


if __name__ == "__main__":
    main()
