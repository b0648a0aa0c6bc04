"""PettingZoo's and Gymnasium's own checks, and that both play the battles that the simulator does."""

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import components.envs.skirmish.gymnasium  # noqa: F401  # it registers
from components.envs import SCENARIOS, Skirmish
from components.envs.skirmish.pettingzoo import SkirmishParallelEnv

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of the games that PettingZoo's own tests import
    from pettingzoo.test import parallel_api_test, parallel_seed_test


@pytest.mark.parametrize("scenario", ["3m", "MMM2", "zerg_5_vs_5"])
def test_pettingzoo_s_own_tests_pass(scenario: str) -> None:
    parallel_api_test(SkirmishParallelEnv(scenario), num_cycles=300)
    parallel_seed_test(lambda: SkirmishParallelEnv(scenario), num_cycles=30)


def test_the_parallel_env_plays_the_simulator_s_battle() -> None:
    env, plain = SkirmishParallelEnv("3m", start_jitter=0.2), Skirmish("3m", 1, seed=5, start_jitter=0.2)
    seen, infos = env.reset(seed=5)
    plain.reset()
    assert env.agents == ["agent_0", "agent_1", "agent_2"] == list(infos)
    while env.agents:
        actions = {agent: env.action_space(agent).sample(seen[agent]["action_mask"]) for agent in env.agents}
        chosen = np.array([[actions[agent] for agent in env.possible_agents]])
        seen, rewards, terminated, truncated, infos = env.step(actions)
        plain.step(chosen)
        for i, agent in enumerate(env.possible_agents):
            assert env.observation_space(agent).contains(seen[agent])
            np.testing.assert_array_equal(seen[agent]["observation"], plain.obs[0, i])
            np.testing.assert_array_equal(seen[agent]["action_mask"], plain.available[0, i])
            assert rewards[agent] == float(plain.reward[0])
            assert (terminated[agent], truncated[agent]) == (plain.terminated[0], plain.truncated[0])
            assert infos[agent] == {
                "alive": plain.units["health"][0, i] > 0.0,
                "battle_won": bool(plain.won[0]),
                "replaced": False,
            }
        np.testing.assert_array_equal(env.state(), plain.state[0])
    assert (plain.terminated | plain.truncated)[0]
    with pytest.raises(ValueError, match="battle 0 is over"):
        env.step(actions)


def test_a_parallel_env_wants_an_action_of_each_agent_and_says_which_it_replaced() -> None:
    env = SkirmishParallelEnv("3m")
    env.reset(seed=0)
    with pytest.raises(ValueError, match="no action was given for agent_1, agent_2"):
        env.step({"agent_0": 1})
    infos = env.step({"agent_0": 1, "agent_1": 1, "agent_2": 0})[-1]
    assert [info["replaced"] for info in infos.values()] == [False, False, True]


def test_every_scenario_is_registered() -> None:
    assert {f"skirmish/{scenario}-v0" for scenario in SCENARIOS} <= gymnasium.registry.keys()
    for scenario in ("3s_vs_5z", "terran_10_vs_11"):
        env = gymnasium.make(f"skirmish/{scenario}-v0")
        assert env.unwrapped._env.scenario.name == scenario
        env.close()


@pytest.mark.parametrize("scenario", ["3m", "MMM2"])
def test_gymnasium_s_own_check_passes(scenario: str) -> None:
    check_env(gymnasium.make(f"skirmish/{scenario}-v0").unwrapped)


def test_what_is_not_available_becomes_stop_and_is_counted() -> None:
    env, plain = gymnasium.make("skirmish/3m-v0"), Skirmish("3m", 1, seed=3)
    env.reset(seed=3)
    plain.reset()
    seen, reward, _, _, info = env.step(np.array([0, 8, 4]))
    plain.step(np.array([[1, 1, 4]]))
    np.testing.assert_array_equal(seen, plain.obs[0])
    np.testing.assert_array_equal(info["action_mask"], plain.available[0])
    np.testing.assert_array_equal(info["state"], plain.state[0])
    assert (info["replaced"], reward) == (2, float(plain.reward[0]))


@pytest.mark.parametrize("scenario", ["3m", "2s3z"])
def test_the_vector_env_begins_anew_in_the_same_step(scenario: str) -> None:
    env = gymnasium.make_vec(f"skirmish/{scenario}-v0", num_envs=4, start_jitter=0.3)
    plain = Skirmish(scenario, 4, seed=8, start_jitter=0.3)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    seen, info = env.reset(seed=8)
    plain.reset()
    rng = np.random.default_rng(0)
    ended = np.zeros(4, np.int64)
    while ended.min() < 2:
        assert env.observation_space.contains(seen)
        actions = np.argmax(rng.random(info["action_mask"].shape) * info["action_mask"], axis=2)
        seen, reward, terminated, truncated, info = env.step(actions)
        plain.step(actions)
        np.testing.assert_array_equal(reward, plain.reward)
        over = plain.terminated | plain.truncated
        np.testing.assert_array_equal(terminated | truncated, over)
        assert ("final_obs" in info) == over.any()
        if over.any():
            np.testing.assert_array_equal(info["final_obs"][over], plain.obs[over])
            np.testing.assert_array_equal(info["final_info"]["battle_won"], plain.won)
            np.testing.assert_array_equal(info["_final_obs"], over)
            plain.reset(over)
        np.testing.assert_array_equal(seen, plain.obs)
        ended += over
    with pytest.raises(ValueError, match="battles share one seed"):
        env.reset(seed=[1, 2, 3, 4])
    with pytest.raises(ValueError, match=r"actions are of shape \(3, 3\), must be \(4, "):
        env.step(np.zeros((3, 3), np.int64))
