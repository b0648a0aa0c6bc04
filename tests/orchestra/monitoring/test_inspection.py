"""Looking into real runs: `orchestra ps`, `orchestra top`, and SIGUSR1."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestra.cli.main import main
from orchestra.wire.transports.tls import TLS_DIR_VARIABLE

PATIENCE_S = 30.0
EXPERIMENT = '''
"""A boss that waits, and two workers: one that waits for an answer, and one that computes in a thread."""

import asyncio
import threading
from pathlib import Path

from orchestra import Actor, Message, Ref, Request, Topology, on


class GoMsg(Message):
    pass


class AnswerMsg(Request[int]):
    pass


class Boss(Actor[GoMsg | AnswerMsg]):
    async def started(self) -> None:
        print("up", flush=True)

    @on(GoMsg)
    def go(self, msg: GoMsg) -> None: ...

    @on(AnswerMsg)
    def answer(self, msg: AnswerMsg) -> asyncio.Future[int]:
        return asyncio.get_running_loop().create_future()


class Asks(Actor[GoMsg]):
    def __init__(self, boss: Ref[GoMsg | AnswerMsg]) -> None:
        self.boss = boss

    async def started(self) -> None:
        await self.boss.tell(GoMsg())
        await self.me.tell(GoMsg())

    @on(GoMsg)
    async def go(self, msg: GoMsg) -> None:
        await deep_down(self.boss)


class Computes(Asks):
    @on(GoMsg)
    async def go(self, msg: GoMsg) -> None:
        await self.offload(compute_for_ever, self.run_directory / "join.json")


async def deep_down(boss: Ref[AnswerMsg]) -> None:
    await boss.ask(AnswerMsg())


def compute_for_ever(join_file: Path) -> None:
    while join_file.exists():  # as long as the run goes on
        threading.Event().wait(0.05)


class Spins(Asks):
    @on(GoMsg)
    def go(self, msg: GoMsg) -> None:
        while True:  # nothing else runs in this process any more
            len(self.me.address)


def experiment(*, workers: bool = True, spins: bool = False) -> Topology:
    topology = Topology("long")
    boss = topology.node("root").spawn("boss", Boss)
    if workers:
        topology.node("w0").spawn("asks", Asks, boss)
        topology.node("w1").spawn("computes", Spins if spins else Computes, boss)
    topology.until(boss)
    return topology
'''


class Going:
    """A run that goes on until it is told to stop."""

    def __init__(self, folder: Path, *words: str) -> None:
        (folder / "long.py").write_text(EXPERIMENT)
        self._err = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by `close`)
        command = [sys.executable, "-m", "orchestra", "run", "long.py", *words]
        self.process = psutil.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=self._err, text=True, start_new_session=True
        )
        assert self.process.stdout.readline() == "up\n"
        (self.run,) = folder.glob("runs/long/*")

    @property
    def err(self) -> str:
        self._err.seek(0)
        return self._err.read()

    def log(self, node: str) -> list[dict[str, Any]]:
        path = self.run / "logs" / f"{node}.jsonl"
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until `condition` holds, and return what it says."""
        for _ in range(int(PATIENCE_S / 0.05)):
            if found := condition():
                return found
            assert self.process.poll() is None, f"it ended: {self.err}"
            time.sleep(0.05)  # another process writes a file: there is no event to wait for
        pytest.fail(f"waited {PATIENCE_S} s; stderr: {self.err}")

    def ends(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return int(self.process.wait(PATIENCE_S))

    def close(self) -> None:
        for process in [*self.process.children(recursive=True), self.process] if self.process.is_running() else []:
            process.kill()
        self.process.wait(10)
        self.process.stdout.close()
        self._err.close()


@pytest.fixture
def going(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Going]]:
    monkeypatch.chdir(tmp_path)
    started: list[Going] = []

    def start(*words: str) -> Going:
        started.append(Going(tmp_path, *words))
        return started[-1]

    yield start
    for entry in started:
        entry.close()


def is_busy(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Look into the newest run; return its actors by address once both workers are in the middle of a message."""
    assert main(["ps", "--json", "--seconds", "0.05", *words]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    actors = {row["address"]: row for node in json.loads(printed.out)["nodes"] for row in node["actors"]}
    waiting = [address for address, row in actors.items() if row["state"] == "waiting"]
    return actors if sorted(waiting) == ["w0/asks", "w1/computes"] else {}


def test_a_run_is_looked_into_by_many_and_not_disturbed(
    going: Callable[..., Going], capsys: pytest.CaptureFixture[str]
) -> None:
    run = going()
    actors = run.until(lambda: is_busy(capsys))
    assert actors["root/boss"]["state"] == "idle"
    assert actors["w0/asks"]["waits_for"] == ["asks root/boss"]
    assert actors["w1/computes"]["waits_for"] == ["in a thread: compute_for_ever"]
    assert actors["w0/asks"]["for_s"] > 0

    assert main(["ps", str(run.run), "--seconds", "0.05"]) == 0
    printed = capsys.readouterr().out
    for said in (str(run.run), "  boss Boss", "  asks Asks", "asks root/boss (GoMsg)", "root - w0", "root - w1"):
        assert said in printed
    assert "observer" not in printed

    screens = [Screen(run.run) for _ in range(2)]
    try:
        for screen in screens:
            screen.until("in a thread: comp")
            screen.press("b")
            screen.until("w1/computes")
        assert screens[0].ends_on("q") == 0
        assert run.ends() == 130
        assert screens[1].ends_by_itself() == 0
        assert f"the run in '{run.run}' is over" in screens[1].seen
    finally:
        for screen in screens:
            screen.close()

    assert "observer" not in run.err
    flows = json.loads((run.run / "message_counts.json").read_text())
    assert not [flow for flow in flows if "observer" in flow["sender"]]
    assert not (run.run / "join.json").exists()
    assert main(["ps", str(run.run)]) == 2
    assert capsys.readouterr().err == f"orchestra: error: the run in '{run.run}' is over: interrupted\n"


def test_a_run_over_tls_is_looked_into_with_its_own_certificates(
    going: Callable[..., Going],
    capsys: pytest.CaptureFixture[str],
    certificates: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = going("--listen", "tls://127.0.0.1:0", "--tls-dir", str(certificates("good")))

    monkeypatch.delenv(TLS_DIR_VARIABLE, raising=False)  # as in a shell in which nothing was set
    run.until(lambda: is_busy(capsys))
    assert TLS_DIR_VARIABLE not in os.environ
    screen = Screen(run.run)
    try:
        screen.until("in a thread: comp")
        assert screen.ends_on("q") == 0
    finally:
        screen.close()
    assert run.ends() == 130
    assert "observer" not in run.err


def test_a_run_in_one_process_cannot_be_joined_and_says_what_to_do(
    going: Callable[..., Going], capsys: pytest.CaptureFixture[str]
) -> None:
    run = going("--single-process", "--no-workers")
    run.until((run.run / "join.json").exists)
    assert main(["ps"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"`kill -USR1 {run.process.pid}` makes it print what its actors are doing" in said
    assert run.ends() == 130


def test_a_run_that_does_not_answer_is_one_line(
    going: Callable[..., Going], capsys: pytest.CaptureFixture[str]
) -> None:
    run = going("--no-workers", "--single-process")
    run.until((run.run / "join.json").exists)
    written = {
        "pid": run.process.pid,
        "address": "tcp://127.0.0.1:1",
        "secret": "00" * 16,
        "tls_dir": "",
        "token": None,
    }
    (run.run / "join.json").write_text(json.dumps(written))
    assert main(["ps"]) == 1
    assert capsys.readouterr().err == (
        f"orchestra: cannot look into the run in '{run.run.relative_to(Path.cwd())}': "
        "no process answers at tcp://127.0.0.1:1: Connection refused\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ps"], "there is no run in 'runs'; name a run's directory, or --runs-dir"),
        (["ps", "nowhere"], "there is no run directory 'nowhere'"),
        (["ps", "--seconds", "0"], "--seconds: 0 is not allowed: it must be more than 0"),
        (["top", "--seconds", "-1"], "--seconds: -1 is not allowed: it must be more than 0"),
        (["top"], "orchestra top needs a terminal; `orchestra ps` prints the same once"),
    ],
)
def test_a_look_at_what_is_not_there_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert capsys.readouterr() == ("", f"orchestra: error: {said}\n")


class Screen:
    """`orchestra top` on a terminal of its own."""

    def __init__(self, run: Path) -> None:
        self._terminal, inner = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
        command = [sys.executable, "-m", "orchestra", "top", str(run), "--seconds", "0.1"]
        self._process = psutil.Popen(command, stdin=inner, stdout=inner, stderr=inner, env=environment)
        os.close(inner)
        self.seen = ""

    def until(self, text: str) -> None:
        """Wait until `text` was on it, since the last key."""
        while text not in self.seen:
            assert self._read(), f"{text!r} was never shown, but {self.seen[-3000:]}"

    def press(self, key: str) -> None:
        self.seen = ""
        os.write(self._terminal, key.encode())

    def ends_on(self, key: str) -> int:
        self.press(key)
        return self.ends_by_itself()

    def ends_by_itself(self) -> int:
        while self._read():
            pass
        return int(self._process.wait(PATIENCE_S))

    def _read(self) -> bool:
        ready, _, _ = select.select([self._terminal], [], [], PATIENCE_S)
        try:
            news = os.read(self._terminal, 65536).decode(errors="replace") if ready else ""
        except OSError:  # how a terminal says that nobody is at its other end
            return False
        self.seen += news
        return bool(news)

    def close(self) -> None:
        if self._process.is_running():
            self._process.kill()
        self._process.wait(10)
        os.close(self._terminal)


# SIGUSR1


def dumped(run: Going, node: str) -> dict[str, Any]:
    """What the actors of `node` were doing, by address, if it has been asked."""
    lines = [line for line in run.log(node) if line["event"] == "what every actor is doing"]
    return {actor["address"]: actor for actor in lines[-1]["actors"]} if lines else {}


def test_sigusr1_makes_every_process_say_what_its_actors_do_down_to_the_line(
    going: Callable[..., Going], capsys: pytest.CaptureFixture[str]
) -> None:
    run = going()
    run.until(lambda: is_busy(capsys))
    run.process.send_signal(signal.SIGUSR1)
    asks = run.until(lambda: dumped(run, "w0"))["w0/asks"]
    assert (asks["message"], asks["sender"], asks["state"], asks["queue"]) == ("GoMsg", "w0/asks", "waiting", 0)
    assert asks["for_s"] > 0
    assert [line.partition(" ")[2] for line in asks["stack"]] == [
        "go: await deep_down(self.boss)",
        "deep_down: await boss.ask(AnswerMsg())",
    ]
    computes = run.until(lambda: dumped(run, "w1"))["w1/computes"]
    assert [line.partition(" ")[2] for line in computes["stack"]] == [
        'go: await self.offload(compute_for_ever, self.run_directory / "join.json")'
    ]
    (thread,) = computes["threads"].values()
    assert thread[0].partition(" ")[2].startswith("compute_for_ever: ")

    boss = run.until(lambda: dumped(run, "root"))["root/boss"]  # which had nothing to do since the workers joined
    assert (boss["state"], boss["stack"]) == ("idle", [])
    run.until(lambda: f"those of the other processes: in {run.run.relative_to(Path.cwd())}/logs" in run.err)
    assert f"actors of process {run.process.pid} are doing:" in run.err
    assert "  root/boss Boss: idle; queue: 0" in run.err
    run.process.send_signal(signal.SIGUSR1)  # and again
    run.until(lambda: run.err.count("root/boss Boss: idle") == 2)
    assert run.ends() == 130


def test_sigusr1_is_heard_by_a_process_whose_loop_is_stuck(going: Callable[..., Going]) -> None:
    run = going("--spins")
    run.until(lambda: {"w0", "w1"} <= {line.get("peer") for line in run.log("root") if line["event"] == "connected"})

    def is_found() -> dict[str, Any]:
        run.process.send_signal(signal.SIGUSR1)  # until it has begun
        found = dumped(run, "w1").get("w1/computes", {})
        return found if found.get("stack") else {}

    spins = run.until(is_found)
    assert (spins["state"], spins["message"]) == ("handling", "GoMsg")
    assert [line.partition(" ")[2].partition(":")[0] for line in spins["stack"]] == ["go"]


def test_sigusr1_of_a_run_in_one_process_tells_of_all_its_nodes(going: Callable[..., Going]) -> None:
    run = going("--single-process", "--no-workers")
    run.until((run.run / "join.json").exists)

    def is_idle() -> bool:
        run.process.send_signal(signal.SIGUSR1)  # the first may come while it is still busy with its start
        return bool(dumped(run, "root").get("root/boss", {}).get("state") == "idle")

    run.until(is_idle)
    assert run.ends() == 130
