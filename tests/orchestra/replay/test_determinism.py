"""`--check-determinism`: an actor that depends on more than its messages differs between fresh processes."""

import ast
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestra.cli.main import main
from orchestra.replay.determinism import HASH_SEEDS

EXPERIMENT = '''
"""Actors of which each depends on something else, and a source that tells them numbers."""

import asyncio
import datetime
import os
import random
import sys
import threading
import time

import numpy as np

from orchestra import Actor, Message, Ref, Request, Topology, on


class NumberMsg(Message):
    number: int


class FoundMsg(Message):
    texts: tuple[str, ...]


class DoubleMsg(Request[int]):
    number: int


class Cheat(Actor[NumberMsg]):
    """Tells a sink what it finds."""

    def __init__(self, *, sink: Ref[FoundMsg]) -> None:
        self.sink = sink
        self.names = {f"agent-{number}" for number in range(12)}

    @on(NumberMsg)
    async def handle(self, msg: NumberMsg) -> None:
        found = await self.find(msg.number) if msg.number == 2 else []
        await self.sink.tell(FoundMsg(texts=tuple(map(str, found))))

    async def find(self, number: int) -> list[object]:
        return sorted(self.names)


class Honest(Cheat):
    """Has what differs between processes in its state, and tells nothing that depends on it."""

    def __init__(self, *, sink: Ref[FoundMsg]) -> None:
        super().__init__(sink=sink)
        self.folder = self.run_directory / "checkpoints"
        self.unwritten = np.empty((300, 4), np.float32)
        self.bytes = np.arange(256, dtype=np.uint8)
        self.values = {Cheat, len, "text", 3}
        self.stream = sys.stdout

    async def find(self, number: int) -> list[object]:
        self.unwritten[:100] = number
        asked = [asyncio.create_task(self.double(n)) for n in range(6)]
        done, _ = await asyncio.wait(asked)
        return sorted(task.result() for task in done)

    async def double(self, number: int) -> int:
        return await Ref("one/doubler").ask(DoubleMsg(number=number))


class Text(Cheat):
    async def find(self, number: int) -> list[object]:
        return list(self.names)


class Pair(Cheat):
    async def find(self, number: int) -> list[object]:
        return list({"left", "right"})  # in the same order under the first two hash seeds


class Hash(Cheat):
    async def find(self, number: int) -> list[object]:
        return [hash("agent") % 1000]


class Pid(Cheat):
    async def find(self, number: int) -> list[object]:
        return [os.getpid()]


class Wait(Honest):
    async def find(self, number: int) -> list[object]:
        asked = [asyncio.create_task(self.double(n)) for n in range(6)]
        done, _ = await asyncio.wait(asked)
        return [task.result() for task in done]


class Thing:
    def __init__(self, number: int) -> None:
        self.number = number


class Objects(Cheat):
    async def find(self, number: int) -> list[object]:
        return [thing.number for thing in {Thing(number) for number in range(12)}]


class Clock(Cheat):
    async def find(self, number: int) -> list[object]:
        return [time.time(), datetime.datetime.now()]


class Global(Cheat):
    async def find(self, number: int) -> list[object]:
        return [random.random()]


class Numpy(Cheat):
    async def find(self, number: int) -> list[object]:
        return [np.random.rand()]


class Thread(Cheat):
    async def find(self, number: int) -> list[object]:
        def write() -> None:
            self.hidden = os.getpid()

        writer = threading.Thread(target=write, name="writer")
        writer.start()
        writer.join()
        return []


class Memory(Cheat):
    async def find(self, number: int) -> list[object]:
        return [np.empty(9).sum()]


class State(Cheat):
    async def find(self, number: int) -> list[object]:
        self.mine = {"scores": [1, random.random()]}
        return []


class Doubler(Actor[DoubleMsg]):
    @on(DoubleMsg)
    def double(self, msg: DoubleMsg) -> int:
        return 2 * msg.number


class Sink(Actor[FoundMsg]):
    """Ends the run when every cheat has handled its messages."""

    def __init__(self, *, left: int) -> None:
        self.left = left

    @on(FoundMsg)
    def keep(self, msg: FoundMsg) -> None:
        self.left -= 1
        if self.left == 0:
            self.stop()


class Source(Actor[NumberMsg]):
    def __init__(self, *, cheats: list[Ref[NumberMsg]]) -> None:
        self.cheats = cheats

    async def started(self) -> None:
        for number in range(1, 4):
            for cheat in self.cheats:
                await cheat.tell(NumberMsg(number=number))

    @on(NumberMsg)
    def ignore(self, msg: NumberMsg) -> None: ...


def experiment() -> Topology:
    topology = Topology("cheats")
    node = topology.node("one")
    node.spawn("doubler", Doubler)
    kinds = [Honest, Text, Pair, Hash, Pid, Wait, Objects, Clock, Global, Numpy, Thread, Memory, State]
    sink = node.spawn("sink", Sink, left=3 * len(kinds))
    cheats = [node.spawn(kind.__name__.lower(), kind, sink=sink) for kind in kinds]
    node.spawn("source", Source, cheats=cheats)
    topology.until(sink)
    return topology
'''


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run with an actor for each kind of dependence."""
    folder = tmp_path_factory.mktemp("cheats")
    (folder / "cheats.py").write_text(EXPERIMENT)
    flags = ("--runs-dir", str(folder / "runs"), "--single-process", "--trace", "full", "--quiet")
    assert main(["run", str(folder / "cheats.py"), *flags]) == 0
    yield from folder.glob("runs/*/*")


def checked(path: Path, actor: str, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["replay", str(path), "--actor", f"one/{actor}", "--check-determinism", *words])
    printed = capsys.readouterr()
    assert printed.err == ""
    return code, printed.out


@pytest.mark.parametrize(
    ("actor", "suspect"),
    [
        pytest.param("text", "the order of a set of texts", marks=pytest.mark.slow),
        ("pair", "the order of a set of texts"),
        ("pid", "os.getpid, read at"),
        ("wait", "the order of a set of tasks, as asyncio.wait returns it"),
        pytest.param("objects", "or of other objects", marks=pytest.mark.slow),
        pytest.param("hash", "or hash()", marks=pytest.mark.slow),
        pytest.param("clock", "time.time, read at", marks=pytest.mark.slow),
        pytest.param("global", "Python's global random numbers", marks=pytest.mark.slow),
        pytest.param("numpy", "numpy's global random numbers", marks=pytest.mark.slow),
        pytest.param("memory", "elements of an uninitialised numpy array", marks=pytest.mark.slow),
    ],
)
def test_a_dependence_on_the_process_is_found_and_its_source_named(
    path: Path, capsys: pytest.CaptureFixture[str], actor: str, suspect: str
) -> None:
    code, said = checked(path, actor, capsys)
    assert code == 1
    lines = said.splitlines()
    assert lines[0] == (
        f"one/{actor} differs in delivery 2, NumberMsg from one/source#{lines[0].partition('#')[2].partition(':')[0]}: "
        "told one/sink FoundMsg"
    )
    assert lines[1].startswith("  field     texts[")
    assert [line[:12] for line in lines[2:4]] == ["  once      ", "  again     "]
    assert lines[2][12:] != lines[3][12:]
    assert suspect in lines[4]
    assert lines[4].startswith("  suspect   ")


@pytest.mark.parametrize(
    ("actor", "place", "suspect"),
    [
        ("state", "mine['scores'][1]", "Python's global random numbers"),
        pytest.param("thread", "hidden", "a thread of its own, writer", marks=pytest.mark.slow),
    ],
)
def test_state_that_no_output_shows_is_compared_as_well(
    path: Path, capsys: pytest.CaptureFixture[str], actor: str, place: str, suspect: str
) -> None:
    code, said = checked(path, actor, capsys)
    assert code == 1
    assert ": its state afterwards\n" in said
    assert f"  field     {place}\n" in said
    assert suspect in said


def test_the_hash_seeds_give_each_two_of_many_words_both_orders() -> None:
    words = ["a", "b", "c", "x", "y", "left", "right", "up", "down", "red", "blue", "obs", "action", "reward"]
    words += ["agent-0", "agent-1", "worker-0", "worker-1", "learner", "proxy"]
    program = (
        "import itertools, sys; print([list({*two})[0] == two[0] for two in itertools.combinations(sys.argv[1:], 2)])"
    )
    orders = []
    for seed in HASH_SEEDS:
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        command = [sys.executable, "-c", program, *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        orders.append(ast.literal_eval(done.stdout))
    for two, found in zip(itertools.combinations(words, 2), zip(*orders, strict=True), strict=True):
        assert set(found) == {False, True}, two


def test_what_differs_between_processes_and_has_no_effect_is_no_difference(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked(path, "honest", capsys) == (0, "one/honest: 6 activations, the same in 5 processes\n")
    assert checked(path, "pid", capsys, "--until", "2") == (0, "one/pid: 2 activations, the same in 5 processes\n")


def test_a_check_leaves_no_temporary_files(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert checked(path, "honest", capsys, "--until", "2")[0] == 0
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_a_replaying_process_is_told(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["replay", str(path), "--actor", "one/nobody", "--check-determinism"])
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    assert "nothing was recorded of 'one/nobody'" in printed.err
