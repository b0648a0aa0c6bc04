"""Charts get columns of numbers, and no more points than they can show."""

import json
from pathlib import Path
from typing import Any

from orchestra.dashboard.figures import POINTS, Figures, columns
from orchestra.dashboard.log_lines import LogLines
from orchestra.dashboard.shown_runs import ShownRuns, details


def test_what_is_no_finite_number_is_missing() -> None:
    records = [{"loss": 1, "state": "training", "won": True}, {"loss": float("nan"), "lag": 2.5}, {"loss": None}]
    assert columns(records) == {"loss": [1, None, None], "lag": [None, 2.5, None]}


def test_the_first_look_is_thinned_to_its_last_record_and_later_ones_are_whole(make_run: Any) -> None:
    run = make_run("one", records=3 * POINTS + 1)
    figures = Figures(run)
    first = figures.new()
    assert len(first["env_steps"]) <= POINTS
    assert first["env_steps"][-1] == 100 * 3 * POINTS
    assert figures.new() == {}
    with run.metrics.open("a") as file:
        file.write(json.dumps({"env_steps": 1}) + '\n{"env_steps": 2}\n{"env_')
    assert figures.new() == {"env_steps": [1, 2]}


def test_a_run_that_went_back_to_its_checkpoint_is_read_from_its_beginning(make_run: Any) -> None:
    run = make_run("one", records=4)
    figures = Figures(run)
    assert figures.new()["env_steps"] == [0, 100, 200, 300]
    assert not figures.anew
    kept = run.metrics.read_text().splitlines(keepends=True)[:2]
    run.metrics.write_text("".join(kept))
    assert figures.new()["env_steps"] == [0, 100]
    assert figures.anew
    with run.metrics.open("a") as file:
        file.write('{"env_steps": 150}\n')
    assert figures.new() == {"env_steps": [150]}
    assert not figures.anew


def test_runs_say_how_they_stand(make_run: Any, tmp_path: Path) -> None:
    make_run("one", seed=1, size=3)
    make_run("two", seed=2, size=3)
    make_run("other", seed=1, size=4, state="failed")
    rows = {row["name"]: row for row in ShownRuns(tmp_path / "runs").rows()}
    assert rows["one"]["state"] == "done"
    assert (rows["one"]["steps"], rows["one"]["goal"], rows["one"]["result"]) == (400, 1000, 2.0)
    assert rows["other"]["reason"] == "ValueError: no way out"
    assert rows["one"]["configuration"] == rows["two"]["configuration"] != rows["other"]["configuration"]
    assert len({row["id"] for row in rows.values()}) == 3


def test_a_run_that_is_named_is_shown_alone(make_run: Any, tmp_path: Path) -> None:
    make_run("one")
    two = make_run("two")
    assert [row["name"] for row in ShownRuns(tmp_path / "runs", [two]).rows()] == ["two"]


def test_details_have_the_configuration_and_say_what_is_missing(make_run: Any) -> None:
    told = details(make_run("one", size=3))
    assert told["flags"] == {"size": 3}
    assert told["messages"] == [{"sender": "a/x", "type": "StepMsg", "recipient": "b/y", "count": 7}]
    assert told["command"] == []
    assert "maze.py" in told["remarks"][0]


def test_damaged_lines_of_a_log_are_left_out(make_run: Any) -> None:
    lines = LogLines(make_run("one"))
    (line,) = lines.new()
    assert line["level"] == "error"
    assert "it broke" in line["text"]
    assert lines.new() == []
