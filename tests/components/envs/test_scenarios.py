"""Sizes: the table of SMAC, row by row."""

import re

import numpy as np
import pytest

from components.envs import SCENARIOS, Features, Rewards, Skirmish, StarCraft2Env
from components.envs.skirmish.tables import hexagonal_spiral

# name: agents, enemies, limit, actions, observation, state, state without last actions, largest reward
SIZES = {
    "3m": (3, 3, 60, 9, 30, 48, 21, 365),
    "8m": (8, 8, 120, 14, 80, 168, 56, 640),
    "25m": (25, 25, 150, 31, 250, 950, 175, 1575),
    "5m_vs_6m": (5, 6, 70, 12, 55, 98, 38, 530),
    "8m_vs_9m": (8, 9, 120, 15, 85, 179, 59, 695),
    "10m_vs_11m": (10, 11, 150, 17, 105, 243, 73, 805),
    "27m_vs_30m": (27, 30, 180, 36, 285, 1170, 198, 1850),
    "2s3z": (5, 5, 120, 11, 80, 120, 65, 1020),
    "3s5z": (8, 8, 150, 14, 128, 216, 104, 1510),
    "3s5z_vs_3s6z": (8, 9, 170, 15, 136, 230, 110, 1670),
    "3s_vs_3z": (3, 3, 150, 9, 36, 54, 27, 680),
    "3s_vs_4z": (3, 4, 200, 10, 42, 61, 31, 840),
    "3s_vs_5z": (3, 5, 250, 11, 48, 68, 35, 1000),
    "2m_vs_1z": (2, 1, 150, 7, 16, 26, 12, 360),
    "6h_vs_8z": (6, 8, 150, 14, 78, 140, 56, 1480),
    "MMM": (10, 10, 150, 16, 160, 290, 130, 1015),
    "MMM2": (10, 12, 180, 18, 176, 322, 142, 1205),
    "1c3s5z": (9, 9, 180, 15, 162, 270, 135, 1870),
    "bane_vs_bane": (24, 24, 200, 30, 336, 984, 264, 1260),
    "so_many_baneling": (7, 32, 100, 38, 202, 397, 131, 1480),
    "corridor": (6, 24, 400, 30, 156, 282, 102, 1280),
    "2s_vs_1sc": (2, 1, 300, 7, 17, 27, 13, 510),
    "2c_vs_64zg": (2, 64, 400, 70, 332, 342, 202, 3080),
}


def test_every_scenario_is_in_the_table():
    assert SIZES.keys() == {name for name, scenario in SCENARIOS.items() if scenario.draw is None}


@pytest.mark.parametrize("name", SIZES)
def test_a_scenario_has_the_sizes_of_the_map_it_is_named_after(name):
    agents, enemies, limit, actions, obs, state, state_without_actions, largest = SIZES[name]
    env = Skirmish(name, 2)
    spec = env.spec
    assert (spec.n_agents, spec.n_actions, spec.episode_limit) == (agents, actions, limit)
    assert (spec.obs_size, spec.state_size) == (obs, state)
    assert len(env.scenario.enemies) == enemies
    assert Features(state_last_action=False).state_size(env.scenario) == state_without_actions
    assert Rewards().maximum(env.scenario) == largest
    assert env.obs.shape == (2, agents, obs)
    assert env.obs.dtype == env.state.dtype == env.reward.dtype == np.float32
    assert env.state.shape == (2, state)
    assert env.available.shape == (2, agents, actions)


def test_optional_columns_add_up():
    scenario = SCENARIOS["2s3z"]
    plain = Features().obs_size(scenario)
    assert Features(obs_pathing_grid=True).obs_size(scenario) == plain + 8
    assert Features(obs_terrain_height=True).obs_size(scenario) == plain + 9
    assert Features(obs_last_action=True).obs_size(scenario) == plain + 4 * 11
    assert Features(obs_timestep_number=True).obs_size(scenario) == plain + 1
    assert Features(obs_all_health=False).obs_size(scenario) == plain - 5 * 2 - 4 * 2
    assert Features(obs_all_health=False, obs_own_health=False).obs_size(scenario) == plain - 5 * 2 - 4 * 2 - 2
    assert Features(obs_instead_of_state=True).state_size(scenario) == 5 * plain
    assert Features(state_timestep_number=True).state_size(scenario) == 121


@pytest.mark.parametrize("build", [Skirmish, StarCraft2Env])
def test_an_unknown_scenario_is_refused_with_those_there_are(build):
    with pytest.raises(ValueError, match=re.escape("scenario '9m' is unknown; there are 3m, 8m, 25m")):
        build("9m")


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"n_envs": 0}, "n_envs is 0, must be at least 1"),
        ({"seed": -1}, "seed is -1, must be at least 0"),
        ({"first": -1}, "first is -1, must be at least 0"),
        ({"step_mul": 0}, "step_mul is 0, must be at least 1"),
        ({"start_jitter": -0.1}, "start_jitter is -0.1, must be between 0 and 8 cells"),
        ({"move_amount": 0.0}, "move_amount is 0.0, must be positive"),
        ({"ruleset": "hots"}, "ruleset 'hots' is unknown; there are 'liberty' and 'lotv'"),
    ],
)
def test_a_setting_out_of_its_range_is_refused(keywords, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Skirmish("3m", **keywords)


@pytest.mark.parametrize("count", [1, 2, 7, 8, 25, 30])
def test_starting_places_are_a_spacing_apart_and_packed(count):
    places = np.array(hexagonal_spiral(count, 0.77))
    gaps = np.hypot(*(places[:, None] - places[None, :]).transpose(2, 0, 1)) + 1e9 * np.eye(count)
    assert len(places) == count
    assert tuple(places[0]) == (0.0, 0.0)
    assert gaps.min() >= 0.77 - 1e-9 or count == 1
    assert np.hypot(*places.T).max() <= 0.77 * (np.sqrt(count / 3) + 1)


def test_agents_are_ordered_by_type_then_place():
    for name in ("3m", "2s3z", "3s5z", "1c3s5z", "MMM"):
        env = Skirmish(name, 8, start_jitter=0.25)
        env.reset()
        agents = env.spec.n_agents
        kinds = [
            ("marauder", "marine", "medivac", "colossus", "stalker", "zealot").index(u.name)
            for u in env.scenario.allies
        ]
        for b in range(8):
            rows = [(kinds[i], env.units["x"][b, i], env.units["y"][b, i]) for i in range(agents)]
            assert rows == sorted(rows)


def test_starts_are_the_same_every_time_without_jitter():
    env = Skirmish("8m", 3)
    env.reset()
    first = env.units["x"].copy()
    assert (first == first[0]).all()
    env.reset()
    assert (env.units["x"] == first).all()
    jittered = Skirmish("8m", 3, start_jitter=0.2)
    jittered.reset()
    assert 0.0 < np.abs(np.sort(jittered.units["x"][0, 8:]) - np.sort(first[0, 8:])).max() <= 0.4


@pytest.mark.parametrize("name", SCENARIOS)
def test_everybody_starts_on_open_ground(name):
    env = Skirmish(name, 1)
    env.reset()
    x, y = env.units["x"][0].astype(int), env.units["y"][0].astype(int)
    assert env.scenario.terrain.walkable()[x, y].all()


def test_the_sides_start_as_mirror_images():
    env = Skirmish("2s3z", 1)
    env.reset()
    ours = sorted(zip(32 - env.units["x"][0, :5], 32 - env.units["y"][0, :5], strict=True))
    theirs = sorted(zip(env.units["x"][0, 5:], env.units["y"][0, 5:], strict=True))
    np.testing.assert_allclose(ours, theirs, atol=1e-9)
