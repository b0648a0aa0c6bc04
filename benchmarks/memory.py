"""Memory of the processes of a run, and the time until its workers have joined: `python benchmarks/memory.py`.

It starts `orchestra run` with N workers, and reads figures of its processes from Linux and from the run's logs. Memory
is the proportional set size (PSS): a page that k processes share counts as 1/k of a page in each of them, so the sum
over all processes is what the host needs. A worker has joined when its connections to the learner and to its proxy are
open.

Sizes are taken after `--seconds` of collecting, because the memory of episodes is used as episodes grow long. Compare
with another version by `--checkout FOLDER`. Further flags are passed on to `orchestra run`: `--trace off`.
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parents[1]
PATIENCE_S = 300.0


def lines(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the log lines of all processes of a run."""
    for path in folder.glob("*/*/logs/*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.endswith("}"):
                yield json.loads(line)


def joined(folder: Path) -> tuple[dict[str, datetime], dict[str, int], datetime | None]:
    """Return the time at which each worker joined, the process ids by node, and the start time of the first process."""
    peers: dict[str, dict[str, datetime]] = {}
    pids: dict[str, int] = {}
    started = None
    for line in lines(folder):
        at = datetime.fromisoformat(line["timestamp"])
        if line["event"] == "process started":
            pids[line["process"]] = line["pid"]
            started = min(started or at, at)
        elif line["event"] == "connected" and line["node"].startswith("worker-"):
            peers.setdefault(line["node"], {})[line["peer"]] = at
    return {node: max(of.values()) for node, of in peers.items() if len(of) > 1}, pids, started


def megabytes(pid: int, what: str = "Pss") -> float:
    """Return the proportional set size of a process, or another line of `smaps_rollup`, in MB."""
    found = re.search(rf"^{what}:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=16, help="worker processes (default: 16)")
    parser.add_argument("--envs-per-worker", type=int, default=64, help="environments of each (default: 64)")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of collecting, before sizes are read (default: 20)"
    )
    parser.add_argument("--checkout", type=Path, default=HERE, help="the version that is measured (default: this one)")
    args, further = parser.parse_known_args()
    checkout = args.checkout.resolve()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        command = [sys.executable, "-m", "orchestra", "run", str(checkout / "experiments" / "qmix_8m.py")]
        flags = {"workers": args.workers, "envs-per-worker": args.envs_per_worker, "steps": 10**9, "runs-dir": folder}
        command += [str(word) for name, value in flags.items() for word in (f"--{name}", value)] + further
        environment = os.environ | {"PYTHONPATH": str(checkout)}
        with (folder / "output").open("w") as output:
            root = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
        try:
            until = time.monotonic() + PATIENCE_S
            while len((found := joined(folder))[0]) < args.workers:
                if root.poll() is not None or time.monotonic() > until:
                    sys.exit(f"the workers did not join:\n{(folder / 'output').read_text()}")
                time.sleep(0.2)
            time.sleep(args.seconds)
            report(*found, root.pid)
        finally:
            root.send_signal(signal.SIGTERM)
            root.wait()


def report(ready: dict[str, datetime], pids: dict[str, int], started: datetime | None, root: int) -> None:
    """Print the measurements."""
    assert started is not None
    workers = [megabytes(pid) for node, pid in pids.items() if node.startswith("worker-")]
    proxies = [megabytes(pid) for node, pid in pids.items() if node.startswith("host-")]
    everything = [megabytes(root), *(megabytes(each.pid) for each in psutil.Process(root).children(recursive=True))]
    moments = sorted(ready.values())
    print(f"worker     {statistics.median(workers):6.0f} MB PSS, the largest of {len(workers)}: {max(workers):.0f} MB")
    shared = [megabytes(pid, "Pss_Shmem") for node, pid in pids.items() if node.startswith("worker-")]
    print(f"           {statistics.median(shared):6.0f} MB of it are shared memory, with experience on its way")
    print(f"proxy      {statistics.median(proxies):6.0f} MB PSS")
    print(f"learner    {everything[0]:6.0f} MB PSS")
    print(f"all        {sum(everything):6.0f} MB in {len(everything)} processes")
    print(f"first      {(moments[0] - started).total_seconds():6.2f} s from the first process to the first worker")
    print(f"last       {(moments[-1] - moments[0]).total_seconds():6.2f} s from the first worker to the last")


if __name__ == "__main__":
    main()
