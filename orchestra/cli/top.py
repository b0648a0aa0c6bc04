"""`orchestra top`: the table of `orchestra ps`, live."""

import sys

from orchestra.cli.ps import parsed, run_of
from orchestra.errors import UsageError
from orchestra.runs.flag_parser import FlagParser

KEYS = "q quit   sort: t tree  d queue  b busy  r rate   a all actors"


def command(arguments: list[str]) -> int:
    """Watch the actors of a running run, live."""
    parser = FlagParser(
        prog="orchestra top",
        description=f"Watch the actors of a running run; `orchestra ps` prints the same table once.\n\nKeys: {KEYS}.",
    )
    options = parsed(parser, arguments, "time between updates")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("orchestra top needs a terminal; `orchestra ps` prints the same once")
    run, info = run_of(options)
    from orchestra.cli.run_table import watch

    print(watch(run, info, options.seconds, KEYS))
    return 0
