"""3m over three hosts of each engine: time to join, speed of learning, and the cost of losing a host.

    python benchmarks/engines.py                       all engines that this machine can have, one seed each
    python benchmarks/engines.py slurm ray --seeds 1 2 3

Each engine is the one of the tests (`make test-engines` installs it): three virtual nodes of SLURM, three nodes of
Ray, or pods as processes of this machine (`tests/support`). The run learns with the defaults of `qmix_3m` and one
worker of 20 environments on each host. `--kill-after` seconds after its hosts have begun to play, the last host is
killed with all its processes, and with the daemon of its node; a pod is replaced, the others are not. The head knows
of the kill when `hosts.json` says that the host is gone. All hosts share the processors of this machine, so a rate does
not show how a run scales, and it means little while other programs run; the load is printed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

import pod_runner  # noqa: E402 (found by the path above)
import ray_cluster  # noqa: E402
import slurm_cluster  # noqa: E402
from engine_runs import Command, WatchedRun  # noqa: E402
from kubernetes_schemas import kubernetes_missing, kubernetes_python  # noqa: E402

from components.reporting.comparison import read_trial  # noqa: E402
from components.reporting.progress import new_tests  # noqa: E402
from components.reporting.win_rate import SOLVED, solved_at  # noqa: E402
from orchestra import read_records  # noqa: E402

HOSTS = 3
LONG_S = 3600.0
AROUND_S = 20.0
"""Seconds before and after the kill in which the rate is measured."""
RAY_ADDRESSES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
EXPERIMENT = ROOT / "experiments" / "qmix_3m.py"


@dataclass(frozen=True, slots=True)
class Started:
    """A run on an engine."""

    run: WatchedRun
    kill_last: Callable[[], object]
    """Kills the last host."""
    over: Callable[[], bool]
    """Returns whether the run has ended."""


class _Named(Command):
    """A command whose run is named `run`."""

    @property
    def run(self) -> Path:
        return self.folder / "runs" / "qmix_3m" / "run"


class _Pods(WatchedRun):
    """A run of pods."""

    def __init__(self, runner: pod_runner.PodRunner) -> None:
        self.runner = runner

    @property
    def run(self) -> Path:
        return self.runner.claim / "qmix_3m" / "run"

    def look(self) -> None:
        self.runner.step()


@contextmanager
def on_slurm(folder: Path, words: Sequence[str]) -> Iterator[Started]:
    with slurm_cluster.SlurmCluster(folder / "slurm") as cluster:
        variables = {**os.environ, **cluster.environment, "PYTHONPATH": str(ROOT)}
        asked = ["--launch", "slurm", "--hosts", str(HOSTS), "--time", "120", "--as", "run"]
        command = _Named(folder, [sys.executable, *words, *asked], variables)
        yield Started(command, lambda: cluster.kill_node(HOSTS), lambda: command.process.poll() is not None)
        command.close()


@contextmanager
def on_ray(folder: Path, words: Sequence[str]) -> Iterator[Started]:
    with ray_cluster.RayCluster(RAY_ADDRESSES) as cluster:
        asked = ["--launch", "ray", "--hosts", str(HOSTS), "--as", "run"]
        command = _Named(folder, [str(cluster.python), *words, *asked], cluster.environment)
        yield Started(command, lambda: cluster.kill_node(HOSTS - 1), lambda: command.process.poll() is not None)
        command.close()


@contextmanager
def on_pods(folder: Path, words: Sequence[str]) -> Iterator[Started]:
    asked = ["--launch", "kubernetes", "--hosts", str(HOSTS), "--as", "run", "--image", "none", "--volume", "runs"]
    command = [sys.executable, *words, *asked, "--write", str(folder)]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    read = [
        str(kubernetes_python()),
        "-c",
        "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(sys.stdin))))",
    ]
    with (folder / "run.yaml").open() as text:
        documents = json.loads(subprocess.run(read, stdin=text, check=True, capture_output=True).stdout)
    (line,) = [line for line in (folder / "run.sh").read_text().splitlines() if line.startswith("token=")]
    make = [sys.executable, "-m", "orchestra", *line.partition("(orchestra ")[2].rstrip(")").split()]
    token = subprocess.run(make, check=True, capture_output=True, text=True).stdout
    run = _Pods(pod_runner.PodRunner(folder, documents, {"run": {"token": token}}))
    jobs = run.runner.jobs

    def kill(index: int) -> None:
        jobs["hosts"].pod(index).process.kill()

    try:
        yield Started(run, partial(kill, HOSTS - 1), lambda: jobs["head"].state != "Running")
    finally:
        run.runner.close()


ENGINES: dict[str, tuple[Callable[[], str], Callable[[Path, Sequence[str]], AbstractContextManager[Started]]]] = {
    "slurm": (slurm_cluster.why_unavailable, on_slurm),
    "ray": (ray_cluster.why_unavailable, on_ray),
    "kubernetes": (lambda: pod_runner.why_unavailable() or kubernetes_missing(), on_pods),
}
"""For each engine: the function that says why it is unavailable here, and the one that starts a run on it."""


def measured(engine: str, seed: int, steps: int, kill_after: float, folder: Path) -> dict[str, Any]:
    """Return a row of the table."""
    words = ["-m", "orchestra", "run", str(EXPERIMENT), "--seed", str(seed), "--steps", str(steps)]
    words += ["--workers", "1", "--envs-per-worker", "20", "--min-hosts", "1", "--code", "installed"]
    load = os.getloadavg()[0]
    with ENGINES[engine][1](folder, words) as started:
        run, asked_at = started.run, time.time()  # the cluster runs, and the command has just been started
        run.until(lambda: run.playing() >= {HOSTS - 1, HOSTS - 2}, LONG_S)
        asked_of = {event["slot"] for event in _events(run, "joined")}
        playing_at = max(map(_seconds, _events(run, "playing")))
        joined_at = max(map(_seconds, _events(run, "joined")))
        started_at = min(map(_seconds, _events(run, "started") or _events(run, "joined")))
        run.until(lambda: time.time() >= playing_at + kill_after or started.over(), LONG_S)
        killed_at = time.time()
        started.kill_last()
        run.until(started.over, LONG_S)
        gone = [event for event in _events(run, "gone") if event["slot"] == max(asked_of)]
        records = list(read_records(run.run / "metrics.jsonl"))
        trial = read_trial(run.run)
        begun_at = datetime.fromisoformat(json.loads((run.run / "config.json").read_text())["started"]).timestamp()
    tests = [test for test in new_tests(records) if test.get("test_win_rate") is not None]
    won = next((test for test in tests if test["test_win_rate"] >= SOLVED), None)
    first = solved_at([test["test_win_rate"] for test in tests])
    killed_s = killed_at - begun_at
    return {
        "engine": engine,
        "seed": seed,
        "all joined after the first agent's start, s": round(joined_at - started_at, 1),
        "all joined after the command, s": round(joined_at - asked_at, 1),
        "90 % at steps": won and won["test_env_steps"],
        "90 % after min": won and round(won["elapsed_s"] / 60, 1),
        "solved from steps": None if first is None else tests[first]["test_env_steps"],
        "steps/s": round(trial.steps_per_s),
        "known after the kill, s": round(_seconds(gone[0]) - killed_at, 1) if gone else None,
        "steps/s before the kill": _rate(records, killed_s - AROUND_S, killed_s),
        "steps/s after the kill": _rate(records, killed_s, killed_s + AROUND_S),
        "steps/s later": _rate(records, killed_s + AROUND_S, killed_s + 3 * AROUND_S),
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
    }


def _events(run: WatchedRun, state: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((run.run / "hosts.json").read_text())["events"]
    return [event for event in found if event["state"] == state]


def _seconds(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["at"]).timestamp()


def _rate(records: Sequence[dict[str, Any]], begin: float, end: float) -> int | None:
    """Return the environment steps per second between two times of a run; None if it was over by then."""
    inside = [record for record in records if begin <= record["elapsed_s"] <= end]
    if len(inside) < 2:
        return None
    first, last = inside[0], inside[-1]
    return round(float(last["env_steps"] - first["env_steps"]) / float(last["elapsed_s"] - first["elapsed_s"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="*", choices=[*ENGINES, []], help="all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, default=400_000)
    parser.add_argument("--kill-after", type=float, default=60.0, help="seconds")
    options = parser.parse_args()
    for seed in options.seeds:
        for engine in options.engines or ENGINES:
            if reason := ENGINES[engine][0]():
                print(json.dumps({"engine": engine, "not measured": reason}), flush=True)
                continue
            with tempfile.TemporaryDirectory(prefix="en") as folder:
                row = measured(engine, seed, options.steps, options.kill_after, Path(folder))
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
