"""How units walk, fight and keep apart, against the game's figures."""

import numpy as np
import pytest

from components.envs import Skirmish

STOP, NORTH, SOUTH, EAST, WEST, FIRST = 1, 2, 3, 4, 5, 6


def acting(env, action, agent=0):
    """The one agent's action; the dead do nothing and the rest stop."""
    actions = env.available[:, :, STOP].astype(np.int64)
    actions[:, agent] = action
    return actions


@pytest.mark.parametrize(("name", "agent", "cells"), [("3m", 0, 1.125), ("2s3z", 0, 1.4766), ("2s3z", 2, 1.125)])
def test_a_step_of_walking_is_as_long_as_the_unit_is_fast(name, agent, cells, stage, harmless):
    env = Skirmish(name, 1)
    env.reset()
    stage(env, {agent: {"x": 8.0, "y": 12.0}}, {0: harmless(30.0, 20.0)})
    env.step(acting(env, EAST, agent))
    assert env.units["x"][0, agent] == pytest.approx(8.0 + cells * 7 / 8, abs=1e-3)  # orders take a tick
    before = env.units["x"][0, agent]
    env.step(acting(env, EAST, agent))
    assert env.units["x"][0, agent] == pytest.approx(before + cells, abs=1e-3)
    assert env.units["y"][0, agent] == 12.0


def test_an_about_turn_costs_no_time_to_who_walks(stage, harmless):
    env = Skirmish("3m", 1)
    env.reset()
    stage(env, {0: {"x": 8.0, "y": 12.0}}, {0: harmless(30.0, 20.0)})
    env.step(acting(env, WEST))
    assert env.units["x"][0, 0] == pytest.approx(8.0 - (8 - 1) * 2.25 / 16, abs=1e-3)


def test_an_about_turn_delays_a_shot_by_two_ticks(stage, harmless):
    def first_shot(facing):
        env = Skirmish("3m", 1, step_mul=1)
        env.reset()
        marine = {"x": 8.0, "y": 12.0, "facing_x": facing, "facing_y": 0.0, "order": 2, "target": 3}
        stage(env, {0: marine}, {0: harmless(12.0, 12.0)})
        return shots(env, 3, 1)[0]

    assert first_shot(-1.0) - first_shot(1.0) == 2


def test_stop_ends_a_walk_within_a_tick(stage, harmless):
    env = Skirmish("3m", 1)
    env.reset()
    stage(env, {0: {"x": 8.0, "y": 12.0}}, {0: harmless(30.0, 20.0)})
    env.step(acting(env, EAST))
    before = env.units["x"][0, 0]
    env.step(acting(env, STOP))
    assert env.units["x"][0, 0] == pytest.approx(before + 2.25 / 16)


def shots(env, target, count):
    """Ticks (of an environment with one tick per step) in which agent 0 hurts the target."""
    fired, tick = [], 0
    while len(fired) < count:
        before = env.units["health"][0, target]
        env.step(acting(env, FIRST))
        env.battles["steps"][0] = 0
        tick += 1
        assert tick < 40 * count
        if env.units["health"][0, target] < before:
            fired.append(tick)
    return np.array(fired)


def test_a_marine_shoots_every_14_27_ticks_on_average(stage, harmless):
    env = Skirmish("3m", 1, step_mul=1)
    env.reset()
    stage(env, {0: {"x": 14.0, "y": 16.0}}, {0: harmless(18.0, 16.0, health=1e6)})
    gaps = np.diff(shots(env, 3, 501))
    assert gaps.mean() == pytest.approx(13.7728 + 0.5, abs=0.1)
    assert gaps.min() >= 12
    assert gaps.max() <= 17
    assert env.units["health"][0, 3] == 1e6 - 501 * 6


def test_a_fresh_cooldown_is_seen_in_the_state(stage, harmless):
    env = Skirmish("3m", 1, step_mul=1)
    env.reset()
    stage(env, {0: {"x": 14.0, "y": 16.0}}, {0: harmless(18.0, 16.0, health=1e6)})
    for _ in range(20):
        shots(env, 3, 1)
        # Period 13.77, less the aim of .8, -1 to 2 at random, and up to a tick for being seen late.
        assert 10.9 / 15 <= env.state[0, 1] <= 15 / 15


def test_shooting_needs_the_range_of_the_weapon_not_of_the_action(stage, harmless):
    env = Skirmish("3m", 1, step_mul=1)
    env.reset()
    stage(env, {0: {"x": 12.0, "y": 16.0}}, {0: harmless(17.9, 16.0)})
    assert env.available[0, 0, FIRST]
    shots(env, 3, 1)
    assert 5.4 < env.units["x"][0, 3] - env.units["x"][0, 0] <= 5.75


def test_a_target_that_slips_away_during_the_aim_is_still_shot(stage, harmless):
    env = Skirmish("2s3z", 1, step_mul=1)
    env.reset()
    reach = 6 + 2 * 0.625
    stage(env, {0: {"x": 10.0, "y": 16.0}}, {0: harmless(10.0 + reach - 0.01, 16.0)})
    for _ in range(2):
        env.step(acting(env, STOP))
    env.units["order"][0, 0], env.units["target"][0, 0] = 2, 5
    env.step_unchecked(np.array([[FIRST, 0, 0, 0, 0]]))
    assert env.units["aiming"][0, 0]
    env.units["x"][0, 5] += 0.9
    for _ in range(3):
        env.step_unchecked(np.array([[FIRST, 0, 0, 0, 0]]))
    assert env.units["hits_left"][0, 0] == 1
    assert env.units["x"][0, 0] == 10.0


def test_a_zealot_strikes_twice_and_armour_softens_each_blow(stage, harmless):
    env = Skirmish("2s3z", 1, step_mul=1)
    env.reset()
    stage(env, {2: {"x": 14.0, "y": 16.0}}, {2: harmless(15.0, 16.0)})
    health, shield = [], []
    for tick in range(60):
        if tick == 15:
            env.units["shield"][0, 7] = 0.0
        env.step(acting(env, FIRST + 2, agent=2))
        health.append(env.units["health"][0, 7])
        shield.append(env.units["shield"][0, 7])
    assert shield[14] == 50 - 16
    falls = -np.diff(health)
    blows = np.flatnonzero(falls)
    assert falls[blows[:4]].tolist() == [7, 7, 7, 7]
    assert (blows[1] - blows[0], blows[3] - blows[2]) == (5, 5)  # 4.48 ticks
    assert 17 <= blows[2] - blows[0] <= 22


def test_a_dead_zealot_strikes_no_second_blow_but_a_missile_arrives(stage, harmless):
    env = Skirmish("2s3z", 1, step_mul=1)
    env.reset()
    enemy = harmless(15.0, 16.0, shield=50.0)
    under_way = {"hits_left": 1, "hit_in": 1.5, "hit_target": 7, "health": 0.0, "shield": 0.0}
    stage(env, {1: {"x": 2.0}, 2: under_way}, {2: enemy})
    env.step(acting(env, STOP, agent=1))
    env.step(acting(env, STOP, agent=1))
    assert env.units["shield"][0, 7] == 50.0
    stage(env, {0: under_way, 1: {"x": 2.0}}, {2: enemy})
    env.step(acting(env, STOP, agent=1))
    assert env.units["shield"][0, 7] == 50.0
    env.step(acting(env, STOP, agent=1))
    assert env.units["shield"][0, 7] == 50.0 - 13.0


@pytest.mark.parametrize(("ruleset", "zealot"), [("liberty", 6.0), ("lotv", 5.5)])
def test_marines_of_both_rulesets_notice_at_six_cells_and_zealots_do_not(ruleset, zealot):
    assert (Skirmish("3m", 1, ruleset=ruleset).kinds["scan"] == 6.0).all()
    assert (Skirmish("2m_vs_1z", 1, ruleset=ruleset).kinds["scan"] == [6.0, 6.0, zealot]).all()


@pytest.mark.parametrize(("ruleset", "hit"), [("liberty", 14), ("lotv", 18)])
def test_a_stalker_hurts_the_armored_more(ruleset, hit, stage, harmless):
    env = Skirmish("2s3z", 1, ruleset=ruleset)
    env.reset()
    stage(env, {0: {"x": 12.0, "y": 16.0}}, {0: harmless(16.0, 16.0), 2: harmless(16.0, 18.0)})
    env.step(acting(env, FIRST))
    env.step(acting(env, FIRST))
    assert env.units["shield"][0, 5] == 80 - hit
    stage(env, {0: {"cooldown": 0.0}}, {0: {}, 2: {}})
    env.step(acting(env, FIRST + 2))
    env.step(acting(env, FIRST + 2))
    assert env.units["shield"][0, 7] == 50 - {14: 10, 18: 13}[hit]


def test_what_a_shield_cannot_absorb_is_softened_by_armour(stage, harmless):
    env = Skirmish("2s3z", 1)
    env.reset()
    stage(env, {0: {"x": 12.0, "y": 16.0}}, {0: harmless(16.0, 16.0, shield=5.0)})
    env.step(acting(env, FIRST))
    env.step(acting(env, FIRST))
    assert env.units["shield"][0, 5] == 0.0
    assert env.units["health"][0, 5] == 80 - (18 - 5 - 1)


def test_armour_leaves_half_a_point(stage, harmless):
    env = Skirmish("2s3z", 1)
    env.reset()
    stage(env, {0: {"x": 12.0, "y": 16.0}}, {0: harmless(16.0, 16.0, shield=17.9)})
    env.step(acting(env, FIRST))
    env.step(acting(env, FIRST))
    assert env.units["health"][0, 5] == 79.5


def test_a_shield_recovers_an_eighth_per_tick_after_160_quiet_ticks(stage, harmless):
    env = Skirmish("2s3z", 1, step_mul=1)
    env.reset()
    stage(env, {0: {"x": 2.0, "shield": 79.8, "quiet": 1}}, {0: harmless(30.0, 16.0)})
    shields = []
    for _ in range(165):
        env.battles["steps"][0] = 0
        env.step(acting(env, STOP))
        shields.append(env.units["shield"][0, 0])
    # It was hurt in the tick before the first of these.
    assert shields[158] == 79.8
    assert shields[159] == pytest.approx(79.925)
    assert shields[160] == shields[164] == 80.0


def test_an_idle_ally_under_fire_neither_flees_nor_shoots_back(stage):
    env = Skirmish("3m", 1)
    env.reset()
    stage(env, {0: {"x": 14.0, "y": 16.0}}, {0: {"x": 18.0, "y": 16.0}})
    for _ in range(6):
        env.step(acting(env, STOP))
    assert env.units["health"][0, 0] <= 45 - 3 * 6
    assert env.units["health"][0, 3] == 45
    assert (env.units["x"][0, 0], env.units["y"][0, 0]) == (14.0, 16.0)


def test_two_hits_of_a_marine_leave_33_of_45(stage, harmless):
    env = Skirmish("3m", 1)
    env.reset()
    stage(env, {0: {"x": 14.0, "y": 16.0}}, {0: harmless(18.0, 16.0)})
    while env.units["health"][0, 3] > 33:
        env.step(acting(env, FIRST))
    assert env.obs[0, 0, 8] == np.float32(33 / 45)


def test_a_shooter_whose_target_died_waits_for_the_next_order(stage, harmless):
    env = Skirmish("3m", 1, step_mul=64)
    env.reset()
    stage(env, {0: {"x": 14.0, "y": 16.0}}, {0: harmless(17.0, 16.0, health=3.0), 1: harmless(17.0, 17.0)})
    env.step(acting(env, FIRST))
    assert env.units["health"][0, 3:5].tolist() == [0, 45]
    assert env.units["order"][0, 0] == 0


def test_a_repeated_order_does_not_interrupt_the_aim_but_another_does(stage, harmless):
    env = Skirmish("2s3z", 1, step_mul=1)
    env.reset()
    aiming = {"x": 12.0, "y": 16.0, "order": 2, "target": 5, "aiming": True, "windup": 2.0, "cooldown": 0.0}
    for action, still in ((FIRST, True), (FIRST + 1, False), (STOP, False), (WEST, False)):
        stage(env, {0: aiming}, {0: harmless(16.0, 16.0), 1: harmless(16.0, 18.0)})
        env.step(acting(env, action))
        assert env.units["aiming"][0, 0] == still


def test_nobody_is_hurt_before_the_armies_meet(stopping):
    env = Skirmish("3m", 8)
    env.reset()
    for step in range(1, 10):
        env.step(stopping(env, None))
        hurt = (env.units["health"][:, :3] < 45).any(axis=1)
        if step < 5:
            assert not hurt.any()
    assert hurt.all()


def test_enemies_gather_at_the_start_point_and_stand_if_nobody_is_there(stopping):
    env = Skirmish("8m", 1)
    env.reset()
    for i in range(8):
        env.units["x"][0, i] = 0.5
        env.units["y"][0, i] = 8.5 if i % 2 else 23.5
    for _ in range(40):
        env.step(stopping(env, None))
    x, y = env.units["x"][0, 8:].copy(), env.units["y"][0, 8:].copy()
    assert np.hypot(x - 9.0, y - 16.0).max() < 2.5
    for _ in range(5):
        env.step(stopping(env, None))
    assert np.hypot(env.units["x"][0, 8:] - x, env.units["y"][0, 8:] - y).max() < 0.05
    assert (env.units["health"][0] == 45).all()


def test_an_enemy_hit_from_beyond_its_scan_goes_for_who_did_it(stage):
    env = Skirmish("3s_vs_3z", 1)
    env.reset()
    zealots = {e: {"x": 16.0 + e, "y": 16.0, "goal_x": 16.0 + e, "goal_y": 16.0} for e in range(2)}
    stage(env, {0: {"x": 16.0 - 7.2, "y": 16.0}}, zealots)
    env.step(acting(env, STOP))
    assert env.units["target"][0, 3:5].tolist() == [-1, -1]
    assert env.units["x"][0, 3] == 16.0
    env.units["order"][0, 0], env.units["target"][0, 0] = 2, 3
    for _ in range(3):
        env.step_unchecked(acting(env, FIRST))
    # Its friend next to it was called for help.
    assert env.units["target"][0, 3:5].tolist() == [0, 0]
    assert env.units["x"][0, 3] < 15.5


def test_an_enemy_takes_the_nearest_and_keeps_it(stage):
    env = Skirmish("3m", 1)
    env.reset()
    stage(env, {0: {"x": 14.0, "y": 16.0}, 1: {"x": 13.5, "y": 17.0}}, {0: {"x": 18.0, "y": 16.0, "cooldown": 1e9}})
    env.step(acting(env, STOP))
    assert env.units["target"][0, 3] == 0
    env.units["x"][0, 1] = 16.0
    env.step(acting(env, STOP))
    assert env.units["target"][0, 3] == 0


def test_an_enemy_does_not_run_past_one_to_reach_another(stage):
    env = Skirmish("2s3z", 1)
    env.reset()
    zealot = {"x": 18.0, "y": 16.0, "cooldown": 1e9, "target": 0}
    stage(env, {0: {"x": 14.0, "y": 16.0}, 1: {"x": 17.0, "y": 16.0}}, {2: zealot})
    env.step(acting(env, STOP))
    assert env.units["target"][0, 7] == 1


def test_only_one_of_two_marines_that_would_kill_each_other_does(stage):
    env = Skirmish("3m", 64, step_mul=1)
    env.reset()
    ready = {"health": 6.0, "aiming": True, "windup": 0.5}
    for b in range(64):
        stage(
            env,
            {0: {"x": 14.0, "y": 16.0, "order": 2, "target": 3} | ready},
            {0: {"x": 18.0, "y": 16.0, "target": 0} | ready},
            b,
        )
    env.step(acting(env, FIRST))
    assert env.terminated.all()
    assert 15 <= env.won.sum() <= 49  # a fair coin


def test_units_on_one_spot_part(stage, harmless):
    env = Skirmish("8m", 1)
    env.reset()
    stage(env, {i: {"x": 6.0, "y": 12.0} for i in range(8)}, {0: harmless(30.0, 20.0)})
    for _ in range(12):
        env.step(acting(env, STOP))
    x, y = env.units["x"][0, :8], env.units["y"][0, :8]
    gaps = np.hypot(x[:, None] - x[None, :], y[:, None] - y[None, :]) + 9 * np.eye(8)
    assert gaps.min() > 0.75 - 0.1


def test_one_who_walks_yields_more_than_one_who_fights(stage, harmless):
    env = Skirmish("3m", 1, step_mul=1)
    env.reset()
    fighter = {"x": 14.0, "y": 16.0, "order": 2, "target": 3, "cooldown": 1e9}
    idler = {"x": 14.0, "y": 16.5}
    stage(env, {0: fighter, 1: idler}, {0: harmless(17.0, 16.0)})
    env.step_unchecked(np.array([[FIRST, STOP, 0]]))
    given = 16.0 - env.units["y"][0, 0]
    taken = env.units["y"][0, 1] - 16.5
    assert given == pytest.approx(0.25 * 0.25)
    assert taken == pytest.approx(0.75 * 0.25)


def test_a_foe_does_not_move_one_who_fights(stage, harmless):
    env = Skirmish("3m", 1, step_mul=1)
    env.reset()
    stage(env, {0: {"x": 14.0, "y": 16.5}}, {0: harmless(14.0, 16.0)})
    env.step_unchecked(np.array([[STOP, 0, 0]]))
    assert env.units["target"][0, 3] == 0  # it fights
    assert env.units["y"][0, 3] == 16.0
    assert env.units["y"][0, 0] - 16.5 == pytest.approx(0.25)  # the whole overlap


def test_zerglings_that_fight_make_more_room_for_friends_than_zealots():
    kinds = Skirmish("corridor", 1).kinds.reshape(-1)
    assert kinds["yielding"].tolist() == [0.16] * 6 + [0.25] * 24


def test_a_walker_goes_round_one_who_stands_in_its_way(stage, harmless):
    env = Skirmish("3m", 1)
    env.reset()
    standing = {"x": 12.0, "y": 16.0, "order": 2, "target": 3, "cooldown": 1e9}
    stage(env, {0: {"x": 9.0, "y": 16.0}, 1: standing}, {0: harmless(16.5, 16.0)})
    strayed = 0.0
    for _ in range(5):
        env.step_unchecked(np.array([[EAST, FIRST, 0]]))
        strayed = max(strayed, abs(env.units["y"][0, 0] - 16.0))
    assert env.units["x"][0, 0] > 12.5
    assert strayed > 0.3
