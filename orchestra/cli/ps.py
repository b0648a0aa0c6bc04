"""`orchestra ps`: print a table of the actors of a running run."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

from orchestra import log
from orchestra.errors import OrchestraError, UsageError
from orchestra.monitoring import view
from orchestra.monitoring.observer import ClusterStatus, Observer, connected
from orchestra.runs import join_file
from orchestra.runs.flags import FlagParser
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.runner import run_loop

PIPED_COLUMNS = 160
"""Width of the lines where stdout is no terminal."""


def command(arguments: list[str]) -> int:
    """Print the actors of a running run: queues, rates, states."""
    parser = FlagParser(
        prog="orchestra ps",
        description="Print the actors of a running run, with their queues, rates and states, and the links between "
        "its nodes.",
    )
    add_run(parser)
    parser.add_argument("--json", action="store_true", help="print all statistics as JSON")
    parser.add_argument("--all", action="store_true", help="include the actors of the runtime itself")
    parser.add_argument(
        "--seconds", type=float, default=1.0, metavar="S", help="time over which rates are measured (default: 1)"
    )
    options = parser.parse_strictly(arguments)
    if options.seconds <= 0:
        raise UsageError(f"--seconds: {options.seconds:g} is not allowed: it must be more than 0")
    run = which_run(options.run, options.runs_dir)
    info = join_file.find(run)
    with looking_into(run):
        shown = run_loop(_measured_rows(info, options.seconds))
    if options.json:
        print(json.dumps(view.as_json(str(run.path), shown), indent=2))
        return 0
    console = Console(highlight=False, soft_wrap=True)
    width = console.width if console.is_terminal else PIPED_COLUMNS
    console.print(Text(str(run.path), style="dim"))
    for line in view.lines(shown, width, own=options.all):
        console.print(line)
    return 0


def add_run(parser: FlagParser) -> None:
    """Add the arguments that select a run."""
    parser.add_argument(
        "run", metavar="RUN_DIR", type=Path, nargs="?", help="the run's directory (default: the newest)"
    )
    parser.add_argument(
        "--runs-dir",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="where the newest run is searched (default: runs)",
    )


def which_run(given: Path | None, runs_dir: Path) -> RunDirectory:
    """Return the selected run: the one at `given`, or the newest.

    Raises:
        UsageError: there is no such run.
    """
    return RunDirectory.newest(runs_dir) if given is None else RunDirectory.open(given)


@contextmanager
def looking_into(run: RunDirectory) -> Iterator[None]:
    """Discard logs, and name the run in an error. A `UsageError` stays as it is."""
    with log.configured(None, node="guest", level="critical"):
        try:
            yield
        except UsageError:
            raise
        except OrchestraError as error:
            raise OrchestraError(f"cannot look into the run in {str(run.path)!r}: {error}") from None


async def _measured_rows(info: join_file.JoinInfo, seconds: float) -> list[view.NodeRow]:
    async with connected(info) as observer:
        before = await observer.status()
        await asyncio.wait({observer.left}, timeout=seconds)
        return view.rows(before, await _last_status(observer, before))


async def _last_status(observer: Observer, before: ClusterStatus) -> ClusterStatus:
    return before if observer.left.done() else await observer.status()
