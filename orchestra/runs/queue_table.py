"""Works through a queue of runs and shows it: a live table on a terminal, lines elsewhere."""

import asyncio
import sys
from typing import Any, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from orchestra.errors import QueueStopped
from orchestra.runs.run_queue import QueueEntry, RunQueue
from orchestra.runs.runner import on_signals, run_loop, stop_signals

LINE_S = 60.0
"""Seconds between two lines about runs that go on, where stdout is no terminal."""
_STYLES = {"running": "bold green", "done": "green", "failed": "bold red", "stopped": "yellow", "waiting": "dim"}
_ORDER = ("running", "failed", "done", "stopped", "waiting")
_BESIDES = 7
"""Lines of the screen that are no rows of the table."""


def work_through(queue: RunQueue, *, title: str, stream: TextIO | None = None) -> None:
    """Work through a queue, and show its table meanwhile. SIGTERM and SIGHUP stop it as Ctrl-C does.

    Args:
        queue: the queue. Its `on_tick` is called as before.
        title: the first line of the table.
        stream: where the table goes; stdout by default.

    Raises:
        KeyboardInterrupt: Ctrl-C stopped it.
        QueueStopped: SIGTERM or SIGHUP did; the runs can go on.
        UsageError: another process works through the queue.
        CannotWrite: a file of the queue cannot be written.
    """
    display = QueueDisplay(queue, title, stream or sys.stdout)
    before = queue.on_tick

    def tick() -> None:
        if before is not None:
            before()
        display.show()

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        signals: list[str] = []

        def stop(name: str, at: float) -> None:
            if not signals:  # schedulers repeat them
                task.cancel()
            signals.append(name)

        with on_signals(stop, *stop_signals()):
            try:
                await queue.work()
            except asyncio.CancelledError:
                if not signals:
                    raise
                raise QueueStopped(f"{signals[0]} stopped the queue; the same command goes on with it") from None

    queue.on_tick, queue.on_stopping = tick, display.say_stopping
    try:
        with display:
            run_loop(work())
    finally:
        queue.on_tick, queue.on_stopping = before, None


class QueueDisplay:
    """Shows how a queue stands: on a terminal a table that is redrawn, else a line for each change and each minute."""

    def __init__(self, queue: RunQueue, title: str, stream: TextIO) -> None:
        self._queue, self._title = queue, title
        terminal = stream.isatty()
        self._console = Console(file=stream, force_terminal=terminal, force_jupyter=False, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if terminal else None
        self._shown = {name: entry.state for name, entry in queue.entries.items()}
        self._next_line_s = queue.clock.monotonic() + LINE_S

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self) -> None:
        """Show the queue as it is now."""
        if self._live is not None:
            self._live.update(queue_table(self._queue, self._title, self._console.size.height - _BESIDES), refresh=True)
            return
        for name, entry in self._queue.entries.items():
            if entry.state != self._shown.get(name):
                self._print(f"{name}: {_line(self._queue, entry)}")
                self._shown[name] = entry.state
        if self._queue.clock.monotonic() >= self._next_line_s:
            self._next_line_s = self._queue.clock.monotonic() + LINE_S
            for name, entry in self._queue.entries.items():
                if entry.state == "running":
                    self._print(f"{name}: {_line(self._queue, entry)}")
            self._print(summary(self._queue))

    def say_stopping(self, runs: int) -> None:
        """Say that the queue waits for runs that are stopped."""
        which = "a run saves its state" if runs == 1 else f"{runs} runs save their state"
        self._print(f"stopping: {which}; the same command goes on")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


def queue_table(queue: RunQueue, title: str, rows: int) -> RenderableType:
    """Return the table of a queue with at most `rows` runs, those that are running first."""
    entries = sorted(queue.entries.values(), key=lambda entry: _ORDER.index(entry.state))
    shown = Table(box=None, pad_edge=False, header_style="bold")
    shown.add_column("RUN", overflow="fold")
    shown.add_column("STATE")
    for name in ("STEPS", "WON", "RETURN", "MINUTES", "LEFT"):
        shown.add_column(name, justify="right", no_wrap=True)
    for entry in entries[: max(rows, 1)]:
        steps, won, earned = _figures(queue.last_record(entry.run.name))
        left = seconds_left(queue, entry)
        minutes = f"{_seconds(queue, entry) / 60:.1f}" if _seconds(queue, entry) else ""
        state = Text(_state(entry), _STYLES[entry.state])
        shown.add_row(entry.run.name, state, steps, won, earned, minutes, "" if left is None else _duration(left))
    more = len(entries) - max(rows, 1)
    lines: list[RenderableType] = [Text(title, style="dim"), shown]
    if more > 0:
        lines.append(Text(f"… {more} more", style="dim"))
    return Group(*lines, Text(summary(queue), style="bold"))


def summary(queue: RunQueue) -> str:
    """Return how many runs are in each state, and about how long the rest takes."""
    counts = ", ".join(f"{count} {state}" for state, count in queue.counts().items() if count)
    left = queue_seconds_left(queue)
    return counts + (f"; about {_duration(left)} left" if left else "")


def seconds_left(queue: RunQueue, entry: QueueEntry) -> float | None:
    """Return about how long a running run still takes; None if it cannot be told."""
    total = _expected_seconds(queue, entry)
    return None if total is None else max(total - _seconds(queue, entry), 0.0)


def queue_seconds_left(queue: RunQueue) -> float | None:
    """Return about how long the whole queue still takes; None if nothing tells how long a run takes."""
    entries = queue.entries.values()
    expected = [seconds for entry in entries if (seconds := _expected_seconds(queue, entry)) is not None]
    if not expected:
        return None
    mean = sum(expected) / len(expected)
    left = 0.0
    for entry in entries:
        if entry.state == "running":
            known = seconds_left(queue, entry)
            left += max(mean - _seconds(queue, entry), 0.0) if known is None else known
        elif entry.state == "waiting":
            left += max(mean - entry.seconds, 0.0)
    return left / queue.parallel


def _expected_seconds(queue: RunQueue, entry: QueueEntry) -> float | None:
    """Return about how long a run takes from its start to its end; None if it cannot be told."""
    if entry.state == "done":
        return entry.seconds
    if entry.state != "running":
        return None
    record = queue.last_record(entry.run.name)
    steps, goal = record.get("env_steps"), record.get("goal_steps")
    if not steps or not goal:
        return None
    return _seconds(queue, entry) * max(float(goal / steps), 1.0)


def _seconds(queue: RunQueue, entry: QueueEntry) -> float:
    return entry.seconds + (0.0 if entry.began is None else queue.clock.monotonic() - entry.began)


def _figures(record: dict[str, Any]) -> tuple[str, str, str]:
    """Return steps, win rate and return of a record as they are printed."""
    steps, goal = record.get("env_steps"), record.get("goal_steps")
    won, earned = record.get("test_win_rate"), record.get("test_return")
    done = "" if steps is None else f"{steps:,}" + (f" ({min(steps / goal, 1):.0%})" if goal else "")
    return done, "" if won is None else f"{won:.1%}", "" if earned is None else f"{earned:.2f}"


def _state(entry: QueueEntry) -> str:
    return f"failed ({entry.exit_code})" if entry.state == "failed" and entry.exit_code is not None else entry.state


def _line(queue: RunQueue, entry: QueueEntry) -> str:
    steps, won, earned = _figures(queue.last_record(entry.run.name))
    left = seconds_left(queue, entry) if entry.state == "running" else None
    parts = [_state(entry), f"{steps} steps" if steps else "", f"{won} won" if won else ""]
    parts += [f"return {earned}" if earned else "", f"about {_duration(left)} left" if left else ""]
    if entry.state == "failed":
        parts.append(f"see {queue.output(entry.run.name)}")
    return ", ".join(part for part in parts if part)


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{max(minutes, 1)} min"
