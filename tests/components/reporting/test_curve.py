"""A metrics file, whatever state it is in, becomes a picture."""

import json
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from components.reporting.curve import curve_figure, draw_curve
from components.reporting.progress import Progress

START = Progress(
    state="collecting",
    elapsed_s=6.0,
    env_steps=0,
    goal_steps=100_000,
    episodes=0,
    updates=0,
    env_steps_per_s=0.0,
    updates_per_s=0.0,
    train_win_rate=None,
    train_return=None,
    tests=0,
    test_win_rate=None,
    test_return=None,
    best_test_win_rate=None,
    best_test_return=None,
    loss=None,
    epsilon=None,
    params_lag=None,
    params_lags=(0,) * 7,
    dropped_episodes=0,
    busiest_actor=None,
    mailbox_depth=None,
    workers=2,
    restarts=0,
)


def records(count: int) -> list[dict[str, Any]]:
    """One a minute, 1000 steps each; from the third on with figures, and a new test in every fourth."""
    made = [asdict(START)]
    for i in range(1, count):
        tested = i // 4 * 4
        known = replace(START, train_win_rate=i / count, train_return=float(i)) if i > 1 else START
        if tested:
            known = replace(known, tests=tested // 4, test_win_rate=tested / count, test_return=tested + 0.5)
        made.append(asdict(replace(known, env_steps=1000 * i, elapsed_s=60.0 * i)))
    return made


def metrics_file(folder: Path, text: str) -> Path:
    (folder / "metrics.jsonl").write_text(text)
    return folder / "metrics.jsonl"


def panels(figure: Figure) -> tuple[Axes, Axes]:
    rate, returned = figure.axes[:2]
    return rate, returned


def points(axes: Axes, label: str) -> list[tuple[float, float]]:
    (line,) = (line for line in axes.get_lines() if line.get_label() == label)
    return list(zip(map(float, line.get_xdata()), map(float, line.get_ydata()), strict=True))


def marks_above(figure: Figure) -> list[tuple[float, str]]:
    top = figure.axes[2]
    assert top.get_xlabel() == "minutes"
    return [(float(at), label.get_text()) for at, label in zip(top.get_xticks(), top.get_xticklabels(), strict=True)]


def test_training_is_drawn_in_every_record_that_knows_it() -> None:
    rate, returned = panels(curve_figure(records(8)))

    assert points(rate, "training") == [(1000.0 * i, i / 8) for i in range(2, 8)]
    assert points(returned, "training") == [(1000.0 * i, float(i)) for i in range(2, 8)]


def test_a_test_is_drawn_once_where_it_was_first_reported() -> None:
    rate, returned = panels(curve_figure(records(13)))

    assert points(rate, "greedy test") == [(4000.0, 4 / 13), (8000.0, 8 / 13), (12000.0, 12 / 13)]
    assert points(returned, "greedy test") == [(4000.0, 4.5), (8000.0, 8.5), (12000.0, 12.5)]


def test_two_tests_with_the_same_figures_are_two_marks() -> None:
    perfect = [record | {"test_win_rate": 1.0, "test_return": 20.0} for record in records(13)]
    rate, _ = panels(curve_figure(perfect))
    assert points(rate, "greedy test") == [(0.0, 1.0), (4000.0, 1.0), (8000.0, 1.0), (12000.0, 1.0)]


def test_minutes_stand_above_the_steps_that_they_took() -> None:
    steady = records(11)
    assert marks_above(curve_figure(steady)) == [(2000.0 * i, str(2 * i)) for i in range(6)]

    slow_start = [record | {"elapsed_s": record["elapsed_s"] + 300} for record in steady]
    assert (10_000.0, "15") in marks_above(curve_figure(slow_start))


def test_minutes_in_which_nothing_moved_do_not_pile_up() -> None:
    stuck = records(5)
    stuck += [stuck[-1] | {"elapsed_s": 60.0 * i} for i in range(5, 60)]

    marks = marks_above(curve_figure(stuck))

    positions = [at for at, _ in marks]
    assert positions == sorted(positions)
    assert all(after - before >= 0.06 * 4000 for before, after in pairwise(positions))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 500])
def test_a_file_of_any_length_becomes_a_picture(tmp_path: Path, count: int) -> None:
    text = "".join(json.dumps(record) + "\n" for record in records(count)[:count])

    draw_curve(metrics_file(tmp_path, text), tmp_path / "curve.png", title="qmix_8m, seed 1")

    pixels = matplotlib.image.imread(tmp_path / "curve.png")
    assert pixels.shape == (608, 1472, 4)  # (height, width, colour)
    assert np.unique(pixels.reshape(-1, 4), axis=0).shape[0] > 10  # it is not blank
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curve.png", "metrics.jsonl"]


def test_a_run_without_figures_yet_says_so() -> None:
    for early in ([], records(1), records(2)):
        for axes in panels(curve_figure(early)):
            assert [text.get_text() for text in axes.texts] == ["no figures yet"]
    for axes in panels(curve_figure(records(3))):
        assert list(axes.texts) == []


def test_a_run_that_cannot_be_won_has_the_panel_of_returns_alone() -> None:
    returns = [record | {"train_win_rate": None, "test_win_rate": None} for record in records(9)]
    panel, minutes = curve_figure(returns).axes
    assert (panel.get_ylabel(), minutes.get_xlabel()) == ("return of an episode", "minutes")
    assert points(panel, "greedy test") == [(4000.0, 4.5), (8000.0, 8.5)]


def test_a_line_torn_by_a_kill_is_left_out(tmp_path: Path) -> None:
    text = "".join(json.dumps(record) + "\n" for record in records(5))
    draw_curve(metrics_file(tmp_path, text), tmp_path / "whole.png")
    draw_curve(metrics_file(tmp_path, text + '{"env_steps": 5000, "tr'), tmp_path / "torn.png")
    assert (tmp_path / "torn.png").read_bytes() == (tmp_path / "whole.png").read_bytes()


def test_figures_that_were_not_finite_leave_a_gap_and_no_error(tmp_path: Path) -> None:
    gone = [record | {"train_return": None} for record in records(6)]
    _, returned = panels(curve_figure(gone))
    assert points(returned, "training") == []
    assert points(returned, "greedy test") == [(4000.0, 4.5)]


def test_a_clock_that_began_again_does_not_turn_the_axis_round() -> None:
    continued = records(11)
    for record in continued[5:]:
        record["elapsed_s"] -= 240.0  # 1, 2, … where 5, 6, … would follow
    # What was reached within minutes 1 to 3 stays there, though the clock passed them twice.
    assert marks_above(curve_figure(continued)) == [
        (0.0, "0"),
        (1000.0, "1"),
        (2000.0, "2"),
        (3000.0, "3"),
        (8000.0, "4"),
        (9000.0, "5"),
        (10_000.0, "6"),
    ]


def test_the_win_rate_is_shown_from_none_to_all() -> None:
    rate, _ = panels(curve_figure(records(4)))
    assert [label.get_text() for label in rate.get_yticklabels()] == ["0%", "20%", "40%", "60%", "80%", "100%"]


def test_a_picture_that_cannot_be_written_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(self: Figure, *arguments: object, **options: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(Figure, "savefig", full_disk)
    with pytest.raises(OSError, match="No space left"):
        draw_curve(metrics_file(tmp_path, ""), tmp_path / "curve.png")
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_drawing_leaves_no_figure_open() -> None:
    from matplotlib import pyplot as plt

    curve_figure(records(3))
    assert plt.get_fignums() == []
