"""Air combat by PettingZoo's own checks, and that it plays the simulator's battles."""

import warnings

import numpy as np
import pytest

from components.envs.air_combat.battles import AirBattles
from components.envs.air_combat.pettingzoo import AirCombatParallelEnv

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of the games that PettingZoo's own tests import
    from pettingzoo.test import parallel_api_test, parallel_seed_test

OPTIONS = {"frame_skip": 5, "max_steps": 300}


@pytest.mark.parametrize("scenario", ["fighter10v10", "detector2_fighter10"])
def test_pettingzoo_s_own_tests_pass(scenario: str) -> None:
    parallel_api_test(AirCombatParallelEnv(scenario, **OPTIONS), num_cycles=150)
    parallel_seed_test(lambda: AirCombatParallelEnv(scenario, **OPTIONS), num_cycles=30)


def test_it_plays_the_simulator_s_battle_and_gives_each_its_own_reward_and_the_round_s() -> None:
    env = AirCombatParallelEnv("detector2_fighter10", **OPTIONS)
    plain = AirBattles("detector2_fighter10", 1, seed=5, **OPTIONS)
    seen, infos = env.reset(seed=5)
    plain.reset()
    assert env.agents == ["red_detector_0", "red_detector_1", *(f"red_fighter_{i}" for i in range(10))] == list(infos)
    rng, replaced = np.random.default_rng(0), 0
    while env.agents:
        actions = {agent: int(rng.choice(np.flatnonzero(seen[agent]["action_mask"]))) for agent in env.agents}
        if rng.random() < 0.2:
            actions["red_detector_0"] = 7  # it has no missiles
        chosen = np.array([list(actions.values())])
        chosen[0, 0] *= actions["red_detector_0"] != 7
        seen, rewards, terminated, truncated, infos = env.step(actions)
        plain.step(chosen)
        of_round = plain.reward[0] - plain.rewards[0].sum()
        for i, agent in enumerate(env.possible_agents):
            assert env.observation_space(agent).contains(seen[agent])
            np.testing.assert_array_equal(seen[agent]["observation"], plain.obs[0, i])
            np.testing.assert_array_equal(seen[agent]["action_mask"], plain.available[0, i])
            assert rewards[agent] == pytest.approx(plain.rewards[0, i] + of_round, abs=1e-5)
            assert (terminated[agent], truncated[agent]) == (plain.terminated[0], False)
            assert infos[agent]["alive"] == plain.units["alive"][0, i]
        replaced += infos["red_detector_0"]["replaced"]
        np.testing.assert_array_equal(env.state(), plain.state[0])
    assert replaced > 0
    assert infos["red_fighter_0"]["outcome"] == plain.battles["outcome"][0]
    with pytest.raises(ValueError, match="battle 0 is over"):
        env.step(actions)


def test_a_missing_action_is_named() -> None:
    env = AirCombatParallelEnv("fighter10v10")
    env.reset(seed=0)
    with pytest.raises(ValueError, match="no action was given for red_fighter_9"):
        env.step(dict.fromkeys(env.agents[:-1], 0))
