"""Armies that are drawn anew for each episode, as in SMACv2."""

import numpy as np
import pytest

from components.envs import SCENARIOS, Features, Skirmish

DRAWN = [name for name, scenario in SCENARIOS.items() if scenario.draw is not None]


def starts(name, episodes, **options):
    """Types (numbers), x and y of each unit at the start of so many episodes."""
    env = Skirmish(name, episodes, **options)
    env.reset()
    return env.kinds["type_row"].copy(), env.kinds["start_x"].copy(), env.kinds["start_y"].copy()


@pytest.mark.parametrize("name", DRAWN)
def test_a_drawn_scenario_has_the_sizes_of_its_name(name):
    race, allies, _, enemies = name.split("_")
    spec = Skirmish(name).spec
    shield = int(race == "protoss")
    assert (spec.n_agents, spec.n_actions, spec.episode_limit) == (int(allies), 6 + int(enemies), 200)
    other = 5 + shield + 3
    assert spec.obs_size == 4 + int(enemies) * other + (int(allies) - 1) * other + 1 + shield + 2 + 3
    assert spec.state_size == int(allies) * (8 + shield - 1 + spec.n_actions) + int(enemies) * (6 + shield)
    assert Features(obs_own_position=False).obs_size(SCENARIOS[name]) == spec.obs_size - 2


SIZES = {
    "terran_5_vs_5": (11, 82, 120),
    "zerg_10_vs_10": (16, 162, 290),
    "terran_10_vs_11": (17, 170, 306),
    "zerg_20_vs_20": (26, 322, 780),
    "terran_20_vs_23": (29, 346, 858),
    "protoss_5_vs_5": (11, 92, 130),
    "protoss_10_vs_10": (16, 182, 310),
    "protoss_10_vs_11": (17, 191, 327),
    "protoss_20_vs_20": (26, 362, 820),
    "protoss_20_vs_23": (29, 389, 901),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_those_of_smacv2_with_the_published_configuration(name):
    spec = Skirmish(name).spec
    assert (spec.n_actions, spec.obs_size, spec.state_size) == SIZES[name]


@pytest.mark.parametrize(
    ("name", "weights"), [("terran_10_vs_10", (0.45, 0.45, 0.1)), ("zerg_10_vs_10", (0.45, 0.45, 0.1))]
)
def test_types_are_drawn_by_their_weights(name, weights):
    types, _, _ = starts(name, 1000)
    shares = np.bincount(types[:, :10].ravel(), minlength=3) / 10_000
    np.testing.assert_allclose(shares, weights, atol=0.02)  # four standard deviations


def test_the_enemies_are_of_the_allies_types_and_further_ones_are_drawn():
    types, _, _ = starts("protoss_20_vs_23", 200)
    assert (np.sort(types[:, :20]) == np.sort(types[:, 20:40])).all()
    assert len({tuple(row) for row in types[:, 40:].tolist()}) > 5


@pytest.mark.parametrize(
    ("race", "columns", "numbering"),
    [
        ("protoss", ["stalker", "zealot", "colossus"], ["colossus", "stalker", "zealot"]),
        ("terran", ["marine", "marauder", "medivac"], ["marauder", "marine", "medivac"]),
        ("zerg", ["zergling", "hydralisk", "baneling"], ["baneling", "hydralisk", "zergling"]),
    ],
)
def test_agents_are_numbered_by_the_name_of_their_type_and_columns_have_an_order_of_their_own(race, columns, numbering):
    env = Skirmish(f"{race}_10_vs_11", 64, seed=3)
    env.reset()
    assert [unit.name for unit in env.scenario.ally_types] == columns
    for b in range(64):
        names = [unit.name for unit in env.types_in(b)]
        keys = [
            (numbering.index(name), env.units["x"][b, i], env.units["y"][b, i]) for i, name in enumerate(names[:10])
        ]
        assert keys == sorted(keys)
        bits = env.obs[b, :, -3:].argmax(axis=1)
        assert [columns[bit] for bit in bits] == names[:10]


def test_enemies_are_numbered_in_the_order_in_which_they_were_drawn():
    types, x, y = starts("zerg_10_vs_10", 200)
    names = np.sort(types[:, 10:], axis=1)
    assert (types[:, 10:] != names).any(axis=1).mean() > 0.9  # not by type
    mirrored = np.abs(x[:, :10] - 16).max(axis=1) > 6
    assert 50 < mirrored.sum() < 150
    for b in np.flatnonzero(mirrored):
        ours = {(32 - x[b, i], y[b, i]): types[b, i] for i in range(10)}
        assert {(x[b, e], y[b, e]): types[b, e] for e in range(10, 20)} == ours  # each opposite to one of its type


def test_nobody_gets_an_army_of_medivacs():
    types, _, _ = starts("terran_5_vs_5", 4000)
    medivacs = SCENARIOS["terran_5_vs_5"].ally_types[2]
    assert medivacs.name == "medivac"
    assert (types[:, :5] == 2).sum(axis=1).max() <= 4
    lonely, _, _ = starts("terran_10_vs_11", 1000)
    assert (lonely[:, 20] != 2).all()  # the one further enemy is an army of its own


def test_half_of_the_episodes_begin_surrounded_and_half_mirrored():
    _, x, y = starts("terran_5_vs_5", 1000)
    surrounded = (np.abs(x[:, :5] - 16).max(axis=1) < 2) & (np.abs(y[:, :5] - 16).max(axis=1) < 2)
    assert 0.45 < surrounded.mean() < 0.55
    mirrored = ~surrounded
    np.testing.assert_array_equal(np.sort(x[mirrored, 5:]), np.sort(32 - x[mirrored, :5]))
    np.testing.assert_array_equal(np.sort(y[mirrored, 5:]), np.sort(y[mirrored, :5]))
    assert x[mirrored, :5].max() < 15
    assert x[mirrored, :5].min() < 0.5
    assert y[mirrored, :5].max() > 31


def test_surrounding_enemies_stand_in_one_to_four_groups_on_the_diagonals():
    _, x, y = starts("zerg_20_vs_20", 400)
    surrounded = np.abs(x[:, :20] - 16).max(axis=1) < 6
    east, north = x[surrounded, 20:] > 16, y[surrounded, 20:] > 16
    sides = [len(set(zip(e.tolist(), n.tolist(), strict=True))) for e, n in zip(east, north, strict=True)]
    assert set(sides) == {1, 2, 3, 4}
    numbers = [np.flatnonzero(np.diff(2 * e + n)) for e, n in zip(east.astype(int), north.astype(int), strict=True)]
    assert all(len(changes) == count - 1 for changes, count in zip(numbers, sides, strict=True))  # groups in order
    opposite = [e.any() and not e.all() and (e == n).all() for e, n in zip(east, north, strict=True)]
    assert any(opposite)  # of two groups, any two diagonals


def test_what_is_drawn_depends_on_the_battle_s_seed_and_episode_alone():
    many = Skirmish("protoss_10_vs_11", 5, seed=3)
    alone = Skirmish("protoss_10_vs_11", 1, seed=3, first=4)
    for _ in range(3):
        many.reset()
        alone.reset()
        assert many.kinds[4].tobytes() == alone.kinds[0].tobytes()
        assert many.obs[4].tobytes() == alone.obs[0].tobytes()
    assert many.kinds[0].tobytes() != many.kinds[1].tobytes()


def test_a_perfect_win_is_worth_20_whomever_it_was_over():
    env = Skirmish("terran_5_vs_5", 8, seed=2)
    env.reset()
    pool = (env.kinds["health"] + env.kinds["shield"])[:, 5:].sum(axis=1)
    np.testing.assert_allclose(env.battles["divisor"], (pool + 5 * 10 + 200) / 20)


def test_agents_see_and_shoot_as_far_as_their_units_do():
    env = Skirmish("protoss_5_vs_5", 64, seed=1)
    env.reset()
    names = np.array([[unit.name for unit in env.types_in(b)] for b in range(64)])
    for name, sight, shoot in (("stalker", 10, 6), ("zealot", 9, 2), ("colossus", 10, 7)):
        assert set(env.kinds["sight"][names == name]) == {sight}
        assert set(env.kinds["shoot"][names == name]) == {shoot}
    dx = env.units["x"][:, :5, None] - env.units["x"][:, None, 5:]
    dy = env.units["y"][:, :5, None] - env.units["y"][:, None, 5:]
    far = np.hypot(dx, dy)
    assert (env.available[:, :, 6:] == (far <= env.kinds["shoot"][:, :5, None])).all()
    seen = env.obs[:, :, 4 : 4 + 5 * 9].reshape(64, 5, 5, 9)[..., 1] > 0
    assert (seen == (far < env.kinds["sight"][:, :5, None])).all()


def test_own_positions_are_seen_where_armies_are_drawn():
    env = Skirmish("zerg_5_vs_5", 3)
    env.reset()
    np.testing.assert_allclose(
        env.obs[:, :, -5:-3] * 32, np.stack([env.units["x"], env.units["y"]], -1)[:, :5], rtol=1e-6
    )


def test_a_snapshot_holds_what_was_drawn(at_random):
    env = Skirmish("zerg_10_vs_11", 2, seed=1)
    env.reset()
    kept = env.snapshot()
    other = Skirmish("zerg_10_vs_11", 2, seed=9)
    other.reset()
    other.restore(kept)
    for step in range(10):
        actions = at_random(env, np.random.default_rng(step))
        env.step(actions)
        other.step(actions)
        assert env.obs.tobytes() == other.obs.tobytes()
