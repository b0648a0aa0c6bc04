"""Environment steps per second of the embedded simulator, random available actions, on one core.

    python benchmarks/simulator.py --scenarios 3m 8m 2s3z 5m_vs_6m 27m_vs_30m --sizes 1 64 --seconds 1

A step includes everything an agent needs for the next step: the battle, observations, state, available actions and
reward, and the resets of battles that ended. The choice of the random actions is never counted. Seconds are processor
time, which other load on the machine affects less; only ratios within one run are meaningful. Baselines, measured in
the same run:

- interpreted: the same kernel, run by Python instead of numba, in a process of its own;
- SMAClite (uoe-agents/smaclite), the numpy re-implementation that researchers use, and SMAX of JaxMARL
  (FLAIROx/JaxMARL), the one on JAX, each where it is installed. SMAX plays a simpler game; its steps include its
  observations, on the same number of battles, and compilation is not counted.

Then follow the cost of each part of a tick, the growth of the cost with units and with battles, the extra cost of the
interface of SMAC, and the gain by a second thread.
"""

import argparse
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from components.envs import SCENARIOS, Skirmish, StarCraft2Env
from components.envs.skirmish.compiling import COMPILED
from components.envs.skirmish.kernel import tick, views
from components.envs.skirmish.kernel.crowd import separate

PARTS = ("choose targets", "find ways", "decide", "walk", "fight", "recover", "keep apart")


def at_random(available: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return uniformly random available actions, (B, A)."""
    return np.asarray(np.argmax(rng.random(available.shape, dtype=np.float32) * available, axis=2), np.int64)


def rate(scenario: str, copies: int, seconds: float) -> float:
    """Return the steps per second of `copies` battles; each step of each battle counts."""
    env = Skirmish(scenario, copies)
    rng = np.random.default_rng(0)
    env.reset()
    env.step(np.argmax(env.available, axis=2))  # loads the compiled code
    steps, spent = 0, 0.0
    while spent < seconds:
        over = env.terminated | env.truncated
        if over.any():
            start = process_time()
            env.reset(over)
            spent += process_time() - start
        actions = at_random(env.available, rng)
        start = process_time()
        env.step(actions)
        spent += process_time() - start
        steps += copies
    return steps / spent


def interpreted_rate(scenario: str, seconds: float) -> float:
    """Return the steps per second of one battle when Python interprets the kernel."""
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
    """Return the steps per second of one SMAClite environment; None if it is not installed or lacks the scenario."""
    if importlib.util.find_spec("smaclite") is None:
        return None
    importlib.import_module("smaclite")  # registers its scenarios
    gymnasium = importlib.import_module("gymnasium")
    try:
        env = gymnasium.make(f"smaclite/{scenario}-v0")
    except gymnasium.error.UnregisteredEnv:
        return None
    rng = np.random.default_rng(0)
    _, info = env.reset()
    steps, spent = 0, 0.0
    while spent < seconds:
        available = np.array(info["avail_actions"])
        actions = np.argmax(rng.random(available.shape) * available, axis=1).tolist()
        start = process_time()
        _, _, terminated, truncated, info = env.step(actions)
        if terminated or truncated:
            _, info = env.reset()
        spent += process_time() - start
        steps += 1
    return steps / spent


def smax_rate(scenario: str, seconds: float, copies: int = 64) -> float | None:
    """Return the steps per second of `copies` SMAX battles; None if it is not installed or lacks the scenario."""
    if importlib.util.find_spec("jaxmarl") is None:
        return None
    jax = importlib.import_module("jax")
    jaxmarl = importlib.import_module("jaxmarl")
    maps = importlib.import_module("jaxmarl.environments.smax")
    try:
        env = jaxmarl.make("HeuristicEnemySMAX", scenario=maps.map_name_to_scenario(scenario))
    except KeyError:
        return None

    def step(key: Any, state: Any) -> tuple[Any, Any]:
        key, choosing, playing = jax.random.split(key, 3)
        available = env.get_avail_actions(state)
        keys = jax.random.split(choosing, env.num_agents)
        actions = {
            agent: jax.random.categorical(keys[i], jax.numpy.log(available[agent] + 1e-9))
            for i, agent in enumerate(env.agents)
        }
        _, state, _, _, _ = env.step(playing, state, actions)
        return key, state

    keys = jax.random.split(jax.random.PRNGKey(0), copies)
    _, state = jax.vmap(env.reset)(keys)
    many = jax.jit(jax.vmap(step))
    for _ in range(3):  # it compiles at the first call, and again for the types of its own results
        keys, state = jax.block_until_ready(many(keys, state))
    steps, start = 0, process_time()
    while process_time() - start < seconds:
        keys, state = jax.block_until_ready(many(keys, state))
        steps += copies
    return steps / (process_time() - start)


def baselines(scenario: str, seconds: float) -> dict[str, float]:
    """Return the steps per second of all other simulators that are installed, by name."""
    found = {"interpreted": interpreted_rate(scenario, seconds)}
    others: dict[str, Callable[[str, float], float | None]] = {"SMAClite": smaclite_rate, "SMAX": smax_rate}
    for name, measure in others.items():
        measured = measure(scenario, seconds)
        if measured is None:
            print(f"{scenario}: {name} is not installed or lacks this scenario, so it is not compared")
        else:
            found[name] = measured
    return found


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator, unused-ignore]  # numba has no types
def _play_parts(
    last: int,
    raw: Any,
    moments: Any,
    units: Any,
    battle: Any,
    kinds: Any,
    damage: Any,
    rules: Any,
    footing: Any,
    ways: Any,
    places: Any,
    height: Any,
    available: Any,
    obs: Any,
    state: Any,
) -> None:
    """Play a tick up to part `last` from each of the moments; with -2 write the observations, with -1 do nothing."""
    for moment in range(len(moments)):
        raw[:] = moments[moment]
        if last == -2:
            views.show(units, battle, kinds, rules, footing[0], height, available, obs, state)
        if last >= 0:
            tick.choose_all(units, battle, kinds, rules)
        if last >= 1 and len(ways) > 0:
            tick.find_ways(units, kinds, ways)
        events = 0
        if last >= 2:
            events = tick.decide_all(units, kinds)
        if last >= 3:
            tick.walk_all(units, kinds, rules, footing)
        if last >= 4 and events > 0:
            tick.fight_all(events, units, battle, kinds, damage, rules)
        if last >= 5:
            tick.recover_all(units, kinds, rules)
        if last >= 6:
            separate(units, kinds, rules, footing, places)


def cost_of_parts(scenario: str, seconds: float) -> dict[str, float]:
    """Return the nanoseconds of each part of a tick, in battles of random play; and of the observations, per step."""
    env = Skirmish(scenario, 64, start_jitter=0.1)
    env.reset()
    rng = np.random.default_rng(0)
    found = []
    for step in range(48):
        env.step(at_random(env.available, rng))
        over = env.terminated | env.truncated
        if step % 4 == 0:
            found.append(env.units[~over].copy())
        env.reset(over)
    moments = np.concatenate(found)
    units = np.zeros(moments.shape[1], moments.dtype)
    raw, kept = units.view(np.int64), moments.view(np.int64).reshape(len(moments), -1)
    (damage, ways, places), (footing, height, *_) = env._ground, env._seen
    world = (env.kinds[0], damage, env._rules[0], footing, ways, places, height)

    def nanoseconds(last: int) -> float:
        def once() -> None:
            seen = (env.available[0], env.obs[0], env.state[0])
            _play_parts(last, raw, kept, units, env.battles[0], *world, *seen)

        once()
        least, spent = np.inf, 0.0
        while spent < seconds / 8:
            start = process_time()
            for _ in range(8):
                once()
            took = process_time() - start
            spent += took
            least = min(least, took / 8)
        return least / len(kept) * 1e9

    nothing = nanoseconds(-1)
    sums = [nothing, *(nanoseconds(last) for last in range(len(PARTS)))]
    costs = {part: max(b - a, 0.0) for part, a, b in zip(PARTS, sums, sums[1:], strict=False)}
    return costs | {"see, once a step": nanoseconds(-2) - nothing}


def print_parts(scenario: str, seconds: float) -> None:
    """Print the cost of each part of a tick."""
    costs = cost_of_parts(scenario, seconds)
    seen = costs.pop("see, once a step")
    whole = sum(costs.values())
    print(f"{scenario}: a tick takes {whole:,.0f} ns in the midst of a battle; what is seen, {seen:,.0f} ns a step")
    for part, cost in costs.items():
        print(f"    {part:<22}{cost:10,.0f} ns {cost / whole:6.0%}")


def print_growth(seconds: float) -> None:
    """Print how the cost grows with units and with battles."""
    print("growth with units, B = 64:")
    for scenario in ("3m", "8m", "25m", "27m_vs_30m"):
        units = len(SCENARIOS[scenario].allies + SCENARIOS[scenario].enemies)
        step = 1e9 / rate(scenario, 64, seconds)
        print(f"    {scenario:<12}{units:4} units {step:10,.0f} ns a step {step / units:8,.0f} ns a step and unit")
    print("growth with battles, 8m:")
    for copies in (1, 4, 16, 64, 256):
        print(f"    B = {copies:<6}{1e9 / rate('8m', copies, seconds):12,.0f} ns a step of one battle")


def single_rate(scenario: str, seconds: float) -> float:
    """Return the steps per second through the interface of SMAC's own class, with all calls that a learner makes."""
    env = StarCraft2Env(scenario, seed=0)
    env.reset()
    rng = np.random.default_rng(0)
    steps, spent, ended = 0, 0.0, False
    while spent < seconds:
        start = process_time()
        if ended:
            env.reset()
        available = env.get_avail_actions()
        spent += process_time() - start
        actions = np.argmax(rng.random((env.n_agents, env.n_actions)) * np.array(available), axis=1).tolist()
        start = process_time()
        _, ended, _ = env.step(actions)
        env.get_obs()
        env.get_state()
        spent += process_time() - start
        steps += 1
    return steps / spent


def threads_rate(scenario: str, threads: int, seconds: float) -> float:
    """Return the steps per second of wall-clock time of `threads` threads, each with 64 battles of its own."""
    counts = [0] * threads
    ready = threading.Barrier(threads + 1)
    stop = threading.Event()

    def play(number: int) -> None:
        env = Skirmish(scenario, 64, first=64 * number)
        env.reset()
        rng = np.random.default_rng(number)
        ready.wait()
        while not stop.is_set():
            env.step(at_random(env.available, rng))
            env.reset(env.terminated | env.truncated)
            counts[number] += 64

    running = [threading.Thread(target=play, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    ready.wait()
    start = perf_counter()
    stop.wait(seconds)
    stop.set()
    took = perf_counter() - start
    for thread in running:
        thread.join()
    return sum(counts) / took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", nargs="+", default=["3m", "8m", "2s3z"], choices=SCENARIOS, metavar="SCENARIO")
    parser.add_argument("--sizes", nargs="+", type=int, default=[1, 64])
    parser.add_argument("--seconds", type=float, default=2.0, help="of measured time per figure")
    parser.add_argument("--interpreted", help=argparse.SUPPRESS, choices=SCENARIOS)
    args = parser.parse_args()

    if args.interpreted:
        assert not COMPILED
        print(json.dumps(rate(args.interpreted, 1, args.seconds)))
        return

    for scenario in args.scenarios:
        others = baselines(scenario, args.seconds)
        for name, steps in others.items():
            print(f"{scenario:>14}  {name:<12} {steps:12,.0f} steps/s")
        for copies in args.sizes:
            measured = rate(scenario, copies, args.seconds)
            ratios = ", ".join(f"{measured / steps:,.0f} x {name}" for name, steps in others.items())
            print(f"{scenario:>14}  B = {copies:<8} {measured:12,.0f} steps/s  ({ratios})", flush=True)

    for scenario in args.scenarios:
        print_parts(scenario, args.seconds)
    print_growth(args.seconds)
    scenario = args.scenarios[-1]
    batched, single = rate(scenario, 1, args.seconds), single_rate(scenario, args.seconds)
    on_top = 1e6 / single - 1e6 / batched
    print(f"{scenario}: through StarCraft2Env {single:,.0f} steps/s: {on_top:.0f} us a step on top of Skirmish, B = 1")
    one, two = (threads_rate(scenario, threads, args.seconds) for threads in (1, 2))
    print(
        f"{scenario}: a second thread makes {two / one:.2f} times the steps of one (wall-clock time, choosing included)"
    )


if __name__ == "__main__":
    main()
