"""Figures leave a run as a table with every record, and a policy acts elsewhere exactly as it does here."""

import csv
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from components.envs import Skirmish
from components.exports.command import command
from components.exports.policies import modules_of, write_safetensors
from components.policies import ALGORITHMS
from orchestra import RunDirectory, UsageError


class Clock:
    def now(self) -> Any:
        return datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def kept(tmp_path: Path) -> RunDirectory:
    file = tmp_path / "exported_qmix.py"
    file.write_text("")
    run = RunDirectory.create(tmp_path / "runs", "qmix", 0, clock=Clock(), name="first")  # type: ignore[arg-type]
    run.write_config(experiment=file, flags={}, seed=3, argv=["orchestra"], clock=Clock())  # type: ignore[arg-type]
    records = [
        {"state": "training", "env_steps": 10, "loss": None, "never": None},
        {"state": "done", "env_steps": 20, "loss": 0.5, "never": None, "learner/q": 1.5},
    ]
    run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    return run


def test_csv_has_a_row_for_each_record_and_a_column_for_each_figure(kept: RunDirectory, tmp_path: Path, capsys) -> None:
    path = tmp_path / "figures.csv"
    assert command([str(kept.path), str(kept.path), "--output", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: 4 rows, 7 columns\n"
    with path.open() as file:
        rows = list(csv.DictReader(file))
    first = {"run": "qmix/first", "seed": "3", "state": "training", "env_steps": "10"}
    assert rows[0] == {**first, "loss": "", "never": "", "learner/q": ""}
    assert (
        rows[3]
        == rows[1]
        == {**first, "state": "done", "env_steps": "20", "loss": "0.5", "never": "", "learner/q": "1.5"}
    )


def test_parquet_has_the_same_with_types(kept: RunDirectory, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "figures.parquet"
    assert command([str(kept.path), "--output", str(path)]) == 0
    table = parquet.read_table(path)
    assert {name: str(table.schema.field(name).type) for name in table.column_names} == {
        "run": "string",
        "seed": "int64",
        "state": "string",
        "env_steps": "int64",
        "loss": "double",
        "never": "double",
        "learner/q": "double",
    }
    assert table.column("loss").to_pylist() == [None, 0.5]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--output", "x.txt"], "'x.txt' is not allowed: it must end in .csv, .parquet, .safetensors, .onnx"),
        (["--output", "x.csv", "--checkpoint", "best"], "--checkpoint: .csv has figures and no policy"),
        (["--output", "x.onnx", "--episodes", "0"], "--episodes: 0 is not allowed"),
        (["--output", "no/x.csv"], "--output: No such file or directory"),
    ],
)
def test_a_slip_is_told_in_one_line(kept: RunDirectory, words: list[str], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        command([str(kept.path), *words])
    assert said in str(raised.value)


def test_a_package_that_is_missing_is_named_with_its_extra(kept: RunDirectory, monkeypatch) -> None:
    monkeypatch.setattr("components.exports.command.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'orchestra-rl\[safetensors\]'$"):
        command([str(kept.path), "--output", "x.safetensors"])
    with pytest.raises(UsageError, match=r"\.onnx is for the policy of one run; 2 runs were named$"):
        monkeypatch.undo()
        command([str(kept.path), str(kept.path), "--output", "x.onnx"])


@pytest.fixture
def env() -> Any:
    env = Skirmish("3m", 4, seed=0)
    yield env
    env.close()


@pytest.mark.parametrize("name", ["qmix", "mappo"])
def test_safetensors_have_all_that_acting_needs_by_name(name: str, env: Any, tmp_path: Path) -> None:
    load_file = pytest.importorskip("safetensors.numpy").load_file
    learner = ALGORITHMS[name].learner(env.spec, seed=1)
    named = modules_of(learner).named_params()
    write_safetensors(tmp_path / "policy.safetensors", named, {"policy": name})
    arrays = load_file(tmp_path / "policy.safetensors")
    assert arrays.keys() == named.keys()
    assert ("gru.weight_ih_l0" if name == "qmix" else "actor.head.weight") in arrays
    assert sum(array.size for array in arrays.values()) == learner.params().size
    in_order = np.concatenate([each.reshape(-1) for each in named.values()])
    np.testing.assert_array_equal(np.sort(in_order), np.sort(learner.params()))


@pytest.mark.minutes
def test_the_policy_of_a_run_is_exported_by_the_command(tmp_path: Path, capsys) -> None:
    import orchestra

    small = {"scenario": "3m", "steps": 800, "envs_per_worker": 8, "final_eval_episodes": 8, "eval_episodes": 8}
    result = orchestra.run("experiments/train.py", **small, eval_interval=400, single_process=True, runs_dir=tmp_path)
    for name in ("policy.onnx", "policy.safetensors"):
        assert command([str(result.directory.path), "--output", str(tmp_path / name)]) == 0
    said = capsys.readouterr().out
    assert "actions of 8 episodes are identical" in said
    assert "8 arrays" in said
