"""Runs over several hosts: what they cost, how collecting scales with hosts, and how soon a lost host plays again.

    python benchmarks/hosts.py                            everything; hours
    python benchmarks/hosts.py --quick                    few hosts, one round, some minutes
    python benchmarks/hosts.py --only scaling --hosts 1 2 4 --repeats 3 --figure hosts.png
    python benchmarks/hosts.py --simulated                without root: hosts that share the network of the machine

Three parts, each a table:

- costs: what starting, resting, experience and parameters cost, by `hosts_load.py`, which has neither a simulator nor a
  learner. Every figure is beside a baseline of the same run of this program, and is judged as their ratio.
- scaling: `qmix_3m` at the speed of the game, without training, with 4 workers of 4 environments on each host. A step
  waits for 10 ms in the mean (`components/envs/game_speed.py`), so that one machine carries many hosts. Rounds are
  interleaved: each has all numbers of hosts, with free links and with links of 50 Mbit/s and 5 ms. The rate is
  c h^a; it passes with an exponent a of 0.97 or more while the processors are used for less than 70 %, and if the
  limited links cost 3 % at most.
- return: the time from when a lost host can be reached again until the rate of three hosts is back.

Hosts are network namespaces with ssh servers, which needs root, or simulated hosts. Starting is measured on simulated
hosts always, since ssh is not part of it.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from hosts_run import HERE, HostedRun, Place, hosted, networked, seconds_of, simulated, why_no_networks

LOAD = HERE / "hosts_load.py"
QMIX = HERE.parent / "experiments" / "qmix_3m.py"
NEVER = 10**9
PLAYING = [
    *("--game-speed", "--workers", "4", "--envs-per-worker", "4"),
    *(f"--{flag}={NEVER}" for flag in ("steps", "eval-interval", "checkpoint-interval", "learning-starts")),
]
WORKERS = 4
LINKS: dict[str, dict[str, float]] = {"free": {}, "50 Mbit/s, 5 ms": {"delay_ms": 5.0, "mbit": 50.0}}
MB = 1e6
AFTER_S = 60.0
"""Seconds for which a returned host is watched."""
EPISODES_S = 60.0
"""Seconds for episodes to arrive, besides one for each of a worker."""
PARTS = ["costs", "scaling", "return"]
Places = Callable[..., AbstractContextManager[Place]]


@dataclass(frozen=True, slots=True)
class Cost:
    """A row of the table of costs."""

    what: str
    measured: float
    baseline: float
    bound: float
    """Of the ratio of both, at most."""
    about: str
    """What both are."""

    @property
    def ratio(self) -> float:
        return self.measured / self.baseline

    def __str__(self) -> str:
        verdict = "holds" if self.ratio <= self.bound else "missed"
        figures = f"{self.measured:,.4g} | {self.baseline:,.4g} | {self.ratio:.3f} | {self.bound:g}"
        return f"| {self.what} | {figures} | {verdict} | {self.about} |"


# Costs ----------------------------------------------------------------------------------------------------------------


def starting(scratch: Path, counts: list[int]) -> Iterator[Cost]:
    """Measure how long agents take to join, and the processor time of the head for each."""
    took, of_agent, of_head = {}, {}, {}
    for count in (counts[0], *counts):  # the first one alone fills caches, and is measured again
        with simulated(count, scratch) as place, started(place) as run:
            run.until(partial(have_joined, run, count), "agents to join")
            of_head[count] = seconds_of(run.process)
            of_agent[count] = statistics.median(map(seconds_of, run.agents()))
            run.until(partial(_are_written, run, count), "hosts.json")
            since = min(at for _, at in timed(run))
            took[count] = (max(at for state, at in timed(run) if state == "joined") - since).total_seconds()
    one, cores = counts[0], psutil.cpu_count() or 1
    for count in counts[1:]:
        expected = took[one] + count * of_agent[one] / cores
        yield Cost(f"{count} agents have joined", took[count], expected, 1.2, "s; time of one + their processor time")
    most = counts[-1]
    each = (of_head[most] - of_head[one]) / (most - one)
    yield Cost(f"the head, for each of {most} hosts", each * 1e3, 10.0, 1.0, "ms of processor time; target")
    yield Cost("an agent until it has joined", of_agent[one], 0.4, 1.0, "s of processor time; target")


def timed(run: HostedRun) -> list[tuple[str, datetime]]:
    """Return the states that hosts have come to, and when."""
    return [(event["state"], datetime.fromisoformat(event["at"])) for event in run.host_events()]


def have_joined(run: HostedRun, count: int) -> bool:
    """Return whether so many hosts have joined."""
    return len(run.log("host joined")) >= count


def _are_written(run: HostedRun, count: int) -> bool:
    """Return whether the head has written down that so many hosts have joined, which it does now and then."""
    return len([state for state, _ in timed(run) if state == "joined"]) >= count


def started(place: Place, *flags: str) -> AbstractContextManager[HostedRun]:
    """Run the load, with a place for its notes."""
    return hosted(place, LOAD, *flags, notes=True)


def all_workers(run: HostedRun, count: int) -> None:
    """Wait until so many workers have joined."""
    run.until(lambda: any(note["workers"] == count for note in run.notes("root", "workers")), f"{count} workers")


def go(run: HostedRun) -> None:
    """Have the root publish."""
    (run.notes_folder / "go").touch()


def connections(scratch: Path, counts: list[int]) -> Iterator[Cost]:
    """Count the head's connections to two hosts with so many workers each."""
    for workers in counts:
        with simulated(2, scratch) as place, started(place, f"--workers={workers}") as run:
            all_workers(run, 2 * workers)
            yield Cost(f"2 hosts of {workers} workers", len(run.links()), 4, 1.0, "connections at the head; two a host")


def resting(places: Places, scratch: Path, seconds: float) -> Iterator[Cost]:
    """Measure two hosts of which nothing is asked."""
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
    """Count the bytes of parameters for a host with so many workers."""
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
    size, rate = 10_000_000, 19.1e6 / 8  # bytes a second that such a link carries
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
    """Publish faster than a slow link carries."""
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
    """Measure all costs; print each row when it is there."""
    few = options.quick
    parts: list[Iterator[Cost]] = [
        starting(scratch, [1, 4] if few else [1, 4, 16]),
        connections(scratch, [1, 8] if few else [1, 8, 64]),
        resting(places, scratch, 10.0 if few else 60.0),
        experience(places, scratch, 50 if few else 200),
        parameters(places, scratch, [1, 4] if few else [1, 4, 16]),
    ]
    if not options.simulated:
        parts += [slow_link(scratch, 2 if few else 4), skipped_versions(scratch)]
    print("\n| what | measured | baseline | ratio | at most | | unit; baseline |", flush=True)
    print("|---" * 7 + "|", flush=True)
    rows = []
    for part in parts:
        for row in part:
            print(row, flush=True)
            rows.append(row)
    return rows


# Scaling --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of the scaling law."""

    links: str
    hosts: int
    rate: float
    """Environment steps a second."""
    busy: float
    """Used share of all processors of this machine, by anything."""
    own: float
    """The part of it that the run used."""


def collecting(place: Place, links: str, hosts: int, seconds: float) -> Sample:
    """Measure one run in its steady state."""
    with hosted(place, QMIX, *PLAYING) as run:
        run.until(lambda: run.records() and run.records()[-1]["workers"] == WORKERS * hosts, "all workers")
        time.sleep(3.0)
        run.until(lambda: run.records()[-1]["env_steps"], "experience")
        first, used, own = run.records()[-1], psutil.cpu_times(), run.processor_s()
        since = time.monotonic()
        run.until(lambda: run.records()[-1]["elapsed_s"] - first["elapsed_s"] >= seconds, "the end of the measurement")
        last, lasted = run.records()[-1], time.monotonic() - since
        now, cores = psutil.cpu_times(), psutil.cpu_count() or 1
        idle = now.idle + now.iowait - used.idle - used.iowait
        rate = (last["env_steps"] - first["env_steps"]) / (last["elapsed_s"] - first["elapsed_s"])
        return Sample(links, hosts, rate, 1 - idle / (lasted * cores), (run.processor_s() - own) / (lasted * cores))


def scaling(options: argparse.Namespace, places: Places, scratch: Path) -> list[Sample]:
    """Measure all numbers of hosts, with each kind of link, in rounds."""
    kinds = {"free": LINKS["free"]} if options.simulated else LINKS
    samples = []
    for number in range(options.repeats):
        for hosts in options.hosts:
            for links, limits in kinds.items():
                with places(hosts, scratch, **limits) as place:
                    sample = collecting(place, links, hosts, options.seconds)
                samples.append(sample)
                load = os.getloadavg()[0]
                print(
                    f"round {number + 1}, {hosts} hosts, {links}: {sample.rate:,.0f} steps/s, processors "
                    f"{sample.busy:.0%} used, {sample.own:.0%} by the run, load {load:.1f}",
                    flush=True,
                )
    return samples


def exponent(samples: list[Sample]) -> tuple[float, float]:
    """Return c and a of the law c h^a that fits the medians of the rates best, by least squares of their logarithms."""
    hosts = sorted({sample.hosts for sample in samples})
    medians = [statistics.median(sample.rate for sample in samples if sample.hosts == h) for h in hosts]
    slope, constant = np.polyfit(np.log(hosts), np.log(medians), 1)
    return float(np.exp(constant)), float(slope)


def scaling_table(samples: list[Sample]) -> list[str]:
    """Return the lines of the table and of the law."""
    lines = ["", "| links | hosts | steps/s | quartiles | n | processors used | by the run |", "|---" * 7 + "|"]
    kinds = list(dict.fromkeys(sample.links for sample in samples))
    hosts = sorted({sample.hosts for sample in samples})
    medians: dict[tuple[str, int], float] = {}
    for links in kinds:
        for h in hosts:
            mine = [sample for sample in samples if (sample.links, sample.hosts) == (links, h)]
            low, middle, high = np.percentile([sample.rate for sample in mine], [25, 50, 75])
            medians[links, h] = float(middle)
            used = f"{max(s.busy for s in mine):.0%} | {max(s.own for s in mine):.0%}"
            lines.append(f"| {links} | {h} | {middle:,.0f} | {low:,.0f} to {high:,.0f} | {len(mine)} | {used} |")
    lines.append("")
    for links in kinds:
        mine = [sample for sample in samples if sample.links == links]
        unloaded = [s for s in mine if max(x.busy for x in mine if x.hosts == s.hosts) < 0.7]
        for of, which in (("all hosts", mine), ("processors used below 70 %", unloaded)):
            if len({sample.hosts for sample in which}) > 1:
                c, alpha = exponent(which)
                verdict = "holds" if alpha >= 0.97 else "missed"
                lines.append(f"{links}, {of}: {c:,.0f} h^{alpha:.3f} steps/s (target: 0.97, {verdict})")
    for links in kinds[1:]:
        ratio = statistics.median(medians[links, h] / medians[kinds[0], h] for h in hosts)
        lines.append(f"{links}: {ratio:.3f} of the rate with free links (target: 0.97, {_held(ratio >= 0.97)})")
    return lines


def _held(holds: bool) -> str:
    return "holds" if holds else "missed"


def draw(samples: list[Sample], path: Path) -> None:
    """Write a figure of the rate against the number of hosts."""
    import matplotlib.pyplot as plt  # optional: only the figure needs it

    figure, axes = plt.subplots(figsize=(6, 4))
    for links in dict.fromkeys(sample.links for sample in samples):
        mine = [sample for sample in samples if sample.links == links]
        hosts = sorted({sample.hosts for sample in mine})
        quartiles = [np.percentile([s.rate for s in mine if s.hosts == h], [25, 50, 75]) for h in hosts]
        low, middle, high = np.array(quartiles).T
        _, alpha = exponent(mine)
        label = f"{links}, exponent {alpha:.3f}"
        axes.errorbar(hosts, middle, [middle - low, high - middle], fmt="o-", capsize=3, label=label)
    hosts = sorted({sample.hosts for sample in samples})
    one = statistics.median(sample.rate for sample in samples if sample.hosts == hosts[0])
    axes.plot(hosts, [one * h / hosts[0] for h in hosts], "k:", linewidth=1, label="in proportion")
    axes.set(xlabel="hosts", ylabel="environment steps a second", xscale="log", yscale="log")
    axes.set_xticks(hosts, [str(h) for h in hosts])
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)


# The return of a host -------------------------------------------------------------------------------------------------


def returning(options: argparse.Namespace, places: Places, scratch: Path) -> float:
    """Lose one host of three, and return the seconds from when it can be reached until the rate is back.

    It is back with the first record at 95 % of the median rate of the last `AFTER_S` / 2, so that a machine whose load
    changes meanwhile is compared with itself.
    """
    hosts = 3
    with places(hosts, scratch) as place, hosted(place, QMIX, *PLAYING) as run:
        run.until(lambda: run.records() and run.records()[-1]["workers"] == WORKERS * hosts, "all workers")
        time.sleep(5.0 + options.seconds)
        before = rate_until(run.records(), run.records()[-1]["elapsed_s"], options.seconds)
        gone = len(run.log("host gone"))
        if place.hosts:
            place.hosts[1].cut()
            place.hosts[1].kill_all(but=place.servers)
        else:
            run.agents()[1].kill()
        run.until(lambda: len(run.log("host gone")) > gone, "the loss")
        lost = run.records()[-1]["elapsed_s"]
        run.until(lambda: run.records()[-1]["elapsed_s"] > lost + options.seconds, "records without the host")
        now = run.records()[-1]["elapsed_s"]
        without = rate_until(run.records(), now, now - lost)
        if place.hosts:
            place.hosts[1].mend()
        since = run.records()[-1]["elapsed_s"]
        run.until(lambda: run.records()[-1]["workers"] == WORKERS * hosts, "the workers of the host")
        run.until(lambda: run.records()[-1]["elapsed_s"] >= since + AFTER_S, "the rate")
        records = run.records()
    seconds, final = return_of(records, since)
    print(
        f"\n{before:,.0f} steps/s before, {without:,.0f} without the host, {final:,.0f} afterwards: back after "
        f"{seconds:.1f} s (target: 30 s, {_held(seconds <= 30.0)})",
        flush=True,
    )
    return seconds


def return_of(records: list[dict[str, Any]], since: float) -> tuple[float, float]:
    """Return the seconds after `since` until the rate has reached that of the end, and the latter."""
    rates = {
        record["elapsed_s"]: (record["env_steps"] - earlier["env_steps"]) / (record["elapsed_s"] - earlier["elapsed_s"])
        for earlier, record in pairwise(records)
        if record["elapsed_s"] > since
    }
    final = statistics.median(rate for at, rate in rates.items() if at > max(rates) - AFTER_S / 2)
    return min(at for at, rate in rates.items() if rate >= 0.95 * final) - since, final


def rate_until(records: list[dict[str, Any]], end: float, seconds: float) -> float:
    """Return the environment steps a second in the `seconds` until `end`, times of the run."""
    window = [record for record in records if end - seconds <= record["elapsed_s"] <= end]
    lasted = window[-1]["elapsed_s"] - window[0]["elapsed_s"]
    return float(window[-1]["env_steps"] - window[0]["env_steps"]) / lasted if lasted else 0.0


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--hosts", type=int, nargs="+", help="of the scaling law (default: 1 2 3 4 6 8; quick 1 2 3)")
    parser.add_argument("--repeats", type=int, help="rounds of the scaling law (default: 5; quick 1)")
    parser.add_argument("--seconds", type=float, help="of each run of the scaling law (default: 20; quick 8)")
    parser.add_argument("--quick", action="store_true", help="few hosts and workers, one round")
    parser.add_argument("--simulated", action="store_true", help="simulated hosts in place of network namespaces")
    parser.add_argument("--figure", type=Path, help="write a figure of the scaling law to this file")
    parser.add_argument("--output", type=Path, help="keep all values in this file, as JSON")
    options = parser.parse_args(arguments)
    options.hosts = options.hosts or ([1, 2, 3] if options.quick else [1, 2, 3, 4, 6, 8])
    options.repeats = options.repeats or (1 if options.quick else 5)
    options.seconds = options.seconds or (8.0 if options.quick else 20.0)
    if not options.simulated and (why := why_no_networks()):
        parser.error(f"{why}; or use --simulated")
    places: Places = simulated if options.simulated else networked
    values: dict[str, Any] = {"processors": psutil.cpu_count(), "load before": os.getloadavg()}
    print(f"{psutil.cpu_count()} processors, load average {os.getloadavg()[0]:.1f} before", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        if "costs" in options.only:
            values["costs"] = [asdict(row) for row in costs(options, places, Path(scratch))]
        if "scaling" in options.only:
            samples = scaling(options, places, Path(scratch))
            values["scaling"] = [asdict(sample) for sample in samples]
            print("\n".join(scaling_table(samples)), flush=True)
            if options.figure:
                draw(samples, options.figure)
        if "return" in options.only:
            values["return_s"] = returning(options, places, Path(scratch))
    print(f"load average {os.getloadavg()[0]:.1f} after", flush=True)
    if options.output:
        options.output.write_text(json.dumps(values, indent=1) + "\n")


if __name__ == "__main__":
    main()
