"""Environments in processes: acting on the ready ones, against lock-step and against Gymnasium's vector environments.

    python benchmarks/async_envs.py                  64 environments at the speed of the game, five rounds: 3 minutes
    python benchmarks/async_envs.py --envs 256 --rounds 3
    python benchmarks/async_envs.py --settings       minimum batch and environments in a process: 5 minutes

A step takes as long as one of StarCraft II (`components/envs/game_speed.py`: 10 ms, stragglers up to 50). The policy
takes the first available action, so the figures are those of the environments alone. The rows take turns in each round,
and all ratios are taken within a round. `of serial` is the ratio to one environment in this process.

CartPole shows what a step through a process costs where the environment costs nothing.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv as TheirVectorEnv
from gymnasium.vector import SyncVectorEnv

from components.envs import AsyncEnv, AsyncVectorEnv, Skirmish
from components.envs.base import ALL, Env
from components.envs.game_speed import GameSpeed
from components.envs.skirmish.gymnasium import SkirmishEnv

GAME = partial(GameSpeed, partial(Skirmish, "3m"))
WARM_UP_S = 0.5
Rate = Callable[[], float]


class SlowSkirmish(gymnasium.Wrapper[Any, Any, Any, Any]):
    """`SkirmishEnv` with the durations of `GameSpeed`."""

    def __init__(self) -> None:
        super().__init__(SkirmishEnv("3m"))
        self._pace = GameSpeed(partial(Skirmish, "3m"), 1, seed=int(np.random.SeedSequence().generate_state(1)[0]))

    def step(self, action: Any) -> Any:
        until = time.monotonic() + self._pace._duration()
        made = self.env.step(action)
        time.sleep(max(until - time.monotonic(), 0.0))
        return made


def in_turns(env: Env, seconds: float) -> float:
    """Return steps a second of all copies, driven by `send` and `recv`."""
    env.send_reset(ALL)
    ready = ALL if env.lock_step else np.empty(0, np.int64)
    made, since = 0, time.monotonic() + WARM_UP_S
    while (now := time.monotonic()) < since + seconds:
        if isinstance(ready, slice) or len(ready):
            env.send(env.available[ready].argmax(-1), ready)
        received = np.arange(env.n_envs)[env.recv()]
        made += len(received) * (now > since)
        done = received[(env.terminated | env.truncated)[received]]
        if len(done):
            env.send_reset(done)
        ready = ALL if env.lock_step else np.setdiff1d(received, done)
    return made / seconds


def in_lock_step(env: Env, seconds: float) -> float:
    """Return steps a second of all copies, driven by `step`."""
    env.reset()
    made, since = 0, time.monotonic() + WARM_UP_S
    while (now := time.monotonic()) < since + seconds:
        env.step(env.available.argmax(-1))
        made += env.n_envs * (now > since)
        done = env.terminated | env.truncated
        if done.any():
            env.reset(done)
    return made / seconds


def of_vector_env(env: Any, seconds: float, *, ready: bool = False) -> float:
    """Return steps a second of a Gymnasium vector environment, driven by `step`, or by `send` and `recv`."""
    env.reset(seed=0)
    actions = env.action_space.sample()
    made, since = 0, time.monotonic() + WARM_UP_S
    if ready:
        env.send(actions, np.arange(env.num_envs))
    while (now := time.monotonic()) < since + seconds:
        if ready:
            numbers = env.recv()[-1]["env_id"]
            env.send(actions[numbers], numbers)
        else:
            env.step(actions)
        made += (len(numbers) if ready else env.num_envs) * (now > since)
    return made / seconds


def closing(make: Callable[[], Any], rate: Callable[..., float], seconds: float, **options: Any) -> float:
    """Make an environment, measure it, and close it."""
    env = make()
    try:
        return rate(env, seconds, **options)
    finally:
        env.close()


def rows(n_envs: int, per_process: int, seconds: float) -> dict[str, Rate]:
    """Return the measurements by name; the baseline of all ratios first."""
    ours = partial(AsyncEnv, GAME, n_envs, envs_per_process=per_process)
    theirs = partial(TheirVectorEnv, [SlowSkirmish] * n_envs)
    return {
        "serial": partial(closing, partial(GAME, 1, seed=0), in_turns, seconds),
        "lock-step in processes": partial(closing, ours, in_lock_step, seconds),
        "ready ones": partial(closing, ours, in_turns, seconds),
        "Gymnasium's AsyncVectorEnv": partial(closing, theirs, of_vector_env, seconds),
    }


def settings(n_envs: int, seconds: float) -> dict[str, Rate]:
    """Return the settings to compare, by name; the default first."""
    found: dict[str, Rate] = {}
    for per_process in (1, 4, 16, 64):
        for batch in (1, n_envs // 16, n_envs // 4, n_envs // 2):
            make = partial(AsyncEnv, GAME, n_envs, envs_per_process=per_process, min_batch=batch, max_wait_s=0.005)
            found[f"{per_process:2} in a process, min_batch {batch:3}"] = partial(closing, make, in_turns, seconds)
    return found


def cartpole(seconds: float) -> dict[str, Rate]:
    """Return the rows of an environment that costs nothing, 8 of it."""
    makes: list[Callable[[], Any]] = [partial(gymnasium.make, "CartPole-v1")] * 8
    name = "CartPole-v1"
    return {
        "Gymnasium's AsyncVectorEnv": partial(closing, partial(TheirVectorEnv, makes), of_vector_env, seconds),
        "Gymnasium's SyncVectorEnv": partial(closing, partial(SyncVectorEnv, makes), of_vector_env, seconds),
        "AsyncVectorEnv, step": partial(closing, partial(AsyncVectorEnv, name, 8), of_vector_env, seconds),
        "AsyncVectorEnv, send and recv": partial(
            closing, partial(AsyncVectorEnv, name, 8), of_vector_env, seconds, ready=True
        ),
        "AsyncVectorEnv, 8 in a process, step": partial(
            closing, partial(AsyncVectorEnv, name, 8, envs_per_process=8), of_vector_env, seconds
        ),
    }


def compare(title: str, measured: dict[str, Rate], rounds: int) -> None:
    """Measure all rows in each round, and print the medians, and the medians of the ratios to the first."""
    told: list[dict[str, float]] = [{name: rate() for name, rate in measured.items()} for _ in range(rounds)]
    first = next(iter(measured))
    print(f"\n{title}")
    for name in measured:
        rate, ratio = median(r[name] for r in told), median(r[name] / r[first] for r in told)
        print(f"  {name:40} {rate:10,.0f} steps/s {ratio:8.2f} x")
    if "ready ones" in measured:
        ratio = median(r["ready ones"] / r["lock-step in processes"] for r in told)
        print(f"  ready ones, of lock-step{' ' * 35} {ratio:8.2f} x")


def main() -> None:
    """Parse the flags, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, default=64, help="environments")
    parser.add_argument("--envs-per-process", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--settings", action="store_true", help="compare settings instead")
    given = parser.parse_args()
    if given.settings:
        compare(f"{given.envs} environments, settings", settings(given.envs, given.seconds), given.rounds)
        return
    name = f"{given.envs} environments at the speed of the game, {given.envs_per_process} in a process"
    compare(name, rows(given.envs, given.envs_per_process, given.seconds), given.rounds)
    compare("8 environments that cost nothing", cartpole(given.seconds), given.rounds)


if __name__ == "__main__":
    main()
