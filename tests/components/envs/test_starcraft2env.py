"""Code that was written for SMAC runs on it unchanged."""

import numpy as np
import pytest

from components.envs import StarCraft2Env
from components.envs.skirmish import get_map_params


def test_the_loop_of_smacs_own_example_runs():
    env = StarCraft2Env(map_name="8m", seed=1)
    env_info = env.get_env_info()
    n_agents = env_info["n_agents"]
    rng = np.random.default_rng(0)
    for _ in range(3):
        env.reset()
        terminated, steps = False, 0
        while not terminated:
            obs = env.get_obs()
            state = env.get_state()
            assert len(obs) == n_agents
            assert {(o.dtype, o.shape) for o in obs} == {(np.dtype(np.float32), (env_info["obs_shape"],))}
            assert (state.dtype, state.shape) == (np.float32, (env_info["state_shape"],))
            actions = []
            for agent_id in range(n_agents):
                avail_actions = env.get_avail_agent_actions(agent_id)
                actions.append(rng.choice(np.nonzero(avail_actions)[0]))
            reward, terminated, info = env.step(actions)
            steps += 1
            assert isinstance(reward, float)
            assert info.keys() == {"battle_won", "dead_allies", "dead_enemies"}
        assert steps <= env_info["episode_limit"]
    assert env.get_stats()["battles_game"] == 3
    env.close()


def test_env_info_of_2s3z():
    info = StarCraft2Env("2s3z").get_env_info()
    assert info == {
        "state_shape": 120,
        "obs_shape": 80,
        "n_actions": 11,
        "n_agents": 5,
        "episode_limit": 120,
        "agent_features": ["health", "energy/cooldown", "rel_x", "rel_y", "shield", "type_0", "type_1"],
        "enemy_features": ["health", "rel_x", "rel_y", "shield", "type_0", "type_1"],
    }


def test_reset_returns_observations_and_state_and_forgets_the_last_action():
    env = StarCraft2Env("3m")
    env.reset()
    env.step([1, 2, 4])
    assert env.last_action.argmax(axis=1).tolist() == [1, 2, 4]
    obs, state = env.reset()
    assert (len(obs), obs[0].shape, state.shape) == (3, (30,), (48,))
    assert not env.last_action.any()
    assert env.get_total_actions() == 9
    assert env.get_obs_size() == 30
    assert env.get_state_size() == 48


def test_what_was_returned_stays_when_the_next_step_is_made():
    env = StarCraft2Env("3m")
    obs, state = env.reset()
    copies = [o.copy() for o in obs], state.copy()
    env.step([2, 3, 5])
    assert all((one == two).all() for one, two in zip(obs, copies[0], strict=True))
    assert (state == copies[1]).all()


def test_the_parts_of_an_observation_are_sized():
    env = StarCraft2Env("2s3z", obs_last_action=True)
    assert env.get_obs_move_feats_size() == 4
    assert env.get_obs_enemy_feats_size() == (5, 8)
    assert env.get_obs_ally_feats_size() == (4, 19)
    assert env.get_obs_own_feats_size() == 4
    assert env.get_ally_num_attributes() == 7
    assert env.get_enemy_num_attributes() == 6


@pytest.mark.parametrize("action", [0, 6, 9, -1])
def test_an_unavailable_action_is_an_assertion_error(action):
    env = StarCraft2Env("3m")
    env.reset()
    with pytest.raises(AssertionError, match=f"Agent 1 cannot perform action {action}"):
        env.step([1, action, 1])
    assert env.skirmish.battles["steps"][0] == 0


def test_the_number_of_actions_must_be_that_of_the_agents():
    env = StarCraft2Env("3m")
    env.reset()
    with pytest.raises(ValueError, match="2 actions were given, 3m has 3 agents"):
        env.step([1, 1])


def test_the_state_and_its_parts_agree(at_random):
    env = StarCraft2Env("2s3z", seed=3, state_timestep_number=True)
    env.reset()
    rng = np.random.default_rng(0)
    for _ in range(30):
        env.step(at_random(env.skirmish, rng)[0].tolist())
        parts = env.get_state_dict()
        assert [parts[name].shape for name in ("allies", "enemies")] == [(5, 7), (5, 6)]
        columns = [parts[name].ravel() for name in ("allies", "enemies", "last_action")]
        np.testing.assert_allclose(np.concatenate([*columns, [parts["timestep"]]]), env.get_state(), atol=1e-6)
    assert StarCraft2Env("2s3z", state_last_action=False).get_state_dict().keys() == {"allies", "enemies"}


def test_nobody_on_the_field_who_waits_is_a_timeout(stage, harmless):
    env = StarCraft2Env("3m")
    env.reset()
    stage(env.skirmish, {0: {"x": 2.0}}, {0: harmless(30.0, 16.0)})
    for _ in range(60):
        _, ended, info = env.step([1, 0, 0])
    assert ended
    assert info == {"battle_won": False, "dead_allies": 2, "dead_enemies": 2}
    stats = env.get_stats()
    assert (stats["timeouts"], stats["battles_draw"], stats["battles_game"], stats["battles_won"]) == (1, 1, 1, 0)


def test_a_timeout_is_named_where_episodes_continue(stage, harmless):
    env = StarCraft2Env("3m", continuing_episode=True)
    env.reset()
    stage(env.skirmish, {0: {"x": 2.0}}, {0: harmless(30.0, 16.0)})
    env.skirmish.battles["steps"][0] = 59
    _, ended, info = env.step([1, 0, 0])
    assert ended
    assert info["episode_limit"] is True


def test_wins_are_counted(stage, harmless):
    env = StarCraft2Env("3m")
    assert env.get_stats()["win_rate"] == 0.0
    env.reset()
    stage(env.skirmish, {0: {"x": 14.0, "y": 16.0}}, {0: harmless(18.0, 16.0, health=3.0)})
    reward, ended, info = env.step([6, 0, 0])
    assert (reward, ended) == (pytest.approx((13 + 200) / 18.25), True)
    assert info == {"battle_won": True, "dead_allies": 2, "dead_enemies": 3}
    stats = env.get_stats()
    assert (stats["battles_won"], stats["battles_game"], stats["win_rate"], stats["timeouts"]) == (1, 1, 1.0, 0)
    assert env.death_tracker_enemy.tolist() == [1, 1, 1]
    env.reset()
    assert not env.death_tracker_enemy.any()


def test_mutual_death_counts_as_a_game_and_as_nothing_else(stage):
    env = StarCraft2Env("2s3z")
    env.reset()
    missile = {"health": 5.0, "shield": 0.0, "hits_left": 1, "hit_in": 3.0, "cooldown": 1e9}
    stage(env.skirmish, {0: {"hit_target": 5} | missile}, {0: {"hit_target": 0} | missile})
    _, ended, info = env.step([1, 0, 0, 0, 0])
    assert ended
    assert not info["battle_won"]
    assert env.get_stats() == {
        "battles_won": 0,
        "battles_game": 1,
        "battles_draw": 0,
        "win_rate": 0.0,
        "timeouts": 0,
        "restarts": 0,
    }


def test_units_can_be_looked_at():
    env = StarCraft2Env("2s3z")
    env.reset()
    unit = env.get_unit_by_id(0)
    assert (unit.health, unit.health_max, unit.shield, unit.shield_max, unit.owner) == (80, 80, 80, 80, 1)
    assert [u.unit_type for u in env.agents.values()] == [74, 74, 73, 73, 73]
    assert env.get_unit_types() == [74, 74, 73, 73, 73, 74, 74, 73, 73, 73]
    assert (env.unit_shoot_range(0), env.unit_sight_range(0)) == (6, 9)
    assert (env.unit_max_cooldown(unit), env.unit_max_shield(unit)) == (35, 80)
    assert [env.can_move(unit, direction) for direction in range(4)] == [True] * 4


def test_can_move_agrees_with_the_available_actions(at_random):
    env = StarCraft2Env("3m", seed=2)
    env.reset()
    rng = np.random.default_rng(5)
    blocked = 0
    for agent, (x, y) in enumerate([(0.4, 23.6), (31.6, 8.4), (16.0, 8.4)]):
        env.skirmish.units["x"][0, agent], env.skirmish.units["y"][0, agent] = x, y
    env.skirmish.show()
    for _ in range(10):
        for agent in range(3):
            flags = [env.can_move(env.get_unit_by_id(agent), direction) for direction in range(4)]
            assert flags == [bool(flag) for flag in env.get_avail_agent_actions(agent)[2:6]]
            blocked += 4 - sum(flags)
        env.step(at_random(env.skirmish, rng)[0].tolist())
    assert blocked > 3


@pytest.mark.parametrize(
    ("place", "can"),
    [((16.0, 23.4), "esw"), ((31.6, 16.0), "nsw"), ((16.0, 8.4), "new"), ((0.0, 16.0), "nes")],
    ids=["north", "east", "south", "west"],
)
def test_no_unit_can_move_over_the_edge_of_the_walkable_ground(place, can):
    env = StarCraft2Env("3m", seed=2)
    env.reset()
    env.skirmish.units["x"][0, 0], env.skirmish.units["y"][0, 0] = place
    env.skirmish.show()
    unit = env.get_unit_by_id(0)
    assert {side for direction, side in enumerate("nsew") if env.can_move(unit, direction)} == set(can)


def test_directions_are_numbered_as_the_move_actions_are():
    env = StarCraft2Env("3m", seed=2)
    env.reset()
    env.skirmish.units["x"][0, 0], env.skirmish.units["y"][0, 0] = 31.6, 16.0
    env.skirmish.show()
    assert [env.can_move(env.get_unit_by_id(0), direction) for direction in range(4)] == [True, True, False, True]
    assert env.get_avail_agent_actions(0)[2:6] == [1, 1, 0, 1]


ATTRIBUTES = {
    "n_obs_pathing": 8,
    "n_obs_height": 9,
    "n_actions_no_attack": 6,
    "n_actions_move": 4,
    "obs_own_health": True,
    "obs_all_health": True,
    "obs_instead_of_state": False,
    "obs_last_action": False,
    "obs_pathing_grid": False,
    "obs_terrain_height": False,
    "obs_timestep_number": False,
    "state_last_action": True,
    "state_timestep_number": False,
    "reward_sparse": False,
    "reward_only_positive": True,
    "reward_negative_scale": 0.5,
    "reward_death_value": 10,
    "reward_win": 200,
    "reward_defeat": 0,
    "reward_scale": True,
    "reward_scale_rate": 20,
    "game_version": None,
    "continuing_episode": False,
    "heuristic_ai": False,
    "heuristic_rest": False,
    "debug": False,
    "window_size": (1920, 1200),
    "replay_dir": "",
    "replay_prefix": "",
    "map_x": 32,
    "map_y": 32,
    "max_distance_x": 32,
    "max_distance_y": 32,
    "reward": 0,
    "renderer": None,
    "last_stats": None,
    "previous_ally_units": None,
    "previous_enemy_units": None,
    "win_counted": False,
    "defeat_counted": False,
    "marine_id": 0,
    "marauder_id": 0,
    "medivac_id": 0,
    "hydralisk_id": 0,
    "zergling_id": 0,
    "baneling_id": 0,
    "stalker_id": 74,
    "colossus_id": 0,
    "zealot_id": 73,
    "heuristic_targets": [None] * 5,
    "ally_state_attr_names": ["health", "energy/cooldown", "rel_x", "rel_y", "shield", "type_0", "type_1"],
    "enemy_state_attr_names": ["health", "rel_x", "rel_y", "shield", "type_0", "type_1"],
}


def test_the_attributes_of_smacs_class_are_there():
    env = StarCraft2Env("2s3z")
    env.reset()
    assert {name: getattr(env, name) for name in ATTRIBUTES} == ATTRIBUTES
    assert StarCraft2Env("2s3z", obs_own_health=False).obs_own_health  # which obs_all_health implies
    assert not StarCraft2Env("2s3z", obs_own_health=False, obs_all_health=False).obs_own_health
    assert (env.pathing_grid.shape, env.pathing_grid.dtype) == ((32, 32), np.bool_)
    assert env.terrain_height.shape == (32, 32)
    assert 0.0 < env.terrain_height.max() <= 1.0


def test_a_unit_s_surroundings_are_those_of_its_observation():
    env = StarCraft2Env("3m", seed=2, obs_pathing_grid=True, obs_terrain_height=True)
    env.reset()
    env.skirmish.units["x"][0, 0], env.skirmish.units["y"][0, 0] = 1.5, 10.5
    env.skirmish.show()
    unit = env.get_unit_by_id(0)
    points = [(1, 14), (1, 6), (5, 10), (-3, 10), (3, 12), (-1, 8), (3, 8), (-1, 12)]
    assert env.get_surrounding_points(unit) == points
    assert env.get_surrounding_points(unit, include_self=True) == [*points, (1, 10)]
    assert [env.check_bounds(x, y) for x, y in ((0, 0), (31, 31), (32, 0), (0, -1))] == [True, True, False, False]
    seen = env.get_obs_agent(0)
    assert seen[4:12].tolist() == env.get_surrounding_pathing(unit)
    assert seen[12:21].tolist() == pytest.approx(env.get_surrounding_height(unit))
    assert 0.0 in env.get_surrounding_pathing(unit)
    assert env.get_surrounding_pathing(unit)[3] == env.get_surrounding_height(unit)[3] == 1.0


def test_types_have_the_columns_of_the_state():
    env = StarCraft2Env("2s3z")
    env.reset()
    parts = env.get_state_dict()
    for units, rows, ally in ((env.agents, parts["allies"], True), (env.enemies, parts["enemies"], False)):
        assert [env.get_unit_type_id(unit, ally) for unit in units.values()] == rows[:, -2:].argmax(axis=1).tolist()
    assert [env.get_unit_type_id(unit, False) for unit in env.enemies.values()] == [1, 1, 0, 0, 0]
    medivac = StarCraft2Env("MMM").get_unit_by_id(9)
    assert StarCraft2Env("MMM").unit_max_cooldown(medivac) == 200
    assert StarCraft2Env("2s_vs_1sc").unit_max_cooldown(StarCraft2Env("2s_vs_1sc").enemies[0]) == 15
    assert StarCraft2Env.distance(1.0, 2.0, 4.0, 6.0) == 5.0


def test_actions_are_the_orders_that_smac_sends():
    env = StarCraft2Env("MMM", seed=0)
    env.reset()
    x, y = (getattr(env.get_unit_by_id(0).pos, axis) for axis in "xy")
    assert (env.get_agent_action(0, 1).ability_id, env.get_agent_action(0, 1).unit_tags) == (4, (0,))
    targets = [env.get_agent_action(0, action).target_world_space_pos for action in range(2, 6)]
    assert [(round(to.x - x, 9), round(to.y - y, 9)) for to in targets] == [(0, 2), (0, -2), (2, 0), (-2, 0)]
    healing = env.get_agent_action(9, 6 + 3)
    assert (healing.ability_id, healing.target_unit_tag, healing.target_world_space_pos) == (386, 3, None)
    with pytest.raises(AssertionError, match="Agent 0 cannot perform action 0"):
        env.get_agent_action(0, 0)
    env.skirmish.units["x"][0, 1] = env.skirmish.units["x"][0, 10] - 4.0
    env.skirmish.units["health"][0, 2] = 0.0
    env.skirmish.show()
    attack = env.get_agent_action(1, 6)
    assert (attack.ability_id, attack.target_unit_tag, attack.queue_command) == (23, 10, False)
    assert env.get_agent_action(2, 0) is None


def test_the_battle_s_reward_and_the_units_before_the_step_are_kept(at_random):
    for signed in (False, True):
        env = StarCraft2Env("2s3z", seed=4, reward_scale=False, reward_only_positive=not signed)
        env.reset()
        assert env.reward_battle() == 0.0
        rng = np.random.default_rng(0)
        ended, rewards = False, set()
        while not ended:
            before = env.agents, env.enemies
            reward, ended, info = env.step(at_random(env.skirmish, rng)[0].tolist())
            assert (env.previous_ally_units, env.previous_enemy_units) == before
            assert env.reward == reward == pytest.approx(env.reward_battle() + 200 * info["battle_won"], abs=1e-4)
            rewards.add(np.sign(reward))
        assert rewards >= ({-1.0, 1.0} if signed else {1.0})
    sparse = StarCraft2Env("3m", seed=0, reward_sparse=True)
    sparse.reset()
    sparse.step([1, 1, 1])
    assert sparse.reward_battle() == 0.0


@pytest.mark.parametrize(
    ("dead", "code"),
    [((), None), (range(5), -1), (range(5, 10), 1), (range(10), 0)],
    ids=["goes on", "lost", "won", "nobody"],
)
def test_units_tell_how_the_battle_stands(dead, code):
    env = StarCraft2Env("2s3z")
    env.reset()
    env.skirmish.units["health"][0, list(dead)] = 0.0
    env.init_units()
    assert env.update_units() == code
    assert not env.only_medivac_left(ally=True)


def test_a_side_of_medivacs_alone_is_beaten():
    env = StarCraft2Env("MMM")
    env.reset()
    assert [env.only_medivac_left(ally=ally) for ally in (True, False)] == [False, False]
    env.skirmish.units["health"][0, 10:19] = 0.0
    assert [env.only_medivac_left(ally=ally) for ally in (True, False)] == [False, True]
    assert env.update_units() == 1
    env.skirmish.units["health"][0, :9] = 0.0
    assert [env.only_medivac_left(ally=ally) for ally in (True, False)] == [True, True]
    assert env.update_units() == -1
    env.skirmish.units["health"][0, 10:] = 0.0
    assert not env.only_medivac_left(ally=False)


def test_wins_and_losses_are_marked_until_the_next_episode(stage, harmless):
    env = StarCraft2Env("3m")
    env.reset()
    stage(env.skirmish, {0: {"x": 14.0, "y": 16.0}}, {0: harmless(18.0, 16.0, health=3.0)})
    env.step([6, 0, 0])
    assert (env.win_counted, env.defeat_counted) == (True, False)
    env.reset()
    assert (env.win_counted, env.defeat_counted) == (False, False)
    ended = False
    while not ended:
        _, ended, _ = env.step([1 if unit.health > 0 else 0 for unit in env.agents.values()])
    assert (env.win_counted, env.defeat_counted) == (False, True)


def test_a_full_restart_begins_again_and_is_counted():
    env = StarCraft2Env("3m", seed=11, start_jitter=0.2)
    first, _ = env.reset()
    env.reset()
    env.full_restart()
    again, _ = env.reset()
    assert all((one == two).all() for one, two in zip(first, again, strict=True))
    assert env.get_stats()["restarts"] == 1


def test_a_battle_can_be_drawn(capsys):
    env = StarCraft2Env("3m", seed=1)
    env.reset()
    image = env.render("rgb_array")
    assert (image.shape, image.dtype) == ((512, 512, 3), np.uint8)
    unit = env.get_unit_by_id(0)
    row, column = int((32 - unit.pos.y) * 16), int(unit.pos.x * 16)
    assert image[row, column].tolist() == [0, 114, 178]
    env.skirmish.units["health"][0, 0] = 0.1
    assert env.render("rgb_array")[row, column].tolist() == [28, 28, 28]
    env.skirmish.units["health"][0, 0] = 0.0
    assert env.render("rgb_array")[row, column].tolist() == [226, 222, 214]
    assert env.render(mode="human") is None
    lines = capsys.readouterr().out.splitlines()
    assert [line.count("\u2580") for line in lines] == [64] * 32
    with pytest.raises(ValueError, match="mode is 'window', must be 'human' or 'rgb_array'"):
        env.render("window")


@pytest.mark.parametrize("scenario", ["MMM", "MMM2"])
def test_the_heuristic_heals_on_maps_with_medivacs(scenario):
    env = StarCraft2Env(scenario, seed=0, heuristic_ai=True)
    env.reset()
    ended, healed, idle = False, 0, 0
    actions = [0] * 10
    while not ended:
        before = env.agents
        _, ended, info = env.step(actions)
        if before[9].health > 0 and actions[9] != 0:
            patient = before[actions[9] - 6]
            assert 0 < patient.health < patient.health_max
            healed += 1
        idle += actions[9] == 0
    assert healed > 5
    assert idle >= 1  # before anybody was hurt
    assert info["dead_enemies"] >= 2


def test_a_seed_can_be_read_and_set():
    env = StarCraft2Env("3m", seed=11, start_jitter=0.2)
    assert env.seed() == 11
    first, _ = env.reset()
    second, _ = env.reset()
    assert any((one != two).any() for one, two in zip(first, second, strict=True))
    assert env.seed(11) == 11
    again, _ = env.reset()
    assert all((one == two).all() for one, two in zip(first, again, strict=True))
    assert StarCraft2Env("3m").seed() != StarCraft2Env("3m").seed()


def test_the_heuristic_fights_whatever_it_is_given():
    env = StarCraft2Env("3s5z", seed=0, heuristic_ai=True)
    for _ in range(3):
        env.reset()
        ended, total, actions = False, 0.0, [0] * 8
        while not ended:
            reward, ended, info = env.step(actions)
            total += reward
        assert info["dead_enemies"] >= 2
        assert total > 8
    env.reset()
    env.step(actions)
    assert min(actions) >= 6  # the list now says what was done


def test_the_resting_heuristic_walks_until_it_may_attack():
    env = StarCraft2Env("3m", seed=0, heuristic_ai=True, heuristic_rest=True)
    env.reset()
    actions = [0] * 3
    env.step(actions)
    assert actions == [4] * 3
    for _ in range(5):
        env.step(actions)
    assert max(actions) >= 6


def test_the_map_registry_is_smacs():
    assert get_map_params("2s3z") == {
        "n_agents": 5,
        "n_enemies": 5,
        "limit": 120,
        "a_race": "P",
        "b_race": "P",
        "unit_type_bits": 2,
        "map_type": "stalkers_and_zealots",
    }


def test_difficulty_is_written_as_in_smac_and_changes_the_enemies():
    easy, hard = (StarCraft2Env("3m", difficulty=difficulty, seed=0) for difficulty in ("1", "A"))
    for env in (easy, hard):
        env.reset()
        for _ in range(8):
            env.step([1, 1, 1])
    assert sum(unit.health for unit in easy.agents.values()) > sum(unit.health for unit in hard.agents.values())
    with pytest.raises(ValueError, match="difficulty is 'B', must be one of 1, 2, 3, 4, 5, 6, 7, 8, 9, A"):
        StarCraft2Env("3m", difficulty="B")
