"""Medivacs: whom they heal, how much, and how they fly; and who may shoot at them."""

import numpy as np
import pytest

from components.envs import Skirmish, StarCraft2Env

STOP, NORTH, EAST, FIRST = 1, 2, 4, 6
MEDIVAC = 9


def acting(env, actions):
    """These agents' actions; the dead do nothing and the rest stop."""
    chosen = env.available[:, :, STOP].astype(np.int64)
    for agent, action in actions.items():
        chosen[:, agent] = action
    return chosen


@pytest.fixture
def env():
    env = Skirmish("MMM", 1)
    env.reset()
    return env


def test_a_heal_restores_nine_health_a_second_for_a_third_of_that_energy(env, stage, harmless):
    medivac = {"x": 5.0, "y": 17.0, "facing_x": 0.0, "facing_y": -1.0}
    stage(env, {0: {"x": 5.0, "y": 16.0, "health": 25.0}, MEDIVAC: medivac}, {0: harmless(30.0, 16.0)})
    env.step(acting(env, {MEDIVAC: FIRST}))
    assert env.units["health"][0, 0] == pytest.approx(25 + 7 * 0.5625)  # orders take a tick
    spent = 7 * 0.5625 * 0.33
    assert env.units["energy"][0, MEDIVAC] == pytest.approx(50 - spent + 8 * 0.5625 / 16)


@pytest.mark.parametrize(("facing", "ticks"), [((0.26, -0.966), 7), ((1.0, 0.0), 6), ((0.0, 1.0), 5)])
def test_a_medivac_turns_to_within_15_degrees_of_its_patient_before_it_heals(env, stage, harmless, facing, ticks):
    medivac = {"x": 5.0, "y": 17.0, "facing_x": facing[0], "facing_y": facing[1]}
    stage(env, {0: {"x": 5.0, "y": 16.0, "health": 25.0}, MEDIVAC: medivac}, {0: harmless(30.0, 16.0)})
    env.step(acting(env, {MEDIVAC: FIRST}))
    assert env.units["health"][0, 0] == pytest.approx(25 + ticks * 0.5625)


def test_fifty_energy_restore_about_150_health(env, stage, harmless):
    stage(env, {0: {"x": 5.0, "y": 16.0, "health": 1.0}, MEDIVAC: {"x": 5.0, "y": 17.0}}, {0: harmless(30.0, 16.0)})
    restored, ticks = 0.0, 0
    while env.units["energy"][0, MEDIVAC] > 0.1:
        env.units["health"][0, 0] = 1.0
        env.step(acting(env, {MEDIVAC: FIRST}))
        restored += env.units["health"][0, 0] - 1.0
        ticks += 8
    assert restored == pytest.approx((50 + ticks * 0.5625 / 16) / 0.33, rel=0.02)


def test_a_patient_is_not_healed_beyond_its_health(env, stage, harmless):
    stage(env, {0: {"x": 5.0, "y": 16.0, "health": 124.5}, MEDIVAC: {"x": 5.0, "y": 17.0}}, {0: harmless(30.0, 16.0)})
    for _ in range(3):
        env.step(acting(env, {MEDIVAC: FIRST}))
    assert env.units["health"][0, 0] == 125.0


def test_a_medivac_told_to_stop_heals_nobody(env, stage, harmless):
    stage(env, {0: {"x": 5.0, "y": 16.0, "health": 25.0}, MEDIVAC: {"x": 5.0, "y": 17.0}}, {0: harmless(30.0, 16.0)})
    env.step(acting(env, {}))
    assert env.units["health"][0, 0] == 25.0


def test_a_medivac_flies_to_its_patient_over_others_and_gathers_speed(env, stage, harmless):
    allies = {0: {"x": 11.9, "y": 16.0, "health": 25.0}, 2: {"x": 8.0, "y": 16.0}, MEDIVAC: {"x": 6.0, "y": 16.0}}
    stage(env, allies, {0: harmless(30.0, 16.0)})
    env.step(acting(env, {MEDIVAC: FIRST}))
    first = env.units["x"][0, MEDIVAC] - 6.0
    assert 0.0 < first < 0.7 * 7 * 2.75 / 16  # the ground is covered slowly at first
    assert (env.units["x"][0, 2], env.units["y"][0, 2]) == (8.0, 16.0)
    assert env.units["y"][0, MEDIVAC] == 16.0


def test_a_flyer_may_leave_the_ground_but_not_the_map(env, stage, harmless):
    stage(env, {0: {"x": 5.0, "y": 16.0}, MEDIVAC: {"x": 16.0, "y": 22.9}}, {0: harmless(30.0, 16.0)})
    flying = {"pace": 0.17, "facing_x": 0.0, "facing_y": 1.0, "order": 1, "goal_x": 16.0, "goal_y": 30.0}
    for field, value in flying.items():
        env.units[field][0, MEDIVAC] = value
    for _ in range(2):
        if env.available[0, MEDIVAC, NORTH]:
            env.step(acting(env, {MEDIVAC: NORTH}))
    assert env.units["y"][0, MEDIVAC] > 23.5
    assert not env.available[0, MEDIVAC, NORTH]


def test_a_marauder_may_choose_a_medivac_and_goes_on_with_what_it_did(env, stage, harmless):
    enemies = {7: harmless(18.0, 16.0), MEDIVAC: harmless(18.0, 17.0)}
    stage(env, {0: {"x": 13.0, "y": 16.0}, 2: {"x": 13.5, "y": 16.5}}, enemies)
    assert env.available[0, 0, FIRST + 9]
    for _ in range(6):
        env.step(acting(env, {0: FIRST + 9}))
    assert env.units["health"][0, 10 + 9] == 150.0
    assert env.units["order"][0, 0] == 0
    env.step(acting(env, {0: FIRST + 7}))
    env.step(acting(env, {0: FIRST + 9}))
    assert env.units["target"][0, 0] == 17
    assert 125 - 19 <= env.units["health"][0, 17] < 125 - 10  # 10 + 10, less armour of 1; it is being healed
    for _ in range(3):
        env.step(acting(env, {0: STOP, 2: FIRST + 9}))
    assert env.units["health"][0, 10 + 9] in (145.0, 140.0)  # marines shoot at what flies


def test_enemies_shoot_the_armed_before_an_idle_medivac_and_a_busy_one_like_anybody(env, stage):
    allies = {2: {"x": 14.0, "y": 16.0, "health": 30.0}, MEDIVAC: {"x": 15.0, "y": 16.0}}
    stage(env, allies, {0: {"x": 18.5, "y": 16.0, "cooldown": 1e9}})
    env.step(acting(env, {}))
    assert env.units["target"][0, 10] == 2
    stage(env, allies, {0: {"x": 18.5, "y": 16.0, "cooldown": 1e9, "target": -1}})
    env.units["target"][0, MEDIVAC], env.units["order"][0, MEDIVAC] = 2, 2
    env.step(acting(env, {MEDIVAC: FIRST + 2}))
    env.units["target"][0, 10] = -1
    env.step(acting(env, {MEDIVAC: FIRST + 2}))
    assert env.units["target"][0, 10] == MEDIVAC


def test_an_enemy_medivac_heals_the_weakest_of_its_friends(env, stage, harmless):
    enemies = {
        0: harmless(20.0, 16.0, health=30.0),
        1: harmless(22.0, 16.0, health=20.0),
        2: harmless(23.0, 18.0, health=45.0),
        MEDIVAC: harmless(21.0, 17.0),
    }
    stage(env, {2: {"x": 2.0, "y": 16.0}}, enemies)
    env.step(acting(env, {}))
    assert env.units["target"][0, 10 + MEDIVAC] == 11
    assert env.units["health"][0, 10:13].tolist() == [30.0, pytest.approx(20 + 7 * 0.5625), 45.0]  # it turns for a tick


@pytest.mark.parametrize(("tick", "begins"), [(0, 1), (1, 8), (5, 4), (7, 2), (8, 1)])
def test_an_enemy_medivac_looks_for_patients_every_half_second(tick, begins, stage, harmless):
    env = Skirmish("MMM", 1, step_mul=1)
    env.reset()
    env.battles["tick"][0] = tick
    enemies = {0: harmless(20.0, 16.0, health=30.0), MEDIVAC: harmless(21.0, 17.0)}
    stage(env, {2: {"x": 2.0, "y": 16.0}}, enemies)
    waited = 0
    while env.units["target"][0, 10 + MEDIVAC] < 0:
        env.step(acting(env, {}))
        waited += 1
    assert waited == begins


def test_an_enemy_medivac_keeps_its_patient_between_two_looks(stage, harmless):
    env = Skirmish("MMM", 1, step_mul=1)
    env.reset()
    enemies = {
        0: harmless(20.0, 16.0, health=30.0),
        1: harmless(22.0, 16.0, health=10.0),
        MEDIVAC: harmless(21.0, 17.0),
    }
    enemies[MEDIVAC]["target"] = 10
    stage(env, {2: {"x": 2.0, "y": 16.0}}, enemies)
    for _ in range(12):
        env.step(acting(env, {}))
        assert env.units["target"][0, 10 + MEDIVAC] == 10


def test_an_enemy_medivac_follows_its_army(env):
    for _ in range(14):
        env.step(acting(env, {}))
        gone = np.hypot(env.units["x"][0, 10:] - 9.0, env.units["y"][0, 10:] - 16.0)
        alive = env.units["health"][0, 10:19] > 0
        assert gone[9] > gone[:9][alive].min()


def test_the_heuristic_heals_with_medivacs_and_leaves_those_of_the_enemy_to_marines():
    env = StarCraft2Env("MMM", seed=0, heuristic_ai=True)
    env.reset()
    actions = [0] * 10
    healed, ended = set(), False
    while not ended:
        hurt = {i for i, unit in env.agents.items() if i != MEDIVAC and 0 < unit.health < unit.health_max}
        _, ended, _ = env.step(actions)
        assert not {actions[0], actions[1]} & {FIRST + 9}
        if actions[MEDIVAC] >= FIRST:
            assert actions[MEDIVAC] - FIRST in hurt
            healed.add(actions[MEDIVAC] - FIRST)
    assert healed
    assert env.get_unit_by_id(MEDIVAC).energy < 50 or env.get_unit_by_id(MEDIVAC).health == 0
