"""Runs over agents on this machine, for tests of what fails."""

import os
import signal
from pathlib import Path
from typing import Any

import psutil

LONG = ("--steps", "1000000000")


class Hosted:
    """A run over agents on this machine."""

    def __init__(self, launch: Any, *flags: str, hosts: int = 2, scratch: Path | None = None, **more: Any) -> None:
        self.launch = launch
        self.scratch = scratch or Path(launch.folder) / "scratch"
        self.scratch.mkdir(exist_ok=True)
        words = ("--launch", "local", "--hosts", str(hosts), "--scratch", str(self.scratch), "--workers", "1")
        self.run = launch(*words, "--code", "installed", *flags, **more)
        self.run.patience_s = 300.0

    def agents(self) -> dict[int, psutil.Process]:
        """The agents by slot."""
        found = {}
        for process in self.run.process.children():
            words = process.cmdline()
            if "host" in words and "--slot" in words:
                found[int(words[words.index("--slot") + 1])] = process
        return found

    def processes(self, slot: int) -> dict[str, psutil.Process]:
        """The processes of the nodes of a host, by node."""
        found = {}
        for process in self.agents()[slot].children(recursive=True):
            try:
                words = " ".join(process.cmdline()).split()
            except psutil.Error:
                continue
            if "node" in words:
                found[words[words.index("node") + 1]] = process
        return found

    def until_all_run(self, *slots: int) -> None:
        for slot in slots:
            self.run.until(lambda slot=slot: sorted(self.processes(slot)) == [f"host-{slot}", f"worker-{slot}-0"])

    def until_workers(self, number: int) -> None:
        self.run.until_workers(number)

    def goes_on(self, steps: int = 1000) -> None:
        before = self.run.records()[-1]["env_steps"]
        self.run.until(lambda: self.run.records()[-1]["env_steps"] > before + steps)

    def events(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.run.log() if line["event"] == event]

    def until_said(self, node: str, what: str, times: int = 1) -> None:
        """Wait for so many lines of the hosts' logs."""

        def lines() -> list[str]:
            logs = [path.read_text() for path in (self.run.run / "logs" / "hosts").glob("*.log")]
            return [line for log in logs for line in log.splitlines() if node in line and what in line]

        self.run.until(lambda: len(lines()) >= times)

    def interrupted(self) -> None:
        """End the run in order, and check that nothing is left of it."""
        self.run.process.send_signal(signal.SIGINT)
        assert self.run.ends() == 130, self.run.story("ended in another way")
        assert self.left() == []

    def left(self) -> list[Path]:
        """Sockets and folders of agents, but for the unpacked code that later runs share."""
        return [path for path in self.scratch.rglob("*") if "code" not in path.parts[len(self.scratch.parts) :][:2]][1:]


def lives(process: psutil.Process) -> bool:
    """Return whether a process has not ended. One that nobody has waited for yet has."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def crowded() -> float:
    """Return how many processes want each processor of this machine, at least 1: all of it goes slower by so much."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
