"""The benchmark's comparison with the public re-implementations, against stand-ins that have their interfaces."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "simulator.py"


@pytest.fixture
def benchmark():
    spec = importlib.util.spec_from_file_location("simulator_benchmark", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def installed(monkeypatch):
    """A function that installs a module of this name."""

    def install(name, **contents):
        module = ModuleType(name)
        module.__spec__ = importlib.util.spec_from_loader(name, loader=None)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return install


class Smaclite:
    """Two agents, three actions, of which the first is never available; episodes of four steps."""

    def __init__(self):
        self.steps = 0
        self.resets = 0

    def reset(self):
        self.resets += 1
        self.t = 0
        return None, {"avail_actions": [[0, 1, 1]] * 2}

    def step(self, actions):
        assert all(action in (1, 2) for action in actions)
        assert self.t < 4
        self.t += 1
        self.steps += 1
        return None, 0.0, self.t == 4, False, {"avail_actions": [[0, 1, 1]] * 2}


def test_smaclite_is_played_where_it_is_installed(benchmark, installed, monkeypatch):
    import gymnasium

    installed("smaclite")
    env = Smaclite()
    made = []
    monkeypatch.setattr(gymnasium, "make", lambda name: made.append(name) or env)
    assert benchmark.smaclite_rate("3m", 0.01) > 0
    assert made == ["smaclite/3m-v0"]
    assert env.steps > 4
    assert env.resets == 1 + env.steps // 4


def test_what_smaclite_lacks_is_left_out(benchmark, installed):
    installed("smaclite")
    assert benchmark.smaclite_rate("3m", 0.01) is None  # gymnasium knows no such name


def test_smax_compiles_before_it_is_timed(benchmark, installed):
    calls = []

    def jit(function):
        def run(*arguments):
            calls.append(function)
            return function(*arguments)

        return run

    def vmap(function):
        def run(*arguments):
            answers = [function(*row) for row in zip(*arguments, strict=True)]
            return tuple(list(column) for column in zip(*answers, strict=True))

        return run

    class Env:
        agents = ("ally_0", "ally_1")
        num_agents = 2

        def reset(self, key):
            return {}, 0

        def get_avail_actions(self, state):
            return {agent: np.array([0.0, 1.0]) for agent in self.agents}

        def step(self, key, state, actions):
            assert set(actions) == set(self.agents)
            return {}, state + 1, {}, {}, {}

    def make(name, scenario):
        assert name == "HeuristicEnemySMAX"
        return Env()

    def map_name_to_scenario(name):
        return {"3m": object()}[name]

    random = SimpleNamespace(
        split=lambda key, n: [key] * n,
        PRNGKey=lambda seed: seed,
        categorical=lambda key, logits: int(np.argmax(logits)),
    )
    installed("jax", jit=jit, vmap=vmap, random=random, numpy=np, block_until_ready=lambda answer: answer)
    installed("jaxmarl", make=make)
    installed("jaxmarl.environments")
    installed("jaxmarl.environments.smax", map_name_to_scenario=map_name_to_scenario)
    assert benchmark.smax_rate("3m", 0.01, 4) > 0
    assert len(calls) > 3
    assert benchmark.smax_rate("MMM", 0.01, 4) is None


def test_what_is_not_installed_is_named(benchmark, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "interpreted_rate", lambda scenario, seconds: 50.0)
    for name in ("smaclite_rate", "smax_rate"):
        monkeypatch.setattr(benchmark, name, lambda scenario, seconds: None)
    assert benchmark.baselines("3m", 0.01) == {"interpreted": 50.0}
    said = capsys.readouterr().out.splitlines()
    assert [line.split(" is ")[0] for line in said] == ["3m: SMAClite", "3m: SMAX"]
    assert all("not installed or lacks this scenario, so it is not compared" in line for line in said)
