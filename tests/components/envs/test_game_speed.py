"""An environment at game speed takes the drawn time of each step, and is otherwise the environment that it slows."""

from functools import partial

import numpy as np
import pytest

from components.envs import Skirmish, base, game_speed
from components.envs.game_speed import MEAN_S, STRAGGLER_S, USUAL_S, GameSpeed


class Clock:
    """Time that passes only while somebody sleeps, or when a test says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        assert seconds > 0.0
        self.slept.append(seconds)
        self.seconds += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (base, game_speed):
        monkeypatch.setattr(module, "monotonic", lambda: clock.seconds)
    monkeypatch.setattr(base, "sleep", clock.sleep)
    return clock


def slowed(n_envs: int = 1, **options) -> GameSpeed:
    env = GameSpeed(partial(Skirmish, "3m"), n_envs, **options)
    env.reset()
    return env


def idle(env) -> np.ndarray:
    """*Stop*, or *nothing* for the dead."""
    return env.available[..., 1].astype(np.int64)


def durations(steps: int, *copies: int, **options) -> np.ndarray:
    """(steps, len(copies)): the times that will be drawn for these copies."""
    env = slowed(max(copies) + 1, **options)
    return np.array([[game_speed._seconds(env._generators[b].random()) for b in copies] for _ in range(steps)])


def play(env, steps: int) -> None:
    for _ in range(steps):
        env.step(idle(env))
        done = env.terminated | env.truncated
        if done.any():
            env.reset(done)


def test_a_step_takes_the_time_that_was_drawn_for_it_what_the_simulator_needs_included(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = durations(20, 0)[:, 0]
    env = slowed()
    step = Skirmish.step

    def take(self: Skirmish, actions: np.ndarray) -> None:
        clock.seconds += 0.004
        step(self, actions)

    monkeypatch.setattr(Skirmish, "step", take)
    began = clock.seconds
    play(env, 20)
    assert clock.slept == pytest.approx(expected - 0.004)
    assert clock.seconds - began == pytest.approx(expected.sum())


def test_a_step_that_took_longer_than_the_game_does_not_wait(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    env = slowed()
    step = Skirmish.step

    def take(self: Skirmish, actions: np.ndarray) -> None:
        clock.seconds += STRAGGLER_S[1]
        step(self, actions)

    monkeypatch.setattr(Skirmish, "step", take)
    play(env, 20)
    assert clock.slept == []


@pytest.mark.parametrize(("copies", "together"), [("parallel", np.max), ("serial", np.sum)])
def test_a_batch_takes_as_long_as_its_slowest_copy_or_as_all_in_turn(clock: Clock, copies, together) -> None:
    expected = together(durations(30, 0, 1, 2, 3, seed=5), axis=1)
    play(slowed(4, seed=5, copies=copies), 30)
    assert clock.slept == pytest.approx(expected)


def test_the_times_of_a_copy_depend_neither_on_the_number_of_copies_nor_on_each_other() -> None:
    alone, among = durations(50, 0, seed=3)[:, 0], durations(50, 0, 1, seed=3)
    np.testing.assert_array_equal(alone, among[:, 0])
    assert not (among[:, 0] == among[:, 1]).any()
    assert not (alone == durations(50, 0, seed=4)[:, 0]).any()


def test_the_times_are_of_the_documented_distribution() -> None:
    seconds = durations(50_000, 0)[:, 0]
    late = seconds > USUAL_S[1]
    assert USUAL_S[0] <= seconds.min() < USUAL_S[0] + 1e-5
    assert (seconds[late] >= STRAGGLER_S[0]).all()
    assert STRAGGLER_S[1] - 1e-3 < seconds.max() <= STRAGGLER_S[1]
    assert late.mean() == pytest.approx(0.04, abs=0.004)
    assert seconds.mean() == pytest.approx(MEAN_S, rel=0.01)
    assert pytest.approx(0.01, rel=0.01) == MEAN_S


def test_the_episodes_are_those_of_the_environment_alone(clock: Clock) -> None:
    fast, slow = Skirmish("3m", 3, seed=9), slowed(3, seed=9)
    fast.reset()
    rng = np.random.default_rng(1)
    for _ in range(200):
        actions = np.argmax(rng.random(fast.available.shape) * fast.available, axis=2)
        for env in (fast, slow):
            env.step(actions)
        for name in ("obs", "state", "available", "reward", "terminated", "truncated", "won"):
            np.testing.assert_array_equal(getattr(fast, name), getattr(slow, name))
        done = fast.terminated | fast.truncated
        for env in (fast, slow):
            env.reset(done)


def test_an_environment_goes_on_from_a_snapshot_with_the_same_times(clock: Clock) -> None:
    env = slowed(2)
    play(env, 7)
    taken = env.snapshot()
    clock.slept.clear()
    play(env, 10)
    expected, state = clock.slept.copy(), env.state.copy()
    other = slowed(2)
    other.restore(taken)
    clock.slept.clear()
    play(other, 10)
    assert clock.slept == pytest.approx(expected)
    np.testing.assert_array_equal(other.state, state)
    with pytest.raises(ValueError, match="it lacks game_speed/drawn"):
        other.restore(Skirmish("3m", 2).snapshot())


def test_a_refused_step_takes_no_time_and_draws_nothing(clock: Clock) -> None:
    env = slowed()
    expected = durations(1, 0)[0]
    with pytest.raises(ValueError, match="is not available"):
        env.step(np.full((1, 3), 8))
    assert clock.slept == []
    env.step(idle(env))
    assert clock.slept == pytest.approx(expected)


def test_an_unknown_way_to_run_copies_is_refused() -> None:
    with pytest.raises(ValueError, match="copies is 'both', must be 'parallel' or 'serial'"):
        GameSpeed(partial(Skirmish, "3m"), copies="both")
