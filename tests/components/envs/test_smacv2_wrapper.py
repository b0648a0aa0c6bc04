"""Code that was written for SMACv2 runs on it unchanged."""

import copy
import re

import numpy as np
import pytest

from components.envs import StarCraft2Env, StarCraftCapabilityEnvWrapper

CONFIG = {
    "n_units": 5,
    "n_enemies": 5,
    "team_gen": {
        "dist_type": "weighted_teams",
        "unit_types": ["zergling", "baneling", "hydralisk"],
        "exception_unit_types": ["baneling"],
        "weights": [0.45, 0.1, 0.45],
        "observe": True,
    },
    "start_positions": {"dist_type": "surrounded_and_reflect", "p": 0.5, "n_enemies": 5, "map_x": 32, "map_y": 32},
}


def configured(**changes):
    return StarCraftCapabilityEnvWrapper(capability_config=CONFIG, map_name="10gen_zerg", seed=1, **changes)


def test_the_loop_of_smacv2s_own_example_runs():
    given = copy.deepcopy(CONFIG)
    env = configured(debug=False, conic_fov=False, obs_own_pos=True, use_unit_ranges=True, min_attack_range=2)
    assert given == CONFIG
    env_info = env.get_env_info()
    rng = np.random.default_rng(0)
    for _ in range(3):
        obs, state = env.reset()
        assert (len(obs), obs[0].shape, state.shape) == (5, (82,), (120,))
        terminated = False
        while not terminated:
            masks = [env.get_avail_agent_actions(i) for i in range(env_info["n_agents"])]
            reward, terminated, info = env.step([rng.choice(np.nonzero(mask)[0]) for mask in masks])
            assert reward >= 0.0
            assert env.get_capabilities().shape == (5 * env_info["cap_shape"],)
            assert info.keys() == {"battle_won", "dead_allies", "dead_enemies"}
    assert env.get_stats()["battles_game"] == env.battles_game == 3
    env.close()


def test_a_scenario_s_name_stands_for_the_published_configuration():
    named = StarCraftCapabilityEnvWrapper(map_name="zerg_5_vs_5", seed=1)
    env = configured()
    assert named.get_env_info() == env.get_env_info()
    assert env.get_env_info()["cap_shape"] == 3
    for _ in range(3):
        one, two = named.reset(), env.reset()
        assert (np.array(one[0]) == np.array(two[0])).all()
        assert (one[1] == two[1]).all()


def test_capabilities_are_the_unit_types_also_of_the_dead():
    env = configured()
    env.reset()
    bits = {105: 0, 107: 1, 9: 2}
    env.skirmish.units["health"][0, 2] = 0.0
    expected = np.eye(3)[[bits[unit.unit_type] for unit in env.agents.values()]]
    assert env.get_capabilities().dtype == np.float32
    assert (env.get_capabilities().reshape(5, 3) == expected).all()
    assert (env.get_capabilities_agent(2) == expected[2]).all()
    assert env.get_cap_size() == 3
    assert env.get_unit_types() == [unit.unit_type for unit in [*env.agents.values(), *env.enemies.values()]]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"obs_last_action": True, "obs_pathing_grid": True, "obs_terrain_height": True, "obs_timestep_number": True},
        {"obs_own_pos": False, "obs_all_health": False, "obs_own_health": False, "state_last_action": False},
        {"state_timestep_number": True},
    ],
)
@pytest.mark.parametrize("name", ["terran_5_vs_5", "protoss_10_vs_11"])
def test_each_column_has_a_name(name, options):
    env = StarCraftCapabilityEnvWrapper(map_name=name, **options)
    for names, size in (
        (env.get_obs_feature_names(), env.get_obs_size()),
        (env.get_state_feature_names(), env.get_state_size()),
    ):
        assert len(names) == size
        assert len(set(names)) == size
    with pytest.raises(ValueError, match="with obs_instead_of_state, the state has the columns of the observations"):
        StarCraftCapabilityEnvWrapper(map_name=name, obs_instead_of_state=True).get_state_feature_names()


def test_of_two_agents_the_one_with_the_lower_number_decides_whether_they_see_each_other():
    env = StarCraftCapabilityEnvWrapper(map_name="protoss_5_vs_5", seed=1)
    env.reset()
    sight = np.array([10.0, 9.0, 10.0, 10.0, 10.0])
    env.skirmish.kinds["sight"][0, :5] = sight
    env.skirmish.units["x"][0, :5], env.skirmish.units["y"][0, :5] = [4.0, 13.5, 23.0, 4.0, 30.0], [4, 4, 4, 30, 30]
    env.skirmish.units["health"][0, 3] = 0.0
    seen = env.get_visibility_matrix()[:, :5]
    assert (seen == seen.T).all()
    assert np.argwhere(np.triu(seen)).tolist() == [[0, 1]]  # 9.5 apart: 0 sees as far as 10, 1 as far as 9


def test_rewards_are_divided_by_the_worth_of_the_episode_s_enemies_or_of_the_first(at_random):
    for divisor, constant in (("episode", False), ("first", True)):
        env = StarCraftCapabilityEnvWrapper(map_name="zerg_5_vs_5", seed=3, divisor=divisor)
        divisors, worth = set(), set()
        for _ in range(6):
            env.reset()
            divisors.add(float(env.skirmish.battles["divisor"][0]))
            worth.add(env.max_reward / 20)
        assert len(worth) > 1
        assert (len(divisors) == 1) == constant
        assert divisors <= worth
    with pytest.raises(ValueError, match="divisor is 'mean', must be 'episode' or 'first'"):
        StarCraft2Env("zerg_5_vs_5", divisor="mean")


def test_allies_may_hide_their_types_from_each_other():
    hidden = StarCraftCapabilityEnvWrapper(
        capability_config=CONFIG | {"team_gen": CONFIG["team_gen"] | {"observe": False}}, map_name="10gen_zerg", seed=1
    )
    shown = configured()
    names = shown.get_obs_feature_names()
    bits = [name.startswith("ally_") and "_type_" in name for name in names]
    for _ in range(4):
        (one, _), (two, _) = hidden.reset(), shown.reset()
        assert not np.array(one)[:, bits].any()
        assert (np.array(one)[:, ~np.array(bits)] == np.array(two)[:, ~np.array(bits)]).all()
    assert np.array(two)[:, bits].any()


def test_the_filter_and_open_loop_observations_are_arguments():
    env = configured(
        prob_obs_enemy=0.0, action_mask=False, edition="2023", obs_starcraft=False, obs_timestep_number=True
    )
    obs, _ = env.reset()
    assert [len(one) for one in obs] == [1] * 5
    assert env.get_obs_feature_names() == ["timestep"]
    assert np.array(env.get_avail_actions())[:, 6:].all()


def test_ranges_may_be_those_of_smac():
    env = configured(use_unit_ranges=False)
    env.reset()
    assert {(env.unit_shoot_range(i), env.unit_sight_range(i)) for i in range(5)} == {(6, 9)}
    env = configured(min_attack_range=4.5)
    env.reset()
    assert {env.unit_shoot_range(i) for i in range(5)} <= {4.5, 5}


def test_the_scripted_player_fights_drawn_armies():
    env = StarCraftCapabilityEnvWrapper(map_name="terran_5_vs_5", seed=0, heuristic_ai=True)
    for _ in range(5):
        env.reset()
        ended = False
        while not ended:
            _, ended, _ = env.step([0] * 5)
    assert env.get_stats()["battles_game"] == 5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stealth": {}}, "['stealth'] is unknown; there are n_units, n_enemies, team_gen, start_positions, attack"),
        ({"team_gen": {"dist_type": "mask"}}, "['team_gen']['dist_type'] is 'mask', which is not supported"),
        ({"start_positions": {"dist_type": "mask"}}, "is 'mask', which is not supported; surrounded_and_reflect, "),
        ({"team_gen": CONFIG["team_gen"] | {"unit_types": ["zergling", "marine", "hydralisk"]}}, "no unit 'marine'"),
        ({"start_positions": CONFIG["start_positions"] | {"map_x": 64}}, "['map_x'] is 64, must be 32"),
    ],
)
def test_a_configuration_that_is_not_supported_is_refused_by_name(change, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        StarCraftCapabilityEnvWrapper(capability_config=CONFIG | change, map_name="10gen_zerg")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"map_name": "3m"}, "map_name is '3m', must be one of 10gen_terran, 10gen_protoss, 10gen_zerg, "),
        ({"map_name": "10gen_zerg"}, "10gen_zerg needs a capability_config"),
        ({"map_name": "zerg_5_vs_5", "capability_config": CONFIG}, "zerg_5_vs_5 has a capability_config of its own"),
        ({"map_name": "10gen_zerg", "capability_config": {"n_units": 5}}, "capability_config has no 'n_enemies'"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(arguments, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        StarCraftCapabilityEnvWrapper(**arguments)
