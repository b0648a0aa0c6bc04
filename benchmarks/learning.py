"""The speed and results of the learners: the runs behind docs/results.md, by `orchestra run`, one after the other.

    python benchmarks/learning.py 3m 8m --seeds 1 2 3
    python benchmarks/learning.py --list

Each study is a few experiments with the defaults of their files, each with several seeds. Its runs lie below
`--runs-dir`. Finished runs are not repeated, so a study that was stopped can be started again. When all
runs are done, `orchestra compare` draws them into `--output`, a picture and a table for each study.

The minutes are those of this machine: let nothing else run on it.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

HERE = Path(__file__).resolve().parent
EXPERIMENTS = HERE.parent / "experiments"


@dataclass(frozen=True, slots=True)
class Study:
    """The compared runs: for each line of the picture the arguments of `orchestra run`, the experiment first."""

    about: str
    lines: tuple[str, ...]


STUDIES = {
    "3m": Study(
        "QMIX, VDN, IQL and COMA on 3m",
        tuple(f"qmix_3m.py --algorithm {name} --steps 400000" for name in ("qmix", "vdn", "iql", "coma")),
    ),
    "8m": Study("QMIX on 8m", ("qmix_8m.py --steps 1000000",)),
    "2s3z": Study(
        "QMIX, VDN and IQL on 2s3z",
        tuple(f"qmix_2s3z.py --algorithm {name} --steps 1500000" for name in ("qmix", "vdn", "iql")),
    ),
    "hosts": Study(
        "QMIX on 3m: one process, and three simulated hosts with as many environments",
        (
            "qmix_3m.py --single-process --steps 400000 --envs-per-worker 60",
            "qmix_3m.py --launch local --hosts 3 --workers 1 --steps 400000 --envs-per-worker 20",
        ),
    ),
    "5m_vs_6m": Study(
        "QMIX and COMA on 5m_vs_6m",
        tuple(f"qmix_5m_vs_6m.py --algorithm {name} --steps 2000000" for name in ("qmix", "coma")),
    ),
}


def done(runs: Path) -> Iterator[tuple[list[str], int]]:
    """Yield the arguments and the seed of each finished run below `runs`."""
    for summary in runs.glob("*/*/summary.json"):
        if json.loads(summary.read_text())["reached_goal"]:
            config = json.loads((summary.parent / "config.json").read_text())
            yield config["command"][2:], config["seed"]


def words(line: str, seed: int, runs: Path) -> list[str]:
    """Return the arguments of `orchestra run`."""
    experiment, *flags = line.split()
    return [str(EXPERIMENTS / experiment), *flags, "--seed", str(seed), "--runs-dir", str(runs)]


def carry_out(name: str, seeds: list[int], runs_dir: Path, output: Path) -> None:
    """Make the missing runs of a study, and draw all of them."""
    study, runs = STUDIES[name], runs_dir / name
    for seed in seeds:  # all lines of a seed before the next seed, so an interrupted study can be compared
        for line in study.lines:
            asked = words(line, seed, runs)
            if (asked, seed) in list(done(runs)):
                continue
            print(f"{name}: orchestra run {' '.join(asked)}", flush=True)
            began = monotonic()
            subprocess.run([sys.executable, "-m", "orchestra", "run", *asked], check=True)
            print(f"{name}: {(monotonic() - began) / 60:.1f} minutes from the command to its end", flush=True)
    output.mkdir(parents=True, exist_ok=True)
    picture = str(output / f"{name}.png")
    subprocess.run([sys.executable, "-m", "orchestra", "compare", str(runs), "--output", picture], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", metavar="STUDY", nargs="*", help=f"of {', '.join(STUDIES)} (default: all)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--runs-dir", type=Path, default=Path("runs/learning"))
    parser.add_argument("--output", type=Path, default=HERE.parent / "docs" / "results")
    parser.add_argument("--list", action="store_true", help="say what the studies are, and run nothing")
    options = parser.parse_args()
    unknown = [name for name in options.studies if name not in STUDIES]
    if unknown:
        parser.error(f"there is no study {', '.join(map(repr, unknown))}: choose from {', '.join(STUDIES)}")
    for name in options.studies or STUDIES:
        if options.list:
            print(f"{name}: {STUDIES[name].about}", *STUDIES[name].lines, sep="\n  orchestra run experiments/")
        else:
            carry_out(name, options.seeds, options.runs_dir.resolve(), options.output)


if __name__ == "__main__":
    main()
