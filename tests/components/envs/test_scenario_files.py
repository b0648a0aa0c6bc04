"""Scenarios of one's own."""

import re
from pathlib import Path

import numpy as np
import pytest

from components.envs import Skirmish, StarCraft2Env

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples" / "scenarios"
BATTLE = """
limit = 50
[[allies]]
units = { marine = 2, medivac = 1 }
at = [9, 16]
[[allies]]
units = { marine = 1 }
at = [12.5, 10]
[[enemies]]
units = { zealot = 2 }
at = [20, 16]
"""


@pytest.fixture
def written(tmp_path):
    """A function that writes a scenario file and returns its name."""

    def write(text):
        path = tmp_path / "own.toml"
        path.write_text(text)
        return str(path)

    return write


def test_a_file_of_a_few_lines_makes_a_battle(written):
    env = Skirmish(written(BATTLE), 2)
    env.reset()
    assert env.spec.name == "own"
    assert (env.spec.n_agents, env.spec.n_actions, env.spec.episode_limit) == (4, 8, 50)
    assert [unit.name for unit in env.types_in(0)] == ["marine", "marine", "medivac", "marine", "zealot", "zealot"]
    assert (env.units["x"][0, 3], env.units["y"][0, 3]) == (12.5, 10.0)
    assert (env.units["x"][0, 4], env.units["y"][0, 4]) == (20.0, 16.0)
    # Columns: 4 moves; 2 enemies of 5 and a shield and 3 types; 3 friends of 5 and 3 types; oneself.
    assert env.spec.obs_size == 4 + 2 * (5 + 1 + 3) + 3 * (5 + 3) + (1 + 3)
    medivac_type = env.obs[0, 2, -3:]
    assert medivac_type.tolist() == [0.0, 1.0, 0.0]  # marine, medivac, zealot: by name, allies' first


def test_units_of_one_type_have_no_columns_for_it(written):
    env = Skirmish(written(BATTLE.replace(", medivac = 1", "").replace("zealot", "marine")))
    assert env.spec.obs_size == 4 + 2 * 5 + 2 * 5 + 1


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_examples_of_the_documentation_are_played_to_an_end(path, at_random):
    env = Skirmish(str(path), 4, seed=1)
    env.reset()
    rng = np.random.default_rng(0)
    ended = np.zeros(4, dtype=np.bool_)
    for _ in range(env.spec.episode_limit):
        env.step(at_random(env, rng))
        over = env.terminated | env.truncated
        ended |= over
        env.reset(over)
    assert ended.all()


def test_enemies_find_the_gap_between_walls(stopping):
    env = Skirmish(str(EXAMPLES / "rescue.toml"), 1)
    env.reset()
    env.units["y"][0, 6:] = (9.0, 10.0, 11.0)
    for _ in range(40):
        env.step(stopping(env, None))
        if env.battles["over"][0]:
            break
    assert env.terminated[0]
    assert not env.won[0]


def test_the_enemies_march_where_the_file_says(written):
    env = Skirmish(written("march = [25, 10]\n" + BATTLE), 1)
    env.reset()
    env.units["x"][0, :4] = 1.0
    for _ in range(30):
        env.step(env.available[:, :, 1].astype(np.int64))
    assert np.hypot(env.units["x"][0, 4:] - 25, env.units["y"][0, 4:] - 10).max() < 1.5


def test_enemies_may_be_ordered_to_attack_one_ally_which_is_drawn(written):
    battle = BATTLE.replace("limit = 50", "limit = 50\nattack_one = true").replace(", medivac = 1", "")
    env = Skirmish(written(battle), 32, seed=3)
    env.reset()
    targets = env.units["target"][:, env.n_agents :]
    assert (targets == targets[:, :1]).all()
    assert set(targets[:, 0].tolist()) == set(range(env.n_agents))
    victims = targets[:, 0].copy()
    env.kinds["speed"][:, : env.n_agents] = 0.0
    stop = env.available[:, :, 1].astype(np.int64)
    dead = np.zeros(32, dtype=bool)
    for _ in range(50):
        env.step_unchecked(np.where(env.units["health"][:, : env.n_agents] > 0, stop, 0))
        dead |= env.units["health"][np.arange(32), victims] <= 0
        alive = env.units["health"][:, env.n_agents :] > 0
        others = (env.units["target"][:, env.n_agents :] != victims[:, None]) & alive
        assert not others[~dead].any()
    assert dead.all()
    assert (env.units["health"][:, : env.n_agents] > 0).any()  # later the enemies attack only who is in sight


def test_an_order_to_attack_who_flies_is_refused_by_those_who_cannot_hit_it(written):
    battle = BATTLE.replace("limit = 50", "limit = 50\nattack_one = true").replace("marine = 2, ", "")
    env = Skirmish(written(battle), 32, seed=3)
    env.reset()
    assert set(env.units["target"][:, env.n_agents :].ravel().tolist()) == {-1, 1}  # the Medivac is agent 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("limit = 50", ""), "limit is missing"),
        (("limit = 50", "limit = 0"), "limit is 0, must be an integer from 1 to 10000"),
        (("limit = 50", "limit = 50\nlimits = 5"), "limits is unknown; there are name, limit, terrain"),
        (("marine = 2", "marin = 2"), "there is no unit 'marin'; there are marine, marauder, medivac"),
        (("marine = 2", "marine = 0"), "allies.0.units.marine is 0, must be an integer from 1 to 128"),
        (("marine = 2", "marine = 127"), "131 units are too many: 128 at most"),
        (("marine = 2", "zealot = 2"), "allies are of several races (protoss, terran), must be of one"),
        (("at = [9, 16]", "at = [9, 33]"), "allies.0.at.1 is 33, must be a number from 0 to 32"),
        (("at = [9, 16]", "at = [9, 4]"), "there is no room for 2 units round (9.0, 4.0)"),
        (("limit = 50", "limit = 50\nterrain = 'moor'"), "there is no terrain 'moor'; there are strip, open"),
        (("limit = 50", "limit = 50\nterrain = []"), "terrain has no rectangle"),
        (("limit = 50", "limit = 50\nterrain = [[9, 8, 0, 3]]"), "terrain [9, 8, 0, 3] is no rectangle"),
        (("marine = 2", "marine = true"), "allies.0.units.marine is True, must be an integer from 1 to 128"),
        (("units = { marine = 1 }", "units = {}"), "allies.1.units is {}, must be a table with an entry at least"),
        (("at = [20, 16]", "at = 20"), "enemies.0.at is 20, must be a list of 2 values"),
        (("limit = 50", "limit = 50\nallies = 3"), "is not TOML"),
        (("limit = 50", "limit = 50\nhunts = 1"), "hunts is 1, must be true or false"),
        (("limit = 50", "limit = 50\nattack_one = 1"), "attack_one is 1, must be true or false"),
        (("limit = 50", "limit = 50\nterrain = 5"), "terrain is 5, must be a list"),
        (("at = [20, 16]", ""), "enemies.0.at is missing"),
        (("[[enemies]]", "[[foes]]"), "foes is unknown; there are"),
        ((BATTLE, "limit = 5"), "a battle needs both [[allies]] and [[enemies]], or [draw]"),
        (("limit = 50", "limit = 50\ndraw = { allies = 1, enemies = 1, weights = { marine = 1 } }"), "[draw] takes"),
        ((BATTLE, "limit = "), "is not TOML"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_in_one_line(written, change, says):
    name = written(BATTLE.replace(*change))
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        Skirmish(name)
    assert str(caught.value).startswith(f"scenario file {name}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        ("weights = { marine = -1 }", "draw.weights.marine is -1, must be a number above 0"),
        ("weights = { marine = 1 }\nnever_alone = ['medivac']", "never_alone names 'medivac', which has no weight"),
        ("weights = { medivac = 1 }\nnever_alone = ['medivac']", "never_alone names all types"),
        ("weights = { marine = 1, zealot = 1 }", "draw are of several races (protoss, terran), must be of one"),
        ("weights = { marine = 1 }\nsurrounded = 1.5", "draw.surrounded is 1.5, must be a number from 0 to 1"),
    ],
)
def test_what_is_wrong_in_a_draw_is_said_in_one_line(written, draw, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        Skirmish(written(f"limit = 9\n[draw]\nallies = 3\nenemies = 3\n{draw}\n"))


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=re.escape("scenario file nowhere.toml can't be read: No such file")):
        Skirmish("nowhere.toml")


def test_the_interface_of_smac_plays_files_too(written):
    env = StarCraft2Env(written(BATTLE), seed=0)
    assert env.get_env_info()["n_agents"] == 4
    env.reset()
    assert env.step([1, 1, 1, 1])[1] is False


@pytest.mark.parametrize("line", ["march = [9, 16]", "hunts = true", "attack_one = true"])
def test_enemies_that_are_drawn_take_no_orders_from_the_file(written, line):
    with pytest.raises(ValueError, match=re.escape("[draw] takes the place of")):
        Skirmish(written(f"limit = 9\n{line}\n[draw]\nallies = 3\nenemies = 3\nweights = {{ marine = 1 }}\n"))


def test_no_side_of_a_draw_consists_of_types_that_may_not_be_alone(written):
    draw = "weights = { marine = 1, medivac = 3 }\nnever_alone = ['medivac']"
    env = Skirmish(written(f"limit = 9\n[draw]\nallies = 4\nenemies = 2\n{draw}\n"), 256)
    env.reset()
    heals = env.kinds["healing"] > 0
    assert not heals[:, :4].all(axis=1).any()
    assert not heals[:, 4:].all(axis=1).any()
    assert heals[:, 4:].any(axis=1).any()
