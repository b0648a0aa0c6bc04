"""Real processes: launched, killed, given up, interrupted; and whoever is left behind ends by itself."""

import asyncio
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import psutil
import pytest

from orchestra import Actor, InterruptMsg, Node, on
from orchestra.runs.runner import Stopping, _until_stopped, on_signals, stopped_by_signals
from orchestra.testing import Simulation, run_seed

PATIENCE_S = 30.0
EXPERIMENT = '''
"""A boss, and workers that greet it."""

import asyncio
import os
import sys

from orchestra import Actor, Message, Ref, Stop, TerminatedMsg, Topology, on


class HelloMsg(Message):
    node: str
    pid: int
    secret: str | None


class Boss(Actor[HelloMsg]):
    supervision = Stop()

    def __init__(self, greetings: int, at_end: str, saves: bool) -> None:
        self.left = greetings
        self.at_end = at_end
        self.saves = saves

    async def started(self) -> None:
        if self.saves:
            (self.run_directory / "state" / "first").mkdir(parents=True)
        self.say("up")

    @on(HelloMsg)
    def hello(self, msg: HelloMsg) -> None:
        self.say(f"{msg.node} {msg.pid} {msg.secret}")
        self.left -= 1
        if not self.left:
            if self.at_end == "fail":
                raise ValueError("had enough")
            self.stop()

    async def stopped(self) -> None:
        self.say("draining")
        if self.at_end == "hang":
            await asyncio.get_running_loop().create_future()
        (self.run_directory / "saved").touch()

    def say(self, text: str) -> None:
        print(text, flush=True)


class Worker(Actor[HelloMsg]):
    def __init__(self, node: str, boss: Ref[HelloMsg], exit_code: int, faithful: bool) -> None:
        self.node, self.boss, self.exit_code, self.faithful = node, boss, exit_code, faithful

    async def started(self) -> None:
        print(f"{self.node} is here\\nand says so", file=sys.stderr)
        if self.exit_code:
            os._exit(self.exit_code)
        if self.faithful:
            self.watch(self.boss)
        left = os.read(0, 100).decode() or None
        await self.boss.tell(HelloMsg(node=self.node, pid=os.getpid(), secret=left))

    @on(HelloMsg)
    def hello(self, msg: HelloMsg) -> None: ...

    @on(TerminatedMsg)
    def follow(self, msg: TerminatedMsg) -> None:
        os._exit(3)


def experiment(
    *, workers: int = 2, greetings: int = 0, at_end: str = "", saves: bool = True, exit_code: int = 0,
    faithful: bool = False, bystanders: int = 0, at_least: int = 0,
) -> Topology:
    topology = Topology("greetings")
    boss = topology.node("root").spawn("boss", Boss, greetings, at_end, saves)
    topology.until(boss)
    refs = [
        topology.node(f"w{number}").spawn("worker", Worker, f"w{number}", boss, exit_code, faithful)
        for number in range(workers)
    ]
    if at_least:
        topology.require(*refs, at_least=at_least)
    for number in range(bystanders):
        topology.node(f"b{number}").spawn("worker", Worker, f"b{number}", boss, 0, faithful)
    return topology
'''


class Launched:
    """An `orchestra run`, and the processes that it launched."""

    def __init__(self, folder: Path, *words: str, ignores: signal.Signals | None = None) -> None:
        self.folder = folder
        (folder / "greet.py").write_text(EXPERIMENT)
        self._err = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by `close`)
        self.root = psutil.Popen(
            [sys.executable, "-m", "orchestra", "run", str(folder / "greet.py"), "--runs-dir", str(folder), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._err,
            text=True,
            start_new_session=True,
            preexec_fn=None if ignores is None else lambda: signal.signal(ignores, signal.SIG_IGN),
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self.root.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put("the end")

    def says(self) -> str:
        """Wait for the boss's next line."""
        try:
            return self._lines.get(timeout=PATIENCE_S)
        except queue.Empty:
            pytest.fail(f"silent for {PATIENCE_S} s; stderr: {self.err}")

    def greetings(self, count: int) -> dict[str, tuple[int, str]]:
        """Wait for `count` workers, and return the process of each and what is left of its standard input.

        After the last greeting that the boss waits for they end, so that there may be no such process any more.
        """
        found = {}
        for _ in range(count):
            node, pid, secret = self.says().split()
            found[node] = (int(pid), secret)
        return found

    def ends(self) -> int:
        """Wait for the end and return the exit code."""
        return int(self.root.wait(PATIENCE_S))

    @property
    def err(self) -> str:
        self._err.seek(0)
        return self._err.read()

    @property
    def run(self) -> Path:
        (path,) = self.folder.glob("greetings/*")
        return path

    def all_processes(self) -> list[psutil.Process]:
        """All that run with this test's folder on their command line: nobody else's do."""
        found = []
        for process in psutil.process_iter():
            try:
                if any(str(self.folder) in word for word in process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue  # it ended meanwhile, or is somebody else's
        return found

    def close(self) -> None:
        left = self.all_processes()
        for process in left:
            process.kill()
        psutil.wait_procs(left, PATIENCE_S)
        self.root.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        self.root.stdout.close()
        self._err.close()


Launch = Callable[..., Launched]


@pytest.fixture
def launch() -> Iterator[Launch]:
    with tempfile.TemporaryDirectory(prefix="o") as name:
        folder = Path(name)
        launched: list[Launched] = []

        def start(*words: str, **more: Any) -> Launched:
            launched.append(Launched(folder, *words, **more))
            return launched[-1]

        try:
            yield start
            assert not [path for path in folder.rglob("*") if path.is_socket()]
            assert not [process for it in launched for process in it.all_processes()]
        finally:
            for it in launched:
                it.close()


@pytest.fixture(params=["tcp", "unix"])
def listen(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where the root listens; no socket file is left there when the test ends."""
    with tempfile.TemporaryDirectory(prefix="o") as name:
        yield "tcp://127.0.0.1:0" if request.param == "tcp" else f"unix://{name}/root"
        assert not list(Path(name).iterdir())


def test_a_run_in_processes_ends_in_order_and_tells_its_secret_to_nobody(launch: Launch, listen: str) -> None:
    run = launch("--listen", listen, "--greetings", "3")
    assert run.says() == "up"
    workers = {node: (psutil.Process(pid), hidden) for node, (pid, hidden) in run.greetings(2).items()}
    secret = json.loads((run.run / "join.json").read_text())["secret"]
    assert len(bytes.fromhex(secret)) == 32
    assert {hidden for _, hidden in workers.values()} == {"None"}  # nor would a child find it there
    processes = [run.root, *run.root.children(recursive=True)]
    assert {process.pid for process, _ in workers.values()} < {process.pid for process in processes}
    for process in processes:
        assert secret not in " ".join(process.cmdline())
        assert secret not in Path(f"/proc/{process.pid}/environ").read_text(errors="replace")

    workers["w0"][0].kill()  # whoever is started in its place greets for the third time
    run.greetings(1)
    assert run.says() == "draining"
    assert run.ends() == 0
    files = [path for path in run.run.rglob("*") if path.is_file()]
    assert run.run / "config.json" in files
    assert all(secret.encode() not in path.read_bytes() for path in files)
    assert secret not in run.err
    flows = json.loads((run.run / "message_counts.json").read_text())
    assert {"sender": "w1/worker", "type": "HelloMsg", "recipient": "root/boss", "count": 1} in flows


def test_what_a_worker_prints_is_passed_on(launch: Launch) -> None:
    run = launch("--greetings", "1", "--workers", "1")
    assert run.ends() == 0
    assert "w0 is here\nand says so\n" in run.err


def test_a_worker_that_was_killed_is_reported_and_started_again(launch: Launch) -> None:
    run = launch("--greetings", "3")
    assert run.says() == "up"
    first = psutil.Process(run.greetings(2)["w1"][0])
    first.kill()
    second = run.greetings(1)["w1"][0]
    assert second != first.pid
    assert run.ends() == 0
    (line,) = [line for line in run.err.splitlines() if "process died" in line]
    assert "process died and is started again" in line
    assert "process=w1" in line
    assert f"pid={first.pid}" in line
    assert "how=killed by signal 9" in line.replace("'", "").replace('"', "")


def test_a_worker_that_dies_when_the_run_is_over_is_neither_reported_nor_started_again(launch: Launch) -> None:
    run = launch("--greetings", "2", "--faithful")
    assert run.says() == "up"
    run.greetings(2)
    assert run.ends() == 0
    assert "process died" not in run.err
    assert "Traceback" not in run.err


def test_a_run_whose_workers_all_die_too_often_fails_in_one_line(launch: Launch) -> None:
    run = launch("--workers", "1", "--exit-code", "3")
    assert run.ends() == 1
    assert run.err.count("process died and is started again") == 3
    assert run.err.count("process died too often and is given up") == 1
    assert "Traceback" not in run.err
    assert run.err.splitlines()[-10:] == [
        "orchestra: the run failed: every node was given up; the last, w0: its process exited with code 3, 4 times; "
        f"traceback in {run.run}/logs/root.jsonl",
        "last output of w0:",
        *["    w0 is here", "    and says so"] * 4,
    ]
    assert (run.run / "saved").exists()  # the main actor was stopped in order all the same


def test_a_run_fails_when_fewer_than_the_required_actors_are_left_although_another_process_lives(
    launch: Launch,
) -> None:
    run = launch("--workers", "1", "--exit-code", "3", "--bystanders", "1", "--at-least", "1")
    assert run.ends() == 1
    lines = run.err.splitlines()
    assert lines[lines.index("last output of w0:") - 1] == (
        "orchestra: the run failed: w0/worker is required and lost; w0 was given up: its process exited with code 3, "
        f"4 times; traceback in {run.run}/logs/root.jsonl"
    )
    assert lines[-1] == "    and says so"
    assert (run.run / "saved").exists()
    ending = json.loads((run.run / "summary.json").read_text())
    assert ending["state"] == "failed"
    assert ending["reason"].startswith("w0/worker is required and lost")
    assert ending["resume"] == f"orchestra run --resume {run.run}"


def test_a_main_actor_that_fails_for_good_fails_the_run_in_one_line(launch: Launch) -> None:
    run = launch("--greetings", "2", "--at-end", "fail")
    assert run.ends() == 1
    (line,) = [line for line in run.err.splitlines() if line.startswith("orchestra: ")]
    assert line.startswith("orchestra: the run failed: ")
    assert "ValueError: had enough" in line
    assert "Traceback" not in run.err


def test_when_the_root_is_killed_all_others_end_by_themselves(launch: Launch, listen: str) -> None:
    run = launch("--listen", listen)
    assert run.says() == "up"
    workers = [psutil.Process(pid) for pid, _ in run.greetings(2).values()]
    run.root.kill()
    _, alive = psutil.wait_procs(workers, 10.0)
    assert not alive
    assert "Traceback" not in run.err


def test_when_the_root_is_killed_while_others_start_they_end_too(launch: Launch, listen: str) -> None:
    run = launch("--listen", listen)
    assert run.says() == "up"
    deadline = time.monotonic() + PATIENCE_S
    while not (started := run.root.children()) and time.monotonic() < deadline:
        continue  # being launched in this moment
    run.root.kill()
    _, alive = psutil.wait_procs(started, 10.0)
    assert not alive


@pytest.mark.parametrize(
    ("number", "code", "state", "said"),
    [
        (signal.SIGINT, 130, "interrupted", "stopping: what is queued is handled and saved; again aborts"),
        (signal.SIGTERM, 75, "stopped", "stopping on signal SIGTERM: what is queued is handled and saved"),
        (signal.SIGHUP, 75, "stopped", "stopping on signal SIGHUP: what is queued is handled and saved"),
    ],
)
def test_one_signal_lets_the_main_actor_drain_and_save(
    launch: Launch, number: signal.Signals, code: int, state: str, said: str
) -> None:
    run = launch()
    assert run.says() == "up"
    run.greetings(2)
    os.killpg(run.root.pid, number)  # as a terminal does: to the root and all that share its session
    assert run.says() == "draining"
    assert run.ends() == code
    assert (run.run / "saved").exists()
    assert "did not say what it did" not in run.err  # the workers were still there to be asked
    assert "Traceback" not in run.err
    assert said in run.err
    ending = json.loads((run.run / "summary.json").read_text())
    assert ending == {"state": state, "reason": None, "resume": f"orchestra run --resume {run.run}"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_of_a_scheduler_changes_nothing(launch: Launch, number: signal.Signals) -> None:
    run = launch("--at-end", "hang")
    assert run.says() == "up"
    run.greetings(2)
    run.root.send_signal(number)
    assert run.says() == "draining"
    run.root.send_signal(number)
    with pytest.raises(psutil.TimeoutExpired):
        run.root.wait(0.3)
    run.root.send_signal(signal.SIGINT)
    assert run.ends() == 75  # an aborted run keeps the state in which it was asked to end
    assert json.loads((run.run / "summary.json").read_text())["reason"] == "aborted"


def test_a_run_that_is_stopped_before_it_has_saved_anything_fails(launch: Launch) -> None:
    run = launch("--no-saves")
    assert run.says() == "up"
    run.root.send_signal(signal.SIGTERM)
    assert run.ends() == 1
    assert json.loads((run.run / "summary.json").read_text()) == {"state": "stopped", "reason": None, "resume": None}


def test_a_hangup_is_ignored_under_nohup(launch: Launch) -> None:
    run = launch("--greetings", "2", ignores=signal.SIGHUP)
    assert run.says() == "up"
    for process in [run.root, *run.root.children()]:
        process.send_signal(signal.SIGHUP)
    run.greetings(2)
    assert run.says() == "draining"
    assert run.ends() == 0


def test_a_second_signal_aborts(launch: Launch) -> None:
    run = launch("--at-end", "hang")
    assert run.says() == "up"
    run.greetings(2)
    for _ in range(2):  # at once, as a wrapper does that passes on what the terminal told both: one press
        run.root.send_signal(signal.SIGINT)
    assert run.says() == "draining"
    with pytest.raises(psutil.TimeoutExpired):
        run.root.wait(0.3)
    run.root.send_signal(signal.SIGINT)
    assert run.ends() == 130
    assert not (run.run / "saved").exists()
    assert "Traceback" not in run.err


class SlowToStop(Actor[InterruptMsg]):
    def __init__(self, gate: asyncio.Event) -> None:
        self.gate = gate

    @on(InterruptMsg)
    async def interrupt(self, msg: InterruptMsg) -> None:
        await self.gate.wait()
        self.stop()


@pytest.mark.parametrize(("since_s", "reason"), [(0.05, "stopped"), (0.2, "aborted")])
def test_two_signals_within_a_tenth_of_a_second_are_one_press_of_ctrl_c(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, since_s: float, reason: str
) -> None:
    times = iter([1_000.0, 1_000.0 + since_s])
    monkeypatch.setattr("orchestra.runs.runner.time", SimpleNamespace(monotonic=lambda: next(times)))

    async def main() -> None:
        gate, stopping = asyncio.Event(), Stopping()
        async with Node("here").running() as node:
            node.spawn("main", SlowToStop, gate)
            ending = asyncio.create_task(_until_stopped(node, node.cell("here/main"), stopping))
            await asyncio.sleep(0)
            with stopped_by_signals("here", stopping):
                for _ in range(2):
                    signal.raise_signal(signal.SIGINT)
                for _ in range(10):
                    await asyncio.sleep(0)
            gate.set()
            assert (await ending).reason == reason

    run(main())


@pytest.mark.parametrize(("grace", "aborted_after"), [(120.0, 110.0), (8.0, 4.0)])
def test_a_run_that_has_not_saved_when_its_grace_ends_is_aborted_before_it_is_killed(
    grace: float, aborted_after: float
) -> None:
    async def scenario(sim: Simulation) -> None:
        stopping = Stopping()
        process = sim.node("here")
        await sim.start()
        process.node.spawn("main", SlowToStop, asyncio.Event())
        ending = asyncio.create_task(_until_stopped(process.node, process.node.cell("here/main"), stopping))
        await asyncio.sleep(0)
        with stopped_by_signals("here", stopping, grace):
            since = sim.loop.time()
            signal.raise_signal(signal.SIGTERM)
            ended = await ending
        assert (ended.state, ended.reason) == ("stopped", "aborted")
        assert aborted_after <= sim.loop.time() - since < aborted_after + 1.0

    run_seed(scenario, 1)


def test_a_signal_that_comes_while_another_one_is_handled_is_told_once(run: Callable[..., Any]) -> None:
    told: list[str] = []

    def interrupted(number: int, frame: FrameType | None) -> None:
        os.kill(os.getpid(), signal.SIGINT)  # as when somebody presses Ctrl-C while this process says what it does

    async def main() -> None:
        come = asyncio.Event()

        def tell(reason: str, at: float) -> None:
            told.append(reason)
            come.set()

        before = signal.signal(signal.SIGUSR1, interrupted)
        try:
            with on_signals(tell, signal.SIGINT):
                # By nothing else than the signal shall the loop be woken: the thread lets it fall asleep.
                threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
                await come.wait()
                await asyncio.to_thread(str)  # the loop has looked again for what woke it
        finally:
            signal.signal(signal.SIGUSR1, before)

    run(main())
    assert told == ["signal SIGINT"]


def test_a_run_that_is_interrupted_while_its_workers_start_does_not_wait_for_them(launch: Launch) -> None:
    run = launch()
    assert run.says() == "up"
    run.root.send_signal(signal.SIGINT)
    assert run.ends() == 130
    assert (run.run / "saved").exists()
    assert "did not end in time" not in run.err


def test_a_run_in_one_process_can_be_interrupted_too(launch: Launch) -> None:
    run = launch("--single-process")
    assert run.says() == "up"
    assert {run.says().split()[1] for _ in range(2)} == {str(run.root.pid)}
    run.root.send_signal(signal.SIGINT)
    assert run.ends() == 130
    assert (run.run / "saved").exists()
