"""Environment steps per second of the embedded simulator, random available actions, on one core.

    python benchmarks/simulator.py --scenarios 3m 8m 2s3z --sizes 1 64 --seconds 2

A step counts everything an agent needs for the next: the battle, observations, state, available actions and reward,
and the resets of battles that ended. Choosing the random actions isn't counted, for nobody. Seconds are of
processor time, so that what else the machine does matters less. Baselines, measured in the same run:

- interpreted: the very same kernel, run by Python instead of numba, in a process of its own;
- SMAClite (uoe-agents/smaclite), the numpy re-implementation that researchers use, where it is installed.
"""

import argparse
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from time import process_time

import numpy as np

from components.envs import SCENARIOS, Skirmish
from components.envs.skirmish import kernel


def rate(scenario: str, copies: int, seconds: float) -> float:
    """Steps per second of `copies` battles, each step of one battle counted."""
    env = Skirmish(scenario, copies)
    rng = np.random.default_rng(0)
    env.reset()
    env.step(np.argmax(env.available, axis=2))  # compiles
    steps, spent = 0, 0.0
    while spent < seconds:
        over = env.terminated | env.truncated
        if over.any():
            start = process_time()
            env.reset(over)
            spent += process_time() - start
        actions = np.argmax(rng.random(env.available.shape, dtype=np.float32) * env.available, axis=2)
        start = process_time()
        env.step(actions)
        spent += process_time() - start
        steps += copies
    return steps / spent


def interpreted_rate(scenario: str, seconds: float) -> float:
    """Steps per second of one battle when Python interprets the kernel."""
    run = subprocess.run(
        [sys.executable, __file__, "--interpreted", scenario, "--seconds", str(seconds)],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    measured: float = json.loads(run.stdout)
    return measured


def smaclite_rate(scenario: str, seconds: float) -> float | None:
    """Steps per second of one SMAClite environment; None where it, or this scenario of it, isn't installed."""
    if importlib.util.find_spec("smaclite") is None:
        return None
    importlib.import_module("smaclite")  # registers its scenarios
    gymnasium = importlib.import_module("gymnasium")
    try:
        env = gymnasium.make(f"smaclite/{scenario}-v0")
    except gymnasium.error.NameNotFound:
        return None
    rng = np.random.default_rng(0)
    _, info = env.reset()
    steps, spent = 0, 0.0
    while spent < seconds:
        actions = [int(rng.choice(np.flatnonzero(available))) for available in info["avail_actions"]]
        start = process_time()
        _, _, terminated, truncated, info = env.step(actions)
        if terminated or truncated:
            _, info = env.reset()
        spent += process_time() - start
        steps += 1
    return steps / spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", nargs="+", default=["3m", "8m", "2s3z"], choices=SCENARIOS)
    parser.add_argument("--sizes", nargs="+", type=int, default=[1, 64])
    parser.add_argument("--seconds", type=float, default=2.0, help="of measured time per figure")
    parser.add_argument("--interpreted", help=argparse.SUPPRESS, choices=SCENARIOS)
    args = parser.parse_args()

    if args.interpreted:
        assert not kernel.COMPILED
        print(json.dumps(rate(args.interpreted, 1, args.seconds)))
        return

    for scenario in args.scenarios:
        baselines = {"interpreted": interpreted_rate(scenario, args.seconds)}
        smaclite = smaclite_rate(scenario, args.seconds)
        if smaclite is None:
            print(f"{scenario}: SMAClite is not installed or lacks this scenario, so it is not compared")
        else:
            baselines["SMAClite"] = smaclite
        for name, steps in baselines.items():
            print(f"{scenario:>14}  {name:<12} {steps:12,.0f} steps/s")
        for copies in args.sizes:
            measured = rate(scenario, copies, args.seconds)
            ratios = ", ".join(f"{measured / steps:,.0f} x {name}" for name, steps in baselines.items())
            print(f"{scenario:>14}  B = {copies:<8} {measured:12,.0f} steps/s  ({ratios})", flush=True)


if __name__ == "__main__":
    main()
