"""Code that was written for MaCA runs on the simulator of air combat unchanged."""

import json
import sys
import textwrap
from math import atan2, degrees, hypot
from pathlib import Path

import numpy as np
import pytest

from components.envs.adapted.named import named
from components.envs.air_combat.battles import AirBattles
from components.envs.air_combat.maca import BaseAgent, Environment, ObsConstruct, angle_cal, fight, get_distance
from components.envs.air_combat.scenario_file import scenario_named

HOMOGENEOUS, HETEROGENEOUS = "maps/1000_1000_fighter10v10.map", "maps/1000_1000_2_10_vs_2_10.map"
DUEL = """
size = [400.0, 200.0]
[[red]]
kind = "detector"
speed = 1.0
radar = "L"
[[red]]
kind = "fighter"
count = 2
speed = 2.0
radar = "X"
jammer = "L"
long_missiles = 1
medium_missiles = 1
[[blue]]
kind = "detector"
speed = 1.0
radar = "S"
[[blue]]
kind = "fighter"
speed = 2.0
radar = "X"
jammer = "X"
long_missiles = 1
[rules]
hit_prob_enable = false
strip = [100.0, 150.0]
[radars.X]
range = 150.0
points = 10
sector = 90.0
"""
"""Red: a detector at (100, 100), fighters at (150, 50), (150, 150). Blue: one at (300, 100), and one at (250, 100)."""
AGENT = '''
import numpy as np
from agent.base_agent import BaseAgent


class Agent(BaseAgent):
    """Flies on and fires a long missile at the first enemy on its screen."""

    def __init__(self):
        BaseAgent.__init__(self)
        self.obs_ind = "simple"

    def set_map_info(self, size_x, size_y, detector_num, fighter_num):
        self.detector_num, self.fighter_num = detector_num, fighter_num

    def get_action(self, obs_dict, step_cnt):
        detector_action, fighter_action = [], []
        for y in range(self.fighter_num):
            true_action = np.array([0, 1, 0, 0], dtype=np.int32)
            if obs_dict["fighter"][y]["alive"]:
                seen = obs_dict["fighter"][y]["screen"].transpose(2, 0, 1)[0]
                true_action[0] = obs_dict["fighter"][y]["info"][0]
                true_action[3] = seen.max()
            fighter_action.append(true_action)
        return detector_action, np.array(fighter_action)
'''


@pytest.fixture
def duel(tmp_path):
    """A function that makes an environment of the battle `DUEL`."""
    path = tmp_path / "duel.toml"
    path.write_text(DUEL)

    def make(**options):
        return Environment(str(path), "raw", "raw", **{"random_seed": 0} | options)

    return make


def stay_on(env):
    """The actions of both sides with which all fly on, radars on and jammers off."""
    return [[[each["course"], 1, 0, 0][:width] for each in obs[name]]
            for obs in env.get_obs_raw()
            for name, width in (("detector_obs_list", 2), ("fighter_obs_list", 4))]  # fmt: skip


@pytest.mark.parametrize(("path", "name"), [(HOMOGENEOUS, "fighter10v10"), (HETEROGENEOUS, "detector2_fighter10")])
def test_macas_maps_are_there_without_its_files(path, name):
    env = Environment(path, "raw", "raw")
    assert env.scenario.red == scenario_named(name).red
    assert env.get_map_size() == (1000.0, 1000.0)
    detectors = 2 if "2_10" in path else 0
    assert env.get_unit_num() == (detectors, 10, detectors, 10)


def map_of(env):
    """A map as MaCA writes it."""
    contents = {"map_name": "copy", "size_x": 1000, "size_y": 1000}
    lists = ("side1_detector", "side1_fighter", "side2_detector", "side2_fighter")
    for name, units in zip(lists, env.get_unit_property_list(), strict=True):
        contents |= {f"{name}_num": len(units), f"{name}_list": units}
    return contents


def test_a_map_of_macas_is_read(tmp_path):
    env = Environment(HETEROGENEOUS, "raw", "raw")
    path = tmp_path / "copy.map"
    path.write_text(json.dumps(map_of(env)))
    read = Environment(str(path), "raw", "raw").scenario
    assert (read.name, read.red, read.blue) == ("copy", env.scenario.red, env.scenario.blue)
    assert AirBattles(str(path)).scenario.red == read.red
    assert named("air_combat:copy.map") == f"air_combat:{Path('copy.map').absolute()}"
    assert env.get_unit_property_list()[1][8] == {
        "speed": 3.0,
        "r_band": 2,
        "j_band": 0,
        "l_missile_num": 2,
        "s_missile_num": 4,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size_x": 0}, "size_x is 0, must be a number from 1 to 1e"),
        ({"side1_fighter_num": 3}, "side1_fighter_list has 10 entries, must have 3 as side1_fighter_num"),
        ({"side2_detector_list": [{"speed": 1, "r_band": 7}] * 2}, "side2_detector_list.0.r_band is 7, must be"),
        ({"colour": "red"}, "colour is unknown; there are map_name, size_x"),
    ],
)
def test_a_wrong_map_is_refused_with_what_is_wrong_and_where(tmp_path, change, message):
    path = tmp_path / "wrong.map"
    path.write_text(json.dumps(map_of(Environment(HETEROGENEOUS, "raw", "raw")) | change))
    with pytest.raises(ValueError, match=message) as caught:
        scenario_named(str(path))
    assert str(caught.value).startswith(f"map {path}: ")


def test_a_map_that_is_no_json_or_not_there_is_refused(tmp_path):
    path = tmp_path / "wrong.map"
    path.write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        scenario_named(str(path))
    with pytest.raises(ValueError, match=r"none\.map can't be read: No such file"):
        Environment("maps/none.map", "raw", "raw")


def test_the_raw_observation_has_macas_keys(duel):
    mine, _ = duel().get_obs()
    assert mine.keys() == {"detector_obs_list", "fighter_obs_list", "joint_obs_dict"}
    common = {"id", "alive", "pos_x", "pos_y", "course", "r_iswork", "r_fre_point", "r_visible_list"}
    common |= {"last_reward", "last_action"}
    (detector,), (fighter, second) = mine["detector_obs_list"], mine["fighter_obs_list"]
    assert detector.keys() == common
    assert fighter.keys() == common | {
        "j_iswork",
        "j_fre_point",
        "j_recv_list",
        "l_missile_left",
        "s_missile_left",
        "striking_list",
        "striking_dict_list",
    }
    assert detector["last_action"].keys() == {"course", "r_iswork", "r_fre_point"}
    assert fighter["last_action"].keys() == {
        "course",
        "r_iswork",
        "r_fre_point",
        "j_iswork",
        "j_fre_point",
        "hit_target",
        "missle_type",
    }
    assert (detector["id"], fighter["id"], second["id"]) == (1, 2, 3)
    assert mine["joint_obs_dict"].keys() == {"strike_list", "passive_detection_enemy_list", "alive_status_enemy_list"}


def test_units_see_hear_and_fix_enemies_where_they_are(duel):
    env = duel()
    env.step(*stay_on(env))
    red, blue = env.get_obs()
    places = [(each["pos_x"], each["pos_y"]) for each in red["fighter_obs_list"]]
    assert places == [(152.0, 50.0), (152.0, 150.0)]
    # Blue's fighter is at (248, 100), 108 away from both, blue's detector at (299, 100), 155 away.
    assert red["fighter_obs_list"][0]["r_visible_list"] == [{"id": 2, "type": 1, "pos_x": 248.0, "pos_y": 100.0}]
    assert [each["id"] for each in red["detector_obs_list"][0]["r_visible_list"]] == [1, 2]
    assert [each["id"] for each in blue["fighter_obs_list"][0]["r_visible_list"]] == [1, 2, 3]
    heard = red["fighter_obs_list"][0]["j_recv_list"]
    assert [(each["id"], each["type"], each["r_fp"]) for each in heard] == [(1, 0, 1), (2, 1, 1)]
    assert heard[1]["direction"] == pytest.approx(degrees(atan2(50, 96)), abs=1.5)
    for fixed, (x, y) in zip(
        red["joint_obs_dict"]["passive_detection_enemy_list"], [(299, 100), (248, 100)], strict=True
    ):
        assert hypot(fixed["pos_x"] - x, fixed["pos_y"] - y) < 10.0
    assert blue["joint_obs_dict"]["passive_detection_enemy_list"] == []  # one receiver alone has no fix
    # It saw two enemies for the first time, of 20 and 10; fighters one.
    assert [each["last_reward"] for each in (*red["detector_obs_list"], *red["fighter_obs_list"])] == [30.0, 10.0, 10.0]


def test_a_missile_is_told_of_until_it_hits(duel):
    env = duel()
    red_detector, red_fighters, *blue = stay_on(env)
    red_fighters[0][2:] = [11, 2]  # jams the whole band; a long missile at enemy 2
    env.step(red_detector, red_fighters, *blue)
    red, _ = env.get_obs()
    fighter = red["fighter_obs_list"][0]
    assert (fighter["l_missile_left"], fighter["s_missile_left"]) == (0, 1)
    assert fighter["last_action"] == {
        "course": 0,
        "r_iswork": True,
        "r_fre_point": 1,
        "j_iswork": True,
        "j_fre_point": 11,
        "hit_target": 2,
        "missle_type": 1,
    }
    strike = {"attacker_id": 2, "target_id": 2, "missile_type": 1, "information_source_type": 0}
    assert fighter["striking_list"] == [strike | {"step_count": 0, "op_count": 0, "del_ind": False}]
    assert red["joint_obs_dict"]["strike_list"] == fighter["striking_list"]
    assert fighter["striking_dict_list"] == [{"target_id": 2, "pos_x": 248.0, "pos_y": 100.0, "type": 1}]
    assert env.get_reward()[1].tolist() == [20.0, 10.0]  # the attack was valid, and both saw an enemy
    steps = 0
    while env.get_alive_status()[3] == [True]:
        assert env.step(*stay_on(env))
        steps += 1
    # 108 away at first, at 12 + about 2 a step: it arrives in the 8th.
    assert steps == 8
    detectors_1, fighters_1, round_1, detectors_2, fighters_2, round_2 = env.get_reward()
    assert (fighters_1[0], fighters_2.tolist(), round_1, round_2) == (100.0, [-100.0], 0.0, 0.0)
    assert (detectors_1.shape, detectors_2.shape) == ((1,), (1,))
    red, blue = env.get_obs()
    assert red["joint_obs_dict"]["alive_status_enemy_list"] == [True, False]
    assert not blue["fighter_obs_list"][0]["alive"]
    assert blue["fighter_obs_list"][0]["r_visible_list"] == blue["fighter_obs_list"][0]["j_recv_list"] == []
    assert [each["id"] for each in red["detector_obs_list"][0]["r_visible_list"]] == [1]


def test_the_second_side_plays_as_the_first_does(duel):
    env = duel()
    red_detector, red_fighters, blue_detector, blue_fighters = stay_on(env)
    blue_fighters[0][3] = 3  # of three enemies the third, by a long missile
    env.step(red_detector, red_fighters, blue_detector, blue_fighters)
    _, blue = env.get_obs()
    (strike,) = blue["joint_obs_dict"]["strike_list"]
    assert (strike["attacker_id"], strike["target_id"], strike["information_source_type"]) == (
        2,
        3,
        1,
    )  # by the S detector


def test_an_attack_on_nobody_costs_its_reward_and_no_missile(duel):
    env = duel()
    red_detector, red_fighters, *blue = stay_on(env)
    red_fighters[1][3] = 25
    env.step(red_detector, red_fighters, *blue)
    fighter = env.get_obs()[0]["fighter_obs_list"][1]
    assert (fighter["l_missile_left"], fighter["s_missile_left"]) == (1, 1)
    assert fighter["last_reward"] == 10.0 - 10.0
    assert (fighter["last_action"]["hit_target"], fighter["last_action"]["missle_type"]) == (0, 0)


@pytest.mark.parametrize(
    ("row", "column", "value", "message"),
    [
        (1, 1, 11, r"side1_fighter_action, unit 1: radar is 11, must be an integer, 0 to 10"),
        (0, 2, 12, r"side1_fighter_action, unit 0: jammer is 12, must be an integer, 0 to 11"),
        (0, 3, -1, r"side1_fighter_action, unit 0: attack is -1, must be an integer, 0 or more"),
        (0, 1, 0.5, r"side1_fighter_action, unit 0: radar is 0.5, must be an integer"),
        (0, 0, float("nan"), r"side1_fighter_action, unit 0: course is nan, must be degrees"),
    ],
)
def test_numbers_out_of_their_range_are_refused_and_nothing_is_played(duel, row, column, value, message):
    env = duel()
    red_detector, red_fighters, *blue = stay_on(env)
    red_fighters[row][column] = value
    before = env.get_obs_raw()
    with pytest.raises(ValueError, match=message):
        env.step(red_detector, red_fighters, *blue)
    assert env.get_obs_raw() == before


def test_an_array_of_another_shape_is_refused(duel):
    env = duel()
    with pytest.raises(
        ValueError, match=r"side1_detector_action is int64 \(1, 4\), must be numbers \(1, 2\): course, radar"
    ):
        env.step([[0, 1, 0, 0]], *stay_on(env)[1:])


def test_rows_of_the_destroyed_may_hold_anything_and_courses_any_degrees(duel):
    env = duel()
    env._battles.units["alive"][0, 1] = False
    red_detector, red_fighters, *blue = stay_on(env)
    red_fighters[0], red_fighters[1][0] = [-5, 99, 99, -1], -90.7
    assert env.step(red_detector, red_fighters, *blue)
    assert env.get_obs()[0]["fighter_obs_list"][1]["course"] == 270


def test_a_round_ends_once_and_a_step_after_it_is_not_played(duel):
    env = duel(max_step=3)
    played = [env.step(*stay_on(env)) for _ in range(4)]
    assert played == [True, True, True, False]
    assert env.get_done()
    assert (env.outcome, env.get_reward()[2], env.get_reward()[5]) == (1, 100.0, -100.0)  # three against two are left
    env.reset()
    assert not env.get_done()
    assert env.get_obs()[0]["fighter_obs_list"][0]["last_action"]["r_fre_point"] == 0


@pytest.mark.parametrize(("side", "rewards"), [(0, (-200.0, 200.0)), (1, (200.0, -200.0)), (2, (0.0, 0.0))])
def test_a_side_may_surrender(duel, side, rewards):
    env = duel()
    env.set_surrender(side)
    assert env.get_done()
    assert (env.get_reward()[2], env.get_reward()[5]) == rewards
    with pytest.raises(ValueError, match="side is 3, must be 0"):
        env.set_surrender(3)


def test_equal_seeds_give_equal_rounds_and_a_drawn_seed_is_told():
    def played(seed):
        env = Environment(HOMOGENEOUS, "raw", "raw", random_pos=True, random_seed=seed, opponent="hard")
        for _ in range(150):
            env.step([], np.tile([0, 1, 0, 1], (10, 1)))
        return env.random_seed, env.get_obs()

    drawn, first = played(-1)
    assert played(drawn)[1] == first
    assert played(drawn + 1)[1] != first


def by_hand(raw, unit):
    """The screen and the numbers of a unit of a side on a map of 1000 by 1000, pixel by pixel."""
    screen = np.zeros((100, 100, 5), np.int32)

    def mark(channel, at, value):
        row, column = int(at["pos_y"] / 10), int(at["pos_x"] / 10)
        for r in range(row - 1, row + 2):
            for c in range(column - 1, column + 2):
                if 0 <= r < 100 and 0 <= c < 100:
                    screen[r, c, channel] = value

    detectors, fighters = raw["detector_obs_list"], raw["fighter_obs_list"]
    known = list(raw["joint_obs_dict"]["passive_detection_enemy_list"])
    for each in (*detectors, *fighters):
        known += each["r_visible_list"]
    for enemy in known:
        mark(3, enemy, enemy["id"])
        mark(4, enemy, enemy["type"] + 1)
    if unit["alive"]:
        for enemy in unit["r_visible_list"]:
            mark(0, enemy, enemy["id"])
            mark(1, enemy, enemy["type"] + 1)
        for friends, value in ((detectors, 1), (fighters, 2)):
            for friend in friends:
                if friend["alive"]:
                    mark(2, friend, value)
        mark(2, unit, 255)
    return screen


def test_the_simple_observation_is_drawn_as_by_hand():
    env = Environment(HETEROGENEOUS, "simple", "raw", random_seed=1, opponent="easy", random_pos=True)
    seen = dead = 0
    for step in range(330):
        fighters = np.tile([0, 1, 0, step % 25], (10, 1))
        env.step(np.tile([0, 1], (2, 1)), fighters)
        if step % 15:
            continue
        (drawn, _), (raw, _) = env.get_obs(), env.get_obs_raw()
        for name, told in (("detector", ["course"]), ("fighter", ["course", "l_missile_left", "s_missile_left"])):
            assert len(drawn[name]) == len(raw[f"{name}_obs_list"])
            for each, unit in zip(drawn[name], raw[f"{name}_obs_list"], strict=True):
                assert each["alive"] is unit["alive"]
                assert each["screen"].dtype == each["info"].dtype == np.int32
                np.testing.assert_array_equal(each["screen"], by_hand(raw, unit))
                assert each["info"].tolist() == ([unit[key] for key in told] if unit["alive"] else [-1] * len(told))
                seen += bool(unit["r_visible_list"])
                dead += not unit["alive"]
    assert seen > 10
    assert dead > 0


@pytest.mark.parametrize(
    ("x", "y", "pixels"),
    [
        (1000.0, 0.0, [(0, 99), (1, 99)]),
        (0.0, 1000.0, [(99, 0), (99, 1)]),
        (0.0, 0.0, [(0, 0), (0, 1), (1, 0), (1, 1)]),
    ],
)
def test_marks_are_cut_off_at_the_edges_of_the_screen(x, y, pixels):
    corner = {"alive": True, "pos_x": x, "pos_y": y, "course": 7, "r_visible_list": []}
    raw = {
        "detector_obs_list": [corner],
        "fighter_obs_list": [],
        "joint_obs_dict": {"passive_detection_enemy_list": []},
    }
    screen = ObsConstruct(1000, 1000, 1, 0).obs_construct(raw)["detector"][0]["screen"]
    assert sorted(zip(*map(np.ndarray.tolist, screen[:, :, 2].nonzero()), strict=True)) == pixels


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A folder laid out as MaCA's, on the path, whose `interface` is this package."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    files = {
        "interface.py": "from components.envs.air_combat.maca import *",
        "agent/__init__.py": "",
        "agent/base_agent.py": "from interface import BaseAgent",
        "agent/first/__init__.py": "",
        "agent/first/agent.py": AGENT,
        "obs_construct/__init__.py": "",
        "obs_construct/counting/__init__.py": "",
        "obs_construct/counting/construct.py": """
            class ObsConstruct:
                def __init__(self, size_x, size_y, detector_num, fighter_num):
                    self.sizes = (size_x, size_y, detector_num, fighter_num)

                def obs_construct(self, obs_raw_dict):
                    return [*self.sizes, sum(each["alive"] for each in obs_raw_dict["fighter_obs_list"])]
            """,
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    yield
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("agent", "interface", "obs_construct"):
            del sys.modules[name]


def test_an_agent_of_macas_tree_fights(tree):
    from agent.first.agent import Agent  # type: ignore[import-not-found]

    results = list(fight(HOMOGENEOUS, Agent(), Agent(), rounds=2, random_seed=5, max_step=230))
    assert [result.outcome == 0 or result.red_left != result.blue_left for result in results] == [True, True]
    assert min(result.red_left + result.blue_left for result in results) < 20
    assert results[0] == next(fight(HOMOGENEOUS, Agent(), Agent(), random_seed=5, max_step=230))


def test_observations_are_made_by_the_class_in_the_folder_that_is_named(tree):
    env = Environment(HETEROGENEOUS, "counting", "simple")
    assert env.get_obs()[0] == [1000.0, 1000.0, 2, 10, 10]
    with pytest.raises(
        ValueError, match="side2_obs_ind is 'vector', must be raw, simple or a folder with obs_construct"
    ):
        Environment(HETEROGENEOUS, "raw", "vector")


def test_the_rules_command_the_second_side():
    counted = []

    class Idle(BaseAgent):
        def get_action(self, obs_dict, step_cnt):
            counted.append(step_cnt)
            return [], np.tile([0, 0, 0, 0], (self.fighter_num, 1))

    (result,) = fight(HOMOGENEOUS, Idle(), "easy", random_seed=2, max_step=600)
    assert counted == list(range(1, result.steps + 1))
    assert result.outcome < 0
    assert result.blue_left > result.red_left
    assert result.rewards[1] > result.rewards[0]


def test_distances_and_angles_are_those_of_the_map():
    assert get_distance(0, 0, 3, -4) == 5.0
    assert [angle_cal(0, 0, *to) for to in ((1, 0), (0, 1), (-1, 0), (0, -1))] == [0.0, 90.0, 180.0, 270.0]
