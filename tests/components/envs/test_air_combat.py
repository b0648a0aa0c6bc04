"""What `Env` promises, kept by `AirCombat`; what agents may do and see; and who commands the other side."""

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.envs.adapted import named
from components.envs.air_combat.battles import AirBattles
from components.envs.air_combat.env import AirCombat, subtasks
from components.envs.air_combat.kernel.constants import FIRST_MISSILE
from components.envs.air_combat.scenario_file import load_scenario, scenario_named, scenario_names
from components.envs.base import Env
from orchestra import UsageError

ARRAYS = ("obs", "state", "available", "reward", "terminated", "truncated", "won", "units", "missiles", "battles")
SMALL = """
size = [300.0, 200.0]
rules = { strip = [20.0, 60.0], max_steps = 200 }
receiver = { range = 150.0 }

[[red]]
kind = "detector"
speed = 1.0
radar = "S"

[[red]]
kind = "fighter"
count = 2
speed = 3.0
radar = "X"
jammer = "X"
long_missiles = 1
medium_missiles = 2

[[blue]]
kind = "fighter"
count = 2
speed = 2.0
radar = "X"
jammer = "L"
long_missiles = 2
"""


@pytest.fixture
def small(tmp_path: Path) -> str:
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    return str(file)


def digest(env: AirBattles) -> str:
    """Of every bit that the environment shows or remembers."""
    return hashlib.sha256(b"".join(getattr(env, name).tobytes() for name in ARRAYS)).hexdigest()


def actions_of(env: AirBattles, seed: int, step: int) -> np.ndarray:
    """Random available actions that depend, in each battle, on its own number and state only."""
    noise = np.stack(
        [np.random.default_rng([seed, b, step]).random(env.available.shape[1:]) for b in range(env.n_envs)]
    )
    return np.argmax(noise * env.available, axis=2)


def played(env: AirBattles, seed: int, steps: range) -> None:
    for step in steps:
        if env.terminated.any():
            env.reset(env.terminated.copy())
        env.step(actions_of(env, seed, step))


def test_both_maps_have_the_units_that_are_documented() -> None:
    assert scenario_names() == ("detector2_fighter10", "fighter10v10")
    fighters = scenario_named("fighter10v10")
    assert [unit.kind for unit in fighters.red] == ["fighter"] * 10
    mixed = scenario_named("detector2_fighter10")
    for side in (mixed.red, mixed.blue):
        assert [(unit.kind, unit.speed, unit.radar) for unit in side[:2]] == [
            ("detector", 1.0, "L"),
            ("detector", 1.0, "S"),
        ]
        assert [unit.jammer for unit in side[2:]] == ["X"] * 8 + ["L", "S"]
        assert {(unit.speed, unit.long_missiles, unit.medium_missiles) for unit in side[2:]} == {(3.0, 2, 4)}
    for scenario in (fighters, mixed):
        assert scenario.size == (1000.0, 1000.0)
        assert {band: radar.points for band, radar in scenario.radars.items()} == {"L": 20, "S": 20, "X": 10}
        assert scenario.jamming.points == {"L": 10, "S": 20, "X": 10}
        assert scenario.rules.max_steps == 5000


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ("[[red]]\nkind = 'tank'\nspeed = 1\nradar = 'X'", "red.0.kind is 'tank', must be one of detector, fighter"),
        ("[[red]]\nkind = 'fighter'\nradar = 'X'", "red.0.speed is missing"),
        ("[[red]]\nkind = 'fighter'\nspeed = -1\nradar = 'X'", "red.0.speed is -1, must be a number from 0 to"),
        ("[[red]]\nkind = 'fighter'\nspeed = 1\nradar = 'Q'", "red.0.radar is 'Q', must be one of L, S, X"),
        ("[[red]]\nkind = 'fighter'\nspeed = 1\nradar = 'X'\nfuel = 3", "red.0.fuel is unknown; there are kind, count"),
        ("[[red]]\nkind = 'detector'\nspeed = 1\nradar = 'L'\nlong_missiles = 1", "red: unit 1 is a detector, and has"),
        ("[[red]]\nkind = 'fighter'\nspeed = 13\nradar = 'X'", "missiles.long.speed is 12, must be above 13"),
        ("red = []", "red has 0 units, must have 1 to 64"),
        ("[rules]\nstrip = [90.0, 10.0]", r"rules.strip is [90, 10], must ascend"),
        ("[rewards]\nwin = 'much'", "rewards.win is 'much', must be a number"),
        ("[missiles.long]\nhit_near = 1.5", "missiles.long.hit_near is 1.5, must be a number from 0 to 1"),
        ("[radars.K]\nrange = 1", "radars.K is unknown; there are L, S, X"),
        ("[jamming.points]\nX = 0", "jamming.points.X is 0, must be an integer from 1 to 1000"),
        ("size = [1000.0]", "size is [1000.0], must be a list of 2 values"),
        ("[[red", "is not TOML"),
    ],
)
def test_what_is_wrong_in_a_scenario_file_is_said_with_its_place(tmp_path: Path, changed: str, says: str) -> None:
    file, blue = tmp_path / "wrong.toml", "[[blue]]\nkind = 'fighter'\nspeed = 1\nradar = 'X'\n"
    red = "" if "red" in changed else "[[red]]\nkind = 'fighter'\nspeed = 1\nradar = 'X'\n"
    file.write_text(f"{changed}\n{red}{blue}" if not changed.startswith("[[") else f"{blue}{changed}\n")
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        load_scenario(file)
    assert str(file) in str(caught.value)


def test_a_scenario_that_there_is_not_is_refused_with_a_list(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="scenario 'x' is unknown; there are detector2_fighter10, fighter10v10, and"):
        scenario_named("x")
    with pytest.raises(ValueError, match=r"scenario file .*none.toml can't be read: No such file"):
        scenario_named(str(tmp_path / "none.toml"))


def test_it_is_an_env_whose_spec_has_its_sizes(small: str) -> None:
    env = AirCombat(small, 3, courses=8, frame_skip=4)
    assert isinstance(env, Env)
    assert repr(env) == "<AirCombat small x 3>"
    spec = env.spec
    assert (spec.n_agents, spec.n_actions, spec.episode_limit) == (3, 8 * (6 + 2 * 2), 50)
    assert spec.action_grid == (8, 10)
    assert env.obs.shape == (3, 3, spec.obs_size)
    assert env.state.shape == (3, spec.state_size)


def test_sub_tasks_are_courses_and_commands() -> None:
    tasks = {task.name: set(task.actions) for task in subtasks(8, FIRST_MISSILE + 4)}
    assert list(tasks) == ["search", "approach", "attack", "evade", "jam"]
    courses = {name: {action // 10 for action in actions} for name, actions in tasks.items()}
    commands = {name: {action % 10 for action in actions} for name, actions in tasks.items()}
    assert courses["search"] == set(range(8))
    assert courses["approach"] == {7, 0, 1}
    assert courses["attack"] == set(range(8))
    assert courses["jam"] == {6, 7, 0, 1, 2}
    assert courses["evade"] == {2, 3, 4, 5, 6}
    assert commands["attack"] == {6, 7, 8, 9}
    assert commands["search"] == {0, 1, 5}
    assert commands["approach"] == commands["evade"] == {0, 2}
    assert commands["jam"] == {0, 3, 4}


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 100), first=st.integers(0, 3), steps=st.integers(1, 60), saved=st.integers(0, 60))
def test_a_battle_among_many_is_the_battle_alone_and_may_move_house_in_between(seed, first, steps, saved) -> None:
    options = {"seed": seed, "opponent": "hard", "frame_skip": 3}
    many = AirBattles("fighter10v10", 3, first=first, max_steps=150, **options)
    alone = AirBattles("fighter10v10", 1, first=first + 1, max_steps=150, **options)
    many.reset()
    alone.reset()
    for step in range(steps):
        if step == saved:
            moved = AirBattles("fighter10v10", 1, max_steps=150, **options)
            moved.restore(alone.snapshot())
            alone = moved
        if many.terminated.any():
            assert alone.terminated[0] == many.terminated[1]
            many.reset(many.terminated.copy())
            if alone.terminated[0]:
                alone.reset()
        actions = actions_of(many, seed, step)
        many.step(actions)
        alone.step(actions[1:2])
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(alone, name)[0], getattr(many, name)[1], err_msg=name)


def test_battles_of_one_environment_differ_and_the_same_seed_gives_the_same() -> None:
    digests = []
    for seed in (1, 1, 2):
        env = AirBattles("fighter10v10", 2, seed=seed)
        env.reset()
        assert (env.units["radar"][0] != env.units["radar"][1]).any()
        played(env, 0, range(20))
        digests.append(digest(env))
    assert digests[0] == digests[1] != digests[2]


def test_a_snapshot_of_something_else_is_refused(small: str) -> None:
    env, other = AirBattles(small, 2), AirBattles("fighter10v10", 2)
    env.reset()
    before = digest(env)
    with pytest.raises(ValueError, match="snapshot does not fit <AirBattles small x 2>: units must be"):
        env.restore(other.snapshot())
    assert digest(env) == before


def test_reset_touches_only_the_battles_it_names(small: str) -> None:
    env = AirBattles(small, 3, random_pos=True)
    env.reset()
    played(env, 0, range(5))
    before = {name: getattr(env, name).copy() for name in ARRAYS}
    env.reset(np.array([False, True, False]))
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(env, name)[[0, 2]], before[name][[0, 2]])
    assert env.battles["steps"].tolist() == [5, 0, 5]


def test_a_battle_must_be_reset_and_actions_available_or_nothing_is_stepped(small: str) -> None:
    env = AirBattles(small, 2)
    with pytest.raises(ValueError, match="battle 0 is over: reset it before stepping on"):
        env.step(np.zeros((2, 3), np.int64))
    env.reset()
    before = digest(env)
    for action in (FIRST_MISSILE, env.n_actions, -1):
        with pytest.raises(ValueError, match=f"battle 1, agent 2: action {action} is not available, of these one is: "):
            env.step(np.array([[0, 0, 0], [0, 0, action]]))
    with pytest.raises(ValueError, match=r"actions are float64 \(2, 3\), must be integers \(2, 3\)"):
        env.step(np.zeros((2, 3)))
    assert digest(env) == before


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (
            {"opponent": "strong"},
            "opponent is 'strong', must be one of ordered, static, straight, easy, hard, or",
        ),
        ({"frame_skip": 0}, "frame_skip is 0, must be at least 1"),
        ({"courses": 361}, "courses is 361, must be from 1 to 360"),
        ({"n_envs": 0}, "n_envs is 0, must be at least 1"),
    ],
)
def test_options_out_of_range_are_refused(option: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        AirBattles("fighter10v10", **({"n_envs": 1} | option))


def test_an_offered_missile_is_fired_at_a_target_that_stands(small: str) -> None:
    env = AirBattles(small, 8, opponent="static")
    env.reset()
    offered = 0
    for _ in range(150):
        commands = env.available[..., FIRST_MISSILE : env.n_commands]
        fires = commands.any(-1)
        left = env.units["long_left"][:, :3] + env.units["medium_left"][:, :3]
        env.step(np.where(fires, FIRST_MISSILE + commands.argmax(-1), 0))
        np.testing.assert_array_equal(left - env.units["long_left"][:, :3] - env.units["medium_left"][:, :3], fires)
        offered += int(fires.sum())
        if env.terminated.any():
            env.reset(env.terminated.copy())
    assert offered > 10


def test_the_dead_have_one_action_and_see_nothing(small: str) -> None:
    env = AirBattles(small, 1)
    env.reset()
    env.units["alive"][0, 1] = False
    env.show()
    assert env.available[0, 1].nonzero()[0].tolist() == [0]
    assert not env.obs[0, 1].any()
    assert env.obs[0, 0].any()


def test_courses_count_from_the_direction_to_the_nearest_enemy_that_is_known(small: str) -> None:
    env = AirBattles(small, 1, opponent="ordered", courses=8)
    env.reset()
    quarter = 2 * env.n_commands
    env.step(np.array([[0, quarter, 0]]))
    assert env.units["course"][0, :3].tolist() == [0, 90, 0], "nobody is known: courses count from the other side"
    env.units["x"][0, :5], env.units["y"][0, :5] = [20.0, 100.0, 100.0, 100.0, 290.0], [20.0, 50.0, 180.0, 100.0, 10.0]
    env.units["last_x"][0, 3], env.units["last_y"][0, 3], env.units["last_step"][0, 3] = 100.0, 100.0, 0
    env.step(np.array([[0, 0, quarter]]))
    assert env.units["course"][0, 1:3].tolist() == [90, 0], "a quarter clockwise of north is east"


def duel(red: str, blue: str) -> float:
    """Return the share of 256 rounds that one opponent wins in the place of side 1 against another."""
    env = AirBattles("fighter10v10", 256, opponent=blue, max_steps=1000)
    env.reset()
    over, won = np.zeros((2, 256), np.bool_)
    while not over.all():
        env.order_by_rules(1, red)
        env.step_ordered()
        won |= env.won & ~over
        over |= env.terminated
        env.reset(env.terminated.copy())
    return float(won.mean())


def test_the_hard_opponent_is_stronger_than_the_easy_one_and_that_than_one_that_flies_straight() -> None:
    assert duel("easy", "straight") == 1.0
    assert duel("hard", "easy") > 0.65 > 0.3 > duel("easy", "hard")


def test_a_static_opponent_does_not_move(small: str) -> None:
    env = AirBattles(small, 1, opponent="static")
    env.reset()
    before = env.units["x"][0, 3:].copy()
    env.step(np.zeros((1, 3), np.int64))
    np.testing.assert_array_equal(env.units["x"][0, 3:], before)


def test_it_has_a_name_for_the_command_line(small: str) -> None:
    env = named.factory_of(named.named(f"air_combat:{small}"), {"opponent": "hard", "courses": 4})(2, seed=1)
    assert (env.spec.name, env.n_envs, env.spec.n_actions) == ("small", 2, 4 * 10)
    with pytest.raises(UsageError, match="air combat has no 'speed'; there are courses, frame_skip, max_steps"):
        named.factory_of("air_combat:fighter10v10", {"speed": 1})
    with pytest.raises(UsageError, match="--env-arg max_steps=N ends its rounds"):
        named.factory_of("air_combat:fighter10v10", {}, episode_limit=5)


DUEL = """
size = [600.0, 200.0]
rules = {{ strip = [{start}, {start}], hit_prob_enable = false }}
receiver = {{ range = 0.0 }}
radars.X = {{ range = 200.0, points = 1 }}

[[red]]
kind = "fighter"
speed = 2.0
radar = "X"
long_missiles = 2

[[blue]]
kind = "fighter"
speed = 2.0
radar = "X"
long_missiles = 2
"""
"""Two fighters that fly at each other on a line, the first at x = start, the other at 600 - start."""


@pytest.mark.parametrize(("start", "flown"), [(242.0, 4), (235.0, 1), (232.0, 0)])
def test_an_attack_is_made_in_the_first_world_step_in_which_it_can_be(tmp_path: Path, start: float, flown: int) -> None:
    """130 apart they are 126, 122 and 118 after a step each, within 120 for the fourth: one step of flight is left."""
    file = tmp_path / "duel.toml"
    file.write_text(DUEL.format(start=start))
    env, alone = (AirBattles(str(file), opponent="straight", frame_skip=n, courses=4) for n in (5, 1))
    env.reset()
    alone.reset()
    env.step([[FIRST_MISSILE]])
    assert (env.battles["fired_red"][0], env.missiles["steps"][0, 0]) == (1, flown)
    reward = 0.0
    for _ in range(5):  # the same in world steps
        fires = alone.battles["fired_red"][0] == 0 and alone.available[0, 0, FIRST_MISSILE]
        alone.step([[FIRST_MISSILE if fires else 0]])
        reward += alone.rewards[0, 0]
    np.testing.assert_array_equal(env.missiles[:, :1], alone.missiles[:, :1])
    assert env.rewards[0, 0] == pytest.approx(reward)


def test_an_attack_is_offered_if_its_target_may_come_into_range_before_the_last_world_step(tmp_path: Path) -> None:
    def offers(start: float) -> bool:
        file = tmp_path / "duel.toml"
        file.write_text(DUEL.format(start=start))
        env = AirBattles(str(file), frame_skip=5, courses=4)
        env.reset()
        return bool(env.available[0, 0, FIRST_MISSILE])

    assert [offers(start) for start in (231.5, 232.0)] == [False, True]  # 137 and 136 apart; 120 + 4 * (2 + 2) is 136


def test_an_attack_that_is_possible_in_no_world_step_is_invalid_once(tmp_path: Path) -> None:
    file = tmp_path / "duel.toml"
    file.write_text(DUEL.format(start=235.0))
    env = AirBattles(str(file), opponent="ordered", frame_skip=5, courses=4)
    env.reset()
    env.orders[0] = [[0, 1, 0, 1], [0, 1, 0, 0]]  # the target flies away
    env.step_ordered()
    assert env.battles["fired_red"][0] == 0
    assert env.rewards[0, 0] == pytest.approx(0.1 - 0.1, abs=1e-6)  # a first sighting, and the attack
