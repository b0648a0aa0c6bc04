"""`orchestra config`: print the configuration of a run as a command line."""

import shlex
import sys

from orchestra.cli.ps import add_run_to
from orchestra.runs.flag_parser import FlagParser
from orchestra.runs.recorded_command import recorded_command
from orchestra.runs.run_directory import RunDirectory


def command(arguments: list[str]) -> int:
    """Print the configuration of a run as a command line."""
    parser = FlagParser(
        prog="orchestra config",
        description="Print the command line that begins a run with the settings of this one: its file, and the flags "
        "that\ndiffer from their defaults. Paths are as they were given; an experiment that comes with orchestra\n"
        "has its name.",
    )
    add_run_to(parser, default="the newest")
    parser.add_argument("--all", action="store_true", help="all flags of the experiment, those of today's default, too")
    options = parser.parse_strictly(arguments)
    run = RunDirectory.newest(options.runs_dir) if options.run is None else RunDirectory.open(options.run)
    words, remarks = recorded_command(run, defaults=options.all)
    for remark in remarks:
        print(f"orchestra: {remark}", file=sys.stderr)
    print(shlex.join(words))
    return 0
