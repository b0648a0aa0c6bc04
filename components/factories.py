"""Factories of a finished run: for its environments, and for the policies that acted in them."""

import hashlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestra import RunDirectory, UsageError, build, flags_of, load_experiment, recorded_experiment, recorded_hosts

if TYPE_CHECKING:
    from components.rollout import ActingFactory, EnvFactory

ENV_ARG = "env_arg"
"""Name of the experiment parameter with the arguments of the environment, NAME=VALUE each."""


def factories_of(run: RunDirectory, env_arg: Sequence[str] = ()) -> tuple["EnvFactory", "ActingFactory"]:
    """Return the environment factory and the policy factory of the run's first Worker.

    Prints a note on stderr if the experiment has changed since the run.

    Args:
        run: the run.
        env_arg: arguments of the environment, NAME=VALUE, that replace those of the run with the same names.

    Raises:
        UsageError: the run's config is damaged, its experiment is gone or takes no such arguments, or its topology has
            no Worker.
    """
    from components.worker import Worker

    file, name, values = recorded_experiment(run)
    function = load_experiment(file, name)
    if hashlib.sha256(file.read_bytes()).hexdigest() != run.config()["experiment"].get("sha256"):
        print(f"orchestra: note: {file} has changed since the run", file=sys.stderr)
    function, flags = flags_of(function, values)
    if env_arg:
        if all(flag.name != ENV_ARG for flag in flags):
            raise UsageError(f"--env-arg: {file} takes no arguments of an environment")
        values = {**values, ENV_ARG: _replaced(values.get(ENV_ARG, ()), env_arg)}
    validated = {flag.name: flag.validated(values.get(flag.name, flag.default)) for flag in flags}
    topology = build(function, validated, recorded_hosts(run))
    for node in topology.nodes.values():
        for actor in node.actors:
            if issubclass(actor.kind, Worker):
                return actor.factory.keywords["env"], actor.factory.keywords["policy"]
    raise UsageError(f"topology {topology.name!r} has no Worker, so it does not say what is played")


def _replaced(recorded: Sequence[str], given: Sequence[str]) -> list[str]:
    """Return arguments NAME=VALUE; given ones replace recorded ones of the same names."""
    names = {argument.partition("=")[0] for argument in given}
    return [*(argument for argument in recorded if argument.partition("=")[0] not in names), *given]
