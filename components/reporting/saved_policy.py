"""The policy of a run that `orchestra evaluate` and `orchestra play` play: `--checkpoint last|best|STEP`."""

from argparse import ArgumentParser
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra import RunDirectory, UsageError

if TYPE_CHECKING:  # slow to import, and not needed for the help
    from components.envs.base import Env
    from components.policies.acting import ActingPolicy
    from components.rollout import EnvFactory

DEFAULT = "best"


def add_checkpoint_flag(parser: ArgumentParser) -> None:
    """Add `--checkpoint`; its value is None if it is not given."""
    parser.add_argument(
        "--checkpoint",
        metavar="WHICH",
        help=f"last, best, the environment STEPs of a checkpoint, or a file (default: {DEFAULT})",
    )


def load_policy(
    run: RunDirectory,
    which: str | None,
    n_envs: int,
    *,
    seed: int,
    start_jitter: float | None = None,
    env_arg: Sequence[str] = (),
) -> "tuple[Env, ActingPolicy, Path, int]":
    """Return environments of a run, the policy, its file, and its environment steps.

    Args:
        run: the run.
        which: the value of `--checkpoint`.
        n_envs: copies of the environment.
        seed: of the environments.
        start_jitter: cells per axis by which starting positions of the simulator vary; None for those of the run.
        env_arg: arguments of the environment, NAME=VALUE, that replace those of the run with the same names.

    Raises:
        UsageError: there is no such checkpoint, or it does not fit the run or the arguments; or starting positions
            should vary, but the run does not play in the simulator.
    """
    from components.checkpoints.policy_file import find_checkpoint, load_checkpoint
    from components.factories import factories_of

    path = find_checkpoint(run.checkpoints, which or DEFAULT)
    make_env, make_policy = factories_of(run, env_arg)
    env = (make_env if start_jitter is None else _jittered(make_env, start_jitter))(n_envs, seed=seed)
    policy = make_policy(env.spec, seed=0)
    return env, policy, path, load_checkpoint(path, policy)["env_steps"]


def _jittered(make_env: "EnvFactory", start_jitter: float) -> "EnvFactory":
    """Return a factory for the same battles with varied starting positions."""
    from components.envs import Skirmish

    if not isinstance(make_env, partial) or make_env.func is not Skirmish:
        raise UsageError("--start-jitter: the run plays outside of the simulator, which alone varies where units start")
    return partial(make_env, start_jitter=start_jitter)
