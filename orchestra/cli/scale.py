"""`orchestra scale`: change the number of workers of a running run."""

from orchestra.cli.ps import add_run_to, run_of
from orchestra.errors import UsageError
from orchestra.runs.flag_parser import FlagParser


def command(arguments: list[str]) -> int:
    """Change the number of workers of a running run."""
    parser = FlagParser(
        prog="orchestra scale",
        description="Change the number of workers of a running run, over all its hosts: start processes of further "
        "workers, or stop the last ones in order. Workers whose processes died too often are started again. A resumed "
        "run has the new number.",
    )
    add_run_to(parser)
    parser.add_argument("replicas", metavar="N", type=int, help="the number of workers from now on")
    parser.add_argument(
        "--group", default="", metavar="NAME", help="the group of replicas, if the experiment plans several"
    )
    options = parser.parse_strictly(arguments)
    if options.replicas < 1:
        raise UsageError(f"N: {options.replicas} is not allowed: it must be 1 or more")
    run, info = run_of(options)
    from orchestra.cli.run_table import scale_run

    print(scale_run(run, info, options.group, options.replicas))
    return 0
