"""Runs whose environments are in processes: they survive the environments' deaths, and can be made to repeat."""

import numpy as np
import psutil
import pytest

from orchestra import Replay

pytestmark = pytest.mark.slow

TEMPLATE = "components.envs.asynchronous.process"


def environments(root: psutil.Process) -> list[psutil.Process]:
    """Return the processes of environments, without the ones that they are forked from."""
    found = [process for process in root.children(recursive=True) if TEMPLATE in " ".join(process.cmdline())]
    return [process for process in found if process.ppid() in {other.pid for other in found}]


def test_a_run_goes_on_while_its_environments_are_killed(launch) -> None:
    speed = ("--game-speed", "--envs-per-worker", "6", "--eval-interval", "9000", "--final-eval-episodes", "2")
    launched = launch("--asynchronous", "--steps", "4000", *speed)
    launched.until_playing()
    rng = np.random.default_rng(0)
    killed = 0
    while (played := launched.records()[-1]["env_steps"]) < 2000:
        victims = environments(launched.process)
        victims[int(rng.integers(len(victims)))].kill()
        killed += 1
        launched.until(lambda played=played: launched.records()[-1]["env_steps"] > played)
    assert launched.ends() == 0, launched.story("failed")
    lines = [line for line in launched.log("worker-0-0") if line["event"] == "an environment failed and is replaced"]
    assert len(lines) == killed > 0
    assert launched.json("summary.json")["state"] == "done"


def test_a_worker_that_waits_for_all_environments_is_replayed_exactly(launch) -> None:
    few = ("--steps", "300", "--eval-interval", "9000", "--final-eval-episodes", "2")
    launched = launch("--asynchronous", "--trace", "full", "--min-batch", "4", "--envs-per-process", "2", *few)
    assert launched.ends() == 0, launched.story("failed")
    with Replay(launched.run, "worker-0-0/worker") as replay:
        assert sum(1 for _ in replay) > 10
