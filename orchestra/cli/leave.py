"""`orchestra leave`: have a host leave a running run."""

from orchestra.cli.ps import add_run_to, run_of
from orchestra.runs.flag_parser import FlagParser


def command(arguments: list[str]) -> int:
    """Have a host leave a running run."""
    parser = FlagParser(
        prog="orchestra leave",
        description="Have a host leave a running run: its processes hand over what they can and end, and the run "
        "goes on without it while it has the workers and hosts that it requires. The host may come back.",
    )
    add_run_to(parser)
    parser.add_argument("slot", metavar="SLOT", type=int, help="the number of the host")
    options = parser.parse_strictly(arguments)
    run, info = run_of(options)
    from orchestra.cli.run_table import leave_run

    leave_run(run, info, options.slot)
    print(f"host {options.slot} has left")
    return 0
