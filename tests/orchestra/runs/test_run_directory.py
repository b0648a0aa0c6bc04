"""A run's folder is its own, says what was started, and never holds half a file or a secret."""

import hashlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from orchestra.clock import TimerHandle
from orchestra.errors import CannotWrite, UsageError
from orchestra.runs.run_directory import RunDirectory, git_state
from orchestra.runs.whole_files import write_json


@dataclass
class StoppedClock:
    """It is always half past twelve."""

    time: datetime = datetime(2026, 3, 1, 12, 30, 5, tzinfo=UTC)

    def monotonic(self) -> float:
        return 0.0

    def now(self) -> datetime:
        return self.time

    def call_later(self, delay: float, call: Callable[[], None]) -> TimerHandle:
        raise AssertionError("a run directory needs no timer")


CLOCK = StoppedClock()


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "runs", "qmix_8m", 1, clock=CLOCK)


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    file = tmp_path / "qmix_8m.py"
    file.write_text("def experiment(): ...\n")
    return file


def written(run: RunDirectory, experiment: Path, *, argv: list[str] | None = None, **flags: object) -> dict:
    run.write_config(experiment=experiment, flags=flags, seed=1, argv=argv or ["orchestra", "run"], clock=CLOCK)
    return RunDirectory.open(run.path).config()


def test_a_run_is_kept_under_its_experiment_its_start_and_its_seed(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "deep" / "runs", "qmix_8m", 7, clock=CLOCK)

    assert run.path == tmp_path / "deep" / "runs" / "qmix_8m" / "20260301-123005-seed7"
    assert all(folder.is_dir() for folder in (run.logs, run.checkpoints, run.tensorboard, run.traces))
    assert {run.metrics.name, run.summary.name, run.curve.name, run.message_counts.name, run.config_path.name} == {
        "metrics.jsonl",
        "summary.json",
        "curve.png",
        "message_counts.json",
        "config.json",
    }
    assert repr(run) == f"<RunDirectory {run.path}>"


def test_runs_that_start_in_one_second_have_folders_of_their_own(tmp_path: Path) -> None:
    names = [RunDirectory.create(tmp_path, "qmix_8m", 7, clock=CLOCK).path.name for _ in range(3)]
    assert names == ["20260301-123005-seed7", "20260301-123005-seed7-2", "20260301-123005-seed7-3"]


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(UsageError) as caught:
        RunDirectory.create(tmp_path / "runs", "qmix_8m", 1, clock=CLOCK)
    assert str(caught.value) == f"cannot make a run directory in '{tmp_path / 'runs'}': Not a directory"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_without_permission_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(CannotWrite, match=r"Permission denied$"):
        RunDirectory.create(tmp_path / "runs", "qmix_8m", 1, clock=CLOCK)


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x"])
def test_a_name_that_would_lead_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        RunDirectory.create(tmp_path, name, 1, clock=CLOCK)
    assert str(caught.value) == f"an experiment's name becomes a folder, and {name!r} cannot be one"
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_run_directory_is_refused_with_what_is_missing(tmp_path: Path, run: RunDirectory) -> None:
    (tmp_path / "file").write_text("")

    def refusal(path: Path) -> str:
        with pytest.raises(UsageError) as caught:
            RunDirectory.open(path)
        return str(caught.value)

    assert refusal(tmp_path / "gone") == f"there is no run directory '{tmp_path / 'gone'}'"
    assert refusal(tmp_path / "file") == f"'{tmp_path / 'file'}' is a file, not a run directory"
    assert refusal(run.path) == f"'{run.path}' is not a run directory: it has no config.json"
    run.config_path.write_text("{")
    assert refusal(run.path).startswith(f"'{run.path}': cannot read its config.json: Expecting property name")
    run.config_path.write_text("[]")
    assert refusal(run.path) == f"'{run.path}': its config.json is no JSON object"


def test_the_config_says_what_was_started(run: RunDirectory, experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(experiment.parent)
    config = written(run, Path("qmix_8m.py"), argv=["orchestra", "run", "x.py"], workers=2, out=Path("runs"), clip=None)

    assert config["experiment"] == {
        "file": "qmix_8m.py",
        "absolute": str(experiment),
        "function": "experiment",
        "sha256": hashlib.sha256(experiment.read_bytes()).hexdigest(),
    }
    assert config["flags"] == {"workers": 2, "out": "runs", "clip": None}
    assert config["seed"] == 1
    assert config["command"] == ["orchestra", "run", "x.py"]
    assert datetime.fromisoformat(config["started"]) == CLOCK.time
    assert config["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert config["versions"]["numpy"] == np.__version__
    assert set(config["versions"]) == {"orchestra", "python", "numpy", "torch"}
    assert config["cpus"] == os.cpu_count()


def test_writing_the_config_does_not_import_torch(tmp_path: Path, experiment: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from orchestra.clock import RealClock
from orchestra.runs.run_directory import RunDirectory
run = RunDirectory.create(Path({str(tmp_path)!r}), "x", 1, clock=RealClock())
run.write_config(experiment=Path({str(experiment)!r}), flags={{}}, seed=1, argv=[], clock=RealClock())
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_no_secret_is_written(run: RunDirectory, experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRA_SECRET", "hush")
    argv = ["orchestra", "run", "--secret", "hush", "--join-token=hush", "--max-tokens", "5", "--api-key=hush"]

    config = written(run, experiment, argv=argv, run_secret="hush", tokens=5)

    assert "hush" not in run.config_path.read_text()
    assert config["command"][2:] == [
        "--secret",
        "(not recorded)",
        "--join-token=(not recorded)",
        "--max-tokens",
        "5",
        "--api-key=(not recorded)",
    ]
    assert config["flags"] == {"run_secret": "(not recorded)", "tokens": 5}


def test_the_code_s_commit_is_recorded_and_whether_it_was_changed_since(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert git_state(tmp_path) is None
    git("init", "--quiet")
    assert git_state(tmp_path) is None  # no commit yet
    (tmp_path / "code.py").write_text("1")
    git("add", "code.py")
    git("commit", "--quiet", "--message", "One")
    assert git_state(tmp_path) == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "new.txt").write_text("not tracked")
    assert git_state(tmp_path) == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "code.py").write_text("2")
    assert git_state(tmp_path) == {"commit": git("rev-parse", "HEAD"), "dirty": True}


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) is None


def test_a_file_of_json_holds_what_json_can_hold(tmp_path: Path) -> None:
    file = tmp_path / "summary.json"
    write_json(
        file,
        {
            "loss": math.nan,
            "best": [math.inf, np.float32(0.5), np.int64(3), np.float64("nan")],
            "at": Path("runs/x"),
            7: "Zürich",
        },
    )
    assert json.loads(file.read_text()) == {"loss": None, "best": [None, 0.5, 3, None], "at": "runs/x", "7": "Zürich"}


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "summary.json"
    write_json(file, {"won": 1})

    with pytest.raises(TypeError, match="not JSON serializable"):
        write_json(file, {"won": object()})

    def full_disk(descriptor: int) -> None:
        assert json.loads(file.read_text()) == {"won": 1}  # the old file stands until the new one is on the disk
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_json(file, {"won": 2})

    assert json.loads(file.read_text()) == {"won": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_a_written_file_may_be_read_by_others(tmp_path: Path) -> None:
    write_json(tmp_path / "summary.json", {})
    assert (tmp_path / "summary.json").stat().st_mode & 0o444 == 0o444


def test_a_later_run_sorts_after_an_earlier_one(tmp_path: Path) -> None:
    first = RunDirectory.create(tmp_path, "x", 1, clock=CLOCK)
    second = RunDirectory.create(tmp_path, "x", 1, clock=StoppedClock(CLOCK.time + timedelta(hours=12)))
    assert sorted([second.path, first.path]) == [first.path, second.path]
