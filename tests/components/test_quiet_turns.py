"""Turns while the learner does not learn are as long as the environment allows."""

from pathlib import Path

import pytest

from orchestra import Flags, build, load_experiment

EXPERIMENT = Path(__file__).resolve().parents[2] / "experiments" / "qmix_8m.py"


@pytest.mark.parametrize(
    ("flags", "steps"),
    [
        pytest.param([], 120, id="the simulator"),
        pytest.param(["--game-speed"], 32, id="as slow as the game"),
        pytest.param(["--asynchronous", "--envs-per-worker", "4"], 32, id="in processes"),
    ],
)
def test_only_the_simulator_has_long_turns(flags: list[str], steps: int) -> None:
    function = load_experiment(EXPERIMENT)
    topology = build(function, Flags.of(function).parse(["--scenario", "3m", *flags]))
    worker = topology.nodes["worker-0-0"].actors[0].factory
    assert worker.keywords["quiet_steps_per_turn"] == steps  # type: ignore[attr-defined]  # it is a partial
