"""How hard each map of SMAC is for play that does not learn: random actions, and two scripts.

    python benchmarks/difficulty.py --episodes 128
    python benchmarks/difficulty.py --scenarios corridor 2c_vs_64zg --rulesets liberty lotv

With *nearest* each agent attacks the nearest enemy in reach; with *focus*, the enemy in reach with the least health and
shield. An agent with no enemy in reach walks along the longer axis towards the nearest enemy, or along the other axis
if that way is closed. Medivacs heal the ally with the least health, and else follow the nearest ally. Prints a row of a
table for each map: wins, and for random play also return, steps, and dead allies and enemies of an episode.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from components.envs import SCENARIOS, Skirmish

Actions = NDArray[np.int64]
Bools = NDArray[np.bool_]
FIRST_TARGET = 6
NORTH, SOUTH, EAST, WEST = 2, 3, 4, 5
SMAC_MAPS = [name for name in SCENARIOS if not name.startswith(("protoss_", "terran_", "zerg_"))]


@dataclass(frozen=True, slots=True)
class Played:
    """Means over episodes."""

    won: float
    reward: float
    steps: float
    dead_allies: float
    dead_enemies: float


def at_random(env: Skirmish, rng: np.random.Generator) -> Actions:
    """Return uniformly random available actions, (B, A)."""
    draws = rng.random(env.available.shape, dtype=np.float32)
    return np.asarray(np.argmax(draws * env.available, axis=2), np.int64)


def nearest(env: Skirmish, rng: np.random.Generator) -> Actions:
    """Return the actions of the script that attacks the nearest enemy, (B, A)."""
    return _scripted(env, by_health=False)


def focus(env: Skirmish, rng: np.random.Generator) -> Actions:
    """Return the actions of the script that attacks the weakest enemy, (B, A)."""
    return _scripted(env, by_health=True)


def _scripted(env: Skirmish, *, by_health: bool) -> Actions:
    units, n_agents = env.units, env.n_agents
    x, y = units["x"], units["y"]
    healthy = units["health"] + units["shield"]
    alive = units["health"] > 0
    dx = x[:, None, n_agents:] - x[:, :n_agents, None]  # (B, A, E)
    dy = y[:, None, n_agents:] - y[:, :n_agents, None]
    far = np.where(alive[:, None, n_agents:], np.hypot(dx, dy), np.inf)
    targets = env.available[:, :, FIRST_TARGET:]
    n_enemies = far.shape[2]
    may_attack = targets[:, :, :n_enemies]
    cost = np.where(may_attack, healthy[:, None, n_agents:] if by_health else far, np.inf)
    actions = np.where(may_attack.any(axis=2), FIRST_TARGET + cost.argmin(axis=2), _walk(env, dx, dy, far))
    for i in _healers(env):
        friends = targets[:, i, :n_agents]
        hurt = np.where(friends, units["health"][:, :n_agents], np.inf)
        others = np.arange(n_agents) != i
        to_x, to_y = (v[:, :n_agents] - v[:, i : i + 1] for v in (x, y))
        away = np.where(alive[:, :n_agents] & others, np.hypot(to_x, to_y), np.inf)
        follow = _walk(env, to_x[:, None], to_y[:, None], away[:, None], only=i)[:, 0]
        actions[:, i] = np.where(friends.any(axis=1), FIRST_TARGET + hurt.argmin(axis=1), follow)
    dead = env.available[:, :, 0]
    return np.asarray(np.where(dead, 0, actions), np.int64)


def _walk(
    env: Skirmish,
    dx: NDArray[np.float64],
    dy: NDArray[np.float64],
    far: NDArray[np.float64],
    *,
    only: int | None = None,
) -> Actions:
    """Return the step towards the nearest unit, by the distances `far`, (B, A); *stop* if no way is open."""
    available = env.available if only is None else env.available[:, [only]]
    who = far.argmin(axis=2)[..., None]
    to_x, to_y = (np.take_along_axis(v, who, axis=2)[..., 0] for v in (dx, dy))
    along_x = np.where(to_x > 0, EAST, WEST)
    along_y = np.where(to_y > 0, NORTH, SOUTH)
    wide = np.abs(to_x) > np.abs(to_y)
    first, second = np.where(wide, along_x, along_y), np.where(wide, along_y, along_x)

    def is_open(actions: Actions) -> Bools:
        return np.asarray(np.take_along_axis(available, actions[..., None], axis=2)[..., 0], np.bool_)

    return np.where(is_open(first), first, np.where(is_open(second), second, 1))


def _healers(env: Skirmish) -> list[int]:
    return [i for i in range(env.n_agents) if env.kinds["healing"].reshape(-1, env.units.shape[1])[0, i] > 0]


POLICIES: dict[str, Callable[[Skirmish, np.random.Generator], Actions]] = {
    "random": at_random,
    "nearest": nearest,
    "focus": focus,
}


def play(scenario: str, policy: str, episodes: int, *, seed: int, **options: object) -> Played:
    """Play `episodes` battles to their end, all at once."""
    env = Skirmish(scenario, episodes, seed=seed, **options)  # type: ignore[arg-type]  # options of the command line
    rng = np.random.default_rng(seed)
    env.reset()
    n = env.n_envs
    won, total, steps = np.zeros(n, np.bool_), np.zeros(n), np.zeros(n)
    dead = np.zeros((n, 2))
    playing = np.ones(n, np.bool_)
    while playing.any():
        env.step(POLICIES[policy](env, rng))
        total += env.reward * playing
        steps += playing
        over = env.terminated | env.truncated
        ended = over & playing
        won |= env.won & ended
        gone = env.units["health"] <= 0
        dead[ended] = np.stack([gone[:, : env.n_agents].sum(1), gone[:, env.n_agents :].sum(1)], axis=1)[ended]
        playing &= ~over
        env.reset(over)
    env.close()
    return Played(float(won.mean()), float(total.mean()), float(steps.mean()), *map(float, dead.mean(axis=0)))


def main() -> None:
    """Play, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", nargs="*", default=SMAC_MAPS)
    parser.add_argument("--rulesets", nargs="*", default=["lotv"], choices=["liberty", "lotv"])
    parser.add_argument("--start-jitter", type=float, default=0.1, help="cells per axis, for the scripts alone")
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print("| map | ruleset | random won | return | steps | dead allies | dead enemies | nearest won | focus won |")
    print("|---|---|---|---|---|---|---|---|---|")
    for scenario in args.scenarios:
        for ruleset in args.rulesets:
            chance = play(scenario, "random", args.episodes, seed=args.seed, ruleset=ruleset)
            near, weak = (
                play(scenario, name, args.episodes, seed=args.seed, ruleset=ruleset, start_jitter=args.start_jitter)
                for name in ("nearest", "focus")
            )
            cells = [scenario, ruleset, f"{chance.won:.2f}", f"{chance.reward:.2f}", f"{chance.steps:.1f}"]
            cells += [f"{chance.dead_allies:.1f}", f"{chance.dead_enemies:.1f}", f"{near.won:.2f}", f"{weak.won:.2f}"]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
