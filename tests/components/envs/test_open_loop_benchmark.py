"""The open-loop baseline replays what it says, and its search finds what earns more."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from components.envs import Skirmish

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "open_loop.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("open_loop_benchmark", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Blind:
    """A policy that plays at random."""

    def initial_hidden(self, n):
        return np.zeros((n, 1))

    def act(self, obs, available, last, hidden, *, epsilon, rng):
        return np.argmax(rng.random(available.shape) * available, axis=2), hidden


def test_recorded_actions_replayed_in_the_same_battles_give_the_same_results(benchmark):
    env = Skirmish("3m", 6, seed=4)
    sequences = benchmark.recorded(env, Blind(), np.random.default_rng(1))
    again, rng = Skirmish("3m", 6, seed=4), np.random.default_rng(1)
    total, playing = np.zeros(6), np.ones(6, bool)
    again.reset()
    while playing.any():
        again.step(np.argmax(rng.random(again.available.shape) * again.available, axis=2))
        total += again.reward * playing
        over = again.terminated | again.truncated
        playing &= ~over
        again.reset(over)
    replayed = Skirmish("3m", 6, seed=4)
    replayed.reset()
    returns, playing = np.zeros(6), np.ones(6, bool)
    for t in range(60):
        actions, replaced = benchmark.possible(replayed, sequences[:, t])
        assert not replaced[playing].any()
        replayed.step(actions)
        returns += replayed.reward * playing
        over = replayed.terminated | replayed.truncated
        playing &= ~over
        replayed.reset(over)
    np.testing.assert_array_equal(returns, total)


def test_a_sequence_is_played_without_looking(benchmark):
    stopping = np.ones((1, 60, 3), np.int64)
    attacking = np.full((1, 60, 3), 6)
    returns, wins = benchmark.played("3m", np.concatenate([stopping, attacking]), 8, seed=1)
    assert returns[0] == 0.0
    assert returns[1] > 1.0  # the first enemy was hurt
    assert wins.tolist() == [0, 0]


def test_the_search_keeps_what_earns_more(benchmark):
    best = benchmark.searched("3m", size=24, each=4, generations=8, seed=0)
    first = benchmark.first_guesses(24, Skirmish("3m", 1), np.random.default_rng(0))
    assert best.shape == (1, 60, 3)
    assert benchmark.played("3m", best, 64, seed=99)[0][0] > np.median(benchmark.played("3m", first, 64, seed=99)[0])
