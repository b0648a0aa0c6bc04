"""The display of a run: a live screen on a terminal, occasional lines elsewhere, and a summary at the end."""

import contextlib
import errno
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Span, Text

from components.reporting.chart import TEST, TRAIN, Chart, Results
from components.reporting.progress import Progress
from components.reporting.terminal_echo import silenced
from orchestra import log

_log = log.get(actor="display")
_T = TypeVar("_T")

_NONE = "-"  # a missing figure
_BARS = "·▁▂▃▄▅▆▇█"
_BAR = "bright_blue"
_NARROW = 72  # fewest columns at which the three blocks of figures fit side by side
_CHART_ROWS = 15  # largest number of rows of the chart
_ENDING = 13  # columns of the labels in the summary


class Display:
    """Shows `Progress` records on one stream.

    On a terminal every `show` redraws the screen; other output scrolls above it.
    Any other stream, a file or a pipe, gets plain lines, at most one in `every_s` seconds. Time is that of the run, as
    in the records. When the stream is closed the display ends and the run continues.

    Always call `close`, which restores the terminal. Only one task at a time may use the display.
    """

    def __init__(self, stream: TextIO, *, title: str = "", every_s: float = 10.0) -> None:
        """Make the display without showing anything.

        Args:
            stream: stream to write to; a terminal gets a screen.
            title: name of the run in the first line: `qmix_8m, seed 1`.
            every_s: least time between plain lines, in seconds.
        """
        self.notice = ""
        """A warning that is shown while it is set."""
        self.hosts: Sequence[Text] = ()
        """Lines about the hosts of the run, shown below the figures."""
        self._title = title
        self._every_s = every_s
        self._next_line_s = -math.inf
        is_terminal = stream.isatty()  # asked here: by the environment, rich might treat a file as one
        # Not as HTML, which rich shows in a notebook for any stream.
        self._console = _Console(file=stream, force_terminal=is_terminal, force_jupyter=False, highlight=False)
        self._has_screen = (
            is_terminal and not self._console.is_dumb_terminal and self._console.encoding.startswith("utf")
        )
        self._stream = stream
        self._live: Live | None = None
        self._screen = contextlib.ExitStack()  # restores the terminal
        self._rates = Results()
        self._gone = False

    def show(self, progress: Progress) -> None:
        """Show the present progress of the run."""
        self._rates.add(progress)
        if self._has_screen:
            self._attempt(lambda: self._draw(progress))
        elif progress.elapsed_s >= self._next_line_s:
            self._next_line_s = progress.elapsed_s + self._every_s
            self._attempt(lambda: self._print(Text("  ".join(filter(None, (plain_line(progress), self.notice))))))

    def finish(self, progress: Progress, summary: Sequence[str] = (), *, curve: Path | None = None) -> None:
        """Remove the screen and print the end of the run: its figures, the lines of `summary`, the curve's path."""
        self.close()
        self._attempt(
            lambda: self._print(_ending(progress, self._title, [*filter(None, [self.notice]), *summary], curve))
        )

    def close(self) -> None:
        """Remove the screen and restore the terminal. A second call has no effect."""
        self._live = None
        self._attempt(self._screen.close)

    def _draw(self, progress: Progress) -> None:
        if self._live is None:
            self._screen.callback(silenced(self._stream))
            # The caller draws each update; rich starts no thread that could write in between.
            self._live = Live(console=self._console, auto_refresh=False, transient=True, vertical_overflow="crop")
            self._screen.enter_context(self._live)
        height = self._console.height - 1  # the cursor is below the last line
        self._live.update(
            screen(
                progress,
                "   ".join(filter(None, (self._title, self.notice))),
                self._rates,
                self._console.width,
                height,
                self.hosts,
            )
        )
        self._live.refresh()

    def _print(self, text: Text) -> None:
        encoding = self._console.encoding
        plain = text.plain.encode(encoding, "replace").decode(encoding)
        if plain != text.plain:
            text = Text(plain)
        # Not wrapped: a path on two lines can neither be clicked nor copied.
        self._console.print(text, soft_wrap=True)
        self._console.file.flush()

    def _attempt(self, write: Callable[[], None]) -> None:
        if self._gone:
            return
        try:
            write()
        except OSError as error:
            self._gone = True
            _log.warning("the display's stream is closed; the run continues", error=repr(error))
            # Restores stdout and stderr, which rich had replaced, before the stream fails again.
            with contextlib.suppress(OSError):
                self._screen.close()


def plain_line(progress: Progress) -> str:
    """Return the progress in a line without unknown values: `12:31  training  120,480/1,000,000 steps  8,120/s  …`."""
    p = progress
    left = remaining_s(p)
    best = "" if p.best_test_win_rate is None else f" (best {_percent(p.best_test_win_rate)})"
    if p.has_returns_alone and p.best_test_return is not None:
        best = f" (best {p.best_test_return:.2f})"
    parts = [
        clock_time(p.elapsed_s),
        p.state,
        f"{p.env_steps:,}/{p.goal_steps:,} steps",
        f"{_rate(p.env_steps_per_s)}/s",
        f"episodes {p.episodes:,}",
        p.train_win_rate is not None and f"train {_percent(p.train_win_rate)}",
        p.test_win_rate is not None and f"test {_percent(p.test_win_rate)}{best}",
        p.train_return is not None and f"return {p.train_return:.2f}",
        p.has_returns_alone and p.test_return is not None and f"test {p.test_return:.2f}{best}",
        f"updates {p.updates:,} ({_rate(p.updates_per_s)}/s)",
        p.loss is not None and f"loss {p.loss:.4g}",
        p.epsilon is not None and f"epsilon {p.epsilon:.2f}",
        p.params_lag is not None and f"lag {p.params_lag}",
        "loads" in p.sync and f"loads {_loads(p)}",
        p.dropped_episodes and f"dropped {p.dropped_episodes:,}",
        p.busiest_actor is not None and f"busiest {p.busiest_actor} {p.mailbox_depth or 0}",
        f"workers {p.workers}" + (f" ({p.restarts} restarted)" if p.restarts else ""),
        left is not None and f"left {clock_time(left)}",
    ]
    return "  ".join(part for part in parts if part)


def _loads(p: Progress) -> str:
    """Return the mean number of loads per worker, and the number of versions of the parameters."""
    return f"{p.sync['loads_per_worker']:,.0f}/{p.sync['versions']:,.0f}"


def remaining_s(progress: Progress) -> float | None:
    """Return the seconds until `goal_steps` at the recent rate; None while there is no rate."""
    left = progress.goal_steps - progress.env_steps
    if left <= 0:
        return 0.0
    return left / progress.env_steps_per_s if progress.env_steps_per_s > 0 else None


def clock_time(seconds: float) -> str:
    """Return a time as `12:31` or `1:02:03`, preceded by days if there are any."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute:02}:{second:02}"


def screen(
    progress: Progress, title: str, chart: Results, width: int, height: int, hosts: Sequence[Text] = ()
) -> RenderableType:
    """Return the screen of a terminal: at most `height` rows, with the chart of the results if there is room."""
    p = progress
    left = remaining_s(p)
    done = min(p.env_steps / p.goal_steps, 1.0) if p.goal_steps > 0 else 1.0
    state = Text(p.state, style="bold green" if p.state in ("training", "done") else "bold yellow")
    parts: list[RenderableType] = [
        _edges(Text(title or "a run", style="bold"), state),
        _edges(ProgressBar(total=1.0, completed=done, complete_style=_BAR, finished_style="green")),
        _edges(
            _said(f"{p.env_steps:,}", f" of {p.goal_steps:,} env steps, {done:.1%}"),
            _said(clock_time(p.elapsed_s), " gone   ") + _said(_or_none(left, clock_time), " left"),
        ),
        Text(),
    ]
    blocks = _blocks(p)
    heights = [len(block) for block in blocks]
    rows = len(parts) + (p.busiest_actor is not None)
    if width >= _NARROW:
        rows += max(heights)
        columns = Table.grid(expand=True, padding=(0, 3))
        for _ in blocks:
            columns.add_column(ratio=1)
        columns.add_row(*map(_block, blocks))
        parts.append(columns)
    else:
        rows += sum(heights)
        parts.append(_block([row for block in blocks for row in block]))
    if p.busiest_actor is not None:
        waiting = Text.assemble(
            ("fullest mailbox   ", "dim"),
            (f"{p.mailbox_depth or 0:,}", "bold"),
            (" waiting for ", "dim"),
            p.busiest_actor,
        )
        parts.append(_edges(waiting))  # in a grid, so that a long path is shortened, not wrapped
    if hosts and rows + len(hosts) < height:
        rows += len(hosts) + 1
        parts += [Text(), *(_cut(line, width) for line in hosts)]
    # Without a blank line, the legend and the two rows of the axis; odd if the chart fills the screen.
    chart_rows = min(height - rows - 4, _CHART_ROWS) - (1 - (height - rows) % 2)
    if chart_rows >= 3 and (chart.train or chart.test):
        parts += [Text(), Chart(chart, until=p.env_steps, rows=chart_rows)]
    return Group(*parts)


def _cut(line: Text, width: int) -> Text:
    line = line.copy()
    line.truncate(width, overflow="ellipsis")
    return line


class _Console(Console):
    """A rich console that leaves a broken pipe to the caller instead of ending the process."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _blocks(p: Progress) -> list[list[tuple[str, str, str]]]:
    """Return the figures in three blocks of rows: (label, value, style)."""
    rates = [
        ("train win rate", _or_none(p.train_win_rate, _percent), f"bold {TRAIN}"),
        ("test win rate", _or_none(p.test_win_rate, _percent), f"bold {TEST}"),
        ("best test", _or_none(p.best_test_win_rate, _percent), "bold"),
    ]
    returns = [
        ("train return", _or_none(p.train_return, "{:.2f}".format), "bold"),
        ("test return", _or_none(p.test_return, "{:.2f}".format), "bold"),
    ]
    if p.has_returns_alone:
        rates = []
        returns.append(("best test", _or_none(p.best_test_return, "{:.2f}".format), "bold"))
    return [
        [*rates, *returns],
        [
            ("updates", f"{p.updates:,}", "bold"),
            ("updates/s", _rate(p.updates_per_s), "bold"),
            ("loss", _or_none(p.loss, "{:.4g}".format), "bold"),
            ("epsilon", _or_none(p.epsilon, "{:.3f}".format), "bold"),
            ("parameter lag", _or_none(p.params_lag, lambda lag: f"{_bars(p.params_lags)} {lag}".strip()), "bold"),
            *([("loads/versions", _loads(p), "bold")] if "loads" in p.sync else []),
        ],
        [
            ("env steps/s", _rate(p.env_steps_per_s), "bold"),
            ("episodes", f"{p.episodes:,}", "bold"),
            ("workers", str(p.workers), "bold" if p.workers or p.state == "starting" else "bold red"),
            ("restarts", str(p.restarts), "bold yellow" if p.restarts else "bold"),
            *([("dropped", f"{p.dropped_episodes:,}", "bold yellow")] if p.dropped_episodes else []),
        ],
    ]


def _block(rows: Sequence[tuple[str, str, str]]) -> Table:
    block = Table.grid(expand=True)
    block.add_column(no_wrap=True, style="dim")
    block.add_column(no_wrap=True, justify="right")
    for what, much, style in rows:
        block.add_row(what, Text(much, style=style))
    return block


def _ending(p: Progress, title: str, summary: Sequence[str], curve: Path | None) -> Text:
    average = p.env_steps / p.elapsed_s if p.elapsed_s > 0 else 0.0
    best = "" if p.best_test_win_rate is None else f" (the best test: {_percent(p.best_test_win_rate)})"
    if p.has_returns_alone and p.best_test_return is not None:
        best = f" (the best test: {p.best_test_return:.2f})"
    rows = {
        "env steps": f"{p.env_steps:,} of {p.goal_steps:,}, {_rate(average)}/s on average",
        "episodes": f"{p.episodes:,}",
        "updates": f"{p.updates:,}",
        "training": _result(p.train_win_rate, p.train_return),
        "greedy test": _result(p.test_win_rate, p.test_return, best),
        "restarts": p.restarts and f"{p.restarts} of worker processes that died",
    }
    lines = [*(f"{what:<{_ENDING}}{said}" for what, said in rows.items() if said), *summary]
    if curve is not None:
        lines.append(f"{'curve':<{_ENDING}}{curve}")
    name = title or "the run"
    head = f"{name}: {p.state} after {clock_time(p.elapsed_s)}"
    return Text("\n  ".join([head, *lines]), spans=[Span(0, len(name), "bold")])


def _result(win_rate: float | None, episode_return: float | None, more: str = "") -> str:
    figures = (
        "" if win_rate is None else f"{_percent(win_rate)} won",
        "" if episode_return is None else f"return {episode_return:.2f}",
    )
    text = ", ".join(filter(None, figures))
    return text and text + more


def _edges(left: RenderableType, right: Text | None = None) -> Table:
    """Return one row: `left` at the left edge, shortened if needed, `right` at the right edge."""
    row = Table.grid(expand=True, padding=(0, 1))
    row.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    if right is None:
        row.add_row(left)
    else:
        row.add_column(no_wrap=True, justify="right")
        row.add_row(left, right)
    return row


def _said(strong: str, quiet: str) -> Text:
    return Text.assemble((strong, "bold"), (quiet, "dim"))


def _or_none(value: _T | None, said: Callable[[_T], str]) -> str:
    return _NONE if value is None else said(value)


def _bars(counts: Sequence[int]) -> str:
    """Return a histogram with a character for each count; empty without counts."""
    most = max(counts, default=0)
    return "".join(_BARS[0 if not count else 1 + count * (len(_BARS) - 2) // most] for count in counts) if most else ""


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.1f}"
