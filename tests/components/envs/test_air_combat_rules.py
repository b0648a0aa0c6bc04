"""The rules of air combat, each with its arithmetic worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from components.envs.air_combat.battles import AirBattles
from components.envs.air_combat.scenarios import Missile, Receiver, Rewards, Rules, Scenario, Unit

FIGHTER = Unit(kind="fighter", speed=2.0, radar="X", jammer="X", long_missiles=2, medium_missiles=4)
DETECTOR = Unit(kind="detector", speed=1.0, radar="L")
SURE = Missile(range=120.0, speed=12.0, hit_near=1.0, hit_far=1.0)
OFF, BARRAGE = 0, 11  # of an X jammer, which has 10 points
STAY, EAST, SOUTH, WEST, NORTH = -1, 0, 90, 180, 270


def scenario(red: tuple[Unit, ...] = (FIGHTER,), blue: tuple[Unit, ...] = (FIGHTER,), **others) -> Scenario:
    given = {"receiver": Receiver(noise=0.0), "long_missile": SURE, "rewards": Rewards()} | others
    return Scenario(name="by hand", red=red, blue=blue, **given)


def battle(made: Scenario, *places: tuple[float, float], courses: tuple[int, ...] = ()) -> AirBattles:
    """Return a battle whose units stand at these places, with radars at point 3."""
    env = AirBattles(made, 1, opponent="ordered", reward_scale=1.0)
    env.reset()
    for i, (x, y) in enumerate(places):
        env.units["x"][0, i], env.units["y"][0, i] = x, y
        env.units["course"][0, i] = courses[i] if courses else (EAST if i < len(made.red) else WEST)
    return env


def step(env: AirBattles, *orders: tuple[int, int, int, int]) -> None:
    """Play a step with course, radar, jammer and attack of each unit."""
    env.orders[0] = orders
    env.step_ordered()


IDLE = (STAY, 3, OFF, 0)


@pytest.mark.parametrize(
    ("course", "moved"),
    [(EAST, (2.0, 0.0)), (SOUTH, (0.0, 2.0)), (WEST, (-2.0, 0.0)), (NORTH, (0.0, -2.0)), (30, (3**0.5, 1.0))],
)
def test_a_course_is_clockwise_from_x_and_y_points_down(course: int, moved: tuple[float, float]) -> None:
    env = battle(scenario(), (500.0, 500.0), (900.0, 900.0))
    step(env, (course, 3, OFF, 0), IDLE)
    unit = env.units[0, 0]
    assert (unit["x"] - 500.0, unit["y"] - 500.0) == pytest.approx(moved)
    assert unit["course"] == course


def test_units_stop_at_the_border() -> None:
    env = battle(scenario(), (999.0, 1.0), (500.0, 500.0))
    step(env, (EAST, 3, OFF, 0), IDLE)
    step(env, (NORTH, 3, OFF, 0), IDLE)
    assert (env.units["x"][0, 0], env.units["y"][0, 0]) == (1000.0, 0.0)


@pytest.mark.parametrize(
    ("wanted", "courses"), [(90, [30, 60, 90, 90]), (270, [330, 300, 270, 270]), (180, [30, 60, 90, 120])]
)
def test_a_turn_rate_bounds_the_change_of_course_the_short_way(wanted: int, courses: list[int]) -> None:
    env = battle(scenario(rules=Rules(turn_rate=30)), (500.0, 500.0), (900.0, 900.0))
    seen = []
    for _ in range(4):
        step(env, (wanted, 3, OFF, 0), IDLE)
        seen.append(int(env.units["course"][0, 0]))
    assert seen == courses


@pytest.mark.parametrize(
    ("dx", "dy", "seen"),
    [
        (150.0, 0.0, True),  # the range of an X radar
        (150.1, 0.0, False),
        (50.0, 50.0 * 3**0.5 - 1e-6, True),  # 60 degrees, the edge of its sector, at 100
        (49.0, 50.0 * 3**0.5, False),
        (-10.0, 0.0, False),  # behind
    ],
)
def test_a_fighter_s_radar_sees_150_far_within_60_degrees_of_its_course(dx: float, dy: float, seen: bool) -> None:
    env = battle(scenario(), (500.0, 500.0), (500.0 + dx, 500.0 + dy), courses=(EAST, EAST))
    step(env, IDLE, (STAY, 0, OFF, 0))
    assert bool(env.sees[0, 0, 1]) is seen
    assert bool(env.units["known"][0, 1]) is seen


def test_a_detector_sees_all_round_and_farther_in_the_l_band_than_in_the_s_band() -> None:
    for band, reach in (("L", 240.0), ("S", 180.0)):
        made = scenario(red=(replace(DETECTOR, radar=band),))
        for x, seen in ((500.0 - reach, True), (499.9 - reach, False)):
            env = battle(made, (500.0, 500.0), (x, 500.0))
            step(env, (STAY, 1, OFF, 0), IDLE)
            assert bool(env.sees[0, 0, 1]) is seen
        assert env.units["reach"][0, 0] == reach


def test_a_radar_that_is_off_sees_nothing_and_is_not_heard() -> None:
    env = battle(scenario(), (500.0, 500.0), (520.0, 500.0))
    step(env, (STAY, 0, OFF, 0), IDLE)
    assert not env.sees[0, 0, 1]
    assert env.sees[0, 1, 0]
    assert env.hears[0, 0, 1]
    assert not env.hears[0, 1, 0]


@pytest.mark.parametrize(
    ("jammer", "distance", "reach"),
    [
        (OFF, 50.0, 150.0),
        (3, 50.0, 150.0 * 0.4),  # aimed at the radar's point
        (4, 50.0, 150.0),  # aimed at another
        (BARRAGE, 50.0, 150.0 * 0.7),
        (3, 200.0, 150.0 * 0.4),  # at the end of the jammer's range
        (3, 200.1, 150.0),
    ],
)
def test_jamming_cuts_the_range_of_radars_within_200(jammer: int, distance: float, reach: float) -> None:
    env = battle(scenario(), (500.0, 500.0), (500.0 + distance, 500.0))
    step(env, IDLE, (STAY, 3, jammer, 0))
    assert env.units["reach"][0, 0] == pytest.approx(reach)
    assert env.units["reach"][0, 1] == 150.0, "it does not jam its own side"
    assert env.battles["jammed"][0] == (reach < 150.0)


def test_jammers_work_in_their_band_alone_and_the_strongest_counts() -> None:
    l_jammer, x_jammer = replace(FIGHTER, jammer="L"), FIGHTER
    env = battle(scenario(blue=(l_jammer, x_jammer)), (500.0, 500.0), (550.0, 500.0), (560.0, 500.0))
    step(env, IDLE, (STAY, 3, 3, 0), (STAY, 3, OFF, 0))
    assert env.units["reach"][0, 0] == 150.0
    step(env, IDLE, (STAY, 3, 3, 0), (STAY, 3, BARRAGE, 0))
    assert env.units["reach"][0, 0] == pytest.approx(105.0)
    env = battle(scenario(blue=(x_jammer, x_jammer)), (500.0, 500.0), (550.0, 500.0), (560.0, 500.0))
    step(env, IDLE, (STAY, 3, BARRAGE, 0), (STAY, 3, 3, 0))
    assert env.units["reach"][0, 0] == pytest.approx(60.0)


def test_two_receivers_fix_a_radar_where_their_bearings_cross() -> None:
    env = battle(scenario(red=(FIGHTER, FIGHTER)), (500.0, 400.0), (500.0, 600.0), (700.0, 500.0), courses=(WEST,) * 3)
    step(env, IDLE, IDLE, IDLE)
    target = env.units[0, 2]
    assert (target["source"], target["known"], target["fixed"]) == (3, True, True)
    assert (target["last_x"], target["last_y"]) == pytest.approx((700.0, 500.0))
    north_west = 1 / 5**0.5
    assert env.bearing[0, 0, 2].tolist() == pytest.approx([2 * north_west, north_west])


def test_one_receiver_or_bearings_that_hardly_cross_fix_nothing() -> None:
    env = battle(scenario(), (500.0, 400.0), (700.0, 500.0), courses=(WEST, WEST))
    step(env, IDLE, IDLE)
    assert env.hears[0, 0, 1]
    assert not env.units["known"][0, 1]
    # 4 and 6 degrees: from 2 tan(2°) * 100 = 6.98 and 2 tan(3°) * 100 = 10.48 apart, seen at a distance of 100.
    for apart, fixed in ((6.9, False), (10.5, True)):
        places = [(500.0, 500.0 - apart / 2), (500.0, 500.0 + apart / 2), (600.0, 500.0)]
        env = battle(scenario(red=(FIGHTER, FIGHTER)), *places, courses=(WEST,) * 3)
        step(env, IDLE, IDLE, IDLE)
        assert bool(env.units["fixed"][0, 2]) is fixed


def test_receivers_of_fighters_hear_300_far_and_detectors_have_none() -> None:
    made = scenario(red=(DETECTOR, FIGHTER))
    for x, heard in ((800.0, True), (800.1, False)):
        env = battle(made, (500.0, 500.0), (500.0, 500.0), (x, 500.0))
        step(env, (STAY, 1, OFF, 0), IDLE, IDLE)
        assert bool(env.hears[0, 1, 2]) is heard
        assert not env.hears[0, 0, 2]


def test_the_error_of_a_bearing_is_at_most_the_noise() -> None:
    env = battle(scenario(receiver=Receiver(noise=1.5)), (500.0, 500.0), (600.0, 500.0), courses=(WEST, EAST))
    errors = []
    for _ in range(500):
        step(env, IDLE, IDLE)
        errors.append(np.degrees(np.arctan2(*env.bearing[0, 0, 1][::-1])))
    assert max(np.abs(errors)) <= 1.5
    assert min(errors) < -1.3
    assert max(errors) > 1.3
    assert abs(np.mean(errors)) < 0.15


def test_a_long_missile_flies_12_a_step_and_hits() -> None:
    env = battle(scenario(), (500.0, 500.0), (560.0, 500.0))
    step(env, (STAY, 3, OFF, 1), IDLE)
    missile = env.missiles[0, 0]
    assert env.battles["flying"][0] == 1
    assert env.units["long_left"][0, 0] == 1
    assert (missile["attacker"], missile["target"], missile["medium"], missile["distance"]) == (0, 1, False, 60.0)
    assert env.units["reward"][0, 0] == 10.0 + 10.0, "a first sighting and a valid attack"
    for n in range(1, 5):
        step(env, IDLE, IDLE)
        assert (env.missiles[0, 0]["x"], env.missiles[0, 0]["steps"]) == (500.0 + 12.0 * n, n)
    step(env, IDLE, IDLE)  # 60 = 5 * 12
    assert not env.units["alive"][0, 1]
    assert env.battles["flying"][0] == 0
    assert env.units["reward"][0].tolist() == [100.0, -100.0]
    assert (env.battles["outcome"][0], env.reward[0]) == (2, 100.0 + 200.0)
    assert env.won[0]
    assert env.terminated[0]
    assert not env.truncated[0]


@pytest.mark.parametrize(
    ("attack", "distance", "why"),
    [
        (1, 120.1, "out of range"),
        (2, 50.1, "out of range of a medium missile"),
        (3, 40.0, "no such attack"),
    ],
)
def test_an_invalid_attack_costs_10_and_no_missile(attack: int, distance: float, why: str) -> None:
    env = battle(scenario(), (500.0, 500.0), (500.0 + distance, 500.0))
    step(env, IDLE, IDLE)
    step(env, (STAY, 3, OFF, attack), IDLE)
    unit = env.units[0, 0]
    assert (unit["reward"], unit["long_left"], unit["medium_left"]) == (-10.0, 2, 4), why
    assert env.battles["flying"][0] == 0


def test_a_target_that_nobody_observes_cannot_be_attacked_and_a_friend_s_radar_is_enough() -> None:
    places = [(500.0, 500.0), (560.0, 500.0), (600.0, 500.0)]
    env = battle(scenario(red=(FIGHTER, FIGHTER)), *places, courses=(WEST, WEST, WEST))
    step(env, (STAY, 0, OFF, 1), (STAY, 0, OFF, 0), (STAY, 0, OFF, 0))
    assert env.units["reward"][0, 0] == -10.0
    env = battle(scenario(red=(FIGHTER, FIGHTER)), *places, courses=(WEST, EAST, WEST))
    step(env, (STAY, 0, OFF, 1), (STAY, 3, OFF, 0), (STAY, 0, OFF, 0))
    assert env.units["reward"][0, 0] == 10.0
    assert (env.missiles[0, 0]["source"], env.missiles[0, 0]["distance"]) == (2, 100.0)


def test_without_a_missile_an_attack_is_invalid() -> None:
    env = battle(scenario(long_missile=replace(SURE, hit_near=0.0, hit_far=0.0)), (500.0, 500.0), (600.0, 500.0))
    for left in (1, 0):
        step(env, (STAY, 3, OFF, 1), IDLE)
        assert env.units["long_left"][0, 0] == left
    step(env, (STAY, 3, OFF, 1), IDLE)
    assert env.units["reward"][0, 0] == -10.0


def hits(distance: float, medium: bool, *, unseen: int = 0, n: int = 2000, **rules) -> float:
    """Return the share of missiles that hit, fired at this distance; the target is out of sight in the last steps."""
    long, short = Missile(range=120.0, hit_near=0.8, hit_far=0.5), Missile(range=50.0, hit_near=0.95, hit_far=0.7)
    made = scenario(long_missile=long, medium_missile=short, rules=Rules(**rules))
    env = AirBattles(made, n, opponent="ordered")
    env.reset()
    env.units["x"], env.units["y"], env.units["course"] = [500.0, 500.0 + distance], 500.0, [EAST, EAST]
    env.orders[:] = [(STAY, 3, OFF, 2 if medium else 1), (STAY, 0, OFF, 0)]
    env.step_ordered()
    env.orders[..., 3] = 0
    left = int(-(-distance // 12.0))
    while env.battles["flying"].any():
        env.orders[:, 0, 1] = 0 if left <= unseen else 3
        env.step_ordered()
        left -= 1
    return 1.0 - float(env.units["alive"][:, 1].mean())


@pytest.mark.parametrize(
    ("distance", "medium", "expected"),
    [
        (120.0, False, 0.5),
        (60.0, False, 0.65),
        (50.0, True, 0.7),
        (10.0, True, 0.9),  # 0.95 - 0.25 * 10 / 50
    ],
)
def test_the_probability_of_a_hit_falls_linearly_with_the_distance(
    distance: float, medium: bool, expected: float
) -> None:
    assert hits(distance, medium) == pytest.approx(expected, abs=0.04)  # 3.6 standard deviations of 2,000


def test_the_probability_of_a_hit_is_scaled_by_the_share_of_the_flight_with_the_target_observed() -> None:
    assert hits(60.0, False, unseen=2) == pytest.approx(0.65 * 3 / 5, abs=0.04)  # 3 of 5 steps
    assert hits(60.0, False, unseen=5) == 0.0


def test_without_hit_probabilities_each_missile_that_arrives_hits() -> None:
    assert hits(120.0, False, hit_prob_enable=False) == 1.0


def test_without_delay_an_attack_is_decided_at_once() -> None:
    env = battle(scenario(rules=Rules(attack_effect_delay=False)), (500.0, 500.0), (600.0, 500.0))
    step(env, (STAY, 3, OFF, 1), IDLE)
    assert not env.units["alive"][0, 1]
    assert env.battles["flying"][0] == 0


def test_of_two_missiles_that_arrive_together_the_first_fired_has_the_hit() -> None:
    places = [(500.0, 500.0), (512.0, 500.0), (560.0, 500.0)]
    env = battle(scenario(red=(FIGHTER, FIGHTER)), *places)
    step(env, (STAY, 3, OFF, 1), (STAY, 3, OFF, 0), IDLE)
    step(env, IDLE, (STAY, 3, OFF, 1), IDLE)
    assert env.battles["flying"][0] == 2
    for _ in range(4):  # 60 = 5 * 12 from the first, 48 = 4 * 12 from the second a step later
        step(env, IDLE, IDLE, IDLE)
    assert env.units["reward"][0].tolist() == [100.0, 0.0, -100.0]
    assert (env.battles["hits_red"][0], env.battles["flying"][0]) == (1, 0)


def test_two_that_hit_each_other_in_one_step_are_both_destroyed_and_nobody_wins() -> None:
    env = battle(scenario(), (500.0, 500.0), (560.0, 500.0))
    step(env, (STAY, 3, OFF, 1), (STAY, 3, OFF, 1))
    for _ in range(5):
        step(env, IDLE, IDLE)
    assert env.battles["over"][0]
    assert env.battles["outcome"][0] == 0
    assert env.units["reward"][0].tolist() == [0.0, 0.0]
    assert not env.won[0]


def test_a_missile_flies_to_where_its_target_was_last_known() -> None:
    env = battle(scenario(), (500.0, 500.0), (600.0, 500.0), courses=(EAST, EAST))
    step(env, (STAY, 3, OFF, 1), (STAY, 0, OFF, 0))
    for _ in range(3):
        step(env, (STAY, 0, OFF, 0), (SOUTH, 0, OFF, 0))
    assert (env.units["last_x"][0, 1], env.units["last_y"][0, 1], env.units["last_step"][0, 1]) == (600.0, 500.0, 1)
    assert (env.missiles[0, 0]["x"], env.missiles[0, 0]["y"]) == (536.0, 500.0)
    assert (env.missiles[0, 0]["steps"], env.missiles[0, 0]["observed"]) == (3, 0)


def test_rewards_of_sightings_are_those_of_the_types_and_count_once() -> None:
    both = (DETECTOR, FIGHTER)
    places = [(500.0, 500.0), (500.0, 510.0), (560.0, 500.0), (560.0, 510.0)]
    idle = ((STAY, 1, OFF, 0), IDLE, (STAY, 0, OFF, 0), (STAY, 0, OFF, 0))
    env = battle(scenario(red=both, blue=both), *places)
    step(env, *idle)
    assert env.units["reward"][0].tolist() == [30.0, 30.0, 0.0, 0.0]
    step(env, *idle)
    assert env.units["reward"][0].tolist() == [0.0, 0.0, 0.0, 0.0]
    env = battle(scenario(red=both, blue=both, rewards=Rewards(every_sighting=True)), *places)
    for _ in range(2):
        step(env, *idle)
        assert env.units["reward"][0].tolist() == [30.0, 30.0, 0.0, 0.0]


def test_a_round_ends_after_its_last_step_with_a_win_of_the_side_with_more_units() -> None:
    for red, blue, outcome, reward in ((2, 1, 1, 100.0), (1, 2, -1, -100.0), (1, 1, 0, 0.0)):
        made = scenario(red=(FIGHTER,) * red, blue=(FIGHTER,) * blue, rules=Rules(max_steps=3))
        env = AirBattles(made, 1, opponent="static", reward_scale=1.0)
        env.reset()
        env.orders[..., 0] = STAY
        for n in range(1, 4):
            env.step_ordered()
            assert env.terminated[0] == (n == 3)
        assert (env.battles["outcome"][0], env.reward[0], env.won[0]) == (outcome, reward, outcome > 0)


def test_a_round_ends_when_no_missile_is_left_on_living_units_or_in_the_air() -> None:
    armed, unarmed = (
        replace(FIGHTER, long_missiles=1, medium_missiles=0),
        replace(FIGHTER, long_missiles=0, medium_missiles=0),
    )
    missing = replace(SURE, hit_near=0.0, hit_far=0.0)
    env = battle(scenario(red=(armed,), blue=(unarmed,), long_missile=missing), (500.0, 500.0), (524.0, 500.0))
    step(env, (STAY, 3, OFF, 1), IDLE)
    step(env, IDLE, IDLE)
    assert not env.terminated[0]
    step(env, IDLE, IDLE)  # 24 = 2 * 12: it arrives and misses
    assert env.terminated[0]
    assert env.battles["outcome"][0] == 0


def test_orders_of_destroyed_units_are_ignored() -> None:
    env = battle(scenario(red=(FIGHTER, FIGHTER)), (500.0, 500.0), (400.0, 400.0), (560.0, 500.0))
    env.units["alive"][0, 1] = False
    step(env, IDLE, (EAST, 3, BARRAGE, 1), IDLE)
    assert (env.units["x"][0, 1], env.units["reward"][0, 1], env.battles["flying"][0]) == (400.0, 0.0, 0)
    assert not env.sees[0, 1].any()
    assert not env.hears[0, 1].any()
