"""What a step is worth, and how an episode ends: hand-made battles, sums worked out beside them."""

import numpy as np
import pytest

from components.envs import Rewards, Skirmish

STOP, FIRST = 1, 6


def battle(name="8m", **keywords):
    env = Skirmish(name, 1, **keywords)
    env.reset()
    return env


def acting(env, action, agent=0):
    actions = env.available[:, :, STOP].astype(np.int64)
    actions[:, agent] = action
    return actions


def ours(**fields):
    return {"x": 14.0, "y": 16.0} | fields


def test_a_hit_is_worth_its_damage(stage, harmless):
    env = battle()
    stage(env, {0: ours()}, {0: harmless(18.0, 16.0)})
    env.step(acting(env, FIRST))
    assert env.reward[0] == np.float32(6 / 32)
    assert not env.terminated[0]


def test_a_kill_is_worth_what_was_left_and_ten(stage, harmless):
    env = battle()
    stage(env, {0: ours()}, {0: harmless(18.0, 16.0, health=3.0), 1: harmless(30.0, 20.0)})
    env.step(acting(env, FIRST))
    assert env.reward[0] == np.float32(13 / 32)
    env.step(acting(env, STOP))
    assert env.reward[0] == 0.0  # it dies once


def test_a_win_is_worth_two_hundred_more(stage, harmless):
    env = battle()
    stage(env, {0: ours()}, {0: harmless(18.0, 16.0, health=3.0)})
    env.step(acting(env, FIRST))
    assert env.reward[0] == np.float32(213 / 32)
    assert (env.terminated[0], env.truncated[0], env.won[0]) == (True, False, True)


@pytest.mark.parametrize("name", ["3m", "8m"])
def test_a_win_without_recovery_sums_to_twenty(name):
    env = battle(name)
    env.units["cooldown"][0, env.spec.n_agents :] = 1e9
    total = 0.0
    while not env.terminated[0]:
        attacks = env.available[0, :, FIRST:]
        env.step(np.where(attacks.any(axis=1), FIRST + attacks.argmax(axis=1), STOP)[None])
        total += float(env.reward[0])
    assert env.won[0]
    assert total == pytest.approx(20.0, abs=1e-5)


def test_enemy_shields_that_recover_are_rewarded(stage, harmless):
    env = battle("2s3z")
    resting = {"shield": 10.0, "quiet": 1000}
    stage(env, {0: {"x": 2.0}}, {0: harmless(30.0, 16.0, **resting), 3: harmless(30.0, 18.0, **resting)})
    env.step(acting(env, STOP))
    assert env.reward[0] == pytest.approx(2 * 8 * 0.125 / 51)


def test_own_losses_count_half_if_they_count(stage):
    env = battle(rewards=Rewards(only_positive=False))
    stage(env, {0: ours()}, {0: {"x": 18.0, "y": 16.0}})
    env.step(acting(env, STOP))
    assert env.units["health"][0, 0] == 39
    assert env.reward[0] == np.float32(-3 / 32)
    stage(env, {0: ours(health=2.0), 1: {"x": 2.0}}, {0: {"x": 18.0, "y": 16.0, "cooldown": 0.0}})
    env.step(acting(env, STOP))
    assert env.reward[0] == np.float32(-(2 + 10) / 2 / 32)


def test_a_loss_ends_the_episode_and_costs_nothing_by_default(stage):
    env = battle()
    stage(env, {0: ours(health=2.0)}, {0: {"x": 18.0, "y": 16.0}})
    env.step(acting(env, STOP))
    assert (env.terminated[0], env.truncated[0], env.won[0], env.reward[0]) == (True, False, False, 0.0)


def test_a_loss_costs_what_was_asked_for(stage):
    env = battle(rewards=Rewards(defeat=-64.0))
    stage(env, {0: ours(health=2.0)}, {0: {"x": 18.0, "y": 16.0}})
    env.step(acting(env, STOP))
    assert env.reward[0] == -2.0


def test_both_sides_gone_is_neither_won_nor_rewarded_with_the_bonus(stage):
    env = battle("2s3z")
    missile = {"health": 5.0, "shield": 0.0, "hits_left": 1, "hit_in": 3.0, "cooldown": 1e9}
    stage(env, {0: ours(hit_target=5) | missile}, {0: {"x": 18.0, "y": 16.0, "hit_target": 0} | missile})
    env.step(acting(env, STOP))
    assert (env.units["health"] == 0).all()
    assert (env.terminated[0], env.truncated[0], env.won[0]) == (True, False, False)
    assert env.reward[0] == np.float32((5 + 10) / 51)


@pytest.mark.parametrize("name", ["MMM", "MMM2"])
def test_a_side_with_only_a_medivac_left_has_lost(name, stage, harmless):
    env = battle(name)
    medivac = env.spec.n_actions - 7
    stage(env, {2: ours(), 9: {"x": 2.0}}, {0: harmless(18.0, 16.0, health=3.0), medivac: harmless(30.0, 16.0)})
    env.step(acting(env, FIRST, agent=2))
    assert (env.terminated[0], env.truncated[0], env.won[0]) == (True, False, True)
    assert env.reward[0] == pytest.approx((3 + 10 + 200) / {"MMM": 50.75, "MMM2": 60.25}[name])

    env.reset()
    stage(env, {2: ours(health=2.0), 9: {"x": 2.0}}, {0: {"x": 18.0, "y": 16.0}, medivac: harmless(30.0, 16.0)})
    env.step(acting(env, STOP, agent=2))
    assert (env.terminated[0], env.truncated[0], env.won[0]) == (True, False, False)


def test_where_there_are_medivacs_both_sides_gone_is_lost(stage, harmless):
    env = battle("MMM", rewards=Rewards(defeat=-50.75))
    missile = {"health": 5.0, "hits_left": 1, "hit_in": 3.0, "cooldown": 1e9}
    stage(
        env, {0: ours(hit_target=17) | missile, 9: {"x": 2.0}}, {7: {"x": 18.0, "y": 16.0, "hit_target": 0} | missile}
    )
    env.step(acting(env, STOP))
    assert (env.terminated[0], env.won[0]) == (True, False)
    assert env.reward[0] == pytest.approx((5 + 10) / 50.75 - 1)


def test_enemies_that_are_healed_are_rewarded(stage, harmless):
    env = battle("MMM")
    hurt = harmless(30.0, 16.0, health=20.0)
    stage(env, {2: {"x": 2.0}}, {0: hurt, 9: {"x": 31.0, "y": 16.0}})  # the medivac faces it already
    env.step(acting(env, STOP, agent=2))
    assert env.reward[0] == pytest.approx(8 * 9 / 16 / 50.75)


def test_the_limit_cuts_an_undecided_battle(stage, harmless):
    env = battle("3m")
    stage(env, {0: {"x": 2.0}}, {0: harmless(30.0, 16.0)})
    for step in range(60):
        assert not env.truncated[0], step
        env.step(acting(env, STOP))
    assert (env.terminated[0], env.truncated[0], env.won[0], env.reward[0]) == (False, True, False, 0.0)


def test_a_battle_decided_in_the_last_step_is_not_cut(stage, harmless):
    env = battle("3m")
    stage(env, {0: ours()}, {0: harmless(18.0, 16.0, health=3.0)})
    env.battles["steps"][0] = 59
    env.step(acting(env, FIRST))
    assert (env.terminated[0], env.truncated[0], env.won[0]) == (True, False, True)


@pytest.mark.parametrize(("scale", "unit"), [(False, 1.0), (True, 1 / 18.25)])
def test_sparse_rewards_know_only_the_end(scale, unit, stage, harmless):
    env = battle("3m", rewards=Rewards(sparse=True, scale=scale))
    stage(env, {0: ours()}, {0: harmless(18.0, 16.0, health=9.0)})
    rewards = []
    while not env.terminated[0]:
        env.step(acting(env, FIRST))
        rewards.append(float(env.reward[0]))
    assert rewards[-1] == pytest.approx(unit)
    assert not any(rewards[:-1])

    env.reset()
    stage(env, {0: ours(health=2.0)}, {0: {"x": 18.0, "y": 16.0}})
    env.step(acting(env, STOP))
    assert env.reward[0] == pytest.approx(-unit)

    env.reset()
    stage(env, {0: {"x": 2.0}}, {0: harmless(30.0, 16.0)})
    env.battles["steps"][0] = 59
    env.step(acting(env, STOP))
    assert env.truncated[0]
    assert env.reward[0] == 0.0


def test_rewards_can_be_left_unscaled(stage, harmless):
    env = battle(rewards=Rewards(scale=False))
    stage(env, {0: ours()}, {0: harmless(18.0, 16.0, health=3.0)})
    env.step(acting(env, FIRST))
    assert env.reward[0] == 213.0
