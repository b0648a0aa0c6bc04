"""Gymnasium environments in processes: the same as Gymnasium's own vector environment, and more that may fail."""

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from hosted_machine import Machine, Unsized

from components.envs import AsyncVectorEnv


@pytest.fixture
def made():
    envs: list[AsyncVectorEnv] = []

    def make(*arguments: Any, **options: Any) -> AsyncVectorEnv:
        envs.append(AsyncVectorEnv(*arguments, **options))
        return envs[-1]

    yield make
    for env in envs:
        env.close()


def assert_same(ours: Any, theirs: Any) -> None:
    """Compare nested dicts and tuples of arrays."""
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_same(ours[key], theirs[key])
    elif isinstance(ours, tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    else:
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def play_both(ours: VectorEnv, theirs: VectorEnv, steps: int) -> None:
    for mine, its in ((ours.observation_space, theirs.observation_space), (ours.action_space, theirs.action_space)):
        assert mine == its
    assert ours.metadata["autoreset_mode"] == theirs.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    assert_same(ours.reset(seed=7, options={"a": 1}), theirs.reset(seed=7, options={"a": 1}))
    ours.action_space.seed(3)
    ended = 0
    for _ in range(steps):
        actions = ours.action_space.sample()
        told = ours.step(actions)
        assert told[0] in ours.observation_space
        assert_same(told, theirs.step(actions))
        ended += int(told[2].sum() + told[3].sum())
    assert ended > 4


def test_it_plays_what_gymnasium_s_own_vector_environment_plays(made) -> None:
    play_both(made("CartPole-v1", 3), SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3), 120)


def test_structured_spaces_and_infos_are_those_of_gymnasium_s_own(made) -> None:
    play_both(made(Machine, 3, envs_per_process=2), SyncVectorEnv([Machine] * 3), 20)


def test_gymnasium_s_wrappers_of_vector_environments_wrap_it(made) -> None:
    env = RecordEpisodeStatistics(made("CartPole-v1", 2))
    env.reset(seed=1)
    lengths = []
    for _ in range(60):
        *_, infos = env.step(np.zeros(2, np.int64))
        lengths += infos["episode"]["l"][infos["_episode"]].tolist() if "episode" in infos else []
    assert len(lengths) > 4
    assert set(lengths) <= {8, 9, 10, 11}


def test_environments_that_are_ready_are_received_with_their_numbers(made) -> None:
    env = made(Machine, 3)
    plain = SyncVectorEnv([Machine] * 3)
    env.reset(seed=5)
    plain.reset(seed=5)
    actions = {"go": np.arange(3), "push": np.zeros((3, 2), np.float32)}
    expected, _, _, _, infos = plain.step(actions)
    env.send(actions, np.arange(3))
    seen = 0
    while seen < 3:
        obs, reward, terminated, _, told = env.recv()
        numbers = told["env_id"]
        seen += len(numbers)
        np.testing.assert_array_equal(obs["place"], expected["place"][numbers])
        np.testing.assert_array_equal(told["pair"], infos["pair"][numbers])
        assert len(reward) == len(terminated) == len(numbers)
    with pytest.raises(NoAsyncCallError):
        env.recv()


def test_calls_in_the_wrong_order_are_gymnasium_s_errors(made) -> None:
    env = made(Machine, 2)
    env.reset()
    actions = {"go": np.zeros(1, np.int64), "push": np.zeros((1, 2), np.float32)}
    env.send(actions, np.array([1]))
    with pytest.raises(AlreadyPendingCallError):
        env.send(actions, np.array([1]))
    with pytest.raises(AlreadyPendingCallError):
        env.reset()
    env.send(actions, np.array([0]))
    env.close()
    with pytest.raises(ClosedEnvironmentError):
        env.reset()


def test_actions_of_another_shape_are_refused(made) -> None:
    env = made("CartPole-v1", 2)
    env.reset()
    with pytest.raises(ValueError, match=r"actions has the shape \(3,\), must be \(2,\)"):
        env.step(np.zeros(3, np.int64))


@pytest.mark.parametrize("trouble", ["crash", "error"])
def test_an_episode_that_is_lost_is_cut_at_its_last_observation(made, tmp_path: Path, trouble: str) -> None:
    env = made(partial(Machine, trouble=trouble, at=2, once=str(tmp_path / "once")), 2)
    env.reset(seed=0)
    actions = {"go": np.ones(2, np.int64), "push": np.zeros((2, 2), np.float32)}
    before, *_ = env.step(actions)
    obs, reward, terminated, truncated, infos = env.step(actions)
    lost = infos["lost"]
    assert lost.sum() == 1
    np.testing.assert_array_equal(truncated, lost)
    assert not terminated.any()
    np.testing.assert_array_equal(obs["place"][lost], before["place"][lost])
    np.testing.assert_array_equal(obs["parts"][0], np.where(lost, 1, 2))
    np.testing.assert_array_equal(reward, np.where(lost, 0.0, 2.0))
    obs, reward, _, truncated, infos = env.step(actions)
    np.testing.assert_array_equal(obs["parts"][0], np.where(lost, 0, 3))  # the next step begins another
    assert not truncated.any()
    assert "lost" not in infos
    assert (env.restarts, env.episodes_lost) == (1, 1)


def test_a_space_without_a_size_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"obs is a Text\(.*\): it must be a Box, Discrete"):
        AsyncVectorEnv(Unsized, 1)


def test_infos_that_cannot_travel_are_named(made) -> None:
    env = made(Machine, 1)
    with pytest.raises(TypeError, match=r"object <object .*> is neither a plain value nor an array"):
        env.reset(options={"a": object()})
