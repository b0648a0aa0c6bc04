"""`orchestra sweep`: run an experiment with several values of its flags, and compare them."""

import json
import math
import shlex
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.sweeps.configurations import OF_THE_SWEEP, Configuration, Space, checked, configuration, grid, space_of
from components.sweeps.shared_hosts import shared_out
from orchestra import FlagParser, RunQueue, UsageError, check_run, work_through, write_json

if TYPE_CHECKING:
    from components.sweeps.sweep import Search

_HELP = """Run an experiment with several values of its flags, each with several seeds, and compare them.

--set NAME=VALUE,VALUE tries these values; several --set are combined. --search optuna chooses among them, and in ranges
such as learning_rate=1e-4..1e-2:log. Several runs go on at a time. The same command goes on after an interruption: runs
that are done are not repeated, others resume. At the end sweep.md and sweep.csv in the folder have the results;
`orchestra compare FOLDER` draws the curves.

All other flags are those of `orchestra run FILE`, and each run gets them: --steps 100000, --hosts 2 --launch slurm.
With --hosts cpu1,cpu2,cpu3,cpu4 --hosts-per-run 2 each run gets two of the hosts, and two go on at a time."""


def command(arguments: list[str]) -> int:
    """Run an experiment with several values of its flags and several seeds, and compare them."""
    parser = FlagParser(prog="orchestra sweep", description=_HELP, usage="orchestra sweep FILE [flags]")
    parser.add_argument("file", metavar="FILE", type=Path, help="the experiment, as for orchestra run")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUES", help="values of a flag to try")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="runs of each configuration (default: 3)")
    parser.add_argument("--search", choices=["optuna"], help="have Optuna choose configurations (default: try all)")
    parser.add_argument("--trials", type=int, metavar="N", help="configurations that the search tries (default: 20)")
    parser.add_argument("--prune", action="store_true", help="search: stop those whose first seed is below the median")
    parser.add_argument("--metric", choices=["win-rate", "return"], help="what is compared (default: win-rate if any)")
    parser.add_argument("--minimize", action="store_true", help="small scores are better")
    parser.add_argument("--parallel", type=int, metavar="N", help="runs at a time (default: half of the cores)")
    parser.add_argument(
        "--hosts-per-run", type=int, metavar="N", help="share --hosts out, N to each run (default: all to each)"
    )
    parser.add_argument("--folder", type=Path, help="of runs and results (default: sweeps/NAME)")
    if not arguments or arguments[0].startswith("-"):
        parser.parse_strictly([word for word in arguments if word in ("-h", "--help")])
    options, further = parser.parse_partly(arguments)
    further = [word for word in further if word != "--"]
    _check(options, further)
    further, shares = shared_out(further, options.hosts_per_run)
    options.parallel = options.parallel or len(shares) or None
    space = space_of(options.set)
    _check_fixed(space, further)
    if options.search and not space:
        raise UsageError("--search needs --set NAME=VALUES, which says what is searched")
    folder = options.folder or Path("sweeps") / options.file.stem
    configurations = [] if options.search else grid(options.file, further, space)
    if options.search:
        space = checked(options.file, further, space)
    first = [*(configurations[0].words if configurations else ()), *(shares[0] if shares else ())]
    check_run([str(options.file), *first, *further])
    queue = RunQueue(folder, parallel=options.parallel, shares=shares)
    _check_settings(folder, options, further)
    return _carry_out(options, further, queue, space, configurations, shlex.join(["orchestra", "sweep", *arguments]))


def _carry_out(
    options: Namespace,
    further: Sequence[str],
    queue: RunQueue,
    space: Space,
    configurations: Sequence[Configuration],
    command: str,
) -> int:
    from components.sweeps.results import as_csv, as_markdown, as_text, ranked
    from components.sweeps.sweep import SearchedSweep, Sweep

    folder = queue.folder

    def words(of: Configuration, seed: int) -> list[str]:
        return [str(options.file), *of.words, "--seed", str(seed), "--quiet", *further]

    sweep = Sweep(queue, range(1, options.seeds + 1), words, options.metric)
    if options.search:
        search = _search(folder, space, options)

        def make(number: int, values: dict[str, Any]) -> Configuration:
            return configuration(options.file, further, values, f"trial-{number:03}")

        searched = SearchedSweep(sweep, search, trials=options.trials or 20, prune=options.prune, make=make)
        queue.on_tick = searched.tick
        searched.tick()
        what = f"up to {options.trials or 20} configurations"
    else:
        for each in configurations:
            sweep.add(each)
        what = f"{len(configurations)} configurations"
    title = f"{options.file.stem}: {what}, {options.seeds} seeds, {queue.parallel} at a time, in {folder}"
    work_through(queue, title=title)
    results = ranked(sweep.results(), minimise=options.minimize)
    (folder / "sweep.md").write_text(as_markdown(results, command))
    (folder / "sweep.csv").write_text(as_csv(results))
    print(as_text(results))
    print(f"\ntable   {folder / 'sweep.md'}\nscores  {folder / 'sweep.csv'}\ncurves  orchestra compare {folder}")
    failed = [name for name, entry in queue.entries.items() if entry.state == "failed"]
    for name in failed:
        print(f"failed ({queue.entries[name].exit_code}): {name}; see {queue.output(name)}")
    return 1 if failed or all(math.isnan(each.mean) for each in results) else 0


def _search(folder: Path, space: Space, options: Namespace) -> "Search":
    from components.sweeps.optuna_search import OptunaSearch

    return OptunaSearch(folder / "optuna.journal", space, minimise=options.minimize)


def _check(options: Namespace, further: Sequence[str]) -> None:
    for name in ("seeds", "trials", "parallel", "hosts_per_run"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')}: {value} is not allowed: it must be 1 or more")
    for word in further:
        name = word.partition("=")[0]
        if name.removeprefix("--") in OF_THE_SWEEP:
            raise UsageError(f"{name} is not allowed: the sweep sets it; --seeds N says how many seeds there are")
    if options.search is None and (options.trials is not None or options.prune):
        raise UsageError(f"--{'prune' if options.prune else 'trials'} needs --search optuna")
    if options.search is not None:
        from importlib.util import find_spec

        if find_spec("optuna") is None:
            raise UsageError("--search optuna: a package is missing: pip install 'orchestra-rl[optuna]'")


def _check_fixed(space: Space, further: Sequence[str]) -> None:
    """Refuse a flag for all runs that also has values from `--set`.

    Raises:
        UsageError: there is such a flag.
    """
    for word in further:
        name = word.partition("=")[0]
        bare = name.removeprefix("--")
        for varied in space:
            if varied.replace("_", "-") in (bare, bare.removeprefix("no-")):
                raise UsageError(f"{name} is not allowed: --set {varied} gives it its values")


def _check_settings(folder: Path, options: Namespace, further: Sequence[str]) -> None:
    """Write the settings of the sweep into its folder; refuse to mix its runs with those of another.

    Raises:
        UsageError: the folder has runs of another experiment, of other flags, or of another search.
    """
    path = folder / "sweep.json"
    searched = {"set": options.set, "minimize": options.minimize, "metric": options.metric} if options.search else None
    settings = {"file": str(options.file), "flags": list(further), "search": searched}
    try:
        before = json.loads(path.read_bytes())
    except FileNotFoundError:
        before = settings
    except ValueError as error:
        raise UsageError(f"{str(path)!r} is damaged: {error!r}") from error
    if before != settings:
        wrong = next((name for name in settings if before.get(name) != settings[name]), "file")
        raise UsageError(
            f"--folder: {str(folder)!r} has a sweep with another {wrong}: {before.get(wrong)!r}, not "
            f"{settings[wrong]!r}; choose another folder"
        )
    write_json(path, settings)
