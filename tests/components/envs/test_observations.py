"""What agents see and may do, against numbers worked out by hand."""

import numpy as np
import pytest

from components.envs import Features, Skirmish
from components.envs.skirmish import StarCraft2Env

ALLY_WIDTH = ENEMY_WIDTH = 5  # of 3m: flag, distance, x, y, health


@pytest.fixture
def three():
    env = Skirmish("3m", 1)
    env.reset()
    return env


def golden(env, stage):
    stage(
        env,
        {
            0: {"x": 9.0, "y": 16.0, "health": 45.0},
            1: {"x": 9.75, "y": 16.0, "health": 30.0, "cooldown": 7.5},
            2: {"x": 9.375, "y": 16.65, "health": 45.0, "cooldown": 13.7728},
        },
        {
            0: {"x": 14.0, "y": 16.0, "health": 45.0},
            1: {"x": 18.0, "y": 16.0, "health": 39.0},
            2: {"x": 20.0, "y": 16.0, "health": 45.0},
        },
    )


def test_a_known_battle_has_the_known_observation_and_state(three, stage):
    golden(three, stage)
    nobody = [0.0] * 5
    expected = [1, 1, 1, 1, 1, 0.555556, 0.555556, 0, 1, *nobody, *nobody]
    expected += [1, 0.083333, 0.083333, 0, 0.666667, 1, 0.083380, 0.041667, 0.072222, 1, 1]
    np.testing.assert_allclose(three.obs[0, 0], expected, atol=1e-6)

    state = [1, 0, -0.21875, 0, 0.666667, 0.5, -0.195313, 0, 1, 0.918187, -0.207031, 0.020313]
    state += [1, -0.0625, 0, 0.866667, 0.0625, 0, 1, 0.125, 0]
    np.testing.assert_allclose(three.state[0, :21], state, atol=1e-6)
    assert not three.state[0, 21:].any()


def test_friends_are_listed_by_number_without_oneself(three, stage):
    golden(three, stage)
    for agent, friends in enumerate([(1, 2), (0, 2), (0, 1)]):
        x = three.units["x"][0]
        seen = three.obs[0, agent, 19:29].reshape(2, 5)[:, 2]
        assert seen.tolist() == pytest.approx([(x[friend] - x[agent]) / 9 for friend in friends])


@pytest.mark.parametrize(("apart", "seen"), [(8.999, True), (9.0, False)])
def test_sight_ends_just_before_nine(three, stage, apart, seen):
    stage(three, {0: {"x": 9.0, "y": 16.0}, 1: {"x": 9.0 + apart, "y": 16.0}}, {0: {"x": 9.0 + apart, "y": 16.0}})
    enemy, friend = three.obs[0, 0, 4:9], three.obs[0, 0, 19:24]
    assert enemy.any() == friend.any() == seen


@pytest.mark.parametrize(("apart", "attackable"), [(6.0, True), (6.001, False), (7.0, False)])
def test_an_attack_may_be_ordered_up_to_six(three, stage, apart, attackable):
    stage(three, {0: {"x": 9.0, "y": 16.0}}, {1: {"x": 9.0, "y": 16.0 + apart}})
    assert three.available[0, 0, 7] == attackable
    assert three.obs[0, 0, 4 + ENEMY_WIDTH] == attackable
    assert three.obs[0, 0, 4 + ENEMY_WIDTH + 1] == pytest.approx(apart / 9)
    assert not three.available[0, 0, [6, 8]].any()  # they are dead


def test_a_dead_agent_may_only_do_nothing_and_sees_nothing(three, stage):
    stage(three, {0: {}, 2: {}}, {0: {}})
    assert three.available[0, 1].tolist() == [True] + [False] * 8
    assert not three.obs[0, 1].any()
    assert not three.state[0, 4:8].any()  # its row
    assert not three.obs[0, 0, 19:24].any()  # as the others see it
    assert not three.state[0, 12 + 3 : 12 + 9].any()  # the dead enemies


def test_the_living_may_stop_but_not_do_nothing(three):
    assert not three.available[0, :, 0].any()
    assert three.available[0, :, 1].all()


@pytest.mark.parametrize(
    ("x", "y", "blocked"),
    [
        (16.0, 23.0, {2}),
        (16.0, 23.62, {2}),
        (16.0, 22.99, set()),
        (16.0, 8.99, {3}),
        (16.0, 9.0, set()),
        (31.0, 16.0, {4}),
        (30.99, 16.0, set()),
        (0.5, 16.0, set()),  # int(-0.5) is 0
        (0.5, 23.5, {2}),
    ],
)
def test_walls_close_the_directions_they_stand_in(three, stage, x, y, blocked):
    stage(three, {0: {"x": x, "y": y}}, {0: {}})
    assert {action for action in (2, 3, 4, 5) if not three.available[0, 0, action]} == blocked
    assert [bool(flag) for flag in three.obs[0, 0, :4]] == [action not in blocked for action in (2, 3, 4, 5)]


def test_enemy_type_columns_are_the_reverse_of_allied_ones_on_stalker_and_zealot_maps(stage):
    env = Skirmish("2s3z", 1)
    env.reset()
    stage(env, {i: {"x": 15.0 + 0.1 * i} for i in range(5)}, {e: {"x": 17.0 + 0.1 * e} for e in range(5)})
    row = env.obs[0, 0]
    enemies, friends = row[4:44].reshape(5, 8), row[44:76].reshape(4, 8)
    assert enemies[:, 6:].tolist() == [[0, 1]] * 2 + [[1, 0]] * 3
    assert friends[:, 6:].tolist() == [[1, 0]] + [[0, 1]] * 3
    assert row[78:].tolist() == [1, 0]
    allies, enemies = env.state[0, :35].reshape(5, 7), env.state[0, 35:65].reshape(5, 6)
    assert allies[:, 5:].tolist() == [[1, 0]] * 2 + [[0, 1]] * 3
    assert enemies[:, 4:].tolist() == [[0, 1]] * 2 + [[1, 0]] * 3


@pytest.mark.parametrize(("name", "kinds"), [("MMM", (2, 7, 1)), ("1c3s5z", (1, 3, 5))])
def test_three_types_have_a_column_each_on_both_sides(name, kinds, stage):
    env = Skirmish(name, 1)
    env.reset()
    agents = env.spec.n_agents
    stage(env, {i: {"x": 15.0 + 0.1 * i} for i in range(agents)}, {e: {"x": 17.0 + 0.1 * e} for e in range(agents)})
    ours = np.repeat(np.eye(3), kinds, axis=0)
    theirs = np.repeat(np.eye(3)[[1, 0, 2]], (7, 2, 1), axis=0) if name == "MMM" else ours
    width = 8 if name == "MMM" else 9
    row = env.obs[0, 0]
    assert (row[4 : 4 + agents * width].reshape(agents, width)[:, -3:] == theirs).all()
    assert (row[4 + agents * width : -width + 4].reshape(agents - 1, width)[:, -3:] == ours[1:]).all()
    assert row[-3:].tolist() == [1, 0, 0]


def test_banelings_come_before_zerglings_in_the_type_columns_of_both_sides():
    env = Skirmish("bane_vs_bane", 1)
    env.reset()
    allies, enemies = env.state[0, :144].reshape(24, 6), env.state[0, 144:264].reshape(24, 5)
    assert allies[:, 4:].tolist() == [[1, 0]] * 4 + [[0, 1]] * 20
    assert enemies[:, 3:].tolist() == [[0, 1]] * 20 + [[1, 0]] * 4


def test_a_medivac_sees_whom_it_may_heal_where_others_see_whom_they_may_attack(stage):
    env = Skirmish("MMM", 1)
    env.reset()
    allies = {
        9: {"x": 16.0, "y": 16.0},
        0: {"x": 16.0, "y": 22.0},
        1: {"x": 16.0, "y": 22.1},
        2: {"x": 17.0, "y": 16.0},
    }
    stage(env, allies, {0: {"x": 16.0, "y": 17.0}, 1: {"x": 16.0, "y": 17.0}, 2: {"x": 16.0, "y": 17.0}})
    # Of agents 0 to 8 the living within 6, hurt or not; never itself.
    assert np.flatnonzero(env.available[0, 9, 6:]).tolist() == [0, 2]
    enemies = env.obs[0, 9, 4:84].reshape(10, 8)
    assert enemies[:3, 0].tolist() == [1, 0, 1]
    assert enemies[:3, 1].tolist() == pytest.approx([1 / 9] * 3)
    assert np.flatnonzero(env.available[0, 2, 6:]).tolist() == [0, 1, 2]
    assert env.state[0, 9 * 7 + 1] == 0.25  # energy, 50 of 200


def test_shields_are_seen_as_a_share(stage):
    env = Skirmish("2s3z", 1)
    env.reset()
    stage(
        env,
        {0: {"x": 15.0, "shield": 20.0, "health": 40.0}, 2: {"x": 14.0, "shield": 25.0}},
        {4: {"shield": 10.0, "x": 18.0}},
    )
    row = env.obs[0, 0]
    assert row[4 + 4 * 8 :][4:6].tolist() == pytest.approx([1.0, 0.2])
    assert row[44 + 8 :][4:6].tolist() == pytest.approx([1.0, 0.5])
    assert row[76:78].tolist() == pytest.approx([0.5, 0.25])
    assert env.state[0, 4] == pytest.approx(0.25)


def test_last_actions_are_in_the_state_only_after_the_first_step(three):
    assert not three.state[0, 21:].any()
    three.step(np.array([[1, 2, 4]]))
    assert three.state[0, 21:].reshape(3, 9).argmax(axis=1).tolist() == [1, 2, 4]
    assert three.state[0, 21:].sum() == 3
    three.reset()
    assert not three.state[0, 21:].any()


def test_friends_last_actions_can_be_seen():
    env = Skirmish("3m", 1, features=Features(obs_last_action=True))
    env.reset()
    env.step(np.array([[1, 2, 4]]))
    friends = env.obs[0, 1, 19:47].reshape(2, 14)
    assert friends[:, 5:].argmax(axis=1).tolist() == [1, 4]


def test_ground_is_probed_round_the_agent(stage):
    env = Skirmish("3m", 1, features=Features(obs_pathing_grid=True, obs_terrain_height=True))
    env.reset()
    stage(env, {0: {"x": 16.5, "y": 21.5}}, {0: {}})
    # Four cells north is beyond the strip, which ends below 24; two cells north is not.
    assert env.obs[0, 0, 4:12].tolist() == [0, 1, 1, 1, 1, 1, 1, 1]
    floor, void = 191 / 255, 135 / 255
    assert env.obs[0, 0, 12:21].tolist() == pytest.approx([void] + [floor] * 8)
    stage(env, {0: {"x": 1.5, "y": 22.5}}, {0: {}})
    assert env.obs[0, 0, 4:12].tolist() == [0, 1, 1, 1, 0, 1, 1, 1]  # west of the map counts as open


def test_time_can_be_seen():
    env = Skirmish("3m", 1, features=Features(obs_timestep_number=True, state_timestep_number=True))
    env.reset()
    for _ in range(3):
        env.step(np.ones((1, 3), dtype=np.int64))
    assert env.obs[0, :, -1].tolist() == pytest.approx([3 / 60] * 3)
    assert env.state[0, -1] == pytest.approx(3 / 60)


def test_the_state_can_be_all_observations():
    env = Skirmish("2s3z", 2, features=Features(obs_instead_of_state=True))
    env.reset()
    env.step(np.ones((2, 5), dtype=np.int64))
    assert (env.state == env.obs.reshape(2, -1)).all()


def test_health_of_others_can_be_hidden(stage):
    env = Skirmish("2s3z", 1, features=Features(obs_all_health=False))
    env.reset()
    stage(env, {0: {"x": 15.0, "y": 16.0}, 1: {"x": 15.0, "y": 18.0}}, {2: {"x": 18.0, "y": 16.0}})
    row = env.obs[0, 0]
    assert row[4 + 2 * 6 :][:6].tolist() == pytest.approx([1, 3 / 9, 3 / 9, 0, 1, 0], abs=1e-6)
    assert row[34 + 24 :].tolist() == [1, 1, 1, 0]
    assert row[34:40].tolist() == pytest.approx([1, 2 / 9, 0, 2 / 9, 1, 0], abs=1e-6)


def test_agents_that_see_each_other_do_so_mutually():
    env = StarCraft2Env("8m", seed=0)
    env.reset()
    for agent in range(8):
        env.skirmish.units["x"][0, agent] = 4.0 + 3.0 * agent
    env.skirmish.show()
    seen = env.get_visibility_matrix()
    assert seen.shape == (8, 16)
    assert seen.dtype == np.bool_
    allies = seen[:, :8]
    assert (allies == allies.T).all()
    assert not allies.diagonal().any()
    assert 0 < allies.sum() < 56
    flags = env.skirmish.obs[0, 0, 4 + 8 * 5 :].reshape(-1)[: 7 * 5].reshape(7, 5)[:, 0]
    assert flags.astype(bool).tolist() == allies[0, 1:].tolist()


def test_values_stay_between_minus_one_and_one(at_random):
    env = Skirmish("2s3z", 16, start_jitter=0.5)
    env.reset()
    rng = np.random.default_rng(0)
    for _ in range(60):
        env.step(at_random(env, rng))
        assert np.abs(env.obs).max() <= 1.0
        over = env.terminated | env.truncated
        env.reset(over)
