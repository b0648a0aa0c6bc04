"""The policy of a run that `orchestra evaluate` and `orchestra play` play: `--checkpoint last|best|STEP`."""

from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra import RunDirectory

if TYPE_CHECKING:  # slow to import, and not needed for the help
    from components.envs.base import Env
    from components.policies.acting import ActingPolicy

DEFAULT = "best"


def add_checkpoint_flag(parser: ArgumentParser) -> None:
    """Add `--checkpoint`; its value is None if it is not given."""
    parser.add_argument(
        "--checkpoint",
        metavar="WHICH",
        help=f"last, best, the environment STEPs of a checkpoint, or a file (default: {DEFAULT})",
    )


def load_policy(
    run: RunDirectory, which: str | None, n_envs: int, *, seed: int
) -> "tuple[Env, ActingPolicy, Path, int]":
    """Return environments of a run, the policy, its file, and its environment steps.

    Args:
        run: the run.
        which: the value of `--checkpoint`.
        n_envs: copies of the environment.
        seed: of the environments.

    Raises:
        UsageError: there is no such checkpoint, or it does not fit the run.
    """
    from components.checkpoints.policy_file import find_checkpoint, load_checkpoint
    from components.factories import factories_of

    path = find_checkpoint(run.checkpoints, which or DEFAULT)
    make_env, make_policy = factories_of(run)
    env = make_env(n_envs, seed=seed)
    policy = make_policy(env.spec, seed=0)
    return env, policy, path, load_checkpoint(path, policy)["env_steps"]
