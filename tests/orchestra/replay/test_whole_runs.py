"""Every actor of a run that was interrupted, resumed or restarted is replayed: in a process, and in several."""

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestra import Replay
from orchestra.cli.main import main
from orchestra.errors import CannotReplay
from orchestra.trace.reading.run_trace import RunTrace

EXPERIMENT = '''
"""A ticker counts up; a counter keeps the sum in the run's state, and a line for each number in its metrics."""

import json
import os
import signal
from typing import ClassVar

from orchestra import Actor, InterruptMsg, Message, Ref, Restart, Supervision, Topology, on


class NumberMsg(Message):
    number: int
    total: int = 0
    again: bool = False


class Ticker(Actor[NumberMsg]):
    """Presses Ctrl-C at a number, while it handles a message; fails at another."""

    supervision: ClassVar[Supervision] = Restart(backoff=0.0, limit=10)

    def __init__(self, *, to: Ref[NumberMsg], fail_at: int) -> None:
        self.to = to
        self.fail_at = fail_at
        self.resumed = self.resume_from is not None

    async def started(self) -> None:
        await self.to.tell(NumberMsg(number=0, total=int(1e6 * self.rng.random())))

    @on(NumberMsg)
    async def tick(self, msg: NumberMsg) -> None:
        if msg.number == self.fail_at and not msg.again:
            raise ArithmeticError(f"number {msg.number} cannot be told")
        if str(msg.number) == os.environ.get("CTRL_C_AT"):
            os.kill(os.getpid(), signal.SIGINT)
        await self.to.tell(NumberMsg(number=msg.number))


class Counter(Actor[NumberMsg | InterruptMsg]):
    """Continues from the state of the run, and stops after a number, or when it is interrupted."""

    def __init__(self, *, ticker: Ref[NumberMsg], last: int) -> None:
        self.ticker = ticker
        self.last = last
        self.number = self.total = self.asked = 0
        if self.resume_from is not None:
            self.number, self.total = json.loads((self.resume_from / "counter.json").read_text())
            lines = (self.run_directory / "metrics.jsonl").read_text().splitlines()
            assert len(lines) >= self.number
            self.rewritten = "".join(f"{line}\\n" for line in lines[: self.number])
            (self.run_directory / "metrics.jsonl").write_text(self.rewritten)

    @on(NumberMsg)
    async def add(self, msg: NumberMsg) -> None:
        if msg.number == 0:  # the ticker has started
            await self.ticker.tell(NumberMsg(number=self.number + 1, again=self.asked > self.number))
            self.asked = self.number + 1
            return
        self.number, self.total = msg.number, self.total + msg.number
        with (self.run_directory / "metrics.jsonl").open("a") as file:
            file.write(f"{self.total}\\n")
        if msg.number == self.last:
            self.interrupt(InterruptMsg())
        else:
            self.asked = msg.number + 1
            await self.ticker.tell(NumberMsg(number=self.asked, total=self.total))

    @on(InterruptMsg)
    def interrupt(self, msg: InterruptMsg) -> None:
        folder = self.run_directory / "state" / f"{self.number:04}"
        folder.mkdir(parents=True)
        (folder / "counter.json").write_text(json.dumps([self.number, self.total]))
        self.stop()


def experiment(*, last: int = 5, fail_at: int = 0) -> Topology:
    topology = Topology("numbers")
    node = topology.node("one")
    ticker = Ref("one/ticker")
    counter = node.spawn("counter", Counter, ticker=ticker, last=last)
    node.spawn("ticker", Ticker, to=counter, fail_at=fail_at)
    topology.until(counter)
    return topology
'''


@pytest.fixture
def carry_out(tmp_path: Path) -> Callable[..., Path]:
    """Return what runs the experiment with some flags, or resumes its run, and returns the run directory."""

    def run(*flags: str) -> Path:
        file = tmp_path / "numbers.py"
        file.write_text(EXPERIMENT)
        found = list(tmp_path.glob("runs/*/*"))
        begin = ["--resume", str(found[0])] if found else [str(file), "--runs-dir", str(tmp_path / "runs")]
        main(["run", *begin, "--single-process", "--trace", "full", *flags])
        (path,) = tmp_path.glob("runs/*/*")
        return path

    return run


CarryOut = Callable[..., Path]


def test_an_actor_that_ctrl_c_reached_while_it_handled_a_message_is_replayed(
    carry_out: CarryOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CTRL_C_AT", "3")
    path = carry_out("--last", "1000000")
    monkeypatch.delenv("CTRL_C_AT")
    with Replay(path, "one/ticker") as ticker, Replay(path, "one/counter") as counter:
        assert ticker.run() > 3
        interrupted = counter.seek("InterruptMsg")
        assert interrupted.id.sender == "one/outside"  # not the actor whose code the signal interrupted
        counter.run()
        assert counter.actor.total >= 3


@pytest.fixture
def resumed(carry_out: CarryOut) -> Path:
    """A run that was resumed twice: three processes ran each actor."""
    for last in ("5", "8", "12"):
        path = carry_out("--last", last)
    return path


def incarnations(path: Path, actor: str) -> list[int]:
    with RunTrace(path) as trace:
        return [each.header.generation for each in trace.incarnations(actor)]


def test_every_process_of_a_resumed_run_is_replayed_with_the_state_that_it_resumed(resumed: Path) -> None:
    totals = []
    for actor in ("one/counter", "one/ticker"):
        for generation in incarnations(resumed, actor):
            with Replay(resumed, actor, generation=generation) as replay:
                replay.run()
                if actor == "one/counter":
                    totals.append(replay.actor.total)
                    replay.seek(1)  # from its birth again, without what the first pass wrote
                    replay.run()
                    assert replay.actor.total == totals[-1]
    assert totals == [15, 36, 78]


def test_a_replay_of_a_resumed_actor_continues_a_copy_of_the_runs_metrics(resumed: Path) -> None:
    before = (resumed / "metrics.jsonl").read_text()
    with Replay(resumed, "one/counter", generation=incarnations(resumed, "one/counter")[1]) as replay:
        replay.run()
        assert replay.actor.rewritten == "".join(f"{total}\n" for total in (1, 3, 6, 10, 15))
        assert (replay.actor.run_directory / "metrics.jsonl").read_text().splitlines()[-1] == "36"
    assert (resumed / "metrics.jsonl").read_text() == before


def test_a_state_that_is_gone_is_named(resumed: Path) -> None:
    first, second, _ = incarnations(resumed, "one/counter")
    state = resumed / "state" / "0005"
    (state / "counter.json").unlink()
    state.rmdir()
    with Replay(resumed, "one/counter", generation=first) as replay:
        replay.run()  # it did not resume
    with pytest.raises(CannotReplay, match=r"one/counter resumed from '.*state/0005', which does not exist"):
        Replay(resumed, "one/counter", generation=second)


def test_a_process_of_a_resumed_run_is_chosen_on_the_command_line(
    resumed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {}
    for process in ("0", "1", "2"):
        assert main(["replay", str(resumed), "--actor", "one/counter", "--process", process, "--at", "2"]) == 0
        said[process] = capsys.readouterr().out.splitlines()[0]
    assert [text.partition("number=")[2][:2] for text in said.values()] == ["1,", "6,", "9,"]
    assert main(["replay", str(resumed), "--actor", "one/counter"]) == 0
    printed = capsys.readouterr()
    assert "note: 3 incarnations of one/counter were recorded, and this is the first: --process" in printed.err
    for words, error in [
        (("--process", "3"), "one/counter was recorded in 3 processes, numbered from 0; there is no process 3"),
        (("--process", "1", "--incarnation", "1"), "has no incarnation 1 in this process; recorded: 0"),
        (("--process", "-1"), "there is no process -1"),
    ]:
        assert main(["replay", str(resumed), "--actor", "one/counter", *words]) == 2
        assert error in capsys.readouterr().err


def test_a_second_incarnation_is_replayed_from_the_command_line(
    carry_out: CarryOut, capsys: pytest.CaptureFixture[str]
) -> None:
    path = carry_out("--last", "5", "--fail-at", "3")
    capsys.readouterr()
    said = {}
    for incarnation in ("0", "1"):
        assert main(["replay", str(path), "--actor", "one/ticker", "--incarnation", incarnation]) == 0
        said[incarnation] = capsys.readouterr().out
    assert "it fails as recorded: ArithmeticError: number 3 cannot be told" in said["0"]
    assert "all as recorded" in said["1"]
    assert "fails" not in said["1"]
    assert main(["replay", str(path), "--actor", "one/ticker"]) == 0
    assert "note: 2 incarnations of one/ticker were recorded, and this is the first" in capsys.readouterr().err


def test_an_actor_that_restarted_after_a_resume_needs_no_state(carry_out: CarryOut) -> None:
    carry_out("--last", "5")
    path = carry_out("--last", "8", "--fail-at", "7")
    generation = incarnations(path, "one/ticker")[-1]
    with Replay(path, "one/ticker", generation=generation) as first:
        first.run()
        assert first.actor.resumed
    (path / "state" / "0005" / "counter.json").unlink()
    (path / "state" / "0005").rmdir()
    with Replay(path, "one/ticker", generation=generation, incarnation=1) as second:
        second.run()
        assert not second.actor.resumed
