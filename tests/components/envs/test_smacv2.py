"""SMACv2's rules, by hand-made battles whose numbers were worked out from its definitions."""

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from components.envs import Features, Rewards, Skirmish
from components.envs.skirmish.distributions import get_distribution
from components.envs.skirmish.kernel.constants import ATTACK
from components.envs.skirmish.kernel.episode import judge
from components.envs.skirmish.records import records
from components.envs.skirmish.tables import catalogue_table

RACES = {
    "terran": ["marine", "marauder", "medivac"],
    "protoss": ["stalker", "zealot", "colossus"],
    "zerg": ["zergling", "hydralisk", "baneling"],
}


@pytest.fixture
def battle(tmp_path: Path):
    """Make a drawn battle, and put units of one's own into it: (type, x, y, changes) for each, allies first."""

    def make(race, allies, enemies, *, seed=0, offset=0, **options):
        file = tmp_path / f"{race}.toml"
        weights = ", ".join(f"{unit} = 1.0" for unit in RACES[race])
        file.write_text(
            f"limit = 200\nterrain = 'open'\nunit_ranges = true\n[draw]\nallies = {len(allies)}\n"
            f"enemies = {len(enemies)}\nweights = {{ {weights} }}\ntypes = {RACES[race]}\n"
        )
        env = Skirmish(str(file), 1, seed=seed, **options)
        env.reset()
        catalogue = records(catalogue_table(env.scenario, "liberty"))
        most = env.rewards.win + env.rewards.death_value * len(enemies)
        for i, (name, x, y, *changes) in enumerate([*allies, *enemies]):
            row = RACES[race].index(name)
            env.kinds[0, i] = catalogue[row]
            unit = env.units[0, i]
            unit["x"], unit["y"] = x, y
            unit["health"], unit["shield"] = catalogue[row]["health"], catalogue[row]["shield"]
            unit["energy"] = 50.0 if name == "medivac" else 0.0
            for field, value in (changes[0] if changes else {}).items():
                unit[field] = value
            if i >= len(allies):
                most += catalogue[row]["health"] + catalogue[row]["shield"]
        env.battles["divisor"] = most / 20.0
        env.battles["offset"] = offset
        env.show()
        return env

    return make


def mask(env, i):
    return "".join(str(int(flag)) for flag in env.available[0, i])


def columns(*parts):
    return np.concatenate([np.atleast_1d(np.asarray(part, dtype=float)) for part in parts])


TERRAN = (
    [("marauder", 10.0, 16.0), ("marine", 13.0, 16.0, {"health": 30.0, "cooldown": 7.5}),
     ("medivac", 12.0, 16.0, {"energy": 60.0})],
    [("marauder", 18.0, 16.0, {"health": 100.0}), ("marine", 16.0, 19.0), ("medivac", 20.0, 16.0)],
)  # fmt: skip


def test_three_terrans_see_what_smacv2_would_show_them(battle):
    env = battle("terran", *TERRAN)
    assert (env.spec.obs_size, env.spec.state_size, env.spec.n_actions) == (50, 66, 9)
    assert [mask(env, i) for i in range(3)] == ["011111000", "011111110", "011111110"]
    none = np.zeros(8)
    marauder = columns(
        np.ones(4), [0, 0.8, 0.8, 0, 0.8, 0, 1, 0], [0, np.sqrt(45) / 10, 0.6, 0.3, 1, 1, 0, 0], none,
        [1, 0.3, 0.3, 0, 30 / 45, 1, 0, 0], [1, 0.2, 0.2, 0, 1, 0, 0, 1], [1, 10 / 32, 16 / 32, 0, 1, 0],
    )  # fmt: skip
    marine = columns(
        np.ones(4), [1, 5 / 9, 5 / 9, 0, 0.8, 0, 1, 0], [1, np.sqrt(18) / 9, 3 / 9, 3 / 9, 1, 1, 0, 0],
        [0, 7 / 9, 7 / 9, 0, 1, 0, 0, 1], [1, 3 / 9, -3 / 9, 0, 1, 0, 1, 0], [1, 1 / 9, -1 / 9, 0, 1, 0, 0, 1],
        [30 / 45, 13 / 32, 16 / 32, 1, 0, 0],
    )  # fmt: skip
    medivac = columns(
        np.ones(4), [1, 6 / 11, 6 / 11, 0, 0.8, 0, 1, 0], [1, 5 / 11, 4 / 11, 3 / 11, 1, 1, 0, 0],
        [0, 8 / 11, 8 / 11, 0, 1, 0, 0, 1], [1, 2 / 11, -2 / 11, 0, 1, 0, 1, 0],
        [1, 1 / 11, 1 / 11, 0, 30 / 45, 1, 0, 0], [1, 12 / 32, 16 / 32, 0, 0, 1],
    )  # fmt: skip
    np.testing.assert_allclose(env.obs[0], [marauder, marine, medivac], atol=1e-6)
    np.testing.assert_allclose(
        env.state[0],
        columns(
            [1, 0, -6 / 32, 0, 0, 1, 0], [30 / 45, 0.5, -3 / 32, 0, 1, 0, 0], [1, 0.3, -4 / 32, 0, 0, 0, 1],
            [0.8, 2 / 32, 0, 0, 1, 0], [1, 0, 3 / 32, 1, 0, 0], [1, 4 / 32, 0, 0, 0, 1], np.zeros(27),
        ),
        atol=1e-6,
    )  # fmt: skip


def test_two_protoss_see_what_smacv2_would_show_them(battle):
    env = battle(
        "protoss",
        [("colossus", 0.5, 20.0), ("stalker", 4.0, 30.5, {"shield": 40.0, "cooldown": 14.0})],
        [("zealot", 4.0, 22.5, {"health": 50.0, "shield": 0.0}), ("stalker", 7.5, 20.0), ("colossus", 28.0, 20.0)],
    )
    assert (env.spec.obs_size, env.spec.state_size) == (47, 55)
    assert [mask(env, i) for i in range(2)] == ["011111110", "011111000"]
    none = np.zeros(9)
    colossus = columns(
        np.ones(4), [1, np.sqrt(18.5) / 10, 0.35, 0.25, 0.5, 0, 0, 1, 0], [1, 0.7, 0.7, 0, 1, 1, 1, 0, 0], none, none,
        [1, 1, 0.5 / 32, 20 / 32, 0, 0, 1],
    )  # fmt: skip
    stalker = columns(
        np.ones(4), [0, 0.8, 0, -0.8, 0.5, 0, 0, 1, 0], none, none, none, [1, 0.5, 4 / 32, 30.5 / 32, 1, 0, 0]
    )
    np.testing.assert_allclose(env.obs[0], [colossus, stalker], atol=1e-6)
    np.testing.assert_allclose(
        env.state[0],
        columns(
            [1, 0, -15.5 / 32, 4 / 32, 1, 0, 0, 1], [1, 0.4, -12 / 32, 14.5 / 32, 0.5, 1, 0, 0],
            [0.5, -12 / 32, 6.5 / 32, 0, 0, 1, 0], [1, -8.5 / 32, 4 / 32, 1, 1, 0, 0],
            [1, 12 / 32, 4 / 32, 1, 0, 0, 1], np.zeros(18),
        ),
        atol=1e-6,
    )  # fmt: skip


def test_three_zerg_see_what_smacv2_would_show_them(battle):
    env = battle(
        "zerg",
        [("baneling", 13.0, 10.0), ("hydralisk", 12.0, 10.0, {"health": 60.0, "cooldown": 5.0}),
         ("zergling", 10.0, 10.0)],
        [("hydralisk", 16.0, 10.0, {"health": 40.0}), ("baneling", 18.0, 10.0),
         ("zergling", 17.0, 12.0, {"health": 10.0})],
    )  # fmt: skip
    assert [mask(env, i) for i in range(3)] == ["011111000", "011111100", "011111000"]
    none, hurt = np.zeros(8), 10 / 35
    baneling = columns(
        np.ones(4), [0, 3 / 8, 3 / 8, 0, 0.5, 0, 1, 0], [0, 5 / 8, 5 / 8, 0, 1, 0, 0, 1],
        [0, np.sqrt(20) / 8, 4 / 8, 2 / 8, hurt, 1, 0, 0], [1, 1 / 8, -1 / 8, 0, 0.75, 0, 1, 0],
        [1, 3 / 8, -3 / 8, 0, 1, 1, 0, 0], [1, 13 / 32, 10 / 32, 0, 0, 1],
    )  # fmt: skip
    hydralisk = columns(
        np.ones(4), [1, 4 / 9, 4 / 9, 0, 0.5, 0, 1, 0], [0, 6 / 9, 6 / 9, 0, 1, 0, 0, 1],
        [0, np.sqrt(29) / 9, 5 / 9, 2 / 9, hurt, 1, 0, 0], [1, 1 / 9, 1 / 9, 0, 1, 0, 0, 1],
        [1, 2 / 9, -2 / 9, 0, 1, 1, 0, 0], [0.75, 12 / 32, 10 / 32, 0, 1, 0],
    )  # fmt: skip
    zergling = columns(
        np.ones(4), [0, 0.75, 0.75, 0, 0.5, 0, 1, 0], none, [0, np.sqrt(53) / 8, 7 / 8, 2 / 8, hurt, 1, 0, 0],
        [1, 3 / 8, 3 / 8, 0, 1, 0, 0, 1], [1, 2 / 8, 2 / 8, 0, 0.75, 0, 1, 0], [1, 10 / 32, 10 / 32, 1, 0, 0],
    )  # fmt: skip
    np.testing.assert_allclose(env.obs[0], [baneling, hydralisk, zergling], atol=1e-6)
    np.testing.assert_allclose(
        env.state[0, :39],
        columns(
            [1, 0, -3 / 32, -6 / 32, 0, 0, 1], [0.75, 0.5, -4 / 32, -6 / 32, 0, 1, 0],
            [1, 0, -6 / 32, -6 / 32, 1, 0, 0], [0.5, 0, -6 / 32, 0, 1, 0], [1, 2 / 32, -6 / 32, 0, 0, 1],
            [hurt, 1 / 32, -4 / 32, 1, 0, 0],
        ),
        atol=1e-6,
    )  # fmt: skip


def test_with_more_allies_than_enemies_each_ally_is_a_patient_with_a_number(battle):
    env = battle(
        "terran",
        [("marauder", 10.0, 16.0), *[("marine", 11.0 + i, 16.0) for i in range(3)], ("medivac", 12.0, 17.0)],
        [("marine", 28.0, 16.0)] * 3,
    )
    assert env.spec.n_actions == 6 + 5
    assert env.spec.state_size == 5 * 7 + 3 * 6 + 5 * 11
    assert mask(env, 4) == "01111111110"
    assert mask(env, 0) == "01111100000"
    zerg = battle("zerg", [("zergling", 10.0, 16.0)] * 4, [("zergling", 28.0, 16.0)] * 3)
    assert zerg.spec.n_actions == 6 + 3


def still(env):
    """All agents stop; the dead do nothing."""
    return np.where(env.units["health"][:, : env.spec.n_agents] > 0.0, 1, 0)


def test_regeneration_of_the_enemies_costs_what_damage_earned_and_never_pays(battle):
    env = battle(
        "zerg",
        [("zergling", 2.0, 2.0)],
        [("hydralisk", 30.0, 30.0, {"health": 40.0}), ("zergling", 30.0, 28.0, {"health": 10.0})],
    )
    env.step(still(env))
    assert env.reward[0] == 0.0
    signed = battle(
        "zerg",
        [("zergling", 2.0, 2.0)],
        [("hydralisk", 30.0, 30.0, {"health": 40.0})],
        rewards=Rewards(only_positive=False),
    )
    signed.step(still(signed))
    assert signed.reward[0] == pytest.approx(-8 * 0.2734 / 16 / ((200 + 10 + 80) / 20), rel=1e-3)


def finish(env, dead):
    env.units["health"][0, dead] = 0.0
    env.units["bursting"][0, dead] = False
    env.show()
    env.step(still(env))
    return bool(env.terminated[0]), bool(env.won[0])


SIDES = (
    [("marine", 4.0, 4.0), ("medivac", 5.0, 4.0)],
    [("marine", 28.0, 28.0), ("medivac", 27.0, 28.0), ("medivac", 28.0, 27.0)],
)


@pytest.mark.parametrize(
    ("dead", "won"), [([0], False), ([2], True), ([0, 2], False)], ids=["allies", "enemies", "both"]
)
def test_a_side_with_medivacs_alone_has_lost_however_many_and_the_allies_first(battle, dead, won):
    assert finish(battle("terran", *SIDES), dead) == (True, won)


def stood(env, ticks=8):
    """Play some steps in which the agents stop; returns the enemies' targets."""
    for _ in range(ticks // 8):
        env.step(still(env))
    return env.units["target"][0, env.spec.n_agents :].tolist()


@pytest.mark.parametrize("offset", range(8))
def test_an_idle_enemy_attacks_the_nearest_ally_wherever_it_is(battle, offset):
    env = battle("terran", [("marine", 5.0, 16.0), ("marine", 6.0, 16.0)], [("marine", 26.0, 16.0)], offset=offset)
    assert stood(env) == [1]
    assert env.units["x"][0, 2] < 26.0


def test_an_enemy_stays_with_its_target_when_another_is_nearer_and_shoots_at_it(battle):
    env = battle("terran", [("marine", 5.0, 16.0), ("marine", 6.0, 16.0)], [("marine", 26.0, 16.0)])
    assert stood(env) == [1]
    env.units["x"][0, 1] = 3.0
    assert stood(env) == [1]
    env.units["x"][0, 0], env.units["y"][0, 0] = 22.0, 16.0
    env.show()
    for _ in range(2):
        env.step(np.array([[6, 1]]))
        assert env.units["health"][0, 2] < 45.0
        assert env.units["target"][0, 2] == 1


def test_after_its_target_s_death_an_enemy_looks_round_and_then_waits_for_the_next_order(battle):
    for far, within in ((3.0, 1), (15.0, 8)):
        env = battle("terran", [("marine", 5.0, 16.0), ("marine", 6.0, 16.0)], [("marine", 26.0, 16.0)])
        stood(env)
        env.units["x"][0, 2] = 10.0
        env.units["x"][0, 0] = 10.0 - far if far < 10 else 25.0
        env.units["health"][0, 1] = 0.0
        env.show()
        ticks = Ticks(env)
        assert ticks.until(lambda target: target == 0) <= within + 1  # one tick until the death is noticed


class Ticks:
    """Plays tick by tick: a step of a battle like the given one takes one."""

    def __init__(self, env) -> None:
        self.env = env
        env._rules["ticks"] = 1

    def until(self, condition) -> int:
        for tick in range(1, 20):
            self.env.step(still(self.env))
            if condition(self.env.units["target"][0, self.env.spec.n_agents]):
                return tick
        raise AssertionError("it never happened")


def test_an_enemy_that_cannot_attack_the_nearest_ally_waits_until_another_is_nearer(battle):
    env = battle("terran", [("marine", 12.0, 16.0), ("medivac", 14.0, 16.0)], [("marauder", 26.0, 16.0)])
    assert stood(env, 24) == [-1]
    assert env.units["x"][0, 2] == 26.0
    env.units["x"][0, 1] = 11.0
    assert stood(env) == [0]


def test_an_enemy_that_has_chosen_somebody_itself_gets_no_order(battle):
    env = battle("terran", [("marine", 23.0, 16.0), ("medivac", 24.0, 16.0)], [("marine", 26.0, 16.0)])
    assert stood(env, 16) == [0]  # who is armed, although the Medivac is nearer


def test_an_enemy_medivac_hovers_until_somebody_is_hurt(battle):
    env = battle("terran", [("marine", 2.0, 2.0)], [("medivac", 26.0, 16.0), ("marauder", 28.0, 16.0)])
    assert stood(env, 16) == [-1, 0]
    assert (env.units["x"][0, 1], env.units["y"][0, 1]) == (26.0, 16.0)
    env.units["x"][0, 2], env.units["y"][0, 2], env.units["health"][0, 2] = 28.0, 22.5, 60.0
    assert stood(env) == [2, 0]
    assert env.units["y"][0, 1] > 16.0


def test_the_hunted_unit_draws_its_hunters_along_and_the_others_are_left_alone(battle):
    hunters = [("marine", 26.0, 15.0), ("marine", 26.0, 17.0)]
    env = battle("terran", [("marine", 6.0, 16.0), ("marine", 5.0, 4.0)], hunters)
    while env.units["health"][0, 0] > 12.0:
        env.step(np.array([[2 if env.battles["steps"][0] % 2 else 3, 1]]))
        assert env.units["target"][0, 2:].tolist() == [0, 0]
    assert env.units["health"][0, 1] == 45.0


def test_the_orders_to_idle_enemies_come_in_another_tick_in_each_episode():
    env = Skirmish("terran_5_vs_5", 256, seed=1)
    env.reset()
    counts = np.bincount(env.battles["offset"], minlength=8)
    assert len(counts) == 8
    assert counts.min() > 10


# The later edition's filter


def blocks(env, i):
    """The enemies' parts of agent i's observation, (E, …)."""
    enemies, width = env.features.enemy_shape(env.scenario)
    return env.obs[0, i, 4 : 4 + enemies * width].reshape(enemies, width)


def seen(env):
    """Of each agent, the enemies that it sees."""
    return [np.flatnonzero(blocks(env, i)[:, 1:].any(axis=1)).tolist() for i in range(env.spec.n_agents)]


def filtered(battle, allies, enemies, *, edition="2023", prob=1.0, **options):
    """A battle in which somebody has looked: after a step in which the agents stopped and nobody was hurt."""
    env = battle("terran", allies, enemies, features=Features(edition=edition, prob_obs_enemy=prob), **options)
    env.units["order"][0, len(allies) :] = ATTACK  # nobody: so they do nothing
    env.units["finder"][0], env.units["known_to"][0] = -1, 0
    env.step(still(env))
    return env


NEAR, FAR = ("marine", 9.0, 16.0), ("marine", 30.0, 16.0)
TWO = [("marine", 6.0, 16.0), ("marine", 6.0, 17.0)]


@pytest.mark.parametrize(
    ("edition", "enemies", "expected"),
    [
        ("2022", [NEAR, FAR], [[0], [0]]),
        ("2023", [NEAR, FAR], [[], []]),
        ("2023", [FAR, NEAR], [[1], [1]]),
        ("2023-intended", [NEAR, FAR], [[0], [0]]),
    ],
)
def test_as_published_an_enemy_that_nobody_has_found_hides_those_of_lower_number(battle, edition, enemies, expected):
    assert seen(filtered(battle, TWO, enemies, edition=edition)) == expected


def test_without_word_of_mouth_the_finder_alone_sees_an_enemy_and_remembers_it(battle):
    finders = set()
    for seed in range(20):
        env = filtered(battle, TWO, [NEAR], prob=0.0, seed=seed)
        (finder,) = [i for i, enemies in enumerate(seen(env)) if enemies]
        finders.add(finder)
        assert env.units["finder"][0, 2] == finder
        env.units["x"][0, finder] = 28.0
        env.step(still(env))
        assert seen(env) == [[], []]
        env.units["x"][0, finder] = 6.0
        env.step(still(env))
        assert seen(env) == [[0] if i == finder else [] for i in range(2)]
    assert finders == {0, 1}  # they look in random order


@pytest.mark.parametrize("edition", ["2023", "2023-intended"])
def test_when_its_finder_dies_an_enemy_can_be_found_anew(battle, edition):
    env = filtered(battle, TWO, [NEAR], prob=0.0, edition=edition)
    finder = int(env.units["finder"][0, 2])
    env.units["health"][0, finder] = 0.0
    env.show()
    env.step(still(env))
    assert env.units["finder"][0, 2] == 1 - finder
    assert seen(env)[1 - finder] == [0]
    assert not env.units["known_to"][0, 2] >> finder & 1


def test_a_dead_enemy_is_forgotten_and_found_by_who_sees_its_corpse(battle):
    env = filtered(battle, TWO, [NEAR, ("marine", 8.0, 16.0), FAR], edition="2023-intended")
    assert seen(env) == [[0, 1], [0, 1]]
    env.units["health"][0, 2] = 0.0
    env.units["x"][0, 2] = 30.0
    env.step(still(env))
    assert env.units["finder"][0, 2:].tolist()[0] == -1
    assert seen(env) == [[1], [1]]


def test_word_of_an_enemy_spreads_with_the_probability(battle):
    heard = 0
    for seed in range(200):
        env = filtered(battle, TWO, [NEAR], prob=0.25, seed=seed)
        heard += seen(env) == [[0], [0]]
    assert 25 <= heard <= 75  # 50 expected, four standard deviations


def test_without_a_mask_all_living_are_offered_and_who_is_out_of_reach_changes_nothing(battle):
    env = battle(
        "terran",
        [("marauder", 9.0, 16.0), ("marine", 13.0, 16.0), ("medivac", 12.0, 16.0)],
        [("marine", 30.0, 16.0), ("marine", 16.0, 16.0), ("marine", 30.0, 20.0)],
        features=Features(action_mask=False),
    )
    env.units["health"][0, 5] = 0.0
    env.show()
    assert [mask(env, i) for i in range(3)] == ["011111110", "011111110", "011111110"]
    assert [blocks(env, i)[1, 0] for i in range(2)] == [0.0, 1.0]  # attackable, to range
    env.step(np.array([[2, 2, 1]]))
    goal = env.units["goal_y"][0, :2].tolist()
    env.step(np.array([[6, 7, 6]]))
    orders, targets = env.units["order"][0, :3].tolist(), env.units["target"][0, :3].tolist()
    assert orders == [1, 2, 2]
    assert targets == [-1, 4, 0]
    assert env.units["goal_y"][0, 0] == goal[0]
    assert env.units["last_action"][0, :3].tolist() == [6, 7, 6]


def test_observations_may_hold_everybody_or_nothing_but_the_time(battle):
    everybody = battle("terran", TWO, [NEAR, FAR], features=Features(fully_observable=True))
    assert seen(everybody) == [[0, 1], [0, 1]]
    assert mask(everybody, 0) == "01111110"
    for timestep, size in ((True, 1), (False, 0)):
        env = battle("terran", TWO, [NEAR, FAR], features=Features(obs_starcraft=False, obs_timestep_number=timestep))
        env.step(still(env))
        assert env.obs.shape == (1, 2, size)
        assert (env.obs == 1 / 200).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"edition": "2024"}, "edition is '2024', must be one of 2022, 2023, 2023-intended"),
        ({"prob_obs_enemy": 1.5}, "prob_obs_enemy is 1.5, must be between 0 and 1"),
    ],
)
def test_wrong_options_of_the_filter_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        Features(**options)


def test_a_filter_for_more_agents_than_a_number_has_bits_is_refused(battle):
    with pytest.raises(ValueError, match="edition '2023' is for 62 agents at most, not for 63"):
        battle("zerg", [("zergling", 5.0, 5.0)] * 63, [("zergling", 25.0, 25.0)], features=Features(edition="2023"))


def test_a_battle_with_a_filter_repeats_with_its_seed(at_random):
    features = Features(edition="2023", prob_obs_enemy=0.3)
    many, alone = (
        Skirmish("zerg_10_vs_11", n, seed=5, first=first, features=features) for n, first in ((3, 0), (1, 2))
    )
    for env in (many, alone):
        env.reset()
    for _ in range(20):
        assert (many.obs[2] == alone.obs[0]).all()
        actions = at_random(many, np.random.default_rng(1))
        many.step(actions)
        alone.step(actions[2:])
        many.reset(many.battles["over"].copy())
        alone.reset(alone.battles["over"].copy())


# Rewards of hand-made steps


def judged(env, before, after):
    """The reward of a step in which health and shield of some units go from one sum to another, and how it ended."""
    for i, (was, is_now) in enumerate(zip(before, after, strict=True)):
        env.units["before"][0, i], env.units["health"][0, i], env.units["shield"][0, i] = was, is_now, 0.0
    outcome = (env.reward, env.terminated, env.truncated, env.won)
    records_of = [array.view(np.recarray) for array in (env.units, env.battles, env.kinds, env._rules)]
    units, battles, kinds, rules = records_of
    getattr(judge, "py_func", judge)(0, units[0], battles[0], kinds[0], rules[0], outcome)
    return float(env.reward[0]), bool(env.terminated[0]), bool(env.won[0])


def test_three_steps_of_zerg_earn_what_smacv2_would_pay(battle):
    env = battle(
        "zerg",
        [("baneling", 13.0, 10.0), ("hydralisk", 12.0, 10.0), ("zergling", 10.0, 10.0)],
        [("hydralisk", 16.0, 10.0), ("baneling", 18.0, 10.0), ("zergling", 17.0, 12.0)],
    )
    assert env.battles["divisor"][0] == 18.75
    ours = (30.0, 60.0, 35.0)
    steps = [
        ((40.0, 30.0, 10.0), (28.0, 30.0, 0.0), 1.706667, False),
        ((28.0, 30.0, 0.0), (28.136704, 30.0, 0.0), 0.0, False),
        ((28.136704, 30.0, 0.0), (0.0, 0.0, 0.0), 14.833958, True),
    ]
    for before, after, reward, won in steps:
        assert judged(env, ours + before, ours + after) == (pytest.approx(reward, abs=1e-5), won, won)


@pytest.mark.parametrize(
    ("after", "reward", "won"),
    [
        ((0.0, 150.0, 45.0, 150.0), 0.0, False),
        ((45.0, 150.0, 0.0, 150.0), 12.289157, True),
        ((0.0, 150.0, 0.0, 150.0), 2.650602, False),
    ],
)
def test_the_ends_of_terran_battles_pay_what_smacv2_would(battle, after, reward, won):
    env = battle(
        "terran", [("marine", 4.0, 4.0), ("medivac", 5.0, 4.0)], [("marine", 28.0, 28.0), ("medivac", 27.0, 28.0)]
    )
    assert env.battles["divisor"][0] == 20.75
    assert judged(env, (45.0, 150.0, 45.0, 150.0), after) == (pytest.approx(reward, abs=1e-5), True, won)


# The distributions by SMACv2's names


def test_the_distributions_have_smacv2_s_names_and_draw_what_the_battle_draws():
    config = {
        "n_units": 5, "n_enemies": 8, "map_x": 32, "map_y": 32, "p": 0.3, "env_key": "team_gen", "seed": 1,
        "unit_types": ["marine", "marauder", "medivac"], "weights": [0.45, 0.45, 0.1],
        "exception_unit_types": ["medivac"], "mask_probability": 0.9, "lower_bound": [0.2], "upper_bound": [0.4],
    }  # fmt: skip
    teams = get_distribution("weighted_teams")(config)
    kinds = []
    for _ in range(1000):
        drawn = teams.generate()["team_gen"]
        assert drawn["enemy_team"][:5] == drawn["ally_team"]
        assert set(drawn["ally_team"]) != {"medivac"} != set(drawn["enemy_team"][5:])
        kinds += drawn["ally_team"]
    shares = [kinds.count(name) / len(kinds) for name in config["unit_types"]]
    np.testing.assert_allclose(shares, config["weights"], atol=0.03)
    both = get_distribution("surrounded_and_reflect")(config)
    surrounded, groups = 0, set()
    for _ in range(500):
        drawn = both.generate()
        ours, theirs = drawn["ally_start_positions"]["item"], drawn["enemy_start_positions"]["item"]
        assert (ours.shape, theirs.shape) == ((5, 2), (8, 2))
        if (ours == 16.0).all():
            surrounded += 1
            out = np.abs(theirs - 16.0)
            assert ((out > 2.0) & (out <= 16.0)).all()
            np.testing.assert_allclose(out[:, 0], out[:, 1])
            groups.add(len(np.unique(theirs, axis=0)))
        else:
            assert (theirs[:5] == np.column_stack([32.0 - ours[:, 0], ours[:, 1]])).all()
            assert ours[:, 0].max() <= 15.0
            assert theirs[5:, 0].min() >= 16.0
    assert 0.6 < surrounded / 500 < 0.8  # with probability p they mirror each other
    assert groups == {1, 2, 3, 4}
    hidden = [get_distribution("mask")(config | {"seed": k}).generate()["enemy_mask"]["item"] for k in range(100)]
    assert 0.07 < np.mean(hidden) < 0.13
    numbers = get_distribution("per_agent_uniform")(config).generate()["team_gen"]["item"]
    assert numbers.shape == (5, 1)
    assert ((numbers >= 0.2) & (numbers <= 0.4)).all()
    every = get_distribution("all_teams")(config)
    assert every.n_tasks == 20  # 21 armies of five, without that of Medivacs alone
    assert len({every.generate()["team_gen"]["id"] for _ in range(300)}) == 20
    fixed = get_distribution("fixed")(config | {"items": [3, 4], "test_mode": True, "env_key": "attack"})
    assert [fixed.generate()["attack"]["item"] for _ in range(3)] == [3, 4, 3]
    assert fixed.n_tasks == 2
    for name in ("surrounded", "reflect_position"):
        assert get_distribution(name)(config).n_tasks == np.inf
    with pytest.raises(ValueError, match="there is no distribution 'cone'; there are weighted_teams, all_teams"):
        get_distribution("cone")


def test_smacv2_s_import_names_lead_to_the_same_classes():
    names = {
        "": ("MultiAgentEnv", "StarCraft2Env"),
        ".starcraft2.starcraft2": ("StarCraft2Env",),
        ".starcraft2.wrapper": ("StarCraftCapabilityEnvWrapper",),
        ".starcraft2.maps": ("get_map_params",),
        ".starcraft2.maps.smac_maps": ("get_map_params", "get_smac_map_registry"),
        ".starcraft2.distributions": ("Distribution", "get_distribution", "register_distribution"),
    }
    for module, members in names.items():
        found = import_module(f"components.envs.skirmish.env{module}")
        assert found.__all__ == list(members)
    from components.envs.skirmish.env.starcraft2.maps import get_map_params

    params = get_map_params("10gen_protoss")
    assert params == {
        "n_agents": 10, "n_enemies": 10, "limit": 200, "a_race": "P", "b_race": "P", "unit_type_bits": 3,
        "map_type": "protoss_gen", "map_name": "32x32_flat",
    }  # fmt: skip
