"""The code of a run over hosts is fixed at its start; traces and logs of all hosts are in the run directory."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestra.cli.main import main

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.uname().sysname != "Linux", reason="agents run on Linux")]

EXPERIMENT = '''
from {name}_rule import FACTOR
from orchestra import Actor, DeliveryError, Hosts, Message, Ref, Topology, on

class AnswerMsg(Message):
    number: int

class QuestionMsg(Message):
    number: int
    asker: Ref[AnswerMsg]

class Multiplier(Actor[QuestionMsg]):
    @on(QuestionMsg)
    async def times(self, msg: QuestionMsg) -> None:
        print("asked for", msg.number, flush=True)
        await msg.asker.tell(AnswerMsg(number=FACTOR * msg.number))

class TickMsg(Message):
    pass

class Asker(Actor[AnswerMsg | TickMsg]):
    """Asks again and again, also an actor that is started again; ends once the file `enough` is there."""

    def __init__(self, multiplier: Ref[QuestionMsg]) -> None:
        self.multiplier, self.number = multiplier, 0

    async def started(self) -> None:
        self.after(0.1, TickMsg())

    @on(TickMsg)
    async def tick(self, msg: TickMsg) -> None:
        if (self.run_directory / "enough").exists():
            self.stop()
            return
        self.number += 1
        try:
            await self.multiplier.tell(QuestionMsg(number=self.number, asker=self.me))
        except DeliveryError:
            pass  # its process is being started
        self.after(0.1, TickMsg())

    @on(AnswerMsg)
    def note(self, msg: AnswerMsg) -> None:
        with (self.run_directory / "answers").open("a") as file:
            print(msg.number, file=file)

def experiment(hosts: Hosts) -> Topology:
    topology = Topology("{name}")
    root = topology.node("learner")
    worker = topology.node("worker", on=hosts[-1])
    multiplier = worker.spawn("multiplier", Multiplier)
    topology.until(root.spawn("asker", Asker, multiplier))
    return topology
'''


def written(folder: Path, name: str) -> Path:
    file = folder / f"{name}.py"
    folder.mkdir()
    file.write_text(EXPERIMENT.format(name=name))
    file.with_name(f"{name}_rule.py").write_text("FACTOR = 1000\n")
    return file


def answers(run: Path) -> list[int]:
    path = run / "answers"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.fixture
def over_hosts(launch: Any) -> Callable[..., Any]:
    def begun(file: Path, *flags: str) -> Any:
        scratch = launch.folder / "scratch"
        scratch.mkdir()
        words = ("--launch", "local", "--hosts", "1", "--scratch", str(scratch), "--trace", "full", *flags)
        return launch.command("run", file, *words)

    return begun


def living(launched: Any, *words: str) -> list[Any]:
    """The processes of a run that live now, and whose command lines have these words in succession."""
    found = []
    for process in launched.look_for_children():
        try:
            line = " ".join(process.cmdline())
        except Exception:  # it has ended
            continue
        if f" {' '.join(words)} " in f" {line} ":
            found.append(process)
    return found


def workers(launched: Any) -> list[Any]:
    return living(launched, "node", "worker")


def agents(launched: Any) -> list[Any]:
    return living(launched, "orchestra", "host")


def libraries(process: Any) -> set[str]:
    """The packages of which a process has loaded an extension module."""
    files = (Path(region.path) for region in process.memory_maps())
    return {part for file in files if ".so" in file.name for part in file.parts}


def test_a_worker_that_starts_again_runs_the_old_code_and_a_replay_is_exact(
    over_hosts: Callable[..., Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path / "checkout", "fixed_code")
    launched = over_hosts(file)
    launched.until(lambda: list(tmp_path.glob("runs/*/*")) and answers(launched.run))
    (first,) = workers(launched)
    (agent,) = agents(launched)
    assert libraries(first) >= {"numpy"}
    assert not libraries(agent) & {"numpy", "torch", "llvmlite"}, "the agent has got the code, and its worker plays"
    launched.until(lambda: list(launched.folder.glob("scratch/**/traces/worker.*.trace")))  # it writes now and then
    file.with_name("fixed_code_rule.py").write_text("FACTOR = 7\n")
    file.write_text("raise RuntimeError('the checkout was edited')\n")
    first.kill()
    launched.until(lambda: list(launched.folder.glob("scratch/**/traces/worker.*.sent")))  # its name stays taken
    launched.until(lambda: [each for each in workers(launched) if each.pid != first.pid])
    known = len(answers(launched.run))
    launched.until(lambda: len(answers(launched.run)) > known + 3)
    (launched.run / "enough").touch()
    assert launched.ends() == 0, launched.story("failed")
    assert {number % 1000 for number in answers(launched.run)} == {0}

    traces = list((launched.run / "traces").glob("worker.*.trace"))
    assert len(traces) == 2, "one of each process"
    for process in ("0", "1"):
        assert main(["replay", str(launched.run), "--actor", "worker/multiplier", "--process", process]) == 0
    told = capfd.readouterr()
    assert told.out.count("all as recorded") == 2
    assert "this is a replay of the run's own" in told.err


def test_logs_and_output_of_a_host_are_in_the_run_directory(over_hosts: Callable[..., Any], tmp_path: Path) -> None:
    launched = over_hosts(written(tmp_path / "checkout", "forwarded_logs"))
    launched.until(lambda: list(tmp_path.glob("runs/*/*")) and len(answers(launched.run)) > 3)
    (launched.run / "enough").touch()
    assert launched.ends() == 0, launched.story("failed")
    (log,) = (launched.run / "logs" / "hosts").iterdir()
    assert log.name == "1-local-1.log"
    printed = [line.split(" ", 1)[1] for line in log.read_text().splitlines() if " worker asked for" in line]
    assert printed[: len(answers(launched.run))] == [f"worker asked for {n // 1000}" for n in answers(launched.run)]
    lines = (launched.run / "logs" / "worker.jsonl").read_text().splitlines()
    events = [json.loads(line)["event"] for line in lines]
    assert "connected" in events
    assert events[-1] == "node ends"
    assert not (launched.run / "code").exists()
