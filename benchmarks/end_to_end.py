"""What actors and messages cost a whole training run, against a plain loop over the same simulator and learner.

    python benchmarks/end_to_end.py --steps 100000 --pairs 3
    python benchmarks/end_to_end.py --steps 30000 --updates-per-episode 1

Three programs train QMIX with equal hyper-parameters, one thread for torch in each process:

- plain: `plain_loop.py`, one process, no actor and no message; the baseline.
- deterministic: the five actors in one process, every message encoded where it crosses nodes. Its time is broken down
  into parts; the rest is messages and runtime.
- spread: the five actors as `orchestra run` lays them out by default, a process for each node.

The first command trains at the ratio of the experiment; the second at the classic one, a gradient step per episode.

The programs run in turn, `--pairs` times; medians and ratios are printed. Time is from the first environment step to
the last gradient step, so start-up and compilation do not count.
"""

import argparse
import functools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from components.envs import Skirmish
from components.policies import Qmix
from components.replay_buffers import EpisodeReplay
from orchestra import RealClock, RunDirectory, log
from orchestra.hosts.run_plan import RunPlan
from orchestra.runs.experiment import build, load_experiment
from orchestra.runs.flags import Flags
from orchestra.runs.runner import run_in_one_process, run_loop

HERE = Path(__file__).resolve().parent
EXPERIMENT = HERE.parent / "experiments" / "qmix_8m.py"
NEVER = 10**9


class Account:
    """Seconds spent in the parts of a run, and when it began and ended."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.updates = 0
        self.steps = 0
        self.began = 0.0
        self.ended = 0.0
        self._inside = threading.local()

    def watch(self, kind: type, method: str, part: str) -> None:
        """Count the time of `kind.method` as `part`; a watched call inside another counts for the outer one only."""
        original: Callable[..., Any] = getattr(kind, method)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "part", None):
                return original(*args, **kwargs)
            self._inside.part = part
            since = perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                now = perf_counter()
                self._inside.part = None
                self.seconds[part] += now - since
                if part == "learner":
                    self.updates += 1
                    self.ended = now
                if method == "step":
                    self.began = self.began or since
                    self.steps += args[0].n_envs

        setattr(kind, method, timed)


def run_deterministic(flags: dict[str, Any]) -> dict[str, float]:
    """Train with all actors in this process; return rates and shares."""
    account = Account()
    account.watch(Skirmish, "step", "simulator")
    account.watch(Skirmish, "reset", "simulator")
    account.watch(Qmix, "act", "acting")
    account.watch(Qmix, "learn", "learner")
    for method in ("insert", "sample"):
        account.watch(EpisodeReplay, method, "replay")
    function = load_experiment(EXPERIMENT)
    values = {**Flags.of(function).defaults, **flags}
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory.create(Path(folder), "end_to_end", 0, clock=RealClock())
        run.write_config(experiment=EXPERIMENT, flags=values, seed=0, argv=sys.argv, clock=RealClock())
        log.configure(run.logs, node="learner")
        run_loop(run_in_one_process(build(function, values), RunPlan(EXPERIMENT, (), 0, run.path)))
        summary = json.loads(run.summary.read_text())
        log.close()
    wall = account.ended - account.began
    shares = {part: seconds / wall for part, seconds in account.seconds.items()}
    shares["messages and runtime"] = 1.0 - sum(shares.values())
    return {"steps_per_s": summary["env_steps"] / wall, "updates_per_s": account.updates / wall, **shares}


def run_spread(flags: dict[str, Any]) -> dict[str, float]:
    """Train as `orchestra run` does; return rates, from the progress records between the first update and the end."""
    given = Flags.of(load_experiment(EXPERIMENT)).to_argv(flags)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "orchestra", "run", str(EXPERIMENT), "--runs-dir", folder, *given]
        subprocess.run(command, check=True, capture_output=True)
        (metrics,) = Path(folder).glob("*/*/metrics.jsonl")
        records = [json.loads(line) for line in metrics.read_text().splitlines()]
    moving = [record for record in records if record["updates"] and record["state"] == "training"]
    if len(moving) < 2:
        sys.exit(f"--steps: expected enough to be seen training twice, a second or more apart, got {flags['steps']:,}")
    first, last = moving[0], moving[-1]
    wall = last["elapsed_s"] - first["elapsed_s"]
    return {
        "steps_per_s": (last["env_steps"] - first["env_steps"]) / wall,
        "updates_per_s": (last["updates"] - first["updates"]) / wall,
    }


def run_plain(flags: dict[str, Any]) -> dict[str, float]:
    """Train in the plain loop; return rates."""
    values = {**Flags.of(load_experiment(EXPERIMENT)).defaults, **flags}
    names = {
        "scenario": "scenario",
        "steps": "steps",
        "envs": "envs_per_worker",
        "batch": "batch_size",
        "updates-per-episode": "updates_per_episode",
        "memory": "buffer_size",
        "learning-rate": "learning_rate",
        "optimizer": "optimizer",
        "gamma": "gamma",
        "td-lambda": "td_lambda",
        "target-interval": "target_update_interval",
        "hidden": "hidden_size",
        "epsilon-steps": "epsilon_steps",
    }
    # A value of None is not passed: both programs then have the same default.
    given = [f"--{flag}={values[name]}" for flag, name in names.items() if values[name] is not None]
    command = [sys.executable, str(HERE / "plain_loop.py"), "--threads=1", f"--eval-interval={NEVER}", *given]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Run the three in turn and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="8m")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--updates-per-episode", type=float, help="gradient steps for each (default: the experiment's)")
    parser.add_argument("--only-deterministic", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    flags = {"scenario": options.scenario, "steps": options.steps, "learner_threads": 1, "eval_interval": NEVER}
    if options.updates_per_episode is not None:
        flags["updates_per_episode"] = options.updates_per_episode
    if options.only_deterministic:
        print(json.dumps(run_deterministic(flags)))
        return
    results: dict[str, list[dict[str, float]]] = {"plain": [], "deterministic": [], "spread": []}
    for pair in range(options.pairs):
        results["plain"].append(run_plain(flags))
        again = [sys.executable, __file__, "--only-deterministic", *sys.argv[1:]]
        ended = subprocess.run(again, check=True, capture_output=True, text=True)
        results["deterministic"].append(json.loads(ended.stdout.splitlines()[-1]))
        results["spread"].append(run_spread(flags))
        print(f"pair {pair + 1} of {options.pairs} done", file=sys.stderr)

    def median(name: str, figure: str) -> float:
        return statistics.median(result[figure] for result in results[name])

    print(f"training QMIX on {options.scenario}, {options.steps:,} environment steps, median of {options.pairs}")
    ratio = {**Flags.of(load_experiment(EXPERIMENT)).defaults, **flags}["updates_per_episode"]
    print(f"{ratio:g} gradient steps for each episode")
    print(f"{'':14}{'env steps/s':>12}{'updates/s':>11}{'ratio to plain':>16}")
    for name, ours in results.items():
        ratios = [a["steps_per_s"] / b["steps_per_s"] for a, b in zip(ours, results["plain"], strict=True)]
        steps, updates = median(name, "steps_per_s"), median(name, "updates_per_s")
        print(f"{name:14}{steps:>12,.0f}{updates:>11.1f}{statistics.median(ratios):>16.2f}")
    print("\nwhere the time of `deterministic` goes:")
    for part in ("learner", "simulator", "acting", "replay", "messages and runtime"):
        print(f"  {part:<22}{median('deterministic', part):>7.1%}")


if __name__ == "__main__":
    main()
