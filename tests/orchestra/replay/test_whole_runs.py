"""Every actor of a run that was interrupted, resumed or restarted is replayed: in a process, and in several."""

import os
import signal
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

from orchestra import Actor, InterruptMsg, Message, Ref, Topology, on


class NumberMsg(Message):
    number: int
    total: int = 0


class Ticker(Actor[NumberMsg]):
    """Presses Ctrl-C at a number, while it handles a message."""

    def __init__(self, *, to: Ref[NumberMsg]) -> None:
        self.to = to

    @on(NumberMsg)
    async def tick(self, msg: NumberMsg) -> None:
        if str(msg.number) == os.environ.get("CTRL_C_AT"):
            os.kill(os.getpid(), signal.SIGINT)
        await self.to.tell(NumberMsg(number=msg.number))


class Counter(Actor[NumberMsg | InterruptMsg]):
    """Continues from the state of the run, and stops after a number, or when it is interrupted."""

    def __init__(self, *, ticker: Ref[NumberMsg], last: int) -> None:
        self.ticker = ticker
        self.last = last
        self.number = self.total = 0
        if self.resume_from is not None:
            self.number, self.total = json.loads((self.resume_from / "counter.json").read_text())
            lines = (self.run_directory / "metrics.jsonl").read_text().splitlines()
            assert len(lines) >= self.number
            self.rewritten = "".join(f"{line}\\n" for line in lines[: self.number])
            (self.run_directory / "metrics.jsonl").write_text(self.rewritten)

    async def started(self) -> None:
        await self.ticker.tell(NumberMsg(number=self.number + 1))

    @on(NumberMsg)
    async def add(self, msg: NumberMsg) -> None:
        self.number, self.total = msg.number, self.total + msg.number
        with (self.run_directory / "metrics.jsonl").open("a") as file:
            file.write(f"{self.total}\\n")
        await self.ticker.tell(NumberMsg(number=msg.number + 1, total=self.total))
        if msg.number == self.last:
            self.interrupt(InterruptMsg())

    @on(InterruptMsg)
    def interrupt(self, msg: InterruptMsg) -> None:
        folder = self.run_directory / "state" / f"{self.number:04}"
        folder.mkdir(parents=True)
        (folder / "counter.json").write_text(json.dumps([self.number, self.total]))
        self.stop()


def experiment(*, last: int = 5) -> Topology:
    topology = Topology("numbers")
    node = topology.node("one")
    ticker = Ref("one/ticker")
    counter = node.spawn("counter", Counter, ticker=ticker, last=last)
    node.spawn("ticker", Ticker, to=counter)
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
