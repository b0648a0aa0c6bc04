"""The options of the simulator are flags of the experiments, and what differs from the defaults reaches the battles."""

from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from components.envs import Features, Skirmish
from components.worker import Worker
from orchestra import UsageError
from orchestra.runs.experiment import build, load_experiment
from orchestra.runs.flags import Flags

TRAIN = Path(__file__).parents[3] / "experiments" / "train.py"


def made(**values: Any) -> Any:
    """What makes the environments of the workers of a run with these flags."""
    function = load_experiment(TRAIN)
    topology = build(function, Flags.of(function).defaults | values)
    actors = [actor for node in topology.nodes.values() for actor in node.actors]
    return next(actor.factory.keywords["env"] for actor in actors if issubclass(actor.kind, Worker))


def test_each_option_of_observations_is_a_flag() -> None:
    names = {flag.name for flag in Flags.of(load_experiment(TRAIN))}
    assert {field.name for field in fields(Features)} | {"ruleset", "start_jitter", "difficulty"} <= names


def test_without_flags_the_battles_are_made_as_ever() -> None:
    factory = made(scenario="3m")
    assert (factory.func, factory.args, factory.keywords) == (Skirmish, ("3m",), {})


def test_flags_reach_the_battles() -> None:
    factory = made(
        scenario="3m", ruleset="liberty", start_jitter=0.5, difficulty=3, obs_own_position="yes", obs_last_action=True
    )
    env = factory(2, seed=1)
    assert env.features == Features(obs_own_position=True, obs_last_action=True)
    assert env.spec.obs_size == 30 + 2 + 2 * 9
    assert factory.keywords.items() >= {"ruleset": "liberty", "start_jitter": 0.5, "difficulty": 3}.items()
    env.reset()
    assert len({float(x) for x in env.units["x"][:, 0]}) == 2


def test_environments_in_processes_take_them_too() -> None:
    factory = made(scenario="3m", obs_timestep_number=True, asynchronous=True, start_jitter=1.0)
    inner = factory.args[0]
    assert isinstance(inner, partial)
    assert inner.keywords == {"start_jitter": 1.0, "features": {"obs_timestep_number": True}}


@pytest.mark.parametrize("env", ["smac", "gymnasium:CartPole-v1"])
def test_they_are_refused_for_other_environments(env: str) -> None:
    said = f"--start-jitter, --obs-last-action: for the simulator alone, and --env is {env}"
    with pytest.raises(UsageError, match=said):
        made(env=env, start_jitter=1.0, obs_last_action=True)
