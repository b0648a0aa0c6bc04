"""What recording costs a training run, and how fast a large trace answers.

    python benchmarks/trace.py --steps 60000 --rounds 3
    python benchmarks/trace.py --seek 1000000

The first trains QMIX on 8m as `orchestra run` does, once with each of `--trace off|flight|digest|full`, in turn, in an
order that changes from round to round; ratios are taken within a round. `env steps/s` is from the first update to the
last record, `cpu` the processor seconds of all processes of the run, for each thousand environment steps, those of a
run of almost no steps taken off: on a machine that others use too it moves less.

The second writes a trace of so many deliveries, builds its index, and seeks in it.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np

from orchestra.clock import RealClock
from orchestra.codec import Encoder
from orchestra.trace.encoding import RecordEncoder
from orchestra.trace.index import TraceIndex
from orchestra.trace.layout import Entry
from orchestra.trace.naming import MessageType
from orchestra.trace.reader import TraceFile
from orchestra.trace.records import Header, Kind
from orchestra.trace.writer import TraceWriter

EXPERIMENT = Path(__file__).resolve().parent.parent / "experiments" / "qmix_8m.py"
MODES = ("off", "flight", "digest", "full")
NEVER = 10**9


def train(mode: str, steps: int, flags: list[str], start_up: float = 0.0) -> dict[str, float]:
    """Train once and return the rates; `start_up` is the processor seconds of a run of no steps."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["--steps", str(steps), "--test-interval", str(NEVER), "--runs-dir", folder, "--trace", mode, *flags]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "orchestra", "run", str(EXPERIMENT), *words], check=True, capture_output=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        (run,) = Path(folder).glob("*/*")
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        nbytes = sum(file.stat().st_size for file in (run / "traces").iterdir())
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    moving = [record for record in records if record["updates"] and record["state"] == "training"]
    first, last = (moving[0], moving[-1]) if moving else (records[0], records[-1])
    wall = max(last["elapsed_s"] - first["elapsed_s"], 1e-9)
    return {
        "steps_per_s": (last["env_steps"] - first["env_steps"]) / wall,
        "updates_per_s": (last["updates"] - first["updates"]) / wall,
        "cpu": cpu,
        "cpu_per_1000": 1000 * (cpu - start_up) / records[-1]["env_steps"],
        "mb_per_s": nbytes / 1e6 / wall,
    }


def compare(steps: int, rounds: int, flags: list[str]) -> None:
    """Train with each mode in turn and print medians and ratios."""
    for _ in range(2):  # the first compiles the simulator
        start_up = train("off", 100, flags)["cpu"]
    results: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for number in range(rounds):
        turn = number % len(MODES)
        for mode in MODES[turn:] + MODES[:turn]:
            one = train(mode, steps, flags, start_up)
            results[mode].append(one)
            shown = "  ".join(f"{name} {figure:,.2f}" for name, figure in one.items())
            print(f"round {number + 1} of {rounds}, {mode}: {shown}; load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    print(f"QMIX on 8m, {steps:,} environment steps, median of {rounds} rounds; load {os.getloadavg()[0]:.1f}")
    print(f"{'':8}{'env steps/s':>12}{'ratio':>7}{'updates/s':>11}{'cpu s/1000':>12}{'ratio':>7}{'trace MB/s':>12}")
    for mode, ours in results.items():
        middle = {name: statistics.median(one[name] for one in ours) for name in ours[0]}
        ratio = statistics.median(
            one["steps_per_s"] / off["steps_per_s"] for one, off in zip(ours, results["off"], strict=True)
        )
        cpu = statistics.median(
            one["cpu_per_1000"] / off["cpu_per_1000"] for one, off in zip(ours, results["off"], strict=True)
        )
        print(
            f"{mode:8}{middle['steps_per_s']:>12,.0f}{ratio:>7.2f}{middle['updates_per_s']:>11.1f}"
            f"{middle['cpu_per_1000']:>12.2f}{cpu:>7.2f}{middle['mb_per_s']:>12.1f}"
        )


def seek(deliveries: int) -> None:
    """Write a trace of so many deliveries, and find things in it."""
    types = {1: MessageType("bench.CountMsg", bytes(8), ("count", "note"), request=False)}
    header = Header("bench", 1, 0, "full", 0.0, 0.0, 0, False, 1, "", {}, None, "recorded")
    with tempfile.TemporaryDirectory() as folder:
        coder = RecordEncoder(types=types)
        writer = TraceWriter(Path(folder), "bench.1", header, coder, clock=RealClock(), values=True)
        encoder = Encoder()
        since = perf_counter()
        batch: list[Entry] = []
        for n in range(1, deliveries + 1):
            row = [f"bench/{n % 8}", 0, n, 2 * n, n * 1e-3, 1e-4, "bench/x", n, 1, 0, 128, False, [n, "a note"]]
            batch.append(Entry(Kind.DELIVERY, encoder.encode(row)[0], (), (1,), 100, "bench/x", 2 * n))
            if len(batch) == 512:
                writer.write(batch)
                batch.clear()
        writer.write(batch)
        writer.close()
        took = perf_counter() - since
        print(
            f"{deliveries:,} deliveries written: {took:.1f} s, {deliveries / took:,.0f}/s, {writer.nbytes / 1e6:.0f} MB"
        )
        since = perf_counter()
        with TraceFile(writer.paths[0]) as file:
            TraceIndex.of(file)
        print(f"index built: {perf_counter() - since:.1f} s")
        times = []
        for place in np.linspace(0, deliveries // 8 - 1, 9).astype(int):
            since = perf_counter()
            with TraceFile(writer.paths[0]) as file:
                index = TraceIndex.of(file)
                index.record(int(index.rows(Kind.DELIVERY, "bench/0")[place]))
            times.append(perf_counter() - since)
        print(f"opened, a delivery of one actor found and read: median {1e3 * statistics.median(times):.1f} ms")


def main() -> None:
    """Measure the one or the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seek", type=int, default=0, metavar="N")
    parser.add_argument("flags", nargs="*", help="of the experiment, after --")
    options = parser.parse_args()
    if options.seek:
        seek(options.seek)
    else:
        compare(options.steps, options.rounds, options.flags)


if __name__ == "__main__":
    main()
