"""The checklist of what makes drawn battles those of SMACv2: each statement, and the tests that hold it.

The letters group the statements: D draws, S sizes, U ranges, A numbers, O observations, G state, V the filter of the
later edition, F the cone of vision, T actions, R rewards, I the start, E enemies, W the wrapper, N known battles.
"""

import numpy as np
import pytest

from components.envs import SCENARIOS, Rewards, Skirmish, StarCraftCapabilityEnvWrapper

SIZES = "sizes_are_those_of_smacv2_with_the_published_configuration"
GOLDEN = [f"{race}_see_what_smacv2_would_show_them" for race in ("three_terrans", "two_protoss", "three_zerg")]
NUMBERING = "agents_are_numbered_by_the_name_of_their_type_and_columns_have_an_order_of_their_own"
FORGOTTEN = "a_dead_enemy_is_forgotten_and_found_by_who_sees_its_corpse"
WIPE = "as_published_an_enemy_that_nobody_has_found_hides_those_of_lower_number"
DISTRIBUTIONS = "the_distributions_have_smacv2_s_names_and_draw_what_the_battle_draws"
CHANCES = "an_order_to_attack_is_carried_out_with_the_agent_s_probability_and_others_always"
COLUMNS = "each_number_of_an_agent_is_a_column_of_observations_states_and_capabilities"
LEVELS = "an_agent_dies_two_ticks_before_the_end_of_a_step_in_which_it_fell_below_its_level"
CONE = "a_cone_adds_an_action_for_each_direction_and_columns_that_say_where_it_points"
ORDERS = "an_idle_enemy_attacks_the_nearest_ally_wherever_it_is"
STAYS = "an_enemy_stays_with_its_target_when_another_is_nearer_and_shoots_at_it"
NO_MASK = "without_a_mask_all_living_are_offered_and_who_is_out_of_reach_changes_nothing"

CHECKLIST = {
    "D1 allies by weight, no army of exceptions": [
        "types_are_drawn_by_their_weights",
        "nobody_gets_an_army_of_medivacs",
    ],
    "D2 further enemies are drawn, not of exceptions alone": [
        "the_enemies_are_of_the_allies_types_and_further_ones_are_drawn",
        "nobody_gets_an_army_of_medivacs",
    ],
    "D3 as many enemies are the allies, in order": ["enemies_are_numbered_in_the_order_in_which_they_were_drawn"],
    "D4 p is the share of mirrored episodes": [
        "half_of_the_episodes_begin_surrounded_and_half_mirrored",
        DISTRIBUTIONS,
    ],
    "D5 mirrored places": ["half_of_the_episodes_begin_surrounded_and_half_mirrored"],
    "D6 surrounding groups on diagonals": ["surrounding_enemies_stand_in_one_to_four_groups_on_the_diagonals"],
    "D7 groups take enemies in order": ["surrounding_enemies_stand_in_one_to_four_groups_on_the_diagonals"],
    "D8 types and places are independent": ["enemies_are_numbered_in_the_order_in_which_they_were_drawn"],
    "D9 draws follow from the battle's seed": ["what_is_drawn_depends_on_the_battle_s_seed_and_episode_alone"],
    "D10 who stands on one point is pushed apart": ["drawn_units_do_not_stand_on_each_other_for_long"],
    "D11 attack": [CHANCES, "whose_attack_is_not_carried_out_goes_on_with_its_old_order"],
    "D12 health": [LEVELS, "health_is_shown_above_the_level_at_which_an_agent_dies"],
    "D13 enemy_mask": [
        "a_mask_hides_health_and_type_of_enemies_but_not_where_they_are",
        "a_mask_hides_as_many_as_its_probability_leaves",
    ],
    "D14 what is unknown is refused by name": ["a_configuration_that_is_not_supported_is_refused_by_name"],
    "D15 all_teams and fixed": [
        "all_teams_gives_every_army_to_both_sides",
        "fixed_teams_come_in_order_in_a_test_and_anyhow_else",
    ],
    "S1 formulas": ["a_drawn_scenario_has_the_sizes_of_its_name", SIZES],
    "S2 widths with and without shields": ["a_drawn_scenario_has_the_sizes_of_its_name"],
    "S3 patients have numbers": ["with_more_allies_than_enemies_each_ally_is_a_patient_with_a_number"],
    "S4 env info": ["env_info_has_smacv2_s_names_and_sizes"],
    "S5 an open map": ["every_cell_of_a_drawn_battle_s_ground_is_open"],
    "S6 units as on SMAC's maps": ["the_units_of_drawn_battles_are_those_of_smac"],
    "U1 targets in reach": ["agents_see_and_shoot_as_far_as_their_units_do"],
    "U2 sight ends before its range": [*GOLDEN, "agents_see_and_shoot_as_far_as_their_units_do"],
    "U3 distances are divided by the observer's sight": GOLDEN,
    "U4 ranges of SMAC": ["ranges_may_be_those_of_smac"],
    "U5 a colossus orders at 7": ["agents_see_and_shoot_as_far_as_their_units_do"],
    "A5 agents are sorted by type and place": [NUMBERING],
    "A6 numbers stay for the episode": ["agents_keep_their_numbers"],
    "A7 enemies as drawn": ["enemies_are_numbered_in_the_order_in_which_they_were_drawn"],
    "O1 order of the parts, zeros for the dead": [*GOLDEN, "a_dead_agent_sees_the_time_alone"],
    "O2 columns of enemies and allies": GOLDEN,
    "O3 one table of types": [NUMBERING, *GOLDEN],
    "O4 attackable, to range": [
        "without_a_mask_all_living_are_offered_and_who_is_out_of_reach_changes_nothing",
        GOLDEN[0],
    ],
    "O5 types may be hidden": ["allies_may_hide_their_types_from_each_other"],
    "O6 columns of attack and health": [
        COLUMNS,
        "attack_probabilities_are_seen_by_their_agent_by_others_and_by_the_critic",
        "numbers_that_are_not_to_be_observed_are_zero_for_other_agents",
    ],
    "O7 own place before the type": ["own_positions_are_seen_where_armies_are_drawn", *GOLDEN],
    "O8 the time at the end": ["options_of_observations_have_smacv2_s_sizes"],
    "O9 last actions after types": ["options_of_observations_have_smacv2_s_sizes", "each_column_has_a_name"],
    "O10 nothing but the time": ["observations_may_hold_everybody_or_nothing_but_the_time"],
    "O11 everybody": ["observations_may_hold_everybody_or_nothing_but_the_time"],
    "O12 agents look in random order": ["without_word_of_mouth_the_finder_alone_sees_an_enemy_and_remembers_it"],
    "O13 grid and heights": ["options_of_observations_have_smacv2_s_sizes"],
    "O14 all observations as the state": ["options_of_observations_have_smacv2_s_sizes"],
    "G1 rows of the state": GOLDEN,
    "G2 last actions, zero after a reset": ["state_ends_with_last_actions_and_time"],
    "G3 capabilities, also of the dead": ["capabilities_are_the_unit_types_also_of_the_dead", COLUMNS],
    "G4 who sees whom": ["of_two_agents_the_one_with_the_lower_number_decides_whether_they_see_each_other"],
    "G5 names of columns": ["each_column_has_a_name"],
    "V1 finding": ["word_of_an_enemy_spreads_with_the_probability"],
    "V2 knowledge persists": ["without_word_of_mouth_the_finder_alone_sees_an_enemy_and_remembers_it"],
    "V3 death of finder or enemy": ["when_its_finder_dies_an_enemy_can_be_found_anew", FORGOTTEN],
    "V4 the wipe": [WIPE],
    "V5 editions": [WIPE, "wrong_options_of_the_filter_are_refused"],
    "V6 no action mask": [NO_MASK],
    "V7 the order is drawn once a step": ["a_battle_with_a_filter_repeats_with_its_seed"],
    "F1 actions turn the cone": [CONE, "turning_the_cone_is_no_order"],
    "F2 direction at reset, width, sizes": [CONE],
    "F3 inclusive, and inside the cone": [
        "a_cone_ends_at_the_range_itself",
        "what_is_outside_of_the_cone_is_neither_seen_nor_a_target",
    ],
    "F4 the quirk behind a flag": ["what_is_outside_of_the_cone_is_neither_seen_nor_a_target"],
    "T1 actions and probes": [*GOLDEN, "agents_may_walk_off_no_edge_but_by_smac_s_rounding"],
    "T2 unavailable actions": ["an_unavailable_action_is_an_assertion_error"],
    "T3 a Medivac's targets": [GOLDEN[0]],
    "T4 flyers are offered and refused": ["a_marauder_may_choose_a_medivac_and_goes_on_with_what_it_did"],
    "T5 melee from 2": ["agents_see_and_shoot_as_far_as_their_units_do"],
    "T6 the script": ["the_scripted_player_fights_drawn_armies"],
    "R1 only what is gained": ["regeneration_of_the_enemies_costs_what_damage_earned_and_never_pays"],
    "R2 signed rewards": ["regeneration_of_the_enemies_costs_what_damage_earned_and_never_pays"],
    "R3 the first episode's divisor": ["rewards_are_divided_by_the_worth_of_the_episode_s_enemies_or_of_the_first"],
    "R5 or this episode's": ["a_perfect_win_is_worth_20_whomever_it_was_over"],
    "R6 ends of terran battles": [
        "a_side_with_medivacs_alone_has_lost_however_many_and_the_allies_first",
        "the_ends_of_terran_battles_pay_what_smacv2_would",
    ],
    "R7 mutual annihilation": ["mutual_annihilation_is_neither_won_nor_a_timeout"],
    "R8 the limit": ["the_limit_is_200_steps_and_named_where_episodes_continue"],
    "R9 info": ["the_loop_of_smacv2s_own_example_runs"],
    "R10 sparse rewards": ["sparse_rewards_are_divided_too"],
    "I2 the first observation": ["drawn_units_begin_fresh"],
    "I3 everything is drawn anew": ["what_is_drawn_depends_on_the_battle_s_seed_and_episode_alone"],
    "I4 without places": ["without_start_positions_both_sides_stand_round_a_point_of_their_own"],
    "E1 idle enemies get an order": [ORDERS],
    "E2 once a step, at an offset": [ORDERS, "the_orders_to_idle_enemies_come_in_another_tick_in_each_episode"],
    "E3 until the target is dead": [STAYS],
    "E4 then they look round": ["after_its_target_s_death_an_enemy_looks_round_and_then_waits_for_the_next_order"],
    "E5 who has chosen gets no order": ["an_enemy_that_has_chosen_somebody_itself_gets_no_order"],
    "E6 no ally left": ["mutual_annihilation_is_neither_won_nor_a_timeout"],
    "E7 orders that are refused": ["an_enemy_that_cannot_attack_the_nearest_ally_waits_until_another_is_nearer"],
    "E8 Medivacs hover": ["an_enemy_medivac_hovers_until_somebody_is_hurt"],
    "E9 nearest, unit by unit": ["each_enemy_is_sent_after_the_ally_nearest_to_it"],
    "E10 difficulty does not change the orders": ["orders_come_at_every_difficulty"],
    "E11 kiting": [STAYS, "the_hunted_unit_draws_its_hunters_along_and_the_others_are_left_alone"],
    "W1 arguments": ["a_wrong_argument_is_refused_by_name", "the_loop_of_smacv2s_own_example_runs"],
    "W2 reset": ["a_reset_takes_what_smacv2_s_distributions_give", "the_loop_of_smacv2s_own_example_runs"],
    "W3 what is passed on": ["the_loop_of_smacv2s_own_example_runs"],
    "W4 what SMACv2 refuses": ["capabilities_are_the_unit_types_also_of_the_dead"],
    "W5 import names": ["smacv2_s_import_names_lead_to_the_same_classes", DISTRIBUTIONS],
    "W6 names of scenarios": ["a_scenario_s_name_stands_for_the_published_configuration"],
    "N1 terran": [GOLDEN[0]],
    "N2 protoss": [GOLDEN[1]],
    "N3 zerg": [GOLDEN[2], "three_steps_of_zerg_earn_what_smacv2_would_pay"],
}
LEFT_OUT = {
    "S7": "how SMAC's maps look in SMACv2's code, which its authors do not support",
    "R4": "counting the divisor again at each further look",
    "I1": "how the game is told to make units",
}


def test_no_statement_about_smacv2_is_missing():
    last = {"D": 15, "S": 7, "U": 5, "O": 14, "G": 5, "V": 7, "F": 4, "T": 6, "R": 10, "I": 4, "E": 11, "W": 6, "N": 3}
    every = {f"{group}{number}" for group, most in last.items() for number in range(1, most + 1)} | {"A5", "A6", "A7"}
    assert {statement.split()[0] for statement in CHECKLIST} == every - LEFT_OUT.keys()


@pytest.mark.parametrize("statement", CHECKLIST)
def test_every_statement_about_smacv2_has_a_test(statement, defined_tests):
    assert [name for name in CHECKLIST[statement] if name not in defined_tests] == []


def wrapped(name="terran_5_vs_5", **options):
    return StarCraftCapabilityEnvWrapper(map_name=name, seed=1, **options)


def alone(env):
    """Leave agent 0 and enemy 0 alive, far from each other."""
    units = env.skirmish.units
    others = [i for i in range(units.shape[1]) if i not in (0, env.n_agents)]
    units["health"][0, others] = units["shield"][0, others] = 0.0
    units["x"][0, 0], units["x"][0, env.n_agents] = 2.0, 30.0
    env.skirmish.show()


def test_drawn_units_do_not_stand_on_each_other_for_long(stopping):
    env = Skirmish("terran_20_vs_23", 32, seed=4)
    env.reset()
    env.step(stopping(env, None))
    for b in range(32):
        x, y, r = env.units["x"][b], env.units["y"][b], env.kinds["separation"][b]
        layer = env.kinds["layer"][b]
        far = np.hypot(x[:, None] - x, y[:, None] - y) + 9.0 * (layer[:, None] != layer) + 9.0 * np.eye(43)
        assert (far > 0.4 * (r[:, None] + r)).all()


def test_env_info_has_smacv2_s_names_and_sizes():
    types = ["type_0", "type_1", "type_2"]
    assert wrapped("protoss_10_vs_11").get_env_info() == {
        "state_shape": 327, "obs_shape": 191, "cap_shape": 3, "n_actions": 17, "n_agents": 10, "episode_limit": 200,
        "agent_features": ["health", "energy/cooldown", "rel_x", "rel_y", "shield", *types],
        "enemy_features": ["health", "rel_x", "rel_y", "shield", *types],
    }  # fmt: skip


def test_every_cell_of_a_drawn_battle_s_ground_is_open():
    walkable = SCENARIOS["zerg_5_vs_5"].terrain.walkable()
    assert walkable.shape == (32, 32)
    assert walkable.all()


def test_the_units_of_drawn_battles_are_those_of_smac():
    health = {
        unit.name: unit.health
        for race in ("terran", "protoss", "zerg")
        for unit in SCENARIOS[f"{race}_5_vs_5"].ally_types
    }
    assert health == {
        "marine": 45, "marauder": 125, "medivac": 150, "stalker": 80, "zealot": 100, "colossus": 200, "zergling": 35,
        "hydralisk": 80, "baneling": 30,
    }  # fmt: skip
    assert SCENARIOS["MMM"].allies[-1] == SCENARIOS["terran_5_vs_5"].ally_types[2]


def test_agents_keep_their_numbers(at_random):
    env = wrapped("zerg_10_vs_10")
    env.reset()
    types = env.get_unit_types()
    rng = np.random.default_rng(0)
    while not env.step(at_random(env.skirmish, rng)[0].tolist())[1]:
        assert env.get_unit_types() == types
    assert env.death_tracker_ally.any()


def test_a_dead_agent_sees_the_time_alone():
    env = wrapped(obs_timestep_number=True)
    env.reset()
    alone(env)
    env.step([1, 0, 0, 0, 0])
    assert env.get_obs_agent(1).tolist() == [0.0] * 82 + [np.float32(1 / 200)]


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"obs_timestep_number": True}, 83),
        ({"obs_last_action": True}, 82 + 4 * 11),
        ({"obs_pathing_grid": True}, 82 + 8),
        ({"obs_terrain_height": True}, 82 + 9),
        ({"obs_own_pos": False}, 80),
    ],
)
def test_options_of_observations_have_smacv2_s_sizes(options, size):
    env = wrapped(**options)
    obs, _ = env.reset()
    assert (env.get_obs_size(), obs[0].shape, obs[0].dtype) == (size, (size,), np.float32)
    assert wrapped(**options, obs_instead_of_state=True).get_state_size() == 5 * size


def test_state_ends_with_last_actions_and_time():
    env = wrapped(state_timestep_number=True)
    _, state = env.reset()
    assert not state[-56:].any()
    env.step([1] * 5)
    assert env.get_state()[-56:].tolist() == [*np.eye(11)[[1] * 5].ravel(), np.float32(1 / 200)]


def test_agents_may_walk_off_no_edge_but_by_smac_s_rounding():
    env = wrapped()
    env.reset()
    for (x, y), open_ways in (
        ((31.5, 16.0), "1101"),
        ((16.0, 31.5), "0111"),
        ((0.5, 16.0), "1111"),
        ((16.0, 0.5), "1111"),
    ):
        env.skirmish.units["x"][0, 0], env.skirmish.units["y"][0, 0] = x, y
        env.skirmish.show()
        assert "".join(map(str, env.get_avail_agent_actions(0)[2:6])) == open_ways


def test_mutual_annihilation_is_neither_won_nor_a_timeout():
    env = wrapped("protoss_5_vs_5", reward_scale=False)
    env.reset()
    alone(env)
    env.skirmish.units["health"][0, [0, 5]] = env.skirmish.units["shield"][0, [0, 5]] = 0.0
    env.skirmish.show()
    reward, ended, info = env.step([0] * 5)
    assert (reward, ended, info["battle_won"]) == (0.0, True, False)
    assert (env.battles_game, env.battles_won, env.timeouts) == (1, 0, 0)


def test_the_limit_is_200_steps_and_named_where_episodes_continue():
    env = wrapped(continuing_episode=True)
    assert env.episode_limit == 200
    env.reset()
    alone(env)
    env.skirmish.battles["steps"][0] = 199
    _, ended, info = env.step([1, 0, 0, 0, 0])
    assert ended
    assert info == {"battle_won": False, "dead_allies": 4, "dead_enemies": 4, "episode_limit": True}
    assert (env.battles_game, env.timeouts) == (1, 1)


def test_sparse_rewards_are_divided_too():
    for scale in (True, False):
        env = Skirmish("protoss_5_vs_5", 1, rewards=Rewards(sparse=True, scale=scale))
        env.reset()
        env.units["health"][0, 5:] = 0.0
        env.show()
        env.step(np.ones((1, 5), np.int64))
        assert env.reward[0] == pytest.approx(1.0 / float(env.battles["divisor"][0]))
        assert (env.battles["divisor"][0] == 1.0) == (not scale)


def test_drawn_units_begin_fresh():
    env = Skirmish("terran_10_vs_10", 16, seed=3)
    env.reset()
    assert (env.units["health"] == env.kinds["health"]).all()
    assert (env.units["cooldown"] == 0.0).all()
    assert set(env.units["energy"][env.kinds["healing"] > 0.0]) == {50.0}
    assert (env.units["last_action"] == -1).all()


def test_each_enemy_is_sent_after_the_ally_nearest_to_it():
    env = wrapped("zerg_5_vs_5")
    env.reset()
    units = env.skirmish.units
    units["x"][0] = [4, 4, 28, 28, 16, 4, 4, 28, 28, 16]
    units["y"][0] = [4, 28, 4, 28, 16, 14, 18, 14, 18, 26]
    env.skirmish.show()
    env.step([1] * 5)
    assert units["target"][0, 5:].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("difficulty", ["1", "A"])
def test_orders_come_at_every_difficulty(difficulty):
    env = wrapped("zerg_5_vs_5", difficulty=difficulty)
    env.reset()
    alone(env)
    env.step([1, 0, 0, 0, 0])
    assert env.skirmish.units["target"][0, 5] == 0
