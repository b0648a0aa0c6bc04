"""Gradient steps keep to the episodes, as `--updates-per-episode` asks, whatever happens to the processes of a run."""

import os
import signal
from typing import Any

import psutil
import pytest

from components.counters import LEAST_BUFFER

pytestmark = pytest.mark.slow

UPDATES_PER_EPISODE = 1.0
LEARNING_STARTS = 8
"""Episodes."""
ENVIRONMENTS = 4
"""Of each worker."""
AT_REST = 10
"""Looks at a process between which it uses no processor time."""


def off(launched: Any) -> float:
    """Return how many gradient steps a run has made beyond those that its episodes ask for."""
    summary = launched.json("summary.json")
    return float(summary["updates"] - UPDATES_PER_EPISODE * (summary["episodes"] - LEARNING_STARTS))


def error_buffer(workers: int) -> float:
    return max(2 * UPDATES_PER_EPISODE * workers * ENVIRONMENTS, LEAST_BUFFER)


def until_at_rest(launched: Any, node: str) -> None:
    process = psutil.Process(launched.pid(node))
    used: list[float] = []

    def rests() -> bool:
        used.append(process.cpu_times().user)
        return len(used) > AT_REST and used[-1] == used[-1 - AT_REST]

    launched.until(rests)


def test_a_run_makes_as_many_gradient_steps_as_asked_although_its_processes_are_stopped_killed_and_scaled(
    launch: Any,
) -> None:
    flags = ("--updates-per-episode", str(UPDATES_PER_EPISODE), "--learning-starts", str(LEARNING_STARTS))
    launched = launch("--steps", "1000000000", "--workers", "1", "--envs-per-worker", str(ENVIRONMENTS), *flags)
    launched.until_playing()
    os.kill(launched.process.pid, signal.SIGSTOP)
    until_at_rest(launched, "worker-0-0")  # without the learner it uses its credits, and stops
    os.kill(launched.process.pid, signal.SIGCONT)

    scaled = launch.command("scale", launched.run, "3")
    assert scaled.ends() == 0, scaled.story("failed")
    launched.until_workers(3)
    os.kill(launched.pid("worker-0-1"), signal.SIGKILL)
    before = launched.records()[-1]["env_steps"]
    launched.until(lambda: launched.records()[-1]["env_steps"] > before + 2000)
    launched.process.send_signal(signal.SIGINT)
    assert launched.ends() == 130, launched.story("failed")
    slack = UPDATES_PER_EPISODE * 3 * ENVIRONMENTS  # the episodes that end in the last step of a worker's credits
    assert -error_buffer(3) - slack <= off(launched) <= error_buffer(3)

    goal = launched.json("summary.json")["env_steps"] + 1000
    resumed = launch.command("run", "--resume", launched.run, "--steps", str(goal))
    assert resumed.ends() == 0, resumed.story("failed")
    assert -error_buffer(3) - slack <= off(resumed) <= error_buffer(3)


@pytest.mark.parametrize("layout", ["--no-proxy", "--single-process"])
def test_a_short_run_makes_as_many_gradient_steps_as_asked(launch: Any, layout: str) -> None:
    flags = ("--updates-per-episode", str(UPDATES_PER_EPISODE), "--learning-starts", str(LEARNING_STARTS))
    launched = launch("--steps", "2000", "--workers", "1", "--envs-per-worker", str(ENVIRONMENTS), *flags, layout)
    assert launched.ends() == 0, launched.story("failed")
    slack = UPDATES_PER_EPISODE * ENVIRONMENTS
    assert -error_buffer(1) - slack <= off(launched) <= error_buffer(1)
    assert launched.json("summary.json")["updates"] > 20
