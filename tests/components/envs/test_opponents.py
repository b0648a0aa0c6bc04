"""Whoever commands the enemies in place of the game."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from components.envs import Skirmish


def standing(opposition):
    """Enemies that stop wherever they are, or do nothing once they are dead."""
    return opposition.available[:, :, 1].astype(np.int64)


def attacking_the_first(opposition):
    """Attack the first agent in reach, else go north."""
    reach = opposition.available[:, :, 6:]
    alive = opposition.available[:, :, 1]
    return np.where(reach.any(axis=2), 6 + reach.argmax(axis=2), np.where(opposition.available[:, :, 2], 2, alive))


def test_enemies_do_what_their_commander_says_and_nothing_else():
    env = Skirmish("3m", 2, opponent=standing)
    env.reset()
    before = env.units["x"].copy()
    for _ in range(10):
        env.step(np.ones((2, 3), dtype=np.int64))
    assert (env.units["x"] == before).all()


def test_the_opposition_sees_the_map_turned_by_half():
    seen = []

    def watching(opposition):
        seen.append((opposition.obs.copy(), opposition.available.copy(), opposition.units["x"].copy()))
        return standing(opposition)

    env = Skirmish("3m", 1, opponent=watching)
    env.reset()
    obs, available, x = env.obs.copy(), env.available.copy(), env.units["x"].copy()
    env.step(np.ones((1, 3), dtype=np.int64))
    # The sides of 3m start as mirror images, but for agents being numbered by position.
    theirs, mine = seen[0][0][0], obs[0]
    assert {row.tobytes() for row in theirs.round(4)} == {row.tobytes() for row in mine.round(4)} or np.allclose(
        np.sort(theirs, axis=None), np.sort(mine, axis=None), atol=1e-5
    )
    assert (seen[0][1] == available).all()
    np.testing.assert_array_equal(np.sort(seen[0][2][0, :3]), np.sort(32 - x[0, 3:]))


@pytest.mark.parametrize(("action", "dx", "dy"), [(2, 0, -1), (3, 0, 1), (4, -1, 0), (5, 1, 0)])
def test_the_opposition_s_north_is_the_agents_south(action, dx, dy):
    env = Skirmish("3m", 1, opponent=lambda opposition: np.full((1, 3), action))
    env.reset()
    x, y = env.units["x"][0, 3:].copy(), env.units["y"][0, 3:].copy()
    env.step(np.ones((1, 3), dtype=np.int64))
    moved_x, moved_y = env.units["x"][0, 3:] - x, env.units["y"][0, 3:] - y
    assert (moved_x * dx + moved_y * dy).min() > 0.4
    assert np.abs(moved_x * dy + moved_y * dx).max() < 0.5


def test_an_attack_of_the_opposition_hurts_the_agent_it_names(stage):
    env = Skirmish("3m", 1, opponent=attacking_the_first)
    env.reset()
    stage(env, {1: {"x": 12.0, "y": 16.0}}, {0: {"x": 16.0, "y": 16.0}})
    for _ in range(4):
        env.step(np.array([[0, 1, 0]]))
    assert env.units["health"][0, 1] < 45.0


def test_healers_of_the_opposition_heal_the_friends_they_name(stage):
    env = Skirmish(
        "MMM", 1, opponent=lambda opposition: np.where(opposition.available[:, :, 6], 6, standing(opposition))
    )
    env.reset()
    stage(env, {0: {"x": 2.0, "y": 9.0}}, {0: {"x": 25.0, "y": 16.0, "health": 20.0}, 9: {"x": 25.0, "y": 18.0}})
    for _ in range(6):
        env.step(env.available[:, :, 1].astype(np.int64))
    assert env.units["health"][0, 10] > 35.0


def test_the_same_policy_on_both_sides_wins_as_often_as_it_loses():
    def nearest(available, units, own):
        dx = units["x"][:, :own, None] - units["x"][:, None, own:]
        dy = units["y"][:, :own, None] - units["y"][:, None, own:]
        far = np.where(available[:, :, 6:], np.hypot(dx, dy), np.inf)
        stop = available[:, :, 1].astype(np.int64)
        east = np.where(available[:, :, 4], 4, stop)
        return np.where(np.isfinite(far.min(axis=2)), 6 + far.argmin(axis=2), east)

    env = Skirmish(
        "8m",
        256,
        start_jitter=0.25,
        seed=3,
        opponent=lambda other: nearest(other.available, other.units, other.n_agents),
    )
    env.reset()
    ended, won = np.zeros(256, dtype=np.bool_), np.zeros(256, dtype=np.bool_)
    while not ended.all():
        env.step(nearest(env.available, env.units, 8))
        over = env.terminated | env.truncated
        won |= env.won & ~ended
        ended |= over
        env.reset(over)
    assert 0.36 < won.mean() < 0.62  # a fair coin within four standard deviations, but for a few draws


def test_the_example_of_the_documentation_runs(capsys):
    runpy.run_path(str(Path(__file__).parents[3] / "docs" / "examples" / "scenarios" / "duel.py"))
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("script against script: ")
    assert 30 < int(first.split()[-2].rstrip("%")) < 70
    assert second == "random against script: 0% won"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (np.ones((2, 3)), "the opponent's actions are float64 (2, 3), must be integers (2, 3)"),
        (np.ones((2, 2), dtype=np.int64), "the opponent's actions are int64 (2, 2), must be integers (2, 3)"),
        (np.full((2, 3), 6), "battle 0, enemy 0: the opponent's action 6 is not available, of these one is: [1, 2, 3,"),
        (np.full((2, 3), -1), "the opponent's action -1 is not available"),
        (np.full((2, 3), 99), "the opponent's action 99 is not available"),
    ],
)
def test_an_answer_that_makes_no_sense_is_refused_and_nothing_is_stepped(answer, says):
    env = Skirmish("3m", 2, opponent=lambda opposition: answer)
    env.reset()
    before = env.units.tobytes()
    with pytest.raises(ValueError, match=re.escape(says)):
        env.step(np.ones((2, 3), dtype=np.int64))
    assert env.units.tobytes() == before


def test_battles_that_are_over_ask_for_no_sensible_answer():
    env = Skirmish("3m", 2, opponent=lambda opposition: np.where(opposition.over[:, None], -7, standing(opposition)))
    env.reset(np.array([True, False]))
    env.step_unchecked(np.ones((2, 3), dtype=np.int64))


# --- Difficulty -----------------------------------------------------------------------------------------------------


def test_easier_enemies_give_random_agents_more(at_random):
    def mean_return(difficulty):
        env = Skirmish("8m", 128, difficulty=difficulty)
        env.reset()
        rng = np.random.default_rng(0)
        total, ended = 0.0, 0
        for _ in range(120):
            env.step(at_random(env, rng))
            total += env.reward.sum()
            ended += env.battles["over"].sum()
            env.reset(env.terminated | env.truncated)
        return total / ended

    returns = [mean_return(difficulty) for difficulty in (1, 2, 4, 7)]
    assert returns[0] > 1.5 * returns[1]
    assert returns[1] > 1.2 * returns[2]
    assert returns[2] > 1.05 * returns[3]


def test_above_seven_nothing_changes(at_random):
    envs = [Skirmish("2s3z", 1, difficulty=difficulty, seed=1) for difficulty in (7, 8, 10)]
    for env in envs:
        env.reset()
    for step in range(30):
        for env in envs:
            env.step(at_random(env, np.random.default_rng(step)))
    assert len({env.units.tobytes() for env in envs}) == 1


@pytest.mark.parametrize(("difficulty", "helped"), [(7, True), (6, False)])
def test_a_hurt_enemy_calls_its_friends_from_seven_on(difficulty, helped, stage):
    env = Skirmish("3s_vs_3z", 1, difficulty=difficulty)
    env.reset()
    zealots = {e: {"x": 16.0 + e, "y": 16.0, "goal_x": 16.0 + e, "goal_y": 16.0} for e in range(2)}
    stage(env, {0: {"x": 16.0 - 7.2, "y": 16.0, "order": 2, "target": 3}}, zealots)
    for _ in range(3):
        env.step_unchecked(np.array([[6, 0, 0]]))
    assert env.units["target"][0, 3] == 0
    assert (env.units["target"][0, 4] == 0) == helped


@pytest.mark.parametrize(("difficulty", "answers"), [(5, True), (4, False)])
def test_an_enemy_goes_for_who_hurts_it_from_afar_from_five_on(difficulty, answers, stage):
    env = Skirmish("3s_vs_3z", 1, difficulty=difficulty)
    env.reset()
    stage(
        env,
        {0: {"x": 16.0 - 7.2, "y": 16.0, "order": 2, "target": 3}},
        {0: {"x": 16.0, "y": 16.0, "goal_x": 16.0, "goal_y": 16.0}},
    )
    env.kinds["scan"][0, 3] = 5.0
    for _ in range(2):
        env.step_unchecked(np.array([[6, 0, 0]]))
    assert (env.units["attacker"][0, 3], env.units["target"][0, 3] == 0) == (0, answers)


@pytest.mark.parametrize(("difficulty", "chosen"), [(6, 1), (5, 0)])
def test_one_that_chases_takes_who_comes_in_reach_from_six_on(difficulty, chosen, stage):
    env = Skirmish("3m", 1, difficulty=difficulty, step_mul=1)
    env.reset()
    allies = {0: {"x": 12.0, "y": 16.0}, 1: {"x": 18.0, "y": 14.0}}
    stage(env, allies, {0: {"x": 18.0, "y": 16.0, "target": 0}})
    env.step(env.available[:, :, 1].astype(np.int64))
    assert env.units["target"][0, 3] == chosen


@pytest.mark.parametrize(("difficulty", "chosen"), [(6, 1), (5, 0)])
def test_an_enemy_leaves_who_does_not_attack_it_for_who_does_from_six_on(difficulty, chosen, stage):
    env = Skirmish("3m", 1, difficulty=difficulty, step_mul=1)
    env.reset()
    allies = {0: {"x": 16.0, "y": 16.0}, 1: {"x": 18.0, "y": 12.0, "order": 2, "target": 3}}
    stage(env, allies, {0: {"x": 18.0, "y": 16.0, "target": 0, "cooldown": 9.0}})
    env.step_unchecked(np.array([[1, 6, 0]]))
    assert env.units["target"][0, 3] == chosen


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({0: {"order": 2, "target": 3}}, "its target attacks it too"),
        ({3: {"aiming": True, "windup": 5.0}}, "it is about to shoot"),
        ({1: {"y": 10.0}}, "who attacks it is out of its reach"),
        ({1: {"target": 4}}, "the other attacks a friend of it"),
    ],
)
def test_an_enemy_keeps_its_target(fields, why, stage):
    env = Skirmish("3m", 1, step_mul=1)
    env.reset()
    allies = {0: {"x": 16.0, "y": 16.0}, 1: {"x": 18.0, "y": 12.0, "order": 2, "target": 3}}
    enemies = {0: {"x": 18.0, "y": 16.0, "target": 0, "cooldown": 9.0}, 1: {"x": 22.0, "y": 12.0, "cooldown": 9.0}}
    for i, changed in fields.items():
        (allies if i < 3 else enemies)[i if i < 3 else i - 3].update(changed)
    stage(env, allies, enemies)
    env.step_unchecked(np.array([[6 if 0 in fields else 1, 6, 0]]))
    assert env.units["target"][0, 3] == 0, why


def test_of_two_who_attack_an_enemy_it_takes_the_nearer(stage):
    env = Skirmish("3m", 1, step_mul=1)
    env.reset()
    attack = {"order": 2, "target": 3}
    allies = {0: {"x": 16.5, "y": 16.0}, 1: {"x": 18.0, "y": 12.0} | attack, 2: {"x": 18.0, "y": 19.0} | attack}
    stage(env, allies, {0: {"x": 18.0, "y": 16.0, "target": 0, "cooldown": 9.0}})
    env.step_unchecked(np.array([[1, 6, 6]]))
    assert env.units["target"][0, 3] == 2


@pytest.mark.parametrize(("difficulty", "ticks"), [(1, 32), (2, 16), (3, 8), (4, 1)])
def test_easy_enemies_look_round_seldom(difficulty, ticks, stage):
    env = Skirmish("3m", 1, difficulty=difficulty, step_mul=1)
    env.reset()
    env.step(np.ones((1, 3), dtype=np.int64))
    stage(env, {0: {"x": 14.0, "y": 16.0}}, {0: {"x": 17.0, "y": 16.0, "cooldown": 1e9}})
    waited = 1
    while env.units["target"][0, 3] < 0:
        env.step(env.available[:, :, 1].astype(np.int64))
        waited += 1
    assert waited == ticks + 1


@pytest.mark.parametrize("difficulty", [0, 11])
def test_a_difficulty_that_there_is_not_is_refused(difficulty):
    with pytest.raises(ValueError, match=f"difficulty is {difficulty}, must be at"):
        Skirmish("3m", difficulty=difficulty)
