"""Parts shared by the commands of `orchestra trace`: arguments, message names, tables."""

import contextlib
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from orchestra.errors import TraceError, UsageError
from orchestra.runs.flag_parser import FlagParser
from orchestra.trace.reading.query import DeliveryRow, Query, find_serial
from orchestra.trace.reading.run_trace import RunTrace
from orchestra.trace.reading.where import Where

PIPED_COLUMNS = 160
"""Width of tables that are not printed to a terminal."""


def parser_of(
    name: str, command: Callable[[list[str]], int], *, filters: bool = True, where: bool = True, json: bool = True
) -> FlagParser:
    """Return a parser with the argument that names the run and the flags of several commands.

    Args:
        name: of the command.
        command: its docstring is the description.
        filters: add the flags that select deliveries; `query_of` reads them.
        where: add `--where` to them.
        json: add `--json`.
    """
    parser = FlagParser(prog=f"orchestra trace {name}", description=command.__doc__)
    parser.add_argument("run", metavar="RUN_DIR", type=Path, help="a run directory or a trace file")
    if filters:
        _add_filters(parser, where=where)
    if json:
        parser.add_argument("--json", action="store_true", help="print JSON, one object per line")
    return parser


@contextlib.contextmanager
def opened(parser: FlagParser, arguments: Sequence[str]) -> Iterator[tuple[Namespace, RunTrace]]:
    """Parse the arguments, and within the block yield the options and the trace that they name."""
    options = parser.parse_strictly(arguments)
    with RunTrace(options.run) as trace:
        yield options, trace


def _add_filters(parser: FlagParser, *, where: bool) -> None:
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


def query_of(options: Namespace) -> Query:
    """Return the query in the flags that select deliveries."""
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
