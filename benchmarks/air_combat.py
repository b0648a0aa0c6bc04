"""How often each opponent of the air combat wins against each other, and against random actions.

    python benchmarks/air_combat.py --rounds 2048
    python benchmarks/air_combat.py --scenarios detector2_fighter10 --players random easy

Prints a row for each player of side 1 against each opponent of side 2, with 95 % intervals (Wilson) of the rates. A
round that neither side wins is a draw. Side 1 has the same units as side 2 on both maps.
"""

import argparse

import numpy as np
from numpy.typing import NDArray

from components.envs.air_combat.battles import AirBattles
from components.envs.air_combat.scenario_file import scenario_names
from components.reporting.win_rate import wilson_interval

PLAYERS = ("random", "static", "straight", "easy", "hard")


def play(scenario: str, player: str, opponent: str, rounds: int, *, seed: int) -> NDArray[np.int64]:
    """Return the outcome of each round for side 1, (rounds,): 1 won, -1 lost, 0 a draw. All rounds go on at once."""
    env = AirBattles(scenario, rounds, seed=seed, opponent=opponent)  # type: ignore[arg-type]  # a choice of PLAYERS
    rng = np.random.default_rng(seed)
    env.reset()
    outcome = np.zeros(rounds, np.int64)
    playing = np.ones(rounds, np.bool_)
    while playing.any():
        if player == "random":
            draws = rng.random(env.available.shape, dtype=np.float32)
            env.step(np.asarray(np.argmax(draws * env.available, axis=2), np.int64))
        else:
            env.order_by_rules(1, player)  # type: ignore[arg-type]  # a choice of PLAYERS
            env.step_ordered()
        over = env.terminated | env.truncated
        ended = over & playing
        outcome[ended] = np.sign(env.battles["outcome"][ended])
        playing &= ~over
        env.reset(over)
    return outcome


def _cell(wins: int, n: int) -> str:
    low, high = wilson_interval(wins, n)
    return f"{wins / n:.1%} ({low:.1%} to {high:.1%})"


def main() -> None:
    """Play, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", nargs="*", default=["fighter10v10"], choices=scenario_names())
    parser.add_argument("--players", nargs="*", default=["random", "easy", "hard"], choices=PLAYERS)
    parser.add_argument("--opponents", nargs="*", default=["easy", "hard"], choices=PLAYERS[1:])
    parser.add_argument("--rounds", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print("| map | side 1 | side 2 | won | lost | draw |\n|---|---|---|---|---|---|")
    for scenario in args.scenarios:
        for player in args.players:
            for opponent in args.opponents:
                outcome = play(scenario, player, opponent, args.rounds, seed=args.seed)
                won, lost = int((outcome > 0).sum()), int((outcome < 0).sum())
                cells = [_cell(count, args.rounds) for count in (won, lost, args.rounds - won - lost)]
                print(f"| {' | '.join([scenario, player, opponent, *cells])} |", flush=True)


if __name__ == "__main__":
    main()
