"""Side 2 of an air combat, commanded by a function: it sees what side 1 would see in its place."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from components.envs.air_combat.battles import AirBattles
from components.envs.air_combat.env import AirCombat
from components.envs.air_combat.kernel.constants import FIRST_MISSILE, HOLD
from components.envs.air_combat.opposition import Opposition
from components.envs.air_combat.scenario_file import scenario_named


def test_the_opposition_sees_what_side_1_would_see_on_the_map_turned_by_half() -> None:
    """A battle of equal sides, turned: what each unit of side 2 saw is what the unit of side 1 sees now."""
    seen = []

    def watch(opposition):
        seen.append((opposition.obs.copy(), opposition.state.copy(), opposition.available.copy()))
        return opposition.available.argmax(-1)

    env = AirBattles("fighter10v10", 1, seed=4, opponent=watch, frame_skip=40)
    env.reset()
    for _ in range(5):
        env.step(env.available.argmax(-1))
    turned = AirBattles("fighter10v10", 1, seed=4, opponent="ordered", frame_skip=40)
    turned.reset()
    env._opposition.look(env._played, env._sensed)
    swap = np.r_[10:20, 0:10]
    for name in turned.units.dtype.names:
        turned.units[name] = env.units[name][:, swap]
    for axis in ("x", "fix_x", "last_x", "y", "fix_y", "last_y"):
        turned.units[axis] = 1000.0 - turned.units[axis]
    turned.units["course"] = (turned.units["course"] + 180) % 360
    for name in ("sees", "hears", "sighted"):
        getattr(turned, name)[:] = getattr(env, name)[:, swap][:, :, swap]
    turned.bearing[:] = -env.bearing[:, swap][:, :, swap]
    turned.battles["steps"], turned.battles["flying"] = env.battles["steps"], env.battles["flying"]
    turned.show()
    living = env.units["alive"][0, 10:]
    assert living.any()
    np.testing.assert_allclose(env._opposition.obs[0, living][:, 17:], turned.obs[0, living][:, 17:], atol=1e-5)
    np.testing.assert_allclose(env._opposition.state, turned.state, atol=1e-6)
    np.testing.assert_array_equal(env._opposition.available, turned.available)
    assert seen


def test_a_function_commands_side_2_and_is_told_of_new_rounds() -> None:
    fresh = []

    def flee(opposition):
        fresh.append(opposition.fresh.tolist())
        actions = np.zeros((2, 10), np.int64)
        alive = opposition.available.sum(-1) > 1
        return np.where(alive, 8 * opposition.n_actions // 16, actions)  # the opposite of the enemy

    env = AirCombat("fighter10v10", 2, opponent=flee)
    env.reset()
    env.step(np.zeros((2, 10), np.int64))
    assert env.units["course"][:, 10:].tolist() == [[0] * 10] * 2, "away from side 1"
    env.reset(np.array([True, False]))
    env.step(np.zeros((2, 10), np.int64))
    assert fresh == [[True, True], [True, False]]
    assert env.snapshot() is None, "the function may remember something"
    env = AirCombat("fighter10v10", 2, opponent=lambda seen: np.full((2, 10), 6))
    env.reset()
    with pytest.raises(ValueError, match="battle 0, enemy 0: the opponent's action 6 is not available"):
        env.step(np.zeros((2, 10), np.int64))


@pytest.mark.parametrize("targets", ["numbered", "nearest"])
def test_sides_that_act_by_the_same_policy_see_and_do_the_same_until_the_end(targets: Any) -> None:
    """Without chance, in hits and in bearings, a round of equals is the same from both sides, and a draw."""
    scenario = scenario_named("fighter10v10")
    certain = replace(scenario.rules, hit_prob_enable=False, max_steps=500)
    scenario = replace(scenario, rules=certain, receiver=replace(scenario.receiver, noise=0.0))
    steps = 0

    def act(available: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Fly at the enemy, some to the right of it; fire what can be fired, one unit in three alone."""
        commands = available.reshape(10, 4, -1)
        course = np.where((np.arange(10) + steps // 8) % 4 == 0, 1, 0)
        missiles = commands[np.arange(10), course, FIRST_MISSILE:]
        fires = missiles.any(-1) & (np.arange(10) % 3 == 0)
        command = np.where(fires, FIRST_MISSILE + missiles.argmax(-1), HOLD)
        return np.where(available.sum(-1) > 1, course * commands.shape[-1] + command, 0)

    def opponent(opposition: Opposition) -> NDArray[np.int64]:
        np.testing.assert_allclose(opposition.obs, env.obs, atol=1e-5)
        np.testing.assert_allclose(opposition.state, env.state, atol=1e-5)
        np.testing.assert_array_equal(opposition.available, env.available)
        return act(opposition.available)

    env = AirCombat(scenario, 1, opponent=opponent, frame_skip=4, courses=4, targets=targets)
    env.reset()
    while not env.terminated[0]:
        env.step(act(env.available))
        steps += 1
    alive = env.units["alive"][0]
    np.testing.assert_array_equal(alive[:10], alive[10:])
    assert 0 < alive.sum() < 20, "some are hit, and some are not"
    assert not env.won[0]
