"""What every test may use."""

import asyncio
import gc
import itertools
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from virtual_network import namespaces, ssh_servers

from orchestra.runs.runner import run_loop

# On one's own machine each run tries something new; CI tries the same each time, so that it fails for what changed.
settings.register_profile("ci", derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# Tests run side by side: a pool of threads in each of them, as wide as the machine, would only be in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# In the background of a script and under nohup these are ignored, which processes that tests start would inherit.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, lambda *_: None)):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _handler)

NOT_TESTED = "NOT TESTED HERE"
"""Begins the reason of a test that is skipped because the machine lacks what it needs."""
PATIENCE_S = 30.0
"""A coroutine that takes longer hangs, and fails."""

_numbers = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def _garbage_is_found_quickly() -> None:
    gc.collect()
    gc.freeze()  # what was imported, and what earlier files left, stays: a collection after each coroutine skips it


@pytest.fixture(scope="session", autouse=True)
def _disks_are_not_waited_for() -> Iterator[None]:
    """No test loses its power, and thousands of small files would each wait for the disk. Other processes do wait."""
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _kernels_are_compiled() -> None:
    """Their first use on a machine takes long and shows its progress on stderr, where tests look for something else."""
    from components.envs import Skirmish
    from components.policies import kernel
    from components.policies.kernel import acting
    from components.sparse import loops

    Skirmish("3m", 1).prepare()
    loops()
    kernel.prepare()
    acting.prepare()


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Run a coroutine on the event loop that orchestra itself runs on, and see that it leaves nothing behind."""
    return lambda main: run_loop(_tidily(main))


async def _tidily(main: Coroutine[Any, Any, Any]) -> Any:
    unheard: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unheard.append(context))
    async with asyncio.timeout(PATIENCE_S):
        result = await main
    for _ in range(3):  # what was cancelled or closed ends in the next turns of the loop
        await asyncio.sleep(0)
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not left, f"tasks were left behind: {left}"
    gc.collect()  # an exception that nobody looked at is reported when its future goes
    assert not unheard, f"nobody handled: {unheard}"
    return result


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder whose path is short enough for the sockets in it, and that they are gone from when the test ends."""
    with tempfile.TemporaryDirectory(prefix="o") as folder:
        yield Path(folder)
        left = [path.name for path in Path(folder).iterdir() if path.is_socket()]
        assert not left, f"socket files were left behind: {left}"


@pytest.fixture
def address_of(sockets: Path) -> Callable[[str], str]:
    """Return a function from a scheme to an address to listen at that nobody else has."""

    def free(scheme: str) -> str:
        number = next(_numbers)
        return {"memory": f"memory://{number}", "tcp": "tcp://127.0.0.1:0", "unix": f"unix://{sockets}/{number}"}[
            scheme
        ]

    return free


@pytest.fixture
def virtual_network() -> None:
    """Skip the test, aloud, where the machine cannot have hosts that are network namespaces, with a ssh server each."""
    if reason := namespaces.why_unavailable() or ssh_servers.why_unavailable():
        pytest.skip(f"{NOT_TESTED}: {reason}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was not tested and why, which pytest itself only does on request."""
    reasons = [str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", [])]
    lacking = Counter(reason.removeprefix("Skipped: ") for reason in reasons if NOT_TESTED in reason)
    for reason, count in lacking.items():
        terminalreporter.write_line(f"{reason} ({count} tests)", yellow=True, bold=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the files that take longest come first: no process of xdist is busy with one when all others are done.

    Leave out the tests that take minutes, unless they are asked for.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow") or item.path.parent.name == "tests"}
    items.sort(key=lambda item: ("end_to_end" not in item.path.parts, item.path not in slow))
    if not int(os.environ.get("ORCHESTRA_FAULTS", "0")):
        left_out = pytest.mark.skip(reason="takes minutes: ORCHESTRA_FAULTS=20 includes it")
        for item in items:
            if item.get_closest_marker("minutes") is not None:
                item.add_marker(left_out)
