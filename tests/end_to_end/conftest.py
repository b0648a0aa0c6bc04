"""Real processes: started in a folder of their own, awaited by what they write, and gone when the test ends."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from virtual_network.namespaces import Host, Network, until
from virtual_network.ssh_servers import SshServers

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENT = ROOT / "experiments" / "qmix_8m.py"
PATIENCE_S = 90.0
QUICK: list[str] = [
    *("--scenario", "3m", "--steps", "600", "--envs-per-worker", "4", "--learning-starts", "8", "--batch-size", "4"),
    *("--updates-per-episode", "0.5", "--hidden-size", "8", "--eval-interval", "300", "--eval-episodes", "2"),
    *("--epsilon-steps", "1000", "--target-update-interval", "10", "--final-eval-episodes", "20"),
]


ALL_PLAY = """
import asyncio, sys
from collections import Counter
from pathlib import Path
from orchestra.monitoring.observer import connected
from orchestra.runs import join_file
from orchestra.runs.run_directory import RunDirectory

def played(node):
    counts = Counter()
    for flow in node.message_counts:
        counts[flow.sender.partition("/")[0]] += flow.count if flow.type == "InsertTransitionMsg" else 0
    return counts

async def main(run, *nodes):
    info = join_file.find(RunDirectory.open(Path(run)))
    async with connected(info, answer_s=20.0) as observer:
        first, waiting = {}, set(nodes)
        while waiting:
            for name, node in (await observer.status()).answered.items():  # where it is handled, it is counted
                counts, before = played(node), first.setdefault(name, played(node))
                waiting -= {each for each in waiting if counts[each] > before[each]}
            await asyncio.sleep(0.1)

asyncio.run(main(*sys.argv[1:]))
"""
"""Waits until each of some nodes of a run has handed over experience, after this script had begun."""


class Launched:
    """An `orchestra` process, and those that it launched."""

    def __init__(self, folder: Path, program: list[str], words: list[str], environment: dict[str, str]) -> None:
        self.folder = folder
        self._out, self._err = (tempfile.TemporaryFile("w+") for _ in range(2))  # noqa: SIM115 (closed by `close`)
        self._since = time.monotonic()
        self.patience_s = PATIENCE_S
        """Seconds from its start within which whatever is waited for must have happened."""
        self.process = psutil.Popen(
            [*program, *words],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", **environment},
            start_new_session=True,
        )
        self._launched: set[psutil.Process] = set()

    @property
    def out(self) -> str:
        return self._read(self._out)

    @property
    def err(self) -> str:
        return self._read(self._err)

    @staticmethod
    def _read(file: Any) -> str:
        file.seek(0)
        return str(file.read())

    @property
    def run(self) -> Path:
        (path,) = self.folder.glob("runs/*/*")
        return path

    def log(self, node: str = "learner") -> list[dict[str, Any]]:
        """What `node` has logged so far, a line that is being written left out."""
        files = list(self.folder.glob(f"runs/*/*/logs/{node}.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().split("\n")[:-1]]

    def records(self) -> list[dict[str, Any]]:
        files = list(self.folder.glob("runs/*/*/metrics.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().split("\n")[:-1]]

    def json(self, name: str) -> Any:
        return json.loads((self.run / name).read_text())

    def pid(self, node: str) -> int:
        """The process of `node` that was started last."""
        lines = self.log()
        return int([line for line in lines if line.get("process") == node and "pid" in line][-1]["pid"])

    def until(self, condition: Callable[[], Any]) -> None:
        """Wait until `condition` holds; fail if the process ends, or takes too long, before it does."""
        while not condition():
            self.look_for_children()
            try:
                self.process.wait(0.05)
            except psutil.TimeoutExpired:
                assert time.monotonic() - self._since < self.patience_s, self.story("took too long")
            else:
                assert condition(), self.story("ended before what was waited for")
                return

    def until_connected(self, *nodes: str) -> None:
        self.until(lambda: {line.get("peer") for line in self.log() if line["event"] == "connected"} >= set(nodes))

    def until_playing(self) -> None:
        self.until(lambda: any(record["env_steps"] for record in self.records()))

    def until_workers(self, number: int, *, after: int = 0) -> None:
        """Wait until the newest record, of those after the first `after`, counts so many workers."""
        self.until(lambda: (records := self.records()[after:]) and records[-1]["workers"] == number)

    def ends(self) -> int:
        """Wait for its end, and return the exit code."""
        self.look_for_children()
        try:
            code = self.process.wait(self.patience_s)
        except psutil.TimeoutExpired:
            pytest.fail(self.story("did not end"))
        assert not self.left_over(5), self.story("left processes behind")
        return int(code)

    def look_for_children(self) -> set[psutil.Process]:
        try:
            self._launched |= set(self.process.children(recursive=True))
        except psutil.NoSuchProcess:
            return self._launched
        return self._launched

    def left_over(self, seconds: float) -> list[psutil.Process]:
        """What it launched and what still lives after so many seconds."""
        _, alive = psutil.wait_procs(self._launched, timeout=seconds)
        return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]

    def close(self) -> None:
        for process in [self.process, *self.look_for_children()]:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait(10)
        self._out.close()
        self._err.close()

    def story(self, what: str) -> str:
        logs = "".join(
            f"\n--- {path.name}\n{path.read_text()[-3000:]}" for path in self.folder.glob("runs/*/*/logs/*.jsonl")
        )
        return f"{self.process.args} {what}\n--- stdout\n{self.out}\n--- stderr\n{self.err}{logs}"


class Launcher:
    """Starts processes in one folder, and sees to their end."""

    experiment = EXPERIMENT
    quick = QUICK

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prefix: list[str] = []
        """The beginning of each command line: a program that becomes the rest of it, in another network."""
        self._started: list[Launched] = []

    def __call__(self, *flags: str, experiment: Path = EXPERIMENT) -> Launched:
        """Run a quick experiment; later flags win."""
        return self.command("run", experiment, *QUICK, *flags)

    def until_all_play(self, launched: Launched, *nodes: str) -> None:
        """Wait until each of `nodes`, workers or proxies, has handed over more experience, however slow it is."""
        watching = self.python(ALL_PLAY, launched.run, *nodes)
        launched.until(lambda: watching.process.poll() is not None)
        assert watching.ends() == 0, watching.story("could not look into the run")

    def command(self, *words: str | Path, **environment: str) -> Launched:
        """Carry out `orchestra ...`."""
        return self._start([sys.executable, "-m", "orchestra"], words, environment)

    def program(self, path: Path, *words: str | Path, **environment: str) -> Launched:
        """Carry out another program."""
        return self._start([str(path)], words, environment)

    def python(self, code: str, *words: str | Path, **environment: str) -> Launched:
        """Carry out a script."""
        return self._start([sys.executable, "-c", code], words, environment)

    def _start(self, program: list[str], words: tuple[str | Path, ...], environment: dict[str, str]) -> Launched:
        self._started.append(
            Launched(self.folder, [*self.prefix, *program], [str(word) for word in words], environment)
        )
        return self._started[-1]

    def close(self) -> None:
        for launched in self._started:
            launched.close()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


@pytest.fixture(scope="session")
def networked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """A whole run over TCP: a learner, a proxy and two workers, sampling by priority."""
    launcher = Launcher(tmp_path_factory.mktemp("networked"))
    try:
        launched = launcher(
            *("--workers", "2", "--steps", "5000", "--prioritized", "--seed", "3", "--checkpoint-interval", "400")
        )
        code = launched.ends()
        assert code == 0, launched.story("failed")
        yield launched
    finally:
        launcher.close()


@pytest.fixture
def roles() -> Callable[[Launched], set[tuple[str, str, str]]]:
    """Every (from-role, type, to-role) of a run: of an address, the actor without its node."""

    def of(launched: Launched) -> set[tuple[str, str, str]]:
        return {
            (row["sender"].partition("/")[2], row["type"], row["recipient"].partition("/")[2])
            for row in launched.json("message_counts.json")
            if row["count"] > 0
        }

    return of


@pytest.fixture(scope="session")
def recorded_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a run of four processes, of which every message was recorded."""
    launcher = Launcher(tmp_path_factory.mktemp("recorded"))
    try:
        launched = launcher(
            *("--workers", "2", "--steps", "4000", "--prioritized", "--seed", "4", "--checkpoint-interval", "500"),
            *("--updates-per-episode", "1", "--trace", "full"),
        )
        assert launched.ends() == 0, launched.story("failed")
        yield launched.run
    finally:
        launcher.close()


class HostsLab:
    """Three hosts that ssh reaches, each in a network namespace, and what starts runs on the first."""

    def __init__(self, launch: "Launcher", network: Network, servers: SshServers, scratch: Path) -> None:
        self.network, self.servers, self.scratch = network, servers, scratch
        self._launch = launch
        launch.prefix = network[1].command()

    def run(self, *flags: str, hosts: str = "cpu2,cpu3", listen: str = "tcp://10.231.0.1:0") -> "Launched":
        launched = self._launch(
            *("--hosts", hosts, "--ssh", self.servers.client, "--workers", "1", "--scratch", str(self.scratch)),
            *(("--listen", listen, "--tls", "off") if listen else ()),
            *flags,
        )
        launched.patience_s = 240.0
        return launched

    def processes(self, host: Host) -> dict[str, psutil.Process]:
        """The processes of a host by the words that tell them apart: `agent`, or the name of a node."""
        found = {}
        for pid in host.pids():
            try:
                words = " ".join(psutil.Process(pid).cmdline()).split()
            except psutil.NoSuchProcess:
                continue
            if "orchestra" in words and "host" in words:
                found["agent"] = psutil.Process(pid)
            elif "node" in words:
                found[words[words.index("node") + 1]] = psutil.Process(pid)
        return found

    def ssh_of(self, name: str) -> psutil.Process:
        """The `ssh` on the head's host that leads to a host."""
        for pid in self.network[1].pids():
            process = psutil.Process(pid)
            if process.name() == "ssh" and name in process.cmdline():
                return process
        raise AssertionError(f"there is no ssh to {name}")

    def until_all_play(self, launched: "Launched", *nodes: str) -> None:
        """Wait until each of `nodes` has handed over more experience."""
        self._launch.until_all_play(launched, *nodes)

    def left(self) -> list[str]:
        """What the hosts have beside their ssh servers and the code for later runs: processes, folders, sockets."""
        found = []
        for host in self.network.hosts:
            for pid in set(host.pids()) - {self.servers.pid(host)}:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process = psutil.Process(pid)
                    found.append(f"{host.name}: {pid} {process.status()} {' '.join(process.cmdline())[:300]}")
        return found + [str(path) for path in self.scratch.glob("*/*") if path.name != "code"]

    def until_nothing_is_left(self, seconds: float) -> None:
        """Wait until `left` is empty; fail after so many seconds, with what it says."""
        until(lambda: not self.left(), seconds, lambda: "these are left:\n" + "\n".join(self.left()))


@pytest.fixture(scope="session")
def scratch_of_hosts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the files of all hosts, which keep the code of a run there: it is compiled once, for all tests."""
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture
def lab(launch: Launcher, virtual_network: None, tmp_path: Path, scratch_of_hosts: Path) -> Iterator[HostsLab]:
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with Network(3) as network, SshServers(tmp_path / "ssh", network.hosts, environment) as servers:
        yield HostsLab(launch, network, servers, scratch_of_hosts)
