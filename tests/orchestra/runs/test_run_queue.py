"""A queue works through its runs, several at a time on cores of their own; none is repeated, and each can go on."""

import asyncio
import io
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from orchestra import QueueStopped, UsageError
from orchestra.cli.exit_codes import STOPPED, of_error
from orchestra.runs.queue_table import (
    QueueDisplay,
    queue_seconds_left,
    queue_table,
    seconds_left,
    summary,
    work_through,
)
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.run_lock import locked
from orchestra.runs.run_queue import QueuedRun, RunQueue

STAND_IN = '''
"""What `orchestra run WORD… --as NAME --runs-dir DIR` leaves behind. WORDS say what it does, one after the other."""
import json, os, signal, sys, time
from pathlib import Path

*words, _, name, _, runs_dir = sys.argv[1:]
run = Path(runs_dir) / "thing" / name
run.mkdir(parents=True, exist_ok=True)
(run / "config.json").write_text("{}")
ending = run / "summary.json"
ending.unlink(missing_ok=True)
with (run / "starts").open("a") as starts:
    starts.write(json.dumps([words, sorted(os.sched_getaffinity(0)), "state" in os.listdir(run)]) + "\\n")

def stopped(*_):
    (run / "state").mkdir(exist_ok=True)
    ending.write_text('{"state": "stopped"}')
    sys.exit(75)

signal.signal(signal.SIGTERM, stopped)
for word in words:
    print("does", word, flush=True)
    if word.startswith("steps="):
        record = {"env_steps": int(word[6:]), "goal_steps": 100, "test_win_rate": 0.5, "test_return": 7.0}
        (run / "metrics.jsonl").write_text(json.dumps(record) + "\\n")
    if word == "fail":
        ending.write_text('{"state": "failed"}')
        sys.exit(1)
    if word == "hang-once" and not (run / "state").exists():
        while True:
            time.sleep(0.01)  # a signal that comes just before `signal.pause` would be missed
    if word.startswith("meet="):
        (run / "here").touch()
        while not (run.parent / word[5:] / "here").exists():
            time.sleep(0.01)
    if word.startswith("--hosts="):
        place = run.parent.parent / word.partition("=")[2]
        place.mkdir()  # fails if another run is there
        (run.parent.parent / "used").open("a").write(place.name)
        place.rmdir()
ending.write_text('{"state": "done"}')
'''


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def queue_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunQueue]:
    monkeypatch.setattr("orchestra.runs.run_queue.TICK_S", 0.01)  # seconds
    program = tmp_path / "stand_in.py"
    program.write_text(STAND_IN)

    def made(*runs: QueuedRun, parallel: int = 1, **options: object) -> RunQueue:
        command = (sys.executable, "-S", str(program))
        queue = RunQueue(tmp_path / "queue", parallel=parallel, command=command, **options)  # type: ignore[arg-type]  # options of the test
        for run in runs:
            queue.add(run)
        return queue

    return made


def starts(queue: RunQueue, name: str) -> list[list[object]]:
    run = queue.directory(name)
    return [] if run is None else [json.loads(line) for line in (run.path / "starts").read_text().splitlines()]


def work(queue: RunQueue) -> None:
    asyncio.run(queue.work())


def states(queue: RunQueue) -> list[str]:
    return [entry.state for entry in queue.entries.values()]


QueueOf = Callable[..., RunQueue]


def test_runs_at_a_time_have_shares_of_their_own_which_are_no_reason_to_repeat_a_run(queue_of: QueueOf) -> None:
    runs = [QueuedRun("one", ["meet=two"]), QueuedRun("two", ["meet=one"]), *(QueuedRun(x, []) for x in "cdefgh")]
    queue = queue_of(*runs, parallel=2, shares=[["--hosts=a"], ["--hosts=b"]])
    work(queue)
    assert states(queue) == ["done"] * 8
    used = (queue.runs_dir / "used").read_text()
    assert set(used) == {"a", "b"}
    assert len(used) == 8
    again = queue_of(*runs, parallel=1, shares=[["--hosts=c"]])
    assert states(again) == ["done"] * 8
    with pytest.raises(UsageError, match="--parallel: 3 is not allowed: there is room for 2 runs at a time"):
        queue_of(parallel=3, shares=[["--hosts=a"], ["--hosts=b"]])


def test_a_run_that_is_done_is_not_repeated_and_one_that_failed_is(queue_of: QueueOf) -> None:
    runs = QueuedRun("a", ["x"]), QueuedRun("b", ["fail"]), QueuedRun("c", [])
    queue = queue_of(*runs)
    work(queue)
    assert states(queue) == ["done", "failed", "done"]
    assert [queue.entries[name].exit_code for name in "abc"] == [0, 1, 0]
    assert queue.output("a").read_text() == "does x\n"
    again = queue_of(*runs)
    assert states(again) == ["done", "waiting", "done"]
    assert [again.entries[name].exit_code for name in "abc"] == [0, None, 0]
    work(again)
    assert [len(starts(again, name)) for name in "abc"] == [1, 2, 1]


def test_a_run_of_other_words_goes_on(queue_of: QueueOf) -> None:
    queue = queue_of(QueuedRun("a", ["1"]))
    work(queue)
    queue = queue_of(QueuedRun("a", ["2"]))
    work(queue)
    assert [start[0] for start in starts(queue, "a")] == [["1"], ["2"]]


def test_a_done_run_whose_directory_is_gone_is_run_again(queue_of: QueueOf) -> None:
    queue = queue_of(QueuedRun("a", []))
    work(queue)
    run = queue.directory("a")
    assert run is not None
    run.path.rename(queue.folder / "elsewhere")
    queue = queue_of(QueuedRun("a", []))
    assert queue.entries["a"].state == "waiting"
    assert queue.entries["a"].seconds == 0


def test_a_cancelled_queue_stops_its_runs_in_order_and_goes_on_with_them(queue_of: QueueOf) -> None:
    runs = QueuedRun("a", []), QueuedRun("b", ["hang-once"]), QueuedRun("c", [])
    queue = queue_of(*runs)

    async def cut_short() -> None:
        task = asyncio.create_task(queue.work())

        def look() -> None:
            if queue.output("b").exists() and "does" in queue.output("b").read_text():
                task.cancel()

        queue.on_tick = look
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cut_short())
    assert states(queue) == ["done", "waiting", "waiting"]
    run = queue.directory("b")
    assert run is not None
    assert run.ending() == {"state": "stopped"}
    queue = queue_of(*runs)
    work(queue)
    assert states(queue) == ["done", "done", "done"]
    assert [start[2] for start in starts(queue, "b")] == [False, True]  # the second one had a state to go on from


def test_as_many_runs_as_asked_run_at_a_time_on_cores_of_their_own(queue_of: QueueOf) -> None:
    queue = queue_of(QueuedRun("a", ["meet=b"]), QueuedRun("b", ["meet=a"]), parallel=2)
    before = os.sched_getaffinity(0)
    work(queue)  # each waits for the other: one at a time would never end
    a, b = (set(starts(queue, name)[0][1]) for name in "ab")  # type: ignore[call-overload]  # a list of numbers
    assert a <= before
    assert b <= before
    assert len(before) < 2 or a.isdisjoint(b)
    assert os.sched_getaffinity(0) == before


def test_runs_are_added_and_stopped_while_the_queue_is_worked_through(queue_of: QueueOf) -> None:
    queue = queue_of(QueuedRun("a", ["hang-once"]), QueuedRun("b", []))

    def look() -> None:
        if queue.output("a").exists() and queue.output("a").read_text() and "c" not in queue.entries:
            queue.stop("b")
            queue.stop("a")
            queue.add(QueuedRun("c", ["x"]))

    queue.on_tick = look
    work(queue)
    assert states(queue) == ["stopped", "stopped", "done"]
    assert starts(queue, "b") == []
    again = queue_of(QueuedRun("a", ["hang-once"]), QueuedRun("b", []))
    assert states(again) == ["stopped", "stopped"]


def test_a_run_that_a_killed_queue_left_running_is_waited_for(queue_of: QueueOf) -> None:
    queue = queue_of(QueuedRun("a", ["x"]))
    (queue.folder / "queue.json").write_text('{"runs": {"a": {"words": ["x"], "state": "running", "seconds": 5}}}')
    run = RunDirectory(queue.runs_dir / "thing" / "a")
    run.path.mkdir(parents=True)
    run.config_path.write_text("{}")
    queue = queue_of(QueuedRun("a", ["x"]))
    ticks = 0
    with locked(run):

        def ended_after_a_while() -> None:
            nonlocal ticks
            ticks += 1
            if ticks == 3:
                assert not queue.output("a").exists()
                run.summary.write_text('{"state": "done"}')
                run.lock.unlink()

        queue.on_tick = ended_after_a_while
        work(queue)
    assert states(queue) == ["done"]
    assert not queue.output("a").exists()  # it was not started again


def test_one_process_at_a_time_works_through_a_queue(queue_of: QueueOf) -> None:
    queue = queue_of(QueuedRun("a", []))
    with locked(RunDirectory(queue.folder)), pytest.raises(UsageError, match=r"process \d+ on"):
        work(queue)
    assert starts(queue, "a") == []


def test_names_settings_and_files_that_cannot_be_are_refused(queue_of: QueueOf, tmp_path: Path) -> None:
    queue = queue_of(QueuedRun("a", []))
    with pytest.raises(UsageError, match="has a run 'a' already"):
        queue.add(QueuedRun("a", []))
    with pytest.raises(UsageError, match="cannot name a folder"):
        queue.add(QueuedRun("a/b", []))
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file' is no folder"):
        RunQueue(tmp_path / "file")
    with pytest.raises(UsageError, match="--parallel: 0"):
        queue_of(parallel=0)
    for text in ("{", "[]", '{"runs": [1]}', '{"runs": {"a": 1}}'):
        (queue.folder / "queue.json").write_text(text)
        with pytest.raises(UsageError, match=r"queue\.json' is damaged"):
            queue_of()


def test_the_table_shows_figures_and_the_time_left(queue_of: QueueOf) -> None:
    clock = Clock()
    queue = queue_of(QueuedRun("a", ["steps=100"]), QueuedRun("b", ["steps=40"]), QueuedRun("c", []), clock=clock)
    stream = io.StringIO()
    display = QueueDisplay(queue, "three runs", stream)
    assert queue_seconds_left(queue) is None
    work(queue)
    a, b, c = queue.entries.values()
    a.seconds, b.seconds, c.seconds = 600.0, 0.0, 0.0
    b.state, b.began, c.state = "running", clock.seconds - 240, "waiting"
    assert seconds_left(queue, b) == pytest.approx(360)  # 40 of 100 steps took 240 s
    assert queue_seconds_left(queue) == pytest.approx(360 + 600)
    assert summary(queue) == "1 waiting, 1 running, 1 done; about 16 min left"
    with display:
        display.show()
    assert stream.getvalue().splitlines() == [
        "a: done, 100 (100%) steps, 50.0% won, return 7.00",
        "b: running, 40 (40%) steps, 50.0% won, return 7.00, about 6 min left",
    ]
    stream = io.StringIO()
    Console(file=stream, width=100).print(queue_table(queue, "three runs", 2))
    lines = stream.getvalue().splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["b", "a"]
    assert "… 1 more" in lines[4]


FILE = """
from orchestra import Actor, Message, Topology, on

class GoMsg(Message):
    pass

class Boss(Actor[GoMsg]):
    async def started(self):
        if self.size == 13:
            raise ValueError("thirteen")
        self.stop()

    def __init__(self, size: int) -> None:
        self.size = size

    @on(GoMsg)
    def go(self, msg: GoMsg) -> None: ...

def experiment(*, size: int = 3) -> Topology:
    topology = Topology("queued")
    topology.until(topology.node("root").spawn("boss", Boss, size))
    return topology
"""


def test_the_runs_of_a_queue_are_those_of_orchestra_run(tmp_path: Path) -> None:
    file = tmp_path / "queued_experiment.py"
    file.write_text(FILE)
    words = [str(file), "--quiet", "--single-process", "--trace", "off"]
    queue = RunQueue(tmp_path / "queue", parallel=2)
    queue.add(QueuedRun("good", [*words, "--size", "4"]))
    queue.add(QueuedRun("bad", [*words, "--size", "13"]))
    work(queue)
    assert states(queue) == ["done", "failed"]
    run = queue.directory("good")
    assert run is not None
    assert run.config()["flags"]["size"] == 4
    assert "thirteen" in queue.output("bad").read_text()


def test_sigterm_stops_a_queue_in_order_and_the_error_has_the_code_of_stopped_runs(queue_of: QueueOf) -> None:
    queue = queue_of(QueuedRun("a", ["hang-once"]))
    sent = []

    def look() -> None:
        if not sent and queue.output("a").exists() and queue.output("a").read_text():
            os.kill(os.getpid(), signal.SIGTERM)
            sent.append(True)

    queue.on_tick = look
    handler = signal.getsignal(signal.SIGTERM)
    stream = io.StringIO()
    with pytest.raises(QueueStopped) as caught:
        work_through(queue, title="one run", stream=stream)
    assert of_error(caught.value) == STOPPED
    assert queue.on_tick is look
    assert signal.getsignal(signal.SIGTERM) is handler
    assert states(queue) == ["waiting"]
    work_through(queue, title="one run", stream=stream)
    assert states(queue) == ["done"]
    said = "stopping: a run saves its state; the same command goes on"
    assert stream.getvalue().splitlines() == ["a: running", said, "a: running", "a: done"]
