"""Flags may stand before the file, a closed pipe ends a command quietly, too low a limit of files is one sentence."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from orchestra import Flags, UsageError, load_experiment
from orchestra.cli import run
from orchestra.cli.main import main
from orchestra.hosts import open_files
from orchestra.runs.flags import Flag
from orchestra.runs.plan import OPTIONS

EXPERIMENT = Path(__file__).resolve().parents[3] / "experiments" / "qmix_8m.py"
FLAGS = Flags.of(load_experiment(EXPERIMENT))
VALUES = {bool: "", int: "3", float: "0.5", str: "some", Path: "some/folder", tuple: "some"}
ALL = [flag for flag in (*OPTIONS, *FLAGS) if flag.name != "resume"]


def spellings(flag: Flag) -> list[list[str]]:
    """Return every way to give a flag."""
    value = str(flag.choices[0]) if flag.choices else VALUES[flag.base]
    found = [[flag.option]] if flag.base is bool else [[flag.option, value], [f"{flag.option}={value}"]]
    return found + ([[flag.negation]] if flag.negation else [])


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("3", "some"):
        (tmp_path / name).mkdir()  # a value may well be the name of a folder


@pytest.mark.parametrize("flag", ALL, ids=lambda flag: flag.name)
def test_every_flag_may_stand_before_the_file(flag: Flag) -> None:
    for words in spellings(flag):
        for before, after in ((words, ["--workers", "2"]), ([*words, "--dry-run"], [])):
            path, rest, flags = run._file_and_flags([*before, "qmix_8m", *after])
            assert (path, rest) == (Path("qmix_8m"), [*before, *after])
            assert [one.name for one in flags] == [one.name for one in FLAGS]


def test_all_flags_together_may_stand_before_the_file() -> None:
    words = [word for flag in ALL for word in spellings(flag)[0]]
    path, rest, _ = run._file_and_flags([*words, "qmix_8m"])
    assert (path, rest) == (Path("qmix_8m"), words)


def test_a_value_that_is_a_python_file_is_not_taken_for_the_experiment() -> None:
    Path("map.py").write_text("raise RuntimeError")
    for words in (["--scenario", "map.py"], ["--scenario", "map.py", "--double-q"]):
        for file in ("qmix_8m", str(EXPERIMENT)):
            assert run._file_and_flags([*words, file])[0] == Path(file)


# Closed pipes ---------------------------------------------------------------------------------------------------------


def until_closed(*words: str) -> tuple[int, str]:
    """Carry out a command that writes each line at once into a pipe that nobody reads; return exit code and stderr."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-u", "-m", "orchestra", *words],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    os.close(writing)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["ls"],
        ["run", str(EXPERIMENT), "--help"],
        ["run", str(EXPERIMENT), "--dry-run"],
        ["trace", "--help"],
    ],
    ids=" ".join,
)
def test_a_closed_pipe_ends_a_command_quietly(words: list[str]) -> None:
    run_directory = Path("runs/some/run")
    run_directory.mkdir(parents=True)
    (run_directory / "config.json").write_text("{}")
    assert until_closed(*words) == (0, "")


def test_a_broken_pipe_of_something_else_is_no_quiet_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: list[str]) -> int:
        raise BrokenPipeError

    monkeypatch.setattr("orchestra.cli.ls.command", fail)
    with pytest.raises(BrokenPipeError):
        main(["ls"])


# Open files -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The limits of this process as the code under test sees and sets them, the last one last."""
    found = [(100, 200)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: found[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: found.append(pair))
    return found


def test_a_run_raises_its_limit_of_open_files_as_far_as_it_needs(limits: list[tuple[int, int]]) -> None:
    open_files.check_open_files(9)
    assert limits == [(100, 200)]
    open_files.check_open_files(34)
    assert limits[1:] == [(200, 200)]


def test_too_low_a_limit_of_open_files_is_one_sentence(
    limits: list[tuple[int, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError):
        open_files.check_open_files(35)
    assert main(["run", "qmix_8m", "--workers", "40"]) == 2
    assert capsys.readouterr().err == (
        "orchestra: error: this run opens up to 232 files in one process, and `ulimit -n` allows 200; raise the limit, "
        "or use fewer processes\n"
    )
    assert not Path("runs").exists()


def test_a_process_that_reaches_its_limit_says_so_in_one_sentence() -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -n 16; exec "$0" -m orchestra run "$1" --single-process', sys.executable, EXPERIMENT],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode in (1, 2)
    assert done.stderr.count("\n") == 1
    assert "`ulimit -n` allows 16" in done.stderr
