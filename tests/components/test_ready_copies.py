"""Copies that become ready in any order play the very episodes that each plays alone."""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from components.envs.base import Env
from components.playing import play
from components.rollout import Rollout

RNG = np.random.default_rng(0)
ANY_ORDER = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


class AnyOrder(Env):
    """Copies that answer when `order` says so, in arrays that hold rubbish for those that are under way."""

    lock_step = False

    def __init__(self, corridor: Any, n_envs: int, order: np.random.Generator, *, losses: float = 0.0) -> None:
        self._alone = [corridor(1, seed=0, first=i) for i in range(n_envs)]
        self.spec, self.n_envs = self._alone[0].spec, n_envs
        self._allocate()
        self._order, self._losses = order, losses
        self._tasks: dict[int, np.ndarray | None] = {}
        self._lost = np.zeros(n_envs, np.bool_)
        self.sent: dict[int, int] = defaultdict(int)
        self.lost_steps = 0

    def reset(self, which: Any = None) -> None:
        raise AssertionError("not in lock-step")

    step = reset

    def send(self, actions: np.ndarray, copies: Any) -> None:
        for action, b in zip(actions, copies.tolist(), strict=True):
            assert b not in self._tasks
            self._tasks[b] = action
            self._spoil(b)
            self.sent[b] += 1

    def send_reset(self, copies: Any) -> None:
        for b in np.arange(self.n_envs)[copies].tolist():
            assert b not in self._tasks
            self._tasks[b] = None
            self._spoil(b)

    def recv(self) -> np.ndarray:
        ready: list[int] = []
        while not ready:
            ready = [b for b in sorted(self._tasks) if self._order.random() < 0.5]
        self._lost[:] = False
        for b in ready:
            env, action = self._alone[b], self._tasks.pop(b)
            if action is None:
                env.reset()
            else:
                env.step(action[None])
                if self._order.random() < self._losses:
                    self._lost[b] = True
                    env.reset()
            for name in ("obs", "state", "available", "reward", "terminated", "truncated", "won"):
                getattr(self, name)[b] = getattr(env, name)[0]
        return np.array(ready, np.int64)

    def failed_copies(self) -> np.ndarray:
        return self._lost

    def _spoil(self, b: int) -> None:
        self.obs[b], self.state[b], self.reward[b] = np.nan, np.nan, np.nan
        self.available[b] = False
        self.terminated[b] = self.truncated[b] = self.won[b] = True


def episodes_by_copy(messages: list[Any]) -> dict[int, list[tuple[Any, ...]]]:
    """Return of each copy the episodes, each as its number, rewards, actions and last frame."""
    episodes = defaultdict(list)
    for message in messages:
        steps = 0
        for e, length in enumerate(message.lengths.tolist()):
            frames = message["state"][steps + e : steps + e + length + 1]
            assert frames[:, 2].tolist() == list(range(length + 1))
            assert len(set(frames[:, 0])) == len(set(frames[:, 1])) == 1
            rewards, actions = message["reward"][steps : steps + length], message["actions"][steps : steps + length]
            ended = bool(message.terminated[e]), bool(message.won[e])
            episodes[int(frames[0, 0])].append((int(frames[0, 1]), rewards.tolist(), actions.tolist(), ended))
            steps += length
    return episodes


def collected(rollout: Rollout, turns: int) -> list[Any]:
    return [message for _ in range(turns) if (message := rollout.collect(4, 0.0)) is not None]


@ANY_ORDER
@given(seed=st.integers(0, 1 << 32), n_envs=st.integers(1, 4))
def test_a_rollout_of_copies_in_any_order_is_that_of_each_alone(corridor, scripted, seed: int, n_envs: int) -> None:
    env = AnyOrder(corridor, n_envs, np.random.default_rng(seed))
    played = episodes_by_copy(collected(Rollout(env, scripted(env.spec, seed=0), RNG), 30))
    for b in range(n_envs):
        alone = corridor(1, seed=0, first=b)
        expected = episodes_by_copy(collected(Rollout(alone, scripted(env.spec, seed=0), RNG), 60))[b]
        assert played[b] == expected[: len(played[b])]
        assert sum(len(episode[1]) for episode in played[b]) > env.sent[b] - 7  # all but the one under way


@ANY_ORDER
@given(seed=st.integers(0, 1 << 32))
def test_an_episode_that_is_lost_leaves_no_trace_in_those_that_follow(corridor, scripted, seed: int) -> None:
    env = AnyOrder(corridor, 3, np.random.default_rng(seed), losses=0.1)
    played = episodes_by_copy(collected(Rollout(env, scripted(env.spec, seed=0), RNG), 30))
    for b in range(3):
        alone = corridor(1, seed=0, first=b)
        expected = {
            episode[0]: episode
            for episode in episodes_by_copy(collected(Rollout(alone, scripted(env.spec, seed=0), RNG), 90))[b]
        }
        numbers = [episode[0] for episode in played[b]]
        assert numbers == sorted(set(numbers))
        for episode in played[b]:
            assert episode == expected[episode[0]]


@ANY_ORDER
@given(seed=st.integers(0, 1 << 32), episodes=st.integers(1, 9))
def test_an_evaluation_of_copies_in_any_order_is_that_of_each_alone(
    corridor, scripted, seed: int, episodes: int
) -> None:
    class Blind(corridor):
        """Without the number of the episode, so that all rounds are alike."""

        def _look(self, which: np.ndarray) -> None:
            super()._look(which)
            self.obs[..., 1] = 0.0

    plan = ((3,), (5,), (1,))
    env = AnyOrder(lambda n, seed, first: Blind(n, seed=seed, first=first, plan=plan), 3, np.random.default_rng(seed))
    played = play(env, scripted(env.spec, seed=0), episodes, RNG)
    alone = play(Blind(3, seed=0, plan=plan), scripted(env.spec, seed=0), episodes, RNG)
    for name in ("won", "returns", "lengths"):
        np.testing.assert_array_equal(getattr(played, name), getattr(alone, name), err_msg=name)


@pytest.mark.parametrize("turn", [1, 5])
def test_a_turn_ends_when_no_copy_becomes_ready(corridor, scripted, turn: int) -> None:
    class Stuck(AnyOrder):
        def recv(self) -> np.ndarray:
            return np.empty(0, np.int64)

    env = Stuck(corridor, 2, RNG)
    assert Rollout(env, scripted(env.spec, seed=0), RNG).collect(turn, 0.0) is None


def test_a_turn_makes_as_many_steps_as_in_lock_step(corridor, scripted) -> None:
    env = AnyOrder(corridor, 4, np.random.default_rng(3))
    rollout = Rollout(env, scripted(env.spec, seed=0), RNG)
    for turn in range(1, 20):
        rollout.collect(3, 0.0)
        made = sum(env.sent.values()) - sum(action is not None for action in env._tasks.values())
        assert turn * 12 <= made <= turn * 12 + 3 * turn
