"""The scripts of the difficulty benchmark lose the hardest maps, as SMAC's own does on the real game."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from components.envs import Skirmish

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "difficulty.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("difficulty_benchmark", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_nearest_attacks_the_nearest_and_focus_the_weakest_in_reach(benchmark, stage) -> None:
    env = Skirmish("3m", 1)
    env.reset()
    stage(env, {0: {"x": 9.0, "y": 16.0}}, {0: {"x": 12.0, "y": 16.0}, 1: {"x": 14.0, "y": 16.0, "health": 20.0}})
    rng = np.random.default_rng(0)
    assert benchmark.nearest(env, rng).tolist() == [[6, 0, 0]]
    assert benchmark.focus(env, rng).tolist() == [[7, 0, 0]]
    stage(env, {0: {"x": 9.0, "y": 16.0}}, {0: {"x": 18.0, "y": 17.0}})
    assert benchmark.nearest(env, rng).tolist() == [[4, 0, 0]]  # east


@pytest.mark.slow
def test_zealots_that_attack_the_nearest_lose_the_corridor(benchmark) -> None:
    assert benchmark.play("corridor", "nearest", 128, seed=0, start_jitter=0.1).won <= 0.1
    assert benchmark.play("corridor", "focus", 64, seed=0, start_jitter=0.1).won == 0


@pytest.mark.slow
@pytest.mark.parametrize("script", ["nearest", "focus"])
@pytest.mark.parametrize("scenario", ["MMM2", "6h_vs_8z", "3s5z_vs_3s6z", "27m_vs_30m"])
def test_no_script_wins_a_super_hard_map(benchmark, scenario: str, script: str) -> None:
    assert benchmark.play(scenario, script, 32, seed=0, start_jitter=0.1).won <= 0.05
