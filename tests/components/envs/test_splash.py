"""Weapons that hurt more than their target."""

import numpy as np
import pytest

from components.envs import Skirmish

STOP, EAST, FIRST = 1, 4, 6


def acting(env, action, agent=0):
    """The one agent's action; the dead do nothing and the rest stop."""
    actions = env.available[:, :, STOP].astype(np.int64)
    actions[:, agent] = action
    return actions


@pytest.mark.parametrize(("ruleset", "hits"), [("liberty", (20, 20)), ("lotv", (15, 10))])
def test_a_colossus_burns_all_on_a_line_across_its_shot_twice(ruleset, hits, stage, harmless):
    env = Skirmish("1c3s5z", 1, ruleset=ruleset)
    env.reset()
    enemies = {
        4: harmless(16.0, 16.0, health=1e6),
        5: harmless(16.0, 17.8, health=1e6),  # its edge is 1.3 away
        6: harmless(16.0, 18.6, health=1e6),  # and this one's 2.1
        7: harmless(17.0, 16.0, health=1e6),  # behind
        1: harmless(16.0, 14.3, health=1e6),  # armored, not light
    }
    env.kinds["speed"][0, 9:] = 0.0  # or they would come and fetch it
    stage(env, {0: {"x": 9.0, "y": 16.0}}, enemies)
    shields = env.units["shield"][0].copy()
    for _ in range(3):
        env.step_unchecked(acting(env, FIRST + 4))
    lost = shields - env.units["shield"][0] + np.where(env.units["health"][0] > 1e5, 1e6 - env.units["health"][0], 0.0)
    light, armored = hits
    through = 2 * light
    assert lost[9 + 4] == lost[9 + 5] == through
    assert lost[9 + 1] == 2 * armored
    assert lost[9 + 6] == lost[9 + 7] == 0


@pytest.mark.parametrize("other", [STOP, EAST, FIRST + 5])
@pytest.mark.parametrize(("ticks_drawn", "ends_burn"), [(1, [5]), (4, [5]), (5, [5, 9]), (13, [5, 9])])
def test_another_order_ends_the_drawing_of_a_beam_but_what_is_drawn_burns(
    other, ticks_drawn, ends_burn, stage, harmless
):
    env = Skirmish("1c3s5z", 1, step_mul=1, ruleset="liberty")
    env.reset()
    env.kinds["speed"][0, 9:] = 0.0
    enemies = {4: harmless(16.0, 16.0), 5: harmless(16.0, 17.6), 6: harmless(16.0, 14.4)}
    stage(env, {0: {"x": 11.0, "y": 16.0}}, enemies)
    shields = []
    while env.units["hits_left"][0, 0] == 0:
        env.step(acting(env, FIRST + 4))
    for tick in range(13):
        shields.append(env.units["shield"][0, 13:16].copy())
        env.step(acting(env, FIRST + 4 if tick + 1 < ticks_drawn else other))
    ticks, who = np.nonzero(np.diff(shields, axis=0))
    falls = {unit: (ticks[who == unit] + 1).tolist() for unit in range(3)}
    # Two ends of eleven points, two in a tick, a quarter of a second before they hurt; the target at the end of all.
    assert falls == {0: [12], 1: ends_burn, 2: ends_burn}
    at_an_end = 50.0 - 20.0 * len(ends_burn)
    assert shields[-1].tolist() == [10.0, at_an_end, at_an_end]


def test_a_beam_of_an_enemy_is_drawn_until_it_attacks_another(stage):
    env = Skirmish("1c3s5z", 1, step_mul=1)
    env.reset()
    env.kinds["speed"][0, :] = 0.0
    enemy = env.n_agents + next(e for e, unit in enumerate(env.scenario.enemies) if unit.name == "colossus")
    stage(env, {4: {"x": 12.0, "y": 16.0}, 5: {"x": 30.0, "y": 16.0}}, {enemy - env.n_agents: {"x": 16.0, "y": 16.0}})
    while env.units["hits_left"][0, enemy] == 0:
        env.step(acting(env, STOP, agent=4))
    assert env.units["drawn"][0, enemy] == 0
    env.step(acting(env, STOP, agent=4))
    assert env.units["drawn"][0, enemy] == 1
    env.units["x"][0, 4], env.units["x"][0, 5] = 30.0, 12.0  # its target leaves, and another comes in reach
    for _ in range(3):
        env.step(acting(env, STOP, agent=4))
    assert env.units["target"][0, enemy] == 5
    assert env.units["drawn"][0, enemy] == 1


def test_a_colossus_shoots_at_who_is_within_45_degrees_of_where_it_looks(stage, harmless):
    env = Skirmish("1c3s5z", 1, step_mul=1)
    env.reset()
    env.kinds["speed"][0, 9:] = 0.0
    stage(env, {0: {"x": 11.0, "y": 16.0, "facing_x": 0.0, "facing_y": 1.0}}, {4: harmless(16.0, 16.0)})
    ticks = 0
    while env.units["hits_left"][0, 0] == 0:
        env.step(acting(env, FIRST + 4))
        ticks += 1
    assert ticks == 4  # the order's latency, one tick of turning by 62 degrees, in which it aims, and 1.3 of aiming


def test_a_colossus_walks_over_others(stage, harmless):
    env = Skirmish("1c3s5z", 1)
    env.reset()
    stage(
        env, {0: {"x": 8.0, "y": 16.0}, 1: {"x": 8.5, "y": 16.0}, 2: {"x": 8.9, "y": 16.0}}, {0: harmless(30.0, 16.0)}
    )
    env.step(acting(env, STOP))
    x = env.units["x"][0]
    assert x[0] == 8.0
    assert x[2] - x[1] > 1.0


def test_a_baneling_takes_35_from_each_of_three_zealots_and_nothing_from_its_friends(stage):
    env = Skirmish("so_many_baneling", 1)
    env.reset()
    allies = {0: {"x": 10.0, "y": 12.0}, 1: {"x": 9.2, "y": 12.0}, 2: {"x": 10.0, "y": 13.0}, 3: {"x": 6.0, "y": 9.5}}
    enemies = {0: {"x": 10.9, "y": 12.0}, 1: {"x": 10.9, "y": 16.0, "goal_y": 16.0, "cooldown": 1e9}}
    stage(env, allies, enemies)
    env.kinds["speed"][0, 8:] = 0.0
    env.step(acting(env, STOP))
    assert env.units["shield"][0, :4].tolist() == [15.0, 15.0, 15.0, 50.0]
    assert env.units["health"][0, 7] == 0.0
    assert env.units["health"][0, 8] == 30.0
    assert env.reward[0] == pytest.approx((30 + 10) / 74)  # that it did so itself makes no difference


def test_a_baneling_that_is_killed_bursts_too_and_may_set_off_others(stage):
    env = Skirmish("bane_vs_bane", 1)
    env.reset()
    allies = {0: {"x": 16.0, "y": 14.0, "health": 3.0}, 4: {"x": 14.5, "y": 16.5}, 5: {"x": 8.0, "y": 14.0}}
    enemies = {0: {"x": 16.8, "y": 14.0}, 20: {"x": 16.0, "y": 16.0, "health": 15.0}, 21: {"x": 24.0, "y": 16.0}}
    stage(env, allies, enemies)
    env.kinds["speed"][0, :] = 0.0
    for _ in range(2):
        env.step(acting(env, STOP, agent=5))
    # The zergling bites ours to death, which kills it and a baneling next to it, which kills another zergling.
    assert env.units["health"][0, [0, 24, 44, 4]].tolist() == [0.0] * 4
    assert env.units["health"][0, [5, 45]].tolist() == [35.0, 30.0]


def test_an_order_to_attack_sends_an_allied_baneling_to_its_death(stage):
    env = Skirmish("bane_vs_bane", 1)
    env.reset()
    enemies = {e: {"x": 17.0 + 0.8 * e, "y": 14.0, "cooldown": 1e9} for e in range(3)}
    stage(env, {0: {"x": 16.0, "y": 14.0}, 5: {"x": 8.0, "y": 14.0}}, enemies)
    while env.units["health"][0, 0] > 0.0:
        env.step(acting(env, FIRST + 1))
    assert (env.units["health"][0, 24:27] == 0.0).all()
