"""How far fixed starting positions can be exploited: by fixed sequences of actions that ignore observations.

    python benchmarks/open_loop.py --scenarios 3m 2s3z terran_5_vs_5
    python benchmarks/open_loop.py --runs runs/qmix_3m/20260301-101500-seed0

For each scenario, an evolutionary search looks for one sequence of actions that wins. For each run, its greedy policy
plays, and the best of its recorded sequences of actions is replayed. All are then played in battles that the search has
not seen, whose units start up to `--start-jitter` cells off. An action that is not available is replaced by
*stop*. Prints a line for each sequence and policy, with the share of battles won and its 95 % Wilson interval.

P sequences, M battles for each, T steps, A agents, U actions.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from components.envs import Skirmish
from components.envs.skirmish.masks import possible
from components.playing import play
from components.policies.acting import ActingPolicy
from components.reporting.saved_policy import load_policy
from components.reporting.win_rate import win_rate_text
from orchestra import RunDirectory

Sequences = NDArray[np.int64]  # (P, T, A)
ELITE = 8
SPAN = 8.0
"""Mean number of consecutive steps that a mutation changes."""


def played(
    scenario: str, sequences: Sequences, each: int, *, seed: int, start_jitter: float = 0.0
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the mean return and the number of wins, both (P,), of each sequence in M = `each` battles."""
    env = Skirmish(scenario, len(sequences) * each, seed=seed, start_jitter=start_jitter)
    env.reset()
    total = np.zeros(env.n_envs)
    won = np.zeros(env.n_envs, np.bool_)
    playing = np.ones(env.n_envs, np.bool_)
    for t in range(sequences.shape[1]):
        actions, _ = possible(env, np.repeat(sequences[:, t], each, axis=0))
        env.step(actions)
        total += env.reward * playing
        won |= env.won & playing
        over = env.terminated | env.truncated
        playing &= ~over
        if not playing.any():
            break
        env.reset(over)
    return total.reshape(-1, each).mean(axis=1), won.reshape(-1, each).sum(axis=1)


def first_guesses(size: int, env: Skirmish, rng: np.random.Generator) -> Sequences:
    """Return sequences of random actions, each held for a random time; in every other sequence all agents act alike."""
    steps, agents, actions = env.episode_limit, env.n_agents, env.n_actions
    guesses = np.zeros((size, steps, agents), np.int64)
    for k, guess in enumerate(guesses):
        for i in range(agents):
            t = 0
            while t < steps:
                span = int(rng.geometric(1.0 / SPAN))
                guess[t : t + span, i] = rng.integers(1, actions)
                t += span
        if k % 2:
            guess[:] = guess[:, :1]
    return guesses


def mutated(parents: Sequences, size: int, actions: int, rng: np.random.Generator) -> Sequences:
    """Return children of these sequences: their agents come from two parents, and some spans of steps are changed."""
    steps, agents = parents.shape[1:]
    children = parents[rng.integers(len(parents), size=size)].copy()
    others = parents[rng.integers(len(parents), size=size)]
    for child, other in zip(children, others, strict=True):
        crossed = rng.random(agents) < 0.25
        child[:, crossed] = other[:, crossed]
        for _ in range(1 + rng.poisson(2.0)):
            start, span = int(rng.integers(steps)), int(rng.geometric(1.0 / SPAN))
            who = slice(None) if rng.random() < 0.5 else int(rng.integers(agents))
            child[start : start + span, who] = rng.integers(1, actions)
    return children


def searched(scenario: str, *, size: int, each: int, generations: int, seed: int) -> Sequences:
    """Return the best sequence that the search found, (1, T, A)."""
    rng = np.random.default_rng(seed)
    env = Skirmish(scenario, 1)
    sequences = first_guesses(size, env, rng)
    sums, counts = np.zeros(size), np.zeros(size)
    for generation in range(generations):
        returns, wins = played(scenario, sequences, each, seed=seed + 1 + generation)
        sums += returns + 20.0 * wins / each
        counts += 1
        best = np.argsort(-sums / counts)[:ELITE]  # the elite is played again, which averages out luck
        children = mutated(sequences[best], size - len(best), env.n_actions, rng)
        sequences = np.concatenate([sequences[best], children])
        sums = np.concatenate([sums[best], np.zeros(len(children))])
        counts = np.concatenate([counts[best], np.zeros(len(children))])
    return best_of(scenario, sequences[:ELITE], seed=seed + 1 + generations)


def best_of(scenario: str, sequences: Sequences, *, seed: int) -> Sequences:
    """Return the sequence that wins the most of 64 battles, (1, T, A)."""
    returns, wins = played(scenario, sequences, 64, seed=seed)
    return sequences[[int(np.lexsort((returns, wins))[-1])]]


def recorded(env: Skirmish, policy: ActingPolicy, rng: np.random.Generator) -> Sequences:
    """Return the actions of a greedy episode in each battle, (B, T, A); *stop* after its end."""
    env.reset()
    hidden = policy.initial_hidden(env.n_envs)
    last = np.full((env.n_envs, env.n_agents), -1, np.int64)
    sequences = np.ones((env.n_envs, env.episode_limit, env.n_agents), np.int64)
    playing = np.ones(env.n_envs, np.bool_)
    for t in range(env.episode_limit):
        last, hidden = policy.act(env.obs, env.available, last, hidden, epsilon=0.0, rng=rng)
        sequences[playing, t] = last[playing]
        env.step(last)
        over = env.terminated | env.truncated
        playing &= ~over
        if not playing.any():
            break
        env.reset(over)
    return sequences


def report(scenario: str, who: str, wins: Iterator[int], episodes: int, jitters: Sequence[float]) -> None:
    """Print a line: the share of battles won for each jitter."""
    for jitter, won in zip(jitters, wins, strict=True):
        print(f"{scenario:<16} {who:<24} jitter {jitter:<5g} won {win_rate_text(won, episodes)}", flush=True)


def report_sequence(scenario: str, who: str, sequence: Sequences, args: argparse.Namespace) -> None:
    """Play a sequence in new battles and print how many it wins."""
    wins = (
        int(played(scenario, sequence, args.episodes, seed=args.seed + 10**6, start_jitter=jitter)[1][0])
        for jitter in args.start_jitter
    )
    report(scenario, who, wins, args.episodes, args.start_jitter)


def report_run(run: Path, args: argparse.Namespace) -> None:
    """Print the results of a run's policy, and those of its best sequence of actions, replayed."""
    directory = RunDirectory.open(run)
    env, policy, _, _ = load_policy(directory, None, 64, seed=args.seed, start_jitter=0.0)
    if not isinstance(env, Skirmish):
        raise SystemExit(f"{run} does not play the simulator")
    rng = np.random.default_rng(args.seed)
    elsewhere = (
        load_policy(directory, None, 64, seed=args.seed + 10**6, start_jitter=jitter)[0] for jitter in args.start_jitter
    )
    wins = (int(play(battles, policy, args.episodes, rng).won.sum()) for battles in elsewhere)
    report(env.spec.name, "greedy policy", wins, args.episodes, args.start_jitter)
    sequences = recorded(env, policy, rng)
    best = best_of(env.spec.name, sequences, seed=args.seed + 1)
    report_sequence(env.spec.name, "its actions, replayed", best, args)


def main() -> None:
    """Search, replay and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", nargs="*", default=[], help="scenarios to search")
    parser.add_argument("--runs", nargs="*", type=Path, default=[], help="directories of runs to replay")
    parser.add_argument("--start-jitter", nargs="*", type=float, default=[0.0, 0.5, 2.0], help="cells per axis")
    parser.add_argument("--generations", type=int, default=100)
    parser.add_argument("--sequences", type=int, default=96, help="of a generation")
    parser.add_argument("--battles", type=int, default=16, help="in which each sequence is tried")
    parser.add_argument("--episodes", type=int, default=256, help="of the final figures")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for scenario in args.scenarios:
        best = searched(scenario, size=args.sequences, each=args.battles, generations=args.generations, seed=args.seed)
        report_sequence(scenario, "open loop, searched", best, args)
    for run in args.runs:
        report_run(run, args)


if __name__ == "__main__":
    main()
