"""Runs over pretended hosts: real agents on this machine. Hosts come, leave, die and return, and nothing is left."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.uname().sysname != "Linux", reason="agents run on Linux")]

Launcher = Any


def words_of(process: psutil.Process) -> list[str]:
    """The command line of a process; empty once it has ended."""
    try:
        return " ".join(process.cmdline()).split()
    except psutil.NoSuchProcess:
        return []


class Hosted:
    """A run over pretended hosts with a scratch folder of its own."""

    def __init__(self, launch: Launcher, *flags: str, hosts: int = 2) -> None:
        self.scratch = Path(launch.folder) / "scratch"
        self.scratch.mkdir()
        self.run = launch(
            *(
                "--launch",
                "local",
                "--hosts",
                str(hosts),
                "--scratch",
                str(self.scratch),
                "--code",
                "installed",
                "--workers",
                "1",
                *flags,
            )
        )
        self.run.patience_s = 180.0

    def agents(self) -> dict[int, psutil.Process]:
        """The agents by slot."""
        found = {}
        for process in self.run.process.children():
            words = words_of(process)
            if "host" in words and "--slot" in words:
                found[int(words[words.index("--slot") + 1])] = process
        return found

    def processes(self, slot: int) -> dict[str, psutil.Process]:
        """The processes of the nodes of a host, by node."""
        found = {}
        for process in self.agents()[slot].children(recursive=True):
            words = words_of(process)
            if "node" in words:
                found[words[words.index("node") + 1]] = process
        return found

    def until_all_run(self, slot: int) -> None:
        """Wait until the proxy and the worker of a host run."""
        self.run.until(lambda: sorted(self.processes(slot)) == [f"host-{slot}", f"worker-{slot}-0"])

    def events(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.run.log() if line["event"] == event]

    def inserted(self) -> dict[str, int]:
        """Messages of experience that the orchestrator received, by the node that sent them."""
        return {
            row["sender"].partition("/")[0]: row["count"]
            for row in self.run.json("message_counts.json")
            if (row["type"], row["recipient"]) == ("InsertTransitionMsg", "learner/orchestrator")
        }

    def left(self) -> list[Path]:
        """Sockets and folders of agents, but for the unpacked code that later runs share."""
        return [path for path in self.scratch.rglob("*") if "code" not in path.parts[len(self.scratch.parts) :][:2]][1:]


@pytest.fixture
def over_hosts(launch: Launcher) -> Callable[..., Hosted]:
    return lambda *flags, **more: Hosted(launch, *flags, **more)


def test_a_run_over_three_hosts_plays_on_each_and_leaves_nothing(
    over_hosts: Callable[..., Hosted], launch: Launcher
) -> None:
    hosted = over_hosts("--steps", "100000000", hosts=3)
    hosted.run.until_playing()
    launch.until_all_play(hosted.run, "host-1", "host-2", "host-3")
    assert sorted(hosted.agents()) == [1, 2, 3]
    hosted.run.process.send_signal(signal.SIGINT)
    assert hosted.run.ends() == 130, hosted.run.story("failed")
    assert sorted(hosted.inserted()) == ["host-1", "host-2", "host-3"]
    assert hosted.left() == []
    assert {line["host"] for line in hosted.events("host joined")} == {"local-1", "local-2", "local-3"}
    assert hosted.run.log("worker-3-0"), "the logs of other hosts are in the run directory"


def test_the_host_of_a_killed_agent_ends_and_comes_back(over_hosts: Callable[..., Hosted]) -> None:
    hosted = over_hosts("--steps", "100000000")
    hosted.run.until_playing()
    hosted.until_all_run(1)
    nodes = hosted.processes(1)
    hosted.agents()[1].kill()
    gone, alive = psutil.wait_procs(nodes.values(), timeout=30)
    assert not alive
    assert len(gone) == 2
    hosted.run.until(lambda: len(hosted.events("host joined")) == 3)
    hosted.until_all_run(1)
    hosted.run.process.send_signal(signal.SIGINT)
    assert hosted.run.ends() == 130, hosted.run.story("failed")
    (lost,) = hosted.events("host gone")
    assert "killed by signal 9" in lost["reason"]
    assert hosted.left() == []


def test_nothing_is_left_of_any_host_when_the_head_is_killed(over_hosts: Callable[..., Hosted]) -> None:
    hosted = over_hosts("--steps", "100000000")
    hosted.run.until_playing()
    hosted.run.look_for_children()
    hosted.run.process.kill()
    assert hosted.run.left_over(30) == []
    assert hosted.left() == []


def test_a_killed_worker_is_started_again_by_its_agent_and_a_host_leaves(
    over_hosts: Callable[..., Hosted], launch: Launcher
) -> None:
    hosted = over_hosts("--steps", "100000000", "--min-hosts", "1")
    hosted.run.until_playing()
    hosted.until_all_run(1)
    worker = hosted.processes(1)["worker-1-0"]
    worker.kill()
    hosted.run.until(lambda: hosted.processes(1).get("worker-1-0", worker) != worker)
    leaving = launch.command("leave", str(hosted.run.run), "2")
    assert leaving.ends() == 0, leaving.story("failed")
    assert leaving.out == "host 2 has left\n"
    assert [line["host"] for line in hosted.events("host left")] == ["local-2"]
    hosted.run.until(lambda: sorted(hosted.agents()) == [1])
    hosted.run.process.send_signal(signal.SIGINT)
    assert hosted.run.ends() == 130, hosted.run.story("failed")
    assert hosted.left() == []


def test_a_run_that_sigterm_stops_saves_and_goes_on_with_fewer_hosts(
    over_hosts: Callable[..., Hosted], launch: Launcher
) -> None:
    hosted = over_hosts("--steps", "100000000")
    hosted.run.until(lambda: any(record["env_steps"] > 300 for record in hosted.run.records()))
    hosted.run.process.terminate()
    assert hosted.run.ends() == 75, hosted.run.story("failed")
    before = hosted.run.records()[-1]["env_steps"]
    again = launch.command("run", "--resume", str(hosted.run.run), "--hosts", "1", "--launch", "local")
    again.patience_s = 180.0
    again.until(lambda: hosted.run.records()[-1]["env_steps"] > before)
    again.process.terminate()
    assert again.ends() == 75, again.story("failed")
    assert hosted.left() == []
