"""Traces of runs with several processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestra.cli.main import main
from orchestra.trace.format.effects import Sent
from orchestra.trace.format.records import Delivery
from orchestra.trace.reading.run_trace import RunTrace

PATIENCE_S = 60.0
EXPERIMENT = '''
"""A server that counts, and a client in another process that tells it to."""

import numpy as np
from typing import Annotated
from numpy.typing import NDArray

from orchestra import Actor, Axes, Message, Ref, Stop, Topology, on


class CountMsg(Message):
    number: int
    values: Annotated[NDArray[np.float32], Axes("float32", "n")]


class GoMsg(Message):
    pass


class Server(Actor[CountMsg]):
    supervision = Stop()

    def __init__(self, stop_at: int, fail_at: int) -> None:
        self.stop_at, self.fail_at = stop_at, fail_at

    @on(CountMsg)
    def count(self, msg: CountMsg) -> None:
        if msg.number == 1:
            print("counting", flush=True)
        if msg.number == self.fail_at:
            raise ValueError(f"{msg.number} is too much")
        if msg.number == self.stop_at:
            self.stop()


class Client(Actor[GoMsg]):
    def __init__(self, server: Ref[CountMsg], until: int) -> None:
        self.server, self.until, self.number = server, until, 0

    async def started(self) -> None:
        await self.me.tell(GoMsg())

    @on(GoMsg)
    async def go(self, msg: GoMsg) -> None:
        self.number += 1
        await self.server.tell(CountMsg(number=self.number, values=self.rng.normal(size=100).astype(np.float32)))
        if self.number == self.until:
            return
        await self.me.tell(GoMsg())


def experiment(*, stop_at: int = 50, fail_at: int = 0, until: int = 1000) -> Topology:
    topology = Topology("counting")
    server = topology.node("root").spawn("server", Server, stop_at, fail_at)
    topology.until(server)
    topology.node("far").spawn("client", Client, server, until)
    return topology
'''


@contextmanager
def started(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    (folder / "counting.py").write_text(EXPERIMENT)
    command = [
        sys.executable,
        "-m",
        "orchestra",
        "run",
        str(folder / "counting.py"),
        "--runs-dir",
        str(folder / "runs"),
    ]
    process = subprocess.Popen(
        [*command, *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def run_of(folder: Path) -> Path:
    (path,) = folder.glob("runs/*/*")
    return path


def test_a_run_of_several_processes_is_recorded_completely(tmp_path: Path) -> None:
    with started(tmp_path, "--trace", "full", "--seed", "5") as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    run = run_of(tmp_path)
    assert f"in {run / 'traces'}; orchestra trace ls {run}" in out
    with RunTrace(run) as trace:
        assert trace.actors() == ["far/client", "root/server"]
        assert [recording.notes() for recording in trace.recordings] == [[], []]
        header = trace.recordings[0].header
        assert (header.seed, header.experiment.file) == (5, str(tmp_path / "counting.py"))
        assert header.experiment.flags == ("--stop-at=50", "--fail-at=0", "--until=1000")
        sent = {
            effect.number: effect
            for each in trace.activations(trace.incarnation("far/client"))
            for effect in each.effects
            if isinstance(effect, Sent) and effect.recipient == "root/server"
        }
        came = [
            each.delivery for each in trace.activations(trace.incarnation("root/server")) if each.delivery is not None
        ]
        counted = [each for each in came if each.type.name == "CountMsg"]
        assert [each.fields["number"] for each in counted[:50]] == list(range(1, 51))
        for each in counted:
            assert isinstance(each, Delivery)
            assert each.id.sender == "far/client"
            assert each.fields["number"] == sent[each.id.number].fields["number"]


def test_a_failure_and_a_signal_write_the_flight_records_of_processes(tmp_path: Path) -> None:
    with started(tmp_path, "--stop-at", "0", "--until", "40") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "counting\n"
        traces = run_of(tmp_path) / "traces"
        process.send_signal(signal.SIGUSR2)
        deadline = time.monotonic() + PATIENCE_S
        while len(list(traces.glob("*.flight-0.000.trace"))) < 2:  # the root's, and the other's that it passed it on to
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    with RunTrace(run_of(tmp_path)) as trace:
        assert {each.header.reason for each in trace.recordings} == {"SIGUSR2"}
        assert {each.header.mode for each in trace.recordings} == {"flight"}
    other = tmp_path / "other"
    other.mkdir()
    with started(other, "--fail-at", "20") as process:
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "20 is too much" in err
    with RunTrace(run_of(other)) as trace:
        *_, last = trace.activations(trace.incarnation("root/server"))
    assert last.handled.failure.text == "20 is too much"
    assert last.handled.failure.file.endswith("counting.py")


def test_the_trace_of_a_killed_process_can_be_read(tmp_path: Path) -> None:
    with started(tmp_path, "--trace", "full", "--stop-at", "0", "--until", "0") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "counting\n"
        deadline = time.monotonic() + PATIENCE_S
        while sum(path.stat().st_size for path in run_of(tmp_path).glob("traces/root.*")) < 100_000:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.kill()
        process.communicate()
    with RunTrace(run_of(tmp_path)) as trace:
        notes = [note for each in trace.recordings if each.header.node == "root" for note in each.notes()]
        assert any("not closed; its process was killed" in note for note in notes)
        came = [
            each.delivery for each in trace.activations(trace.incarnation("root/server")) if each.delivery is not None
        ]
        numbers = [each.fields["number"] for each in came if each.type.name == "CountMsg"]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > 50


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--trace", "ful"), "--trace"),
        (("--trace", "full", "--trace-at-end"), "--trace-at-end requires --trace flight; got --trace full"),
        (("--trace", "off", "--trace-include", "x"), "--trace off records nothing"),
        (("--trace-flight-mib", "0"), "--trace-flight-mib: 0 is not allowed"),
    ],
)
def test_a_misused_flag_is_one_line(
    tmp_path: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "counting.py").write_text(EXPERIMENT)
    assert main(["run", str(tmp_path / "counting.py"), *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
