"""`orchestra suite` plans the runs of a benchmark and reports those that are done; a slip is one sentence."""

import csv
import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from components.envs import SCENARIOS
from components.reporting.comparison import Trial
from components.suites import command as module
from components.suites.figure import suite_figure
from components.suites.published import SMAC, SMACV2, SUITES
from components.suites.report import as_csv, as_markdown, marl_eval, rows
from components.suites.scores import Reached, Scores, scores_of
from orchestra import RunDirectory, RunQueue, UsageError, check_run

FILE = Path(__file__)


class Clock:
    def now(self) -> datetime:
        return datetime(2026, 3, 1, tzinfo=UTC)


def trial(rates: Sequence[float], seed: int = 1) -> Trial:
    """A run with a test of that win rate after each 1,000 steps and 2 minutes, the first after 1,000."""
    steps = 1000.0 * np.arange(1, len(rates) + 1)
    won = np.array(rates)
    return Trial("x", seed, {}, steps, steps / 500, steps, won, 20 * won, 8.0, 1.0)


def scored(*by_seed: Sequence[float], jitter: Mapping[float, float] | None = None) -> dict[int, Scores]:
    return {seed: scores_of(trial(rates, seed), jitter) for seed, rates in enumerate(by_seed, start=1)}


def test_scores_are_those_of_the_greedy_tests() -> None:
    scores = scores_of(trial([0.0, 0.5, 0.95, 0.4, 0.6, 0.8, 0.6]))
    assert scores.final == pytest.approx((0.95 + 0.4 + 0.6 + 0.8 + 0.6) / 5)
    assert scores.best == 0.95
    assert scores.reached == {0.5: Reached(2000, 4), 0.9: Reached(3000, 6)}
    assert scores.minutes == 14
    # Trapezia of 1,000 steps, and before the first test its own win rate.
    assert scores.area == pytest.approx((0 + 0.25 + 0.725 + 0.675 + 0.5 + 0.7 + 0.7) / 7)
    assert scores_of(trial([0.3])).area == pytest.approx(0.3)
    assert scores_of(trial([0.49])).reached == {0.5: None, 0.9: None}


def test_the_table_has_medians_and_what_was_published() -> None:
    jitter = {0.0: 0.9, 0.5: 0.4, 2.0: 0.3}
    results = {
        "qmix": {
            "2s3z": scored([0.0, 0.92] + [1.0] * 4, [0.0] * 6, [0.0, 0.6, 0.6, 0.6, 0.6, 0.6], jitter=jitter),
            "3s5z": scored([0.0]),
        },
        "iql": {"2s3z": scored([0.5])},
    }
    first, second, third = rows(SMAC, results)
    expected = {
        "algorithm": "qmix",
        "map": "2s3z",
        "seeds": 3,
        "steps": 6000,
        "final": 0.6,
        "final_lowest": 0,
        "final_highest": pytest.approx(0.984),
        "published": 0.99,
        "difference": pytest.approx(-0.39),
        "best": 0.6,
        "reached_50": 2,
        "steps_to_50": 2000,
        "minutes_to_50": 4,
        "reached_90": 1,
        "steps_to_90": 2000,
        "jitter_0.5": 0.4,
    }
    assert {name: first[name] for name in expected} == expected
    assert second["steps_to_50"] is None
    assert third["published"] is None
    parsed = list(csv.DictReader(as_csv([first, second, third]).splitlines()))
    assert float(parsed[0]["final"]) == 0.6
    assert parsed[1]["steps_to_90"] == ""
    page = as_markdown(SMAC, results, command="orchestra suite smac", episodes=64)
    assert "| 2s3z | 3 | 60.0% (0.0% to 98.4%) | 99.0% | 60.0% |" in page
    assert "2,000 in 4.0 min (2 of 3) | 2,000 in 4.0 min (1 of 3)" in page
    assert "on 0 of 2 maps" in page
    assert "Samvelyan" in page
    assert "64 new battles" in page
    assert page.count("Interquartile means over") == 2


def test_raw_results_have_equally_many_tests_of_all_runs_as_marl_eval_needs() -> None:
    results = {"qmix": {"2s3z": scored([0.1, 0.2, 0.3, 0.4], [0.5, 0.6], jitter={0.0: 0.75})}}
    raw = marl_eval(SMAC, results, steps=4000, interval=2000)
    runs = raw["smac"]["2s3z"]["qmix"]
    assert list(runs) == ["seed_1", "seed_2"]
    assert {tuple(run) for run in runs.values()} == {("step_0", "step_1", "absolute_metrics")}
    assert runs["seed_1"]["step_1"] == {"step_count": 4000, "elapsed_time": 480, "win_rate": [0.4], "return": [8]}
    assert runs["seed_2"]["step_1"]["step_count"] == 2000  # its last test
    assert runs["seed_2"]["absolute_metrics"] == {"win_rate": [0.75], "return": [12]}


def test_the_figure_has_a_panel_for_each_map_and_one_for_all() -> None:
    results = {"qmix": {"2s3z": scored([0.0, 1.0], [0.2, 0.8]), "MMM2": scored([0.0, 0.1], [0.0, 0.3])}}
    figure = suite_figure(SMAC, results)
    assert [panel.get_title(loc="left") for panel in figure.axes] == ["2s3z", "MMM2", "interquartile mean, all maps"]
    whole = figure.axes[-1].lines[0]
    assert np.asarray(whole.get_ydata())[-1] == pytest.approx(np.mean([0.3, 0.8]))  # of 0.1, 0.3, 0.8 and 1
    published = figure.axes[0].lines[1]
    assert list(np.asarray(published.get_ydata())) == [0.99, 0.99]


def test_the_maps_of_a_suite_are_scenarios_and_published_figures_are_of_its_maps() -> None:
    assert len(SMAC.maps) == 14
    assert len(SMACV2.maps) == 15
    for suite in SUITES.values():
        assert set(suite.maps) <= set(SCENARIOS)
        for published in suite.published.values():
            assert set(published.rates) <= set(suite.maps)
            assert all(0 <= rate <= 1 for rate in published.rates.values())
    assert set(SMACV2.published["qmix"].rates) == set(SMACV2.maps)


def done(queue: RunQueue, name: str, rates: Sequence[float]) -> None:
    """Leave behind what a run of `rates` would."""
    run = RunDirectory(queue.runs_dir / "qmix_2s3z" / name)
    run.path.mkdir(parents=True)
    run.write_config(experiment=FILE, flags={}, seed=1, argv=[], clock=Clock())  # type: ignore[arg-type]  # it only tells the time
    records = [
        {"env_steps": 1000 * k, "elapsed_s": 60 * k, "updates": k, "tests": k, "test_env_steps": 1000 * k}
        | {"test_win_rate": rate, "test_return": 20 * rate}
        for k, rate in enumerate(rates, start=1)
    ]
    run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    run.summary.write_text('{"state": "done"}')


@pytest.fixture
def worked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[RunQueue]:
    """Queues that the command has worked through; a run of seed 2 fails, all others are done at once.

    No run is checked in advance, which takes a second: a test of what is refused brings `checked` with it.
    """
    queues: list[RunQueue] = []

    def work_through(queue: RunQueue, *, title: str) -> None:
        queues.append(queue)
        for name, entry in queue.entries.items():
            if entry.state == "done":
                continue
            entry.state = "failed" if name.endswith("seed2") else "done"
            if entry.state == "done":
                done(queue, name, [0.0, 0.5, 1.0])

    def battles(run: RunDirectory, jitters: Sequence[float], *, episodes: int) -> dict[float, dict[str, Any]]:
        return {jitter: {"win_rate": 1 / (1 + jitter), "return": 20.0, "episodes": episodes} for jitter in jitters}

    monkeypatch.setattr(module, "work_through", work_through)
    monkeypatch.setattr(module, "check_run", lambda _: None)
    monkeypatch.setattr("components.suites.jittered.battles_of", battles)
    monkeypatch.chdir(tmp_path)
    return queues


@pytest.fixture
def checked(worked: list[RunQueue], monkeypatch: pytest.MonkeyPatch) -> None:
    """`worked`, where a run of each algorithm is checked in advance as a user's is."""
    monkeypatch.setattr(module, "check_run", check_run)


def test_a_suite_plans_a_run_for_each_map_and_seed_and_reports_those_that_are_done(
    worked: list[RunQueue], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["smac", "--maps", "2s3z", "MMM2", "--seeds", "2", "--steps", "3000", "--", "--gamma", "0.9"]
    assert module.command(words) == 1  # a run failed
    (queue,) = worked
    assert list(queue.entries) == ["qmix-2s3z-seed1", "qmix-MMM2-seed1", "qmix-2s3z-seed2", "qmix-MMM2-seed2"]
    asked = " ".join(queue.entries["qmix-MMM2-seed2"].run.words)
    assert asked.startswith("train --algorithm qmix --scenario MMM2 --seed 2 --steps 3000 ")
    assert asked.endswith(" --gamma 0.9")
    printed = capsys.readouterr().out
    assert "failed: qmix-2s3z-seed2" in printed.replace("failed (None)", "failed")
    folder = Path("suites/smac")
    assert "| 2s3z | 1 | 50.0% (50.0% to 50.0%) | 99.0% | 100.0% |" in (folder / "table.md").read_text()
    assert len((folder / "table.csv").read_text().splitlines()) == 3
    assert set(json.loads((folder / "marl_eval.json").read_text())["smac"]) == {"2s3z", "MMM2"}
    assert (folder / "figure.png").stat().st_size > 1000


def test_runs_of_other_settings_are_not_mixed_in_one_folder(worked: list[RunQueue]) -> None:
    assert module.command(["smac", "--maps", "2s3z", "--seeds", "1", "--steps", "3000"]) == 0
    assert module.command(["smac", "--maps", "MMM2", "--seeds", "1", "--steps", "4000"]) == 0  # goes farther
    for words in (["--steps", "3000"], ["--steps", "4000", "--", "--gamma", "0.9"]):
        with pytest.raises(UsageError, match=r"suites/smac' has runs of smac with 4,000 steps and the flags \(none\)"):
            module.command(["smac", *words])
    with pytest.raises(UsageError, match="choose another folder"):
        module.command(["smacv2", "--folder", "suites/smac", "--steps", "4000"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["smac", "--maps", "2s3z", "8m"], "--maps: '8m' is no map of smac"),
        (["smac", "--seeds", "0"], "--seeds: 0"),
        (["smac", "--steps", "0"], "--steps: 0"),
        (["smac", "--episodes", "0"], "--episodes: 0"),
        (["smac", "--parallel", "0"], "--parallel: 0"),
        (["smac3"], "smac3"),
        ([], "NAME"),
    ],
)
def test_a_slip_is_one_sentence(worked: list[RunQueue], words: list[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        module.command(words)
    assert said in str(caught.value)
    assert not worked


def test_a_report_without_a_run_says_so(worked: list[RunQueue], capsys: pytest.CaptureFixture[str]) -> None:
    assert module.command(["smac", "--report-only"]) == 0
    assert not worked
    assert "no run is done yet" in capsys.readouterr().out


def suite_of(*words: str) -> int:
    return module.command(["smac", "--steps", "3000", *words])


def test_runs_of_another_machine_are_reported_and_not_made_again(worked: list[RunQueue]) -> None:
    assert suite_of("--maps", "MMM2", "--seeds", "1", "--folder", "other") == 0
    assert suite_of("--maps", "2s3z", "MMM2", "--seeds", "1", "--add", "other/runs.json") == 0
    assert list(worked[-1].entries) == ["qmix-2s3z-seed1"]
    folder = Path("suites/smac")
    tables = [list(csv.DictReader((Path(f) / "table.csv").read_text().splitlines())) for f in ("other", folder)]
    assert [row["map"] for row in tables[1]] == ["2s3z", "MMM2"]
    assert tables[1][1] == tables[0][0]
    figures = [json.loads((Path(f) / "marl_eval.json").read_text())["smac"]["MMM2"] for f in ("other", folder)]
    assert figures[0] == figures[1]
    # Added runs of maps that this suite does not train on are reported, too.
    assert suite_of("--maps", "corridor", "--report-only", "--folder", "third", "--add", "other/runs.json") == 0
    assert [row["map"] for row in csv.DictReader(Path("third/table.csv").read_text().splitlines())] == ["MMM2"]
    # The file has the runs of both, and the same run may come twice.
    assert suite_of("--seeds", "1", "--folder", "all", "--add", str(folder / "runs.json"), "other/runs.json") == 0
    assert len(worked[-1].entries) == 12


def changed_runs(path: Path, **changes: Any) -> None:
    saved = json.loads(Path("other/runs.json").read_text())
    saved["runs"][0] |= {name: changes.pop(name) for name in list(changes) if name in saved["runs"][0]}
    path.write_text(json.dumps(saved | changes))


def test_a_file_of_runs_that_does_not_fit_is_refused(worked: list[RunQueue], tmp_path: Path) -> None:
    assert suite_of("--maps", "MMM2", "--seeds", "1", "--folder", "other") == 0
    file = tmp_path / "runs.json"

    def refusal(*words: str, **changes: Any) -> str:
        changed_runs(file, **changes)
        with pytest.raises(UsageError) as caught:
            suite_of("--folder", "new", "--add", str(file), *words)
        return str(caught.value)

    assert "have steps 4000, those of this suite 3000" in refusal(steps=4000)
    assert "have flags ('--gamma', '0.9'), those of this suite ()" in refusal(flags=["--gamma", "0.9"])
    assert "have suite 'smacv2', those of this suite 'smac'" in refusal(suite="smacv2")
    assert "have episodes 256, those of this suite 64" in refusal("--episodes", "64")
    assert "different results of qmix on MMM2 with seed 1" in refusal("other/runs.json", minutes=[1, 2, 4])
    assert "runs.0: Value error, env_steps, minutes, win_rate and returns" in refusal(minutes=[1])
    assert "a win rate must be from 0 to 1, not 5.0" in refusal(win_rate=[0.1, 5.0, 0.2])
    assert "a win rate must be from 0 to 1, not -1.0" in refusal(jittered={"0": -1.0})
    assert "env_steps must rise" in refusal(env_steps=[2000, 1000, 3000])
    assert "'3m' is no map of smac; its maps are 2s_vs_1sc" in refusal(map="3m")
    assert "runs.0.env_steps: Tuple should have at least 1 item" in refusal(env_steps=[])
    assert "runs.0.seed: Input should be a valid integer" in refusal(seed="x")
    with pytest.raises(UsageError, match=r"none\.json' cannot be read: No such file"):
        suite_of("--add", "none.json")
    file.write_text("{")
    with pytest.raises(UsageError, match=r"is no runs\.json of a suite: Invalid JSON"):
        suite_of("--add", str(file))
    assert len(worked) == 1, "a refused suite starts nothing"


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--scenario", "8m"], "--scenario is not allowed after --: the suite sets it; --maps chooses maps"),
        (["--seed=4"], "--seed is not allowed after --: the suite sets it; --seeds N says how many there are"),
        (["--dry-run"], "--dry-run is not allowed after --: the suite sets it"),
        (["--env", "gymnasium:CartPole-v1"], "--env: 'gymnasium:CartPole-v1' is not allowed: a suite plays in the "),
        (["--stpes", "3"], "unknown flag --stpes (did you mean --steps?)"),
    ],
)
def test_flags_that_do_not_fit_all_runs_are_refused_before_any(
    worked: list[RunQueue], words: list[str], said: str
) -> None:
    with pytest.raises(UsageError) as raised:
        suite_of("--maps", "2s3z", "--", *words)
    assert str(raised.value).startswith(said)
    assert worked == []
    assert not Path("suites").exists(), "the corrected command may use the folder"


@pytest.mark.usefixtures("checked")
def test_an_algorithm_that_does_not_exist_is_refused_before_any_run(worked: list[RunQueue]) -> None:
    with pytest.raises(UsageError, match=r"algorithm: 'qmx' is not allowed: it must be qmix.*did you mean qmix"):
        suite_of("--maps", "2s3z", "--algorithms", "vdn", "qmx")
    assert worked == []
    assert not Path("suites").exists()


@pytest.mark.minutes
def test_a_tiny_suite_trains_goes_on_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["smacv2", "--maps", "terran_5_vs_5", "--seeds", "1", "--episodes", "4", "--parallel", "1"]
    further = ["--", "--workers", "1", "--eval-interval", "1000"]
    assert module.command([*words, "--steps", "2000", *further]) == 0
    table = Path("suites/smacv2/table.csv")
    before = float(next(csv.DictReader(table.read_text().splitlines()))["steps"])
    assert module.command([*words, "--steps", "30000", *further]) == 0  # the same run goes on
    assert float(next(csv.DictReader(table.read_text().splitlines()))["steps"]) >= 29_000 > before
    assert len(list(Path("suites/smacv2/runs/qmix_terran_5_vs_5").iterdir())) == 1
    began = os.stat("suites/smacv2/output/qmix-terran_5_vs_5-seed1.txt").st_mtime_ns
    assert module.command([*words, "--steps", "30000", *further]) == 0
    assert os.stat("suites/smacv2/output/qmix-terran_5_vs_5-seed1.txt").st_mtime_ns == began
