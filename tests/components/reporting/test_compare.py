"""Runs side by side: seeds become quartiles, everything else a line of its own, and a slip one sentence."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest

from components.reporting.compare import command
from components.reporting.comparison import grouped, read_trial, table
from components.reporting.figure import comparison_figure
from orchestra import RunDirectory, UsageError

FILE = Path(__file__)


class Clock:
    def __init__(self) -> None:
        self.seconds = 0

    def now(self) -> datetime:
        return datetime(2026, 3, 1, tzinfo=UTC)


def played(folder: Path, seed: int, wins: list[float], *, name: str = "qmix_3m", **flags: Any) -> Path:
    """A run with a test of that win rate after each 1,000 steps, 5 updates and half a minute."""
    run = RunDirectory.create(folder, name, seed, clock=Clock())  # type: ignore[arg-type]  # it only tells the time
    run.write_config(experiment=FILE, flags={"td_lambda": 0.8, **flags}, seed=seed, argv=[], clock=Clock())  # type: ignore[arg-type]  # it only tells the time
    records = []
    for k, win in enumerate(wins):
        record = {
            "env_steps": 1000 * k,
            "elapsed_s": 30.0 * k,
            "updates": 5 * k,
            "tests": k + 1,
            "test_env_steps": 1000 * k,
            "test_win_rate": win,
            "test_return": 20 * win,
        }
        # Every record repeats the last test, as a run's records do.
        records += [record, {**record, "env_steps": 1000 * k + 500, "elapsed_s": 30.0 * k + 15, "updates": 5 * k + 2}]
    run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    return run.path


def refusal(*arguments: str | Path) -> str:
    with pytest.raises(UsageError) as caught:
        command([str(argument) for argument in arguments])
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_trial_has_each_test_once_and_says_when_one_won_enough(tmp_path: Path) -> None:
    trial = read_trial(played(tmp_path, 3, [0.0, 0.5, 0.9, 0.2]))
    assert (trial.name, trial.seed) == ("qmix_3m", 3)
    assert trial.env_steps.tolist() == [0, 1000, 2000, 3000]
    assert trial.minutes.tolist() == [0, 0.5, 1.0, 1.5]
    assert trial.returns.tolist() == [0, 10, 18, 4]
    assert (trial.reached_at(trial.env_steps), trial.reached_at(trial.updates)) == (2000, 10)
    # From the first record with steps (500 after 15 s, 2 updates) to the last (3,500 after 105 s, 17 updates).
    assert trial.steps_per_s == pytest.approx(3000 / 90)
    assert trial.updates_per_s == pytest.approx(15 / 90)


@pytest.mark.parametrize(
    ("rates", "steps"),
    [
        ([0.0, 1.0, 1.0, 0.9, 0.8, 0.8], 1000),  # the mean of the five from 1,000 on is 0.9
        ([0.0, 1.0, 0.0, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0], 3000),  # one lucky test, and one unlucky one
        ([0.9, 0.9, 0.9, 0.9, 0.9], 0),
        ([0.0, 1.0, 1.0, 1.0, 1.0], None),  # not yet five that say so
        ([1.0, 1.0, 1.0, 1.0, 1.0, 0.0], None),  # lost again
        ([1.0, 1.0], None),
    ],
)
def test_a_trial_is_solved_from_where_every_five_tests_win_nine_tenths(
    tmp_path: Path, rates: list[float], steps: int | None
) -> None:
    trial = read_trial(played(tmp_path, 1, rates))
    assert trial.solved_at(trial.env_steps) == steps


def test_runs_that_cannot_be_won_are_compared_by_their_returns(tmp_path: Path, capsys) -> None:
    runs = [played(tmp_path, 1, [0.0, 0.5]), played(tmp_path, 1, [0.0, 1.0], name="ppo_CartPole-v1")]
    for record_file in (run / "metrics.jsonl" for run in runs[1:]):
        lines = [json.loads(line) | {"test_win_rate": None} for line in record_file.read_text().splitlines()]
        record_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    won, returned = table(grouped([read_trial(path) for path in runs]))
    assert (won["win rate at the end"], won["return"], returned["return"]) == ("25.0%", "5.00", "10.00")
    assert "win rate at the end" not in returned
    output = tmp_path / "both.png"
    assert command([*map(str, runs), "--output", str(output)]) == 0
    notes = output.with_suffix(".md").read_text().splitlines()
    assert notes[3].count(" | ") == notes[0].count(" | ")
    assert command([str(runs[1]), "--output", str(output)]) == 0
    capsys.readouterr()


def test_runs_that_differ_in_their_seed_alone_are_one_group(tmp_path: Path) -> None:
    paths = [played(tmp_path, seed, [0.0, 1.0], td_lambda=0.8) for seed in (1, 2)]
    paths += [played(tmp_path, 1, [0.0, 1.0], td_lambda=0.0), played(tmp_path, 1, [0.0, 1.0], name="vdn_3m")]
    groups = grouped([read_trial(path) for path in paths])
    assert [(group.label, [t.seed for t in group.trials]) for group in groups] == [
        ("qmix_3m td_lambda=0.8", [1, 2]),
        ("qmix_3m td_lambda=0.0", [1]),
        ("vdn_3m", [1]),
    ]


def test_the_band_is_the_quartiles_where_all_seeds_have_tests(tmp_path: Path) -> None:
    wins = [[0.0, 0.2, 0.4], [0.0, 0.4, 0.8, 1.0], [0.0, 0.6, 0.6, 0.6, 0.6]]
    (group,) = grouped([read_trial(played(tmp_path, seed, rates)) for seed, rates in enumerate(wins)])
    grid, quartiles = group.band(lambda t: t.env_steps, lambda t: t.win_rate)
    assert grid.tolist() == [0, 1000, 2000]
    np.testing.assert_allclose(quartiles, [[0, 0.3, 0.5], [0, 0.4, 0.6], [0, 0.5, 0.7]])


def test_between_its_tests_a_run_moves_in_a_straight_line(tmp_path: Path) -> None:
    slow, fast = (read_trial(played(tmp_path, seed, [0.0, 1.0, 1.0])) for seed in (1, 2))
    slow.env_steps[:] = [0, 2000, 4000]
    (group,) = grouped([slow, fast])
    grid, (low, _, _) = group.band(lambda t: t.env_steps, lambda t: t.win_rate)
    assert grid.tolist() == [0, 1000, 2000]
    np.testing.assert_allclose(low, [0, 0.625, 1.0])


def test_the_table_says_how_many_got_there_and_when(tmp_path: Path) -> None:
    wins = [[0.0, 0.95, 1.0], [0.0, 0.5, 0.9], [0.0, 0.1, 0.2]]
    (row,) = table(grouped([read_trial(played(tmp_path, seed, rates)) for seed, rates in enumerate(wins)]))
    assert row["one test at 90%"] == "2 of 3"
    assert row["after steps"] == "1,500 (1,250 to 1,750)"
    assert row["minutes"] == "0.8 (0.6 to 0.9)"
    assert row["win rate at the end"] == "46.7% (28.3% to 55.8%)"
    assert row["steps"] == "2,000"


def test_nothing_solved_is_said_in_a_word(tmp_path: Path) -> None:
    (row,) = table(grouped([read_trial(played(tmp_path, 1, [0.0, 0.1]))]))
    assert (row["one test at 90%"], row["after steps"], row["minutes"]) == ("0 of 1", "never", "never")


def test_the_picture_has_a_line_and_a_band_for_each_group(tmp_path: Path) -> None:
    paths = [played(tmp_path, seed, [0.0, 0.5, 1.0]) for seed in (1, 2)] + [
        played(tmp_path, 1, [0, 0.1], name="iql_3m")
    ]
    figure = comparison_figure(grouped([read_trial(path) for path in paths]))
    for panel in figure.axes:
        curves = [line for line in panel.lines if not str(line.get_label()).startswith("_")]
        assert [line.get_label() for line in curves] == ["qmix_3m (2 seeds)", "iql_3m (1 seed)"]
        assert len(panel.collections) == 1  # the band of the one with two seeds
    assert [panel.get_xlabel() for panel in figure.axes[2:]] == ["environment steps", "minutes"]


def test_the_command_draws_prints_and_writes_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (1, 2):
        played(tmp_path / "runs", seed, [0.0, 0.5, 1.0])
    output = tmp_path / "curves.png"
    assert command([str(tmp_path / "runs"), "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("qmix_3m\n  seeds ")
    assert f"curves  {output}\n" in printed
    assert matplotlib.image.imread(output).shape[:2] == (1024, 1600)
    head, rule, row, *_ = output.with_suffix(".md").read_text().splitlines()
    assert head.startswith("| runs | seeds | one test at 90% |")
    assert row.startswith("| qmix_3m | 2 | 2 of 2 | 2,000 |")
    assert head.count("|") == rule.count("|") == row.count("|")


def test_a_slip_is_told_in_one_line(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    run = played(tmp_path, 1, [0.5])
    assert refusal(empty) == f"'{empty}' is no run, and there is none in it"
    assert "it must end in .png, .svg or .pdf" in refusal(run, "--output", "x.txt")
    assert refusal(run, "--output", tmp_path / "no" / "x.png") == f"--output: there is no directory '{tmp_path / 'no'}'"
    untested = played(tmp_path, 2, [])
    assert refusal(untested) == f"'{untested}' has no greedy test yet"
    (untested / "metrics.jsonl").write_text("?\n{}\n")
    assert "line 1: not a record" in refusal(untested)
    wrong = played(tmp_path, 9, [0.5], name="wrong")
    lines = (wrong / "metrics.jsonl").read_text().replace('"env_steps": 500,', '"env_steps": "many",')
    (wrong / "metrics.jsonl").write_text(lines)
    assert "line 2: env_steps must be a number, not 'many'" in refusal(wrong)
    (untested / "metrics.jsonl").unlink()
    assert refusal(untested) == f"'{untested}' has no metrics"


def test_runs_of_a_directory_without_a_test_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    played(tmp_path / "runs", 1, [0.5])
    untested = played(tmp_path / "runs", 2, [])
    assert command([str(tmp_path / "runs"), "--output", str(tmp_path / "curves.png")]) == 0
    shown = capsys.readouterr()
    assert "seeds                1\n" in shown.out
    assert shown.err == f"orchestra: note: left out: '{untested}' has no greedy test yet\n"
    played(tmp_path / "others", 1, [])
    assert "has no greedy test yet" in refusal(tmp_path / "others")
