"""A run whose workers are added, killed and removed while it goes on: all that they deliver counts once."""

import os
import signal
from typing import Any

import numpy as np
import pytest

from orchestra import Replay
from orchestra.trace.reading.query import Query
from orchestra.trace.reading.run_trace import RunTrace

pytestmark = pytest.mark.slow

# Without checkpoints on the way: a run that is interrupted during one ends with it, and leaves out what comes after it.
ENDLESS = ("--steps", "1000000000", "--checkpoint-interval", "1000000000", "--trace", "full")


def test_the_counts_of_a_scaled_run_agree_with_its_trace(launch: Any) -> None:
    launched = launch(*ENDLESS)
    launched.until_playing()

    def scale(workers: int) -> str:
        command = launch.command("scale", launched.run, str(workers))
        assert command.ends() == 0, command.story("failed")
        return str(command.out.strip())

    assert scale(3) == "workers: 1 -> 3; started worker-0-1, worker-0-2"
    launched.until_workers(3)
    launch.until_all_play(launched, "worker-0-0", "worker-0-1", "worker-0-2")
    killed = launched.pid("worker-0-1")
    os.kill(killed, signal.SIGKILL)
    assert scale(2) == "workers: 3 -> 2; stopped worker-0-2"
    launched.until(lambda: launched.pid("worker-0-1") != killed)
    launched.until_workers(2)
    # The new process may hold credits of the killed one, and would use them after the end.
    launch.until_all_play(launched, "worker-0-0", "worker-0-1")
    launched.process.send_signal(signal.SIGINT)
    assert launched.ends() == 130, launched.story("failed")

    summary = launched.json("summary.json")
    with RunTrace(launched.run) as trace:

        def episodes(**query: str) -> int:
            rows = Query(type="InsertTransitionMsg", **query).deliveries(trace)
            return sum(int(np.prod(row.delivery.fields["lengths"].shape)) for row in rows)

        inserted = episodes(actor="learner/trajectories")
        assert summary["episodes"] == inserted == episodes(actor="learner/orchestrator")
        assert inserted == episodes(actor="host-0/proxy")  # also from the worker that was killed, and the one removed

    with Replay(launched.run, "worker-0-2/worker") as replay:  # which the flags of the run do not plan
        assert replay.run() > 0
        assert replay.notes == ()

    recorded = len(launched.records())
    resumed = launch.command("run", "--resume", launched.run)
    resumed.until_workers(2, after=recorded)
    resumed.process.send_signal(signal.SIGINT)
    assert resumed.ends() == 130, resumed.story("failed")
    goal = str(launched.json("summary.json")["env_steps"] + 300)
    finished = launch.command("run", "--resume", launched.run, "--steps", goal)
    assert finished.ends() == 0, finished.story("failed")
