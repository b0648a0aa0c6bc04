"""The program of the ClusterEnv experiment makes each run once, and a table and a figure of all of them."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from orchestra import import_file

many_runs = pytest.mark.skipif(
    not int(os.environ.get("ORCHESTRA_FAULTS", "0")), reason="makes many runs: ORCHESTRA_FAULTS=1"
)
PROGRAM = Path(__file__).resolve().parents[1] / "experiments" / "lunar_lander.py"
TINY = ["--env", "gymnasium:CartPole-v1", "--one-process", "--nodes", "2", "--envs-per-node", "2", "--num-steps", "16"]
TINY += ["--steps", "256", "--minibatches", "2", "--epochs", "2", "--learning-rate", "0.01"]


@many_runs
def test_runs_are_made_once_and_give_a_table_and_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = import_file(PROGRAM, "program")
    words = [*TINY, "--output", str(tmp_path / "out"), "--seeds", "1"]
    program.main([*words, "--sync", "always", "kl:1000"])
    program.main([*words, "--sync", "always", "kl:0", "kl:1000"])
    runs = [json.loads(line) for line in (tmp_path / "out" / "runs.jsonl").read_text().splitlines()]
    assert [run["sync"] for run in runs] == ["always", "kl:1000", "kl:0"]
    always, never, each = runs
    size = always["figures"]["params_bytes"] / always["figures"]["params_sent"]
    assert [run["figures"]["versions"] for run in runs] == [4, 4, 4]
    assert [run["loads"] for run in runs] == [4, 1, 4]
    assert never["figures"]["params_bytes"] == 2 * size
    assert [len(run["curve"]) for run in runs] == [4, 4, 4]
    assert all(1 <= run["test"] <= 500 for run in runs)
    # Nodes that load every version play as those that are sent every version.
    assert [point[:2] for point in each["curve"]] == [point[:2] for point in always["curve"]]
    rows = (tmp_path / "out" / "table.md").read_text().splitlines()[2:]
    assert [row.split("|")[1].strip() for row in rows] == ["always", "kl:0", "kl:1000"]
    assert (tmp_path / "out" / "figure.png").stat().st_size > 10_000


@many_runs
def test_small_thresholds_learn_as_well_as_always_and_large_ones_load_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The paper's experiment in small: 19 versions on CartPole, three seeds."""
    monkeypatch.chdir(tmp_path)
    words = ["--env", "gymnasium:CartPole-v1", "--one-process", "--envs-per-node", "8", "--num-steps", "32"]
    words += ["--steps", str(19 * 4 * 8 * 32), "--minibatches", "4", "--epochs", "4", "--learning-rate", "0.0025"]
    rules = ["always", "kl:0.001", "kl:1.0"]
    import_file(PROGRAM, "program").main([*words, "--output", str(tmp_path), "--sync", *rules])
    runs = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    returns = {sync: np.array([run["return"] for run in runs if run["sync"] == sync]) for sync in rules}
    loads = {sync: [run["loads"] for run in runs if run["sync"] == sync] for sync in rules}
    assert [len(own) for own in returns.values()] == [3, 3, 3]
    assert loads["always"] == [19, 19, 19]
    assert all(run["figures"]["versions"] == 19 for run in runs)
    for few, many in zip(loads["kl:1.0"], loads["kl:0.001"], strict=True):
        assert 1 <= few < many <= 19
    always = returns["always"]
    assert returns["kl:0.001"].mean() > always.mean() - max(always.std(), 0.15 * always.mean())
    assert returns["kl:1.0"].mean() < returns["kl:0.001"].mean()


def test_thresholds_are_drawn_by_their_largest_lag() -> None:
    program = import_file(PROGRAM, "program")
    by_sync = {sync: [{"sync": sync}] for sync in ("always", "kl:0.5/20", "kl:1", "kl:0.1/20", "every:3", "kl:0.2")}
    drawn = program.by_lag(by_sync)
    assert {lag: [threshold for threshold, _ in points] for lag, points in drawn.items()} == {
        "20": [0.1, 0.5],
        "": [0.2, 1.0],
    }
    assert drawn["20"][0][1] == [{"sync": "kl:0.1/20"}]
