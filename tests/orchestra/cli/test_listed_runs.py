"""`ls` lists every run as it stands, `prune` removes old ones and never a running one, `ps` finds the running one."""

import contextlib
import json
import os
import platform
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestra import RunDirectory, UsageError
from orchestra.cli import ls, prune, ps
from orchestra.cli.main import main
from orchestra.clock import RealClock
from orchestra.runs import join_file, run_list
from orchestra.runs.run_lock import locked
from orchestra.runs.whole_files import write_json

DAY_S = 86_400.0


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make(name: str, days: float = 0.0, *, state: str | None = "done", experiment: str = "qmix_8m") -> RunDirectory:
    """Return a run that was started so many days ago."""
    run = RunDirectory(Path("runs") / experiment / name)
    run.path.mkdir(parents=True)
    run.write_config(experiment=None, flags={}, seed=0, argv=[], clock=RealClock())
    started = RealClock().now().timestamp() - days * DAY_S
    os.utime(run.config_path, (started, started))
    run.metrics.write_text('{"env_steps": 1}\n{"env_steps": 1500, "goal_steps": 2000, "test_win_rate": 0.25}\n{"env')
    if state is not None:
        write_json(run.summary, {"state": state})
    return run


def names() -> set[str]:
    return {run.path.name for run in run_list.runs_in(Path("runs"))}


@pytest.fixture
def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def running() -> Iterator[RunDirectory]:
    run = make("running", 40, state=None)
    with locked(run):
        yield run


@pytest.mark.usefixtures("running")
def test_ls_shows_every_run_as_it_stands(dead_pid: int, capsys: pytest.CaptureFixture[str]) -> None:
    make("finished", 3)
    stopped = make("stopped", 2, state="interrupted", experiment="coma_3m")
    (stopped.state / "steps-0000001500").mkdir(parents=True)
    (stopped.state / "steps-0000001500" / "learner.trainer.npz").write_bytes(bytes(5_000))
    killed = make("killed", 1, state=None)
    killed.lock.write_text(json.dumps({"host": platform.node(), "pid": dead_pid}))
    killed.metrics.unlink()

    assert main(["ls"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["RUN", "STATE", "STEPS", "EVALUATION", "AGE", "SIZE"]
    assert [(line[0].rpartition("/")[2], line[1]) for line in lines[1:-1]] == [
        ("killed", "killed"),
        ("stopped", "interrupted"),
        ("finished", "done"),
        ("running", "running"),
    ]
    assert lines[1][2:6] == ["-", "-", "1", "d"]
    assert lines[2][2:6] == ["1,500/2,000", "25%", "2", "d"]
    assert lines[-1][:2] == ["4", "runs,"]

    assert main(["ls", "--json"]) == 0
    rows = {row["run"]: row for row in json.loads(capsys.readouterr().out)}
    row = rows["runs/coma_3m/stopped"]
    assert 2 * DAY_S <= row.pop("age_s") < 2 * DAY_S + 3600
    assert 5_000 <= row.pop("bytes") < 9_000
    assert row == {
        "run": "runs/coma_3m/stopped",
        "experiment": "coma_3m",
        "state": "interrupted",
        "steps": 1500,
        "goal_steps": 2000,
        "evaluation": 0.25,
        "evaluation_return": None,
        "resume": "orchestra run --resume runs/coma_3m/stopped",
    }


def test_ls_of_no_runs_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls"]) == 0
    assert capsys.readouterr().out == "there is no run in 'runs'\n"
    assert main(["ls", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize("command", [["ls"], ["prune", "--keep", "1"]])
def test_a_folder_of_runs_that_is_named_must_be_there(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").touch()
    for name, said in (("elsewhere", "does not exist"), ("file", "is no folder")):
        assert main([*command, "--runs-dir", name]) == 2
        assert capsys.readouterr().err == f"orchestra: error: --runs-dir: '{name}' {said}\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5, "5 s"), (60, "1 min"), (3_700, "1 h 1 min"), (90_000, "1 d 1 h"), (1e7, "115 d 17 h")],
)
def test_an_age_is_told_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert ls.age(seconds) == text


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize(
    ("flags", "left"),
    [
        (["--keep", "1"], {"running", "new", "other"}),
        (["--keep", "2"], {"running", "new", "old", "other"}),
        (["--keep", "0"], {"running"}),
        (["--older-than", "10d"], {"running", "new", "other"}),
        (["--older-than", "2w"], {"running", "new", "other", "old"}),
        (["--keep", "1", "--older-than", "2w"], {"running", "new", "other", "old"}),
        (["--older-than", "1h", "--keep=0"], {"running", "new"}),
    ],
)
def test_prune_removes_what_is_beyond_all_its_limits_and_never_a_running_run(flags: list[str], left: set[str]) -> None:
    make("new")
    make("old", 12)
    make("oldest", 30, state="failed")
    make("other", 5, experiment="coma_3m")
    before = names()
    assert main(["prune", "--dry-run", *flags]) == 0
    assert names() == before
    assert main(["prune", "--yes", *flags]) == 0
    assert names() == left
    assert Path("runs/coma_3m").exists() == ("other" in left)


def test_prune_says_what_it_removed(capsys: pytest.CaptureFixture[str]) -> None:
    (make("big").path / "file").write_bytes(bytes(3_000_000))
    assert main(["prune", "--keep", "1"]) == 0
    assert capsys.readouterr().out == "there is no run to remove\n"
    assert main(["prune", "--keep", "0", "--yes"]) == 0
    printed = capsys.readouterr().out
    assert "runs/qmix_8m/big" in printed
    assert printed.endswith("\nremoved 3.0 MB\n")


@pytest.mark.parametrize(
    ("answer", "removed"), [("y", True), ("YES", True), ("n", False), ("", False), ("what", False)]
)
def test_prune_asks_before_it_removes(monkeypatch: pytest.MonkeyPatch, answer: str, removed: bool) -> None:
    make("old")
    monkeypatch.setattr(prune.sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda prompt: answer)
    assert main(["prune", "--keep", "0"]) == 0
    assert (names() == set()) == removed


def test_prune_keeps_a_run_that_was_resumed_meanwhile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make("resumed")
    with contextlib.ExitStack() as stack:
        monkeypatch.setattr(prune, "print_table", lambda runs: stack.enter_context(locked(run)))
        assert main(["prune", "--keep", "0", "--yes"]) == 0
    assert names() == {"resumed"}
    assert "orchestra: kept: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "orchestra prune needs --keep N, --older-than AGE or both, which say what to remove"),
        (["--keep", "-1"], "--keep: -1 is not allowed: it must be 0 or more"),
        (["--older-than", "3x"], "--older-than: '3x' is no age; write a number and m, h, d or w, as in 12h or 30d"),
        (["--older-than", ""], "--older-than: '' is no age; write a number and m, h, d or w, as in 12h or 30d"),
        (
            ["--keep", "0"],
            "orchestra prune asks before it removes runs, and stdin is no terminal; add --yes or --dry-run",
        ),
    ],
)
def test_a_misuse_of_prune_removes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    make("old", 100)
    monkeypatch.setattr(prune.sys.stdin, "isatty", lambda: False, raising=False)
    assert main(["prune", *flags]) == 2
    assert capsys.readouterr().err == f"orchestra: error: {said}\n"
    assert names() == {"old"}


def test_ps_and_top_select_the_newest_run_that_is_running(running: RunDirectory) -> None:
    make("newer", 1)
    other = make("longer", 50, state=None)
    options = Namespace(run=None, runs_dir=Path("runs"))
    with locked(other), join_file.opened(running, join_file.JoinInfo("tcp://127.0.0.1:1", bytes(32), os.getpid())):
        run, info = ps.run_of(options)
    assert run.path == running.path
    assert info.address == "tcp://127.0.0.1:1"


def test_ps_names_the_newest_run_where_none_is_running(dead_pid: int) -> None:
    make("older", 2)
    newest = make("newest", state="interrupted")
    newest.lock.write_text(json.dumps({"host": platform.node(), "pid": dead_pid}))
    with pytest.raises(UsageError, match="the run in 'runs/qmix_8m/newest' is over: interrupted"):
        ps.run_of(Namespace(run=None, runs_dir=Path("runs")))
    with pytest.raises(UsageError, match="there is no run in 'elsewhere'"):
        ps.run_of(Namespace(run=None, runs_dir=Path("elsewhere")))
