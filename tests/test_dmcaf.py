"""DMCAF's experiments are one learner on three layouts, and its table and figure are made of what was measured."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from components.envs import AsyncEnv, Skirmish
from components.envs.air_combat.env import AirCombat
from components.envs.game_speed import GameSpeed
from orchestra import Flags, Topology, build, load_experiment

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
LAYOUTS = {"qmix": (1, 1, False), "aw_qmix": (1, 4, True), "awl_qmix": (4, 3, True)}
SPEEDS = {"qmix.py": 100.0, "aw_qmix.py": 380.0, "awl_qmix.py": 1150.0}


def experiment(name: str) -> Any:
    return load_experiment(ROOT / "experiments" / "dmcaf" / f"{name}.py")


def actors(topology: Topology, kind: str) -> list[Any]:
    return [each for node in topology.nodes.values() for each in node.actors if each.kind.__name__ == kind]


@pytest.fixture
def dmcaf(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The benchmark, imported as when it is run."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import dmcaf

    yield dmcaf
    for name in ("dmcaf", "steady_run"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_mode_has_the_papers_workers_and_environments_and_no_setting_of_its_own_besides(name: str) -> None:
    layout = dict(zip(("workers", "envs_per_worker", "asynchronous"), LAYOUTS[name], strict=True))
    base = Flags.of(load_experiment(ROOT / "experiments" / "qmix_8m.py")).defaults
    assert Flags.of(experiment(name)).defaults == {**base, **layout, "scenario": "3m"}


def test_coma_plays_on_the_workers_of_awl_qmix() -> None:
    assert Flags.of(experiment("coma")).defaults == {**Flags.of(experiment("awl_qmix")).defaults, "algorithm": "coma"}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_workers_of_a_mode_play_the_environments_that_it_names(name: str) -> None:
    workers, n_envs, asynchronous = LAYOUTS[name]
    topology = build(experiment(name), {"game_speed": True})
    (evaluator,) = actors(topology, "Evaluator")
    assert evaluator.factory.keywords["env"].func is Skirmish  # evaluations wait for nothing
    players = actors(topology, "Worker")
    assert len(players) == workers
    for player in players:
        assert player.factory.keywords["n_envs"] == n_envs
        make = player.factory.keywords["env"]
        assert (make.func is AsyncEnv) is asynchronous
        assert (make.args[0].func if asynchronous else make.func) is GameSpeed


MACA = {"maca_hierq": (1, 1, False), "maca_awl_hierq_4": (2, 2, True), "maca_awl_hierq_12": (3, 4, True)}


@pytest.mark.parametrize("name", MACA)
def test_a_mode_of_fig_9_has_the_papers_workers_and_environments_and_the_learner_of_hierq_1(name: str) -> None:
    layout = dict(zip(("workers", "envs_per_worker", "asynchronous"), MACA[name], strict=True))
    assert Flags.of(experiment(name)).defaults == {**Flags.of(experiment("maca_hierq")).defaults, **layout}


def test_flat_qmix_plays_on_the_workers_of_awl_hierq_12() -> None:
    of_awl = Flags.of(experiment("maca_awl_hierq_12")).defaults
    assert Flags.of(experiment("maca_qmix")).defaults == {**of_awl, "algorithm": "qmix"}


def test_air_combat_at_game_speed_waits_in_workers_alone() -> None:
    topology = build(experiment("maca_awl_hierq_4"), {"game_speed": True})
    (evaluator,) = actors(topology, "Evaluator")
    assert evaluator.factory.keywords["env"].func is AirCombat
    players = actors(topology, "Worker")
    assert [player.factory.keywords["n_envs"] for player in players] == [2, 2]
    assert all(player.factory.keywords["env"].args[0].func is GameSpeed for player in players)


@pytest.fixture
def measured(dmcaf: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The runs that were measured, in place of making them."""
    runs: list[tuple[str, ...]] = []

    def rates(file: Path, *flags: str, seconds: float) -> SimpleNamespace:
        runs.append((file.name, *flags))
        speed = SPEEDS[file.name] * (20.0 if "--no-game-speed" in flags else 1.0) + int(
            flags[flags.index("--seed") + 1]
        )
        return SimpleNamespace(rate=lambda name: speed if name == "env_steps" else 0.5, seconds=seconds)

    monkeypatch.setattr(dmcaf, "rates", rates)
    return runs


def table(dmcaf: ModuleType, folder: Path, *more: str) -> list[dict[str, Any]]:
    where = ["--runs-dir", str(folder / "runs"), "--output", str(folder / "output")]
    dmcaf.main(["--parts", "table", "--scenarios", "3m", "--seeds", "1", "2", "3", *where, *more])
    found: list[dict[str, Any]] = json.loads((folder / "output" / "table.json").read_text())
    return found


def test_the_table_has_medians_and_their_ratios_beside_the_papers(
    dmcaf: ModuleType, measured: list[tuple[str, ...]], tmp_path: Path
) -> None:
    simulator, game = table(dmcaf, tmp_path)
    assert (simulator["setting"], game["setting"]) == ("simulator", "game")
    assert (game["QMIX"]["steps_per_s"], game["AWL-QMIX"]["steps_per_s"]) == (102.0, 1152.0)
    assert game["ratios"] == {"AW-QMIX": pytest.approx(382 / 102), "AWL-QMIX": pytest.approx(1152 / 102)}
    assert simulator["QMIX"]["steps_per_s"] == 2002.0
    page = (tmp_path / "output" / "table.md").read_text()
    assert "| game | 3m | 102 (0.5) | 382 (0.5) | 1,152 (0.5) | 3.75 (1.8) | 11.29 (6.6) |" in page
    assert "medians of n = 3" in page
    in_turn = {run[0] for run in measured if "--single-process" in run}
    assert in_turn == {"qmix.py", "aw_qmix.py"}


def test_what_was_measured_is_not_measured_again_and_what_was_not_is(
    dmcaf: ModuleType, measured: list[tuple[str, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = table(dmcaf, tmp_path, "--settings", "game")
    assert len(measured) == 9
    said = capsys.readouterr().out
    assert "1 of 9: table, game 3m QMIX seed 1" in said
    assert "9 of 9: table, game 3m AWL-QMIX seed 3" in said
    assert table(dmcaf, tmp_path, "--settings", "game") == first
    assert len(measured) == 9
    table(dmcaf, tmp_path)
    assert len(measured) == 18
    table(dmcaf, tmp_path, "--seconds", "60")
    assert len(measured) == 36


def test_the_time_that_is_left_follows_from_what_the_parts_took(
    dmcaf: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 1000.0
    monkeypatch.setattr(dmcaf, "monotonic", lambda: now)
    remaining = dmcaf.Remaining([10.0, 20.0, 3600.0])
    remaining.begin("one")
    now += 20.0  # twice as long as expected
    remaining.end()
    remaining.begin("two")
    remaining.advance(50, 100, 10.0)
    assert capsys.readouterr().out.splitlines() == [
        "1 of 3: one; 1:00:30 left",
        "2 of 3: two; 2:00:40 left",
        "  50 of 100 steps, 10 steps/s, 0:00:05 left; of all 2:00:05",
    ]


@pytest.mark.slow
def test_a_run_that_is_beyond_its_goal_has_no_time_left(
    dmcaf: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dmcaf, "monotonic", lambda: 7.0)
    remaining = dmcaf.Remaining([10.0, 20.0])
    remaining.begin("the only part")
    remaining.advance(130, 100, 10.0)
    assert "130 of 100 steps, 10 steps/s, 0:00:00 left; of all 0:00:20" in capsys.readouterr().out


@pytest.mark.minutes
def test_the_figure_is_made_of_whole_runs_and_goes_on_where_it_was_stopped(
    dmcaf: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--learning-starts", "8", "--batch-size", "4", "--hidden-size", "8", "--eval-episodes", "2"]
    words = dmcaf.Mode.words
    monkeypatch.setattr(dmcaf.Mode, "words", lambda *given: [*words(*given), *small, "--final-eval-episodes", "2"])
    monkeypatch.setattr(dmcaf, "FIGURE", (dmcaf.QMIX, dmcaf.AWL))
    where = ["--runs-dir", str(tmp_path / "runs"), "--output", str(tmp_path / "output")]
    made = [
        "--parts",
        "figure",
        "--settings",
        "simulator",
        "--scenarios",
        "3m",
        "--seeds",
        "1",
        "--steps",
        "300",
        *where,
    ]
    dmcaf.main(made)
    assert "2 of 2: figure, simulator 3m AWL-QMIX seed 1" in capsys.readouterr().out
    assert (tmp_path / "output" / "simulator_3m.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "output" / "simulator_3m.md").read_text()
    assert "| QMIX | 1 |" in page
    assert "| AWL-QMIX | 1 |" in page
    monkeypatch.setattr(dmcaf, "play", lambda *given: pytest.fail("a finished run was made again"))
    dmcaf.main(made)


def a_run(folder: Path, win_rates: list[float], minutes_of_a_test: float, best: float) -> Path:
    """Write the files of a finished run with a test every 20,000 steps."""
    folder.mkdir(parents=True)
    records = [
        {
            "elapsed_s": 60.0 * minutes_of_a_test * k,
            "env_steps": 20_000 * k,
            "updates": k,
            "tests": k,
            "test_env_steps": 20_000 * k,
            "test_win_rate": win_rate,
            "test_return": 10.0 * win_rate,
        }
        for k, win_rate in enumerate(win_rates, 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "config.json").write_text(json.dumps({"flags": {}, "seed": 1}))
    (folder / "summary.json").write_text(json.dumps({"best": {"win_rate": best}}))
    return folder


def test_fig_9_tells_when_most_runs_of_a_mode_reached_the_level_and_how_much_sooner(
    dmcaf: ModuleType, tmp_path: Path
) -> None:
    # Means of five tests reach 0.8 at the 7th: (0.7 + 0.7 + 0.8 + 0.9 + 0.9) / 5.
    rising = [0.0, 0.6, 0.7, 0.7, 0.8, 0.9, 0.9, 0.0]
    runs = {
        f"game {mode.label}": [
            a_run(tmp_path / mode.label / str(seed), curve, minutes, best)
            for seed, (curve, best) in enumerate([(rising, 0.85), (rising, 0.9), ([0.5] * 8, 0.5)])
        ]
        for mode, minutes in zip(dmcaf.MACA, (20.0, 5.0, 2.0, 2.0), strict=True)
    }
    runs["game flat QMIX"][0] = runs["game flat QMIX"][2]
    rows = dmcaf.maca_rows(runs, "game")
    assert [row["reached"] for row in rows] == [2, 2, 2, 1]
    assert [row["minutes"] for row in rows] == [140.0, 35.0, 14.0, float("inf")]
    lines = dmcaf.maca_markdown(rows).splitlines()
    assert lines[2] == "| Hierq-1 | 2 of 3 | 140,000 | 140.0 |  | 85.0% (85.0%, 90.0%, 50.0%) |"
    assert lines[3] == "| AWL-hierq-4 | 2 of 3 | 140,000 | 35.0 | 4.00 | 85.0% (85.0%, 90.0%, 50.0%) |"
    assert lines[4] == "| AWL-hierq-12 | 2 of 3 | 140,000 | 14.0 | 2.50 | 85.0% (85.0%, 90.0%, 50.0%) |"
    assert lines[5] == "| flat QMIX | 1 of 3 | not | not |  | 50.0% (50.0%, 90.0%, 50.0%) |"


def test_fig_9_is_made_of_four_modes_on_the_map_of_ten_against_ten(
    dmcaf: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    dmcaf.main(["--list", "--parts", "maca", "--settings", "game", "--seeds", "2"])
    assert capsys.readouterr().out.splitlines() == [
        "maca    game fighter10v10 Hierq-1 seed 2  1:06:56",
        "maca    game fighter10v10 AWL-hierq-4 seed 2  0:16:44",
        "maca    game fighter10v10 AWL-hierq-12 seed 2  0:05:35",
        "maca    game fighter10v10 flat QMIX seed 2  0:05:35",
    ]
    words = dmcaf.MACA[0].words("game", "fighter10v10", 2)
    assert Path(words[0]).exists()
    asked = ["--env", "air_combat:fighter10v10", "--game-speed", "--updates-per-episode", "0.5", "--seed", "2"]
    assert words[1:] == [*asked, "--single-process"]


@pytest.mark.minutes
def test_fig_9_is_made_of_whole_runs_of_hierarchical_and_flat_qmix(
    dmcaf: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ["--learning-starts", "4", "--batch-size", "4", "--hidden-size", "8", "--eval-episodes", "2"]
    words = dmcaf.Mode.words
    monkeypatch.setattr(dmcaf.Mode, "words", lambda *given: [*words(*given), *small, "--final-eval-episodes", "2"])
    where = ["--runs-dir", str(tmp_path / "runs"), "--output", str(tmp_path / "output")]
    made = ["--parts", "maca", "--settings", "simulator", "--seeds", "1", "--steps", "800", *where]
    dmcaf.main(made)
    assert (tmp_path / "output" / "simulator_fighter10v10.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "output" / "simulator_maca.md").read_text()
    assert [line.split(" | ")[:2] for line in page.splitlines()[2:]] == [
        [f"| {mode.label}", "0 of 1"] for mode in dmcaf.MACA
    ]
    monkeypatch.setattr(dmcaf, "play", lambda *given: pytest.fail("a finished run was made again"))
    dmcaf.main(made)
