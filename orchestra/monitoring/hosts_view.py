"""The table of a run's hosts, in `orchestra ps`, `orchestra top`, and above the figures of a run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from orchestra.actors.statistics import HostStatistics, NodeStatistics

_FINE = ("playing",)
_COMING = ("asked", "queued", "starting", "joined")
_COLUMNS = (("cores", 11), ("nodes", 7), ("steps/s", 8), ("lag", 5), ("round trip", 10), ("clock", 8))


@dataclass(frozen=True, slots=True)
class HostRow:
    """One host."""

    now: HostStatistics
    round_trip_s: float | None
    """Of the connection between its agent and the head; None at the head, and before the first heartbeat."""

    @property
    def sort_key(self) -> tuple[int, int, float, int]:
        """The worst hosts come first: by state, then by the number of missing processes, then the busiest."""
        rank = 2 if self.now.state in _FINE else 1 if self.now.state in _COMING else 0
        return rank, self.now.running - len(self.now.nodes), -(self.now.cores_used or 0.0), self.now.slot


def host_rows(root: NodeStatistics) -> list[HostRow]:
    """Return a row for each host, by slot; none for a run on one machine.

    Args:
        root: the statistics of the node that has the hosts.
    """
    trips = {link.peer: link.round_trip_s for link in root.links}
    return [HostRow(host, trips.get(host.agent)) for host in root.hosts]


def host_lines(rows: Sequence[HostRow], *, most: int | None = None, worst_first: bool = False) -> list[Text]:
    """Return the table as lines; none without hosts.

    Args:
        rows: of the hosts, by slot.
        most: show at most this many hosts, the worst first, and a line with the sum of all.
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
    return [{**row.now.model_dump(), "round_trip_s": row.round_trip_s} for row in rows]


def _line(row: HostRow, width: int) -> Text:
    host = row.now
    used = "-" if host.cores_used is None else f"{host.cores_used:.1f}"
    values = (
        f"{used} of {host.cores or '?'}",
        f"{host.running}/{len(host.nodes)}",
        f"{host.env_steps_per_s:,.0f}" if host.plays else "-",
        "-" if host.policy_lag is None else str(host.policy_lag),
        "-" if row.round_trip_s is None else f"{row.round_trip_s * 1000:.1f} ms",
        "-" if host.clock_offset_s is None else f"{host.clock_offset_s:+.1f} s",
    )
    text = Text(f"{host.slot:>4} {host.name:<{width}}")
    for (_, size), value in zip(_COLUMNS, values, strict=True):
        text.append(f" {value:>{size}}")
    style = "green" if host.state in _FINE else "yellow" if host.state in _COMING else "bold red"
    text.append("  ").append(" ".join(_state(host)), style=style)
    if where := ", ".join(filter(None, (host.where, "through the tunnel" if host.tunnel else ""))):
        text.append(f"  {where}", style="dim")
    return text


def _state(host: HostStatistics) -> Iterator[str]:
    yield "compiling" if host.state == "joined" else host.state
    if host.state not in _FINE:
        yield f"{host.silent_s if host.state == 'silent' else host.since_s:.0f} s"
        if host.reason:
            yield f"({host.reason})"
    elif not host.plays:
        yield "(no workers)"


def _sum_line(rows: Sequence[HostRow], more: int) -> Text:
    used = [row.now.cores_used for row in rows if row.now.cores_used is not None]
    cores = sum(row.now.cores for row in rows)
    text = f"     and {more} more; all {len(rows)}: {sum(used):.1f} of {cores} cores, "
    running, planned = sum(row.now.running for row in rows), sum(len(row.now.nodes) for row in rows)
    playing, rate = sum(row.now.state in _FINE for row in rows), sum(row.now.env_steps_per_s for row in rows)
    return Text(f"{text}{running}/{planned} nodes, {rate:,.0f} steps/s, {playing} playing", style="dim")
