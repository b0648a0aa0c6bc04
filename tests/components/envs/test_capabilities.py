"""SMACv2's capabilities and its cone of vision: what is drawn for each agent, and what it changes."""

import re

import numpy as np
import pytest

from components.envs import Features, Rewards, Scenario, Skirmish, StarCraft2Env, StarCraftCapabilityEnvWrapper
from components.envs.skirmish.scenario_file import scenario_named

TEAMS = {
    "dist_type": "weighted_teams",
    "unit_types": ["marine", "marauder", "medivac"],
    "exception_unit_types": ["medivac"],
    "weights": [0.45, 0.45, 0.1],
    "observe": True,
}
PLACES = {"dist_type": "surrounded_and_reflect", "p": 0.5, "map_x": 32, "map_y": 32}
CONFIG = {"n_units": 5, "n_enemies": 5, "team_gen": TEAMS, "start_positions": PLACES}
ATTACK = {"dist_type": "per_agent_uniform", "lower_bound": [0.2], "upper_bound": [0.8], "observe": True}
HEALTH = {"dist_type": "per_agent_uniform", "lower_bound": [0.1], "upper_bound": [0.6], "observe": True}
MASK = {"dist_type": "mask", "mask_probability": 0.9}


def made(*, seed=1, config=CONFIG, map_name="10gen_terran", **options):
    return StarCraftCapabilityEnvWrapper(capability_config=config, map_name=map_name, seed=seed, **options)


def sizes(env):
    info = env.get_env_info()
    return info["obs_shape"], info["state_shape"], info["n_actions"], info["cap_shape"]


def column(env, name, agent=0):
    return env.get_obs_agent(agent)[env.get_obs_feature_names().index(name)]


def stand(env, *places):
    """Put the first units there, alive and well, and everybody else where nobody sees them."""
    units = env.skirmish.units
    units["x"][0], units["y"][0] = 0.5, 0.5
    for i, (x, y) in places:
        units["x"][0, i], units["y"][0, i] = x, y
    env.skirmish.show()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (82, 120, 11, 3)),
        ({"attack": ATTACK}, (87, 125, 11, 4)),
        ({"health": HEALTH}, (87, 125, 11, 4)),
        ({"attack": ATTACK, "health": HEALTH}, (92, 130, 11, 5)),
        ({"enemy_mask": MASK}, (82, 120, 11, 3)),
    ],
)
def test_each_number_of_an_agent_is_a_column_of_observations_states_and_capabilities(changes, expected):
    env = made(config=CONFIG | changes)
    assert sizes(env) == expected
    obs, state = env.reset()
    assert (obs[0].shape, state.shape) == (expected[:1], expected[1:2])
    assert len(env.get_obs_feature_names()) == expected[0]
    assert len(env.get_state_feature_names()) == expected[1]
    parts = env.get_state_dict()
    flat = np.concatenate([parts[name].ravel() for name in ("allies", "enemies", "last_action")])
    np.testing.assert_allclose(flat, state, atol=1e-6)


def test_attack_probabilities_are_seen_by_their_agent_by_others_and_by_the_critic():
    env = made(config=CONFIG | {"attack": ATTACK})
    for _ in range(3):
        env.reset()
        chances = env.get_capabilities().reshape(5, 4)[:, 0]
        assert (chances >= 0.2).all()
        assert (chances <= 0.8).all()
        assert len(set(chances.tolist())) == 5
        stand(env, (0, (10.0, 10.0)), (1, (12.0, 10.0)))
        assert column(env, "own_attack_chance") == chances[0]
        assert column(env, "ally_1_attack_chance") == chances[1]
        assert column(env, "ally_2_attack_chance") == 0.0  # out of sight
        names = env.get_state_feature_names()
        rows = [env.get_state()[names.index(f"ally_{i}_attack_chance")] for i in range(5)]
        assert rows == chances.tolist()


@pytest.mark.parametrize(
    ("name", "key", "entry"), [("attack_chance", "attack", ATTACK), ("health_level", "health", HEALTH)]
)
def test_numbers_that_are_not_to_be_observed_are_zero_for_other_agents(name, key, entry):
    env = made(config=CONFIG | {key: entry | {"observe": False}})
    env.reset()
    stand(env, (0, (10.0, 10.0)), (1, (12.0, 10.0)))
    assert column(env, f"ally_1_{name}") == 0.0
    assert column(env, f"own_{name}") > 0.0
    assert (column(env, "ally_1_health") == 0.0) == (key == "health")


def test_an_order_to_attack_is_carried_out_with_the_agent_s_probability_and_others_always():
    config = CONFIG | {"attack": ATTACK | {"lower_bound": [0.3], "upper_bound": [0.3]}}
    scenario = made(config=config).env.skirmish.scenario
    env = Skirmish(scenario, 400, seed=3)
    env.reset()
    env.units["x"][:, 0], env.units["y"][:, 0] = 10.0, 10.0
    env.units["x"][:, 5], env.units["y"][:, 5] = 12.0, 10.0
    env.kinds["healing"][:, 0] = 0.0
    env.show()
    actions = np.where(env.available[..., 1], 1, 0)
    actions[:, 0] = 6
    env.step(actions)
    carried_out = (env.units["order"][:, 0] == 2)[env.units["health"][:, 0] > 0]
    assert 0.2 < carried_out.mean() < 0.4  # four standard deviations
    env.reset()
    env.step(env.available[:, :, 2:6].argmax(axis=2) + 2)
    assert (env.units["order"][:, :5] == 1).all()


def test_whose_attack_is_not_carried_out_goes_on_with_its_old_order():
    config = CONFIG | {"attack": {"dist_type": "fixed", "items": [[0.0] * 5], "observe": True}}
    env = made(config=config)
    env.reset()
    assert env.get_capabilities().reshape(5, 4)[:, 0].tolist() == [0.0] * 5
    stand(env, (0, (10.0, 10.0)), (5, (13.0, 10.0)))
    env.env.skirmish.kinds["healing"][0, 0] = 0.0
    env.step([2, 1, 1, 1, 1])
    before = float(env.skirmish.units["y"][0, 0])
    env.skirmish.units["x"][0, 5] = env.skirmish.units["x"][0, 0] + 3.0
    env.skirmish.units["y"][0, 5] = before
    env.skirmish.show()
    env.step([6, 1, 1, 1, 1])
    assert env.skirmish.units["order"][0, 0] == 1  # it still walks north
    assert env.skirmish.units["y"][0, 0] > before + 0.5


def test_health_is_shown_above_the_level_at_which_an_agent_dies():
    config = CONFIG | {"health": {"dist_type": "fixed", "items": [[0.5, 0.2, 0.0, 0.4, 0.1]], "observe": True}}
    env = made(config=config)
    env.reset()
    assert env.get_capabilities().reshape(5, 4)[:, 0].tolist() == pytest.approx([0.5, 0.2, 0.0, 0.4, 0.1])
    stand(env, (0, (10.0, 10.0)), (1, (12.0, 10.0)))
    most = env.skirmish.kinds["health"][0]
    env.skirmish.units["health"][0, :2] = 0.75 * most[0], 0.6 * most[1]
    env.skirmish.show()
    assert column(env, "own_health") == pytest.approx((0.75 - 0.5) / 0.5)
    assert column(env, "ally_1_health") == pytest.approx((0.6 - 0.2) / 0.8)
    assert env.get_state()[0] == pytest.approx(0.5)


def test_an_agent_dies_two_ticks_before_the_end_of_a_step_in_which_it_fell_below_its_level():
    config = CONFIG | {"health": {"dist_type": "fixed", "items": [[0.5] * 5], "observe": True}}
    env = made(config=config)
    env.reset()
    stand(env, *[(i, (28.0, 28.0)) for i in range(5, 10)])
    units, most = env.skirmish.units, env.skirmish.kinds["health"][0]
    units["health"][0, :2] = 0.5 * most[0], 0.49 * most[1]
    units["health"][0, 5:] = 0.3 * most[5:]  # the enemies have no levels
    env.skirmish.show()
    _, _, info = env.step([1] * 5)
    assert (units["health"][0, :2] > 0.0).tolist() == [True, False]
    assert info["dead_allies"] == 1
    assert info["dead_enemies"] == 0
    for ticks, dies in ((6, True), (7, False)):  # until a missile strikes
        env.reset()
        stand(env, *[(i, (28.0, 28.0)) for i in range(5, 10)])
        units["health"][0, 0] = 0.501 * env.skirmish.kinds["health"][0, 0]
        env.skirmish.kinds["type_row"][0, 5] = 0  # a marine
        units["hits_left"][0, 5], units["hit_in"][0, 5], units["hit_target"][0, 5] = 1, ticks, 0
        env.skirmish.show()
        env.step([1] * 5)
        assert (units["health"][0, 0] == 0.0) == dies
        assert units["health"][0, 0] < 0.501 * env.skirmish.kinds["health"][0, 0]


def test_a_mask_hides_health_and_type_of_enemies_but_not_where_they_are():
    item = np.zeros((5, 5), int)
    item[0, 1] = item[2, 3] = 1
    env = made(config=CONFIG | {"enemy_mask": {"dist_type": "fixed", "items": [item.tolist()]}})
    env.reset()
    stand(env, (0, (10.0, 10.0)), (1, (10.0, 11.0)), (6, (12.0, 10.0)))
    names = env.get_obs_feature_names()
    about = [
        names.index(f"enemy_1_{part}") for part in ("distance", "relative_x", "health", "type_0", "type_1", "type_2")
    ]
    assert env.get_obs_agent(0)[about][:2].all()
    assert env.get_obs_agent(0)[about][2:].tolist() == [0.0] * 4
    assert env.get_obs_agent(1)[about][2] == 1.0
    assert env.get_obs_agent(1)[about][3:].sum() == 1.0


def test_a_mask_hides_as_many_as_its_probability_leaves():
    scenario = made(config=CONFIG | {"enemy_mask": MASK}).env.skirmish.scenario
    env = Skirmish(scenario, 400, seed=2)
    env.reset()
    hidden = env.kinds["hidden_from"][:, 5:, None] >> np.arange(5) & 1
    assert 0.085 < hidden.mean() < 0.115  # 10,000 pairs, five standard deviations


def test_numbers_follow_from_the_seed_and_are_part_of_a_snapshot():
    config = CONFIG | {"attack": ATTACK, "health": HEALTH, "enemy_mask": MASK}
    one, two = made(config=config), made(config=config)
    for _ in range(3):
        assert np.array_equal(one.reset()[1], two.reset()[1])
        assert np.array_equal(one.get_capabilities(), two.get_capabilities())
    kept = one.env.skirmish.snapshot()
    state = one.get_state()
    one.reset()
    one.env.skirmish.restore(kept)
    assert np.array_equal(one.get_state(), state)


@pytest.mark.parametrize("n_enemies", [5, 3])
def test_all_teams_gives_every_army_to_both_sides(n_enemies):
    config = {
        "n_units": n_enemies,
        "n_enemies": n_enemies,
        "team_gen": {"dist_type": "all_teams", "unit_types": TEAMS["unit_types"], "exception_unit_types": ["medivac"]},
        "start_positions": PLACES,
    }
    env, again = made(config=config), made(config=config, seed=2)
    again.seed(1)
    armies = set()
    for _ in range(150):
        env.reset()
        again.reset()
        types = env.get_unit_types()
        assert types == again.get_unit_types()
        assert sorted(types[:n_enemies]) == sorted(types[n_enemies:])
        armies.add(tuple(sorted(types[:n_enemies])))
    every = (n_enemies + 1) * (n_enemies + 2) // 2 - 1  # not of Medivacs alone
    assert len(armies) > 0.9 * every
    assert len(armies) <= every


def test_fixed_teams_come_in_order_in_a_test_and_anyhow_else():
    items = [
        {"ally_team": ["marine", "marine"], "enemy_team": ["marauder", "marine", "medivac"]},
        {"ally_team": ["marauder", "marine"], "enemy_team": ["marine", "marine", "marine"]},
    ]
    fixed = {"dist_type": "fixed", "items": items, "test_mode": True}
    config = {"n_units": 2, "n_enemies": 3, "team_gen": fixed, "start_positions": PLACES}
    env = made(config=config)
    for k in (0, 1, 0, 1):
        env.reset()
        names = [unit.name for unit in env.skirmish.types_in(0)]
        assert sorted(names[:2]) == sorted(items[k]["ally_team"])
        assert names[2:] == items[k]["enemy_team"]
    drawn = made(config=config | {"team_gen": fixed | {"test_mode": False}})
    firsts = [drawn.reset() and drawn.skirmish.types_in(0)[2].name for _ in range(30)]
    assert {"marauder", "marine"} == set(firsts)
    assert firsts[:4] != ["marauder", "marine"] * 2 or firsts[4:8] != firsts[:4]


def test_without_start_positions_both_sides_stand_round_a_point_of_their_own():
    env = made(config={name: part for name, part in CONFIG.items() if name != "start_positions"})
    env.reset()
    units = env.skirmish.units[0]
    for side, point in ((slice(5), (8.0, 16.0)), (slice(5, None), (24.0, 16.0))):
        far = np.hypot(units["x"][side] - point[0], units["y"][side] - point[1])
        assert far.max() < 3.0


def test_a_reset_takes_what_smacv2_s_distributions_give():
    env = StarCraft2Env("terran_5_vs_5", seed=1)
    allies, enemies = ["marine"] * 3 + ["medivac"] * 2, ["marauder"] * 5
    ours, theirs = np.linspace((4, 4), (8, 8), 5), np.linspace((24, 4), (28, 20), 5)
    env.reset(
        {
            "team_gen": {"ally_team": allies, "enemy_team": enemies, "id": 0},
            "ally_start_positions": {"item": ours},
            "enemy_start_positions": {"item": theirs},
        }
    )
    assert [unit.name for unit in env.skirmish.types_in(0)] == allies + enemies
    assert np.allclose(np.column_stack([env.skirmish.units["x"][0], env.skirmish.units["y"][0]]), [*ours, *theirs])
    assert env.skirmish.battles["given"][0] == 0  # the next episode is drawn again


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"team_gen": {"ally_team": ["marine"] * 5, "enemy_team": ["zealot"] * 5}}, "must be 10 of marine, marauder"),
        ({"team_gen": {"ally_team": ["marine"] * 4, "enemy_team": ["marine"] * 5}}, "must be 10 of marine, marauder"),
        ({"ally_start_positions": {"item": [[1, 1]] * 5}}, "episode_config has no 'enemy_start_positions'"),
        ({"attack": {"item": [1.0] * 5}}, "episode_config has 'attack', which the scenario does not have"),
    ],
)
def test_what_does_not_fit_an_episode_is_refused(config, said):
    env = StarCraft2Env("terran_5_vs_5", seed=1)
    with pytest.raises(ValueError, match=re.escape(said)):
        env.reset(config)
    with pytest.raises(ValueError, match="the armies of 3m are not drawn"):
        StarCraft2Env("3m").reset(config)


# The cone of vision


def coned(name="terran_5_vs_5", **options):
    return StarCraftCapabilityEnvWrapper(map_name=name, seed=1, conic_fov=True, **options)


def test_a_cone_adds_an_action_for_each_direction_and_columns_that_say_where_it_points():
    env = coned()
    assert sizes(env) == (84, 190, 23, 3)
    obs, state = env.reset()
    assert env.n_actions_no_attack == 18
    assert (len(env.get_obs_feature_names()), len(env.get_state_feature_names())) == (84, 190)
    assert (env.fov_directions == [1.0, 0.0]).all()
    masks = np.array(env.get_avail_actions())
    assert masks[:, 6:18].all()
    names = env.get_obs_feature_names()
    assert obs[0][[names.index("own_fov_x"), names.index("own_fov_y")]].tolist() == [1.0, 0.0]
    names = env.get_state_feature_names()
    assert [state[names.index(f"ally_{i}_fov_x")] for i in range(5)] == [1.0] * 5
    parts = env.get_state_dict()
    flat = np.concatenate([parts[name].ravel() for name in ("allies", "enemies", "last_action")])
    np.testing.assert_allclose(flat, state, atol=1e-6)


def test_turning_the_cone_is_no_order():
    env = coned()
    env.reset()
    stand(env, (0, (10.0, 10.0)))
    env.step([2, 1, 1, 1, 1])
    before = float(env.skirmish.units["y"][0, 0])
    env.step([6 + 3, 6, 7, 17, 1])
    angles = [90.0, 0.0, 30.0, 330.0, 0.0]
    expected = np.column_stack([np.cos(np.radians(angles)), np.sin(np.radians(angles))])
    np.testing.assert_allclose(env.fov_directions, expected, atol=1e-12)
    assert env.skirmish.units["y"][0, 0] > before + 0.5  # it still walks north
    assert env.last_action[0].argmax() == 9
    env.reset()
    assert (env.fov_directions == [1.0, 0.0]).all()


@pytest.mark.parametrize(
    ("place", "plain", "published"),
    [
        ((14.0, 10.0), True, True),  # straight ahead
        ((14.0, 11.0), True, True),  # by 14.04 degrees
        ((14.0, 11.1), False, False),  # by 15.4 degrees
        ((6.0, 10.0), False, True),  # straight behind
        ((10.0, 14.0), False, False),
    ],
)
def test_what_is_outside_of_the_cone_is_neither_seen_nor_a_target(place, plain, published):
    for as_published, seen in ((False, plain), (True, published)):
        env = coned("protoss_5_vs_5", fov_as_published=as_published)
        env.reset()
        env.skirmish.kinds["shoot"][0, 0] = env.skirmish.kinds["sight"][0, 0] = 10.0
        stand(env, (0, (10.0, 10.0)), (5, place))
        assert env.get_avail_agent_actions(0)[18] == seen
        assert (column(env, "enemy_0_distance") > 0.0) == seen
        stand(env, (0, (10.0, 10.0)), (1, place))
        assert (column(env, "ally_1_visible") == 1.0) == seen


def test_a_cone_ends_at_the_range_itself():
    env = coned("protoss_5_vs_5")
    env.reset()
    env.skirmish.kinds["shoot"][0, 0], env.skirmish.kinds["sight"][0, 0] = 6.0, 9.0
    for far, seen, target in ((6.0, True, True), (9.0, True, False), (9.001, False, False)):
        stand(env, (0, (10.0, 10.0)), (5, (10.0 + far, 10.0)))
        assert (column(env, "enemy_0_distance") > 0.0, env.get_avail_agent_actions(0)[18] == 1) == (seen, target)


def test_targets_are_numbered_after_the_directions_also_by_the_script():
    env = coned("protoss_5_vs_5", heuristic_ai=True)
    env.reset()
    actions = [0] * 5
    env.step(actions)
    assert min(actions) >= 18
    assert (env.skirmish.units["order"][0, :5] == 2).all()
    plain = coned("protoss_5_vs_5")
    plain.reset()
    stand(plain, (0, (10.0, 10.0)), (7, (11.5, 10.0)))
    plain.step([20, 1, 1, 1, 1])
    assert plain.skirmish.units["target"][0, 0] == 7
    assert plain.get_agent_action(1, 6) is None


def test_the_filter_of_the_later_edition_looks_through_the_cone():
    env = coned("protoss_5_vs_5", edition="2023-intended")
    env.reset()
    env.skirmish.units["finder"][0], env.skirmish.units["known_to"][0] = -1, 0
    for i in range(5):
        env.skirmish.units["x"][0, i], env.skirmish.units["y"][0, i] = 10.0, 2.0 + i
    env.skirmish.units["x"][0, 5:], env.skirmish.units["y"][0, 5:] = 5.0, 28.0
    env.skirmish.units["x"][0, 5], env.skirmish.units["y"][0, 5] = 7.0, 4.0  # behind them
    env.skirmish.show()
    env.step([1] * 5)
    assert env.skirmish.units["finder"][0, 5] == -1
    env.step([6 + 6] * 5)
    assert env.skirmish.units["finder"][0, 5] >= 0


def cone_of(**changes) -> Scenario:
    from dataclasses import replace

    return replace(scenario_named("terran_5_vs_5"), looks=12, **changes)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_fov_actions": 2}, "num_fov_actions is 2, must be at least 3"),
        (
            {"config": {"attack": ATTACK | {"upper_bound": [1.5]}}},
            "['attack'] is between 0.2 and 1.5, must be within 0",
        ),
        ({"config": {"health": HEALTH | {"upper_bound": [1.0]}}}, "['health'] is between 0.1 and 1, must be within 0"),
        (
            {"config": {"enemy_mask": MASK | {"mask_probability": 2}}},
            "['mask_probability'] is 2, must be between 0 and",
        ),
        ({"config": {"attack": {"dist_type": "fixed"}}}, "capability_config['attack'] has no 'items'"),
        (
            {"config": {"health": HEALTH}, "reward_only_positive": False},
            "levels of health go with rewards that are only",
        ),
        ({"config": {"health": HEALTH}, "step_mul": 2}, "step_mul is 2, must be above 2 where agents have levels"),
    ],
)
def test_wrong_capabilities_are_refused_by_name(arguments, said):
    options = {name: value for name, value in arguments.items() if name != "config"}
    with pytest.raises(ValueError, match=re.escape(said)):
        made(config=CONFIG | arguments.get("config", {}), conic_fov=True, **options)


def test_an_opponent_does_not_command_the_enemies_of_agents_with_a_cone():
    with pytest.raises(ValueError, match="an opponent cannot command enemies of agents that have a cone of vision"):
        Skirmish(cone_of(), 1, opponent=lambda side: side.available[:, :, 1].astype(int))


def test_battles_with_a_cone_and_capabilities_repeat_with_their_seed(at_random):
    scenario = made(
        config=CONFIG | {"attack": ATTACK, "health": HEALTH, "enemy_mask": MASK}, conic_fov=True
    ).skirmish.scenario
    many, alone = (Skirmish(scenario, n, seed=5, first=first) for n, first in ((3, 0), (1, 2)))
    for env in (many, alone):
        env.reset()
    for _ in range(20):
        assert (many.obs[2] == alone.obs[0]).all()
        assert (np.abs(many.obs) <= 1.0).all()
        actions = at_random(many, np.random.default_rng(1))
        many.step(actions)
        alone.step(actions[2:])
        many.reset(many.battles["over"].copy())
        alone.reset(alone.battles["over"].copy())


def test_features_and_rewards_of_a_cone_are_those_of_the_battle():
    env = Skirmish(cone_of(), 1, features=Features(obs_own_position=False), rewards=Rewards(sparse=True))
    assert env.spec.obs_size == 82
