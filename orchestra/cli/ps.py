"""`orchestra ps`: print a table of the actors of a running run."""

import math
from argparse import Namespace
from pathlib import Path

from orchestra.errors import UsageError
from orchestra.runs import join_file
from orchestra.runs.flag_parser import FlagParser
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.run_list import newest_running


def command(arguments: list[str]) -> int:
    """Print the actors of a running run: queues, rates, states."""
    parser = FlagParser(
        prog="orchestra ps",
        description="Print the actors of a running run, with their queues, rates and states, and the links between "
        "its nodes.",
    )
    parser.add_argument("--json", action="store_true", help="print all statistics as JSON")
    parser.add_argument("--all", action="store_true", help="include the actors of the runtime itself")
    parser.add_argument("--host", type=int, metavar="SLOT", help="show the nodes of this host alone, and the learner's")
    options = parsed(parser, arguments, "time over which rates are measured")
    run, info = run_of(options)
    from orchestra.cli.run_table import print_once

    print_once(run, info, options.seconds, slot=options.host, as_json=options.json, own=options.all)
    return 0


def parsed(parser: FlagParser, arguments: list[str], seconds: str) -> Namespace:
    """Parse the arguments, with those that select a run, and `--seconds`, of which `seconds` is the help.

    Raises:
        UsageError: they are misused.
    """
    add_run_to(parser)
    parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help=f"{seconds} (default: 1)")
    options = parser.parse_strictly(arguments)
    if not 0 < options.seconds < math.inf:
        raise UsageError(f"--seconds: {options.seconds:g} is not allowed: it must be more than 0")
    return options


def add_run_to(parser: FlagParser, *, default: str = "the newest that is running") -> None:
    """Add the arguments that select a run, for `run_of`."""
    parser.add_argument(
        "run", metavar="RUN_DIR", type=Path, nargs="?", help=f"the run's directory (default: {default})"
    )
    parser.add_argument(
        "--runs-dir",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="where that run is searched (default: runs)",
    )


def run_of(options: Namespace) -> tuple[RunDirectory, join_file.JoinInfo]:
    """Return the selected run, and how to join it.

    Raises:
        UsageError: there is no such run, or it cannot be joined.
    """
    run = newest_running(options.runs_dir) if options.run is None else RunDirectory.open(options.run)
    return run, join_file.find(run)
