"""The table of a run's hosts, in `orchestra ps`, `orchestra top`, and above the figures of a run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from orchestra.actors.statistics import HostStatistics, NodeStatistics

_FINE = ("playing",)
_COMING = ("asked", "queued", "starting", "joined")
_COLUMNS = (("cores", 11), ("nodes", 7), ("round trip", 10), ("clock", 8))


@dataclass(frozen=True, slots=True)
class HostRow:
    """One host."""

    now: HostStatistics
    cores_used: float | None
    """Processors that its nodes use; None if one of them has not answered twice."""
    round_trip_s: float | None
    """Of the connection between its agent and the head; None at the head, and before the first heartbeat."""

    @property
    def sort_key(self) -> tuple[int, int, float, int]:
        """Hosts that are wrong come first, then those with the fewest of their nodes, then the busiest."""
        rank = 2 if self.now.state in _FINE else 1 if self.now.state in _COMING else 0
        return rank, self.now.running - len(self.now.nodes), -(self.cores_used or 0.0), self.now.slot


def host_rows(before: Mapping[str, NodeStatistics], after: Mapping[str, NodeStatistics]) -> list[HostRow]:
    """Return a row for each host, by slot; none for a run on one machine.

    Args:
        before: the statistics of nodes a while ago, by name; empty if there are none.
        after: the same now.
    """
    root = next((node for node in after.values() if node.hosts), None)
    if root is None:
        return []
    links = {link.peer: link for link in root.links}
    made = []
    for host in root.hosts:
        known = all(name in before and name in after for name in host.nodes)
        used = sum(_share(before[name], after[name]) for name in host.nodes) if known else None
        link = links.get(host.agent)
        made.append(HostRow(host, used, None if link is None else link.round_trip_s))
    return made


def host_lines(rows: Sequence[HostRow], *, most: int | None = None, worst_first: bool = False) -> list[Text]:
    """Return the table as lines; none without hosts.

    Args:
        rows: of the hosts, by slot.
        most: show at most so many hosts, those that are wrong first, and a line with the sum of all.
        worst_first: show the hosts in that order, and not by slot.
    """
    if not rows:
        return []
    shown = sorted(rows, key=lambda row: row.sort_key) if worst_first else list(rows)
    if most is not None and len(rows) > most:
        shown = sorted(rows, key=lambda row: row.sort_key)[:most]
    width = max(len("host"), *(len(row.now.name) for row in shown))
    numbers = "".join(f" {title:>{size}}" for title, size in _COLUMNS)
    made = [Text(f"slot {'host':<{width}}{numbers}  state", style="bold")]
    made += [_line(row, width) for row in shown]
    if len(shown) < len(rows):
        made.append(_sum_line(rows, len(rows) - len(shown)))
    return made


def hosts_as_json(rows: Sequence[HostRow]) -> list[dict[str, Any]]:
    """Return the rows as a value that `json.dumps` takes."""
    return [{**row.now.model_dump(), "cores_used": row.cores_used, "round_trip_s": row.round_trip_s} for row in rows]


def _line(row: HostRow, width: int) -> Text:
    host = row.now
    used = "-" if row.cores_used is None else f"{row.cores_used:.1f}"
    values = (
        f"{used} of {host.cores or '?'}",
        f"{host.running}/{len(host.nodes)}",
        "-" if row.round_trip_s is None else f"{row.round_trip_s * 1000:.1f} ms",
        "-" if host.clock_offset_s is None else f"{host.clock_offset_s:+.1f} s",
    )
    text = Text(f"{host.slot:>4} {host.name:<{width}}")
    for (_, size), value in zip(_COLUMNS, values, strict=True):
        text.append(f" {value:>{size}}")
    style = "green" if host.state in _FINE else "yellow" if host.state in _COMING else "bold red"
    text.append("  ").append(" ".join(_state(host)), style=style)
    if host.where:
        text.append(f"  {host.where}", style="dim")
    return text


def _state(host: HostStatistics) -> Iterator[str]:
    yield "compiling" if host.state == "joined" else host.state
    if host.state not in _FINE:
        yield f"{host.since_s:.0f} s"
        if host.reason:
            yield f"({host.reason})"
    elif not host.plays:
        yield "(no workers)"


def _sum_line(rows: Sequence[HostRow], more: int) -> Text:
    used = [row.cores_used for row in rows if row.cores_used is not None]
    cores = sum(row.now.cores for row in rows)
    text = f"     and {more} more; all {len(rows)}: {sum(used):.1f} of {cores} cores, "
    running, planned = sum(row.now.running for row in rows), sum(len(row.now.nodes) for row in rows)
    return Text(f"{text}{running}/{planned} nodes, {sum(row.now.state in _FINE for row in rows)} playing", style="dim")


def _share(then: NodeStatistics, now: NodeStatistics) -> float:
    if then.pid != now.pid:  # the process was restarted: its counters began at 0
        return 0.0
    return max(now.cpu_s - then.cpu_s, 0.0) / max(now.at_s - then.at_s, 1e-9)
