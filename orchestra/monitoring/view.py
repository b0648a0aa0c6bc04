"""The tables of `orchestra ps` and `orchestra top`: actors by node and links, with rates between two statuses."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.text import Text

from orchestra.actors.statistics import CellStatistics, LinkStatistics, NodeStatistics, ProcessStatistics
from orchestra.monitoring.hosts_view import HostRow, host_lines, hosts_as_json
from orchestra.monitoring.observer import ClusterStatus
from orchestra.runs.scaling import LAUNCHER

Order = Literal["tree", "depth", "busy", "rate"]

_OWN = ("system", "directory", LAUNCHER)
"""The runtime's own actors. Every node has them, and most of their messages are those of the observer."""
_STYLES = {"idle": "dim", "waiting": "yellow", "handling": "green", "restarting": "bold red", "stopping": "yellow"}


@dataclass(frozen=True, slots=True)
class ActorRow:
    """One actor."""

    now: CellStatistics
    per_s: float | None
    """Messages handled per second; None without an earlier status."""
    busy: float | None
    """Share of the time spent handling messages, 0 to 1."""

    @property
    def name(self) -> str:
        """The address without the node: `actor`, or `parent:child`."""
        return self.now.address.partition("/")[2]


@dataclass(frozen=True, slots=True)
class LinkRow:
    """One connection, as its first node sees it. Waiting messages and messages in flight are those of both ends."""

    node: str
    now: LinkStatistics
    sent_per_s: float | None
    """Bytes per second."""
    received_per_s: float | None
    credit_used: float
    waiting: int
    memory_held: int
    """Bytes of shared memory."""
    memory_back: str
    """The `memory` of the other end's `LinkStatistics`; empty if it sent no large array, or did not answer."""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One process."""

    name: str
    now: NodeStatistics | None
    silent: str
    """The reason why there are no statistics; empty if there are."""
    cpu: float | None
    """Processors in use; 1.0 is one whole processor."""
    process: ProcessStatistics | None
    actors: tuple[ActorRow, ...]
    links: tuple[LinkRow, ...]


def rows(before: ClusterStatus | None, after: ClusterStatus) -> list[NodeRow]:
    """Return a row for each node. Rates need an earlier status; without one they are None."""
    answered = after.answered
    earlier = {} if before is None else before.answered
    root = next(iter(answered.values()), None)
    processes = {process.node: process for process in (() if root is None else root.processes)}
    ends = {(name, link.peer): link for name, node in answered.items() for link in node.links}
    made = []
    for name, now in after.nodes.items():
        process = processes.get(name)
        if isinstance(now, str):
            made.append(NodeRow(name, None, now, None, process, (), ()))
            continue
        then = earlier.get(name)
        if then is not None and then.pid != now.pid:
            then = None  # the process was restarted: its counters began at 0
        span = None if then is None else max(now.at_s - then.at_s, 1e-9)
        cells = {} if then is None else {cell.address: cell for cell in then.cells}
        wires = {} if then is None else {link.peer: link for link in then.links}
        links = []
        for link in now.links:
            if (name, link.peer) not in ends:
                continue  # it is shown at its other end
            other = ends.pop((link.peer, name), None)
            was = wires.get(link.peer)
            links.append(
                LinkRow(
                    name,
                    link,
                    _rate(span, None if was is None else was.sent_bytes, link.sent_bytes),
                    _rate(span, None if was is None else was.received_bytes, link.received_bytes),
                    max(link.credit_used, other.credit_used if other else 0.0),
                    link.waiting + (other.waiting if other else 0),
                    link.memory_held_bytes + (other.memory_held_bytes if other else 0),
                    other.memory if other else "",
                )
            )
        made.append(
            NodeRow(
                name,
                now,
                "",
                _rate(span, None if then is None else then.cpu_s, now.cpu_s),
                process,
                tuple(_actor(cell, cells.get(cell.address), span) for cell in now.cells),
                tuple(links),
            )
        )
    return made


def as_json(run: str, shown: list[NodeRow], hosts: Sequence[HostRow] = ()) -> dict[str, Any]:
    """Return the rows as a value that `json.dumps` takes."""
    return {
        "run": run,
        "hosts": hosts_as_json(hosts),
        "nodes": [
            {
                "node": node.name,
                "answered": node.now is not None,
                "reason": node.silent or None,
                "process": None if node.process is None else node.process.model_dump(),
                "cpu_share": node.cpu,
                **(
                    {}
                    if node.now is None
                    else node.now.model_dump(exclude={"node", "cells", "message_counts", "processes", "hosts"})
                ),
                "actors": [
                    {**row.now.model_dump(), "messages_per_s": row.per_s, "busy_share": row.busy} for row in node.actors
                ],
            }
            for node in shown
        ],
    }


def lines(
    shown: list[NodeRow], width: int, order: Order = "tree", *, own: bool = False, hosts: Sequence[HostRow] = ()
) -> list[Text]:
    """Return the table as lines of at most `width` columns.

    Args:
        shown: the result of `rows`.
        width: columns of the terminal.
        order: `tree` groups actors by node; the others sort all actors, the largest first.
        own: whether to show the runtime's own actors.
        hosts: of the run; none on one machine. In an order other than `tree` the worst come first.
    """
    actors = {node.name: [row for row in node.actors if own or row.name not in _OWN] for node in shown}
    everyone = [*itertools.chain(*actors.values())]
    table = _Table(everyone, width, tree=order == "tree")
    made = host_lines(hosts, worst_first=order != "tree")
    made += [*([Text()] if made else []), table.heading()]
    if order == "tree":
        for node in shown:
            made += [_node_line(node), *map(table.line, actors[node.name])]
    else:
        made += [_node_line(node) for node in shown if node.now is None]
        made += map(table.line, sorted(everyone, key=_KEYS[order], reverse=True))
    links = [link for node in shown for link in node.links]
    if links:
        made += [Text(), *_link_lines(links)]
    for line in made:
        line.truncate(width, overflow="ellipsis")
    return made


_KEYS: dict[Order, Callable[[ActorRow], tuple[float, ...]]] = {
    "depth": lambda row: (row.now.mailbox.depth, row.now.mailbox.nbytes),
    "busy": lambda row: (row.busy or 0.0, row.per_s or 0.0),
    "rate": lambda row: (row.per_s or 0.0, row.busy or 0.0),
}


class _Table:
    """The columns of the actors: name, queue, rate, busy share and state. The name takes the room that is left."""

    _NUMBERS = (("queue", 5), ("bytes", 7), ("msg/s", 6), ("busy", 4))

    def __init__(self, actors: list[ActorRow], width: int, *, tree: bool) -> None:
        self._tree = tree
        numbers = sum(size + 1 for _, size in self._NUMBERS)
        longest = max((self._who(row).cell_len for row in actors), default=0)
        self._name = max(min(longest, (width - numbers) // 2), len("actor"))

    def heading(self) -> Text:
        numbers = "".join(f" {title:>{size}}" for title, size in self._NUMBERS)
        return Text(f"{'actor':<{self._name}}{numbers}  state", style="bold")

    def line(self, row: ActorRow) -> Text:
        box = row.now.mailbox
        values = (f"{box.depth:,}", _bytes(box.nbytes), _per_s(row.per_s), _percent(row.busy))
        text = self._who(row)
        text.truncate(self._name, overflow="ellipsis", pad=True)
        crowded = box.depth >= box.capacity or box.waiting > 0
        for (_, size), value in zip(self._NUMBERS, values, strict=True):
            text.append(f" {value:>{size}}", style="bold red" if crowded else "")
        text.append("  ")
        text.append(_doing(row.now), style=_STYLES[row.now.state])
        return text

    def _who(self, row: ActorRow) -> Text:
        *above, name = row.name.split(":") if self._tree else [row.now.address]
        indent = "  " * (len(above) + 1) if self._tree else ""
        return Text.assemble(indent, name, (f" {row.now.kind}", "dim"))


def _doing(cell: CellStatistics) -> str:
    said: str = cell.state
    if cell.message:
        # The cause of a wait comes first: a narrow window cuts the rest.
        said = f"{', '.join(cell.waits_for)} ({cell.message})" if cell.waits_for else cell.message
        said = f"{said} {_duration(cell.for_s)}"
        if cell.state == "stopping":
            said = f"stopping: {said}"
    if cell.mailbox.waiting:
        said += f", {cell.mailbox.waiting} waiting for room"
    if cell.restarts:
        said = f"restarted {_times(cell.restarts)}, {said}"
    return said


def _node_line(node: NodeRow) -> Text:
    text = Text(node.name, style="bold")
    process = node.process
    restarts = f"   restarted {_times(process.restarts)}" if process is not None and process.restarts else ""
    if node.now is None:
        why = "given up, it died too often" if process is not None and process.given_up else node.silent
        return text.append(f"   {why}{restarts}", style="not bold red")
    now = node.now
    said = f"   pid {now.pid}   cpu {_percent(node.cpu)}   {_bytes(now.rss)}   loop lag {_duration(now.lag_s)}"
    if now.dead_letters:
        said += f"   {now.dead_letters:,} dead letters"
    text.append(said + f"   {now.tasks} tasks", style="not bold")
    if now.unencrypted:
        text.append("   unencrypted", style="not bold red")
    return text.append(restarts, style="not bold yellow")


def _link_lines(links: list[LinkRow]) -> Iterator[Text]:
    size = max(len(_pair(link)) for link in links)
    yield Text(f"{'link':<{size}} {'round trip':>10} {'sent/s':>8} {'got/s':>8} {'credit':>7} {'waiting':>7}", "bold")
    for link in links:
        trip = "-" if link.now.round_trip_s is None else _duration(link.now.round_trip_s)
        text = Text(f"{_pair(link):<{size}} {trip:>10} {_bytes(link.sent_per_s):>8} {_bytes(link.received_per_s):>8}")
        text.append(f" {_percent(link.credit_used):>7} {link.waiting:>7,}", style="bold red" if link.waiting else "")
        if link.now.state != "open":
            text.append(f"  {link.now.state}, {link.now.unacknowledged} kept", style="bold red")
        text.append(_memory(link), style="dim")
        yield text


def _memory(link: LinkRow) -> str:
    """Return how large arrays travel, as text; empty until one was sent."""
    if "shared" in (link.now.memory, link.memory_back):
        return f"  by memory, {_bytes(link.memory_held)} held"
    refusals = {link.now.memory, link.memory_back} - {"", "offered"}
    return f"  not by memory: {min(refusals)}" if refusals else ""


def _pair(link: LinkRow) -> str:
    return f"{link.node} - {link.now.peer}"


def _actor(now: CellStatistics, then: CellStatistics | None, span: float | None) -> ActorRow:
    if then is None or then.handled > now.handled:
        return ActorRow(now, None, None)
    busy = _rate(span, then.busy_s, now.busy_s)
    return ActorRow(now, _rate(span, then.handled, now.handled), None if busy is None else min(max(busy, 0.0), 1.0))


def _rate(span: float | None, then: float | None, now: float) -> float | None:
    return None if span is None or then is None else max(now - then, 0.0) / span


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _per_s(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def _bytes(count: float | None) -> str:
    if count is None:
        return "-"
    for unit in ("B", "kB", "MB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if count >= 9.95 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _duration(seconds: float) -> str:
    if seconds < 0.00995:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
