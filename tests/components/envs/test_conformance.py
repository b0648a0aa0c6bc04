"""The checklist of what makes a simulator of SMAC one: each statement, and the tests that hold it.

Statements whose tests were missing elsewhere have theirs here.
"""

from pathlib import Path
from time import process_time

import numpy as np
import pytest

from components.envs import SCENARIOS, Skirmish, StarCraft2Env

CHECKLIST = {
    "1 every map has the sizes of its row": ["a_scenario_has_the_sizes_of_the_map_it_is_named_after"],
    "2 3m, 8m, 2s3z and 5m_vs_6m have the sizes of DMCAF's first table": ["four_maps_have_the_sizes_of_dmcaf_s_table"],
    "3 observations are n_agents float32 vectors": ["a_scenario_has_the_sizes_of_the_map_it_is_named_after"],
    "4 the state is one float32 vector": ["a_scenario_has_the_sizes_of_the_map_it_is_named_after"],
    "5 reset returns both and clears the last actions": [
        "reset_returns_observations_and_state_and_forgets_the_last_action"
    ],
    "6 without last actions the state shrinks": ["a_scenario_has_the_sizes_of_the_map_it_is_named_after"],
    "7 the state may be all observations": ["the_state_can_be_all_observations"],
    "8 the grid adds 8 columns, heights 9": ["optional_columns_add_up", "ground_is_probed_round_the_agent"],
    "9 friends' last actions add their columns": ["optional_columns_add_up", "friends_last_actions_can_be_seen"],
    "10 the features of 2s3z have their names": ["env_info_of_2s3z"],
    "11 the golden vector": ["a_known_battle_has_the_known_observation_and_state"],
    "12 a dead agent sees nothing and may do nothing else": ["a_dead_agent_may_only_do_nothing_and_sees_nothing"],
    "13 sight ends before 9": ["sight_ends_just_before_nine"],
    "14 an attack may be ordered at 6": ["an_attack_may_be_ordered_up_to_six"],
    "15 at 7 an enemy is seen and not to be attacked": ["at_seven_an_enemy_is_seen_and_not_to_be_attacked"],
    "16 the dead are zero everywhere": ["the_dead_are_zero_in_observations_and_state"],
    "17 enemy types of 2s3z are reversed": [
        "enemy_type_columns_are_the_reverse_of_allied_ones_on_stalker_and_zealot_maps"
    ],
    "18 a marine of MMM is [0, 1, 0]": ["three_types_have_a_column_each_on_both_sides"],
    "19 a Medivac's energy is in the state": ["a_fresh_medivac_has_a_quarter_of_its_energy"],
    "20 a fresh cooldown is in the state": ["a_fresh_cooldown_is_seen_in_the_state"],
    "21 the state's coordinates are relative to the middle": ["coordinates_of_the_state_are_relative_to_the_middle"],
    "22 agents are ordered by type, then place": ["agents_are_ordered_by_type_then_place"],
    "23 who sees whom is mutual among allies": ["agents_that_see_each_other_do_so_mutually"],
    "24 two hits leave 33 of 45": ["two_hits_of_a_marine_leave_33_of_45"],
    "25 the living may stop and not do nothing": ["the_living_may_stop_but_not_do_nothing"],
    "26 walls close directions": ["walls_close_the_directions_they_stand_in"],
    "27 coordinates are rounded towards zero": ["walls_close_the_directions_they_stand_in"],
    "28 an unavailable action is an AssertionError": ["an_unavailable_action_is_an_assertion_error"],
    "29 a marine walks 1.125 a step": ["a_step_of_walking_is_as_long_as_the_unit_is_fast"],
    "30 a stalker walks 1.477": ["a_step_of_walking_is_as_long_as_the_unit_is_fast"],
    "31 a Medivac heals allies 0 to 8 within 6": ["a_medivac_may_heal_every_other_ally_within_six"],
    "32 a marauder may choose a Medivac in vain": ["a_marauder_may_choose_a_medivac_and_goes_on_with_what_it_did"],
    "33 attackers close in to their weapon's range": ["shooting_needs_the_range_of_the_weapon_not_of_the_action"],
    "34 an idle ally never shoots back": ["an_idle_ally_under_fire_neither_flees_nor_shoots_back"],
    "35 whose target died waits": ["a_shooter_whose_target_died_waits_for_the_next_order"],
    "36 a hit on 8m is worth .1875": ["a_hit_is_worth_its_damage"],
    "37 a killing hit is worth what was left and 10": ["a_kill_is_worth_what_was_left_and_ten"],
    "38 a full win is worth 20": ["a_win_without_recovery_sums_to_twenty"],
    "39 the largest reward of 2s3z is 1020": ["a_scenario_has_the_sizes_of_the_map_it_is_named_after"],
    "40 enemy shields that recover are rewarded": ["enemy_shields_that_recover_are_rewarded"],
    "41 own losses count half where they do": ["own_losses_count_half_if_they_count"],
    "42 sparse rewards are 1, -1 and 0": ["sparse_rewards_know_only_the_end"],
    "43 sparse rewards are scaled too": ["sparse_rewards_know_only_the_end"],
    "44 mutual death is no win, and one game": [
        "both_sides_gone_is_neither_won_nor_rewarded_with_the_bonus",
        "mutual_death_counts_as_a_game_and_as_nothing_else",
    ],
    "45 the limit ends an episode, and is named where they continue": [
        "nobody_on_the_field_who_waits_is_a_timeout",
        "a_timeout_is_named_where_episodes_continue",
    ],
    "46 a side with only a Medivac has lost": ["a_side_with_only_a_medivac_left_has_lost"],
    "47 info has its keys in every step": ["the_loop_of_smacs_own_example_runs"],
    "48 the statistics add up": ["wins_are_counted", "nobody_on_the_field_who_waits_is_a_timeout"],
    "49 the dead go on doing nothing": ["the_dead_go_on_doing_nothing_to_the_end"],
    "50 a marine shoots every 14.27 ticks": ["a_marine_shoots_every_14_27_ticks_on_average"],
    "51 a zealot strikes 16 from shields, 7 and 7 from health": ["a_zealot_strikes_twice_and_armour_softens_each_blow"],
    "52 shields recover after 160 ticks": ["a_shield_recovers_an_eighth_per_tick_after_160_quiet_ticks"],
    "53 a stalker takes 14 or 18 from a stalker's shield": ["a_stalker_hurts_the_armored_more"],
    "54 fifty energy restore 151 health": ["fifty_energy_restore_about_150_health"],
    "55 a baneling takes 35 from each of three zealots": [
        "a_baneling_takes_35_from_each_of_three_zealots_and_nothing_from_its_friends"
    ],
    "56 nobody is hurt before the armies meet": ["nobody_is_hurt_before_the_armies_meet"],
    "57 nobody shoots beyond reach and slop": [
        "shooting_needs_the_range_of_the_weapon_not_of_the_action",
        "a_target_that_slips_away_during_the_aim_is_still_shot",
    ],
    "58 units do not overlap at rest": ["units_at_rest_do_not_overlap"],
    "59 nobody stands where nobody can; colossi may": [
        "whatever_agents_do_a_battle_stays_sane",
        "only_the_colossus_crosses_the_cliff",
    ],
    "60 enemies gather at the start and stand": ["enemies_gather_at_the_start_point_and_stand_if_nobody_is_there"],
    "61 who is hit from afar goes for who did it": ["an_enemy_hit_from_beyond_its_scan_goes_for_who_did_it"],
    "62 seed and actions determine a battle": ["the_same_seed_and_actions_give_the_same_battle"],
    "63 batched and single runs agree": ["a_battle_among_many_is_the_battle_alone_and_may_move_house_in_between"],
    "64 a Medivac follows its army": ["an_enemy_medivac_follows_its_army"],
    "65 random play is as in the real game": ["random_play_earns_and_lasts_as_long_as_in_the_real_game"],
    "66 what the nearest-enemy script wins is recorded": ["docs_record_what_the_nearest_enemy_script_wins"],
    "67 random play loses 8m to the last marine": ["random_play_earns_and_lasts_as_long_as_in_the_real_game"],
    "68 random zealots kill about one zergling": ["random_play_earns_and_lasts_as_long_as_in_the_real_game"],
    "69 a line with focused fire wins": ["a_line_that_focuses_its_fire_wins_even_battles_and_loses_uneven_ones"],
    "70 20,000 steps a second on one core": ["eight_marines_make_twenty_thousand_steps_a_second"],
}


def test_the_checklist_is_complete():
    assert [int(statement.split()[0]) for statement in CHECKLIST] == list(range(1, 71))


@pytest.mark.parametrize("statement", CHECKLIST)
def test_every_statement_of_the_checklist_has_a_test(statement, defined_tests):
    assert [name for name in CHECKLIST[statement] if name not in defined_tests] == []


@pytest.mark.parametrize(
    ("name", "actions", "agents", "state", "obs", "limit"),
    [
        ("3m", 9, 3, 48, 30, 60),
        ("8m", 14, 8, 168, 80, 120),
        ("2s3z", 11, 5, 120, 80, 120),
        ("5m_vs_6m", 12, 5, 98, 55, 70),
    ],
)
def test_four_maps_have_the_sizes_of_dmcaf_s_table(name, actions, agents, state, obs, limit):
    spec = Skirmish(name).spec
    assert (spec.n_actions, spec.n_agents, spec.state_size, spec.obs_size, spec.episode_limit) == (
        actions,
        agents,
        state,
        obs,
        limit,
    )


def test_at_seven_an_enemy_is_seen_and_not_to_be_attacked(stage, harmless):
    env = Skirmish("3m")
    env.reset()
    stage(env, {0: {"x": 10.0, "y": 16.0}}, {1: harmless(17.0, 16.0)})
    assert not env.available[0, 0, 7]
    np.testing.assert_allclose(env.obs[0, 0, 9:14], [0.0, 7 / 9, 7 / 9, 0.0, 1.0], rtol=1e-6)


def test_the_dead_are_zero_in_observations_and_state(stage, harmless):
    env = Skirmish("2s3z")
    env.reset()
    stage(env, {0: {"x": 10.0, "y": 16.0}, 3: {"x": 10.0, "y": 17.0}}, {2: harmless(14.0, 16.0)})
    enemies = env.obs[0, 0, 4:44].reshape(5, 8)
    friends = env.obs[0, 0, 44:76].reshape(4, 8)
    assert enemies.any(axis=1).tolist() == [False, False, True, False, False]
    assert friends.any(axis=1).tolist() == [False, False, True, False]
    assert env.state[0, :35].reshape(5, 7).any(axis=1).tolist() == [True, False, False, True, False]
    assert env.state[0, 35:65].reshape(5, 6).any(axis=1).tolist() == [False, False, True, False, False]


def test_a_fresh_medivac_has_a_quarter_of_its_energy():
    env = Skirmish("MMM")
    env.reset()
    assert env.state[0, 9 * 7 + 1] == 0.25


def test_coordinates_of_the_state_are_relative_to_the_middle(stage, harmless):
    env = Skirmish("3m")
    env.reset()
    stage(env, {0: {"x": 9.0, "y": 16.0}}, {0: harmless(20.0, 12.0)})
    assert env.state[0, 2:4].tolist() == [-0.21875, 0.0]
    assert env.state[0, 13:15].tolist() == [0.125, -0.125]


def test_a_medivac_may_heal_every_other_ally_within_six(stage, harmless):
    env = Skirmish("MMM")
    env.reset()
    allies = {k: {"x": 10.0, "y": 9.0 + 1.5 * k} for k in range(9)} | {9: {"x": 10.0, "y": 9.0}}
    stage(env, allies, {0: harmless(10.0, 10.0)})
    assert env.available[0, 9, 6:].tolist() == [True] * 5 + [False] * 5


def test_the_dead_go_on_doing_nothing_to_the_end(stage, harmless):
    env = StarCraft2Env("3m", seed=0)
    env.reset()
    stage(env.skirmish, {0: {"x": 2.0, "y": 9.0}}, {0: harmless(30.0, 22.0)})
    steps, ended = 0, False
    while not ended:
        _, ended, _ = env.step([1, 0, 0])
        steps += 1
    assert steps == 60


def test_units_at_rest_do_not_overlap():
    env = Skirmish("2s3z")
    env.reset()
    # Everybody on two spots, and nobody with a reason to be there.
    env.units["x"][0], env.units["y"][0] = 5.0, 12.0
    env.units["x"][0, 5:], env.units["goal_x"][0, 5:] = 27.0, 27.0
    env.units["y"][0, 5:], env.units["goal_y"][0, 5:] = 12.0, 12.0
    for _ in range(20):
        env.step(np.ones((1, 5), dtype=np.int64))
    x, y, size = env.units["x"][0, :5], env.units["y"][0, :5], env.kinds["separation"][0, :5]
    overlap = size[:, None] + size - np.hypot(x[:, None] - x, y[:, None] - y)
    np.fill_diagonal(overlap, 0.0)
    assert overlap.max() < 0.1


def test_docs_record_what_the_nearest_enemy_script_wins():
    text = (Path(__file__).parents[3] / "docs" / "simulator.md").read_text()
    header, row = text.index("| share won | 3m | 8m |"), text.index("| nearest |")
    assert header < row


def test_eight_marines_make_twenty_thousand_steps_a_second():
    env = Skirmish("8m", 64)
    env.reset()
    rng = np.random.default_rng(0)
    spent = 0.0
    for _ in range(60):
        actions = np.argmax(rng.random(env.available.shape) * env.available, axis=2)
        start = process_time()
        env.step(actions)
        spent += process_time() - start
        env.reset(env.terminated | env.truncated)
    assert 64 * 60 / spent > 20_000


def test_every_map_of_the_challenge_is_there():
    assert len([name for name, scenario in SCENARIOS.items() if scenario.draw is None]) == 23
