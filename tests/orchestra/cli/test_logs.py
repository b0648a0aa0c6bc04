"""`logs` merges what all nodes and hosts of a run have logged and printed by the head's clock."""

import json
from pathlib import Path

import pytest

from orchestra import RunDirectory
from orchestra.cli import logs
from orchestra.cli.main import main
from orchestra.clock import RealClock

DAY = "2026-01-02T"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path / "runs", "logged", 0, clock=RealClock())
    run.write_config(experiment=None, flags={}, seed=0, argv=[], clock=RealClock())
    config = run.config() | {
        "placement": {"learner": 0, "worker-1": 1, "worker-2": 2},
        "hosts": [{"slot": 0, "name": "here"}, {"slot": 1, "name": "cpu1"}, {"slot": 2, "name": "cpu2"}],
    }
    run.config_path.write_text(json.dumps(config))
    for node, second in (("learner", 1), ("worker-1", 3), ("worker-2", 2)):
        add(run, node, f"{DAY}10:00:0{second}.500000Z", "begins")
    (run.logs / "hosts").mkdir()
    (run.logs / "hosts" / "1-cpu1.log").write_text(f"{DAY}10:00:02.750+00:00 worker-1 hello there\nnot a line\n")
    return run


def add(run: RunDirectory, node: str, time: str, event: str) -> None:
    with (run.logs / f"{node}.jsonl").open("a") as file:
        file.write(json.dumps({"timestamp": time, "level": "info", "node": node, "event": event, "steps": 3}) + "\n")


def shown(capsys: pytest.CaptureFixture[str], *words: str | Path) -> list[str]:
    assert main(["logs", *map(str, words)]) == 0
    return capsys.readouterr().out.splitlines()


def test_lines_of_all_nodes_and_hosts_are_in_order(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, run.path) == [
        "10:00:01 INFO learner  begins  steps=3",
        "10:00:02 INFO worker-2  begins  steps=3",
        "10:00:02 worker-1  hello there",
        "10:00:03 INFO worker-1  begins  steps=3",
    ]


@pytest.mark.parametrize("host", ["1", "cpu1"])
def test_one_host_is_selected_by_slot_or_name(run: RunDirectory, capsys: pytest.CaptureFixture[str], host: str) -> None:
    assert [line.split()[-2:] for line in shown(capsys, run.path, "--host", host)] == [
        ["hello", "there"],
        ["begins", "steps=3"],
    ]


def test_a_host_that_the_run_has_not_is_refused(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", str(run.path), "--host", "cpu7"]) == 2
    assert "has no host 'cpu7'; its hosts are 0 (here), 1 (cpu1), 2 (cpu2)" in capsys.readouterr().err


def test_a_run_on_one_machine_is_shown_as_well(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    (run.logs / "hosts" / "1-cpu1.log").unlink()
    config = run.config()
    del config["placement"], config["hosts"]
    run.config_path.write_text(json.dumps(config))
    assert len(shown(capsys, run.path)) == 3


def test_later_lines_follow_and_each_is_shown_once_when_it_is_whole(
    run: RunDirectory, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter(["", "later", "end"])

    def wait(seconds: float) -> None:
        match next(looks):
            case "later":
                add(run, "learner", f"{DAY}10:00:09Z", "later")
                with (run.logs / "learner.jsonl").open("a") as file:
                    file.write('{"timestamp": "torn')
            case "end":
                raise KeyboardInterrupt

    monkeypatch.setattr(logs.time, "sleep", wait)
    assert main(["logs", str(run.path), "-f"]) == 130
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[-1] == "10:00:09 INFO learner  later  steps=3"
