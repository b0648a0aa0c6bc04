"""One process at a time runs in a run directory, and a process that died does not keep others out."""

import errno
import fcntl
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import orchestra
from orchestra.clock import RealClock
from orchestra.errors import CannotWrite, UsageError
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.run_lock import Holder, holder_of, locked

HOLD = """
import sys
from pathlib import Path

from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.run_lock import locked

with locked(RunDirectory(Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""
EXPERIMENT = """
from orchestra import Actor, Message, Topology


class NoMsg(Message):
    pass


class Boss(Actor[NoMsg]):
    async def started(self):
        (self.run_directory / "state" / "first").mkdir(parents=True, exist_ok=True)
        self.stop()

    @orchestra.on(NoMsg)
    def nothing(self, msg: NoMsg) -> None: ...


def experiment(*, steps: int = 1):
    topology = Topology("short")
    topology.until(topology.node("root").spawn("boss", Boss))
    return topology
""".replace("from orchestra", "import orchestra\nfrom orchestra", 1)


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "runs", "short", 0, clock=RealClock())


def holding(run: RunDirectory) -> subprocess.Popen[str]:
    """Start a process that holds the lock until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_lock_names_its_holder_and_is_gone_afterwards(directory: RunDirectory) -> None:
    with locked(directory):
        assert holder_of(directory) == Holder(platform.node(), os.getpid())
        with (
            pytest.raises(UsageError, match=f"process {os.getpid()} on {platform.node()} runs in "),
            locked(directory),
        ):
            pytest.fail("two hold the lock")
        assert holder_of(directory) == Holder(platform.node(), os.getpid())
    assert not directory.lock.exists()
    with locked(directory) as stale:
        assert stale is None


def test_a_run_that_goes_on_cannot_be_resumed_and_nothing_of_it_is_changed(tmp_path: Path) -> None:
    file = tmp_path / "short.py"
    file.write_text(EXPERIMENT)
    run = orchestra.run(file, quiet=True, single_process=True, runs_dir=tmp_path / "runs").directory
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    process = holding(run)
    with process:
        with pytest.raises(UsageError, match=rf"^process {process.pid} on .* runs in '.*' \(see lock.json\); wait for"):
            orchestra.run(resume=run.path, quiet=True, single_process=True, steps=2)
        assert before == {path: path.read_bytes() for path in before}
        process.communicate()
    run.lock.write_text(json.dumps({"host": platform.node(), "pid": process.pid}))
    assert orchestra.run(resume=run.path, quiet=True, single_process=True, steps=2).completed
    lines = [json.loads(line) for line in (run.logs / "root.jsonl").read_text().splitlines()]
    assert [line["pid"] for line in lines if line["event"] == "a stale lock is taken over"] == [process.pid]


def test_the_lock_of_a_killed_process_is_taken_over(directory: RunDirectory) -> None:
    with holding(directory) as process:
        process.kill()
        process.wait()
    assert holder_of(directory) == Holder(platform.node(), process.pid)
    with locked(directory) as stale:
        assert stale == Holder(platform.node(), process.pid)
        assert holder_of(directory) == Holder(platform.node(), os.getpid())


def test_a_run_directory_whose_lock_cannot_be_written_is_named(directory: RunDirectory) -> None:
    directory.lock.mkdir()  # what nobody may write, root included
    said = rf"^cannot lock the run: '{directory.lock}': Is a directory$"
    with pytest.raises(CannotWrite, match=said), locked(directory):
        pass


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "x"}'])
def test_a_damaged_lock_file_that_nobody_holds_keeps_nobody_out(directory: RunDirectory, content: str) -> None:
    directory.lock.write_text(content)
    with locked(directory):
        assert holder_of(directory) == Holder(platform.node(), os.getpid())


@pytest.mark.parametrize(("host", "refused"), [("elsewhere", True), ("here", False)])
def test_without_locks_of_the_file_system_only_a_process_known_to_be_dead_is_replaced(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, host: str, refused: bool
) -> None:
    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    monkeypatch.setattr(fcntl, "flock", no_locks)
    name = platform.node() if host == "here" else host
    directory.lock.write_text(json.dumps({"host": name, "pid": gone.pid}))
    if refused:
        with pytest.raises(UsageError, match=f"process {gone.pid} on elsewhere runs in"), locked(directory):
            pytest.fail("two hold the lock")
    else:
        with locked(directory):
            assert holder_of(directory) == Holder(platform.node(), os.getpid())
