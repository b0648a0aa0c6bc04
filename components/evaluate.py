"""`orchestra evaluate`: how well the newest checkpoint of a run plays, greedily."""

import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestra import RunDirectory, Topology, UsageError
from orchestra.experiment import build, load_experiment
from orchestra.flags import FlagParser, Flags

if TYPE_CHECKING:
    from components.rollout import EnvFactory, PolicyFactory


def command(arguments: list[str]) -> int:
    """Play greedy episodes with a run's checkpoint."""
    parser = FlagParser(
        prog="orchestra evaluate",
        description="Play greedy episodes with a checkpoint of a run, and print win rate, return and length.",
    )
    parser.add_argument("run", metavar="RUN_DIR", type=Path, help="the run's directory")
    parser.add_argument("--episodes", type=int, default=100, help="how many (default: 100)")
    parser.add_argument("--checkpoint", type=Path, default=None, help="its file (default: the run's newest)")
    parser.add_argument("--seed", type=int, default=0, help="of the episodes (default: 0)")
    options = parser.parse_strictly(arguments)
    if options.episodes < 1:
        raise UsageError(f"--episodes: {options.episodes} is not allowed: it must be 1 or more")
    if options.seed < 0:
        raise UsageError(f"--seed: {options.seed} is not allowed: it must be 0 or more")
    run = RunDirectory.open(options.run)
    from components.checkpoint import load_checkpoint, newest_checkpoint

    path = options.checkpoint or newest_checkpoint(run.checkpoints)
    make_env, make_policy = _recipes(_planned(run))
    print(_evaluate(make_env, make_policy, path, options.episodes, options.seed, load_checkpoint))
    return 0


def _evaluate(
    make_env: "EnvFactory", make_policy: "PolicyFactory", path: Path, episodes: int, seed: int, load: Any
) -> str:
    import numpy as np

    from components.rollout import play

    env = make_env(min(episodes, 64), seed=seed)
    policy = make_policy(env.spec, seed=0)
    loaded = load(path, policy)
    played = play(env, policy, episodes, np.random.default_rng(seed))
    env.close()
    wins = int(played.won.sum())
    # The standard error of a share, with one success and one failure added so that 0 and 1 are not claimed certain.
    share = (wins + 1) / (episodes + 2)
    error = (share * (1 - share) / (episodes + 2)) ** 0.5
    return (
        f"checkpoint  {path} ({loaded['env_steps']:,} environment steps)\n"
        f"win rate    {wins / episodes:.1%} ± {error:.1%} ({wins} of {episodes} greedy episodes)\n"
        f"return      {played.returns.mean():.2f} (sd {played.returns.std():.2f})\n"
        f"length      {played.lengths.mean():.1f} steps"
    )


def _planned(run: RunDirectory) -> Topology:
    """Build the run's topology again, from what its config says."""
    config = run.config()
    try:
        file, known = Path(config["experiment"]["absolute"]), config["experiment"]["sha256"]
        values = dict(config["flags"])
    except (KeyError, TypeError) as error:
        raise UsageError(f"{str(run.path)!r}: its config.json lacks {error}") from error
    function = load_experiment(file)
    if hashlib.sha256(file.read_bytes()).hexdigest() != known:
        print(f"orchestra: note: {file} has changed since the run", file=sys.stderr)
    flags = Flags.of(function)
    return build(function, {flag.name: flag.validated(values.get(flag.name, flag.default)) for flag in flags})


def _recipes(topology: Topology) -> tuple["EnvFactory", "PolicyFactory"]:
    """Return what makes the run's environments and its policy: what its first Worker is given."""
    from components.worker import Worker

    for node in topology.nodes.values():
        for actor in node.actors:
            if issubclass(actor.kind, Worker):
                return actor.recipe.keywords["env"], actor.recipe.keywords["policy"]
    raise UsageError(f"topology {topology.name!r} has no Worker, so it does not say what is played")
