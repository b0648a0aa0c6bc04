"""Every experiment of this checkout is laid out, and runs."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from components.envs import SCENARIOS
from orchestra import Topology
from orchestra.cli.main import main
from orchestra.runs.experiment import build, load_experiment
from orchestra.runs.flags import Flags

ROOT = Path(__file__).resolve().parent.parent
# Their updates learn from all steps of a round.
IN_ROUNDS = ("mappo_3m", "ppo", "ppo_lunar_lander", "ppo_pendulum", "pqn", "pqn_3m")
PROGRAMS = ("lunar_lander",)  # they make many runs
EXPERIMENTS = sorted(path for path in (ROOT / "experiments").glob("*.py") if path.stem not in PROGRAMS)
RUN = [path for path in EXPERIMENTS if path.stem != "qmix_8m"]  # which is `train` with the same defaults
EACH = pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)


def laid_out(path: Path, **values: Any) -> Topology:
    function = load_experiment(path)
    return build(function, Flags.of(function).defaults | values)


@EACH
def test_an_experiment_is_documented_and_so_is_each_of_its_flags(path: Path) -> None:
    function = load_experiment(path)
    assert function.__doc__
    assert [flag.name for flag in Flags.of(function) if not flag.description] == []


@EACH
def test_an_experiment_s_defaults_can_be_laid_out(path: Path) -> None:
    topology = laid_out(path)
    root = topology.root.name
    assert topology.main_actor().startswith(f"{root}/")
    addresses = {f"{node.name}/{actor.name}" for node in topology.nodes.values() for actor in node.actors}
    for node in topology.nodes.values():
        for actor in node.actors:
            assert {ref.address for ref in actor.refs()} <= addresses


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_qmix_can_be_laid_out_for_every_scenario(scenario: str) -> None:
    assert laid_out(ROOT / "experiments" / "qmix_8m.py", scenario=scenario).name == f"qmix_{scenario}"


def test_qmix_can_be_laid_out_for_a_scenario_of_one_s_own() -> None:
    own = ROOT / "docs" / "examples" / "scenarios" / "rescue.toml"
    assert laid_out(ROOT / "experiments" / "qmix_8m.py", scenario=str(own)).name == "qmix_rescue"


@pytest.mark.parametrize("path", RUN, ids=lambda path: path.stem)
def test_an_experiment_runs_in_one_process(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = {
        "scenario": "3m",
        "steps": 400,
        "envs_per_worker": 4,
        "learning_starts": 4,
        "batch_size": 4,
        "hidden_size": 8,
        "updates_per_episode": 0.2,
        "eval_episodes": 2,
        "final_eval_episodes": 2,
    }
    if path.stem == "dqn_cartpole":
        del small["hidden_size"]  # its class has --width
    known = {flag.name for flag in Flags.of(load_experiment(path))}
    if path.stem in IN_ROUNDS:
        small |= {"rollout_length": 20, "epochs": 1, "minibatches": 4}
        known |= {"epochs", "minibatches"}  # of the algorithm's class
        for name in ("batch_size", "learning_starts", "updates_per_episode"):
            del small[name]
    flags = [word for name, value in small.items() if name in known for word in (f"--{name.replace('_', '-')}", value)]
    run = ["run", path, *flags, "--single-process", "--runs-dir", tmp_path]
    assert main([str(word) for word in run]) == 0
    (summary,) = tmp_path.glob("*/*/summary.json")
    assert json.loads(summary.read_text())["reached_goal"] is True
    printed = capsys.readouterr()
    assert "done after" in printed.out
    assert printed.err == ""


@pytest.mark.slow
def test_the_example_of_a_run_from_python_prints_its_result(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "docs" / "examples" / "run_from_python.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=200)
    *_, state, metrics = ended.stdout.splitlines()
    assert state.startswith("completed runs/qmix_3m/")
    assert ast.literal_eval(metrics)["env_steps"] >= 20_000
