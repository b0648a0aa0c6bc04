"""Factories of a finished run: what made its environments and the policies that acted in them."""

import hashlib
import sys
from typing import TYPE_CHECKING

from orchestra import RunDirectory, UsageError, build, flags_of, load_experiment, recorded_experiment, recorded_hosts

if TYPE_CHECKING:
    from components.rollout import ActingFactory, EnvFactory


def factories_of(run: RunDirectory) -> tuple["EnvFactory", "ActingFactory"]:
    """Return the environment factory and the policy factory of the run's first Worker.

    Prints a note on stderr if the experiment has changed since the run.

    Raises:
        UsageError: the run's config is damaged, its experiment is gone, or its topology has no Worker.
    """
    from components.worker import Worker

    file, name, values = recorded_experiment(run)
    function = load_experiment(file, name)
    if hashlib.sha256(file.read_bytes()).hexdigest() != run.config()["experiment"].get("sha256"):
        print(f"orchestra: note: {file} has changed since the run", file=sys.stderr)
    function, flags = flags_of(function, values)
    validated = {flag.name: flag.validated(values.get(flag.name, flag.default)) for flag in flags}
    topology = build(function, validated, recorded_hosts(run))
    for node in topology.nodes.values():
        for actor in node.actors:
            if issubclass(actor.kind, Worker):
                return actor.factory.keywords["env"], actor.factory.keywords["policy"]
    raise UsageError(f"topology {topology.name!r} has no Worker, so it does not say what is played")
