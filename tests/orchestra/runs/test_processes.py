"""The processes of a run that are no nodes at all: they die, leave files behind, or cannot be started."""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from orchestra import Node, Restart
from orchestra.hosts.run_plan import RunPlan
from orchestra.runs.processes import ActorsLost, RunProcesses

Run = Callable[..., Any]

DIES = """
import os, signal, socket, sys
socket.socket(socket.AF_UNIX).bind(sys.argv[1].removeprefix("unix://"))
os.kill(os.getpid(), signal.SIGKILL)
"""
LIVES = """
import signal, socket, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
socket.socket(socket.AF_UNIX).bind(sys.argv[1].removeprefix("unix://"))
signal.pause()
"""


MOST_STARTS = 3
_starts: Counter[tuple[Path, str]] = Counter()


class Counted(RunPlan):
    """Fails a run that starts a node more often than any test wants."""

    def command(self, node: str, listen: str, *, again: bool = False) -> list[str]:
        _starts[self.run_directory, node] += 1
        assert _starts[self.run_directory, node] <= MOST_STARTS, f"{node} is started again and again"
        return self.words(listen)

    def words(self, listen: str) -> list[str]:
        raise NotImplementedError


PATIENT = """
import signal, socket, sys
socket.socket(socket.AF_UNIX).bind(sys.argv[1].removeprefix("unix://"))
signal.pause()
"""


class Scripted(Counted):
    """Starts a short program instead of a node."""

    program = ""

    def words(self, listen: str) -> list[str]:
        return [sys.executable, "-S", "-c", self.program, listen]


class Dying(Scripted):
    program = DIES


class Stubborn(Scripted):
    program = LIVES


class Patient(Scripted):
    program = PATIENT


class Absent(Counted):
    def words(self, listen: str) -> list[str]:
        return ["/no/such/program"]


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until `condition` holds."""
    for _ in range(1_000_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def launched(kind: type[RunPlan], address: str, folder: Path) -> tuple[Node, Callable[[], RunProcesses]]:
    node = Node("root", listen=address)
    launch = kind(Path("experiment.py"), [], 0, folder)
    return node, lambda: RunProcesses(node, launch, ["one", "two"], Restart(limit=1, within=60, backoff=0))


@pytest.mark.parametrize(
    ("kind", "how"),
    [(Dying, "killed by signal 9"), (Absent, "could not be started: No such file or directory")],
)
def test_a_process_that_dies_too_often_is_given_up_and_leaves_no_file(
    run: Run, sockets: Path, kind: type[RunPlan], how: str
) -> None:
    async def main() -> None:
        node, make = launched(kind, f"unix://{sockets}/root", sockets)
        with pytest.raises(ExceptionGroup) as caught:
            async with node.running():
                processes = make()
                try:
                    await processes.run()  # until the loss of the last one fails this node
                finally:
                    assert [(one.running, one.restarts, one.given_up) for one in processes.statistics()] == [
                        (False, 1, True)
                    ] * 2
                    assert files(sockets) == {"root"}
        (error,) = caught.value.exceptions
        assert isinstance(error, ActorsLost)
        assert str(error).startswith("every node was given up; the last, ")
        assert str(error).endswith(f"its process {how}, 2 times")

    run(main())


def test_a_process_that_has_not_joined_yet_is_terminated_at_once(run: Run, sockets: Path) -> None:
    async def main() -> None:
        node, make = launched(Patient, f"unix://{sockets}/root", sockets)
        async with node.running():
            processes = make()
            keeping = asyncio.create_task(processes.run())
            await until(lambda: files(sockets) == {"root", "root.one", "root.two"})
            with capture_logs() as logs:
                await processes.stop([], deadline=5.0)
            assert [line["event"] for line in logs if line["log_level"] == "warning"] == []
            assert [one.running for one in processes.statistics()] == [False, False]
            await keeping

    run(main())


def test_a_process_that_ignores_all_requests_is_killed_and_leaves_no_file(run: Run, sockets: Path) -> None:
    async def main() -> None:
        node, make = launched(Stubborn, f"unix://{sockets}/root", sockets)
        async with node.running():
            processes = make()
            keeping = asyncio.create_task(processes.run())
            await until(lambda: files(sockets) == {"root", "root.one", "root.two"})
            await processes.stop(["one", "two"], deadline=0.05)
            assert [one.running for one in processes.statistics()] == [False, False]
            assert files(sockets) == {"root"}
            await keeping

    run(main())
