"""The command `orchestra replay`."""

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestra.cli.main import main
from orchestra.trace.format.layout import MAGIC, PREAMBLE

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
EXPERIMENT = '''
"""A source tells numbers, a sink adds them up and asks now and then."""

from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from orchestra import Actor, Axes, Escalate, Message, Ref, Request, Supervision, Topology, on


class NumbersMsg(Message):
    round: int
    values: Annotated[NDArray[np.float64], Axes("float64", "n")]


class SumMsg(Message):
    round: int
    total: float


class GoMsg(Message):
    round: int


class ScaleMsg(Request[float]):
    pass


class Source(Actor[GoMsg | ScaleMsg]):
    supervision: ClassVar[Supervision] = Escalate()

    def __init__(self, *, to: Ref[NumbersMsg], rounds: int, scale: float, fail_at: int) -> None:
        self.to = to
        self.rounds = rounds
        self.scale = scale
        self.fail_at = fail_at

    async def started(self) -> None:
        await self.me.tell(GoMsg(round=1))

    @on(GoMsg)
    async def go(self, msg: GoMsg) -> None:
        if msg.round == self.fail_at:
            raise ArithmeticError(f"round {msg.round} cannot be")
        await self.to.tell(NumbersMsg(round=msg.round, values=self.rng.random(300)))
        if msg.round < self.rounds:
            await self.me.tell(GoMsg(round=msg.round + 1))

    @on(ScaleMsg)
    def say_scale(self, msg: ScaleMsg) -> float:
        return self.scale


class Sink(Actor[NumbersMsg]):
    def __init__(self, *, log: Ref[SumMsg], rounds: int, weight: float = 1.0) -> None:
        self.log_to = log
        self.rounds = rounds
        self.weight = weight
        self.total = 0.0

    @on(NumbersMsg)
    async def add(self, msg: NumbersMsg) -> None:
        scale = await Ref("one/source").ask(ScaleMsg())
        self.total += self.weight * scale * float(msg.values.sum())
        print("the sink has", self.total)
        await self.log_to.tell(SumMsg(round=msg.round, total=self.total))
        if msg.round == self.rounds:
            self.stop()


class Log(Actor[SumMsg]):
    @on(SumMsg)
    def keep(self, msg: SumMsg) -> None:
        pass


def experiment(
    *,
    rounds: Annotated[int, Field(ge=1, description="numbers told")] = 6,
    scale: Annotated[float, Field(description="of each")] = 0.5,
    fail_at: Annotated[int, Field(description="round that fails")] = 0,
) -> Topology:
    """Lay it out."""
    topology = Topology("counting")
    node = topology.node("one")
    log = node.spawn("log", Log)
    sink = node.spawn("sink", Sink, log=log, rounds=rounds)
    node.spawn("source", Source, to=sink, rounds=rounds, scale=scale, fail_at=fail_at)
    topology.until(sink)
    return topology
'''


def run(folder: Path, *flags: str) -> tuple[int, Path]:
    file = folder / "counting.py"
    file.write_text(EXPERIMENT)
    code = main(["run", str(file), "--runs-dir", str(folder / "runs"), "--single-process", *flags])
    (path,) = folder.glob("runs/*/*")
    return code, path


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose every message was recorded."""
    code, path = run(tmp_path_factory.mktemp("counted"), "--trace", "full", "--seed", "5")
    assert code == 0
    return path


@pytest.fixture
def say(counted: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return what types `orchestra replay` with the run, and returns the exit code and what is said."""

    def typed(*words: str | Path, path: Path | None = None) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["replay", str(path or counted), *map(str, words)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return typed


Say = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("actor", ["one/source", "one/sink", "one/log"])
def test_every_actor_of_a_run_behaves_as_recorded(say: Say, actor: str) -> None:
    code, out, err = say("--actor", actor)
    assert (code, err) == (0, "")
    assert out.startswith(f"{actor}: ")
    assert out.endswith(": all as recorded\n")
    assert "the sink has" not in out  # what actors print was printed then


def test_a_delivery_is_printed_with_its_outputs(say: Say) -> None:
    code, out, _ = say("--actor", "one/sink", "--at", "2")
    first, second, *told = out.splitlines()
    assert code == 0
    assert first.startswith("delivery 2: NumbersMsg(round=2, values=float64[300] ")
    assert first.endswith(" from one/source#4")
    assert second.startswith("the sink has ")
    assert [line.partition("(")[0] for line in told] == ["  asked one/source ScaleMsg", "  told one/log SumMsg"]


def test_deliveries_are_found_by_type_and_by_condition(say: Say) -> None:
    _, every, _ = say("--actor", "one/log", "--type", "SumMsg")
    assert every.count("SumMsg(round=") == 6
    _, some, _ = say("--actor", "one/log", "--where", "round > 2 and 'sink' in sender", "--until", "6")
    assert [line.split("round=")[1][0] for line in some.splitlines()] == ["3", "4", "5"]
    code, _, err = say("--actor", "one/log", "--where", "round > 99")
    assert code == 2
    assert "one/log got no matching delivery" in err


def test_the_debugger_stops_at_the_first_line_of_the_handler(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("p msg.round, self.rounds\nn\np scale\nc\n"))
    code, out, _ = say("--actor", "one/sink", "--at", "3", "--pdb")
    assert code == 0
    lines = out.splitlines()
    stopped = next(index for index, line in enumerate(lines) if line.startswith("> "))
    assert lines[stopped].endswith("add()")
    assert lines[stopped + 1] == '-> scale = await Ref("one/source").ask(ScaleMsg())'
    assert "(Pdb) (3, 6)" in out
    assert "(Pdb) 0.5" in out
    assert sys.gettrace() is None or "pdb" not in repr(sys.gettrace())


def test_a_replay_stops_as_soon_as_a_condition_on_the_state_holds(say: Say) -> None:
    _, out, _ = say("--actor", "one/sink", "--where", "round > 0")
    totals = [float(line.rpartition("total=")[2].rstrip(")")) for line in out.splitlines() if "total=" in line]
    code, out, err = say("--actor", "one/sink", "--until", f"state.total > {(totals[2] + totals[3]) / 2}")
    assert (code, err) == (0, "")
    first, second, third = out.splitlines()
    assert first.endswith(": all as recorded")
    assert second.endswith(" holds before delivery 5")
    assert third.startswith("next: delivery 5: NumbersMsg(round=5")
    _, out, _ = say(
        "--actor", "one/sink", "--type", "NumbersMsg", "--until", f"state.total > {(totals[1] + totals[2]) / 2}"
    )
    assert [line[:10] for line in out.splitlines() if line.startswith("delivery")] == [
        f"delivery {n}" for n in (1, 2, 3)
    ]
    assert say("--actor", "one/sink", "--until", "state.log_to.address == 'one/log'")[0] == 0


def test_the_debugger_stops_at_the_delivery_after_a_condition_on_the_state_holds(
    say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("p msg.round\nc\n"))
    code, out, _ = say("--actor", "one/sink", "--until", "state.total > 0", "--pdb")
    assert code == 0
    assert "state.total > 0 holds before delivery 2\n" in out
    assert "(Pdb) 2\n" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--until", "state.total >"], "--until: 'state.total >' is not a condition"),
        (["--until", "total > 3"], "'total > 3' names something else than the state"),
        (["--until", "state.totals > 3"], "state.totals > 3 never holds: one/sink: 9 activations"),
        (["--until", "state.totals > 3"], "the attributes of one/sink are log_to, rounds, total, weight"),
        (["--until", "state.total > 1", "--check-determinism"], "--check-determinism takes the number of a delivery"),
    ],
)
def test_a_condition_that_cannot_hold_is_explained(say: Say, words: list[str], said: str) -> None:
    code, _, err = say("--actor", "one/sink", *words)
    assert code == 2
    assert said in err


def test_the_debugger_may_be_left(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("q\n"))
    code, out, _ = say("--actor", "one/sink", "--pdb")
    assert code == 0
    assert "delivery 1: NumbersMsg" in out


def test_a_deterministic_actor_passes_the_determinism_check(say: Say) -> None:
    code, out, _ = say("--actor", "one/sink", "--check-determinism")
    assert code == 0
    assert out == "one/sink: 9 activations, the same in 5 processes\n"


# What if


def test_a_changed_argument_is_compared_with_the_record(say: Say) -> None:
    code, out, _ = say("--actor", "one/sink", "--set", "weight=2.0")
    assert code == 0
    assert out.splitlines()[0] == "one/sink, deliveries 0 to 8, with weight=2.0:"
    assert "  asked one/source ScaleMsg: 6 as recorded\n" in out
    assert "  told one/log SumMsg: 6 different\n    first in delivery 1: total: recorded " in out


def test_a_changed_flag_is_compared_with_the_record(say: Say) -> None:
    _, out, _ = say("--actor", "one/source", "--set", "rounds=3")
    assert "  told one/source GoMsg: 3 as recorded, 3 missing\n" in out


def test_an_argument_can_change_at_a_delivery(say: Say) -> None:
    _, out, _ = say("--actor", "one/sink", "--set", "weight=2.0", "--at", "4")
    assert out.splitlines()[0] == "one/sink, deliveries 4 to 8, with weight=2.0, was 1.0:"
    assert "  told one/log SumMsg: 3 different\n" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "wait=2"], "--set wait: neither the experiment nor Sink has this setting"),
        (["--set", "weight"], "--set takes NAME=VALUE, got 'weight'"),
        (["--set", "rounds=0"], "--rounds: '0' is not allowed"),
        (["--set", "scale=2", "--at", "3"], "scale=2 changes no attribute of one/sink at birth"),
        (["--class", "nowhere.py:Sink"], "names no existing Python file"),
        (["--class", "{file}:Sunk"], "has no actor class 'Sunk'; it has "),
    ],
)
def test_an_impossible_change_is_explained(say: Say, counted: Path, words: list[str], said: str) -> None:
    words = [word.replace("{file}", str(counted.parents[2] / "counting.py")) for word in words]
    code, _, err = say("--actor", "one/sink", *words)
    assert code == 2
    assert said in err


@pytest.mark.parametrize(("at", "first"), [("0", "deliveries 0 to 8"), ("3", "deliveries 3 to 8")])
def test_an_edited_class_is_compared_with_the_record(say: Say, tmp_path: Path, at: str, first: str) -> None:
    edited = tmp_path / "edited.py"
    edited.write_text(EXPERIMENT.replace("self.total += self.weight", "self.total += 10 * self.weight"))
    code, out, _ = say("--actor", "one/sink", "--class", f"{edited}:Sink", "--at", at)
    assert code == 0
    assert out.startswith(f"one/sink, {first}, with the class Sink of edited.py:\n")
    assert "SumMsg: 6 different" in out if at == "0" else "SumMsg: 4 different" in out


# From trace to test


def test_a_trace_becomes_a_test_that_fails_when_the_actor_differs(say: Say, counted: Path, tmp_path: Path) -> None:
    shutil.copy(counted.parents[2] / "counting.py", tmp_path)
    test = tmp_path / "tests" / "test_sink.py"
    words = ("--actor", "one/sink", "--make-test", test, "--until", "5", "--experiment", tmp_path / "counting.py")
    code, out, _ = say(*words)
    assert code == 0
    assert out.startswith(f"wrote {test} and {test.with_suffix('.trace')} (")
    whole = sum(path.stat().st_size for path in counted.glob("traces/*"))
    assert test.with_suffix(".trace").stat().st_size < 0.9 * whole
    assert pytest_says(test) == 0
    file = tmp_path / "counting.py"
    file.write_text(file.read_text().replace("self.total += ", "self.total -= "))
    assert pytest_says(test) == 1
    code, _, err = say(*words, "--allow-changes")
    assert code == 2
    assert "exists; remove it, or give another name" in err


def pytest_says(path: Path) -> int:
    words = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", str(path)]
    command = [sys.executable, "-m", "pytest", *words]
    return subprocess.run(command, cwd=path.parent, env=ENVIRONMENT, capture_output=True).returncode


def test_no_test_is_written_that_would_fail(say: Say, counted: Path, tmp_path: Path) -> None:
    other = tmp_path / "counting.py"
    other.write_text(EXPERIMENT.replace("self.total += ", "self.total -= "))
    test = tmp_path / "test_sink.py"
    code, out, _ = say("--actor", "one/sink", "--experiment", other, "--allow-changes", "--make-test", test)
    assert code == 1
    assert "no test was written" in out
    assert not test.exists()
    code, _, err = say("--actor", "one/sink", "--make-test", tmp_path / "sink.txt")
    assert (code, "tests/test_NAME.py" in err) == (2, True)


# From a crash


def test_the_flight_record_of_a_crash_replays_to_the_same_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, path = run(tmp_path, "--fail-at", "4")
    assert code == 1
    assert list(path.glob("traces/*flight*.trace"))
    capsys.readouterr()
    assert main(["replay", str(path), "--actor", "one/source"]) == 0
    told = capsys.readouterr().out.splitlines()
    line = next(n for n, text in enumerate(EXPERIMENT.splitlines(), 1) if "cannot be" in text)
    assert told[0].endswith("all as recorded")
    assert told[1] == f"it fails as recorded: ArithmeticError: round 4 cannot be  ({tmp_path / 'counting.py'}:{line})"
    # Mended, it differs where it failed.
    mended = tmp_path / "mended" / "counting.py"
    mended.parent.mkdir()
    mended.write_text(EXPERIMENT.replace("if msg.round == self.fail_at:", "if msg.round == -1:"))
    words = ["--actor", "one/source", "--experiment", str(mended), "--allow-changes"]
    assert main(["replay", str(path), *words]) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "one/source differs in delivery 4, GoMsg from one/source#7: different action"
    assert told[1] == "  recorded  failed with ArithmeticError: round 4 cannot be"


# Bad input


def test_misuse_is_one_line_of_error(say: Say, counted: Path, tmp_path: Path) -> None:
    (tmp_path / "text.trace").write_bytes(b"no trace, but text that is long enough")
    (tmp_path / "old.trace").write_bytes(newer_version())
    for words, path, said in [
        ((), None, "orchestra replay needs --actor"),
        (("--actor", "one/snik"), None, "nothing was recorded of 'one/snik' (did you mean one/sink?); the recorded "),
        (("--actor", "one/sink", "--at", "1", "--type", "T"), None, "--at and --type both select deliveries"),
        (("--actor", "one/sink", "--at", "99"), None, "one/sink got no matching delivery"),
        (("--actor", "one/sink", "--incarnation", "3"), None, "has no incarnation 3"),
        (("--actor", "one/sink", "--tolerance", "-1"), None, "it must be 0 or more"),
        (("--actor", "one/sink", "--tolerance", "nan"), None, "it must be 0 or more"),
        (
            ("--actor", "one/sink", "--pdb", "--check-determinism"),
            None,
            "--pdb cannot be combined with --check-determinism",
        ),
        (("--actor", "one/sink"), tmp_path / "nowhere", "there is no run or trace"),
        (("--actor", "one/sink"), tmp_path / "text.trace", "is no trace: it begins with b'no trace'"),
        (
            ("--actor", "one/sink"),
            tmp_path / "old.trace",
            "has trace format version 99; this version of orchestra reads",
        ),
    ]:
        code, out, err = say(*words, path=path)
        assert (code, out) == (2, ""), words
        assert said in err, err
        assert err.count("\n") == 1


def newer_version() -> bytes:
    import struct
    import zlib

    begins = PREAMBLE.pack(MAGIC, 99, 0, 0)[:-4]
    return begins + struct.pack("<I", zlib.crc32(begins))


def test_the_error_of_a_changed_experiment_names_the_change(say: Say, tmp_path: Path) -> None:
    for change, words, said in [
        (("", ""), (), "has changed since the run (its SHA-256 was "),
        (
            ('node.spawn("sink", Sink', 'node.spawn("drain", Sink'),
            ("--allow-changes",),
            "the experiment no longer plans one/sink",
        ),
        (
            ("rounds: Ann", "turns: Ann"),
            ("--allow-changes",),
            "the experiment rejects the flags of the run: unknown flag",
        ),
        (('"sink", Sink, log=log, rounds=rounds', '"sink", Log'), ("--allow-changes",), "was a experiment_"),
        (("    total: float\n", "    totals: float\n"), ("--allow-changes",), "SumMsg has changed since the run"),
    ]:
        file = tmp_path / f"counting{len(list(tmp_path.iterdir()))}" / "counting.py"
        file.parent.mkdir()
        text = EXPERIMENT.replace(*change) + "\n# changed\n"
        if "turns" in change[1]:
            text = text.replace("rounds=rounds", "rounds=turns")
        file.write_text(text)
        actor = "one/log" if "SumMsg" in said else "one/sink"
        code, _, err = say("--actor", actor, "--experiment", file, *words)
        assert code == 2
        assert said in err, err
    gone = say("--actor", "one/sink", "--experiment", tmp_path / "gone.py")
    assert "gone.py' does not exist; give its path with --experiment FILE" in gone[2]


def test_a_digest_trace_cannot_replay_array_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, path = run(tmp_path, "--trace", "digest")
    assert main(["replay", str(path), "--actor", "one/log"]) == 0  # its messages hold no array
    assert main(["replay", str(path), "--actor", "one/sink"]) == 2
    assert "were not recorded, only its digest; record the run with --trace full" in capsys.readouterr().err


def test_a_message_type_excluded_from_the_trace_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, path = run(tmp_path, "--trace", "full", "--trace-exclude", "NumbersMsg")
    assert main(["replay", str(path), "--actor", "one/sink"]) == 2
    assert "the fields of NumbersMsg were left out of the trace" in capsys.readouterr().err


def test_a_flight_record_without_the_birth_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--rounds", "900", "--fail-at", "900", "--trace-flight-mib", "1")
    code, path = run(tmp_path, *flags)
    assert code == 1
    capsys.readouterr()
    assert main(["replay", str(path), "--actor", "one/sink"]) == 2
    said = capsys.readouterr().err
    assert "one/sink cannot be replayed from its birth: the record begins at " in said
    assert "record with --trace full" in said
