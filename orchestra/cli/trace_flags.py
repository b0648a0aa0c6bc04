"""What the questions of `orchestra trace` have in common: which run, which deliveries, how it is printed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from orchestra.runs.flags import FlagParser
from orchestra.trace.reading.query import Query
from orchestra.trace.reading.where import Where

PIPED_COLUMNS = 160
"""How wide tables may be where no terminal limits them."""


def parser_of(name: str, question: Callable[[list[str]], int]) -> FlagParser:
    """Return a parser that knows which run is meant."""
    parser = FlagParser(prog=f"orchestra trace {name}", description=question.__doc__)
    parser.add_argument("run", metavar="RUN_DIR", type=Path, help="a run's directory, or a trace file")
    return parser


def add_json(parser: FlagParser) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="print JSON, one object a line")


def add_filters(parser: FlagParser, *, where: bool = True) -> None:
    """Add the flags that say which deliveries are meant."""
    group = parser.add_argument_group("which deliveries")
    group.add_argument("--actor", default="*", metavar="PATTERN", help="who was told: 'worker-*/worker'")
    group.add_argument("--sender", default="*", metavar="PATTERN", help="by whom")
    group.add_argument("--type", default="*", metavar="PATTERN", help="what: LoadParamsMsg, 'Insert*'")
    group.add_argument("--since", type=float, default=None, metavar="S", help="seconds from the start of the run")
    group.add_argument("--until", type=float, default=None, metavar="S", help="seconds from the start of the run")
    group.add_argument("--min-bytes", type=int, default=0, metavar="N")
    group.add_argument("--max-bytes", type=int, default=None, metavar="N")
    if where:
        group.add_argument(
            "--where",
            default=None,
            metavar="EXPR",
            help="a condition on the fields: 'version > 120'; also on actor, sender, type, n, bytes, waited",
        )


def query_of(options: Any) -> Query:
    """Return what the flags of `add_filters` say."""
    where = getattr(options, "where", None)
    return Query(
        options.actor,
        options.sender,
        options.type,
        options.since,
        options.until,
        options.min_bytes,
        options.max_bytes,
        None if where is None else Where(where),
    )


def console_of() -> Console:
    """Return where tables are printed."""
    console = Console(highlight=False, soft_wrap=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPED_COLUMNS)


def table(*columns: str) -> Table:
    """Return an empty table."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    return made
