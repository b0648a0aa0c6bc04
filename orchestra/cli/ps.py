"""`orchestra ps`: what the actors of a running run are doing, once."""

import asyncio
import json
import os
from pathlib import Path

from rich.console import Console
from rich.text import Text

from orchestra.cli.endings import looking_into
from orchestra.cli.exit_codes import FAILED
from orchestra.errors import UsageError
from orchestra.monitoring import view
from orchestra.monitoring.observer import ClusterStatus, Observer, joined
from orchestra.runs import join_file
from orchestra.runs.flags import FlagParser
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.runner import run_loop
from orchestra.wire.transports.tls import TLS_DIR_VARIABLE

PIPED_COLUMNS = 160
"""How wide the lines may be where no terminal limits them."""


def command(arguments: list[str]) -> int:
    """Show what the actors of a running run are doing."""
    parser = FlagParser(
        prog="orchestra ps",
        description="Show what the actors of a running run are doing: what waits for them, how fast and how busy they "
        "are,\nwhat they do or wait for, and what goes by the links between the nodes.",
    )
    add_run(parser)
    parser.add_argument("--json", action="store_true", help="print all there is to know, as JSON")
    parser.add_argument("--all", action="store_true", help="show the actors that every node has for itself, too")
    parser.add_argument(
        "--seconds", type=float, default=1.0, metavar="S", help="rates are those of so many seconds (default: 1)"
    )
    options = parser.parse_strictly(arguments)
    if options.seconds <= 0:
        raise UsageError(f"--seconds: {options.seconds:g} is not allowed: it must be more than 0")
    run = which_run(options.run, options.runs_dir)
    entrance = entrance_of(run)
    with looking_into(run):
        shown = run_loop(_two_looks(entrance, options.seconds))
        if options.json:
            print(json.dumps(view.as_json(str(run.path), shown), indent=2))
            return 0
        console = Console(highlight=False, soft_wrap=True)
        width = console.width if console.is_terminal else PIPED_COLUMNS
        console.print(Text(str(run.path), style="dim"))
        for line in view.lines(shown, width, own=options.all):
            console.print(line)
        return 0
    return FAILED


def add_run(parser: FlagParser) -> None:
    """Add the arguments that say which run is meant."""
    parser.add_argument(
        "run", metavar="RUN_DIR", type=Path, nargs="?", help="the run's directory (default: the newest)"
    )
    parser.add_argument(
        "--runs-dir",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="where the newest is looked for (default: runs)",
    )


def which_run(given: Path | None, runs_dir: Path) -> RunDirectory:
    """Return the run that is meant.

    Raises:
        UsageError: there is none.
    """
    return RunDirectory.newest(runs_dir) if given is None else RunDirectory.open(given)


def entrance_of(run: RunDirectory) -> join_file.JoinInfo:
    """Return the door of a run that goes on.

    Over TLS this process shows the certificate of the run itself, which belongs to the same owner, unless the
    environment names others.

    Raises:
        UsageError: see `door.find`.
    """
    entrance = join_file.find(run)
    if entrance.tls_dir:
        os.environ.setdefault(TLS_DIR_VARIABLE, entrance.tls_dir)
    return entrance


async def _two_looks(entrance: join_file.JoinInfo, seconds: float) -> list[view.NodeRow]:
    async with joined(entrance) as guest:
        before = await guest.look()
        await asyncio.wait({guest.left}, timeout=seconds)
        return view.rows(before, await _last_look(guest, before))


async def _last_look(guest: Observer, before: ClusterStatus) -> ClusterStatus:
    return before if guest.left.done() else await guest.look()
