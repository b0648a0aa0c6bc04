"""Scaling a real run: processes of replicas come and go, what they told is counted, and nothing else changes."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestra.cli.main import main
from orchestra.runs.run_directory import RunDirectory
from orchestra.trace.reading.query import Query
from orchestra.trace.reading.run_trace import RunTrace

PATIENCE_S = 60.0
EXPERIMENT = '''
"""A boss that counts what its workers tell, and says how many of them are there."""

from orchestra import Actor, InterruptMsg, Message, Ref, TerminatedMsg, Topology, on


class JoinMsg(Message):
    worker: Ref


class CountMsg(Message):
    """One more."""


class TickMsg(Message):
    """Tell one more."""


class Boss(Actor[JoinMsg | CountMsg]):
    def __init__(self) -> None:
        self.counted = 0
        self.workers: set[str] = set()

    @on(JoinMsg)
    def join(self, msg: JoinMsg) -> None:
        self.workers.add(msg.worker.address)
        self.watch(msg.worker)
        self.say()

    @on(TerminatedMsg)
    def leave(self, msg: TerminatedMsg) -> None:
        self.workers.discard(msg.address)
        self.say()

    @on(CountMsg)
    def count(self, msg: CountMsg) -> None:
        self.counted += 1

    async def stopped(self) -> None:
        (self.run_directory / "state" / "last").mkdir(parents=True, exist_ok=True)
        (self.run_directory / "counted").write_text(str(self.counted))

    def say(self) -> None:
        nodes = sorted(address.partition("/")[0] for address in self.workers)
        (self.run_directory / "workers").write_text(" ".join(nodes))


class Worker(Actor[TickMsg]):
    def __init__(self, boss: Ref[JoinMsg | CountMsg]) -> None:
        self.boss = boss
        self.told = 0

    async def started(self) -> None:
        await self.boss.tell(JoinMsg(worker=self.me))
        self.after(0.01, TickMsg())

    @on(TickMsg)
    async def tick(self, msg: TickMsg) -> None:
        await self.boss.tell(CountMsg())
        self.told += 1
        self.after(0.01, TickMsg())

    async def stopped(self) -> None:
        with (self.run_directory / "told").open("a") as file:
            print(self.me.address, self.told, file=file)


def experiment(*, workers: int = 1, at_least: int = 1) -> Topology:
    topology = Topology("counting")
    boss = topology.node("root").spawn("boss", Boss)

    def plan(index: int) -> Ref:
        return topology.node(f"w{index}").spawn("worker", Worker, boss)

    topology.replicas("workers", workers, plan, at_least=at_least)
    topology.until(boss)
    return topology
'''


class Launched:
    """A run, and those that it launched."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._folder = folder
        self._err = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by `close`)
        command = [sys.executable, "-m", "orchestra", "run", *words, "--runs-dir", str(folder)]
        self.root = psutil.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._err, stderr=self._err, start_new_session=True
        )

    @property
    def run(self) -> Path:
        (path,) = self._folder.glob("counting/*")
        return path

    def read(self, name: str) -> str:
        found = list(self._folder.glob(f"counting/*/{name}"))
        return found[0].read_text() if found else ""

    def until(self, condition: Callable[[], Any]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.root.is_running(), self.err
            assert time.monotonic() < end, f"{self.read('workers')!r}: {self.err}"
            time.sleep(0.05)

    def until_workers(self, *nodes: str) -> None:
        """Wait until the boss knows just these."""
        self.until(lambda: self.read("workers").split() == list(nodes) and (self.run / "join.json").exists())

    def pid(self, node: str) -> int:
        lines = map(json.loads, self.read("logs/root.jsonl").splitlines())
        return [int(line["pid"]) for line in lines if line["event"] == "process started" and line["process"] == node][
            -1
        ]

    def stop(self) -> int:
        self.root.send_signal(signal.SIGTERM)
        return int(self.root.wait(PATIENCE_S))

    @property
    def err(self) -> str:
        self._err.seek(0)
        return self._err.read()

    def close(self) -> None:
        children = self.root.children(recursive=True) if self.root.is_running() else []
        for process in [self.root, *children]:
            if process.is_running():
                process.kill()
        self.root.wait(PATIENCE_S)
        self._err.close()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    file = tmp_path / "counting.py"
    file.write_text(EXPERIMENT)
    launched: list[Launched] = []

    def start(*words: str) -> Launched:
        launched.append(Launched(tmp_path, *(words if "--resume" in words else (str(file), *words))))
        return launched[-1]

    yield start
    for each in launched:
        each.close()


@pytest.fixture
def scale(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """`orchestra scale` of the newest running run: its exit code, and what it says."""

    def command(*words: str | Path | int) -> tuple[int, str]:
        capfd.readouterr()
        code = main(["scale", *map(str, words), "--runs-dir", str(tmp_path)])
        said = capfd.readouterr()
        return code, (said.out + said.err).strip()

    return command


@pytest.mark.slow
def test_workers_come_and_go_and_all_that_they_told_is_counted(
    launch: Any, scale: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    launched = launch("--trace", "full")
    launched.until_workers("w0")
    assert scale(3) == (0, "workers: 1 -> 3; started w1, w2")
    launched.until_workers("w0", "w1", "w2")
    assert scale(3) == (0, "workers: 3 already")
    removed = [launched.pid(node) for node in ("w1", "w2")]
    assert scale(launched.run, 1) == (0, "workers: 3 -> 1; stopped w1, w2")
    assert not any(map(psutil.pid_exists, removed))
    launched.until_workers("w0")
    assert scale(2) == (0, "workers: 1 -> 2; started w1")
    launched.until_workers("w0", "w1")
    killed = launched.pid("w1")
    os.kill(killed, signal.SIGKILL)  # it is started again, as any other process
    launched.until(lambda: launched.pid("w1") != killed)
    launched.until_workers("w0", "w1")
    assert launched.stop() == 75, launched.err

    with RunTrace(launched.run) as trace:
        counted = Counter(row.delivery.id.sender for row in Query(actor="root/boss", type="CountMsg").deliveries(trace))
    assert counted.total() == int(launched.read("counted"))
    told: Counter[str] = Counter()
    for address, count in map(str.split, launched.read("told").splitlines()):
        told[address] += int(count)
    assert set(told) == set(counted) == {"w0/worker", "w1/worker", "w2/worker"}
    assert counted["w2/worker"] == told["w2/worker"] > 0  # it was removed, and nothing of it is lost
    flows = json.loads(launched.read("message_counts.json"))
    assert sum(row["count"] for row in flows if row["type"] == "CountMsg") == counted.total()
    assert {row["sender"] for row in flows if row["type"] == "TickMsg"} >= {"w0/worker", "w2/worker"}

    resumed = launch("--resume", str(launched.run))
    resumed.until_workers("w0", "w1")
    assert resumed.stop() == 75, resumed.err
    assert RunDirectory(launched.run).read_replicas() == {"workers": (1, 2)}
    capfd.readouterr()
    for flags, workers in ([], ["w0", "w1"]), (["--workers", "3"], ["w0", "w1", "w2"]):  # a flag that is given counts
        assert main(["run", "--resume", str(launched.run), "--dry-run", *flags]) == 0
        assert re.findall(r"^  (w\d)$", capfd.readouterr().out, re.MULTILINE) == workers


@pytest.mark.slow
def test_a_number_that_a_run_cannot_have_is_refused_and_changes_nothing(launch: Any, scale: Any) -> None:
    launched = launch("--workers", "2", "--at-least", "2")
    launched.until_workers("w0", "w1")
    assert scale(1) == (2, "orchestra: error: workers: 1 is not allowed; 2 to 1024 are")
    assert scale(2000)[0] == 2
    assert scale(0) == (2, "orchestra: error: N: 0 is not allowed: it must be 1 or more")
    assert scale(3, "--group", "players") == (
        2,
        "orchestra: error: topology 'counting' has no group of replicas 'players'; its groups are workers",
    )
    assert scale(2) == (0, "workers: 2 already")
    assert launched.stop() == 75, launched.err
    code, said = scale(launched.run, 3)
    assert (code, said.startswith(f"orchestra: error: the run in '{launched.run}' is over: stopped")) == (2, True)


@pytest.mark.slow
def test_a_run_in_one_process_is_not_scaled(launch: Any, scale: Any) -> None:
    launched = launch("--single-process")
    launched.until_workers("w0")
    code, said = scale(2)
    assert (code, "is one process, which does not listen" in said) == (2, True)


def test_without_a_run_there_is_nothing_to_scale(scale: Any, tmp_path: Path) -> None:
    assert scale(2) == (2, f"orchestra: error: there is no run in '{tmp_path}'; name a run's directory, or --runs-dir")
    assert scale(tmp_path / "no", 2) == (2, f"orchestra: error: there is no run directory '{tmp_path / 'no'}'")
    assert scale("many")[0] == 2
