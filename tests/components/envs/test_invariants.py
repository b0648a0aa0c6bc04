"""What holds in every battle, whatever agents do: on all maps, under random play."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from components.envs import SCENARIOS, Skirmish

SHIELD_REST = 160


def check_places(env):
    terrain, kinds = env.scenario.terrain, env.kinds
    walks = np.broadcast_to(kinds["layer"] != 2, env.units.shape)
    giant = np.broadcast_to(kinds["layer"] == 1, env.units.shape).astype(int)
    radius = np.broadcast_to(kinds["radius"], env.units.shape)
    x, y = env.units["x"], env.units["y"]
    for place in (x, y):
        assert ((place >= radius) & (place <= 32 - radius)).all()
    assert (x >= terrain.west + radius)[walks].all()
    assert (x <= terrain.east - radius)[walks].all()
    assert (y >= terrain.south + radius)[walks].all()
    assert (y <= terrain.north - radius)[walks].all()
    assert (terrain.footing()[giant, x.astype(int), y.astype(int)] > 0)[walks].all()


def check_health(env, before):
    units, kinds, agents = env.units, env.kinds, env.spec.n_agents
    health, shield = units["health"], units["shield"]
    assert ((health >= 0) & (health <= kinds["health"])).all()
    assert ((shield >= 0) & (shield <= kinds["shield"])).all()
    assert ((units["energy"] >= 0) & (units["energy"] <= 200)).all()
    assert (health[before["health"] == 0] == 0).all()  # the dead stay dead
    assert not units["bursting"].any()
    healers = (kinds["healing"] > 0) & (before["health"] > 0)
    helped = np.zeros(units.shape, dtype=np.bool_)
    helped[:, :agents] = healers[:, :agents].any(axis=1)[:, None]
    helped[:, agents:] = healers[:, agents:].any(axis=1)[:, None]
    assert ((health <= before["health"]) | (kinds["regeneration"] > 0) | (helped & kinds["biological"])).all()
    assert ((shield <= before["shield"]) | (units["quiet"] > SHIELD_REST)).all()


def check_cooldowns(env, before):
    """With steps of one tick: nobody shoots before its weapon is ready."""
    units, kinds = env.units, env.kinds
    shot = (units["cooldown"] > before["cooldown"]) & (units["cooldown"] > 0)
    assert (before["cooldown"][shot] <= 1.0).all()
    least = np.broadcast_to(kinds["period"] - kinds["damage_point"] - 2.0, units.shape)
    assert (units["cooldown"][shot] >= least[shot]).all()


def check_views(env):
    units, kinds, agents = env.units, env.kinds, env.spec.n_agents
    assert np.abs(env.obs).max() <= 1.0
    assert np.isfinite(env.state).all()
    assert env.available.any(axis=2).all()
    alive = units["health"] > 0
    assert (env.available[:, :, 0] == ~alive[:, :agents]).all()
    assert not env.obs[~alive[:, :agents]].any()
    dx = units["x"][:, None, :] - units["x"][:, :agents, None]
    dy = units["y"][:, None, :] - units["y"][:, :agents, None]
    near = dx * dx + dy * dy < kinds["sight"][:, :agents, None] ** 2
    seen = near & alive[:, None, :] & alive[:, :agents, None]
    rows, width = env.features.enemy_shape(env.scenario)
    blocks = env.obs[:, :, 4 : 4 + rows * width].reshape(*env.obs.shape[:2], rows, width)
    assert (blocks[..., 1:].any(axis=3) == seen[:, :, agents:]).all()  # what is out of sight is zero
    friends, width = env.features.ally_shape(env.scenario)
    start = 4 + rows * env.features.enemy_shape(env.scenario)[1]
    blocks = env.obs[:, :, start : start + friends * width].reshape(*env.obs.shape[:2], friends, width)
    for i in range(agents):
        others = [j for j in range(agents) if j != i]
        assert (blocks[:, i].any(axis=2) == seen[:, i, others]).all()


def worth(env):
    """(B,) what all enemies and the win are worth before scaling."""
    enemies = slice(env.spec.n_agents, None)
    pool = (env.kinds["health"] + env.kinds["shield"])[:, enemies].sum(axis=1)
    return np.broadcast_to(pool + 10.0 * len(env.scenario.enemies) + 200.0, env.n_envs)


def check_reward(env, before):
    """The reward is exactly what the enemies lost in this step; returns (B,) how much of it they had regained."""
    enemies = slice(env.spec.n_agents, None)
    left, had = (u["health"][:, enemies] + u["shield"][:, enemies] for u in (env.units, before))
    died = (before["health"][:, enemies] > 0) & (env.units["health"][:, enemies] == 0)
    gained = (had - left + 10.0 * died).sum(axis=1)
    earned = (np.abs(gained) if env.scenario.draw is None else np.maximum(gained, 0.0)) + 200.0 * env.won
    np.testing.assert_allclose(env.reward, 20.0 * earned / worth(env), rtol=1e-5, atol=1e-6)
    return np.maximum(left - had, 0.0).sum(axis=1)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(SCENARIOS)),
    seed=st.integers(0, 2**40),
    jitter=st.sampled_from([0.0, 0.25, 8.0]),
    ruleset=st.sampled_from(["liberty", "lotv"]),
    difficulty=st.sampled_from([1, 3, 7]),
    step_mul=st.sampled_from([1, 8]),
    steps=st.integers(1, 80),
)
@example("6h_vs_8z", 0, 0.0, "liberty", 7, 1, 1)  # the spiral crossed the edge
@example("so_many_baneling", 0, 0.0, "liberty", 7, 8, 40)
@example("MMM2", 0, 0.0, "liberty", 7, 1, 300)
def test_whatever_agents_do_a_battle_stays_sane(name, seed, jitter, ruleset, difficulty, step_mul, steps):
    options = {"start_jitter": jitter, "ruleset": ruleset, "difficulty": difficulty, "step_mul": step_mul}
    env = Skirmish(name, 2, seed=seed, **options)
    env.reset()
    rng = np.random.default_rng(seed)
    total, regained = np.zeros(2), np.zeros(2)
    for _ in range(steps):
        before = env.units.copy()
        env.step(np.argmax(rng.random(env.available.shape) * env.available, axis=2))
        check_places(env)
        check_health(env, before)
        if step_mul == 1:
            check_cooldowns(env, before)
        check_views(env)
        assert np.allclose(np.hypot(env.units["facing_x"], env.units["facing_y"]), 1.0)
        assert (env.reward >= 0).all()
        assert not (env.terminated & env.truncated).any()
        assert not (env.won & ~env.terminated).any()
        total += env.reward
        regained += check_reward(env, before)
        # Health that came back may be taken again, and both count; without it, no more than 20 can be had.
        assert (total <= 20.0 + 20.0 * 2.0 * regained / worth(env) + 1e-4).all()
        over = env.terminated | env.truncated
        assert (over == env.battles["over"]).all()
        total[over] = regained[over] = 0.0
        env.reset(over)
