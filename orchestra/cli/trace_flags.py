"""Parts shared by the commands of `orchestra trace`: arguments, message names, tables."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from orchestra.errors import TraceError, UsageError
from orchestra.runs.flags import FlagParser
from orchestra.trace.reading.query import DeliveryRow, Query, find_serial
from orchestra.trace.reading.run_trace import RunTrace
from orchestra.trace.reading.where import Where

PIPED_COLUMNS = 160
"""Width of tables that are not printed to a terminal."""


def parser_of(name: str, command: Callable[[list[str]], int]) -> FlagParser:
    """Return a parser with the argument that names the run."""
    parser = FlagParser(prog=f"orchestra trace {name}", description=command.__doc__)
    parser.add_argument("run", metavar="RUN_DIR", type=Path, help="a run directory or a trace file")
    return parser


def add_json(parser: FlagParser) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="print JSON, one object per line")


def add_filters(parser: FlagParser, *, where: bool = True) -> None:
    """Add the flags that select deliveries."""
    group = parser.add_argument_group("which deliveries")
    group.add_argument("--actor", default="*", metavar="PATTERN", help="the recipient: 'worker-*/worker'")
    group.add_argument("--sender", default="*", metavar="PATTERN", help="the sender")
    group.add_argument("--type", default="*", metavar="PATTERN", help="the message type: LoadParamsMsg, 'Insert*'")
    group.add_argument("--since", type=float, default=None, metavar="S", help="from S seconds after the run began")
    group.add_argument("--until", type=float, default=None, metavar="S", help="until S seconds after the run began")
    group.add_argument("--min-bytes", type=int, default=0, metavar="N", help="least size of the message")
    group.add_argument("--max-bytes", type=int, default=None, metavar="N", help="largest size of the message")
    if where:
        group.add_argument(
            "--where",
            default=None,
            metavar="EXPR",
            help="a condition on the fields: 'version > 120'; also on actor, sender, type, n, bytes, waited",
        )


def query_of(options: Any) -> Query:
    """Return the query in the flags of `add_filters`."""
    where = getattr(options, "where", None)
    names = ("actor", "sender", "type", "since", "until", "min_bytes", "max_bytes")
    given = {name: getattr(options, name) for name in names}
    return Query(**given, where=None if where is None else Where(where))


def message_rows(trace: RunTrace, name: str) -> list[DeliveryRow]:
    """Return the deliveries of the message `SENDER#NUMBER`.

    Raises:
        UsageError: the name has another form.
        TraceError: no delivery of it was recorded.
    """
    sender, mark, number = name.rpartition("#")
    if not mark or not number.isdigit():
        raise UsageError(f"{name!r}: a message is named SENDER#NUMBER, as in learner/trainer#12")
    found = find_serial(trace, sender, int(number))
    if not found:
        raise TraceError(f"{trace.path}: no delivery of {name} was recorded")
    return found


def console_of() -> Console:
    """Return the console for tables."""
    console = Console(highlight=False, soft_wrap=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPED_COLUMNS)


def table(*columns: str) -> Table:
    """Return an empty table."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    return made
