"""`orchestra evaluate`: how well a checkpoint of a run plays, greedily."""

from argparse import Namespace
from pathlib import Path

from components.reporting.saved_policy import add_checkpoint_flag, load_policy
from orchestra import FlagParser, RunDirectory, UsageError

MOST_JITTER = 8.0
"""Largest change of starting positions that `Skirmish` allows, in cells per axis."""


def command(arguments: list[str]) -> int:
    """Play greedy episodes with a run's checkpoint."""
    parser = FlagParser(
        prog="orchestra evaluate",
        description="Play greedy episodes with a checkpoint of a run, and print win rate, return and length.",
    )
    parser.add_argument("run", metavar="RUN_DIR", type=Path, help="the run's directory")
    parser.add_argument("--episodes", type=int, default=100, help="how many (default: 100)")
    add_checkpoint_flag(parser)
    parser.add_argument("--seed", type=int, default=0, help="of the episodes (default: 0)")
    parser.add_argument(
        "--start-jitter",
        metavar="CELLS",
        type=float,
        help="largest offset of start positions of the simulator, in cells per axis (default: as in the run)",
    )
    parser.add_argument(
        "--env-arg",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an argument of the environment, in place of the run's, as opponent=hard in air combat; may be given "
        "several times",
    )
    options = parser.parse_strictly(arguments)
    if options.episodes < 1:
        raise UsageError(f"--episodes: {options.episodes} is not allowed: it must be 1 or more")
    if options.seed < 0:
        raise UsageError(f"--seed: {options.seed} is not allowed: it must be 0 or more")
    jitter = options.start_jitter
    if jitter is not None and not 0.0 <= jitter <= MOST_JITTER:
        raise UsageError(f"--start-jitter: {jitter:g} is not allowed: it must be from 0 to {MOST_JITTER:g}")
    print(_evaluate(RunDirectory.open(options.run), options))
    return 0


def _evaluate(run: RunDirectory, options: Namespace) -> str:
    import numpy as np

    from components.playing import play
    from components.reporting.win_rate import win_rate_text

    episodes = options.episodes
    env, policy, path, env_steps = load_policy(
        run,
        options.checkpoint,
        min(episodes, 64),
        seed=options.seed,
        start_jitter=options.start_jitter,
        env_arg=options.env_arg,
    )
    played = play(env, policy, episodes, np.random.default_rng(options.seed))
    env.close()
    won = int(played.won.sum())
    rate = f"win rate    {win_rate_text(won, episodes)}\n" if env.spec.can_be_won or won else ""
    return (
        f"checkpoint  {path} ({env_steps:,} environment steps)\n"
        f"{rate}"
        f"return      {played.returns.mean():.2f} (sd {played.returns.std():.2f})\n"
        f"length      {played.lengths.mean():.1f} steps"
    )
