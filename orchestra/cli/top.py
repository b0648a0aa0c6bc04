"""`orchestra top`: the table of `orchestra ps`, live."""

import sys

from orchestra.cli.ps import add_run, which_run
from orchestra.errors import UsageError
from orchestra.runs import join_file
from orchestra.runs.flags import FlagParser

KEYS = "q quit   sort: t tree  d queue  b busy  r rate   a all actors"


def command(arguments: list[str]) -> int:
    """Watch the actors of a running run, live."""
    parser = FlagParser(
        prog="orchestra top",
        description=f"Watch the actors of a running run; `orchestra ps` prints the same table once.\n\nKeys: {KEYS}.",
    )
    add_run(parser)
    parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help="time between updates (default: 1)")
    options = parser.parse_strictly(arguments)
    if options.seconds <= 0:
        raise UsageError(f"--seconds: {options.seconds:g} is not allowed: it must be more than 0")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("orchestra top needs a terminal; `orchestra ps` prints the same once")
    run = which_run(options.run, options.runs_dir)
    info = join_file.find(run)
    from orchestra.cli.run_table import watch

    print(watch(run, info, options.seconds, KEYS))
    return 0
