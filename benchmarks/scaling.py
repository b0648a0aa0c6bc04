"""How collecting scales on one host: workers, environments, memory and the processor time of messages.

    python benchmarks/scaling.py                          every measurement, five rounds
    python benchmarks/scaling.py --only game --repeats 1
    python benchmarks/scaling.py --list

Each measurement belongs to one of these groups, and a ratio is taken within one round:

- game: environments at the speed of StarCraft II (`components/envs/game_speed.py`). The rate of environment steps is
  compared with that of serial QMIX, one environment that is played and learned from in turn. AWL-QMIX with its 12
  environments learns too. 64 and 256 environments only collect, so that the learner does not limit them.
- simulator: `qmix_8m` with 64 battles in a worker, without training, from when the replay buffer is full. Two worker
  processes are compared with one. For reference, two processes that play as workers do but send nothing are compared
  with one such process: this ratio is the most that the processors and their caches allow. The program also measures
  the processor time of messages, copies and proxy, as a share of all processor time. Threads that play and threads that
  save checkpoints count as neither. It measures the memory of a worker and of the proxy as proportional set size (PSS).

`parameters.py` measures how parameters reach the workers of a host, `memory.py` the memory of sixteen workers and the
time until they have joined. A test covers the killing of processes: `ORCHESTRA_KILLS=100 pytest
tests/end_to_end/test_random_kills.py`.

Medians of the rounds are printed beside the targets; `--output` keeps all rounds as JSON. The processors are those of
this machine: let nothing else run on it.
"""

import argparse
import json
import multiprocessing
import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import psutil
from steady_run import EXPERIMENTS, NEVER, Record, Running, collects, rates, running, trains

from components.envs import Skirmish
from components.policies.algorithm import ALGORITHMS
from components.rollout import Rollout
from components.threads import with_threads

QMIX = EXPERIMENTS / "dmcaf" / "qmix.py"
AWL = EXPERIMENTS / "dmcaf" / "awl_qmix.py"
MAIN = EXPERIMENTS / "qmix_8m.py"
BUFFER = 5000
"""Episodes that the replay buffer of `MAIN` keeps."""
STEPS_OF_A_TURN = 8
MB = 1e6
Values = dict[str, float]


@dataclass(frozen=True, slots=True)
class Target:
    """The required value of a figure."""

    about: str
    bound: float
    most: bool = False
    """True if the bound is the largest allowed value; else it is the smallest."""
    unit: str = "x"

    def holds(self, value: float) -> bool:
        return value <= self.bound if self.most else value >= self.bound

    def shown(self, value: float) -> str:
        return {"x": f"{value:.2f} x", "%": f"{value:.1%}", "MB": f"{value:.0f} MB", "/s": f"{value:,.0f}/s"}[self.unit]


TARGETS = {
    "game 12": Target("AWL-QMIX with 12 environments, of serial QMIX", 11.0),
    "game 64": Target("64 environments that only collect, of serial QMIX", 60.0),
    "game 256": Target("256 environments that only collect, of serial QMIX", 240.0),
    "asynchronous 64": Target("asynchronous, of lock-step, 64 environments", 1.5),
    "two workers": Target("two workers without training, of one", 1.85),
    "messages": Target("messages, copies and proxy, of processor time", 0.05, most=True, unit="%"),
    "worker PSS": Target("memory of a worker, 64 battles", 90.0, most=True, unit="MB"),
    "proxy PSS": Target("memory of the proxy", 50.0, most=True, unit="MB"),
}
AT_64 = ("--workers=1", "--envs-per-worker=64")
ASYNCHRONOUS = ("--envs-per-process=8",)
IDLE = f"--learning-starts={NEVER}"
LAYOUTS: dict[str, tuple[tuple[str, ...], Callable[[Record], bool]]] = {
    "game 12": ((), trains),
    "game 64": ((*AT_64, *ASYNCHRONOUS, IDLE), collects),
    "game 256": (("--workers=1", "--envs-per-worker=256", "--envs-per-process=64", "--min-batch=8", IDLE), collects),
    "lock-step 64": ((*AT_64, "--no-asynchronous", IDLE), collects),
}
"""Flags added to AWL-QMIX at the speed of the game, and the condition at which its steady state begins."""


# The speed of the game ------------------------------------------------------------------------------------------------


def game(seconds: float) -> Values:
    """Measure serial QMIX and all layouts at the speed of the game."""
    values = {"serial steps/s": rates(QMIX, "--game-speed", "--single-process", seconds=seconds).rate("env_steps")}
    for name, (flags, begins) in LAYOUTS.items():
        run = rates(AWL, "--game-speed", *flags, begins=begins, seconds=seconds)
        values[f"{name} steps/s"] = run.rate("env_steps")
        if name in TARGETS:
            values[name] = values[f"{name} steps/s"] / values["serial steps/s"]
    values["asynchronous 64"] = values["game 64 steps/s"] / values["lock-step 64 steps/s"]
    return values


# The simulator as it is -----------------------------------------------------------------------------------------------


def simulator(seconds: float) -> Values:
    """Measure one worker and two workers without training, and the resources of the processes of the two."""
    values: Values = {}
    for workers in (1, 2):
        with running(MAIN, f"--workers={workers}", IDLE) as run:
            run.measured(is_full, 2.0)
            before, since = processor_seconds(run), run.records()[-1]["elapsed_s"]
            moving = run.measured(partial(_is_after, since), seconds)
            after = processor_seconds(run)
            values[f"{workers} worker steps/s"] = moving.rate("env_steps")
            if workers == 2:
                spent = {name: after[name] - before[name] for name in before}
                values["messages"] = 1.0 - (spent["playing"] + spent["saving"]) / sum(spent.values())
                values |= {f"{name} processor share": spent[name] / sum(spent.values()) for name in spent}
                values |= memory(run)
        values[f"{workers} alone steps/s"] = alone(workers, seconds)
    values["two workers"] = values["2 worker steps/s"] / values["1 worker steps/s"]
    values["two alone"] = values["2 alone steps/s"] / values["1 alone steps/s"]
    return values


def alone(players: int, seconds: float) -> float:
    """Return the environment steps a second of `players` processes that play as a worker does, and send nothing."""
    context = multiprocessing.get_context("spawn")
    start, played = context.Barrier(players), context.Queue()
    processes = [context.Process(target=_play, args=(start, seconds, played)) for _ in range(players)]
    for process in processes:
        process.start()
    steps_per_s: float = sum(played.get(timeout=300.0) for _ in processes)
    for process in processes:
        process.join()
    return steps_per_s


def _play(start: Any, seconds: float, played: Any) -> None:
    """Play 64 battles at a time for `seconds` once all processes are ready; put the steps a second into `played`."""
    env = Skirmish("8m", 64, seed=0)
    rollout = Rollout(env, ALGORITHMS["qmix"].acting(env.spec, seed=0), np.random.default_rng(0))
    for _ in range(25):
        with_threads(1, rollout.collect, STEPS_OF_A_TURN, 1.0)
    start.wait()
    turns, since = 0, perf_counter()
    while (passed := perf_counter() - since) < seconds:
        with_threads(1, rollout.collect, STEPS_OF_A_TURN, 1.0)
        turns += 1
    played.put(turns * STEPS_OF_A_TURN * 64 / passed)


def is_full(record: Record) -> bool:
    """Return whether the replay buffer is full: until then the learner's process waits for the system's memory."""
    return collects(record) and bool(record["episodes"] > BUFFER)


def _is_after(since: float, record: Record) -> bool:
    return bool(record["elapsed_s"] >= since)


BESIDE = {"worker": "playing", "evaluator": "playing", "learner": "saving"}
"""What a process does in its threads beside the event loop."""


def processor_seconds(run: Running) -> Values:
    """Return the processor seconds so far: of threads that play, of those that save, and of all others by process.

    Workers and evaluators play, and a learner that does not learn saves checkpoints, in threads of their own. The event
    loop of a process, which sends, receives and writes to the replay buffer, is its main thread.
    """
    spent: defaultdict[str, float] = defaultdict(float, saving=0.0)
    for name, process in run.processes().items():
        process_name = name.partition("-")[0]
        beside = BESIDE.get(process_name, process_name)
        for thread in process.threads():
            seconds = thread.user_time + thread.system_time
            spent[process_name if thread.id == process.pid else beside] += seconds
    return dict(spent)


def memory(run: Running) -> Values:
    """Return the proportional set sizes in MB: the largest of the workers, and that of the proxy."""
    sizes = {name: process.memory_full_info().pss / MB for name, process in run.processes().items()}
    workers = [size for name, size in sizes.items() if name.startswith("worker")]
    return {"worker PSS": max(workers), "proxy PSS": sizes["host-0"], "learner PSS": sizes["learner"]}


GROUPS: dict[str, tuple[Callable[[float], Values], tuple[str, ...]]] = {
    "game": (game, ("game 12", "game 64", "game 256", "asynchronous 64")),
    "simulator": (simulator, ("two workers", "messages", "worker PSS", "proxy PSS")),
}
"""The function that measures a group once, and the targets among its values."""


def report(rounds: dict[str, list[Values]]) -> list[str]:
    """Return the lines of the table: medians beside the targets, and all other values."""
    lines = ["| what | measured | target | n | |", "|---|---|---|---|---|"]
    others: list[str] = []
    for measured in rounds.values():
        for name in measured[0]:
            values = [each[name] for each in measured]
            value = median(values)
            if name not in TARGETS:
                others.append(f"{name}: {value:,.3g}" if value < 100 else f"{name}: {value:,.0f}")
                continue
            target = TARGETS[name]
            bound = f"{'at most' if target.most else 'at least'} {target.shown(target.bound)}"
            verdict = "holds" if target.holds(value) else "missed"
            lines.append(f"| {target.about} | {target.shown(value)} | {bound} | {len(values)} | {verdict} |")
    return [*lines, "", *others]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--repeats", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement (default: 30)")
    parser.add_argument("--output", type=Path, help="keep the values of all rounds in this file, as JSON")
    parser.add_argument("--list", action="store_true", help="say what the targets are, and measure nothing")
    options = parser.parse_args(arguments)
    if options.list:
        for name in options.only:
            print(f"{name}: {'; '.join(TARGETS[target].about for target in GROUPS[name][1])}")
        return
    rounds: dict[str, list[Values]] = {name: [] for name in options.only}
    for number in range(options.repeats):
        for name in options.only:
            rounds[name].append(GROUPS[name][0](options.seconds))
            load = os.getloadavg()[0]
            print(f"round {number + 1} of {options.repeats}, {name}: load {load:.1f}", flush=True)
            if options.output is not None:
                about = {"processors": psutil.cpu_count(), "seconds": options.seconds, "rounds": rounds}
                options.output.write_text(json.dumps(about, indent=1) + "\n")
    print("\n".join(report(rounds)))


if __name__ == "__main__":
    main()
