"""Search for the settings that solve 8m soonest: one option at a time beside the defaults, at equal processor time.

    python benchmarks/search.py --seconds 90 --seeds 1                          every candidate, one seed
    python benchmarks/search.py --seconds 90 --seeds 1 2 3 --only defaults ...  the best of them, more seeds

Each candidate is a run of `orchestra run … --single-process`: one process, whose processor time is the whole cost of
the run: simulator, acting, memory and learner. It is ended when it has used up its seconds. Its score is the mean
return of the greedy tests until then (a battle won is 20), so settings that learn sooner, or do more in the same time,
score higher. Processor time can be measured on a machine that runs other programs too.

The defaults are those of `experiments/`. Runs lie below `--runs-dir`; finished ones are not repeated.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from time import sleep

from components.reporting.comparison import find_runs, read_trial

EXPERIMENT = Path(__file__).resolve().parent.parent / "experiments" / "qmix_8m.py"

CANDIDATES = {
    "defaults": "",
    "one-step targets": "--td-lambda 0",
    "λ 0.8": "--td-lambda 0.8",
    "λ 0.9": "--td-lambda 0.9",
    "learning rate 5e-4": "--learning-rate 5e-4",
    "learning rate 2e-3": "--learning-rate 2e-3",
    "RMSProp, 5e-4": "--optimizer rmsprop --learning-rate 5e-4",
    "ε over 50,000": "--epsilon-steps 50000",
    "ε over 300,000": "--epsilon-steps 300000",
    "target every 50": "--target-update-interval 50",
    "target every 200": "--target-update-interval 200",
    "orthogonal": "--init orthogonal",
    "no double Q": "--no-double-q",
    "prioritised": "--prioritized",
    "hidden 32": "--hidden-size 32",
    "hidden 128": "--hidden-size 128",
    "32 environments": "--envs-per-worker 32",
    "128 environments": "--envs-per-worker 128",
    "0.05 updates": "--updates-per-episode 0.05",
    "0.1 updates": "--updates-per-episode 0.1",
    "batch 16, 0.4 updates": "--batch-size 16 --updates-per-episode 0.4",
    "batch 64, 0.1 updates": "--batch-size 64 --updates-per-episode 0.1",
}
POLL = 0.25  # seconds between two readings of a run's processor time


def processor_seconds(pid: int) -> float:
    """Return the user and system time of a process and all of its threads (proc(5), fields 14 and 15 of stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def carry_out(flags: Iterable[str], seed: int, seconds: float, where: Path) -> None:
    """Run one candidate until it has used up its processor time; write the time used to the file `seconds`."""
    asked = [str(EXPERIMENT), *flags, "--single-process", "--seed", str(seed), "--runs-dir", str(where)]
    asked += ["--eval-interval", "10000", "--steps", "100000000", "--checkpoint-interval", "100000000"]
    where.mkdir(parents=True)
    with (where / "output.txt").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestra", "run", *asked], stdout=output, stderr=subprocess.STDOUT
        )
        used = 0.0
        while process.poll() is None and used < seconds:
            sleep(POLL)
            used = processor_seconds(process.pid)
        if process.returncode is not None:
            sys.exit(f"orchestra run ended with {process.returncode}: see {output.name}")
        process.send_signal(signal.SIGTERM)
        process.wait()
    (where / "seconds").write_text(f"{used}\n")


def worth(where: Path, seconds: float) -> tuple[float, float, float]:
    """Return the mean return of the greedy tests, that of the last five, and the environment steps, all in `seconds`.

    Processor time is assumed to be spread evenly over the steps.
    """
    trial = read_trial(find_runs([where])[0])
    share = min(seconds / float((where / "seconds").read_text()), 1.0)
    inside = trial.returns[trial.env_steps <= share * trial.env_steps[-1]]
    return float(inside.mean()), float(inside[-5:].mean()), share * float(trial.env_steps[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=90.0, help="processor seconds of each run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--only", nargs="+", choices=CANDIDATES, default=list(CANDIDATES), metavar="NAME")
    parser.add_argument("--also", nargs="+", default=[], metavar="FLAGS", help="further candidates: their flags")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs/search"))
    options = parser.parse_args()
    candidates = {name: CANDIDATES[name] for name in options.only} | {flags: flags for flags in options.also}
    rows = []
    for seed in options.seeds:
        for name, flags in candidates.items():
            where = options.runs_dir.resolve() / ("".join(flags.split()) or "defaults") / f"seed-{seed}"
            if not (where / "seconds").exists():
                carry_out(flags.split(), seed, options.seconds, where)
            rows.append((name, *worth(where, options.seconds)))
            print(f"{name}, seed {seed}: return {rows[-1][1]:.2f}, at the end {rows[-1][2]:.2f}", flush=True)
    print("\n| candidate | seeds | mean return | at the end | steps |\n|---|---|---|---|---|")
    of = {name: [row[1:] for row in rows if row[0] == name] for name in candidates}
    for name, runs in sorted(of.items(), key=lambda item: -mean(run[0] for run in item[1])):
        columns = [mean(column) for column in zip(*runs, strict=True)]
        print(f"| {name} | {len(runs)} | {columns[0]:.2f} | {columns[1]:.2f} | {columns[2]:,.0f} |")


if __name__ == "__main__":
    main()
