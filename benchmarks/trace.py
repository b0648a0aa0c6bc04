"""The cost of recording for a training run and for a busy node, and the speed of queries on a large trace.

    python benchmarks/trace.py                                  # about 12 minutes on two otherwise idle cores
    python benchmarks/trace.py --modes flight --rounds 9        # the same for the default mode alone
    python benchmarks/trace.py --tells 100000                   # half a minute
    python benchmarks/trace.py --seek 1000000 --array 10000     # minutes; writes 10 GB
    python benchmarks/trace.py --ask RUN                        # queries on the trace of a run

Training: QMIX on 8m with `orchestra run`. Each run with a recorder is paired with one without, before it and after it
in turn, and ratios are taken within a pair. The median of all pairs is printed with the range of their middle half,
which reduces the influence of other load on the machine. `steps/s` counts from the first update to the last record.
`cpu` is the processor seconds of all processes for each thousand environment steps, less those of a run of almost no
steps; it varies less. The cost by either figure must not exceed 3 % for `flight` (the default), 5 % for `digest`,
and 10 % or the speed of the disk for `full`. The disk is measured before each round: half a GiB of noise, written where
the traces go and synced. `left out` counts the records that were dropped because the disk was too slow.

Tells: a handler sends messages to another actor of its node, with each mode in turn, until all are handled. Measured in
processor time, including that of the writing thread.

Seeking: a trace of N deliveries and their ends, each with an array of its own, is written to the folder for temporary
files. Other processes then look up deliveries in it, and every query of `orchestra trace` is timed, including the start
of its process.
"""

import argparse
import json
import os
import resource
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, get_args

import numpy as np
from actors import Sink, Source, TellMsg

from orchestra import Node, freeze
from orchestra.actors.codec import Encoder
from orchestra.clock import RealClock
from orchestra.runs.runner import run_loop
from orchestra.trace.format.effects import MessageType
from orchestra.trace.format.encoding import RecordEncoder
from orchestra.trace.format.layout import Entry
from orchestra.trace.format.records import Gap, Header, Kind, Mode
from orchestra.trace.format.writer import TraceWriter
from orchestra.trace.reading.run_trace import RunTrace
from orchestra.trace.recording.settings import TraceSettings

EXPERIMENT = Path(__file__).resolve().parent.parent / "experiments" / "qmix_8m.py"
MODES = ("flight", "digest", "full")
ACTORS = 8
NEVER = 10**9
DISK_BYTES = 512 << 20
DISK_WRITE = 4 << 20
QUESTION = """
import sys, time
from pathlib import Path
from orchestra.trace.format.records import Kind
from orchestra.trace.reading.run_trace import RunTrace
since, cpu = time.perf_counter(), time.process_time()
with RunTrace(Path(sys.argv[1])) as trace:
    actor, n = sys.argv[2], int(sys.argv[3])
    indexes = trace.recordings[0].indexes
    for index in indexes:
        rows = index.rows(Kind.DELIVERY, actor=actor)
        found = rows[index.entries["n"][rows] == n]
        if len(found):
            record = index.record(int(found[0]))
            break
    assert record.n == n
print(time.perf_counter() - since, time.process_time() - cpu)
"""


def train(mode: str, steps: int, flags: list[str], start_up: float = 0.0) -> dict[str, float]:
    """Train once and return the rates; `start_up` is the processor seconds of a run of no steps."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["--steps", str(steps), "--eval-interval", str(NEVER), "--runs-dir", folder, "--trace", mode, *flags]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "orchestra", "run", str(EXPERIMENT), *words], check=True, capture_output=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        (run,) = Path(folder).glob("*/*")
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        nbytes = sum(file.stat().st_size for file in (run / "traces").glob("*.trace"))
        left_out = dropped(run) if nbytes else 0
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    moving = [record for record in records if record["updates"] and record["state"] == "training"]
    first, last = (moving[0], moving[-1]) if moving else (records[0], records[-1])
    wall = max(last["elapsed_s"] - first["elapsed_s"], 1e-9)
    return {
        "steps/s": (last["env_steps"] - first["env_steps"]) / wall,
        "updates/s": (last["updates"] - first["updates"]) / wall,
        "cpu": cpu,
        "cpu/1000": 1000 * (cpu - start_up) / records[-1]["env_steps"],
        "MB/s": nbytes / 1e6 / wall,
        "left out": left_out,
    }


def dropped(run: Path) -> int:
    """Return the number of records missing from the traces of a run."""
    with RunTrace(run) as trace:
        indexes = [index for each in trace.recordings for index in each.indexes]
        gaps = [index.file.record_at(index.file.location_at(offset)) for index in indexes for offset in index.gaps]
    return sum(gap.count for gap in gaps if isinstance(gap, Gap))


def disk() -> float:
    """Return the write speed of the disk in MB/s, measured until the data is on the disk."""
    noise = secrets.token_bytes(DISK_WRITE)
    with tempfile.TemporaryFile(buffering=0) as file:
        since = perf_counter()
        for _ in range(DISK_BYTES // DISK_WRITE):
            file.write(noise)
        os.fsync(file.fileno())
        return DISK_BYTES / 1e6 / (perf_counter() - since)


def compare(steps: int, rounds: int, modes: list[str], flags: list[str]) -> None:
    """Train in pairs, without and with each mode, and print medians and ratios."""
    since = perf_counter()
    train("off", 100, flags)  # compiles the simulator
    start_up = statistics.median(train("off", 100, flags)["cpu"] for _ in range(3))
    pairs: dict[str, list[tuple[dict[str, float], dict[str, float]]]] = {mode: [] for mode in modes}
    disks = []
    for number in range(rounds):
        disks.append(disk())
        for mode in modes:
            first, second = ("off", mode) if number % 2 else (mode, "off")
            ran = {each: train(each, steps, flags, start_up) for each in (first, second)}
            pairs[mode].append((ran["off"], ran[mode]))
            off, on = pairs[mode][-1]
            print(
                f"round {number + 1} of {rounds}, {mode}: steps/s {off['steps/s']:,.0f} to {on['steps/s']:,.0f}, "
                f"cpu s {off['cpu']:.1f} to {on['cpu']:.1f}; load {os.getloadavg()[0]:.1f}",
                file=sys.stderr,
            )
    took = (perf_counter() - since) / 60
    print(f"QMIX on 8m, {steps:,} steps, {rounds} pairs each; took {took:.0f} min, load {os.getloadavg()[0]:.1f}")
    print(f"the disk takes {statistics.median(disks):,.0f} MB/s (from {min(disks):,.0f} to {max(disks):,.0f})")
    columns = f"{'':8}{'steps/s':>9}{'of off':>9}{'middle half':>16}"
    print(f"{columns}{'cpu s/1000':>12}{'of off':>9}{'middle half':>16}{'MB/s':>8}{'left out':>10}")
    for mode, both in pairs.items():
        line = f"{mode:8}"
        for name in ("steps/s", "cpu/1000"):
            ratios = [on[name] / off[name] for off, on in both]
            low, high = np.quantile(ratios, [0.25, 0.75])
            middle = statistics.median(on[name] for _, on in both)
            figure = f"{middle:>9,.0f}" if name == "steps/s" else f"{middle:>12.2f}"
            line += f"{figure}{statistics.median(ratios):>9.3f}{f'{low:.3f} to {high:.3f}':>16}"
        written = statistics.median(on["MB/s"] for _, on in both)
        print(line + f"{written:>8.1f}{sum(on['left out'] for _, on in both):>10,}")


async def tells(count: int, rounds: int) -> None:
    """Measure tells with each mode and print a line for each."""
    rates: dict[Mode, list[float]] = {mode: [] for mode in get_args(Mode)}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            for mode, measured in rates.items():
                recorder = TraceSettings(mode).recorder("here", Path(folder), clock=RealClock(), seed=number)
                since = time.process_time()
                async with Node("here", recorder=recorder).running() as node:
                    source = node.spawn("source", Source, node.spawn("sink", Sink))
                    await source.ask(TellMsg(count=count, numbers=False))
                if number:  # the first round warms up
                    measured.append(count / (time.process_time() - since))
    for mode, measured in rates.items():
        share = statistics.median(on / off for on, off in zip(measured, rates["off"], strict=True))
        rate = statistics.median(measured)
        print(f"{mode:8}{rate:>12,.0f} tells/s{1e6 / rate:>8.1f} µs each{share:>8.2f} of off")


def write(folder: Path, deliveries: int, nbytes: int) -> TraceWriter:
    """Write a trace of `deliveries` to eight actors in turn, each with an array of `nbytes`."""
    types = {1: MessageType("bench.FrameMsg", bytes(8), ("count", "note", "pixels"), request=False)}
    header = Header("bench", 1, "full")
    writer = TraceWriter(folder, "bench.1", header, RecordEncoder(types=types), clock=RealClock(), values=True)
    encoder = Encoder()
    for actor in [f"bench/{number}" for number in range(ACTORS)]:
        row: list[Any] = [actor, 0, 0, 0.0, "bench:Sink", "", "planned", 0, "", 0, 0, None, None]
        writer.write([Entry(Kind.BIRTH, encoder.encode(row)[0], (), (), 0, actor, 0, row)])
    noise = np.random.default_rng(0).integers(0, 255, nbytes, np.uint8)
    batch: list[Entry] = []
    for count in range(deliveries):
        pixels = noise.copy()
        pixels[:8] = np.frombuffer(count.to_bytes(8, "little"), np.uint8)[: len(pixels)]
        n = 1 + count // ACTORS
        actor = f"bench/{count % ACTORS}"
        values = [count, "a note", freeze(pixels)]
        row = [actor, 0, n, count, count * 1e-3, 1e-4, "bench/x", count, 1, 0, 128 + nbytes, False, values]
        packed, arrays = encoder.encode(row)
        batch.append(Entry(Kind.DELIVERY, packed, arrays, (1,), nbytes, actor, count, row))
        sent = [1, 1e-5, count, "bench/y", 1, None, False]
        row = [actor, 0, n, 1, count, count * 1e-3, 2e-5, [sent], None]
        batch.append(Entry(Kind.HANDLED, encoder.encode(row)[0], (), (1,), 0, actor, count, row))
        if len(batch) == 256:
            writer.write(batch)
            batch.clear()
    writer.write(batch)
    writer.close()
    return writer


def seek(deliveries: int, nbytes: int) -> None:
    """Write a large trace and look up deliveries in it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        since, cpu = perf_counter(), time.process_time()
        writer = write(folder, deliveries, nbytes)
        took, cpu = perf_counter() - since, time.process_time() - cpu
        size = sum(file.stat().st_size for file in folder.glob("*.index"))
        print(
            f"{deliveries:,} deliveries written with their index: {took:.1f} s, {cpu:.1f} s of it processor time; "
            f"{writer.nbytes / 1e9:.2f} GB in {len(writer.paths)} files, indexes {size / 1e6:.0f} MB"
        )
        times = []
        for count in [deliveries - 1, 0, *np.linspace(0, deliveries - 1, 7).astype(int)]:
            question = [sys.executable, "-c", QUESTION, name, f"bench/{count % ACTORS}", str(1 + count // ACTORS)]
            ended = subprocess.run(question, check=True, capture_output=True, text=True)
            times.append([1e3 * float(each) for each in ended.stdout.split()])
        first, others = times[0], np.array(times[1:])
        print(f"the last delivery, by the first query: {first[0]:.1f} ms, {first[1]:.1f} ms of processor time")
        wall, cpu = np.median(others, axis=0)
        print(f"any other, median: {wall:.1f} ms, {cpu:.1f} ms of processor time; at most {others[:, 0].max():.1f} ms")
        middle = deliveries // 2
        place = f"bench/{middle % ACTORS}:{1 + middle // ACTORS}"
        asks = [["show", name, place], ["grep", name, "--where", f"count == {middle}"]]
        ask(folder, [*asks, ["story", name, "--message", f"bench/x#{middle}"]])


def ask(run: Path, more: Sequence[Sequence[str]] = ()) -> None:
    """Run the queries of `orchestra trace` that suit any run, and `more`; print the time and memory of each."""
    with RunTrace(run) as trace:
        nbytes = sum(file.nbytes for recording in trace.recordings for file in recording.files)
        counts = {
            actor: sum(len(index.rows(Kind.DELIVERY, actor=actor)) for _, index in trace.indexes())
            for actor in trace.actors()
        }
    busiest = max(counts, key=counts.__getitem__)
    name, deliveries = str(run), sum(counts.values())
    print(f"{nbytes / 1e9:.2f} GB, {deliveries:,} deliveries, {counts[busiest]:,} of them to {busiest}")
    asked: list[Sequence[str]] = [
        ["--help"],
        ["ls", name],
        ["stats", name],
        ["grep", name, "--last", "--limit", "10"],
        ["grep", name, "--min-bytes", "100000", "--limit", "10"],
        ["follow", name, "--actor", busiest, "--since", "0", "--until", "0"],
        ["show", name, f"{busiest}:{counts[busiest]}"],
        *more,
    ]
    for words in asked:
        since = perf_counter()
        child = subprocess.Popen([sys.executable, "-m", "orchestra", "trace", *words], stdout=subprocess.DEVNULL)
        _, code, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(code)
        took = 1e3 * (perf_counter() - since)
        cpu, said = 1e3 * (used.ru_utime + used.ru_stime), " ".join(word for word in words if word != name)
        failed = f"; failed with {child.returncode}" if child.returncode else ""
        print(f"{said:<55}{took:>8.0f} ms, {cpu:>6.0f} of processor time, {used.ru_maxrss / 1e3:>5.0f} MB{failed}")


def main() -> None:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40_000, help="environment steps of each training run")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of each mode")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--tells", type=int, default=0, metavar="N", help="measure N tells instead")
    parser.add_argument(
        "--seek", type=int, default=0, metavar="N", help="measure look-ups in a trace of N deliveries instead"
    )
    parser.add_argument(
        "--array", type=int, default=2048, metavar="BYTES", help="size of each delivery's array, for --seek"
    )
    parser.add_argument("--ask", type=Path, metavar="RUN", help="measure queries on a recorded run instead")
    parser.add_argument("flags", nargs="*", help="flags of the experiment, after --")
    options = parser.parse_args()
    if options.ask:
        ask(options.ask)
    elif options.seek:
        seek(options.seek, options.array)
    elif options.tells:
        run_loop(tells(options.tells, options.rounds))
    else:
        compare(options.steps, options.rounds, options.modes, options.flags)


if __name__ == "__main__":
    main()
