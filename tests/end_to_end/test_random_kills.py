"""A run whose workers, proxies and environments are killed at random finishes, counts exactly and leaves nothing.

`ORCHESTRA_KILLS=100` kills a hundred processes; by default it is few.
"""

import contextlib
import os
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from orchestra.trace import Query, RunTrace

KILLS = int(os.environ.get("ORCHESTRA_KILLS", "6"))
STEPS_PER_KILL = 500
MARGIN = 10
"""The run goes on for this many times as many steps after its last kill, more than it makes between two records."""
PATIENCE_S = 90.0 + 8.0 * KILLS
DEATHS, WITHIN_S = 2, 70.0
"""Deaths of a node in more than the time in which its launcher counts them.

The launcher forgives three. One more may be that of a worker that finds no proxy when it starts.
"""
NODES = [*(f"worker-0-{index}" for index in range(4)), "host-0"]
FLAGS = [
    *("--workers", "4", "--envs-per-worker", "3", "--asynchronous", "--game-speed"),
    *("--steps", str(STEPS_PER_KILL * (KILLS + MARGIN)), "--eval-interval", "5000", "--checkpoint-interval", "2500"),
    *("--trace", "full"),
]


class Killer:
    """Kills processes of a run, each kind as often as the others, and no node more often than is forgiven."""

    def __init__(self, launched: Any, seed: int) -> None:
        self._launched = launched
        self._random = random.Random(seed)
        self.killed: Counter[str] = Counter()
        self.pids: set[int] = set()
        """Of the nodes that were killed."""

    def kill(self) -> bool:
        """Kill one process; return whether there was one that may be killed."""
        kind = self._random.choice(["worker", "host", "environment"])
        found = self._environments() if kind == "environment" else self._nodes(kind)
        if not found:
            return False
        name, process = self._random.choice(found)
        try:
            process.kill()
        except psutil.NoSuchProcess:  # an environment whose worker was killed just before
            return False
        self.killed[kind] += 1
        if name in NODES:
            self.pids.add(process.pid)
        return True

    def _nodes(self, kind: str) -> list[tuple[str, psutil.Process]]:
        return [
            (name, process)
            for name, process in self._processes().items()
            if name.startswith(kind) and self._may_die(name)
        ]

    def _may_die(self, name: str) -> bool:
        since = datetime.now(UTC) - timedelta(seconds=WITHIN_S)
        recent = [
            line
            for line in deaths(self._launched)
            if line["process"] == name and datetime.fromisoformat(line["timestamp"]) > since
        ]
        return len(recent) < DEATHS

    def _processes(self) -> dict[str, psutil.Process]:
        """The living process of each node, by its name."""
        lines = [line for line in self._launched.log() if line.get("process") in NODES and "pid" in line]
        found = {}
        for name, pid in {line["process"]: line["pid"] for line in lines}.items():
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    found[name] = process
        return found

    def _environments(self) -> list[tuple[str, psutil.Process]]:
        """The processes that workers started: templates and environments."""
        found = []
        for name, process in self._processes().items():
            if name.startswith("worker"):
                with contextlib.suppress(psutil.NoSuchProcess):
                    found += [("environment", each) for each in process.children(recursive=True)]
        return found


def steps(launched: Any) -> int:
    records = launched.records()
    return int(records[-1]["env_steps"]) if records else 0


def deaths(launched: Any) -> list[dict[str, Any]]:
    """What the launcher has said of processes that died."""
    return [line for line in launched.log() if line["event"] == "process died and is started again"]


def processes_in(folder: Path) -> list[psutil.Process]:
    """Every process that was started in `folder`, whoever its parent is now."""
    every = psutil.process_iter(["cwd", "status"])
    return [each for each in every if each.info["cwd"] == str(folder) and each.info["status"] != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
@pytest.mark.timeout(2 * PATIENCE_S)
def test_a_run_outlives_random_kills_counts_what_arrived_and_leaves_nothing(launch: Any, sockets: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed of the kills: {seed}")
    launched = launch(*FLAGS, "--listen", f"unix://{sockets}/run")
    launched.patience_s = PATIENCE_S
    killer = Killer(launched, seed)
    for number in range(KILLS):
        launched.until(lambda due=(number + 1) * STEPS_PER_KILL: steps(launched) >= due)
        launched.until(killer.kill)
        launched.until(lambda: killer.pids <= {line["pid"] for line in deaths(launched)})
    assert launched.ends() == 0, launched.story("failed")
    print(f"killed: {dict(killer.killed)}")
    assert killer.killed.total() == KILLS

    summary = launched.json("summary.json")
    assert (summary["state"], summary["reached_goal"]) == ("done", True)
    assert {line["pid"] for line in deaths(launched) if line["how"] == "killed by signal 9"} == killer.pids
    print("other deaths:", [line for line in deaths(launched) if line["pid"] not in killer.pids])
    with RunTrace(launched.run) as trace:
        for actor in ("learner/orchestrator", "learner/trajectories"):
            inserted = [row.with_arrays() for row in Query(actor=actor, type="InsertTransitionMsg").deliveries(trace)]
            lengths = np.concatenate([each.fields["lengths"] for each in inserted])
            assert (int(lengths.sum()), len(lengths)) == (summary["env_steps"], summary["episodes"])
            ids = [each.id for each in inserted]
            assert len(set(ids)) == len(ids), f"{actor} was told twice"
            counted = [
                row["count"]
                for row in launched.json("message_counts.json")
                if (row["recipient"], row["type"]) == (actor, "InsertTransitionMsg")
            ]
            assert sum(counted) == len(inserted)

    assert list(sockets.iterdir()) == []
    _, alive = psutil.wait_procs(processes_in(launched.folder), timeout=10.0)
    assert alive == [], launched.story("left processes behind, and with them their shared memory")
