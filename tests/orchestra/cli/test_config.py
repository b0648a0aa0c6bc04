"""`config` prints the command line that begins a run with the settings of another."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from orchestra import RunDirectory
from orchestra.cli.main import main
from orchestra.clock import RealClock
from orchestra.runs.experiment import own_experiments
from orchestra.runs.plan import OPTIONS, plan

EXPERIMENT = """
from orchestra import Actor, Topology

class Alone(Actor):
    pass

def experiment(*, steps: int = 10, names: tuple[str, ...] = (), rate: float | None = 0.5, fast: bool = True{more}):
    topology = Topology("alone")
    topology.until(topology.node("one").spawn("alone", Alone))
    return topology
"""
VALUES = {"steps": 20, "names": ["a b", "-c"], "rate": None, "fast": False}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "alone_of_config.py"
    path.write_text(EXPERIMENT.format(more=""))
    return path


def recorded(file: Path, folder: Path, values: dict[str, Any], **options: Any) -> RunDirectory:
    run = RunDirectory(folder)
    run.path.mkdir(parents=True)
    whole = {n: str(v) if isinstance(v, Path) else v for n, v in plan(file, **values, **options).options.items()}
    run.write_config(experiment=file, flags=values, options=whole, seed=options["seed"], argv=[], clock=RealClock())
    return run


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["config", *words]) == 0
    return shlex.split(capsys.readouterr().out)


def test_the_words_read_back_as_the_settings_of_the_run(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded(file, tmp_path / "run", VALUES, seed=3, single_process=True, trace="full", trace_include=("one/*",))
    begin, name, path, *words = printed(capsys, str(run.path))
    assert (begin, name, path) == ("orchestra", "run", str(file))
    assert words == [
        *("--steps=20", "--names=a b", "--names=-c", "--no-rate", "--no-fast"),
        *("--seed=3", "--single-process", "--trace=full", "--trace-include=one/*"),
    ]
    assert OPTIONS.parse(words[5:]) == OPTIONS.defaults | {
        "seed": 3,
        "single_process": True,
        "trace": "full",
        "trace_include": ("one/*",),
    }


def test_a_default_is_left_out_unless_all_are_asked_for(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded(file, tmp_path / "run", {"steps": 10, "names": [], "rate": 0.5, "fast": True}, seed=0)
    assert printed(capsys, str(run.path)) == ["orchestra", "run", str(file), "--seed=0"]
    assert printed(capsys, str(run.path), "--all") == [
        *("orchestra", "run", str(file), "--steps=10", "--rate=0.5", "--fast", "--seed=0")
    ]


def test_an_experiment_that_comes_with_orchestra_is_called_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded(own_experiments()["dmcaf/qmix"], tmp_path / "run", {"steps": 5}, seed=4)
    assert printed(capsys, str(run.path)) == ["orchestra", "run", "dmcaf/qmix", "--steps=5", "--seed=4"]


def test_a_parameter_that_is_gone_is_told_and_the_others_are_printed(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(EXPERIMENT.format(more=", old: int = 1"))
    run = recorded(file, tmp_path / "run", {"steps": 20, "old": 7}, seed=0)
    file.write_text(EXPERIMENT.format(more=""))
    assert main(["config", str(run.path)]) == 0
    told = capsys.readouterr()
    assert told.err == f"orchestra: {file} has no parameter 'old' any more, which was 7\n"
    assert shlex.split(told.out) == ["orchestra", "run", str(file), "--steps=20", "--seed=0"]


def test_a_run_without_a_file_or_a_config_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    assert main(["config", str(run.path)]) == 2
    assert "it has no config.json" in capsys.readouterr().err
    run.write_config(experiment=None, flags={}, seed=0, argv=[], clock=RealClock())
    assert main(["config", str(run.path)]) == 2
    assert "its experiment stands in no file" in capsys.readouterr().err
