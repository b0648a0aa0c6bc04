"""A step of the agents' network in a worker, by the compiled loop and by torch: `python benchmarks/acting.py`.

The loop and torch take turns to choose actions for B environments of 8m, with one thread and the same parameters. The
benchmark prints the medians of the rounds and the median of their ratios, which is below 1 where the loop is faster.
"""

import argparse
import statistics
import time
from typing import Any

import numpy as np

from components.envs import Skirmish
from components.policies import ALGORITHMS, ActingPolicy
from components.threads import with_torch_threads

STEPS = 40


def microseconds(policy: ActingPolicy, arrays: dict[str, Any]) -> float:
    """Return the duration of a step."""
    rng = np.random.default_rng(0)
    start = time.perf_counter()
    for _ in range(STEPS):
        policy.act(**arrays, epsilon=0.05, rng=rng)
    return (time.perf_counter() - start) / STEPS * 1e6


def measure(n_envs: int, rounds: int) -> None:
    """Print the durations for a number of environments."""
    env = Skirmish("8m", n_envs, seed=0)
    env.reset()
    by_torch, by_loop = ALGORITHMS["qmix"].learner(env.spec, seed=0), ALGORITHMS["qmix"].acting(env.spec, seed=0)
    by_loop.load(by_torch.params())
    arrays = {
        "obs": env.obs,
        "available": env.available,
        "last_actions": np.full(env.available.shape[:2], -1),
        "hidden": by_loop.initial_hidden(n_envs),
    }
    pairs = [(microseconds(by_loop, arrays), microseconds(by_torch, arrays)) for _ in range(rounds)]
    ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"{n_envs:6d} environments   loop {ours:7.0f} us   torch {theirs:7.0f} us   ratio {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31, help="pairs of measurements (default: 31)")
    args = parser.parse_args()
    for n_envs in (1, 8, 64, 256):
        with_torch_threads(1, measure, n_envs, args.rounds)


if __name__ == "__main__":
    main()
