"""How collecting scales with hosts, for `hosts.py`: rates with free and with limited links."""

import argparse
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from hosts_run import PLAYING, QMIX, WORKERS, Place, Places, hosted, judged, used_by_others

LINKS: dict[str, dict[str, float]] = {"free": {}, "50 Mbit/s, 5 ms": {"delay_ms": 5.0, "mbit": 50.0}}
TARGET = 0.97
"""Least exponent, and least rate with limited links as a share of the rate with free links."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of the scaling law."""

    links: str
    hosts: int
    rate: float
    """Environment steps a second."""
    busy: float
    """Used share of all processors of this machine, by all programs."""
    own: float
    """Share of all processors that the run used."""
    others: float
    """Share of all processors that other programs used just before the run."""


def collecting(place: Place, links: str, hosts: int, seconds: float, others: float) -> Sample:
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
        if rate <= 0:
            sys.exit(f"{hosts} hosts, {links}: nothing was collected in {lasted:.0f} s")
        busy, of_run = 1 - idle / (lasted * cores), (run.processor_s() - own) / (lasted * cores)
        return Sample(links, hosts, rate, busy, of_run, others)


def scaling(options: argparse.Namespace, places: Places, scratch: Path) -> list[Sample]:
    """Measure all numbers of hosts, with each kind of link, in rounds."""
    kinds = {"free": LINKS["free"]} if options.simulated else LINKS
    samples = []
    for number in range(options.repeats):
        for hosts in options.hosts:
            for links, limits in kinds.items():
                others = used_by_others()
                with places(hosts, scratch, **limits) as place:
                    sample = collecting(place, links, hosts, options.seconds, others)
                samples.append(sample)
                load = os.getloadavg()[0]
                print(
                    f"round {number + 1}, {hosts} hosts, {links}: {sample.rate:,.0f} steps/s, processors "
                    f"{sample.busy:.0%} used, {sample.own:.0%} by the run, others {others:.0%} before, load {load:.1f}",
                    flush=True,
                )
    return samples


def exponent(samples: list[Sample]) -> tuple[float, float]:
    """Return c and a of the law c h^a that best fits the medians of the rates, by least squares of their logarithms."""
    hosts = sorted({sample.hosts for sample in samples})
    medians = [statistics.median(sample.rate for sample in samples if sample.hosts == h) for h in hosts]
    slope, constant = np.polyfit(np.log(hosts), np.log(medians), 1)
    return float(np.exp(constant)), float(slope)


def scaling_table(samples: list[Sample]) -> list[str]:
    """Return the lines of the table and of the law."""
    lines = ["", "| links | hosts | steps/s | quartiles | n | processors used | by the run | by others before |"]
    lines.append("|---" * 8 + "|")
    kinds = list(dict.fromkeys(sample.links for sample in samples))
    hosts = sorted({sample.hosts for sample in samples})
    medians: dict[tuple[str, int], float] = {}
    for links in kinds:
        for h in hosts:
            mine = [sample for sample in samples if (sample.links, sample.hosts) == (links, h)]
            low, middle, high = np.percentile([sample.rate for sample in mine], [25, 50, 75])
            medians[links, h] = float(middle)
            used = " | ".join(
                f"{max(part):.0%}" for part in zip(*((s.busy, s.own, s.others) for s in mine), strict=True)
            )
            lines.append(f"| {links} | {h} | {middle:,.0f} | {low:,.0f} to {high:,.0f} | {len(mine)} | {used} |")
    lines.append("")
    others = max(sample.others for sample in samples)
    for links in kinds:
        mine = [sample for sample in samples if sample.links == links]
        unloaded = [s for s in mine if max(x.busy for x in mine if x.hosts == s.hosts) < 0.7]
        for of, which in (("all hosts", mine), ("processors used below 70 %", unloaded)):
            if len({sample.hosts for sample in which}) > 1:
                c, alpha = exponent(which)
                verdict = judged(alpha >= TARGET, others)
                lines.append(f"{links}, {of}: {c:,.0f} h^{alpha:.3f} steps/s (target: {TARGET}, {verdict})")
    for links in kinds[1:]:
        ratio = statistics.median(medians[links, h] / medians[kinds[0], h] for h in hosts)
        verdict = judged(ratio >= TARGET, others)
        lines.append(f"{links}: {ratio:.3f} of the rate with free links (target: {TARGET}, {verdict})")
    return lines


def draw(samples: list[Sample], path: Path) -> None:
    """Write a figure of the rate against the number of hosts."""
    import matplotlib.pyplot as plt  # optional: only the figure needs it
    from matplotlib.ticker import ScalarFormatter

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
    axes.set_xticks([], minor=True)
    axes.yaxis.set_minor_formatter(ScalarFormatter())
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
