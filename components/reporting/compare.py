"""`orchestra compare`: the learning curves of several runs in one picture, and a table of their results."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from components.reporting.comparison import Trial, find_runs, grouped, read_trial, table
from components.reporting.win_rate import SOLVED, WINDOW
from orchestra import FlagParser, UsageError


def command(arguments: list[str]) -> int:
    """Draw the curves of several runs side by side, and print a table of their results."""
    parser = FlagParser(
        prog="orchestra compare",
        description="Draw win rate and return of greedy tests against environment steps and against minutes,\n"
        "or the return alone if episodes cannot be won.\n"
        "Runs that differ in their seed alone are one line, their median, with their quartiles as a band.",
    )
    parser.add_argument(
        "runs", metavar="RUN", type=Path, nargs="+", help="a run's directory, or a directory of such directories"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("compare.png"),
        metavar="FILE",
        help="the picture, .png, .svg or .pdf; the table goes beside it as .md (default: compare.png)",
    )
    options = parser.parse_strictly(arguments)
    if options.output.suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--output: {str(options.output)!r} is not allowed: it must end in .png, .svg or .pdf")
    if not options.output.absolute().parent.is_dir():
        raise UsageError(f"--output: there is no directory {str(options.output.parent)!r}")
    from components.reporting.figure import comparison_figure  # imports matplotlib, which `--help` does not need

    groups = grouped(_trials(options.runs))
    rows = table(groups)
    figure = comparison_figure(groups)
    try:
        figure.savefig(options.output)
        notes = options.output.with_suffix(".md")
        notes.write_text(as_markdown(rows))
    except OSError as error:
        raise UsageError(f"--output: {error.strerror}: {error.filename}") from error
    print(as_text(rows))
    print(f"\ncurves  {options.output}\ntable   {notes}")
    return 0


def _trials(paths: Sequence[Path]) -> list[Trial]:
    """Read runs. Unreadable runs inside a directory (failed, or just begun) are left out.

    Raises:
        UsageError: a run that was named itself cannot be read, or no run of a directory can be read.
    """
    trials: list[Trial] = []
    errors: list[UsageError] = []
    for path in find_runs(paths):
        try:
            trials.append(read_trial(path))
        except UsageError as error:
            if path in paths:
                raise
            errors.append(error)
    if not trials:
        raise errors[0]
    for left_out in errors:
        print(f"orchestra: note: left out: {left_out}", file=sys.stderr)
    return trials


def as_text(rows: Sequence[dict[str, str]]) -> str:
    """Return the table for a terminal: a block for each group, so that it fits any width."""
    blocks = []
    for row in rows:
        label, *rest = row.items()
        width = max(len(name) for name in row)
        blocks.append("\n".join([label[1], *(f"  {name:<{width}}  {value}" for name, value in rest)]))
    return "\n\n".join(blocks)


def as_markdown(rows: Sequence[dict[str, str]]) -> str:
    """Return the table for a page, with a note on its figures."""
    names = max(map(list, rows), key=len)  # without win rates there are fewer figures
    cells = [" | ".join(row.get(name, "-") for name in names) for row in rows]
    lines = [" | ".join(names), " | ".join("---" for _ in names), *cells]
    note = (
        f"Medians over the seeds, quartiles in brackets. A run has solved its scenario from the first greedy test from "
        f"which every {WINDOW} tests in succession win {SOLVED:.0%} on average. The win rate and the return at the end "
        f"are means of the last {WINDOW} tests."
    )
    return os.linesep.join([*(f"| {line} |" for line in lines), "", note, ""])
