"""`orchestra ps`: print a table of the actors of a running run."""

from pathlib import Path

from orchestra.errors import UsageError
from orchestra.runs import join_file
from orchestra.runs.flags import FlagParser
from orchestra.runs.run_directory import RunDirectory


def command(arguments: list[str]) -> int:
    """Print the actors of a running run: queues, rates, states."""
    parser = FlagParser(
        prog="orchestra ps",
        description="Print the actors of a running run, with their queues, rates and states, and the links between "
        "its nodes.",
    )
    add_run(parser)
    parser.add_argument("--json", action="store_true", help="print all statistics as JSON")
    parser.add_argument("--all", action="store_true", help="include the actors of the runtime itself")
    parser.add_argument(
        "--seconds", type=float, default=1.0, metavar="S", help="time over which rates are measured (default: 1)"
    )
    options = parser.parse_strictly(arguments)
    if options.seconds <= 0:
        raise UsageError(f"--seconds: {options.seconds:g} is not allowed: it must be more than 0")
    run = which_run(options.run, options.runs_dir)
    info = join_file.find(run)
    from orchestra.cli.run_table import print_once

    print_once(run, info, options.seconds, as_json=options.json, own=options.all)
    return 0


def add_run(parser: FlagParser) -> None:
    """Add the arguments that select a run."""
    parser.add_argument(
        "run", metavar="RUN_DIR", type=Path, nargs="?", help="the run's directory (default: the newest)"
    )
    parser.add_argument(
        "--runs-dir",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="where the newest run is searched (default: runs)",
    )


def which_run(given: Path | None, runs_dir: Path) -> RunDirectory:
    """Return the selected run: the one at `given`, or the newest.

    Raises:
        UsageError: there is no such run.
    """
    return RunDirectory.newest(runs_dir) if given is None else RunDirectory.open(given)
