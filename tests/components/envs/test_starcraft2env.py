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
    assert env.get_unit_types() == [74, 74, 73, 73, 73]
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
            flags = [env.can_move(env.get_unit_by_id(agent), direction) for direction in (0, 2, 1, 3)]
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
    assert {side for direction, side in enumerate("nesw") if env.can_move(unit, direction)} == set(can)


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
