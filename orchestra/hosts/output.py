"""The output and the logs of the processes of a host: its agent keeps them until the head has written them.

The process of a node on another host writes its log to its output, each line after a record separator (RFC 7464), so
that a full disk there stops no log. The agent collects the lines of all its processes and sends them every 200 ms, or
once there are 64 KiB. The head writes `logs/<node>.jsonl`, as a node of its own host does, and what was printed into
`logs/hosts/<slot>-<name>.log`. Times are those of the head's clock.
"""

import asyncio
import contextlib
import json
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from pydantic import Field

from orchestra import log
from orchestra.actors.message import Request
from orchestra.clock import Clock

RECORD = log.RECORD
EVERY_S = 0.2
"""Seconds between two messages."""
BATCH = 64 << 10
"""Bytes of the lines of a message, but for a single longer line."""
WAITING = 16 << 20
"""Bytes of the lines that wait at the agent."""
LONGEST_LINE = 16 << 10
"""Characters of a line; the rest of a longer one is cut."""
LAST_LINES = 20
"""Lines of a dead process that the message about a failure quotes."""
LAST_ERROR = "last error of"
"""The beginning of a line of `LastWords` that says why an actor failed."""
OFFSETS = 64
"""Messages from which the offset between two clocks is taken."""
_OVERHEAD = 64


class OutputMsg(Request[None]):
    """Lines that processes of a host have printed or logged. Answered once the head has written them."""

    first: int
    """The number of the first line, counted by the agent. A line that is sent again has its number."""
    lines: tuple[tuple[float, str, str], ...]
    """Of each line the time by the agent's monotonic clock, the node and the text."""
    sent: float
    """The time of sending by the same clock."""
    wall: float = Field(default=0.0)
    """The time of sending by the host's own clock, in seconds since 1970."""
    agent: str = ""
    """The node of the agent."""


class OutputBuffer:
    """The lines that wait at an agent.

    Args:
        clock: of the agent.
        most: bytes that may wait; further lines are dropped, and counted by a line.
    """

    def __init__(self, clock: Clock, most: int = WAITING) -> None:
        self.agent = ""
        """The node of the agent, which differs in each of its sessions with the head."""
        self._clock = clock
        self._most = most
        self._lines: deque[tuple[float, str, str]] = deque()
        self._nbytes = 0
        self._first = 0
        """The number of the line that comes first in `_lines`."""
        self._dropped = 0
        self._dropped_at = 0.0
        self._added = asyncio.Event()
        self._flushing = asyncio.Lock()

    def add(self, node: str, text: str) -> None:
        """Add a line, printed or logged, of the process of a node."""
        if len(text) > LONGEST_LINE and not text.startswith(RECORD):
            text = f"{text[:LONGEST_LINE]} … ({len(text) - LONGEST_LINE:,} more characters)"
        now = self._clock.monotonic()
        if self._dropped or self._nbytes + _size(node, text) > self._most:
            self._dropped_at = self._dropped_at if self._dropped else now
            self._dropped += 1
        else:
            self._append((now, node, text))

    def batch(self) -> OutputMsg | None:
        """Return the oldest lines; they stay until `acknowledge`. Return None if there are none."""
        lines: list[tuple[float, str, str]] = []
        nbytes = 0
        for line in self._lines:
            nbytes += _size(*line[1:])
            if lines and nbytes > BATCH:
                break
            lines.append(line)
        if not lines:
            return None
        wall = self._clock.now().timestamp()
        sent = self._clock.monotonic()
        return OutputMsg(first=self._first, lines=tuple(lines), sent=sent, wall=wall, agent=self.agent)

    def acknowledge(self, count: int) -> None:
        """Remove the oldest lines: the head has written them."""
        for _ in range(count):
            self._nbytes -= _size(*self._lines.popleft()[1:])
        self._first += count
        if self._dropped and self._nbytes <= self._most // 2:
            dropped, self._dropped = self._dropped, 0
            self._append((self._dropped_at, "agent", f"{dropped:,} lines were dropped: too many waited for the head"))

    async def forward(self, ask: Callable[[OutputMsg], Awaitable[None]]) -> None:
        """Send lines as they come, until cancelled.

        Args:
            ask: sends a message to the head and waits for the answer. What it raises ends this; all lines that the head
                has not acknowledged are sent again by the next call.
        """
        while True:
            await self._added.wait()
            self._added.clear()
            if self._nbytes < BATCH:
                await self._sleep()
            await self.flush(ask)

    async def flush(self, ask: Callable[[OutputMsg], Awaitable[None]]) -> None:
        """Send all lines that wait now, after those that another task is about to send; see `forward`."""
        async with self._flushing:  # two tasks at once would send the same lines, and remove them twice
            while (message := self.batch()) is not None:
                await ask(message)
                self.acknowledge(len(message.lines))

    async def _sleep(self) -> None:
        """Wait until lines have gathered for a while."""
        passed = asyncio.Event()
        timer = self._clock.call_later(EVERY_S, passed.set)
        try:
            await passed.wait()
        finally:
            timer.cancel()

    def _append(self, line: tuple[float, str, str]) -> None:
        self._lines.append(line)
        self._nbytes += _size(*line[1:])
        self._added.set()


class LastWords:
    """The quoted output of a process that has died: its last error and the last lines that it has printed."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=LAST_LINES)
        self.error = ""

    def add(self, text: str) -> None:
        """Take a line that was printed or logged."""
        if not text.startswith(RECORD):
            if text:
                self.lines.append(text)
        elif error := failure_in(text[len(RECORD) :]):
            self.error = error

    def of(self, node: str) -> Iterator[str]:
        """Yield the lines that a message about a failure quotes of `node`."""
        if self.error:
            yield f"{LAST_ERROR} {node}: {self.error}"
        if self.lines:
            yield f"last output of {node}:"
            yield from (f"    {line}" for line in self.lines)


def failure_in(line: str | bytes) -> str:
    """Return which actor failed and why, from a line of a log; an empty text for any other line."""
    with contextlib.suppress(ValueError):
        match json.loads(line):
            case {"level": "error", "event": "actor failed", "actor": str(actor), "error": str(error)}:
                return f"{actor} failed: {error}"
    return ""


class HeadTime:
    """Converts times of an agent's monotonic clock into times of the head's clock.

    A message takes a while, so the smallest difference of the last messages is the nearest to the truth. A clock that
    is set while the run goes on changes nothing: neither side measures by its own.
    """

    def __init__(self) -> None:
        self._differences: deque[float] = deque(maxlen=OFFSETS)

    def note(self, sent: float, arrived: float) -> None:
        """Note a message by the agent's time of sending and the head's time of arrival, both monotonic."""
        self._differences.append(arrived - sent)

    def at_head(self, time: float) -> float:
        """Return a time of the agent's monotonic clock by that of the head."""
        return time + min(self._differences)


@dataclass(slots=True)
class _Host:
    """The head's state of the output of an agent."""

    agent: str
    next: int = 0
    """The number of the line that comes next."""
    time: HeadTime = field(default_factory=HeadTime)


class HostLogs:
    """Writes the lines of other hosts below the run directory.

    Args:
        logs: the folder `logs` of the run directory.
        clock: of the head.
        show: called with each printed line.
    """

    def __init__(self, logs: Path, clock: Clock, show: Callable[[str], object] = lambda _: None) -> None:
        self._logs = logs
        self._clock = clock
        self._show = show
        self._hosts: dict[int, _Host] = {}
        self._lost = 0
        """Lines that could not be written."""
        self._log = log.get(actor="logs")

    def write(self, slot: int, name: str, agent: str, message: OutputMsg) -> None:
        """Write the lines of a message, but for those that were written before.

        Args:
            slot: of the host.
            name: of the host.
            agent: the agent's incarnation.
            message: from the agent.
        """
        host = self._hosts.get(slot)
        if host is None or host.agent != agent:
            host = self._hosts[slot] = _Host(agent)
        now, wall = self._clock.monotonic(), self._clock.now()
        host.time.note(message.sent, now)

        def at_head(time: float) -> datetime:
            return wall + timedelta(seconds=host.time.at_head(time) - now)

        ahead = message.wall - at_head(message.sent).timestamp()
        files: dict[Path, list[str]] = {}
        for time, node, text in message.lines[max(host.next - message.first, 0) :]:
            if text.startswith(RECORD) and (record := _record(text[len(RECORD) :], ahead)):
                files.setdefault(self._logs / f"{_plain(node)}.jsonl", []).append(record)
                continue
            text = text.removeprefix(RECORD)
            line = f"{at_head(time).isoformat(timespec='milliseconds')} {_plain(node)} {text}"
            files.setdefault(host_log(self._logs, slot, name), []).append(line)
            self._show(text)
        host.next = max(host.next, message.first + len(message.lines))
        for path, texts in files.items():
            self._append(path, texts)

    def _append(self, path: Path, texts: list[str]) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(f"{text}\n" for text in texts)
        except OSError as error:  # a full disk: the run goes on
            if not self._lost:
                self._log.warning("lines of other hosts cannot be written", path=str(path), error=repr(error))
            self._lost += len(texts)


def host_log(logs: Path, slot: int, name: str) -> Path:
    """Return the file of what the processes of a host have printed."""
    return logs / "hosts" / f"{slot}-{_plain(name)}.log"


def _plain(name: str) -> str:
    """Return a name that another host has sent as a part of a file's name."""
    return re.sub(r"[^0-9A-Za-z_.-]", "_", name)


def _record(text: str, ahead: float) -> str:
    """Return a line of a log with its time by the head's clock; the host's clock is `ahead` seconds ahead of it.

    Return an empty text if `text` is no line of a log: a process has printed into it.
    """
    try:
        record = json.loads(text)
        time = datetime.fromisoformat(record["timestamp"]) - timedelta(seconds=ahead)
        return json.dumps({**record, "timestamp": time.isoformat()}, ensure_ascii=False)
    except (ValueError, TypeError, KeyError, OverflowError):
        return ""


def _size(node: str, text: str) -> int:
    return len(node) + len(text) + _OVERHEAD
