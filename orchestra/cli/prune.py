"""`orchestra prune`: remove old runs."""

import sys

from rich.filesize import decimal

from orchestra.cli.ls import add_runs_dir, print_table
from orchestra.clock import RealClock
from orchestra.errors import UsageError
from orchestra.runs.flag_parser import FlagParser
from orchestra.runs.run_list import duration_s, listed, prunable, remove, runs_in

_HELP = """Remove old runs with all their files. A running run is never removed.

With both --keep and --older-than a run has to be beyond both to be removed."""


def command(arguments: list[str]) -> int:
    """Remove old runs."""
    parser = FlagParser(prog="orchestra prune", description=_HELP)
    parser.add_argument("--keep", type=int, metavar="N", help="keep the N newest runs of each experiment")
    parser.add_argument(
        "--older-than",
        metavar="AGE",
        help="remove only runs last started or resumed at least this long ago: 90m, 12h, 30d, 2w",
    )
    parser.add_argument("--dry-run", action="store_true", help="list what would be removed, and stop")
    parser.add_argument("--yes", action="store_true", help="remove without asking")
    add_runs_dir(parser)
    options = parser.parse_strictly(arguments)
    if options.keep is None and options.older_than is None:
        raise UsageError("orchestra prune needs --keep N, --older-than AGE or both, which say what to remove")
    if options.keep is not None and options.keep < 0:
        raise UsageError(f"--keep: {options.keep} is not allowed: it must be 0 or more")
    older_than_s = 0.0
    if options.older_than is not None:
        try:
            older_than_s = duration_s(options.older_than)
        except UsageError as error:
            raise UsageError(f"--older-than: {error}") from None
    clock = RealClock()
    runs = prunable(
        [listed(run, clock) for run in runs_in(options.runs_dir)], keep=options.keep or 0, older_than_s=older_than_s
    )
    if not runs:
        print("there is no run to remove")
        return 0
    print_table(runs)
    if options.dry_run:
        return 0
    if not options.yes and not _confirmed(len(runs)):
        print("nothing was removed")
        return 0
    nbytes = 0
    for run in runs:
        try:
            remove(run.run)
        except UsageError as error:
            print(f"orchestra: kept: {error}", file=sys.stderr)
            continue
        nbytes += run.nbytes
    print(f"removed {decimal(nbytes)}")
    return 0


def _confirmed(count: int) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(
            "orchestra prune asks before it removes runs, and stdin is no terminal; add --yes or --dry-run"
        )
    return input(f"remove {'this run' if count == 1 else f'these {count} runs'}? [y/N] ").strip().lower() in (
        "y",
        "yes",
    )
