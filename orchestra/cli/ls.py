"""`orchestra ls`: list the runs of a folder."""

import json
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from orchestra.clock import RealClock
from orchestra.runs.flag_parser import FlagParser
from orchestra.runs.run_list import ListedRun, listed, runs_in

STEPS, GOAL, EVALUATION, RETURN = "env_steps", "goal_steps", "test_win_rate", "test_return"
"""Fields of the last record of a run that are shown."""
_STYLES = {"running": "bold green", "done": "green", "failed": "bold red", "killed": "red"}
_PIPED_COLUMNS = 160
"""Width of the table where stdout is no terminal."""


def command(arguments: list[str]) -> int:
    """List the runs: state, steps, last evaluation, age, size."""
    parser = FlagParser(
        prog="orchestra ls",
        description="List the runs, the newest first: experiment, state, steps, last evaluation, age since the start\n"
        "or the last resume, and size on the disk.",
    )
    parser.add_argument("--json", action="store_true", help="print the list as JSON")
    add_runs_dir(parser)
    options = parser.parse_strictly(arguments)
    clock = RealClock()
    runs = [listed(run, clock) for run in runs_in(options.runs_dir)]
    if options.json:
        print(json.dumps([_as_json(run) for run in runs], indent=2))
    elif runs:
        print_table(runs)
    else:
        print(f"there is no run in {str(options.runs_dir)!r}")
    return 0


def add_runs_dir(parser: ArgumentParser) -> None:
    """Add the flag `--runs-dir`."""
    parser.add_argument(
        "--runs-dir", type=_folder, default=Path("runs"), metavar="DIR", help="the folder of all runs (default: runs)"
    )


def _folder(text: str) -> Path:
    """Return a folder given on the command line. It must exist; the default folder need not."""
    path = Path(text)
    if not path.is_dir():
        said = "is no folder" if path.exists() else "does not exist"
        raise ArgumentTypeError(f"{text!r} {said}")
    return path


def print_table(runs: Sequence[ListedRun]) -> None:
    """Print a line for each run, and one with their number and size."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("RUN", overflow="fold")
    table.add_column("STATE")
    for name in ("STEPS", "EVALUATION", "AGE", "SIZE"):
        table.add_column(name, justify="right", no_wrap=True)
    for run in runs:
        table.add_row(
            Text(str(run.run.path)),
            Text(run.state, style=_STYLES.get(run.state, "yellow")),
            _steps(run),
            _evaluation(run),
            age(run.age_s),
            decimal(run.nbytes),
        )
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PIPED_COLUMNS
    console.print(table)
    total = decimal(sum(run.nbytes for run in runs))
    console.print(Text(f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}, {total}", style="dim"))


def age(seconds: float) -> str:
    """Return an age in its two largest units: `3 d 4 h`."""
    minutes = int(seconds // 60)
    days, hours, minutes = minutes // 1440, minutes // 60 % 24, minutes % 60
    parts = [f"{n} {unit}" for n, unit in ((days, "d"), (hours, "h"), (minutes, "min")) if n]
    return " ".join(parts[:2]) or f"{int(seconds)} s"


def _steps(run: ListedRun) -> str:
    steps, goal = run.last_record.get(STEPS), run.last_record.get(GOAL)
    if not isinstance(steps, int):
        return "-"
    return f"{steps:,}/{goal:,}" if isinstance(goal, int) else f"{steps:,}"


def _evaluation(run: ListedRun) -> str:
    share, mean_return = run.last_record.get(EVALUATION), run.last_record.get(RETURN)
    if isinstance(share, int | float):
        return f"{share:.0%}"
    return f"return {mean_return:.1f}" if isinstance(mean_return, int | float) else "-"


def _as_json(run: ListedRun) -> dict[str, object]:
    return {
        "run": str(run.run.path),
        "experiment": run.experiment,
        "state": run.state,
        "steps": run.last_record.get(STEPS),
        "goal_steps": run.last_record.get(GOAL),
        "evaluation": run.last_record.get(EVALUATION),
        "evaluation_return": run.last_record.get(RETURN),
        "age_s": run.age_s,
        "bytes": run.nbytes,
        "resume": run.run.resume_command,
    }
