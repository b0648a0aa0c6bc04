"""Runs of `orchestra run` over several hosts on one machine, for `hosts.py`: their hosts, and their use of resources.

Hosts are network namespaces with an ssh server each, as in the tests (`tests/support/virtual_network`), which needs
root, or simulated hosts (`--launch local`), which share the network of the machine.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))

from virtual_network import namespaces, ssh_servers  # noqa: E402 (found by the path above)
from virtual_network.namespaces import Host, Network  # noqa: E402 (found by the path above)

STARTING_S = 240.0
"""Default time limit of a wait, in seconds."""
ENDING_S = 60.0
POLL_S = 0.1
QMIX = HERE.parent / "experiments" / "qmix_3m.py"
WORKERS = 4
"""Workers of each host that plays `QMIX`."""
NEVER = 10**9
PLAYING = [
    *("--game-speed", "--workers", str(WORKERS), "--envs-per-worker", "4"),
    *(f"--{flag}={NEVER}" for flag in ("steps", "eval-interval", "checkpoint-interval", "learning-starts")),
]
"""Flags with which `QMIX` only plays, at the speed of the game."""
IDLE = 0.05
"""Largest share of the processors that other programs may use on an idle machine."""
LOOK_S = 2.0
"""Seconds over which the use of the processors by other programs is measured."""
Record = dict[str, Any]


def used_by_others() -> float:
    """Return the used part of all processors while this program only waits, from 0 to 1."""
    return float(psutil.cpu_percent(LOOK_S)) / 100


def judged(holds: bool, others: float) -> str:
    """Return the verdict on a target, with a warning if other programs used more than `IDLE`."""
    return ("holds" if holds else "missed") + ("" if others <= IDLE else f", NOT IDLE: others used {others:.0%}")


def why_no_networks() -> str:
    """Return why this machine cannot have hosts as network namespaces; empty if it can."""
    return namespaces.why_unavailable() or ssh_servers.why_unavailable()


@dataclass(slots=True)
class Place:
    """The hosts of a run.

    Attributes:
        flags: flags of `orchestra run` that name the hosts.
        prefix: words before a command that runs beside the head.
        hosts: the namespaces of the hosts, in the order of their slots; none for simulated hosts.
        scratch: folder for the files of all hosts; it keeps compiled code for later runs.
    """

    flags: list[str]
    scratch: Path
    prefix: list[str] = field(default_factory=list)
    head: Host | None = None
    hosts: list[Host] = field(default_factory=list)
    servers: list[int] = field(default_factory=list)


Places = Callable[..., AbstractContextManager[Place]]
"""`simulated` or `networked`."""


@contextmanager
def simulated(count: int, scratch: Path) -> Iterator[Place]:
    """Yield a place with `count` simulated hosts."""
    yield Place(["--launch", "local", "--hosts", str(count), "--scratch", str(scratch)], scratch)


@contextmanager
def networked(count: int, scratch: Path, *, delay_ms: float = 0.0, mbit: float = 0.0) -> Iterator[Place]:
    """Yield a place with `count` namespaces beside the head's; links may have a delay and a limited rate."""
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with ExitStack() as stack:
        keys = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        network = stack.enter_context(Network(count + 1, delay_ms, mbit))
        servers = stack.enter_context(ssh_servers.SshServers(keys, network.hosts[1:], environment))
        head, *hosts = network.hosts
        flags = ["--hosts", ",".join(host.name for host in hosts), "--ssh", servers.client, "--scratch", str(scratch)]
        flags += ["--python", sys.executable, "--listen", f"tcp://{head.address}:0", "--tls", "off"]
        yield Place(flags, scratch, head.command(), head, hosts, [servers.pid(host) for host in hosts])


class HostedRun:
    """A run over hosts, under way."""

    def __init__(self, place: Place, process: psutil.Popen, folder: Path, output: Path) -> None:
        self.place, self.process, self._folder, self._output = place, process, folder, output
        self.notes_folder = folder / "notes"

    @property
    def directory(self) -> Path:
        """The run directory."""
        (path,) = self._folder.glob("runs/*/*")
        return path

    def records(self) -> list[Record]:
        """Return the records of its metrics so far."""
        return _lines(self._folder.glob("runs/*/*/metrics.jsonl"))

    def log(self, event: str) -> list[Record]:
        """Return the lines of the head's log that report an event."""
        return [line for line in _lines(self._folder.glob("runs/*/*/logs/learner.jsonl")) if line["event"] == event]

    def notes(self, who: str, event: str) -> list[Record]:
        """Return the notes on `event` by actors of `hosts_load.py` whose node name matches the pattern `who`."""
        lines = []
        for path in sorted(self.notes_folder.glob(f"{who}.jsonl")):
            lines += [{**line, "node": path.stem} for line in _lines([path]) if line["event"] == event]
        return lines

    def host_events(self) -> list[Record]:
        """Return the events of `hosts.json`."""
        path = self.directory / "hosts.json"
        return list(json.loads(path.read_text())["events"]) if path.exists() else []

    def until(self, condition: Callable[[], Any], what: str, seconds: float = STARTING_S) -> None:
        """Wait until `condition` holds.

        Raises:
            SystemExit: the run has ended, or the wait takes longer than `seconds`.
        """
        end = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None:
                sys.exit(f"waiting for {what}: the run ended with {self.process.returncode}:\n{self.output}")
            if time.monotonic() > end:
                sys.exit(f"waited {seconds:g} s for {what}:\n{self.output}")
            time.sleep(POLL_S)

    @property
    def output(self) -> str:
        """The last 3,000 characters that the run has printed."""
        return self._output.read_text()[-3000:]

    def ps(self) -> Record:
        """Return the output of `orchestra ps --json` for the run."""
        command = [*self.place.prefix, sys.executable, "-m", "orchestra", "ps", "--json", str(self.directory)]
        said: Record = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        return said

    def links(self) -> dict[str, Record]:
        """Return the head's links to agents and proxies, by the name of the peer's node."""
        (head,) = [node for node in self.ps()["nodes"] if node["node"] == "learner"]
        return {link["peer"]: link for link in head["links"] if link["peer"].startswith(("agent-", "host-"))}

    def agents(self) -> list[psutil.Process]:
        """Return the processes of the agents."""
        return [process for process in self.processes() if {"host", "--token"} <= set(_words(process))]

    def processes(self) -> list[psutil.Process]:
        """Return all processes of the run."""
        if not self.place.hosts:
            return [self.process, *self.process.children(recursive=True)]
        assert self.place.head is not None
        pids = {pid for host in (self.place.head, *self.place.hosts) for pid in host.pids()}
        found = []
        for pid in pids - set(self.place.servers):
            try:
                found.append(psutil.Process(pid))
            except psutil.NoSuchProcess:
                continue
        return found

    def processor_s(self) -> float:
        """Return the processor seconds of all its processes so far."""
        return sum(map(seconds_of, self.processes()))

    def stop(self) -> None:
        """End the run and all its processes."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(ENDING_S)
        except psutil.TimeoutExpired:
            for process in self.processes():
                process.kill()
            self.process.wait()


@contextmanager
def hosted(place: Place, experiment: Path, *flags: str, notes: bool = False) -> Iterator[HostedRun]:
    """Run an experiment at a place, with a flag for its folder of `notes` if it has one; stop it at the end."""
    with tempfile.TemporaryDirectory() as name:
        folder, output = Path(name), Path(name) / "output.txt"
        (folder / "notes").mkdir()
        words = [str(experiment), *place.flags, "--runs-dir", str(folder / "runs"), *flags]
        words += ["--notes", str(folder / "notes")] if notes else []
        with output.open("wb") as stream:
            process = psutil.Popen(
                [*place.prefix, sys.executable, "-m", "orchestra", "run", *words],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        run = HostedRun(place, process, folder, output)
        try:
            yield run
        finally:
            run.stop()


def seconds_of(process: psutil.Process) -> float:
    """Return the processor seconds of a process so far; 0 if it has ended."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def _words(process: psutil.Process) -> Sequence[str]:
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return ()


def _lines(paths: Any) -> list[Record]:
    """Return the JSON lines of files, without a line that is still being written."""
    return [json.loads(line) for path in paths for line in path.read_text().split("\n")[:-1]]
