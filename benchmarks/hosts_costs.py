"""The costs of runs over hosts, for `hosts.py`: starting, connections, resting, experience and parameters.

The load is that of `hosts_load.py`, which has neither a simulator nor a learner. Every figure is beside a baseline of
the same run of this program, and is judged as their ratio.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path

import psutil
from hosts_run import HERE, HostedRun, Place, Places, hosted, judged, networked, seconds_of, simulated, used_by_others

LOAD = HERE / "hosts_load.py"
MB = 1e6
EPISODES_S = 60.0
"""Seconds for episodes to arrive, plus one second for each episode of a worker."""


@dataclass(frozen=True, slots=True)
class Cost:
    """A row of the table of costs."""

    what: str
    measured: float
    baseline: float
    bound: float
    """Largest ratio of `measured` to `baseline` that passes."""
    about: str
    """What `measured` and `baseline` are."""
    others: float = 0.0
    """Share of the processors that other programs used just before."""

    @property
    def ratio(self) -> float:
        return self.measured / self.baseline

    @property
    def holds(self) -> bool:
        return self.ratio <= self.bound

    def __str__(self) -> str:
        verdict = judged(self.holds, self.others)
        figures = f"{self.measured:,.4g} | {self.baseline:,.4g} | {self.ratio:.3f} | {self.bound:g}"
        return f"| {self.what} | {figures} | {verdict} | {self.about} |"


def starting(scratch: Path, counts: list[int], rounds: int) -> Iterator[Cost]:
    """Measure how long agents take to join, and the processor time of the head for each; medians of rounds."""
    took: dict[int, list[float]] = {count: [] for count in counts}
    of_agent: dict[int, list[float]] = {count: [] for count in counts}
    of_head: dict[int, list[float]] = {count: [] for count in counts}
    for number in range(-1, rounds):
        for count in counts if number >= 0 else counts[:1]:  # a first run, not counted, fills caches
            with simulated(count, scratch) as place, started(place) as run:
                run.until(partial(have_joined, run, count), "agents to join")
                head, agent = seconds_of(run.process), statistics.median(map(seconds_of, run.agents()))
                run.until(partial(_are_written, run, count), "hosts.json")
                since = min(at for _, at in timed(run))
                joined = (max(at for state, at in timed(run) if state == "joined") - since).total_seconds()
            if number >= 0:
                took[count].append(joined)
                of_agent[count].append(agent)
                of_head[count].append(head)
    one, most, cores = counts[0], counts[-1], psutil.cpu_count() or 1
    of_one = statistics.median(took[one])
    for count in counts[1:]:
        expected = of_one + count * statistics.median(of_agent[one]) / cores
        measured = statistics.median(took[count])
        yield Cost(f"{count} agents have joined", measured, expected, 1.2, "s; time of one + their processor time")
    each = (statistics.median(of_head[most]) - statistics.median(of_head[one])) / (most - one)
    yield Cost(f"the head, for each of {most} hosts", each * 1e3, 10.0, 1.0, "ms of processor time; target")
    until_joined = statistics.median(of_agent[one])
    yield Cost("an agent until it has joined", until_joined, 0.4, 1.0, "s of processor time; target")


def timed(run: HostedRun) -> list[tuple[str, datetime]]:
    """Return the state changes of hosts, each with its time."""
    return [(event["state"], datetime.fromisoformat(event["at"])) for event in run.host_events()]


def have_joined(run: HostedRun, count: int) -> bool:
    """Return whether `count` hosts have joined."""
    return len(run.log("host joined")) >= count


def _are_written(run: HostedRun, count: int) -> bool:
    """Return whether `hosts.json`, which the head writes now and then, has `count` joined hosts."""
    return len([state for state, _ in timed(run) if state == "joined"]) >= count


def started(place: Place, *flags: str) -> AbstractContextManager[HostedRun]:
    """Run the load, with a folder for its notes."""
    return hosted(place, LOAD, *flags, notes=True)


def all_workers(run: HostedRun, count: int) -> None:
    """Wait until `count` workers have joined."""
    run.until(lambda: any(note["workers"] == count for note in run.notes("root", "workers")), f"{count} workers")


def go(run: HostedRun) -> None:
    """Make the root publish."""
    (run.notes_folder / "go").touch()


def connections(scratch: Path, counts: list[int]) -> Iterator[Cost]:
    """Count the head's connections to two hosts, for each number of workers in `counts`."""
    for workers in counts:
        with simulated(2, scratch) as place, started(place, f"--workers={workers}") as run:
            all_workers(run, 2 * workers)
            yield Cost(f"2 hosts of {workers} workers", len(run.links()), 4, 1.0, "connections at the head; two a host")


def resting(places: Places, scratch: Path, seconds: float) -> Iterator[Cost]:
    """Measure two idle hosts."""
    with places(2, scratch) as place, started(place, "--workers=4") as run:
        all_workers(run, 8)
        go(run)
        run.until(lambda: len(run.notes("worker-*", "loaded")) == 8, "the first parameters")
        time.sleep(5.0)
        agents = run.agents()
        spent, traffic = sum(map(seconds_of, agents)), sum(sum(host.traffic()) for host in place.hosts)
        time.sleep(seconds)
        share = (sum(map(seconds_of, agents)) - spent) / len(agents) / seconds
        yield Cost("an agent at rest", share * 100, 0.5, 1.0, "% of a core; target")
        resident = statistics.median(agent.memory_info().rss for agent in agents)
        yield Cost("an agent at rest, memory", resident / MB, 60.0, 1.0, "MB resident; target")
        if place.hosts:
            nbytes = sum(sum(host.traffic()) for host in place.hosts) - traffic
            yield Cost("idle traffic of a host", nbytes / 2 / seconds / 1e3, 1.0, 1.0, "KB/s on its link; target")


def experience(places: Places, scratch: Path, episodes: int) -> Iterator[Cost]:
    """Measure the bytes of experience, and the processor time that the head needs for a transition."""
    spent = {}
    for hosts in (1, 3):
        flags = ("--workers=4", f"--episodes={episodes}", "--episode-s=0.1")
        with places(hosts, scratch) as place, started(place, *flags) as run:
            all_workers(run, 4 * hosts)
            before = seconds_of(run.process)
            go(run)
            run.until(partial(_have_arrived, run, 4 * hosts * episodes), "all experience", EPISODES_S + episodes)
            last = run.notes("root", "inserted")[-1]
            spent[hosts] = (seconds_of(run.process) - before) / last["steps"]
            if hosts > 1:
                links = run.links()
                arrived = sum(link["received_bytes"] for peer, link in links.items() if peer.startswith("host-")) / MB
                yield Cost(f"experience of {hosts} hosts", arrived, last["nbytes"] / MB, 1.02, "MB at the head; arrays")
    yield Cost("a transition of 3 hosts", spent[3] * 1e6, spent[1] * 1e6, 1.2, "µs of the head's processor; of one")


def _have_arrived(run: HostedRun, episodes: int) -> bool:
    return any(note["episodes"] >= episodes for note in run.notes("root", "inserted")[-1:])


def parameters(places: Places, scratch: Path, counts: list[int]) -> Iterator[Cost]:
    """Count the bytes of parameters for a host, for each number of workers in `counts`."""
    size, versions = 1_000_000, 10
    for workers in counts:
        flags = (f"--workers={workers}", f"--parameters={size}", f"--versions={versions}", "--publish-s=0.5")
        with places(1, scratch) as place, started(place, *flags) as run:
            all_workers(run, workers)
            before = sent(run)
            go(run)
            run.until(partial(_loaded_everywhere, run, versions, workers), "the last version")
            taken = len({note["version"] for note in run.notes("worker-*", "loaded")})
            yield Cost(
                f"a version, {workers} workers", (sent(run) - before) / taken / MB, size / MB, 1.05, "MB to the host"
            )


def sent(run: HostedRun) -> int:
    """Return the bytes that the head has sent to all proxies."""
    return sum(link["sent_bytes"] for peer, link in run.links().items() if peer.startswith("host-"))


def _loaded_everywhere(run: HostedRun, version: int, workers: int) -> bool:
    return len([note for note in run.notes("worker-*", "loaded") if note["version"] == version]) >= workers


def slow_link(scratch: Path, workers: int) -> Iterator[Cost]:
    """Measure 10 MB over a link of 20 Mbit/s, beside a host with a free link."""
    size, rate = 10_000_000, 19.1e6 / 8  # bytes a second of such a link
    flags = (f"--workers={workers}", f"--parameters={size}", "--versions=6", "--publish-s=8")
    with networked(2, scratch) as place, started(place, *flags) as run:
        all_workers(run, 2 * workers)
        go(run)
        run.until(partial(_loaded_everywhere, run, 3, 2 * workers), "versions by free links")
        slow = place.hosts[0]
        slow.limit(20.0)
        run.until(partial(_loaded_everywhere, run, 6, 2 * workers), "versions by a slow link")
        begun = {note["version"]: note["at"] for note in run.notes("root", "published")}
        last: dict[tuple[str, int], float] = {}
        for note in run.notes("worker-*", "loaded"):
            key = note["node"].split("-")[1], note["version"]
            last[key] = max(last.get(key, 0.0), note["at"] - begun[note["version"]])
        limited = statistics.median(last["1", version] for version in (4, 5, 6))
        beside = statistics.median(last["2", version] for version in (4, 5, 6))
        before = statistics.median(last["2", version] for version in (2, 3))
        yield Cost(
            f"10 MB at 20 Mbit/s, {workers} workers", limited, size / rate, 1.3, "s until all have it; size ÷ rate"
        )
        yield Cost("a host beside a slow one", beside, max(before, 0.05), 1.5, "s until all have it; before, or 50 ms")


def skipped_versions(scratch: Path) -> Iterator[Cost]:
    """Publish versions faster than a slow link transfers them."""
    size = 4_000_000
    flags = ("--workers=2", f"--parameters={size}", "--versions=16", "--publish-s=0.5")
    with networked(1, scratch) as place, started(place, *flags) as run:
        all_workers(run, 2)
        place.hosts[0].limit(20.0)
        before = sent(run)
        go(run)
        run.until(partial(_loaded_everywhere, run, 16, 2), "the last version")
        taken = len({note["version"] for note in run.notes("worker-*", "loaded")})
        copies = (sent(run) - before) / size
        yield Cost("16 versions by a link for four", copies, taken, 1.05, "copies sent; versions taken by workers")


def costs(options: argparse.Namespace, places: Places, scratch: Path) -> list[Cost]:
    """Measure all costs; print each row as soon as it is measured."""
    few = options.quick
    parts: list[Iterator[Cost]] = [
        starting(scratch, [1, 4] if few else [1, 4, 16], 1 if few else 3),
        connections(scratch, [1, 8] if few else [1, 8, 64]),
        resting(places, scratch, 10.0 if few else 60.0),
        experience(places, scratch, 50 if few else 200),
        parameters(places, scratch, [1, 4] if few else [1, 4, 16]),
    ]
    if not options.simulated:
        parts += [slow_link(scratch, 2 if few else 4), skipped_versions(scratch)]
    print("\n| what | measured | baseline | ratio | at most | | unit; baseline |", flush=True)
    print("|---" * 7 + "|", flush=True)
    rows: list[Cost] = []
    for part in parts:
        others = used_by_others()
        for row in part:
            rows.append(replace(row, others=others))
            print(rows[-1], flush=True)
    return rows
