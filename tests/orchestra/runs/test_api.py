"""`orchestra.run`, `run_async` and `start`: what they return and refuse, and that nothing of a run outlives it."""

import asyncio
import errno
import gc
import inspect
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import structlog
from pydantic import Field

import orchestra
from orchestra import Actor, InterruptMsg, Message, RunDirectory, Topology, UsageError, on
from orchestra.cli.main import main
from orchestra.runs import whole_files
from orchestra.runs.plan import plan
from orchestra.wire.blocks import CAPACITY

PATIENCE_S = 60.0
ROOT = Path(__file__).resolve().parents[3]
FILE = '''
import json
import sys
from typing import Annotated

from pydantic import Field

from orchestra import Actor, InterruptMsg, Message, Ref, Stop, Topology, on

WORD = "first"


class TurnMsg(Message):
    pass


class DrawnMsg(Message):
    number: int


class Boss(Actor[TurnMsg | DrawnMsg | InterruptMsg]):
    """Writes a record for each number that it is told, and after `steps` of them stops."""

    supervision = Stop()

    def __init__(self, steps: int, fail: bool, helpers: int) -> None:
        self.steps, self.fail, self.helpers, self.count = steps, fail, helpers, 0

    async def started(self) -> None:
        print("the boss is here")
        self.log.warning("a warning")
        if not self.helpers:
            await self.me.tell(TurnMsg())

    @on(TurnMsg)
    def turn(self, msg: TurnMsg) -> None:
        self.add(DrawnMsg(number=int(self.rng.integers(1_000_000))))
        self.after(0.001, TurnMsg())

    @on(DrawnMsg)
    def add(self, msg: DrawnMsg) -> None:
        if self.fail:
            raise ValueError("had enough")
        if self.count == self.steps:
            return
        self.count += 1
        with (self.run_directory / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": self.count, "number": msg.number, "word": WORD}) + "\\n")
        if self.count == self.steps:
            self.stop()

    @on(InterruptMsg)
    def interrupt(self, msg: InterruptMsg) -> None:
        (self.run_directory / "checkpoints" / "last.pt").touch()
        self.stop()


class Helper(Actor[TurnMsg]):
    def __init__(self, boss: Ref[DrawnMsg]) -> None:
        self.boss = boss

    async def started(self) -> None:
        await self.me.tell(TurnMsg())

    @on(TurnMsg)
    async def turn(self, msg: TurnMsg) -> None:
        await self.boss.tell(DrawnMsg(number=int(self.rng.integers(1_000_000))))
        self.after(0.001, TurnMsg())


def experiment(
    *, steps: Annotated[int, Field(ge=1, description="to take")] = 3, fail: bool = False, helpers: int = 0
) -> Topology:
    topology = Topology("steps")
    boss = topology.node("root").spawn("boss", Boss, steps, fail, helpers)
    topology.until(boss)
    for number in range(helpers):
        topology.node(f"h{number}").spawn("helper", Helper, boss)
    return topology
'''
ENDLESS = 1_000_000


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiment's file, in a folder to work in."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "steps.py"
    path.write_text(FILE)
    return path


def process_state() -> dict[str, Any]:
    """Everything of a process that a run could change."""
    return {
        "environ": {name: text for name, text in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "wakeup": wakeup_descriptor(),
        "threads": threading.enumerate(),
        "handlers": list(logging.getLogger().handlers),
        "log level": logging.getLogger().level,
        "structlog": structlog.is_configured() and structlog.get_config(),
        "gc": (gc.get_threshold(), gc.isenabled(), gc.get_freeze_count() > 0),
        "path": list(sys.path),
        "streams": (sys.stdin, sys.stdout, sys.stderr),
        "folder": Path.cwd(),
        "files": sorted(os.listdir("/proc/self/fd")) if sys.platform == "linux" else None,
    }


def wakeup_descriptor() -> int:
    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    return before


@pytest.fixture
def nothing_is_left(file: Path) -> Iterator[None]:
    warmed_up = orchestra.run(file, single_process=True, quiet=True)  # what is imported opens files, once
    assert warmed_up.completed
    before = process_state()
    yield
    assert process_state() == before


def numbers(records: list[dict[str, Any]]) -> list[int]:
    return [record["number"] for record in records]


# A run and its result -------------------------------------------------------------------------------------------------


def test_a_run_returns_its_state_its_directory_and_its_figures(file: Path) -> None:
    result = orchestra.run(file, steps=4, seed=7)
    assert (result.state, result.completed, result.reason) == ("completed", True, "stopped")
    assert [record["step"] for record in result.metrics()] == [1, 2, 3, 4]
    assert result.directory.path.parent == Path("runs/steps")
    config = result.directory.config()
    assert config["seed"] == 7
    assert config["flags"] == {"steps": 4, "fail": False, "helpers": 0}
    assert config["command"] == ["orchestra", "run", str(file), "--steps=4", "--no-fail", "--helpers=0", "--seed=7"]
    assert result.checkpoint is None
    (result.directory.checkpoints / "steps-1.pt").touch()
    (result.directory.checkpoints / ".half").touch()
    assert result.checkpoint == result.directory.checkpoints / "steps-1.pt"


def test_a_run_without_metrics_has_no_records(file: Path) -> None:
    result = orchestra.run(file)
    result.directory.metrics.unlink()
    assert result.metrics() == []
    result.directory.metrics.write_text('{"a": 1}\n3\n')
    with pytest.raises(UsageError, match="line 2: not a record"):
        result.metrics()


def test_the_curve_of_a_run_is_a_picture_that_a_notebook_displays(file: Path) -> None:
    result = orchestra.run(file)
    with pytest.raises(UsageError, match="has drawn no curve"):
        result.plot()
    result.directory.curve.write_bytes(b"a picture")
    assert result.plot()._repr_png_() == b"a picture"
    assert result.plot().path == result.directory.curve


@pytest.mark.usefixtures("nothing_is_left")
def test_a_file_may_use_several_processes(file: Path) -> None:
    result = orchestra.run(file, helpers=2, steps=6)
    assert result.completed
    assert len(result.metrics()) == 6
    assert {path.stem for path in result.directory.logs.iterdir()} > {"root"}


@pytest.mark.usefixtures("nothing_is_left")
def test_equal_seeds_give_equal_runs_in_one_process(file: Path) -> None:
    one, other, third = (
        orchestra.run(file, steps=20, helpers=1, single_process=True, seed=seed).metrics() for seed in (1, 1, 2)
    )
    assert one == other
    assert numbers(one) != numbers(third)


def test_options_and_flags_are_checked_with_the_words_of_the_command_line(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for keywords, words in (
        ({"step": 3}, ["--step", "3"]),
        ({"steps": "0"}, ["--steps", "0"]),
        ({"seed": "-1"}, ["--seed", "-1"]),
        ({"log_level": "loud"}, None),
        ({"shared_memory": "-1"}, ["--shared-memory", "-1"]),
        ({"trace": "off", "trace_include": ["x"]}, ["--trace", "off", "--trace-include", "x"]),
        ({"trace_at_end": True, "trace": "full"}, ["--trace-at-end", "--trace", "full"]),
        ({"listen": "udp://x"}, ["--listen", "udp://x"]),
    ):
        with pytest.raises(UsageError) as caught:
            orchestra.run(file, **keywords)
        if words is not None:
            assert main(["run", str(file), *words]) == 2
            assert capsys.readouterr().err == f"orchestra: error: {caught.value}\n"
    assert not Path("runs").exists()


def test_the_signature_of_a_run_names_its_options_and_their_types() -> None:
    for function, returned in ((orchestra.run, "RunResult"), (orchestra.start, "RunHandle")):
        shown = str(inspect.signature(function))
        assert "seed: int | None = None" in shown
        assert shown.endswith(f"{returned}")
        assert "FieldInfo" not in shown


def test_what_is_no_experiment_is_refused(file: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no file 'nowhere\.py'"):
        orchestra.run("nowhere.py")
    with pytest.raises(UsageError, match="cannot run 3: an experiment is the path of a file, a function that returns"):
        orchestra.run(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="cannot run None"):
        orchestra.run()

    def clash(*, seed: int = 0) -> Topology: ...

    with pytest.raises(UsageError, match="parameter 'seed' makes the flag --seed, which every run has"):
        orchestra.run(clash)


def test_a_file_that_was_changed_is_imported_anew(file: Path) -> None:
    assert orchestra.run(file).metrics()[0]["word"] == "first"
    file.write_text(FILE.replace('"first"', '"second"'))
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1_000_000))
    assert orchestra.run(file).metrics()[0]["word"] == "second"


def test_a_run_that_fails_raises_the_line_of_the_command_and_keeps_its_result(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(orchestra.RunFailed) as caught:
        orchestra.run(file, fail=True, runs_dir="mine")
    result = caught.value.result
    assert (result.state, result.completed) == ("failed", False)
    assert "Traceback" in (result.directory.logs / "root.jsonl").read_text()
    capsys.readouterr()
    assert main(["run", str(file), "--fail"]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert "ValueError: had enough" in line
    (log,) = Path("runs").glob("*/*/logs/root.jsonl")
    assert line == f"orchestra: {caught.value}".replace(str(result.directory.logs / "root.jsonl"), str(log))


def test_a_quiet_run_prints_no_warnings(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = orchestra.run(file, quiet=True)
    assert capsys.readouterr() == ("the boss is here\n", "")  # an actor's own print is not the run's
    assert "a warning" in (result.directory.logs / "root.jsonl").read_text()
    orchestra.run(file)
    assert "a warning" in capsys.readouterr().err


# Functions and topologies ---------------------------------------------------------------------------------------------


class GoMsg(Message):
    """Begin."""


class Once(Actor[GoMsg]):
    """Stops at once."""

    async def started(self) -> None:
        await self.me.tell(GoMsg())

    @on(GoMsg)
    def go(self, msg: GoMsg) -> None:
        self.stop()


class Idle(Actor[InterruptMsg]):
    """Waits to be interrupted."""

    @on(InterruptMsg)
    def interrupt(self, msg: InterruptMsg) -> None:
        self.stop()


def laid_out(nodes: int, kind: type[Actor[Any]] = Once) -> Topology:
    topology = Topology("once")
    topology.until(topology.node("root").spawn("once", kind))
    for number in range(1, nodes):
        topology.node(f"n{number}").spawn("idle", Idle)
    return topology


def test_a_topology_runs_in_this_process(file: Path) -> None:
    result = orchestra.run(laid_out(3), seed=3)
    assert result.completed
    assert result.directory.config()["experiment"] is None
    assert [path.stem for path in result.directory.logs.iterdir()] == ["root"]
    with pytest.raises(UsageError, match="a Topology has no flags, but got nodes, size"):
        orchestra.run(laid_out(1), nodes=3, size=4)
    with pytest.raises(UsageError, match="no other process can import this experiment, so all its nodes run in this"):
        orchestra.run(laid_out(2), listen="tcp://127.0.0.1:1")


def test_a_function_within_another_runs_in_this_process_with_its_parameters_as_flags(file: Path) -> None:
    def local(*, nodes: Annotated[int, Field(ge=1)] = 1) -> Topology:
        return laid_out(nodes)

    result = orchestra.run(local, nodes=3)
    assert result.completed
    assert result.directory.config()["flags"] == {"nodes": 3}
    with pytest.raises(UsageError, match="--nodes: 0 is not allowed"):
        orchestra.run(local, nodes=0)


def test_a_function_of_a_file_may_use_several_processes(file: Path) -> None:
    function = orchestra.variant(orchestra.load_experiment(file), steps=5)
    result = orchestra.run(function, helpers=1)
    assert len(result.metrics()) == 5
    assert {path.stem for path in result.directory.logs.iterdir()} == {"root", "h0"}


# Event loops and threads ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_is_left")
def test_a_run_within_a_running_loop_has_a_thread_of_its_own(file: Path) -> None:
    async def cell() -> orchestra.RunResult:
        return orchestra.run(file, helpers=1)

    assert asyncio.run(cell()).completed


@pytest.mark.usefixtures("nothing_is_left")
def test_a_run_may_use_the_loop_of_its_caller(file: Path) -> None:
    async def cell() -> list[orchestra.RunResult]:
        loop = asyncio.get_running_loop()
        ticks = 0

        def tick() -> None:
            nonlocal ticks
            ticks += 1
            loop.call_later(0.001, tick)

        tick()
        results = [await orchestra.run_async(file, helpers=helpers, steps=20) for helpers in (0, 1)]
        assert ticks > 10
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return results

    assert [result.state for result in asyncio.run(cell())] == ["completed", "completed"]


def test_a_run_on_the_loop_of_its_caller_stops_in_order_when_it_is_cancelled(file: Path) -> None:
    async def cell() -> None:
        going = asyncio.create_task(orchestra.run_async(file, steps=ENDLESS))
        await asyncio.to_thread(until, lambda: list(Path("runs").glob("*/*/metrics.jsonl")))
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going
        assert (await orchestra.run_async(file)).completed

    asyncio.run(cell())


@pytest.mark.usefixtures("nothing_is_left")
def test_a_run_may_be_made_in_any_thread(file: Path) -> None:
    results: list[orchestra.RunResult] = []
    thread = threading.Thread(target=lambda: results.append(orchestra.run(file, helpers=1)))
    thread.start()
    thread.join(PATIENCE_S)
    assert [result.state for result in results] == ["completed"]


# In the background ----------------------------------------------------------------------------------------------------


def until(condition: Any) -> None:
    since = time.monotonic()
    while not condition():
        assert time.monotonic() - since < PATIENCE_S
        time.sleep(0.01)


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize("helpers", [0, 1])
def test_a_run_in_the_background_is_looked_at_and_stopped(file: Path, helpers: int) -> None:
    handle = orchestra.start(file, steps=ENDLESS, helpers=helpers)
    until(lambda: len(handle.metrics()) > 2)
    assert handle.running
    assert repr(handle) == f"<RunHandle running, {handle.directory.path}>"
    assert handle.checkpoint is None
    with pytest.raises(TimeoutError):
        handle.result(timeout=0)
    with pytest.raises(UsageError, match="another run goes on in this process, and two would share its logs"):
        orchestra.run(file)
    handle.stop()
    handle.stop()
    result = handle.result()
    assert (result.state, result.reason, result.completed) == ("stopped", "stopped", False)
    assert result.checkpoint == handle.checkpoint == handle.directory.checkpoints / "last.pt"
    assert result.metrics() == handle.metrics()
    assert not handle.running
    handle.stop()
    assert handle.result() == result


def test_a_run_in_the_background_may_be_aborted(file: Path) -> None:
    handle = orchestra.start(file, steps=ENDLESS)
    handle.stop(abort=True)
    result = handle.result()
    assert (result.state, result.reason) == ("stopped", "aborted")
    assert result.checkpoint is None


@pytest.mark.usefixtures("nothing_is_left")
def test_a_run_that_cannot_begin_in_the_background_is_refused_at_once(file: Path) -> None:
    with pytest.raises(UsageError, match="--steps: 0 is not allowed"):
        orchestra.start(file, steps=0)
    Path("occupied").write_text("")
    with pytest.raises(UsageError, match="cannot make a run directory in 'occupied'"):
        orchestra.start(file, runs_dir="occupied")


def test_a_run_in_the_background_that_fails_raises_when_it_is_asked_for_its_result(file: Path) -> None:
    handle = orchestra.start(file, fail=True)
    for _ in range(2):
        with pytest.raises(orchestra.RunFailed, match="ValueError: had enough"):
            handle.result()


def test_a_run_goes_on_from_what_an_earlier_one_saved(file: Path) -> None:
    first = orchestra.run(file, steps=2, seed=5)
    with pytest.raises(UsageError, match="has saved nothing yet to go on from"):
        orchestra.run(resume=first.directory.path)
    (first.directory.state / "steps-1").mkdir(parents=True)
    second = orchestra.run(resume=first.directory.path, helpers=1)
    assert second.directory.path == first.directory.path
    assert second.directory.config()["flags"] == {"steps": 2, "fail": False, "helpers": 1}
    assert second.directory.config()["seed"] == 5
    for option, keywords in (("--seed", {"seed": 1}), ("FILE", None)):
        with pytest.raises(UsageError) as caught:
            orchestra.run(*([] if keywords else [file]), resume=first.directory.path, **(keywords or {}))
        assert str(caught.value) == (
            f"{option} cannot be combined with --resume: a resumed run keeps its original value"
        )
    topology = orchestra.run(laid_out(1))
    (topology.directory.state / "steps-1").mkdir(parents=True)
    with pytest.raises(UsageError, match="its experiment stands in no file, so that it cannot be built again"):
        orchestra.run(resume=topology.directory.path)


# What a process has set up itself -------------------------------------------------------------------------------------


def test_logging_is_as_before_after_a_run(file: Path) -> None:
    told: list[str] = []

    def own(logger: Any, method: str, line: dict[str, Any]) -> str:
        told.append(line["event"])
        raise structlog.DropEvent

    structlog.configure(processors=[own])
    try:
        orchestra.run(file)
        assert told == []
        structlog.get_logger().warning("mine")
        assert told == ["mine"]
    finally:
        structlog.reset_defaults()


@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_objects_stay_frozen_and_others_do_not(file: Path, frozen: bool) -> None:
    gc.unfreeze()
    if frozen:
        gc.freeze()
    try:
        orchestra.run(file)
        assert (gc.get_freeze_count() > 0) is frozen
    finally:
        gc.freeze()  # as the session has it


def test_the_environment_says_how_much_memory_is_shared_and_is_not_changed(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ORCHESTRA_SHARED_MEMORY", raising=False)
    assert plan(file).launch.shared_memory == CAPACITY
    for text, nbytes in (("", CAPACITY), ("0", 0), ("64", 64 << 20)):
        monkeypatch.setenv("ORCHESTRA_SHARED_MEMORY", text)
        assert plan(file).launch.shared_memory == nbytes
        assert plan(file, shared_memory=3).launch.shared_memory == 3 << 20
    for text in ("-1", "64M", "1.5", "²", "1048577", "9" * 5000):
        monkeypatch.setenv("ORCHESTRA_SHARED_MEMORY", text)
        with pytest.raises(
            UsageError,
            match=f"ORCHESTRA_SHARED_MEMORY is {text!r}: it must be a number of MiB from 0, for none, to 1048576",
        ):
            plan(file)


# Scripts --------------------------------------------------------------------------------------------------------------


def script(folder: Path, code: str, *words: str) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(code)
    return subprocess.Popen(
        [sys.executable, "script.py", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_a_script_needs_no_guard_to_run_a_file_in_several_processes(file: Path) -> None:
    code = (
        "import orchestra\n"
        "results = [orchestra.run('steps.py', helpers=1, steps=3) for _ in range(2)]\n"
        "print([len(result.metrics()) for result in results])\n"
    )
    out, err = script(file.parent, code).communicate(timeout=PATIENCE_S)
    assert out.splitlines()[-1] == "[3, 3]", err


def test_a_function_of_a_script_needs_a_guard_to_use_several_processes_and_the_error_says_so(file: Path) -> None:
    guard = 'if __name__ == "__main__":\n    '
    code = FILE + "import orchestra\n\nGUARD print(orchestra.run(experiment, helpers=1).state)\n"
    out, err = script(file.parent, code.replace("GUARD ", guard)).communicate(timeout=PATIENCE_S)
    assert out.splitlines()[-1] == "completed", err
    out, err = script(file.parent, code.replace("GUARD ", "")).communicate(timeout=PATIENCE_S)
    assert "UsageError: script.py:" in err
    assert 'is imported as an experiment; put the call under `if __name__ == "__main__":`' in err


INTERRUPTED = """
import orchestra
try:
    print(orchestra.run("steps.py", steps=1_000_000, helpers=1).state, flush=True)
    print(orchestra.run("steps.py", steps=3, helpers=1).state, flush=True)
except KeyboardInterrupt:
    print("aborted", flush=True)
"""


@pytest.mark.parametrize(
    ("number", "state"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "stopped"), (signal.SIGHUP, "stopped")]
)
def test_a_signal_stops_the_run_of_a_script_in_order_and_the_script_goes_on(
    file: Path, number: signal.Signals, state: str
) -> None:
    process = script(file.parent, INTERRUPTED)
    until(lambda: list(file.parent.glob("runs/*/*/metrics.jsonl")))
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert [line for line in out.splitlines() if "boss" not in line] == [state, "completed"], err


BACKGROUND = """
import os
import signal
import sys
import threading
import time

import orchestra


def names(frame):
    return [frame.f_code.co_name, *names(frame.f_back)] if frame else []


def interrupt_the_wait():
    main = threading.main_thread().ident
    while not (handle.metrics() and "result" in names(sys._current_frames()[main])):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)


signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts its background jobs with SIGINT ignored
handle = orchestra.start("steps.py", steps=1_000_000)
threading.Thread(target=interrupt_the_wait).start()
print(handle.result().state, flush=True)
"""


def test_ctrl_c_while_a_script_waits_for_a_result_stops_the_run(file: Path) -> None:
    out, err = script(file.parent, BACKGROUND).communicate(timeout=PATIENCE_S)
    assert out.splitlines()[-1] == "interrupted", err
    assert list(file.parent.glob("runs/*/*/checkpoints/last.pt"))


def test_a_run_directory_is_found_by_the_command_line_too(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = orchestra.run(file)
    assert RunDirectory.newest(Path("runs")).path == result.directory.path
    assert json.loads(result.directory.message_counts.read_text())


def test_a_run_whose_message_counts_cannot_be_written_ends_as_it_would_otherwise(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = whole_files.replacing

    def replacing(path: Path, **options: Any) -> Any:
        if path.name == "message_counts.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, **options)

    monkeypatch.setattr(whole_files, "replacing", replacing)
    result = orchestra.run(file, runs_dir=Path("runs"), single_process=True)
    assert result.completed
    assert result.directory.ending()["state"] == "done"
    log = (result.directory.logs / "root.jsonl").read_text()
    assert "cannot write how often messages were sent" in log
