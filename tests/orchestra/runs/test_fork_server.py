"""The processes of a run are forked from a template, and each is like one that was started afresh."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

PATIENCE_S = 30.0
EXPERIMENT = '''
"""Members that tell a boss what their processes are like."""

import os
import random
import sys
import threading

import numpy as np

from orchestra import Actor, Message, Preloads, Ref, Topology, on

LOADED = []


class SeenMsg(Message):
    node: str
    pid: int
    parent: int
    session: int
    arguments: tuple[str, ...]
    drawn: tuple[float, float]
    loaded: tuple[int, ...]
    threads: str


class Boss(Actor[SeenMsg]):
    def __init__(self, wanted: int) -> None:
        self.left = wanted

    @on(SeenMsg)
    def see(self, msg: SeenMsg) -> None:
        print(msg.model_dump_json(), flush=True)
        self.left -= 1
        if not self.left:
            self.stop()


class Plain(Actor[SeenMsg]):
    def __init__(self, node: str, boss: Ref[SeenMsg]) -> None:
        self.node, self.boss = node, boss

    async def started(self) -> None:
        await self.boss.tell(
            SeenMsg(
                node=self.node,
                pid=os.getpid(),
                parent=os.getppid(),
                session=os.getsid(0),
                arguments=tuple(sys.argv[1:3]),
                drawn=(random.random(), np.random.random()),
                loaded=tuple(LOADED),
                threads=os.environ.get("OPENBLAS_NUM_THREADS", ""),
            )
        )

    @on(SeenMsg)
    def ignore(self, msg: SeenMsg) -> None: ...


class Member(Preloads, Plain):
    @classmethod
    def preload(cls, node: str, boss: Ref[SeenMsg]) -> None:
        LOADED.append(os.getpid())
        if node == "broken":
            raise ValueError("nothing to load")


def experiment(*, wanted: int = 4, threads: bool = False, name: str = "m") -> Topology:
    if threads:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    topology = Topology("members")
    boss = topology.node("root").spawn("boss", Boss, wanted)
    topology.until(boss)
    for number in range(2):
        topology.node(f"p{number}").spawn("it", Plain, f"p{number}", boss)
    for number in range(2):
        topology.node(f"m{number}").spawn("it", Member, f"{name}{number}" if number else name, boss)
    return topology
'''


class Members:
    """An `orchestra run` of the experiment above."""

    def __init__(self, folder: Path, *words: str, **environment: str) -> None:
        (folder / "members.py").write_text(EXPERIMENT)
        command = [sys.executable, "-m", "orchestra", "run", str(folder / "members.py"), "--runs-dir", str(folder)]
        self.folder = folder
        self._err = (folder / "err").open("w+")
        usual = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
        self.root = psutil.Popen(
            [*command, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._err,
            text=True,
            env=usual | environment,
            start_new_session=True,
        )

    def seen(self, count: int) -> dict[str, dict[str, Any]]:
        """Wait for `count` members, and return what they tell, by name."""
        told = [json.loads(self.root.stdout.readline()) for _ in range(count)]
        return {each["node"]: each for each in told}

    def ends(self) -> int:
        return int(self.root.wait(PATIENCE_S))

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text()

    @property
    def log(self) -> str:
        (path,) = self.folder.glob("members/*/logs/root.jsonl")
        return path.read_text()

    def templates(self) -> list[psutil.Process]:
        """The first template, and the one that was forked from it."""
        found = [each for each in self.root.children(recursive=True) if "template" in each.cmdline()]
        return sorted(found, key=lambda each: each.ppid() != self.root.pid)

    def close(self) -> None:
        if self.root.is_running():
            for process in [*self.root.children(recursive=True), self.root]:
                process.kill()
        self.root.wait(PATIENCE_S)
        self.root.stdout.close()
        self._err.close()


@pytest.fixture
def run() -> Iterator[Callable[..., Members]]:
    with tempfile.TemporaryDirectory(prefix="o") as folder:
        started: list[Members] = []

        def start(*words: str, **environment: str) -> Members:
            started.append(Members(Path(folder), *words, **environment))
            return started[-1]

        try:
            yield start
        finally:
            for each in started:
                each.close()


def test_a_forked_process_is_like_one_that_was_started(run) -> None:
    members = run("--wanted", "5")
    seen = members.seen(4)
    first, second = members.templates()
    for name, each in seen.items():
        process = psutil.Process(each["pid"])
        assert " ".join(process.cmdline()).startswith(f"{sys.executable} -m orchestra node {name[0]}")
        assert each["arguments"][0] == "node"
        assert each["session"] == each["pid"]  # Ctrl-C in a terminal does not reach it
        assert each["parent"] == (second if "m" in name else first).pid
        assert [file.path for file in process.open_files() if not file.path.startswith(str(members.folder))] == []
    assert len({tuple(each["drawn"]) for each in seen.values()}) == 4
    assert len({number for each in seen.values() for number in each["drawn"]}) == 8  # by neither generator


def test_no_template_holds_a_pipe_of_a_process_that_it_has_forked(run) -> None:
    members = run("--wanted", "5")
    seen = members.seen(4)  # the second template was forked while a request was carried out
    held = set[str]().union(*(pipes(template.pid) for template in members.templates()))
    assert {name: pipes(each["pid"]) & held for name, each in seen.items()} == {name: set() for name in seen}
    assert all(pipes(each["pid"]) for each in seen.values())


def pipes(pid: int) -> set[str]:
    ends = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()]
    return {end for end in ends if end.startswith("pipe:")}


def test_what_an_actor_preloads_is_in_its_processes_only_and_was_loaded_once(run) -> None:
    members = run("--wanted", "5")
    seen = members.seen(4)
    _, second = members.templates()
    assert {name: each["loaded"] for name, each in seen.items()} == {
        "p0": [],
        "p1": [],
        "m": [second.pid],
        "m1": [second.pid],
    }


def test_processes_start_although_preloading_fails_and_the_error_is_printed(run) -> None:
    members = run("--name", "broken")
    assert set(members.seen(4)) == {"p0", "p1", "broken", "broken1"}
    assert members.ends() == 0
    assert "ValueError: nothing to load" in members.err


def test_the_templates_end_with_the_run(run) -> None:
    members = run("--wanted", "5")
    seen = members.seen(4)
    templates = members.templates()
    psutil.Process(seen["m"]["pid"]).kill()  # the fifth is the one that is started in its place
    assert members.ends() == 0
    assert psutil.wait_procs(templates, PATIENCE_S)[1] == []
    assert "killed by signal 9" in members.err


def test_the_templates_end_when_the_root_is_killed(run) -> None:
    members = run("--wanted", "5")
    seen = members.seen(4)
    left = [*members.templates(), *(psutil.Process(each["pid"]) for each in seen.values())]
    members.root.kill()
    assert psutil.wait_procs(left, PATIENCE_S)[1] == []


@pytest.mark.parametrize("which", [0, 1], ids=["the first", "the one that preloads"])
def test_a_template_that_is_killed_takes_no_process_with_it_and_is_replaced(run, which: int) -> None:
    members = run("--wanted", "5")
    seen = members.seen(4)
    processes = {name: psutil.Process(each["pid"]) for name, each in seen.items()}
    templates = members.templates()
    templates[which].kill()
    assert psutil.wait_procs(templates[which:], PATIENCE_S)[1] == []
    assert all(process.is_running() for process in processes.values())
    processes["m"].kill()
    (again,) = members.seen(1).values()
    assert (again["node"], again["loaded"] != seen["m"]["loaded"]) == ("m", True)
    assert members.ends() == 0
    assert "its exit code was lost with the template that had forked it" in members.err.replace("\n", " ")


def test_a_template_outlives_the_signals_that_a_cancelled_job_gets_and_ends_quietly_with_its_root(run) -> None:
    members = run("--wanted", "5")
    seen = members.seen(4)
    templates = members.templates()
    for template in templates:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            template.send_signal(number)
    psutil.Process(seen["m"]["pid"]).kill()
    (again,) = members.seen(1).values()
    assert (again["parent"], again["loaded"]) == (templates[1].pid, [templates[1].pid])
    assert members.ends() == 0
    assert psutil.wait_procs(templates, PATIENCE_S)[1] == []
    assert "template" not in members.err


def test_processes_are_not_forked_from_a_template_with_threads(run) -> None:
    members = run("--threads", "--wanted", "5")
    seen = members.seen(4)
    assert {each["parent"] for each in seen.values()} == {members.root.pid}
    assert {tuple(each["loaded"]) for each in seen.values()} == {()}
    psutil.Process(seen["m"]["pid"]).kill()
    assert members.seen(1)["m"]["parent"] == members.root.pid
    assert members.ends() == 0
    assert "what it has imported runs 1 threads" in members.log


def test_numpy_has_one_thread_in_a_forked_process_and_the_template_does_without_those_that_are_asked_for(run) -> None:
    assert {each["threads"] for each in run().seen(4).values()} == {"1"}
    asked = run(OPENBLAS_NUM_THREADS="3", OMP_NUM_THREADS="3")
    assert {each["threads"] for each in asked.seen(4).values()} == {"3"}
    assert asked.ends() == 0
