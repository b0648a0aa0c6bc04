"""What an open page of the dashboard costs a run, in processor time.

    python benchmarks/dashboard.py --seconds 120

It trains QMIX on 8m with one worker and measures three things:

- the processor time of the dashboard's process while a browser shows the run (headless Chromium, whose own time is
  measured separately);
- the processor time that the run spends to answer one look. The dashboard looks every two seconds, too rarely to show
  in the run's own time. So the run is asked up to fifty times a second in several intervals, and the processor time of
  an environment step is compared between these intervals and others;
- the processor time of the run. The cost is the sum of the first two as a share of it.
"""

import argparse
import asyncio
import contextlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from orchestra import RunDirectory
from orchestra.dashboard.live import statuses
from orchestra.dashboard.server import EVERY_S
from orchestra.runs.run_list import last_record

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Measure, and print the share."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="of the open page (default: 120)")
    parser.add_argument("--pairs", type=int, default=6, help="intervals with looks, and as many without (default: 6)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, _started(folder) as (run, process):
        _wait_for_training(run)
        own, browser, of_run = _page_open(run, process, options.seconds)
        look_s = asyncio.run(_look(run, process, options.pairs))
    asked = look_s / EVERY_S
    print(f"run                      {of_run:7.3f} processor seconds a second")
    print(f"process of the dashboard {own:7.4f}, {own / of_run:.2%} of it")
    print(f"answers of the run       {asked:7.4f}, {asked / of_run:.2%} of it; {1000 * look_s:.2f} ms for one look")
    print(f"cost of an open page     {(own + asked) / of_run:.2%}")
    print(f"(the browser itself      {browser:7.4f})")


@contextlib.contextmanager
def _started(folder: str) -> Iterator[tuple[RunDirectory, psutil.Process]]:
    words = ["run", "experiments/qmix_8m.py", "--steps", "100000000", "--seed", "1", "--quiet", "--runs-dir", folder]
    with subprocess.Popen([sys.executable, "-m", "orchestra", *words], cwd=ROOT) as started:
        try:
            while not (found := list(Path(folder).glob("*/*/metrics.jsonl"))):
                if started.poll() is not None:
                    raise SystemExit(f"the run has ended with exit code {started.returncode}")
                time.sleep(0.1)
            yield RunDirectory(found[0].parent), psutil.Process(started.pid)
        finally:
            started.terminate()


def _wait_for_training(run: RunDirectory) -> None:
    while last_record(run).get("updates", 0) < 100:
        time.sleep(0.5)


def _page_open(run: RunDirectory, process: psutil.Process, seconds: float) -> tuple[float, float, float]:
    """Return the processor seconds a second of the dashboard, of the browser, and of the run, while a page is open."""
    words = [sys.executable, "-m", "orchestra", "dashboard", str(run.path), "--no-browser"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as served:
        try:
            assert served.stdout is not None
            address = served.stdout.readline().split()[1]
            with _page(address) as browser:
                dashboard = psutil.Process(served.pid)
                before, start = (_cpu(dashboard), _cpu(process), _cpu(browser)), time.monotonic()
                time.sleep(seconds)
                after, span = (_cpu(dashboard), _cpu(process), _cpu(browser)), time.monotonic() - start
        finally:
            served.terminate()
    own, of_run = ((after[n] - before[n]) / span for n in (0, 1))
    return own, (after[2] - before[2]) / span, of_run


@contextlib.contextmanager
def _page(address: str) -> Iterator[psutil.Process]:
    """Show the page in a browser; yield its process."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        raise SystemExit("there is no chromium, which shows the page")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        shown = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = shown.new_page()
        page.goto(address)
        page.locator("#actors svg").wait_for()
        yield next(each for each in psutil.Process().children(recursive=True) if "chrom" in each.name())
        shown.close()


async def _look(run: RunDirectory, process: psutil.Process, pairs: int) -> float:
    """Return the processor seconds that the run spends for one look, the median of all pairs of intervals."""
    found = []
    for _ in range(pairs):
        _, quiet = await _interval(run, process, looks=False)
        looked, busy = await _interval(run, process, looks=True)
        found.append((busy - quiet) / looked)  # processor seconds a step, and looks a step
    print(f"looks: {', '.join(f'{1000 * each:.2f}' for each in found)} ms")
    return statistics.median(found)


async def _interval(run: RunDirectory, process: psutil.Process, *, looks: bool) -> tuple[float, float]:
    """Return looks and processor seconds for an environment step, over about ten seconds."""
    count = 0

    async def look() -> None:
        nonlocal count
        async with contextlib.aclosing(statuses(run, 0.02)) as seen:
            async for _ in seen:
                count += 1

    task = asyncio.create_task(look()) if looks else None
    try:
        first_steps, first_cpu = await _at_next_record(run, process)
        before, until = count, time.monotonic() + 10
        while time.monotonic() < until:
            steps, cpu = await _at_next_record(run, process)
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    made = steps - first_steps
    return (count - before) / made, (cpu - first_cpu) / made


async def _at_next_record(run: RunDirectory, process: psutil.Process) -> tuple[int, float]:
    before: Any = (record := last_record(run))["env_steps"]
    while record["env_steps"] == before:
        await asyncio.sleep(0.02)
        record = last_record(run)
    return int(record["env_steps"]), _cpu(process)


def _cpu(process: psutil.Process) -> float:
    """Return the processor seconds of a process and of all its descendants."""
    total = 0.0
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            total += times.user + times.system
    return total


if __name__ == "__main__":
    main()
