"""`orchestra suite`: train on all maps of a benchmark with several seeds, and report beside published results."""

import json
import os
import shlex
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from components.suites.published import SUITES, Suite
from components.suites.saved_runs import SavedRun, SavedRuns, added_runs, saved_run
from components.suites.scores import Scores, scores_of
from orchestra import FlagParser, QueuedRun, RunQueue, UsageError, check_run, work_through, write_json

EXPERIMENT = "train"
EVAL_INTERVAL = 20_000
"""Environment steps between greedy tests, as in `experiments/train.py`."""
OF_THE_SUITE = {
    "scenario": "; --maps chooses maps",
    "algorithm": "; --algorithms chooses them",
    "seed": "; --seeds N says how many there are",
    "steps": "; --steps stands before --",
    "as": "",
    "resume": "",
    "runs-dir": "; --folder chooses the folder",
    "dry-run": "",
}
"""Flags of a run that a suite sets itself, and what to use instead."""
_HELP = """Train on all maps of a benchmark with several seeds, and report beside published results.

The suites are smac (the 14 maps of the SMAC paper) and smacv2 (its 15 maps). Several runs go on at a time. The same
command goes on after an interruption: runs that are done are not repeated, others resume. At the end, table.md,
table.csv, figure.png, runs.json and marl_eval.json in the folder report the runs that are done.

Several machines share a suite by --maps or --seeds; --add OTHER/runs.json then reports the runs of all. It starts no
run that another machine has made.

Flags of `orchestra run train` follow after --, as in: orchestra suite smac -- --updates-per-episode 0.4"""


def command(arguments: list[str]) -> int:
    """Train on all maps of a benchmark with several seeds, and report beside published results."""
    arguments, further = _split(arguments)
    parser = FlagParser(prog="orchestra suite", description=_HELP, usage="orchestra suite NAME [flags] [-- flags]")
    parser.add_argument("suite", metavar="NAME", choices=sorted(SUITES), help=" or ".join(SUITES))
    parser.add_argument("--maps", nargs="+", metavar="MAP", help="only these (default: all of the suite)")
    parser.add_argument("--algorithms", nargs="+", default=["qmix"], metavar="NAME", help="(default: qmix)")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="runs of each map (default: 5)")
    parser.add_argument("--steps", type=int, default=2_000_000, help="of each run (default: 2000000)")
    parser.add_argument("--parallel", type=int, metavar="N", help="runs at a time (default: half of the cores)")
    parser.add_argument("--folder", type=Path, help="of runs and report (default: suites/NAME)")
    parser.add_argument("--episodes", type=int, default=256, help="new battles for each jitter (default: 256)")
    parser.add_argument(
        "--add",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="runs.json of suites that other machines have run",
    )
    parser.add_argument("--report-only", action="store_true", help="start no run: report those that have ended")
    options, unknown = parser.parse_partly(arguments)
    if unknown:
        raise UsageError(
            f"unknown flag or argument {unknown[0]!r}; flags of the runs follow after --, as in: orchestra suite smac "
            "-- --updates-per-episode 0.4"
        )
    suite = SUITES[options.suite]
    maps = _checked_maps(suite, options)
    folder = options.folder or Path("suites") / suite.name
    simulated = _check_further(further)
    for algorithm in () if options.report_only else options.algorithms:
        check_run(_words(algorithm, maps[0], 1, options.steps, further))
    queue = RunQueue(folder, parallel=options.parallel)
    _check_settings(folder, suite, options.steps, further)
    saved = SavedRuns(suite=suite.name, steps=options.steps, flags=tuple(further), episodes=options.episodes, runs=())
    added = {run.key: run for run in added_runs(options.add, saved)}
    if strange := [run for run in added.values() if run.map not in suite.maps]:
        raise UsageError(f"--add: {strange[0].map!r} is no map of {suite.name}; its maps are {', '.join(suite.maps)}")
    wanted = {
        f"{algorithm}-{scenario}-seed{seed}": (algorithm, scenario, seed)
        for seed in range(1, options.seeds + 1)  # one seed of all maps first: an interrupted suite has all maps
        for scenario in maps
        for algorithm in options.algorithms
    }
    planned = {name: key for name, key in wanted.items() if key not in added}
    for name, (algorithm, scenario, seed) in planned.items():
        queue.add(QueuedRun(name, _words(algorithm, scenario, seed, options.steps, further)))
    title = f"{suite.title}: {len(planned)} runs of {options.steps:,} steps, {queue.parallel} at a time, in {folder}"
    if not options.report_only:
        work_through(queue, title=title)
    words = ["orchestra", "suite", *arguments, *(["--", *further] if further else [])]
    jitters = suite.jitters if simulated else (0.0,)
    runs = added | {run.key: run for run in _runs(queue, planned, jitters, options.episodes)}
    in_order = tuple(runs[key] for key in dict.fromkeys((*wanted.values(), *added)) if key in runs)
    _report(suite, saved.model_copy(update={"runs": in_order}), folder, shlex.join(words))
    failed = queue.counts()["failed"]
    for name, entry in queue.entries.items():
        if entry.state == "failed":
            print(f"failed ({entry.exit_code}): {name}; see {queue.output(name)}")
    return 1 if failed else 0


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments before and after `--`."""
    if "--" not in arguments:
        return list(arguments), []
    place = list(arguments).index("--")
    return list(arguments[:place]), list(arguments[place + 1 :])


def _checked_maps(suite: Suite, options: Namespace) -> list[str]:
    for name, least in (("seeds", 1), ("steps", 1), ("episodes", 1)):
        if getattr(options, name) < least:
            raise UsageError(f"--{name}: {getattr(options, name)} is not allowed: it must be {least} or more")
    wrong = [scenario for scenario in options.maps or () if scenario not in suite.maps]
    if wrong:
        raise UsageError(f"--maps: {wrong[0]!r} is no map of {suite.name}; its maps are {', '.join(suite.maps)}")
    return [scenario for scenario in suite.maps if not options.maps or scenario in options.maps]


def _check_further(further: Sequence[str]) -> bool:
    """Return whether the runs play in the simulator: only it can vary the starting positions of units.

    Raises:
        UsageError: a flag is one that the suite sets itself, or the runs do not play its maps.
    """
    parser = FlagParser(prog="orchestra suite")
    parser.add_argument("--env", default="skirmish")
    env: str = parser.parse_partly(further)[0].env
    if env not in ("skirmish", "smac"):
        raise UsageError(f"--env: {env!r} is not allowed: a suite plays in the simulator (skirmish), or in smac")
    for word in further:
        name = word.partition("=")[0]
        if name.startswith("--") and (instead := OF_THE_SUITE.get(name.removeprefix("--"))) is not None:
            raise UsageError(f"{name} is not allowed after --: the suite sets it{instead}")
    return env == "skirmish"


def _words(algorithm: str, scenario: str, seed: int, steps: int, further: Sequence[str]) -> list[str]:
    chosen = ["--algorithm", algorithm, "--scenario", scenario, "--seed", str(seed), "--steps", str(steps)]
    tests = ["--eval-interval", str(EVAL_INTERVAL)]
    return [EXPERIMENT, *chosen, *tests, "--trace", "off", "--quiet", *further]


def _check_settings(folder: Path, suite: Suite, steps: int, further: Sequence[str]) -> None:
    """Write the settings of the suite into its folder; refuse to mix its runs with those of other settings.

    Raises:
        UsageError: the folder has runs of another suite, of other flags, or of more steps.
    """
    path = folder / "suite.json"
    settings: dict[str, Any] = {"suite": suite.name, "steps": steps, "flags": list(further)}
    try:
        before = json.loads(path.read_bytes())
        same = before["suite"] == suite.name and before["flags"] == list(further) and before["steps"] <= steps
    except FileNotFoundError:
        same = True
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{str(path)!r} is damaged: {error!r}") from error
    if not same:
        raise UsageError(
            f"--folder: {str(folder)!r} has runs of {before['suite']} with {before['steps']:,} steps and the flags "
            f"{shlex.join(before['flags']) or '(none)'}; choose another folder"
        )
    write_json(path, settings)


def _runs(
    queue: RunQueue, planned: Mapping[str, tuple[str, str, int]], jitters: Sequence[float], episodes: int
) -> Iterator[SavedRun]:
    """Yield the finished runs, after each has played new battles."""
    from components.reporting.comparison import read_trial
    from components.suites.jittered import battles_of

    done = [name for name in planned if queue.entries[name].state == "done"]
    for number, name in enumerate(done, start=1):
        run = queue.directory(name)
        assert run is not None  # because it is done
        print(f"battles of {name} ({number} of {len(done)})", flush=True)
        battles = battles_of(run, jitters, episodes=episodes)
        scores = scores_of(read_trial(run.path), {jitter: figures["win_rate"] for jitter, figures in battles.items()})
        git = run.config().get("git") or {}
        yield saved_run(*planned[name], commit=str(git.get("commit", "")), scores=scores)


def _report(suite: Suite, saved: SavedRuns, folder: Path, words: str) -> None:
    """Write table, figure and raw results."""
    from components.suites import report
    from components.suites.figure import suite_figure

    if not saved.runs:
        print("no run is done yet, so there is nothing to report")
        return
    results: dict[str, dict[str, dict[int, Scores]]] = {}
    for run in sorted(saved.runs, key=lambda run: (suite.maps.index(run.map), run.seed)):
        results.setdefault(run.algorithm, {}).setdefault(run.map, {})[run.seed] = run.scores()
    page = report.as_markdown(suite, results, command=words, episodes=saved.episodes)
    (folder / "table.md").write_text(page)
    (folder / "table.csv").write_text(report.as_csv(report.rows(suite, results)))
    saved.write(folder / "runs.json")
    raw = report.marl_eval(suite, results, steps=saved.steps, interval=min(EVAL_INTERVAL, saved.steps))
    write_json(folder / "marl_eval.json", raw)
    suite_figure(suite, results).savefig(folder / "figure.png")
    print(page)
    print(os.linesep.join(f"{name:<11}{folder / file}" for name, file in _FILES))


_FILES = (
    ("table", "table.md"),
    ("csv", "table.csv"),
    ("figure", "figure.png"),
    ("runs", "runs.json"),
    ("marl-eval", "marl_eval.json"),
)
