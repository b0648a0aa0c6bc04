"""Targets that are the nearest: one command fires, and enemies are seen by distance; and rewards of what decides."""

import math
import re
from typing import Any

import numpy as np
import pytest

from components.envs.air_combat.battles import AirBattles
from components.envs.air_combat.env import AirCombat
from components.envs.air_combat.kernel.constants import ABOUT_ENEMY, BARRAGE, FIRE, NEAR, OWN, SILENT
from components.envs.air_combat.scenarios import Rewards

E = 10  # enemies of the map that is played here
CAN_FIRE = OWN - 1  # the last column of what an agent observes of itself


def battles(n: int, **options: Any) -> AirBattles:
    env = AirBattles("fighter10v10", n, **({"seed": 5, "opponent": "hard", "courses": 4} | options))
    env.reset()
    return env


def draw(env: AirBattles, rng: np.random.Generator) -> np.ndarray:
    """Return available actions (B, A): to the nearest enemy, firing where it can be; else a command drawn."""
    offered = env.available[..., : env.n_commands]
    commands = np.where(rng.random(offered.shape) < offered, rng.random(offered.shape), -1.0).argmax(-1)
    commands = np.where(np.take_along_axis(offered, commands[..., None], -1)[..., 0], commands, 0)
    return np.where(env.obs[..., CAN_FIRE] > 0, FIRE, commands)


def chosen(env: AirBattles, b: int, i: int) -> int:
    """Return the attack, 0 for none, by the rules in words: the fewest missiles on their way, then the nearest."""
    units, missiles = env.units[b], env.missiles[b, : env.battles["flying"][b]]
    for medium, reach in ((True, 50.0), (False, 120.0)):
        if units["medium_left" if medium else "long_left"][i] == 0:
            continue
        ranks = []
        for j in range(E, 2 * E):
            at = math.dist((units["x"][i], units["y"][i]), (units["last_x"][j], units["last_y"][j]))
            on_their_way = int((missiles["target"] == j).sum())
            if units["alive"][j] and units["known"][j] and at <= reach and on_their_way < 2:
                ranks.append((on_their_way, at, j))
        if ranks:
            return min(ranks)[2] - E + 1 + (E if medium else 0)
    return 0


def test_fire_is_always_offered_and_fires_at_whom_the_rules_choose() -> None:
    env, rng, fired, medium = battles(4, targets="nearest"), np.random.default_rng(0), 0, 0
    assert env.available.shape == (4, E, 4 * 7)
    for _ in range(260):
        want = np.array([[chosen(env, b, i) for i in range(E)] for b in range(4)])
        alive = env.units["alive"][:, :E]
        np.testing.assert_array_equal(env.available[..., FIRE], alive)
        np.testing.assert_array_equal(env.obs[..., CAN_FIRE], alive & (want > 0))
        before = env.battles["fired_red"].copy()
        env.step(draw(env, rng))
        np.testing.assert_array_equal(env.units["attack"][:, :E][alive], want[alive])
        valid = env.battles["fired_red"] - before
        assert (valid <= (want > 0).sum(1)).all()
        fired += int(valid.sum())
        medium += int((want > E).sum())
        env.reset(env.terminated.copy())
    assert fired > 40
    assert medium > 5


def test_enemies_are_seen_by_distance_and_otherwise_as_by_number() -> None:
    env, by_number = (battles(3, targets=targets, random_pos=True) for targets in ("nearest", "numbered"))
    rng, moved, unknown = np.random.default_rng(1), 0, 0
    for _ in range(200):
        env.step(draw(env, rng))
        by_number.restore(env.snapshot() | {"obs": by_number.obs, "available": by_number.available})
        by_number.show()
        for b, i in np.ndindex(3, E):
            unit, enemies = env.units[b, i], env.units[b, E:]
            if not unit["alive"]:
                continue
            far = np.hypot(enemies["last_x"] - unit["x"], enemies["last_y"] - unit["y"])
            far = np.where(enemies["alive"], np.where(enemies["last_step"] >= 0, far, 1e6), 1e7)
            order = np.argsort(far, kind="stable")
            seen = by_number.obs[b, i, OWN : OWN + E * ABOUT_ENEMY].reshape(E, ABOUT_ENEMY)[order]
            np.testing.assert_array_equal(env.obs[b, i, OWN : OWN + E * ABOUT_ENEMY].reshape(E, ABOUT_ENEMY), seen)
            np.testing.assert_array_equal(env.obs[b, i, :OWN], by_number.obs[b, i, :OWN])
            beyond = np.where(enemies["alive"] & (enemies["last_step"] >= 0), ((far - 120.0) / 50.0).clip(-1, 1), 0.0)
            np.testing.assert_allclose(seen[:, 13], beyond[order], atol=1e-5)
            moved += (order != np.arange(E)).any()
            unknown += (far == 1e6).any() and (far < 1e6).any()
        env.reset(env.terminated.copy())
    assert moved > 100
    assert unknown > 100


def test_steps_of_several_world_steps_fire_in_the_first_that_can_and_are_watched_alike() -> None:
    """Of four world steps one fires, at the target of that moment; watching them one by one changes nothing."""
    env, watched = (battles(1, targets="nearest", frame_skip=4) for _ in range(2))
    rng, fired, late = np.random.default_rng(2), 0, 0
    while not env.terminated[0]:
        actions = draw(env, rng)
        fires = actions[0] % 7 == FIRE
        now = np.array([chosen(env, 0, i) > 0 for i in range(E)])
        before = env.units["long_left"][0, :E] + env.units["medium_left"][0, :E]
        for _ in watched.world_steps(actions):
            pass
        env.step(actions)
        used = before - env.units["long_left"][0, :E] - env.units["medium_left"][0, :E]
        assert (used <= fires).all()
        fired, late = fired + used.sum(), late + (used.astype(bool) & ~now).sum()
        for name in ("units", "missiles", "battles", "obs", "available", "state"):
            np.testing.assert_array_equal(getattr(env, name), getattr(watched, name), err_msg=name)
    assert fired > 10
    assert late > 0, "never in range only after the first world step"


def test_both_sides_may_have_nearest_targets() -> None:
    seen = []

    def other(opposition: Any) -> np.ndarray:
        seen.append(opposition.available.shape)
        return np.zeros(opposition.available.shape[:2], np.int64)

    battles(2, targets="nearest", opponent=other).step(np.zeros((2, E), np.int64))
    assert seen == [(2, E, 4 * 7)]
    assert AirCombat("fighter10v10", targets="nearest").spec.action_grid == (16, 7)


def test_decisive_rewards_are_those_of_hits_losses_and_the_end() -> None:
    assert Rewards().decisive() == Rewards(
        detector_sees_detector=0.0,
        detector_sees_fighter=0.0,
        fighter_sees_detector=0.0,
        fighter_sees_fighter=0.0,
        valid_attack=0.0,
        invalid_attack=0.0,
    )
    env = battles(2, targets="nearest", shaping="decisive", reward_scale=1.0, opponent="easy", max_steps=400)
    rng, total, over, hits, losses = np.random.default_rng(3), np.zeros(2), np.zeros(2, bool), [0, 0], [0, 0]
    while not over.all():
        env.step(draw(env, rng))
        total += np.where(over, 0.0, env.reward)
        for b in np.flatnonzero(env.terminated & ~over):
            hits[b], losses[b] = int(env.battles["hits_red"][b]), int(env.battles["hits_blue"][b])
            total[b] -= {2: 200, 1: 100, 0: 0, -1: -100, -2: -200}[int(env.battles["outcome"][b])]
        over |= env.terminated
        env.reset(env.terminated.copy())
    assert total.tolist() == [100.0 * (hits[b] - losses[b]) for b in range(2)]
    assert sum(hits) > 0
    assert sum(losses) > 0


def kite(env: AirBattles) -> np.ndarray:
    """Return actions (B, A) of a script that knows no more than agents do.

    It flies at the nearest enemy with its radar off, jams, fires when it can, and turns away when nearer than 118:
    within the range of its long missiles, and beyond that of jammed radars.
    """
    offered = env.available[..., : env.n_commands]
    known, distance = env.obs[..., OWN + 2] > 0, env.obs[..., OWN + 5] * NEAR
    jams = known & (distance < 250.0) & offered[..., BARRAGE]
    commands = np.select([env.obs[..., CAN_FIRE] > 0, known & (env.obs[..., 7] > 0), jams], [FIRE, SILENT, BARRAGE], 0)
    courses = np.where(known & (distance < 118.0), 2, 0)
    return np.where(env.units["alive"][:, :E], courses * env.n_commands + commands, 0)


@pytest.mark.parametrize("opponent", ["easy", "hard"])
def test_actions_of_agents_suffice_to_beat_the_rules(opponent: str) -> None:
    env = battles(32, targets="nearest", opponent=opponent, frame_skip=4, max_steps=360)
    won, over = np.zeros(32, bool), np.zeros(32, bool)
    while not over.all():
        env.step(kite(env))
        won |= env.won & ~over
        over |= env.terminated
        env.reset(env.terminated.copy())
    assert won.mean() >= 0.9


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"targets": "all"}, "targets is 'all', must be one of numbered, nearest"),
        ({"shaping": "none"}, "shaping is 'none', must be one of documented, decisive"),
    ],
)
def test_unknown_choices_are_refused(option: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        AirBattles("fighter10v10", 1, **option)
