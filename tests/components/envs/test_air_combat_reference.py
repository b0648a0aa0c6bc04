"""The simulator of air combat agrees with a plain one on random battles of random scenarios."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from air_combat_reference import ReferenceBattle

from components.envs.air_combat.battles import AirBattles
from components.envs.air_combat.scenarios import (
    BANDS,
    Jamming,
    Missile,
    Radar,
    Receiver,
    Rewards,
    Rules,
    Scenario,
    Unit,
)
from components.envs.air_combat.tables import kinds_table

Rng = np.random.Generator


def random_unit(rng: Rng, kind: Any) -> Unit:
    speed = float(rng.uniform(0.0, 6.0))
    if kind == "detector":
        return Unit(kind=kind, speed=speed, radar=BANDS[rng.integers(2)])
    jammer = None if rng.random() < 0.2 else BANDS[rng.integers(3)]
    long, medium = rng.integers(0, 3, 2)
    return Unit(kind=kind, speed=speed, radar="X", jammer=jammer, long_missiles=int(long), medium_missiles=int(medium))


def random_scenario(rng: Rng) -> Scenario:
    """Return a scenario of few units on a small map, with every number drawn."""

    def side() -> tuple[Unit, ...]:
        detectors, fighters = int(rng.integers(3)), int(rng.integers(1, 4))
        return tuple(random_unit(rng, "detector" if k < detectors else "fighter") for k in range(detectors + fighters))

    points = {band: int(rng.integers(1, 4)) for band in BANDS}
    rewards = {
        each.name: bool(rng.integers(2)) if each.type is bool else float(rng.integers(-50, 50))
        for each in fields(Rewards)
    }
    return Scenario(
        name="random",
        red=side(),
        blue=side(),
        size=(float(rng.uniform(150.0, 500.0)), float(rng.uniform(50.0, 400.0))),
        radars={
            band: Radar(
                range=float(rng.uniform(50.0, 250.0)),
                points=points[band],
                sector=180.0 if band != "X" else float(rng.uniform(20.0, 180.0)),
            )
            for band in BANDS
        },
        jamming=Jamming(range=float(rng.uniform(0.0, 300.0)), aimed=0.3, barrage=0.8, points=points),
        receiver=Receiver(range=float(rng.uniform(0.0, 400.0)), noise=float(rng.uniform(0.0, 5.0))),
        long_missile=Missile(range=120.0, speed=float(rng.uniform(7.0, 60.0)), hit_near=0.9, hit_far=0.2),
        medium_missile=Missile(range=60.0, speed=float(rng.uniform(7.0, 60.0)), hit_near=1.0, hit_far=0.6),
        rules=Rules(
            max_steps=int(rng.integers(5, 60)),
            attack_effect_delay=bool(rng.random() < 0.7),
            hit_prob_enable=bool(rng.random() < 0.8),
            turn_rate=int(rng.choice([360, 30])),
            random_pos=bool(rng.integers(2)),
            strip=(20.0, 70.0),
        ),
        rewards=Rewards(**rewards),
    )


def random_orders(rng: Rng, scenario: Scenario) -> list[list[int]]:
    orders = []
    for number, unit in enumerate(scenario.units):
        enemies = len(scenario.blue if number < len(scenario.red) else scenario.red)
        jammer = 0 if unit.jammer is None else int(rng.integers(scenario.jamming.points[unit.jammer] + 2))
        attack = int(rng.integers(2 * enemies + 2)) if unit.kind == "fighter" and rng.random() < 0.5 else 0
        orders.append(
            [int(rng.integers(360)), int(rng.integers(scenario.radars[unit.radar].points + 1)), jammer, attack]
        )
    return orders


def assert_agree(simulator: AirBattles, reference: ReferenceBattle) -> None:
    units, n = simulator.units[0], len(reference.planes)
    for name, of in (
        ("alive", lambda plane: plane.alive),
        ("course", lambda plane: plane.course),
        ("radar", lambda plane: plane.radar),
        ("jammer", lambda plane: plane.jammer),
        ("long_left", lambda plane: plane.long),
        ("medium_left", lambda plane: plane.medium),
        ("known", lambda plane: plane.known),
        ("last_step", lambda plane: plane.last_step),
    ):
        assert units[name].tolist() == [of(plane) for plane in reference.planes], name
    for name, of in (
        ("x", lambda plane: plane.x),
        ("y", lambda plane: plane.y),
        ("last_x", lambda plane: plane.last[0]),
        ("last_y", lambda plane: plane.last[1]),
        ("reach", lambda plane: plane.reach),
        ("reward", lambda plane: plane.reward),
    ):
        np.testing.assert_allclose(units[name], [of(plane) for plane in reference.planes], atol=1e-6, err_msg=name)
    living = [k for k, plane in enumerate(reference.planes) if plane.alive]
    assert [units["source"][k] for k in living] == [reference.planes[k].source for k in living]
    assert [{j for j in range(n) if simulator.sees[0, i, j]} for i in range(n)] == [p.sees for p in reference.planes]
    assert [{j for j in range(n) if simulator.hears[0, i, j]} for i in range(n)] == [
        set(p.hears) for p in reference.planes
    ]
    battle = simulator.battles[0]
    assert battle["flying"] == len(reference.shots)
    for missile, shot in zip(simulator.missiles[0], reference.shots, strict=False):
        numbers = ("attacker", "target", "medium", "steps", "observed")
        assert [missile[name] for name in numbers] == [getattr(shot, name) for name in numbers]
        np.testing.assert_allclose(
            [missile["x"], missile["y"], missile["distance"]], [shot.x, shot.y, shot.distance], atol=1e-6
        )
    assert (battle["steps"], battle["over"], battle["outcome"]) == (
        reference.steps,
        reference.over,
        reference.outcome,
    )


def play_both(seed: int) -> dict[str, int]:
    """Play one random battle in both simulators; return how often things happened that a test must reach."""
    rng = np.random.default_rng(seed)
    scenario = random_scenario(rng)
    simulator = AirBattles(scenario, 1, seed=seed, opponent="ordered", reward_scale=1.0)
    words = tuple(int(simulator.battles[name][0]) for name in ("a", "b", "c", "counter"))
    starts = [(float(row["start_x"]), float(row["start_y"])) for row in kinds_table(scenario)]
    simulator.reset()
    reference = ReferenceBattle(scenario, words, starts)
    assert_agree(simulator, reference)
    happened = {"fired": 0, "destroyed": 0, "jammed": 0, "fixed": 0}
    while not reference.over:
        orders = random_orders(rng, scenario)
        simulator.orders[0] = orders
        simulator.step_ordered()
        reference.step(orders)
        assert_agree(simulator, reference)
        happened["jammed"] += int(simulator.battles["jammed"][0])
        happened["fixed"] += sum(plane.source == 3 for plane in reference.planes)
    own = sum(plane.reward for plane in reference.planes if plane.side == 1)
    rewards = scenario.rewards
    of_round = {
        2: rewards.total_win,
        1: rewards.win,
        0: rewards.draw,
        -1: rewards.loss,
        -2: rewards.total_loss,
    }[reference.outcome]
    assert simulator.reward[0] == pytest.approx(own + of_round, abs=1e-3)
    assert simulator.won[0] == (reference.outcome > 0)
    happened["fired"] = int(simulator.battles["fired_red"][0] + simulator.battles["fired_blue"][0])
    happened["destroyed"] = sum(not plane.alive for plane in reference.planes)
    assert happened["destroyed"] == simulator.battles["hits_red"][0] + simulator.battles["hits_blue"][0]
    return happened


@pytest.mark.parametrize(
    "first", [pytest.param(first, marks=[pytest.mark.minutes] if first else []) for first in range(0, 1000, 100)]
)
def test_the_simulator_agrees_with_the_plain_one_on_1000_random_battles(first: int) -> None:
    total = {"fired": 0, "destroyed": 0, "jammed": 0, "fixed": 0}
    for seed in range(first, first + 100):
        for name, count in play_both(seed).items():
            total[name] += count
    assert min(total.values()) > 10, total
