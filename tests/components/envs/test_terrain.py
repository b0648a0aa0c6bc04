"""Ground with more than four walls, and who may cross it."""

import numpy as np
import pytest

from components.envs import SCENARIOS, Features, Skirmish

STOP = 1


def acting(env, action, agent=0):
    """The one agent's action; the dead do nothing and the rest stop."""
    actions = env.available[:, :, STOP].astype(np.int64)
    actions[:, agent] = action
    return actions


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("3m", 16 * 32),
        ("3s_vs_3z", 32 * 32),
        ("2m_vs_1z", 352),
        ("6h_vs_8z", 152),
        ("2c_vs_64zg", 336),
        ("2s_vs_1sc", 168),
    ],
)
def test_as_many_cells_can_be_walked_on_as_in_the_map(name, cells):
    assert SCENARIOS[name].terrain.walkable().sum() == cells


def test_a_walker_slides_along_a_corner(stage, harmless):
    env = Skirmish("6h_vs_8z", 1)
    env.reset()
    # The hollow is 14 cells wide up to y = 18, and 10 beyond: from x = 10.
    stage(env, {0: {"x": 10.2, "y": 17.0}}, {0: harmless(20.0, 12.0)})
    for _ in range(4):
        env.step_unchecked(acting(env, 2))
        assert env.scenario.terrain.walkable()[int(env.units["x"][0, 0]), int(env.units["y"][0, 0])]
    assert env.units["y"][0, 0] > 18.5
    assert env.units["x"][0, 0] >= 10.5 - 1e-6


def test_a_walker_comes_no_nearer_to_a_blocked_cell_than_half_a_cell(stage, harmless):
    env = Skirmish("6h_vs_8z", 1)
    env.reset()
    stage(env, {0: {"x": 8.9, "y": 16.5}}, {0: harmless(20.0, 12.0)})
    for _ in range(4):
        env.step_unchecked(acting(env, 2))
    assert env.units["y"][0, 0] == pytest.approx(17.5)
    assert not env.available[0, 0, 2]


def test_a_lone_zealot_chooses_a_point_between_the_marines(stage):
    env = Skirmish("2m_vs_1z", 64)
    env.reset()
    goal = env.units["goal_x"][:, 2]
    assert 13.0 <= goal.min() < 14.0
    assert 18.0 < goal.max() <= 19.0
    assert (env.units["goal_y"][:, 2] == 12.0).all()
    assert env.units["x"][0, :2].tolist() == [13.0, 19.0]


def test_the_zerg_recover_on_their_own(stage, harmless):
    env = Skirmish("6h_vs_8z", 1)
    env.reset()
    stage(env, {0: {"x": 12.0, "y": 10.0, "health": 40.0}}, {0: harmless(20.0, 17.0)})
    env.step(acting(env, STOP))
    assert env.units["health"][0, 0] == pytest.approx(40 + 8 * 0.2734 / 16)
    env.units["health"][0, 0] = 79.99
    env.step(acting(env, STOP))
    assert env.units["health"][0, 0] == 80.0


def test_a_hydralisk_hits_for_twelve(stage, harmless):
    env = Skirmish("6h_vs_8z", 1)
    env.reset()
    stage(env, {0: {"x": 12.0, "y": 12.0}}, {0: harmless(16.0, 12.0)})
    env.step(acting(env, 6))
    env.step(acting(env, 6))
    assert env.units["shield"][0, 6] in (38.0, 26.0)


@pytest.mark.parametrize("name", ["corridor", "so_many_baneling"])
def test_an_army_marches_round_corners_to_its_goal(name):
    env = Skirmish(name, 1)
    env.reset()
    agents = env.spec.n_agents
    # The allies are nowhere near, but alive, so that the battle goes on.
    env.units["x"][0, :agents], env.units["y"][0, :agents] = (28.5, 18.5) if name == "corridor" else (28.5, 22.5)
    env.units["health"][0, :agents] = 1e9
    walkable = env.scenario.terrain.walkable()
    env.kinds["scan"][0, agents:] = 0.0
    for _ in range(70):
        env.step(acting(env, STOP))
        x, y = env.units["x"][0, agents:], env.units["y"][0, agents:]
        assert walkable[x.astype(int), y.astype(int)].all()
    alive = env.units["health"][0, agents:] > 0
    assert alive.sum() > 15
    assert np.hypot(x[alive] - 4.47, y[alive] - 4.33).max() < 5.0


@pytest.mark.parametrize("name", ["corridor", "so_many_baneling", "2c_vs_64zg"])
def test_every_open_cell_can_be_reached_from_every_other(name):
    terrain = SCENARIOS[name].terrain
    ways = terrain.ways()
    cells = [32 * x + y for x, y in np.argwhere(terrain.walkable()).tolist()]
    rng = np.random.default_rng(0)
    for start, goal in rng.choice(cells, size=(200, 2)):
        at, stops = int(start), 0
        while ways[at, goal] >= 0:
            at = int(ways[at, goal])
            assert at in cells
            stops += 1
            assert stops < 20


def test_only_the_colossus_crosses_the_cliff(stage, harmless):
    env = Skirmish("2c_vs_64zg", 1)
    env.reset()
    stage(env, {0: {"x": 16.0, "y": 15.0}}, {0: {"x": 16.0, "y": 7.0}})
    env.kinds["scan"][0, 2:] = 0.0
    lowest, highest = 32.0, 0.0
    for _ in range(8):
        env.units["health"][0, 0] = 200.0
        env.step_unchecked(acting(env, 3))
        lowest = min(lowest, env.units["y"][0, 0])
        highest = max(highest, env.units["y"][0, 2])
    assert lowest < 10.0
    assert highest < 12.0
    # SMAC tells the colossus nothing of that: the cliff is closed to it as to anybody.
    stage(env, {0: {"x": 16.0, "y": 14.5}}, {0: {"x": 16.0, "y": 7.0}})
    assert not env.available[0, 0, 3]


def test_zerglings_find_the_ramp_to_colossi_that_they_have_never_seen(stage):
    env = Skirmish("2c_vs_64zg", 1)
    env.reset()
    stage(env, {0: {"x": 16.0, "y": 18.0}}, {0: {"x": 16.0, "y": 8.0}})
    reached = False
    for _ in range(40):
        env.units["health"][0, 0] = 200.0
        env.step(acting(env, STOP))
        reached |= env.units["shield"][0, 0] < 150.0
    assert reached
    assert env.units["y"][0, 2] > 14.0


def test_the_plateau_is_higher():
    env = Skirmish("2c_vs_64zg", 1, features=Features(obs_terrain_height=True))
    env.reset()
    assert env.obs[0, 0, 4 + 8] == pytest.approx(207 / 255)  # below it, after eight points around it
    assert env.obs[0, 0, 4 + 1] == pytest.approx(135 / 255)  # four south: the cliff


def test_a_spine_crawler_stays_where_it_is_and_reaches_far(stage):
    env = Skirmish("2s_vs_1sc", 1)
    env.reset()
    stage(env, {0: {"x": 13.92, "y": 12.0}}, {0: {}})
    for _ in range(4):
        env.step(acting(env, STOP))
    assert env.units["shield"][0, 0] == 80 - 30  # 25, and 5 for armour, from 8 cells away
    env.units["x"][0, 0], env.units["y"][0, 0] = 13.92, 19.5
    for _ in range(4):
        env.step(acting(env, STOP))
    assert (env.units["x"][0, 2], env.units["y"][0, 2]) == (13.92, 20.04)
    assert env.units["y"][0, 0] < 18.8  # who was too near was pushed away


def test_a_spine_crawler_has_armour_of_two(stage):
    env = Skirmish("2s_vs_1sc", 1, ruleset="liberty")
    env.reset()
    stage(env, {0: {"x": 13.92, "y": 14.5}}, {0: {"cooldown": 1e9}})
    for _ in range(2):
        env.step(acting(env, 6))
    assert env.units["health"][0, 2] == pytest.approx(300 - 14 + 2, abs=0.3)
